"""The line of the user's own code that failed is shown wherever a failure is shown."""

from __future__ import annotations

import re
import subprocess
import sys
import traceback

import pytest

from flowckpt import MemoryCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.errors import FanOutFailedError, StepFailedError

PROGRAM = """
import os
from flowckpt import step, workflow
from flowckpt.errors import StepFailedError

def divide(number):
    def inner(number):
        return 1 / (number % 2)  # the line
    if number == 4:
        raise KeyError("four")
    return inner(number)

@workflow
def single():
    yield step("divide").python(divide, 0)

@workflow
def apart():
    yield step("divide").python(divide, 0).on("process")

@workflow
def threaded():
    yield step("divide").python(divide, 0).on("thread")

@workflow
def mapped():
    yield step("each").map(divide, [1, 0, 3, 2, 4, 6], tolerate=0)

@workflow
def in_order():
    yield step("each").map(divide, [1, 0, 3, 2, 4, 6], concurrency=1)  # else any member may fail first

@workflow
def nested():
    yield step("inside").workflow(in_order)

class OwnError(Exception):
    pass

def refuse():
    raise OwnError("no")

def wait_for(file):
    if not os.path.exists(file):
        raise ValueError("not ready")

@workflow
def branches():
    try:
        yield step("refuse").python(refuse)
    except StepFailedError as error:
        seen = [type(error.__cause__).__name__, error.error_type, error.__notes__, str(error)]
    yield step("wait").python(wait_for, "ready")
    return seen

@workflow
def handled():
    try:
        yield step("divide").python(divide, 0)
    except ZeroDivisionError as error:
        raise RuntimeError("no result") from error
"""
FRAMES = ['pipeline.py", line 11, in divide', 'pipeline.py", line 8, in inner', "# the line"]
WAITING = """
import asyncio
from flowckpt import step, workflow

async def fail(number):
    if number == 0:
        raise ValueError("zero")
    await asyncio.sleep(600)

@workflow
def waiting():
    yield step("each").map(fail, [0, 1])
"""


@pytest.fixture
def program(flowckpt):
    (flowckpt.directory / "pipeline.py").write_text(PROGRAM)
    return flowckpt


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("single", "divide"),
        ("apart", "divide"),
        ("threaded", "divide"),
        ("in_order", "each"),
        ("in_order", "each/[1]"),
        ("nested", "inside/each"),
        ("handled", "divide"),
    ],
)
def test_the_frames_of_the_user_are_shown(program, target, path):
    ran = program("run", f"pipeline.py:{target}", "--id", "r").expect(1)
    shown = program("show", "r").expect(0).out
    planned = program("plan", "r", path).out
    logged = program("resume", "r", "--log-level", "info").expect(1).err
    for text in (ran.err, shown, planned, logged):
        assert all(frame in text for frame in FRAMES), text
        assert "site-packages" not in text and "/flowckpt/engine" not in text and "/flowckpt/execution" not in text
    assert ran.err.count("# the line") == 1
    assert shown.count("# the line") == 1


def test_a_failed_map_shows_the_first_cause_and_counts_the_others(program):
    ran = program("run", "pipeline.py:mapped", "--id", "r", "--executor", "engine").expect(1)
    assert len(re.findall(r"each/\[[1345]\] failed:\nTraceback \(most recent call last\):", ran.err)) == 1


def test_nobody_says_that_a_process_died_when_a_member_was_stopped_because_another_failed(flowckpt):
    (flowckpt.directory / "pipeline.py").write_text(WAITING)
    flowckpt("run", "pipeline.py:waiting", "--id", "r").expect(1)
    text = flowckpt("plan", "r", "each/[1]").expect(0).out
    assert text.startswith("each/[1]: interrupted") and "it was running when the run stopped; it runs again" in text


def fail(number):
    raise {0: ValueError, 1: KeyError}.get(number, OSError)(f"number {number}")


def test_the_errors_of_a_map_carry_the_first_cause_in_full():
    @workflow
    def mapped():
        yield step("each").map(fail, range(5), tolerate=5, min_success=1)

    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(mapped)
    with pytest.raises(FanOutFailedError) as failure:
        result.unwrap()
    (note,) = failure.value.__notes__
    assert note.startswith("each/[0] failed:\nTraceback (most recent call last):") and "in fail\n" in note
    assert note.count("Traceback") == 1
    assert note.splitlines()[-1] == "4 more failed: 1 with KeyError, 3 with OSError"


def test_a_workflow_sees_the_same_failure_in_a_resume_as_in_an_uninterrupted_run(program):
    program("run", "pipeline.py:branches", "--id", "resumed").expect(1)
    (program.directory / "ready").touch()
    resumed = program("resume", "resumed", "--json").expect(0).document
    whole = program("run", "pipeline.py:branches", "--json").expect(0).document
    assert resumed["steps"]["restored"] == 1 and resumed["output"] == whole["output"]
    assert whole["output"][:2] == ["NoneType", "pipeline.OwnError"] and "in refuse" in whole["output"][2][0]


def test_the_error_of_a_step_has_the_text_of_its_exception_and_not_the_exception():
    seen = []

    @workflow
    def catches():
        try:
            yield step("fail").python(fail, 0)
        except StepFailedError as error:
            seen.append(error)
        yield step("wait").wait("never")

    store = MemoryCheckpointStore()
    WorkflowEngine(store).run_sync(catches, workflow_id="r")
    WorkflowEngine(store).resume_sync(catches, workflow_id="r")
    first, replayed = seen
    assert first == replayed
    assert first.__notes__ == replayed.__notes__
    for error in seen:
        assert error.__cause__ is error.__context__ is None
        text = "".join(traceback.format_exception(error))
        assert text.count("in fail\n") == 1, text
        assert "ValueError: number 0" in text


def test_unwrap_in_a_script_shows_the_line(tmp_path):
    (tmp_path / "pipeline.py").write_text(PROGRAM)
    script = "from flowckpt import run_sync; import pipeline; run_sync(pipeline.mapped).unwrap()"
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert all(frame in ran.stderr for frame in FRAMES), ran.stderr
