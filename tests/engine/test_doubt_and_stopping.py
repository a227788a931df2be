"""A step in doubt in a run that is stopped, undone or cancelled; and work that continues although the run does not wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest
from crashing import CrashingStore, SimulatedCrash

from flowckpt import MemoryCheckpointStore, RunOptions, WorkflowEngine, in_sync, parallel, step, workflow
from flowckpt.engine.rules.plan import Decision
from flowckpt.errors import RunUndoneError, StepInDoubtError
from flowckpt.evidence import predicate, register_predicate
from flowckpt.execution.thread import AbandonedStepError, Call

world: list[str] = []
fails: set[str] = set()
is_begun, may_pay, has_paid = threading.Event(), threading.Event(), threading.Event()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    world.clear()
    fails.clear()
    for each in (is_begun, may_pay, has_paid):
        each.clear()


def do(what: str) -> str:
    if what in fails:
        raise ValueError(what)
    world.append(what)
    return what


def undo(what: str) -> None:
    world.remove(what)


def slow(what: str) -> str:
    """Do what nothing can stop, like a request that is on its way."""
    is_begun.set()
    try:
        may_pay.wait(120)
    finally:
        world.append(what)
        has_paid.set()
    return what


async def fail_beside() -> None:
    if "beside" in fails:
        await asyncio.to_thread(is_begun.wait, 30)
        raise ValueError("beside")


@register_predicate
def is_paid_beside() -> bool:
    return "pay" in world


@workflow
def trip() -> Generator[Any, Any, Any]:
    yield step("hotel").python(do, "hotel").rollback(undo).checkpoint()
    yield step("car").python(do, "car").rollback(undo).checkpoint()
    return (yield parallel(step("pay").python(do, "pay").at_most_once(), step("end").python(do, "end"), concurrency=1))


@workflow
def beside() -> Generator[Any, Any, Any]:
    pay = step("pay").python(slow, "pay").at_most_once().evidence(predicate(is_paid_beside)).adopt(lambda what: what)
    return (yield parallel(pay, step("other").python(fail_beside)))


def crashes(store: Any, at: int, what: Any = trip) -> None:
    with pytest.raises(SimulatedCrash):
        WorkflowEngine(CrashingStore(store, at, is_after=True)).run_sync(what, workflow_id="run")


def resume(store: Any, what: Any = trip, **options: Any) -> Any:
    return WorkflowEngine(store).resume_sync(what, workflow_id="run", options=RunOptions(**options))


@workflow
def doubtful_saga() -> Generator[Any, Any, Any]:
    yield step("hotel").python(do, "hotel").rollback(undo).checkpoint()
    yield step("car").python(do, "car").rollback(undo).checkpoint()
    yield step("pay").python(do, "pay").at_most_once()
    yield step("end").python(do, "end")


@pytest.mark.parametrize("what", [trip, doubtful_saga], ids=["in a group", "in a row"])
def test_a_run_with_a_step_in_doubt_is_cancelled_and_undone_all_the_same(reopen: Callable[[], Any], what: Any) -> None:
    crashes(reopen(), 4, what)  # behind the mark of `pay`, whose evidence cannot tell
    result = in_sync(WorkflowEngine(reopen())).cancel("run", workflow=what)
    assert (result.undone, world) == (("car", "hotel"), [])
    latest = asyncio.run(reopen().load_latest("run"))
    assert (latest.status, len(latest.in_flight)) == ("cancelled", 1), "nobody knows more of it than before"
    assert type(resume(reopen(), what).error) is StepInDoubtError


@workflow
def saga_beside() -> Generator[Any, Any, Any]:
    yield step("hotel").python(do, "hotel").rollback(undo).checkpoint()
    yield step("car").python(do, "car").rollback(undo).checkpoint()
    pay = step("pay").python(slow, "pay").at_most_once()
    return (yield parallel(pay, step("other").python(fail_beside)))


def test_a_process_that_dies_while_it_undoes_is_gone_on_with_although_a_step_is_in_doubt() -> None:
    store = MemoryCheckpointStore()
    fails.add("beside")
    crashes(store, 6, saga_beside)  # the car is undone; the process that was paying was stopped
    assert world == ["hotel"]
    store.runs.owned.clear()
    result = resume(store, saga_beside)
    assert (type(result.error), result.undone, world) == (RunUndoneError, ("hotel",), [])
    may_pay.set()
    assert has_paid.wait(120)


def test_what_a_stopped_step_may_yet_do_is_not_done_beside_it_by_a_resume_in_the_same_process() -> None:
    store = MemoryCheckpointStore()
    fails.add("beside")
    assert WorkflowEngine(store).run_sync(beside, workflow_id="run").status == "failed"
    fails.clear()
    plan = in_sync(WorkflowEngine(store)).plan(beside, workflow_id="run")
    assert plan.stopped_by == "parallel/[pay]"
    with pytest.raises(StepInDoubtError, match="its function still runs after the timeout"):
        resume(store, beside)
    assert world == []
    may_pay.set()
    assert has_paid.wait(120)
    assert resume(store, beside).output == ("pay", None)
    assert world == ["pay"]


def test_a_plan_says_what_runs_before_a_step_in_doubt_that_stops_it() -> None:
    price = [1]

    @workflow
    def priced() -> Generator[Any, Any, Any]:
        yield step("order").python(do, f"order {price[0]}").checkpoint()
        yield step("pay").python(do, "pay").at_most_once()

    store = MemoryCheckpointStore()
    crashes(store, 3, priced)
    price[0] = 2
    stop = in_sync(WorkflowEngine(store)).plan(priced, workflow_id="run").step("pay")
    assert stop is not None
    assert (stop.decision, stop.assumes) == (Decision.IN_DOUBT, ("order",))


def test_a_step_that_was_undone_is_in_no_doubt_whatever_its_evidence_can_tell() -> None:
    @workflow
    def undone() -> Generator[Any, Any, Any]:
        yield step("one").python(do, "one").at_most_once().rollback(undo)
        yield step("many").map(do, (each for each in "ab"), concurrency=1).at_most_once().rollback(undo)
        yield step("end").python(do, "end")

    store = MemoryCheckpointStore()
    fails.add("end")
    assert WorkflowEngine(store).run_sync(undone, workflow_id="run").status == "failed"
    fails.clear()
    plan = in_sync(WorkflowEngine(store)).plan(undone, workflow_id="run")
    assert plan.stops == ""
    assert not plan.count(Decision.IN_DOUBT)
    assert resume(store, undone).status == "completed"
    assert world == ["one", "a", "b", "end"]


def test_a_call_that_has_ended_is_not_hit_by_those_who_leave_it_too_late() -> None:
    async def look() -> None:
        done: list[str] = []
        call = Call(lambda: done.append("done"), asyncio.get_running_loop().create_future())
        call()
        call.abandon()
        for _ in range(100):  # here it would be raised
            assert done == ["done"]
        never = Call(lambda: done.append("never"), asyncio.get_running_loop().create_future())
        never.abandon()
        with pytest.raises(AbandonedStepError):
            never()
        assert (done, never.is_at_work) == (["done"], False)

    asyncio.run(look())
