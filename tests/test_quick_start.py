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
    print(*sys.modules)
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
    """The modules that a process has when the next step of a resume begins, and those when the resume has ended."""
    directory = tmp_path_factory.mktemp("plain")
    (directory / "plain.py").write_text(PIPELINE)
    (directory / "go.py").write_text(RESUME)
    for what in ("run", "resume"):
        done = subprocess.run(
            [sys.executable, "go.py", what], cwd=directory, capture_output=True, text=True, check=True, timeout=60
        )
    first, last = done.stdout.splitlines()
    return set(first.split()), set(last.split())


@pytest.mark.parametrize(
    "module",
    [
        *("cattrs", "click", "uuid", "random", "secrets", "dataclasses", "queue", "concurrent.futures.process"),
        *(
            "flowckpt.events",
            "flowckpt.engine.values.options",
            "flowckpt.core.dsl.modifiers",
            "flowckpt.core.dsl.composites",
        ),
        *(
            "flowckpt.engine.steps.fan_out",
            "flowckpt.engine.undo.undo_run",
            "flowckpt.engine.undo.compensate",
            "flowckpt.engine.run.inbox",
        ),
        *(
            "flowckpt.evidence",
            "flowckpt.engine.rules.plan",
            "flowckpt.maintenance.retention",
            "flowckpt.execution.command",
        ),
        *(
            "flowckpt.core.records.wait",
            "flowckpt.core.dsl.command",
            "flowckpt.core.dsl.modifiers",
            "flowckpt.stores.base",
        ),
    ],
)
def test_a_plain_resume_does_not_load(imported, module):
    _, at_the_end = imported
    assert "flowckpt.engine.session.session" in at_the_end
    assert module not in at_the_end


def test_a_resume_does_not_load_what_its_end_needs_before_it_begins(imported):
    at_the_step, at_the_end = imported
    assert "flowckpt.engine.values.result" in at_the_end - at_the_step
