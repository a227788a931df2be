"""Races: as soon as enough members have succeeded, the others are stopped, and every replay agrees on who won."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest

from flowckpt import MemoryCheckpointStore, RunOptions, WorkflowEngine, parallel, step, workflow
from flowckpt.errors import StepFailedError, StepStoppedError
from flowckpt.testing import FakeClock

calls: list[Any] = []
ended: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()
    ended.clear()


async def forever(what: str) -> str:
    calls.append(what)
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(what)
    return what


def quick(what: Any) -> Any:
    calls.append(what)
    return what


def fails(what: str) -> str:
    calls.append(what)
    raise OSError(what)


def names(values: Any) -> list[Any]:
    return [
        "stopped" if isinstance(each, StepFailedError) and each.failed_with(StepStoppedError) else each
        for each in values
    ]


@workflow
def first_of_signals() -> Generator[Any, Any, Any]:
    answers = yield parallel(
        step("yes").wait("yes"), step("no").wait("no"), step("late").sleep(3600), name="first", min_success=1
    ).checkpoint()
    yield step("after").wait("go")
    return names(answers)


@pytest.mark.parametrize("winner", ["yes", "no", None])
def test_the_first_of_several_signals_or_a_time(winner: str | None, reopen: Callable[[], Any]) -> None:
    clock = FakeClock()
    run = WorkflowEngine(reopen(), clock=clock).run_sync(first_of_signals, workflow_id="run")
    assert len(run.waits) == 3
    engine = WorkflowEngine(reopen(), clock=clock)
    if winner is None:
        clock.advance(3600)
    else:
        engine.signal_sync("run", winner, "data")
    suspended = engine.resume_sync(first_of_signals, workflow_id="run")
    assert [wait.name for wait in suspended.waits] == ["go"], "the other waits are withdrawn"
    engine = WorkflowEngine(reopen(), clock=clock)
    for late in ("yes", "no", "go"):
        engine.signal_sync("run", late, "too late")
    plan = engine.plan_sync(first_of_signals, workflow_id="run")
    assert plan.stale == 0 and [str(each.decision) for each in plan.steps].count("reuse") == 4
    expected = {
        "yes": ["data", "stopped", "stopped"],
        "no": ["stopped", "data", "stopped"],
        None: ["stopped", "stopped", None],
    }
    result = engine.resume_sync(first_of_signals, workflow_id="run")
    assert result.output == expected[winner]
    assert (
        WorkflowEngine(reopen(), clock=clock).resume_sync(first_of_signals, workflow_id="run").output == result.output
    )
    latest = asyncio.run(reopen().load_latest("run"))
    (race,) = [each for each in latest.step_results if each.path == "first"]
    assert race.output == {"members": 3, "failed": 0, "stopped": 2, "winners": [["yes", "no", None].index(winner)]}


@workflow
def racing(version: str = "1") -> Generator[Any, Any, Any]:
    made = parallel(step("slow").python(forever, "slow"), step("quick").python(quick, "quick"), min_success=1)
    found = yield made
    yield step("end").wait("go")
    return names(found)


async def test_a_running_step_is_cancelled() -> None:
    result = await WorkflowEngine(MemoryCheckpointStore()).run(racing)
    assert result.status == "suspended" and result.steps.failed == 0
    assert calls == ["slow", "quick"] and ended == ["slow"]


async def test_an_at_most_once_step_that_is_stopped_leaves_its_race_decided() -> None:
    @workflow
    def flow() -> Generator[Any, Any, Any]:
        slow = step("slow").python(forever, "slow").at_most_once()
        found = yield parallel(slow, step("quick").python(quick, "quick"), min_success=1)
        yield step("end").wait("go")
        return names(found)

    engine = WorkflowEngine(MemoryCheckpointStore())
    await engine.run(flow, workflow_id="run")
    await engine.signal("run", "go")
    plan = await engine.plan(flow, workflow_id="run")
    assert not plan.stops and plan.stale == 0
    assert (await engine.resume_run(flow, workflow_id="run")).output == ["stopped", "quick"]
    assert calls.count("slow") <= 1 and calls.count("quick") == 1, "it is not repeated"


async def test_a_failure_does_not_decide_and_too_many_do() -> None:
    one: Any = {"min_success": 1, "name": "one", "concurrency": 1}

    @workflow
    def flow() -> Generator[Any, Any, Any]:
        won = yield parallel(step("a").python(fails, "a"), step("b").python(quick, "b"), **one)
        assert isinstance(won[0], StepFailedError) and won[0].failed_with(OSError)
        yield parallel(step("c").python(fails, "c"), step("d").python(fails, "d"), min_success=1, name="none")

    result = await WorkflowEngine(MemoryCheckpointStore()).run(flow)
    assert isinstance(result.error, StepFailedError) and result.error.path == "none"


@pytest.mark.parametrize("wanted", [3, 0.3])
def test_a_map_stops_when_enough_have_succeeded(wanted: float) -> None:
    @workflow
    def flow() -> Generator[Any, Any, Any]:
        return names((yield step("m").map(quick, range(10), concurrency=1, min_success=wanted)))

    engine = WorkflowEngine(MemoryCheckpointStore())
    result = engine.run_sync(flow, workflow_id="run")
    assert result.output == [0, 1, 2, *["stopped"] * 7] and calls == [0, 1, 2]
    assert engine.resume_sync(flow, workflow_id="run").output == result.output and len(calls) == 3


@pytest.mark.parametrize("how", [{"min_success": 2, "tolerate": 3}, {"min_success": 0}, {"tolerate": 0.9}], ids=str)
def test_with_a_tolerance_all_run(how: dict[str, Any]) -> None:
    @workflow
    def flow() -> Generator[Any, Any, Any]:
        return (yield step("m").map(quick, range(5), concurrency=1, **how))

    assert WorkflowEngine(MemoryCheckpointStore()).run_sync(flow).output == [0, 1, 2, 3, 4]


def test_if_the_winner_no_longer_counts_the_race_is_run_again(reopen: Callable[[], Any]) -> None:
    def flow_of(version: str, loser: Any) -> Any:
        @workflow("versions")
        def flow() -> Generator[Any, Any, Any]:
            quickly = step("quick").python(quick, "quick").version(version)
            found = yield parallel(quickly, step("ask").wait("answer").version(loser), min_success=1)
            yield step("end").wait("go")
            return names(found)

        return flow

    WorkflowEngine(reopen()).run_sync(flow_of("1", "1"), workflow_id="run")
    engine = WorkflowEngine(reopen())
    same = engine.plan_sync(flow_of("1", "2"), workflow_id="run")
    assert same.stale == 0, "what a loser would be now is nothing to the race"
    how = RunOptions(on_stale="rerun")
    plan = engine.plan_sync(flow_of("2", "1"), workflow_id="run", options=how)
    assert {each.path: str(each.decision) for each in plan.steps}["parallel/[ask]"] == "rerun"
    engine.resume_sync(flow_of("2", "1"), workflow_id="run", options=how)
    assert calls == ["quick", "quick"]
    engine.signal_sync("run", "go")
    assert engine.resume_sync(flow_of("2", "1"), workflow_id="run").output == ["quick", "stopped"]


@workflow
def booking(hotel: str) -> Generator[Any, Any, str]:
    yield step("hold").python(quick, f"hold {hotel}").rollback(ended.append).checkpoint()
    return (yield step("confirm").wait(f"confirm {hotel}"))


@workflow
def trip() -> Generator[Any, Any, Any]:
    found = yield parallel(
        step("a").workflow(booking, hotel="A"), step("b").workflow(booking, hotel="B"), min_success=1, name="hotel"
    ).checkpoint()
    yield step("pay").wait("pay")
    raise ValueError(names(found))


def test_the_steps_of_a_stopped_child_are_undone_with_the_run(reopen: Callable[[], Any]) -> None:
    WorkflowEngine(reopen()).run_sync(trip, workflow_id="run")
    engine = WorkflowEngine(reopen())
    engine.signal_sync("run", "confirm B", "ok")
    engine.resume_sync(trip, workflow_id="run")
    engine = WorkflowEngine(reopen())
    engine.signal_sync("run", "pay")
    result = engine.resume_sync(trip, workflow_id="run")
    assert str(result.error) == "['stopped', 'ok']" and not result.rollback_failures
    assert sorted(ended) == ["hold A", "hold B"] and sorted(calls) == ["hold A", "hold B"]
