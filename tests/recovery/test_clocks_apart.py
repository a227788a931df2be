"""Recoverers whose clocks are up to two hours apart, on every store: they share pauses, owners and what is due."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest

from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.recoverer.child import ChildEnd
from flowckpt.cli.recoverer.recoverer import Recoverer
from flowckpt.core.records import RunInfo, Status
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.errors import RunLockedError
from flowckpt.maintenance.recovery import DueRun, Pauses, Why, claim_run, find_due_runs
from flowckpt.stores import MemoryCheckpointStore, open_store
from flowckpt.stores.objects import bucket
from flowckpt.testing.clock import FakeClock
from flowckpt.testing.contract import checkpoint, results
from tests.stores.peers import elsewhere

RUN = "run-1"
HOURS = (-1, 0, 1, 0.5)


@pytest.fixture(params=["memory", "file", "sqlite", "postgresql", "objects"])
def store_kind(request):
    return request.param


@pytest.fixture
def doors(store_kind, request):
    """Makes doors to one store: each is a recoverer's, whose machine has the clock that is given."""
    made: list[Any] = []
    spec = None if store_kind == "memory" else request.getfixturevalue("spec")
    with blocking_allowed(True):

        def new_door(clock: Any = None) -> Any:
            if store_kind == "memory":
                made[1:] = made[:1] or [MemoryCheckpointStore()]
                return made[-1]
            store: Any = open_store(spec)
            if clock is not None and store_kind != "postgresql":  # there the server's clock counts
                timed = store.runs.database if store_kind == "sqlite" else store.runs
                assert timed._clock is not None
                timed._clock = clock
            made.append(store)
            return store

        yield new_door
        for store in made:
            store.close()


@attrs.frozen
class Apart:
    """The clock of a machine some hours off; all move together when the test moves the one that is right."""

    right: FakeClock
    hours: float

    def now(self) -> datetime:
        return self.right.now() + timedelta(hours=self.hours)

    def elapsed_ns(self) -> int:
        return self.right.elapsed_ns() + round(self.hours * 1e12)  # of each machine, since it was started

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def due(attempt: int = 1) -> DueRun:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    return DueRun(RunInfo(RUN, "etl", Status.CRASHED, attempt, noon, noon, 1, {}), Why.CRASHED)


async def left_behind(store: Any, run: str = RUN) -> None:
    """Make a run whose process is gone."""
    lease = await store.acquire(run)
    target = {"target": {"name": "w", "module": "m"}}
    await store.save(run, attrs.evolve(checkpoint(1, results("x")), attempt=lease.attempt, metadata=target))
    await store.release(run)


@pytest.mark.parametrize("hours", [-1, 0, 1])
async def test_a_recoverer_shares_the_pause_of_another_one_whatever_its_clock_says(doors, hours):
    right = FakeClock(datetime.now(UTC))
    clock, theirs = Apart(right, 0), Apart(right, hours)
    store = doors(clock)
    await left_behind(store)
    mine, other = Pauses(store, clock), Pauses(doors(theirs), theirs)
    other.forget_all_but([RUN])  # it watches already
    for pause in (30, 60):
        await mine.begin(due())
        await mine.end(due(), has_died=False)
        assert not await other.may_try(due())
        right.advance(pause - 1)
        assert not await other.may_try(due())
        assert await other.may_try(due(2))
        right.advance(1)
        assert await other.may_try(due())


@pytest.mark.parametrize("hours", [-1, 0, 1])
async def test_a_run_of_this_machine_is_due_exactly_when_its_process_is_gone(doors, hours):
    right = FakeClock(datetime.now(UTC))
    owner, clock = doors(Apart(right, 0)), Apart(right, hours)
    other = doors(clock)
    await owner.save(RUN, checkpoint(1, results("x")))
    assert await find_due_runs(other, clock) == []
    if other is not owner:
        with pytest.raises(RunLockedError):
            await other.acquire(RUN)
    await owner.release(RUN)
    (run,) = await find_due_runs(other, clock)
    async with claim_run(other, run) as keeping:
        assert keeping is not None
        assert await find_due_runs(owner, Apart(right, 0)) == []


@pytest.mark.parametrize("store_kind", ["postgresql", "objects"], indirect=True)
@pytest.mark.parametrize("hours", [-1, 0, 1])
async def test_no_clock_takes_a_run_from_another_machine_that_shows_signs_of_life(doors, hours):
    right = FakeClock(datetime.now(UTC))
    owner, clock = doors(Apart(right, -hours)), Apart(right, hours)
    other = doors(clock)
    owner.runs._process = elsewhere
    await owner.save(RUN, checkpoint(1, results("x")))
    for run in await find_due_runs(other, clock):  # a clock that is ahead may take the owner for dead, until it asks
        async with claim_run(other, run) as keeping:
            assert keeping is None
    with pytest.raises(RunLockedError):
        await other.acquire(RUN)
    await owner.save(RUN, checkpoint(2, results("x", "y")))


@pytest.mark.parametrize("store_kind", ["postgresql", "objects"], indirect=True)
@pytest.mark.parametrize("hours", [-1, 0, 1])
async def test_a_run_that_another_machine_left_is_due_once_its_lease_is_over_by_any_clock(doors, hours, monkeypatch):
    right = FakeClock(datetime.now(UTC))
    owner, clock = doors(), Apart(right, hours)
    other = doors(clock)
    owner.runs._process = elsewhere
    owner.runs._times = type(owner.runs._times)(-1.0)  # it was over as soon as it began
    await owner.save(RUN, checkpoint(1, results("x")))
    owner.runs._heartbeat.stop()
    await find_due_runs(other, clock)
    began = time.monotonic()
    monkeypatch.setattr(bucket, "monotonic", lambda: began + 60)  # a minute after it saw the last sign of life
    assert [each.workflow_id for each in await find_due_runs(other, clock)] == [RUN]


# Ten recoverers on one store, against runs that cannot be resumed.


KINDS = {"stale": ExitCode.STALE, "secretless": ExitCode.USAGE, "crash_loop": ExitCode.WORKFLOW_FAILED, "dying": -9}


@attrs.define
class Resumed:
    """Stands for the process that resumes a run: it claims the run, and fails in its way."""

    store: Any
    run: DueRun
    tried: Counter[str]

    async def resume(self, release) -> ChildEnd:
        workflow_id = self.run.workflow_id
        self.tried[workflow_id] += 1
        await asyncio.sleep(0)  # it starts
        await release()
        lease = await self.store.acquire(workflow_id)
        if workflow_id == "dying":
            started = {"attempt": lease.attempt, "sequence": lease.last_sequence + 1}
            await self.store.save(workflow_id, attrs.evolve(lease.latest, checkpoint_id="@started", **started))
        await self.store.release(workflow_id)
        return ChildEnd(int(KINDS[workflow_id]), ())

    def stop(self) -> None:
        pass


class Counted(Pauses):
    """Counts how often its recoverer has looked."""

    looks = 0

    def forget_all_but(self, runs):
        self.looks += 1
        super().forget_all_but(runs)


async def test_ten_recoverers_try_no_more_often_than_one(doors):
    right = FakeClock(datetime.now(UTC))
    door = doors(right)
    for workflow_id in KINDS:
        await left_behind(door, workflow_id)
    tried: Counter[str] = Counter()
    recoverers, pauses = [], []
    for index in range(10):
        clock = Apart(right, HOURS[index % 4])
        store = doors(clock)
        pauses.append(Counted(store, clock, first_seconds=30.0, most_seconds=3600))
        recoverers.append(
            Recoverer(
                store,
                clock,
                lambda run: Resumed(door, run, tried),
                jobs=4,
                workflows=(),
                shuffle=random.shuffle,
                on_start=lambda run: None,
                on_end=lambda found: None,
                on_trouble=lambda error: None,
                pauses=pauses[-1],
            )
        )

    async def all_look(times: int) -> None:
        before = [each.looks for each in pauses]
        while any(each.looks < looks + times for each, looks in zip(pauses, before, strict=True)):
            assert not any(task.done() for task in watching), "a recoverer ended"
            await asyncio.sleep(0.005)

    watching = [asyncio.create_task(each.watch(0.01)) for each in recoverers]
    try:
        async with asyncio.timeout(300):
            for tries, pause in enumerate((30, 60, 120), 1):
                while min(tried[each] for each in KINDS) < tries:
                    await asyncio.sleep(0.005)
                await all_look(2)
                assert dict(tried) == dict.fromkeys(KINDS, tries)
                right.advance(pause - 1)
                await all_look(2)
                assert dict(tried) == dict.fromkeys(KINDS, tries)
                right.advance(1)
    finally:
        for each in recoverers:
            each.stop()
        await asyncio.gather(*watching)
