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
        *("flowckpt.events", "flowckpt.triggers", "flowckpt.dsl.retry", "flowckpt.dsl.composites"),
        *(
            "flowckpt.engine.fan_out",
            "flowckpt.engine.undoing",
            "flowckpt.engine.rolling_back",
            "flowckpt.engine.inbox",
        ),
        *("flowckpt.evidence", "flowckpt.plan.model", "flowckpt.retention", "flowckpt.execution.command"),
        *(
            "flowckpt.checkpoint.wait",
            "flowckpt.dsl.command",
            "flowckpt.dsl.claimed_evidence",
            "flowckpt.stores.integrity",
        ),
    ],
)
def test_a_plain_resume_does_not_load(imported, module):
    _, at_the_end = imported
    assert "flowckpt.engine.session" in at_the_end
    assert module not in at_the_end


def test_a_resume_does_not_load_what_its_end_needs_before_it_begins(imported):
    at_the_step, at_the_end = imported
    assert "flowckpt.engine.result" in at_the_end - at_the_step
