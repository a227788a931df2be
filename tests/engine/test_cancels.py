"""Cancels and signals at the awkward moments: nothing is lost, nothing stays taken, and nobody is left unheard."""

from __future__ import annotations

import asyncio
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

from flowckpt import (
    CheckpointManager,
    FileCheckpointStore,
    MemoryCheckpointStore,
    Retention,
    RunOptions,
    WorkflowEngine,
    step,
    workflow,
)
from flowckpt.core.records import CheckpointData
from flowckpt.errors import InputError, StaleStepError, WorkflowDefinitionError
from flowckpt.execution.interrupts import RunInterrupted
from flowckpt.maintenance import copy_run

world: dict[str, bool] = {}


def quick(n: int) -> int:
    return n


@workflow
def two() -> Generator[Any, Any, int]:
    yield step("first").python(quick, 1).checkpoint()
    return (yield step("second").python(quick, 2).checkpoint())


IN_GROUP = {"save": "_save_in_group", "acquire": "_acquire_new_in_group"}
"""The work that a store does together with that of other runs."""


class SlowStore(FileCheckpointStore):
    """A file store whose saves, takings or givings back wait in their thread until the test lets them continue."""

    def __init__(self, path: Path, slow: str) -> None:
        super().__init__(path)
        self.reached, self.go = threading.Event(), threading.Event()
        original, in_group = getattr(self.runs, slow), getattr(self.runs, IN_GROUP.get(slow, slow))

        def wait(*args: Any) -> None:
            if slow != "save" or args[1].checkpoint_id == "first":
                self.reached.set()
                assert self.go.wait(120)

        def waits(*args: Any, **kwargs: Any) -> Any:
            wait(*args)
            return original(*args, **kwargs)

        def waits_in_group(*args: Any) -> Generator[Any, Any, Any]:
            wait(*args)
            return (yield from in_group(*args))

        if slow in IN_GROUP:
            setattr(self.runs, IN_GROUP[slow], waits_in_group)
        setattr(self.runs, slow, waits)


async def cancelled_at(store: SlowStore, *, by: str) -> BaseException:
    async def limited() -> None:
        async with asyncio.timeout(None) as limit:
            task = asyncio.current_task()
            assert task is not None
            loop = asyncio.get_running_loop()

            def strike() -> None:
                store.reached.wait(120)
                loop.call_soon_threadsafe(task.cancel if by == "cancel" else lambda: limit.reschedule(0))
                time.sleep(0.05)
                store.go.set()

            threading.Thread(target=strike).start()
            await WorkflowEngine(store).run(two, workflow_id="run")

    with pytest.raises((asyncio.CancelledError, TimeoutError)) as ended:
        await asyncio.create_task(limited())
    return ended.value


@pytest.mark.parametrize("by", ["cancel", "timeout"])
async def test_a_cancel_in_the_middle_of_a_save_waits_for_it_and_keeps_the_step(by: str, tmp_path: Path) -> None:
    store = SlowStore(tmp_path, "save")
    ended = await cancelled_at(store, by=by)
    assert isinstance(ended, TimeoutError if by == "timeout" else asyncio.CancelledError)
    saved = await store.load_latest("run")
    assert saved is not None
    assert (saved.status, [r.path for r in saved.step_results]) == ("suspended", ["first"])
    assert await store.owner("run") is None
    result = await WorkflowEngine(FileCheckpointStore(tmp_path)).resume_run(two, workflow_id="run")
    assert (result.output, result.steps.restored) == (2, 1)


@pytest.mark.parametrize("slow", ["acquire", "release"])
@pytest.mark.parametrize("by", ["cancel", "timeout"])
async def test_a_cancel_while_a_run_is_taken_or_given_back_leaves_it_free(slow: str, by: str, tmp_path: Path) -> None:
    store = SlowStore(tmp_path, slow)
    ended = await cancelled_at(store, by=by)
    assert type(ended) is (TimeoutError if by == "timeout" else asyncio.CancelledError)
    assert store.runs.owned == {}
    engine = WorkflowEngine(FileCheckpointStore(tmp_path))
    latest = await engine.store.load_latest("run")
    result = await (engine.run(two, workflow_id="run") if latest is None else engine.resume_run(two, workflow_id="run"))
    assert result.output == 2


async def run_and_forget(store: SlowStore) -> None:
    await WorkflowEngine(store, retention=Retention(on_success="clear")).run(two, workflow_id="run")


async def commit(store: SlowStore) -> None:
    async with CheckpointManager(store) as manager:
        await manager.commit_step(await manager.begin_step("run", "train", None), None, "first")


async def copy(store: SlowStore) -> None:
    source, arrive = MemoryCheckpointStore(), store.receive_run
    await WorkflowEngine(source).run(two, workflow_id="run")

    async def arrives_slowly(*args: Any) -> None:
        store.reached.set()
        await asyncio.to_thread(store.go.wait, 10)
        await arrive(*args)

    store.receive_run = arrives_slowly  # type: ignore[method-assign]
    await copy_run(source, store, "run")


async def roll_back(store: SlowStore) -> None:
    await WorkflowEngine(FileCheckpointStore(store.path)).run(two, workflow_id="run")
    await WorkflowEngine(store).rollback("run", "first")


@pytest.mark.parametrize(
    ("work", "slow"),
    [(run_and_forget, "clear"), (commit, "save"), (commit, "release"), (copy, "acquire"), (roll_back, "release")],
)
async def test_a_call_that_ends_out_of_time_says_so_inside_the_limit(work: Any, slow: str, tmp_path: Path) -> None:
    """Not after it: there, a cancel would hit the caller's next await, or nobody."""
    store, is_over = SlowStore(tmp_path, slow), False

    async def limited() -> None:
        nonlocal is_over
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit:
                loop = asyncio.get_running_loop()

                def strike() -> None:
                    store.reached.wait(120)
                    loop.call_soon_threadsafe(limit.reschedule, 0)
                    time.sleep(0.05)
                    store.go.set()

                threading.Thread(target=strike).start()
                await work(store)
        await asyncio.sleep(0)
        is_over = True

    await asyncio.create_task(limited())
    assert is_over


@pytest.mark.parametrize("at", ["second", "@completed"])
def test_a_signal_that_comes_too_late_to_stop_anything_is_still_heard(at: str) -> None:
    store = MemoryCheckpointStore()
    original = store.save

    async def signalled(workflow_id: str, data: CheckpointData) -> None:
        if data.checkpoint_id == at:
            os.kill(os.getpid(), signal.SIGTERM)
        await original(workflow_id, data)

    store.save = signalled  # type: ignore[method-assign]
    with pytest.raises(RunInterrupted) as stopped:
        WorkflowEngine(store).run_sync(two, workflow_id="run")
    assert stopped.value.signal_name == "SIGTERM"
    assert (stopped.value.result.status, stopped.value.result.output) == ("completed", 2)


def test_a_signal_reaches_a_step_whose_function_is_written_in_c() -> None:
    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield step("set").python(signal.setitimer, signal.ITIMER_REAL, 0.1)
        yield step("sleep").python(time.sleep, 100)

    former = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    began = time.monotonic()
    try:
        with pytest.raises(RunInterrupted):
            WorkflowEngine(MemoryCheckpointStore()).run_sync(flow)
    finally:
        signal.signal(signal.SIGALRM, former)
    assert time.monotonic() - began < 90


def test_a_keyboard_interrupt_of_the_step_itself_ends_like_a_signal() -> None:
    def raises() -> None:
        raise KeyboardInterrupt

    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield step("raises").python(raises)

    with pytest.raises(RunInterrupted) as stopped:
        WorkflowEngine(MemoryCheckpointStore()).run_sync(flow)
    assert stopped.value.result.status == "suspended"


ORPHAN = """
import multiprocessing, os, sys, time
from flowckpt import FileCheckpointStore, WorkflowEngine, step, workflow

def fork():
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,)).start()
    os.kill(os.getpid(), 9)

@workflow("orphan")
def orphan():
    yield step("first").python(len, "x").checkpoint()
    yield step("fork").python(fork)

print(os.getpid(), flush=True)
WorkflowEngine(FileCheckpointStore(sys.argv[1])).run_sync(orphan, workflow_id="run")
"""


def test_the_run_of_a_killed_owner_is_free_although_its_forked_child_lives_on(tmp_path: Path) -> None:
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    child = subprocess.Popen(
        [sys.executable, script, tmp_path / "store"], stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        assert child.wait(120) == -signal.SIGKILL
        store = FileCheckpointStore(tmp_path / "store")
        lease = asyncio.run(store.acquire("run"))
        assert (lease.attempt, lease.latest is not None) == (2, True)
        store.close()
    finally:
        os.killpg(child.pid, signal.SIGKILL)


def test_a_step_with_another_version_tag_is_run_again() -> None:
    tag = ["1"]

    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield step("model").python(quick, 1).version(tag[0])
        raise RuntimeError("stop")

    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(flow, workflow_id="run")
    assert engine.resume_sync(flow, workflow_id="run").steps.executed == 0
    tag[0] = "2"
    assert engine.resume_sync(flow, workflow_id="run").steps.executed == 1
    with pytest.raises(StaleStepError, match="version: recorded '2', now '3'"):
        tag[0] = "3"
        engine.resume_sync(flow, workflow_id="run", options=RunOptions(on_stale="fail"))


def test_a_lambda_is_no_workflow() -> None:
    with pytest.raises(WorkflowDefinitionError, match=r"'x' is a lambda \(at .*test_cancels.py:"):
        workflow("x")(lambda: (yield step("first").python(quick, 1)))


@pytest.mark.parametrize("bad", ["", "  ", 7, b"x"])
def test_an_id_that_is_no_text_is_refused(bad: Any) -> None:
    with pytest.raises(InputError, match="a run id must be 1 to 200 printable characters"):
        WorkflowEngine(MemoryCheckpointStore()).run_sync(two, workflow_id=bad)


def test_errors_collected_in_a_group_are_history_until_a_person_runs_their_step_again() -> None:
    world["is_broken"] = True

    def maybe(n: int) -> int:
        if world["is_broken"] and n == 1:
            raise OSError("down")
        return n

    @workflow
    def flow() -> Generator[Any, Any, int]:
        errors = []
        for n in range(3):
            try:
                yield step("maybe").python(maybe, n).checkpoint()
            except Exception as error:
                errors.append(error)
        if errors:
            raise ExceptionGroup("some failed", errors)
        return n

    engine = WorkflowEngine(MemoryCheckpointStore())
    assert engine.run_sync(flow, workflow_id="run").status == "failed"
    world["is_broken"] = False
    same = engine.resume_sync(flow, workflow_id="run")  # another step followed the failed one: the failure was handled
    assert (same.status, same.steps.restored, same.steps.executed) == ("failed", 3, 0)
    result = engine.resume_sync(flow, workflow_id="run", options=RunOptions(from_step="maybe[1]"))
    assert (result.output, result.steps.restored, result.steps.executed) == (2, 1, 2)


@pytest.mark.parametrize("name", ["WorkflowStarted", "StepStarted", "StepCompleted", "CheckpointSaved"])
def test_an_error_in_the_loop_over_the_events_ends_the_program(name):
    """`asyncio.run` cancels the run while nobody takes its events any more."""

    @workflow
    def steps():
        for _ in range(3):
            yield step("one").python(int).checkpoint()

    async def listen():
        async for event in WorkflowEngine(MemoryCheckpointStore()).execute(steps):
            if type(event).__name__ == name:
                raise KeyError(name)

    raised = []

    def program():
        try:
            asyncio.run(listen())
        except KeyError as error:
            raised.append(error)

    thread = threading.Thread(target=program, daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive()
    assert len(raised) == 1
