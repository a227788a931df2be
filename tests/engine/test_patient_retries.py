"""Retries that wait for longer than a process should stay: without a limit, evenly spaced, or as the error asks."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowckpt import MemoryCheckpointStore, RunOptions, WorkflowEngine, current_step, in_sync, parallel, step, workflow
from flowckpt.core.records import WaitKind
from flowckpt.errors import StepDefinitionError, StepFailedError
from flowckpt.testing import FakeClock

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()


class BusyError(Exception):
    def __init__(self, retry_after: Any) -> None:
        super().__init__("busy")
        self.retry_after = retry_after


class Response:
    def __init__(self, value: str) -> None:
        self.headers = {"Retry-After": value}


class HttpError(Exception):
    def __init__(self, value: str) -> None:
        super().__init__("503")
        self.response = Response(value)


def flow_of(made: Any) -> Any:
    @workflow
    def flow() -> Generator[Any, Any, Any]:
        return (yield made)

    return flow


def fails(times: int) -> int:
    calls.append((current_step().tries, current_step().max_tries))
    if len(calls) <= times:
        raise OSError("down")
    return len(calls)


def busy(error: BaseException) -> str:
    calls.append(error)
    if len(calls) == 1:
        raise error
    return "ok"


class World:
    """An engine, its clock, and a run that is suspended and resumed when it is due."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.engine = WorkflowEngine(MemoryCheckpointStore(), clock=self.clock)
        self.waited: list[float] = []

    def to_the_end(self, made: Any, **options: Any) -> Any:
        flow = flow_of(made)
        result = self.engine.run_sync(flow, workflow_id="run", options=RunOptions(**options))
        while result.status == "suspended":
            seconds = (result.due_at - self.clock.now()).total_seconds()
            assert seconds > 0
            how = RunOptions(**options)
            assert self.engine.resume_sync(flow, workflow_id="run", options=how).status == "suspended", "nothing is due"
            self.waited.append(seconds)
            self.clock.advance(seconds)
            result = self.engine.resume_sync(flow, workflow_id="run", options=how)
        return result


def test_a_long_wait_suspends_the_run_and_the_tries_go_on_counting() -> None:
    world = World()
    assert world.to_the_end(step("a").python(fails, 4).retry(9, backoff=3600, max_delay=7200)).output == 5
    assert calls == [(n, 9) for n in range(1, 6)]
    assert world.waited == [3600, 7200, 7200, 7200]


def spends(times: int) -> int:
    current_step().record(tokens=100)
    return fails(times)


@pytest.mark.parametrize("backoff", [0.001, 600], ids=["in one process", "suspended in between"])
def test_the_figures_of_all_tries_are_added(backoff: float) -> None:
    world = World()
    world.to_the_end(step("a").python(spends, 2).retry(5, backoff=backoff)).unwrap()
    latest = asyncio.run(world.engine.store.load_latest("run"))
    assert latest is not None and [each.figures for each in latest.step_results] == [{"tokens": 300}]


def test_without_a_limit_and_evenly_spaced() -> None:
    world = World()
    made = step("a").python(fails, 40).retry(None, backoff=timedelta(minutes=10), factor=1)
    assert world.to_the_end(made).output == 41
    assert world.waited == [600] * 40, "a longer backoff than a minute is not cut"
    assert calls[-1] == (41, None)


def test_the_last_try_fails_the_step_with_all_its_tries() -> None:
    error = World().to_the_end(step("a").python(fails, 9).retry(3, backoff=600)).error
    assert isinstance(error, StepFailedError) and error.tries == 3 == len(calls)


def test_a_deadline_counts_from_the_first_try_of_all() -> None:
    world = World()
    error = world.to_the_end(step("a").python(fails, 99).retry(None, backoff=600, factor=1, deadline=1500)).error
    assert isinstance(error, StepFailedError) and len(calls) == 3
    assert "deadline of 1500 s" in error.trace


def test_a_short_wait_holds_the_process_unless_the_stay_is_shorter() -> None:
    world = World()
    assert world.to_the_end(step("a").python(fails, 2).retry(5, backoff=20)).output == 3
    assert world.waited == []
    calls.clear()
    world = World()
    assert world.to_the_end(step("a").python(fails, 2).retry(5, backoff=20), stay=0).output == 3
    assert world.waited == [20, 40]


def test_an_ephemeral_step_holds_the_process() -> None:
    world = World()
    assert world.to_the_end(step("a").python(fails, 2).retry(5, backoff=3600).ephemeral()).output == 3
    assert world.waited == []


NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (BusyError(300), 300),
        (BusyError("300"), 300),
        (BusyError(timedelta(minutes=5)), 300),
        (HttpError("300"), 300),
        (BusyError(NOON + timedelta(minutes=5)), 300),
        (HttpError("Tue, 01 Jan 2030 12:05:00 GMT"), 300),
        (BusyError(10), 100),
        (BusyError(None), 100),
        (BusyError("soon"), 100),
        (BusyError(-5), 100),
        (BusyError(float("nan")), 100),
        (BusyError(1e300), 366 * 86_400),
    ],
    ids=str,
)
def test_an_error_can_ask_for_a_longer_wait(error: BaseException, seconds: float) -> None:
    world = World()
    world.clock.advance((NOON - world.clock.now()).total_seconds())
    assert world.to_the_end(step("a").python(busy, error).retry(2, backoff=100)).output == "ok"
    assert [round(each) for each in world.waited] == [seconds]


def test_members_rest_while_others_run() -> None:
    @workflow
    def both() -> Generator[Any, Any, Any]:
        return (yield parallel(step("a").python(fails, 2).retry(None, backoff=3600), step("b").python(abs, -2)))

    engine = WorkflowEngine(MemoryCheckpointStore(), clock=FakeClock())
    result = engine.run_sync(both, workflow_id="run")
    assert result.status == "suspended" and result.steps.executed == 1
    (wait,) = result.waits
    assert (wait.path, wait.kind, wait.name) == ("parallel/[a]", WaitKind.RETRY, "OSError")
    assert "waits after OSError until" in str(wait) and "to be tried again" in str(wait)


def test_the_plan_says_what_the_step_waits_for_and_an_edit_tries_at_once() -> None:
    world = World()
    world.engine.run_sync(flow_of(step("a").python(fails, 1).retry(None, backoff=3600)), workflow_id="run")
    same = flow_of(step("a").python(fails, 1).retry(None, backoff=3600))
    (planned,) = in_sync(world.engine).plan(same, workflow_id="run").steps
    assert planned.decision == "new" and "waits after OSError until" in str(planned.reasons[0])
    edited = flow_of(step("a").python(fails, 1).retry(None, backoff=3600).version("2"))
    assert world.engine.resume_sync(edited, workflow_id="run").output == 2
    assert calls == [(1, None), (1, None)]


@pytest.mark.parametrize("given", [{"attempts": 0}, {"attempts": 1.5}, {"attempts": 2, "factor": 0.5}], ids=str)
def test_what_cannot_be_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(StepDefinitionError):
        step("a").python(fails, 1).retry(**given)
