"""How far a step is: told live, a few times a second, from wherever the step says so."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from contextlib import aclosing
from fractions import Fraction
from typing import Any

import pytest

from flowckpt import MemoryCheckpointStore, WorkflowEngine, current_step, step, workflow
from flowckpt.core.dsl import Workflow
from flowckpt.errors import StepFailedError
from flowckpt.events import StepCompleted, StepProgress
from flowckpt.testing import FakeClock

world: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    world.clear()


def flow_of(made: Any) -> Workflow[..., Any]:
    @workflow
    def flow() -> Generator[Any, Any, Any]:
        return (yield made)

    return flow


def told_of(made: Any, *, door: str = "own loop", clock: Any = None) -> list[Any]:
    """What a run tells of progress and of the ends of steps."""
    told: list[Any] = []
    engine = WorkflowEngine(MemoryCheckpointStore(), clock=clock)
    if door == "own loop":
        engine.drive_sync(engine.prepare(flow_of(made), None, None, {}), on_event=told.append)
    else:

        async def listen() -> None:
            async for event in engine.execute(flow_of(made)):
                told.append(event)

        asyncio.run(asyncio.wait_for(listen(), 120))
    return [event for event in told if isinstance(event, StepProgress | StepCompleted)]


def says(count: int) -> None:
    for number in range(1, count + 1):
        current_step().progress(number, count, f"at {number}")


async def says_async(count: int) -> None:
    for number in range(1, count + 1):
        current_step().progress(number, count, f"at {number}")
        await asyncio.sleep(0)


def says_from_threads(count: int) -> None:
    now = current_step()
    threads = [threading.Thread(target=now.progress, args=(number,)) for number in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    now.progress(count, count)


PLACES: dict[str, Any] = {
    "in place": step("a").python(says, 500),
    "on a thread": step("a").python(says, 500).timeout(60),
    "in the loop": step("a").python(says_async, 500),
    "from threads of its own": step("a").python(says_from_threads, 20),
}


@pytest.mark.parametrize("door", ["own loop", "guest"])
@pytest.mark.parametrize("made", PLACES.values(), ids=PLACES)
def test_the_newest_is_told_before_the_end_of_the_step_and_not_each_one(made: Any, door: str) -> None:
    told = told_of(made, door=door)
    assert isinstance(told[-1], StepCompleted)
    amounts = [event for event in told if isinstance(event, StepProgress)]
    assert told[:-1] == amounts
    assert 1 <= len(amounts) <= 20
    assert (amounts[-1].path, amounts[-1].done, amounts[-1].total) == ("a", amounts[-1].total, amounts[-1].total)


def slowly(clock: FakeClock) -> None:
    for number in range(10):
        current_step().progress(number, 100)
        clock.advance(0.05)


def test_in_place_it_is_told_at_once_and_ten_times_a_second_at_most() -> None:
    clock = FakeClock()
    told = [
        event.done for event in told_of(step("a").python(slowly, clock), clock=clock) if event.kind == "StepProgress"
    ]
    assert told == [0, 2, 4, 6, 8, 9]


def test_on_a_thread_it_is_told_while_the_step_runs() -> None:
    heard = threading.Event()

    def waits() -> bool:
        current_step().progress(1, 3, "half way")
        return heard.wait(120)

    def listen(event: Any) -> None:
        if isinstance(event, StepProgress):
            heard.set()

    engine = WorkflowEngine(MemoryCheckpointStore())
    session = engine.prepare(flow_of(step("a").python(waits).timeout(60)), None, None, {})
    assert engine.drive_sync(session, on_event=listen).output is True


def says_one(number: int) -> int:
    current_step().progress(number, 10)
    return number


def test_each_member_of_a_map_has_its_own() -> None:
    told = told_of(step("m").map(says_one, [1, 2, 3], concurrency=2))
    assert {(event.path, event.done) for event in told if isinstance(event, StepProgress)} == {
        ("m/[0]", 1),
        ("m/[1]", 2),
        ("m/[2]", 3),
    }


def test_where_nobody_listens_it_costs_next_to_nothing() -> None:
    def many() -> float:
        now = current_step()
        began = time.process_time()
        for number in range(10_000):
            now.progress(number, 10_000)
        return time.process_time() - began

    assert WorkflowEngine(MemoryCheckpointStore()).run_sync(flow_of(step("a").python(many))).output < 1.0


class Numpyish:
    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


def test_numbers_of_any_kind_are_told_as_plain_ones() -> None:
    def says_them() -> None:
        current_step().progress(Numpyish(0.5), Fraction(3, 2))  # type: ignore[arg-type]

    (event, _) = told_of(step("a").python(says_them))
    assert (event.done, event.total) == (0.5, 1.5)
    assert type(event.done) is type(event.total) is float


@pytest.mark.parametrize("given", [(-1,), ("3",), (1, "ten"), (float("nan"),), (True,), (1, 2, 3), (None,)], ids=repr)
def test_what_is_no_number_is_refused_also_where_nobody_listens(given: tuple[Any, ...]) -> None:
    def says_it() -> None:
        current_step().progress(*given)

    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(flow_of(step("a").python(says_it)))
    assert isinstance(result.error, StepFailedError)
    assert result.error.error_type == "flowckpt.errors.InputError"


def test_a_listener_that_fails_ends_the_run_as_with_any_other_event() -> None:
    def listen(event: Any) -> None:
        if isinstance(event, StepProgress):
            raise LookupError("no terminal")

    engine = WorkflowEngine(MemoryCheckpointStore())
    for made in (step("a").python(says, 3).timeout(60), step("a").python(says_async, 3)):
        result = engine.drive_sync(engine.prepare(flow_of(made), None, None, {}), on_event=listen)
        assert isinstance(result.error, LookupError)


def test_a_listener_that_goes_away_hangs_nothing() -> None:
    async def listen() -> None:
        events = WorkflowEngine(MemoryCheckpointStore()).execute(flow_of(step("a").python(says, 500).timeout(60)))
        async for event in events:
            if isinstance(event, StepProgress):
                break
        await events.aclose()

    asyncio.run(asyncio.wait_for(listen(), 120))


def test_a_step_knows_how_many_tries_it_has() -> None:
    def tries() -> int:
        return current_step().max_tries

    made: list[tuple[Callable[[Any], Any], int]] = [(lambda each: each, 1), (lambda each: each.retry(4), 4)]
    for modified, expected in made:
        flow = flow_of(modified(step("a").python(tries)))
        assert WorkflowEngine(MemoryCheckpointStore()).run_sync(flow).output == expected


done: list[str] = []


async def works_and_tells() -> str:
    await asyncio.to_thread(current_step().progress, 1, 3)
    await asyncio.sleep(0.05)
    done.append("done")
    return "done"


@pytest.mark.parametrize("how", ["leaves", "is cancelled", "fails"])
@pytest.mark.parametrize("is_at_most_once", [False, True])
async def test_a_step_that_has_ended_stays_done_though_its_listener_never_hears_of_it(
    how: str, is_at_most_once: bool
) -> None:
    done.clear()
    made = step("work").python(works_and_tells)
    flow = flow_of(made.at_most_once() if is_at_most_once else made)
    store = MemoryCheckpointStore()

    async def listen() -> None:
        async with aclosing(WorkflowEngine(store).execute(flow, workflow_id="run")) as events:
            async for event in events:
                if isinstance(event, StepProgress):
                    if how == "is cancelled":
                        world["listening"] = True
                        await asyncio.sleep(60)
                    while not done:
                        await asyncio.sleep(0.01)
                    if how == "fails":
                        raise LookupError(event.path)
                    break

    listening = asyncio.ensure_future(listen())
    if how == "is cancelled":
        while not done or "listening" not in world:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        listening.cancel()
    (failure,) = await asyncio.gather(listening, return_exceptions=True)
    assert isinstance(
        failure, {"leaves": type(None), "is cancelled": asyncio.CancelledError, "fails": LookupError}[how]
    )
    result = await WorkflowEngine(store).resume_run(flow, workflow_id="run")
    assert (result.output, done) == ("done", ["done"])
