"""What could not be resumed is tried again when it has moved, or after a pause that grows; all recoverers share it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowckpt.core.records import RunInfo, Status
from flowckpt.core.records.wait import Signal, WaitKind
from flowckpt.maintenance.recovery import DueRun, Pauses, Why
from flowckpt.stores import MemoryCheckpointStore
from flowckpt.testing.clock import FakeClock
from flowckpt.testing.contract import checkpoint, results

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def due(attempt: int = 1) -> DueRun:
    return DueRun(RunInfo("run", "etl", Status.CRASHED, attempt, NOON, NOON, 1, {}), Why.CRASHED)


@pytest.fixture
def clock():
    yield FakeClock(NOON)


@pytest.fixture
def store():
    store = MemoryCheckpointStore()
    asyncio.run(store.save("run", checkpoint(1, results("x"))))
    yield store


async def failed(pauses: Pauses, run: DueRun, *, has_died: bool = False) -> None:
    await pauses.begin(run)
    await pauses.end(run, has_died=has_died)


async def test_a_run_that_was_left_is_tried_again_when_it_has_moved(store, clock):
    pauses = Pauses(store, clock)
    await failed(pauses, due())
    clock.advance(29)
    assert not await pauses.may_try(due())
    assert await pauses.may_try(due(2))
    clock.advance(1)
    assert await pauses.may_try(due())


async def test_a_run_whose_process_died_waits_although_it_has_moved_each_time_longer(store, clock):
    pauses = Pauses(store, clock)
    for attempt, pause in enumerate((30, 60, 120, 240), 1):
        await failed(pauses, due(attempt), has_died=True)
        clock.advance(pause - 1)
        assert not await pauses.may_try(due(attempt + 1))
        clock.advance(1)
        assert await pauses.may_try(due(attempt + 1))


async def test_a_pause_counts_on_whoever_tries(store, clock):
    ones = [Pauses(store, clock) for _ in range(3)]
    for each, pause in zip(ones, (30, 60, 120), strict=True):
        await failed(each, due(), has_died=True)
        assert len(await store.signals("run")) == 1
        clock.advance(pause - 1)
        assert [await each.may_try(due()) for each in ones] == [False] * 3
        clock.advance(1)
        assert await each.may_try(due())


async def test_a_recoverer_that_starts_waits_for_the_rest_of_a_pause(store, clock):
    await failed(Pauses(store, clock), due())
    clock.advance(20)
    later = Pauses(store, clock)
    assert not await later.may_try(due())
    clock.advance(10)
    assert await later.may_try(due())


async def test_while_a_process_is_on_its_way_nobody_else_tries(store, clock):
    mine, other = Pauses(store, clock), Pauses(store, clock)
    await mine.begin(due())
    assert not await other.may_try(due())
    assert not await other.may_try(due(2))


async def test_a_process_that_ends_late_does_not_shorten_the_pause_of_who_tried_after_it(store, clock):
    mine, other, third = (Pauses(store, clock) for _ in range(3))
    await mine.begin(due())
    clock.advance(30)
    assert await other.may_try(due())
    await other.begin(due())
    await mine.end(due(), has_died=True)  # its process took longer than its pause
    clock.advance(59)
    assert not await third.may_try(due())
    clock.advance(1)
    assert await third.may_try(due())


async def test_what_got_further_has_no_pause_and_no_message(store, clock):
    mine, other = Pauses(store, clock), Pauses(store, clock)
    await failed(mine, due(), has_died=True)
    await other.clear("run")
    assert list(await store.signals("run")) == []
    assert await other.may_try(due())


async def test_what_is_missing_on_one_machine_holds_up_nobody_else(store, clock):
    mine, other = Pauses(store, clock), Pauses(store, clock)
    mine.leave(due())
    assert not await mine.may_try(due())
    assert await other.may_try(due())
    mine.forget_all_but([])
    assert await mine.may_try(due())


@pytest.mark.parametrize(
    "data",
    [None, {}, {"count": "x"}, {"count": 0, "seconds": 1, "state": []}, {"count": 1, "seconds": "1", "state": []}, [1]],
)
async def test_a_note_that_says_what_cannot_be_is_none(store, clock, data):
    await store.send_signal("run", Signal("m1", "recover", NOON, data, kind=WaitKind.RECOVERY))
    assert await Pauses(store, clock).may_try(due())


async def test_a_forged_note_holds_a_run_up_for_no_longer_than_the_longest_pause(store, clock):
    data = {"count": 10**9, "seconds": 9e99, "state": [], "has_died": True}
    await store.send_signal("run", Signal("m1", "recover", NOON, data, kind=WaitKind.RECOVERY))
    pauses = Pauses(store, clock)
    assert not await pauses.may_try(due())
    clock.advance(3600)
    assert await pauses.may_try(due())


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_the_pause_never_goes_over_the_longest_and_always_ends(deaths):
    async def tried() -> None:
        clock = FakeClock(NOON)
        store = MemoryCheckpointStore()
        await store.save("run", checkpoint(1, results("x")))
        pauses = Pauses(store, clock, first_seconds=1, most_seconds=8)
        for has_died in deaths:
            await failed(pauses, due(), has_died=has_died)
        clock.advance(0.5)
        assert not await pauses.may_try(due())
        clock.advance(7.5)
        assert await pauses.may_try(due())

    asyncio.run(tried())
