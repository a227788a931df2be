"""`engine.cancel`, and what a stop makes of a run that is to be continued with."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Generator
from typing import Any

import attrs
import pytest
from crashing import CrashingStore, SimulatedCrash

from flowckpt import MemoryCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.core.records import Reason, Status
from flowckpt.core.system.process import current_process, send_if_expected
from flowckpt.engine import RunOptions
from flowckpt.engine.run.lease import register_live
from flowckpt.errors import (
    CancelRefusedError,
    CheckpointNotFoundError,
    InputError,
    RequestPendingError,
    RunCancelledError,
    RunMovedOnError,
)
from flowckpt.execution.interrupts import CANCEL_SIGNALS, Interrupts, RunInterrupted

world: list[str] = []
begun: list[str] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    world.clear()
    begun.clear()


def do(what: str) -> str:
    world.append(what)
    return what


def undo(what: str) -> None:
    world.remove(what)


async def last(how: str) -> None:
    begun.append(how)
    if how == "waits":
        await asyncio.sleep(60)
    if how == "fails":
        raise ValueError(how)
    if how == "stops":
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(60)


async def has_begun() -> None:
    while not begun:
        await asyncio.sleep(0)


@workflow
def saga(how: str = "") -> Generator[Any, Any, str]:
    yield step("one").python(do, "one").rollback(undo).checkpoint()
    yield step("two").python(do, "two").rollback(undo).checkpoint()
    yield step("last").python(last, how).checkpoint()
    return "done"


async def test_a_run_of_this_very_process_is_stopped_undone_and_told_as_a_result():
    engine = WorkflowEngine(MemoryCheckpointStore())
    running = asyncio.create_task(engine.run(saga, workflow_id="run", how="waits"))
    await has_begun()
    cancelled = await engine.cancel("run")
    result = await running
    assert (result.status, type(result.error)) == (Status.CANCELLED, RunCancelledError)
    assert (cancelled.was, cancelled.undone, cancelled.not_undone) == (Status.RUNNING, ("two", "one"), ())
    assert world == []


async def test_nothing_is_undone_where_that_is_not_wanted():
    engine = WorkflowEngine(MemoryCheckpointStore())
    running = asyncio.create_task(engine.run(saga, workflow_id="run", how="waits"))
    await has_begun()
    assert (await engine.cancel("run", rolls_back=False)).undone == ()
    assert (await running).status is Status.CANCELLED
    assert world == ["one", "two"]


async def test_a_run_that_nobody_runs_needs_its_workflow_to_be_undone():
    store = MemoryCheckpointStore()
    engine = WorkflowEngine(store)
    await engine.run(saga, workflow_id="run", how="fails", options=RunOptions(rolls_back=False))
    with pytest.raises(InputError, match="workflow"):
        await engine.cancel("run")
    cancelled = await engine.cancel("run", workflow=saga)
    assert (cancelled.was, cancelled.undone, world) == (Status.FAILED, ("two", "one"), [])
    latest = await store.load_latest("run")
    assert latest is not None and (latest.status, latest.error) == (Status.CANCELLED, None)


async def test_what_has_completed_or_does_not_exist_is_refused():
    engine = WorkflowEngine(MemoryCheckpointStore())
    await engine.run(saga, workflow_id="run")
    for rolls_back in (True, False):
        with pytest.raises(CancelRefusedError):
            await engine.cancel("run", workflow=saga, rolls_back=rolls_back)
    with pytest.raises(CheckpointNotFoundError):
        await engine.cancel("nothing")
    assert world == ["one", "two"]


@pytest.mark.parametrize("dies_at", range(1, 5))
async def test_a_cancel_that_dies_in_the_middle_is_finished_by_a_resume_and_ends_cancelled(dies_at):
    store = MemoryCheckpointStore()
    await WorkflowEngine(store).run(saga, workflow_id="run", how="fails", options=RunOptions(rolls_back=False))
    with pytest.raises(SimulatedCrash):
        await WorkflowEngine(CrashingStore(store, dies_at, is_after=False)).cancel("run", workflow=saga)
    await store.release("run")
    latest = await store.load_latest("run")
    assert latest is not None
    if latest.status is Status.RUNNING:  # it had begun to undo
        assert (await WorkflowEngine(store).resume_run(saga, workflow_id="run")).status is Status.CANCELLED
        assert world == []
    else:
        assert (dies_at, latest.status, world) == (1, Status.FAILED, ["one", "two"])


async def test_a_cancelled_run_does_again_what_was_undone_when_it_is_resumed():
    engine = WorkflowEngine(MemoryCheckpointStore())
    await engine.run(saga, workflow_id="run", how="fails")
    await engine.cancel("run", workflow=saga)
    result = await engine.resume_run(saga, workflow_id="run")
    assert (result.status, world) == (Status.FAILED, [])
    assert result.steps.executed == 3


async def test_an_owner_that_cannot_be_asked_is_told(monkeypatch):
    store = MemoryCheckpointStore()
    engine = WorkflowEngine(store)
    running = asyncio.create_task(engine.run(saga, workflow_id="run", how="waits"))
    await has_begun()
    monkeypatch.setattr("flowckpt.engine.session.control.find_live_interrupts", lambda store, run: None)
    with pytest.raises(RequestPendingError) as told:  # asked by a message, which it reads at its next step
        await engine.cancel("run", patience_seconds=0.1)
    assert told.value.waited_seconds == 0.1
    assert [each.name for each in await store.signals("run")] == ["cancel"]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_a_signal_leaves_a_run_suspended_and_due():
    store = MemoryCheckpointStore()
    engine = WorkflowEngine(store)
    with pytest.raises(RunInterrupted) as stop:
        engine.run_sync(saga, workflow_id="run", how="stops")
    assert stop.value.result.status is Status.SUSPENDED
    latest = asyncio.run(store.load_latest("run"))
    assert latest is not None and latest.reason is Reason.SUSPENDED
    assert world == ["one", "two"]


@workflow
def order() -> Generator[Any, Any, str]:
    yield step("one").python(do, "one").rollback(undo).checkpoint()
    yield step("paid").wait("paid")
    for number in range(1, 20):
        yield step("ship").python(do, str(number)).rollback(undo).checkpoint()
        yield step("pause").sleep(0.02)
    return "done"


@pytest.mark.parametrize("rolls_back", [True, False])
async def test_a_cancel_that_comes_while_a_run_suspends_stops_the_attempt_that_resumes_it_at_once(rolls_back):
    cancelling: list[asyncio.Task[Any]] = []

    def hear(event: Any) -> None:
        if event.kind == "StepStarted" and event.path == "paid" and not cancelling:
            cancelling.append(asyncio.create_task(engine.cancel("run", workflow=order, rolls_back=rolls_back)))

    engine = WorkflowEngine(MemoryCheckpointStore(), listeners=[hear])
    await engine.run(order, workflow_id="run")
    await engine.signal("run", "paid")
    resumed = await engine.resume_run(order, workflow_id="run")
    cancelled = await cancelling[0]
    assert resumed.status is Status.CANCELLED and "19" not in world
    assert sorted(world) == ([] if rolls_back else sorted({"one", *world})) and bool(cancelled.undone) is rolls_back


def test_a_cancel_is_no_stop_that_suspends():
    engine = WorkflowEngine(MemoryCheckpointStore())
    timer = threading.Timer(0.3, lambda: asyncio.run(engine.cancel("run")))
    timer.start()
    result = engine.run_sync(saga, workflow_id="run", how="waits")
    timer.join()
    assert (result.status, world) == (Status.CANCELLED, [])


async def test_a_resume_for_one_attempt_is_refused_at_another():
    engine = WorkflowEngine(MemoryCheckpointStore())
    await engine.run(saga, workflow_id="run", how="fails", options=RunOptions(rolls_back=False))
    await engine.resume_run(saga, workflow_id="run", options=RunOptions(if_attempt=1))
    with pytest.raises(RunMovedOnError) as told:
        await engine.resume_run(saga, workflow_id="run", options=RunOptions(if_attempt=1))
    assert (told.value.expected, told.value.attempt) == (1, 2)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the signals of cancel are Linux's")
def test_a_cancel_that_comes_when_the_run_has_ended_ends_nothing():
    number = CANCEL_SIGNALS[True]
    with Interrupts():
        pass
    assert send_if_expected(current_process(), number)
    signal.raise_signal(number)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the signals of cancel are Linux's")
def test_a_process_that_does_not_listen_is_never_sent_what_would_end_it():
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        signal.pause()
        os._exit(0)
    try:
        child = attrs.evolve(current_process(), pid=pid, start_time=0)
        assert not send_if_expected(child, signal.SIGUSR2)
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_signal_to_cancel_stops_no_run_of_a_process_that_drives_several():
    interrupts, number = Interrupts(), CANCEL_SIGNALS[True]
    with interrupts, register_live(MemoryCheckpointStore(), "one", interrupts):
        with register_live(MemoryCheckpointStore(), "two", Interrupts()):
            signal.raise_signal(number)
            assert not interrupts.pending_signal
        signal.raise_signal(number)
        assert interrupts.pending_signal == "cancel"
