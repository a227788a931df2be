"""Every end of a run is one path: it closes the generator, saves where it stands, tells it, and leaves a result."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from flowckpt import FileCheckpointStore, MemoryCheckpointStore, RunOptions, WorkflowEngine, step, workflow
from flowckpt.core.records import CheckpointData
from flowckpt.errors import (
    CheckpointStorageError,
    FencedError,
    FlowckptError,
    RunExistsError,
    StepFailedError,
    WorkflowChangedError,
    WorkflowDefinitionError,
)
from flowckpt.execution.interrupts import RunInterrupted
from tests.reopening import reopened_memory

world: dict[str, bool] = {}
log: list[str] = []


def note(what: str) -> str:
    log.append(what)
    return what


def fails() -> None:
    raise ValueError("no such table")


@pytest.fixture(autouse=True)
def _clear() -> None:
    log.clear()


def latest(store: Any, run: str = "run") -> CheckpointData:
    found = asyncio.run(store.load_latest(run))
    assert found is not None
    return found


@workflow
def one_fails() -> Generator[Any, Any, None]:
    try:
        yield step("first").python(note, "first")
        yield step("second").python(fails)
    finally:
        log.append("generator closed")


def test_a_step_failure_ends_the_run_as_failed_with_everything_saved() -> None:
    store = MemoryCheckpointStore()
    result = WorkflowEngine(store).run_sync(one_fails, workflow_id="run")
    assert result.status == "failed"
    assert isinstance(result.error, StepFailedError)
    assert result.error.path == "second"
    assert result.error.failed_with(ValueError)
    assert "no such table" in str(result.error)
    assert (result.steps.executed, result.steps.restored, result.steps.failed) == (2, 0, 1)
    assert log == ["first", "generator closed"]
    saved = latest(store)
    assert (saved.reason, saved.status) == ("failed", "failed")
    assert [r.success for r in saved.step_results] == [True, False]
    assert saved.error is not None
    assert saved.error.path == "second"
    assert 'raise ValueError("no such table")' in saved.error.traceback
    with pytest.raises(StepFailedError):
        result.unwrap()


def test_a_resume_leaves_a_handled_failure_until_a_person_runs_its_step_again() -> None:
    world["is_broken"] = True

    def maybe() -> str:
        log.append("maybe")
        if world["is_broken"]:
            raise OSError("down")
        return "up"

    @workflow
    def flow() -> Generator[Any, Any, str]:
        yield step("first").python(note, "first")
        try:
            return (yield step("maybe").python(maybe))
        except StepFailedError as error:
            yield step("clean up").python(note, "clean up")
            raise RuntimeError("gave up") from error

    store = MemoryCheckpointStore()
    result = WorkflowEngine(store).run_sync(flow, workflow_id="run")
    assert isinstance(result.error, RuntimeError)
    world["is_broken"] = False
    same = WorkflowEngine(store).resume_sync(flow, workflow_id="run")  # "clean up" followed the failure
    assert (same.status, same.steps.executed) == ("failed", 0)
    assert log == ["first", "maybe", "clean up"]
    result = WorkflowEngine(store).resume_sync(flow, workflow_id="run", options=RunOptions(from_step="maybe"))
    assert result.output == "up"
    assert (result.steps.executed, result.steps.restored) == (1, 1)
    assert log == ["first", "maybe", "clean up", "maybe"]
    assert [r.path for r in latest(store).step_results] == ["first", "maybe"]


def test_an_exception_in_the_generator_fails_the_run_and_keeps_what_was_done() -> None:
    wrong = [True]

    @workflow
    def flow() -> Generator[Any, Any, str]:
        first = yield step("first").python(note, "first")
        if wrong:
            raise LookupError("a bug between the steps")
        return first

    store = MemoryCheckpointStore()
    result = WorkflowEngine(store).run_sync(flow, workflow_id="run")
    assert result.status == "failed"
    assert isinstance(result.error, LookupError)
    assert latest(store).error.type == "LookupError"
    wrong.clear()
    result = WorkflowEngine(store).resume_sync(flow, workflow_id="run")
    assert (result.output, result.steps.executed, result.steps.restored) == ("first", 0, 1)


def test_an_output_that_cannot_be_recorded_fails_the_step_naming_the_place() -> None:
    def rows() -> Any:
        return {"rows": [1, {"lock": threading.Lock()}]}

    @workflow
    def flow() -> Generator[Any, Any, Any]:
        yield step("fetch").python(rows).retry(3)

    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(flow)
    assert isinstance(result.error, StepFailedError)
    assert result.error.error_type == "flowckpt.errors.EncodingError"
    assert "fetch: output.rows[1].lock is a _thread.lock" in str(result.error)
    assert result.error.tries == 1  # the same value would be refused again


def test_a_workflow_output_that_cannot_be_recorded_fails_the_run() -> None:
    @workflow
    def flow() -> Generator[Any, Any, Any]:
        yield step("first").python(note, "first")
        return threading.Lock()

    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(flow)
    assert result.status == "failed"
    assert "the workflow's output is a _thread.lock" in str(result.error)


class FailingStore(MemoryCheckpointStore):
    def __init__(self, at: int, error: Exception) -> None:
        super().__init__()
        self.at, self.error, self.count = at, error, 0

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        self.count += 1
        if self.count >= self.at:
            raise self.error
        await super().save(workflow_id, data)


@workflow
def two_saved() -> Generator[Any, Any, str]:
    try:
        yield step("first").python(note, "first").checkpoint()
        yield step("second").python(note, "second").checkpoint()
    finally:
        log.append("generator closed")
    return "done"


@pytest.mark.parametrize(
    "error",
    [CheckpointStorageError("the disk is full", is_outcome_unknown=True), OSError("a driver's own error")],
)
def test_a_failing_save_ends_the_run_as_failed_and_tells_that_it_was_not_saved(error: Exception) -> None:
    store = FailingStore(3, error)
    seen: list[Any] = []
    engine = WorkflowEngine(store)

    async def watch() -> None:
        async for event in engine.execute(two_saved, workflow_id="run"):
            seen.append(event)

    asyncio.run(watch())
    kinds = [event.kind for event in seen]
    assert kinds[-2:] == ["CheckpointFailed", "WorkflowFailed"]
    assert "StepCompleted" not in kinds[kinds.index("StepCompleted") + 1 :]  # the second was never told as done
    assert seen[-1].is_saved is False
    assert seen[-1].error_type == "flowckpt.errors.CheckpointStorageError"
    assert log == ["first", "second", "generator closed"]
    store.at = 10**9
    result = WorkflowEngine(store).resume_sync(two_saved, workflow_id="run")
    assert (result.output, result.steps.restored) == ("done", 1)


def test_a_save_that_fails_at_the_very_end_is_no_completed_run() -> None:
    result = WorkflowEngine(FailingStore(4, CheckpointStorageError("full"))).run_sync(two_saved)
    assert result.status == "failed"
    assert isinstance(result.error, CheckpointStorageError)
    assert result.is_saved is False
    assert result.output is None


def test_a_fenced_writer_stops_at_once_and_touches_nothing() -> None:
    store = MemoryCheckpointStore()

    def steal() -> None:
        other = store.acquire("run", take_over=True)
        with pytest.raises(StopIteration):
            other.send(None)

    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield step("steal").python(steal).checkpoint()
        yield step("never").python(note, "never")

    with pytest.raises(FencedError):
        WorkflowEngine(store).run_sync(flow, workflow_id="run")
    assert log == []
    assert latest(store).reason == "started"


@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_a_cancel_saves_what_was_done_and_goes_on_through(kind: str, tmp_path: Path) -> None:
    store: Any = MemoryCheckpointStore() if kind == "memory" else FileCheckpointStore(tmp_path)
    reached = asyncio.Event()

    async def waits() -> None:
        reached.set()
        await asyncio.sleep(60)

    @workflow
    def flow() -> Generator[Any, Any, None]:
        try:
            yield step("first").python(note, "first")
            yield step("waits").python(waits)
        finally:
            log.append("generator closed")

    seen: list[Any] = []

    async def watch() -> None:
        async for event in WorkflowEngine(store).execute(flow, workflow_id="run"):
            seen.append(event)

    task = asyncio.create_task(watch())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["first", "generator closed"]
    assert seen[-1].kind == "WorkflowSuspended"
    saved = await store.load_latest("run")
    assert (saved.reason, saved.status, len(saved.step_results)) == ("suspended", "suspended", 1)
    assert await store.owner("run") is None


async def test_a_consumer_that_goes_away_ends_the_run_with_everything_saved() -> None:
    store = MemoryCheckpointStore()
    events = WorkflowEngine(store).execute(two_saved, workflow_id="run")
    async for event in events:
        if event.kind == "StepCompleted":
            break
    await events.aclose()
    assert log == ["first", "generator closed"]
    saved = await store.load_latest("run")
    assert saved.status == "suspended"
    assert len(saved.step_results) == 1
    assert await store.owner("run") is None


async def test_a_run_that_cannot_be_saved_when_its_consumer_goes_away_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reopen, unheard = reopened_memory(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    events = WorkflowEngine(reopen()).execute(two_saved, workflow_id="run")
    async for event in events:
        if event.kind == "StepCompleted":
            break
    reopen()  # another owner
    await events.aclose()
    del events
    gc.collect()
    (said,) = [each.getMessage() for each in caplog.records if "stopped iterating" in each.getMessage()]
    assert "of run 'run' may not save any more" in said
    assert unheard == []


def test_a_changed_workflow_is_refused_and_the_run_stays_as_it_was() -> None:
    names = ["a", "b", "c"]

    @workflow("flow")
    def flow() -> Generator[Any, Any, None]:
        for name in names:
            yield step(name).python(note, name).checkpoint()
        raise RuntimeError("stop")

    store = MemoryCheckpointStore()
    WorkflowEngine(store).run_sync(flow, workflow_id="run")
    before = latest(store)
    names[1] = "new"
    with pytest.raises(WorkflowChangedError) as raised:
        WorkflowEngine(store).resume_sync(flow, workflow_id="run")
    assert "step 'b'" in raised.value.recorded
    assert "step 'new'" in raised.value.yielded
    assert "test_ends.py:" in raised.value.recorded
    assert "test_ends.py:" in raised.value.yielded
    assert log == ["a", "b", "c"]
    assert latest(store) == before
    assert asyncio.run(store.acquire("run")).attempt == 2  # the refused resume counts for nothing


def test_another_workflow_cannot_take_a_run_over() -> None:
    store = MemoryCheckpointStore()
    WorkflowEngine(store).run_sync(one_fails, workflow_id="run")
    with pytest.raises(WorkflowChangedError, match="belongs to workflow 'one_fails', not to 'two_saved'"):
        WorkflowEngine(store).resume_sync(two_saved, workflow_id="run")


def test_something_yielded_that_is_no_step_is_named_with_its_line() -> None:
    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield step("first").python(note, "first")
        yield 42

    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(flow)
    assert isinstance(result.error, WorkflowDefinitionError)
    assert "yielded 42 (int), which is not a step" in str(result.error)
    assert "test_ends.py:" in str(result.error)


def test_an_id_that_exists_is_not_started_again() -> None:
    store = MemoryCheckpointStore()
    WorkflowEngine(store).run_sync(two_saved, workflow_id="run")
    with pytest.raises(RunExistsError, match="flowckpt resume run"):
        WorkflowEngine(store).run_sync(two_saved, workflow_id="run")


def test_a_completed_run_is_answered_from_its_record_and_nothing_is_run() -> None:
    store = MemoryCheckpointStore()
    first = WorkflowEngine(store).run_sync(two_saved, workflow_id="run")
    log.clear()
    again = WorkflowEngine(store).resume_sync(two_saved, workflow_id="run")
    assert (again.output, again.status, again.attempt) == (first.output, "completed", 1)
    assert (again.steps.executed, again.steps.restored) == (0, 2)
    assert log == ["generator closed"]  # its body was replayed, to see whether all that is recorded still holds


def test_system_exit_in_a_step_is_its_failure_and_in_the_generator_goes_on_through() -> None:
    @workflow
    def in_step() -> Generator[Any, Any, None]:
        yield step("exit").python(sys.exit, 3)

    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(in_step)
    assert isinstance(result.error, StepFailedError)
    assert result.error.error_type == "SystemExit"

    @workflow
    def in_body() -> Generator[Any, Any, None]:
        yield step("first").python(note, "first")
        sys.exit(3)

    store = MemoryCheckpointStore()
    with pytest.raises(SystemExit):
        WorkflowEngine(store).run_sync(in_body, workflow_id="run")
    assert latest(store).status == "failed"
    assert len(latest(store).step_results) == 1


# --- signals, for real ------------------------------------------------------------------------------------------------

PIPELINE = """
import sys, time
from flowckpt import FileCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.execution.interrupts import RunInterrupted

def quick(n):
    return n

def slow(marker):
    try:
        print("in step", flush=True)
        time.sleep(30)
    except KeyboardInterrupt:
        print("reached the step", flush=True)
        raise

@workflow("signals")
def signals():
    yield step("first").python(quick, 1)
    yield step("slow").python(slow, "x")

try:
    WorkflowEngine(FileCheckpointStore(sys.argv[1])).run_sync(signals, workflow_id="run")
except RunInterrupted as stop:
    print(stop.signal_name, stop.result.status, stop.result.is_saved, flush=True)
    sys.exit(9)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_step_and_everything_before_it_is_saved(number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "pipeline.py"
    script.write_text(PIPELINE)
    child = subprocess.Popen(
        [sys.executable, script, tmp_path / "store"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "in step\n"
    began = time.monotonic()
    child.send_signal(number)
    out, _ = child.communicate(timeout=120)
    assert out == f"reached the step\n{number.name} suspended True\n"
    assert child.returncode == 9
    assert time.monotonic() - began < 25
    saved = latest(FileCheckpointStore(tmp_path / "store"))
    assert (saved.reason, [r.path for r in saved.step_results]) == ("suspended", ["first"])


def test_a_signal_between_steps_waits_until_the_finished_step_is_saved() -> None:
    """The ten-minute step that has just ended is not lost to a key that is pressed while it is being saved."""
    store = MemoryCheckpointStore()
    original = store.save

    async def signalled_save(workflow_id: str, data: CheckpointData) -> None:
        if data.checkpoint_id == "long":
            os.kill(os.getpid(), signal.SIGINT)
        await original(workflow_id, data)

    store.save = signalled_save  # type: ignore[method-assign]

    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield step("long").python(note, "long").checkpoint()
        yield step("never").python(note, "never")

    with pytest.raises(RunInterrupted) as stopped:
        WorkflowEngine(store).run_sync(flow, workflow_id="run")
    assert stopped.value.result.status == "suspended"
    assert log == ["long"]
    assert [r.path for r in latest(store).step_results] == ["long"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_ends_the_wait_before_a_retry() -> None:
    def down() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        raise OSError("down")

    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield step("down").python(down).retry(5, backoff=60)

    former = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        store = MemoryCheckpointStore()
        with pytest.raises(RunInterrupted):
            WorkflowEngine(store).run_sync(flow, workflow_id="run")
    finally:
        signal.signal(signal.SIGALRM, former)
    assert latest(store).status == "suspended"


def test_every_error_of_the_ends_is_one_of_ours_or_the_users() -> None:
    for error in (CheckpointStorageError, FencedError, WorkflowChangedError, RunExistsError):
        assert issubclass(error, FlowckptError)
