"""What a plain run does not use is not imported: each start of a process pays for what it loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

PIPELINE = """
import sys
from flowckpt import step, workflow

def work(number):
    return number

@workflow("plain")
def plain():
    for number in range(3):
        yield step("work").python(work, number).checkpoint()
    yield step("stop").python(stop)

def stop():
    raise SystemExit("here")
"""

RESUME = """
import sys
from plain import plain
from flowckpt import FileCheckpointStore, WorkflowEngine
engine = WorkflowEngine(FileCheckpointStore("store"))
engine.run_sync(plain, workflow_id="run") if sys.argv[1] == "run" else engine.resume_sync(plain, workflow_id="run")
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The modules that a process has loaded when a resume has ended."""
    directory = tmp_path_factory.mktemp("plain")
    (directory / "plain.py").write_text(PIPELINE)
    (directory / "go.py").write_text(RESUME)
    for what in ("run", "resume"):
        done = subprocess.run(
            [sys.executable, "go.py", what], cwd=directory, capture_output=True, text=True, check=True, timeout=120
        )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        *(
            "aiofiles",
            "cattrs",
            "click",
            "uuid",
            "random",
            "secrets",
            "dataclasses",
            "concurrent.futures.process",
        ),
        *("flowckpt.events", "flowckpt.core.dsl.composites", "flowckpt.core.dsl.command"),
        *("flowckpt.engine.steps.fan_out", "flowckpt.engine.undo.compensate", "flowckpt.engine.undo.compensate"),
        *("flowckpt.engine.run.inbox", "flowckpt.engine.rules.plan", "flowckpt.engine.dry.planner"),
        *("flowckpt.evidence.claims", "flowckpt.maintenance.retention", "flowckpt.execution.command"),
        *("flowckpt.stores.queries", "flowckpt.core.records.statistics", "flowckpt.stores.log.sealing.keys"),
    ],
)
def test_a_plain_resume_does_not_load(imported, module):
    assert "flowckpt.engine.session.session" in imported
    assert module not in imported


def test_a_plain_resume_loads_few_modules(imported):
    assert len([name for name in imported if name.partition(".")[0] == "flowckpt"]) <= 124
