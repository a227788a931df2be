"""What could not be resumed is tried again when it has moved, or after a pause that grows; all recoverers share it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.recoverer.child import ChildEnd
from flowckpt.cli.recoverer.recoverer import Recoverer
from flowckpt.core.records import RunInfo, Status
from flowckpt.core.records.wait import Signal, WaitKind
from flowckpt.maintenance.pauses import Pauses
from flowckpt.maintenance.recovery import DueRun, Why
from flowckpt.stores import MemoryCheckpointStore, open_store
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


@pytest.mark.parametrize("hours", [-1, 0, 1])
async def test_a_recoverer_shares_the_pause_of_another_one_whatever_its_clock_says(store, clock, hours):
    theirs = FakeClock(NOON + timedelta(hours=hours))
    mine, other = Pauses(store, clock), Pauses(store, theirs)
    other.looked(["run"])  # it watches already
    for pause in (30, 60):
        await failed(mine, due())
        assert not await other.may_try(due())
        theirs.advance(pause - 1)
        assert not await other.may_try(due())
        assert await other.may_try(due(2))
        theirs.advance(1)
        assert await other.may_try(due())
        clock.advance(pause)


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
    mine.looked([])
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


# Ten recoverers on one store, with clocks that differ, against runs that cannot be resumed.


class Skewed:
    """The system's clock, some hours off."""

    def __init__(self, hours: float) -> None:
        self._off = timedelta(hours=hours)

    def now(self) -> datetime:
        return datetime.now(UTC) + self._off

    def elapsed_ns(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e9)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


KINDS = {"stale": ExitCode.STALE, "secretless": ExitCode.USAGE, "crash_loop": ExitCode.WORKFLOW_FAILED, "dying": -9}


@attrs.define
class Resumed:
    """Stands for the process that resumes a run: it claims the run, and fails in its way."""

    spec: str
    run: DueRun
    tried: Counter[str]

    async def end(self, give_up) -> ChildEnd:
        kind, workflow_id = self.run.workflow_id.partition("-")[0], self.run.workflow_id
        self.tried[workflow_id] += 1
        await asyncio.sleep(0.02)  # it starts
        await give_up()
        door: Any = open_store(self.spec)
        try:
            lease = await door.acquire(workflow_id)
            if kind == "dying":
                await door.save(
                    workflow_id,
                    attrs.evolve(
                        lease.latest,
                        attempt=lease.attempt,
                        sequence=lease.last_sequence + 1,
                        checkpoint_id=f"@started.{lease.attempt}",
                    ),
                )
            await door.release(workflow_id)
        finally:
            door.close()
        return ChildEnd(int(KINDS[kind]), ())

    def stop(self) -> None:
        pass


@pytest.mark.parametrize("kind", ["file", "sqlite", "objects"])
async def test_ten_recoverers_try_no_more_often_than_one(tmp_path, kind):
    scheme = "objects+file" if kind == "objects" else kind
    spec = f"{scheme}://{tmp_path / 'store'}?allow_unsafe=true" if kind == "objects" else f"{kind}:{tmp_path / 'store'}"
    runs = [f"{each}-{number}" for each in KINDS for number in range(2)]
    door: Any = open_store(spec)
    for workflow_id in runs:
        lease = await door.acquire(workflow_id)
        await door.save(
            workflow_id,
            attrs.evolve(
                checkpoint(1, results("x")), attempt=lease.attempt, metadata={"target": {"name": "w", "module": "m"}}
            ),
        )
        await door.release(workflow_id)
    tried: Counter[str] = Counter()
    recoverers: list[Recoverer] = []
    stores: list[Any] = []

    def new_child(run: DueRun) -> Any:
        return Resumed(spec, run, tried)

    for index in range(10):
        clock = Skewed((-1, 0, 1, 0.5)[index % 4])
        stores.append(open_store(spec))
        recoverers.append(
            Recoverer(
                stores[-1],
                clock,
                new_child,
                jobs=4,
                workflows=(),
                shuffle=random.shuffle,
                on_start=lambda run: None,
                on_end=lambda found: None,
                on_trouble=lambda error: None,
                pauses=Pauses(stores[-1], clock, first_seconds=1.0, most_seconds=64),
            )
        )
    watching = [asyncio.create_task(each.watch(0.1)) for each in recoverers]
    await asyncio.sleep(4)
    for each in recoverers:
        each.stop()
    await asyncio.gather(*watching)
    for store in (*stores, door):
        store.close()
    # One recoverer would try at 0, 1 and 3 seconds.
    assert set(tried) == set(runs)
    assert all(1 <= tried[each] <= 3 for each in runs), tried
