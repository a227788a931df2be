"""How single steps are run: where, how often, for how long, and what the generator gets."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Generator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from flowckpt import MemoryCheckpointStore, RunOptions, WorkflowEngine, step, workflow
from flowckpt.errors import StepFailedError, WorkflowDefinitionError
from flowckpt.execution import thread
from tests.late import Late


class HandClock:
    """A clock that stands still, but for sleeps."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.moment = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.moment

    def elapsed_ns(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def engine(**options: Any) -> WorkflowEngine:
    return WorkflowEngine(MemoryCheckpointStore(), **options)


calls: list[Any] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    calls.clear()


def fail_until(succeeds_at: int, error: Exception) -> int:
    calls.append(error)
    if len(calls) < succeeds_at:
        raise error
    return len(calls)


@workflow
def retried(at: int, attempts: int) -> Generator[Any, Any, int]:
    return (
        yield step("try")
        .python(fail_until, at, OSError("down"))
        .retry(attempts, backoff=1, max_delay=5, jitter=0.5, on=(OSError, KeyError))
    )


def test_a_step_is_tried_again_with_growing_waits_up_to_the_limit() -> None:
    clock = HandClock()
    result = engine(clock=clock, random=lambda: 0.5).run_sync(retried, at=6, attempts=6)
    assert result.output == 6
    assert clock.slept == [1, 2, 4, 5, 5]
    assert result.steps.executed == 1


def test_jitter_varies_a_wait_in_both_directions() -> None:
    shorter, longer = HandClock(), HandClock()
    engine(clock=shorter, random=lambda: 0.0).run_sync(retried, at=2, attempts=2)
    calls.clear()
    engine(clock=longer, random=lambda: 0.999999).run_sync(retried, at=2, attempts=2)
    assert shorter.slept == [0.5]
    assert longer.slept[0] == pytest.approx(1.5, abs=0.001)


def test_tries_are_bounded_and_counted_in_the_error_and_the_record() -> None:
    used = engine(clock=HandClock())
    result = used.run_sync(retried, workflow_id="run", at=9, attempts=3)
    assert isinstance(result.error, StepFailedError)
    assert result.error.tries == len(calls) == 3
    assert "failed after 3 tries with OSError: down" in str(result.error)
    latest = asyncio.run(used.store.load_latest("run"))
    assert latest is not None
    assert latest.step_results[0].tries == 3


def test_an_exception_that_is_not_named_is_not_tried_again() -> None:
    @workflow
    def flow() -> Generator[Any, Any, int]:
        return (yield step("try").retry(5, on=KeyError).python(fail_until, 2, OSError("down")))

    assert engine().run_sync(flow).status == "failed"
    assert len(calls) == 1


def test_retries_are_told_with_what_failed_and_the_wait() -> None:
    async def watch() -> list[Any]:
        used = engine(clock=HandClock(), random=lambda: 0.5)
        return [event async for event in used.execute(retried, at=3, attempts=3)]

    told = [event for event in asyncio.run(watch()) if event.kind == "StepRetrying"]
    assert [(e.path, e.tries, e.delay_seconds, e.error_type) for e in told] == [
        ("try", 1, 1.0, "OSError"),
        ("try", 2, 2.0, "OSError"),
    ]


def where() -> int:
    calls.append(threading.get_ident())
    return 1


@workflow
def threads() -> Generator[Any, Any, None]:
    yield step("where").python(where)
    yield step("where").python(where)


def test_sync_steps_run_in_the_callers_thread_when_the_engine_owns_the_loop() -> None:
    engine().run_sync(threads)
    assert calls == [threading.get_ident()] * 2


async def test_sync_steps_run_on_one_worker_thread_in_an_applications_loop() -> None:
    await engine().run(threads)
    assert len(set(calls)) == 1
    assert calls[0] != threading.get_ident()


async def test_steps_of_many_runs_may_wait_for_each_other() -> None:
    """Their threads are woken one after another, and none has to end for the next one to begin."""
    barrier = threading.Barrier(50)

    @workflow
    def meet() -> Generator[Any, Any, int]:
        return (yield step("meet").python(barrier.wait, 60))

    results = await asyncio.gather(*(engine().run(meet) for _ in range(50)))
    assert sorted(result.unwrap() for result in results) == [*range(50)]


async def test_a_step_that_is_left_before_its_thread_is_woken_keeps_no_other_waiting(monkeypatch) -> None:
    relay = thread._Relay()
    relay._woken = relay._MOST  # as many have been woken and have not begun
    monkeypatch.setattr(thread, "_relay", relay)
    heard: dict[str, Any] = {"on_left": lambda call: None, "on_returned": calls.append}
    left = asyncio.ensure_future(thread.StepThread().run(lambda: calls.append("left"), **heard))
    kept = asyncio.ensure_future(thread.StepThread().run(lambda: "kept", **heard))
    await asyncio.sleep(0)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    assert not kept.done()
    relay.wake_next()  # one of those
    assert await kept == "kept"
    assert calls == []


async def test_a_cancel_that_comes_after_the_return_loses_no_value() -> None:
    begun, late = list[int](), list[int]()

    def wait_for_return(call: thread.Call) -> None:
        raise AssertionError("it had returned")

    work = partial(begun.append, 1)  # of no bytecode: it begins and returns at once
    heard: dict[str, Any] = {"on_left": wait_for_return, "on_returned": late.append}
    running = asyncio.ensure_future(thread.StepThread().run(work, **heard))
    await asyncio.sleep(0)
    while not begun:  # the loop stands still, so it cannot hear of the return
        time.sleep(0)
    running.cancel()
    assert (await running, late) == (None, [1])


async def test_a_cancel_in_the_turn_of_the_steps_own_timeout_is_not_lost() -> None:
    """Two requests before the task wakes raise one exception: the limit takes its own, the other one stays."""

    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield step("limited").python(time.sleep, 0.3).timeout(0.2)
        yield step("never").python(asyncio.Event().wait)

    async with asyncio.timeout(120):
        running = asyncio.ensure_future(engine().run(flow))
        await asyncio.sleep(0.05)  # the step has begun
        asyncio.get_running_loop().call_later(0.1, time.sleep, 0.4)  # the loop is busy while the step ends
        asyncio.get_running_loop().call_later(0.25, running.cancel)
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_an_applications_loop_stays_live_while_a_step_blocks() -> None:
    has_ticked = threading.Event()

    async def tick() -> None:
        for _ in range(10):
            await asyncio.sleep(0.001)
        has_ticked.set()

    @workflow
    def flow() -> Generator[Any, Any, bool]:
        return (yield step("block").python(has_ticked.wait, 60))

    ticking = asyncio.create_task(tick())
    assert (await engine().run(flow)).unwrap() is True
    await ticking


def connect() -> Any:
    return sqlite3.connect(":memory:")


def query(connection: sqlite3.Connection) -> int:
    with contextlib.closing(connection):
        return int(connection.execute("select 41 + 1").fetchone()[0])


@workflow
def database() -> Generator[Any, Any, int]:
    connection = yield step("connect").python(connect).ephemeral()
    return (yield step("query").python(query, connection))


def test_a_sqlite_connection_works_from_step_to_step() -> None:
    assert engine().run_sync(database).output == 42


async def test_a_sqlite_connection_works_from_step_to_step_in_an_applications_loop() -> None:
    result = await engine().run(database)
    assert result.output == 42, result.error


@pytest.mark.parametrize("is_owned", [True, False], ids=["own loop", "guest"])
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_a_step_that_takes_too_long_fails_and_the_run_goes_on(is_owned: bool, is_async: bool) -> None:
    @workflow
    def flow() -> Generator[Any, Any, str]:
        try:
            yield step("slow").python(asyncio.sleep if is_async else time.sleep, 30).timeout(0.05)
        except StepFailedError as error:
            assert error.failed_with(TimeoutError)
            return (yield step("instead").python(str, error.error_type))
        return ""

    began = time.monotonic()
    result = engine().run_sync(flow) if is_owned else asyncio.run(engine().run(flow))
    assert result.output == "flowckpt.errors.StepTimeoutError", result.error
    assert time.monotonic() - began < 20


def test_a_timed_out_thread_is_asked_to_end(late: Late) -> None:
    ended = threading.Event()

    def spin() -> None:
        try:
            late.advance()
            while True:
                time.sleep(0.001)
        finally:
            ended.set()

    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield step("spin").python(spin).timeout(600)

    assert engine().run_sync(flow).status == "failed"
    assert ended.wait(120)


def test_a_timeout_error_of_the_function_itself_is_not_taken_for_ours() -> None:
    def raises() -> None:
        raise TimeoutError("the server's")

    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield step("ask").python(raises).timeout(60)

    result = engine().run_sync(flow)
    assert isinstance(result.error, StepFailedError)
    assert (result.error.error_type, result.error.error_message) == ("TimeoutError", "the server's")


def test_the_generator_gets_on_the_first_run_what_a_resumed_one_gets() -> None:
    shared = [1, 2]

    def share() -> list[int]:
        return shared

    @workflow
    def flow() -> Generator[Any, Any, list[int]]:
        got = yield step("share").python(share)
        assert got == shared
        assert got is not shared
        got.append(3)
        return got

    assert engine().run_sync(flow).output == [1, 2, 3]
    assert shared == [1, 2]


@pytest.mark.parametrize("is_map", [False, True])
def test_a_default_that_a_child_changes_is_as_written_for_the_next_child_and_at_a_resume(is_map: bool) -> None:
    broken = [True]

    def add(number: int, seen: list[int]) -> list[int]:
        if number == 3 and broken:
            raise OSError("not yet")
        return [*seen, number]

    @workflow
    def child(number: int, seen: list[int] = []) -> Generator[Any, Any, list[int]]:  # noqa: B006 - what this is about
        seen.append(0)
        return (yield step("add").python(add, number, seen))

    @workflow
    def parent() -> Generator[Any, Any, list[list[int]]]:
        if is_map:
            return (yield step("each").map(child, [1, 2, 3], concurrency=1))
        lists = []
        for number in (1, 2, 3):
            lists.append((yield step("each").workflow(child, number=number)))
        return lists

    engine = WorkflowEngine(MemoryCheckpointStore())
    assert engine.run_sync(parent, workflow_id="run").status == "failed"
    broken.clear()
    assert engine.resume_sync(parent, workflow_id="run").unwrap() == [[0, 1], [0, 2], [0, 3]]


def test_an_ephemeral_step_is_never_recorded_and_keeps_its_very_object() -> None:
    lock = threading.Lock()

    def give() -> Any:
        return lock

    @workflow
    def flow() -> Generator[Any, Any, bool]:
        got = yield step("give").ephemeral().python(give)
        return got is lock

    used = engine()
    assert used.run_sync(flow, workflow_id="run").output is True
    latest = asyncio.run(used.store.load_latest("run"))
    assert latest is not None
    assert len(latest.step_results) == 0


def test_tags_and_target_are_recorded_at_the_start() -> None:
    used = engine()
    used.run_sync(database, workflow_id="run", options=RunOptions(tags={"env": "test"}))
    started = asyncio.run(used.store.load("run", "@started"))
    assert started.metadata["tags"] == {"env": "test"}
    assert started.metadata["target"]["name"] == "database"
    assert started.metadata["target"]["file"].endswith("test_steps.py")
    assert started.fingerprint.startswith("2:")


async def test_the_sync_door_works_inside_a_running_loop() -> None:
    async def ask() -> int:
        return 7

    def ask_in_a_loop() -> int:
        return asyncio.run(ask()) + 1

    @workflow
    def flow() -> Generator[Any, Any, list[int]]:
        one = yield step("async").python(ask)
        two = yield step("sync").python(ask_in_a_loop)
        found = yield step("command").command(["echo", "9"])
        return [one, two, int(found.stdout)]

    outer, task, used = asyncio.get_running_loop(), asyncio.current_task(), engine()
    assert used.run_sync(flow, workflow_id="run").output == [7, 8, 9]
    assert used.resume_sync(flow, workflow_id="run").output == [7, 8, 9]
    assert (asyncio.get_running_loop(), asyncio.current_task()) == (outer, task)
    assert await asyncio.sleep(0, "still alive") == "still alive"


def test_something_that_is_no_workflow_is_refused_at_once() -> None:
    with pytest.raises(WorkflowDefinitionError, match="is not a workflow"):
        engine().execute(where)  # type: ignore[arg-type]


async def test_events_come_in_the_order_in_which_they_became_true() -> None:
    @workflow
    def flow() -> Generator[Any, Any, int]:
        yield step("plain").python(int, 1)
        return (yield step("saved").python(int, 2).checkpoint("mine"))

    used = engine()
    told = [event async for event in used.execute(flow, workflow_id="run")]
    assert [event.kind for event in told] == [
        "WorkflowStarted",
        "CheckpointSaved",
        "StepStarted",
        "StepCompleted",
        "StepStarted",
        "StepCompleted",
        "CheckpointSaved",
        "CheckpointSaved",
        "WorkflowCompleted",
    ]
    assert [event.checkpoint_id for event in told if event.kind == "CheckpointSaved"] == [
        "@started",
        "mine",
        "@completed",
    ]
    assert (told[-1].output, told[-1].executed, told[-1].restored) == (2, 2, 0)
    again = [event.kind async for event in used.resume(flow, workflow_id="run")]
    assert again == ["WorkflowResumed", "WorkflowCompleted"]


# --- no event loop is visible where a step's function runs ---------------------------------------------------------------


def as_django_asks() -> str:
    """Refuse to work where a loop runs, as Django's ORM and Playwright's sync API do, then run a loop of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(asyncio.sleep(0, "done"))
    raise AssertionError("a loop is visible")


@workflow
def asks() -> Generator[Any, Any, str]:
    return (yield step("in a child").python(as_django_asks))


@workflow
def asks_everywhere() -> Generator[Any, Any, list[Any]]:
    plain = yield step("plain").python(as_django_asks)
    mapped = yield step("mapped").map(as_django_asks_of, [1, 2], concurrency=2)
    child = yield step("child").workflow(asks)
    limited = yield step("limited").python(as_django_asks).timeout(60)
    return [plain, mapped, child, limited]


def as_django_asks_of(_: int) -> str:
    return as_django_asks()


@pytest.mark.parametrize("is_owned", [True, False], ids=["own loop", "guest"])
def test_a_plain_function_sees_no_event_loop_and_may_run_its_own(is_owned: bool) -> None:
    used = engine()
    result = used.run_sync(asks_everywhere) if is_owned else asyncio.run(used.run(asks_everywhere))
    assert result.output == ["done", ["done", "done"], "done", "done"], result.error
