"""No event loop is visible where a step's function runs: it may start one of its own."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys

import pytest

import flowckpt.execution.interrupts as interrupts_of
from flowckpt import FileCheckpointStore, WorkflowEngine, current_step, parallel, run_sync, step, workflow
from flowckpt.execution.interrupts import Interrupts
from tests import forked

PIPELINE = """
import asyncio
from flowckpt import run_sync, step, workflow

async def ask(number):
    await asyncio.sleep(0)
    return number + 1

def fetch(number):
    return asyncio.run(ask(number))

@workflow("child")
def child(number: int):
    got = yield step("fetch").python(fetch, number)
    return got

@workflow("main")
def main():
    one = yield step("one").python(fetch, 0).checkpoint()
    many = yield step("many").map(fetch, [one, 2])
    inner = yield step("inner").workflow(child, number=many[1])
    return inner
"""


async def answer(number):
    await asyncio.sleep(0)
    return number + 1


def is_loop_visible(_=None):
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def nested(number):
    assert not is_loop_visible()
    found = asyncio.run(answer(number))
    assert not is_loop_visible()
    return found


def failing(number):
    async def fail():
        raise ValueError(number)

    asyncio.run(fail())


@workflow("nested")
def workflow_of_loops():
    one = yield step("one").python(nested, 0).checkpoint()
    two = yield step("two").python(nested, one).checkpoint()
    seen = yield step("seen").map(is_loop_visible, [1, 2])
    return two, seen


def test_a_sync_step_runs_a_loop_of_its_own_in_run_sync(tmp_path):
    engine = WorkflowEngine(FileCheckpointStore(tmp_path / "store"))
    assert engine.run_sync(workflow_of_loops, workflow_id="run").unwrap() == (2, [False, False])
    assert engine.resume_sync(workflow_of_loops, workflow_id="run").unwrap() == (2, [False, False])


async def test_a_sync_step_sees_no_loop_in_an_application_of_its_own(tmp_path):
    engine = WorkflowEngine(FileCheckpointStore(tmp_path / "store"))
    result = await engine.run(workflow_of_loops, workflow_id="run")
    assert result.unwrap() == (2, [False, False])


def test_a_failure_inside_that_loop_is_the_failure_of_the_step():
    @workflow("fails")
    def fails():
        try:
            yield step("fail").python(failing, 3).retry(2)
        except Exception as error:
            return str(error)

    assert "ValueError: 3" in run_sync(fails).unwrap()


def test_an_async_step_still_has_the_loop_of_the_engine():
    async def visible():
        await asyncio.sleep(0)
        return is_loop_visible()

    @workflow("async")
    def mixed():
        first = yield step("sync").python(is_loop_visible)
        second = yield step("async").python(visible)
        both = yield parallel(step("a").python(nested, 1), step("b").python(visible))
        return first, second, list(both)

    assert run_sync(mixed).unwrap() == (False, True, [2, True])


def test_progress_and_state_can_be_saved_from_inside_that_loop(tmp_path):
    def work():
        async def inner():
            current_step().progress(1, 2)
            await asyncio.sleep(0)
            return "done"

        current_step().save({"at": 1})
        said = asyncio.run(inner())
        current_step().save({"at": 2})
        return said

    @workflow("progress")
    def progress():
        said = yield step("work").python(work).checkpoint()
        return said

    engine = WorkflowEngine(FileCheckpointStore(tmp_path / "store"))
    assert engine.run_sync(progress, workflow_id="run").unwrap() == "done"


@pytest.mark.parametrize("words", [["main.py"], ["main.py", "--executor", "thread"]])
def test_from_the_command_line_in_steps_maps_and_children(tmp_path, words):
    (tmp_path / "main.py").write_text(PIPELINE)
    done = forked.run(["-m", "flowckpt", "run", f"{words[0]}:main", *words[1:], "--id", "one"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "output: 4" in done.stdout


def test_signal_at_any_instruction_around_a_step_leaves_the_loop_visible():
    """The step has its result by then, or has none yet: the signal is noted, and the engine finds its loop again."""

    async def run():
        loop, interrupts = asyncio.get_running_loop(), Interrupts()
        with interrupts:
            interrupts.watch(asyncio.current_task())
            place, is_before_the_end = 0, True
            while is_before_the_end:
                instructions = itertools.count()

                def trace(frame, event, _, place=place, instructions=instructions):
                    if frame.f_code.co_filename != interrupts_of.__file__:
                        return None
                    frame.f_trace_opcodes = True
                    if event == "opcode" and interrupts.is_in_place and next(instructions) == place:
                        signal.getsignal(signal.SIGTERM)(signal.SIGTERM, frame)
                    return trace

                sys.settrace(trace)
                try:
                    is_visible = interrupts.call(is_loop_visible, (), {})
                finally:
                    sys.settrace(None)
                assert not is_visible
                assert asyncio.get_running_loop() is loop
                assert not interrupts.is_in_place
                is_before_the_end, place = interrupts.pending_signal == "SIGTERM", place + 1
                interrupts.pending_signal = ""
        return place

    assert asyncio.run(run()) > 20  # instructions
