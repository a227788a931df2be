"""How often an engine looks at what may go: rarely while nothing can, and soon when much can."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import attrs
import pytest

from flowckpt import MemoryCheckpointStore, Retention
from flowckpt.core.records import CheckpointData, History, Reason
from flowckpt.maintenance import evict
from flowckpt.maintenance.evict import Evictor
from flowckpt.testing import FakeClock


class Attempt:
    """A run that saves checkpoints, as an engine does; it counts the looks, and the references that were looked at."""

    def __init__(self, monkeypatch, **limits):
        self.clock, self.store, self.history = FakeClock(), MemoryCheckpointStore(), History()
        self.looks = self.references = self.questions = self.sequence = 0
        plain, pinned = evict.removable, self.store.pinned

        def removable(references, *arguments, **options):
            self.looks += 1
            self.references += len(references)
            return plain(references, *arguments, **options)

        async def asked(workflow_id):
            self.questions += 1
            return await pinned(workflow_id)

        monkeypatch.setattr(evict, "removable", removable)
        self.store.pinned = asked
        self.evictor = Evictor(self.store, Retention(**limits), self.clock, "run", self.history, is_new=True)

    async def save(self, count, *, size=0, seconds=1, name="c{}", is_pinned=False):
        for _ in range(count):
            self.sequence += 1
            data = CheckpointData(
                name.format(self.sequence),
                "flow",
                "sha256:0",
                self.history.view(),
                self.clock.now(),
                self.sequence,
                1,
                Reason.STEP,
                inputs={},
                snapshot="x" * size,
            )
            await self.evictor.before_save(data)
            await self.store.save("run", data)
            self.evictor.after_save(data)
            if is_pinned:
                await self.store.pin("run", self.sequence)
            self.clock.advance(seconds)

    def left(self):
        return len(asyncio.run(self.store.list_checkpoints("run")))


LIMITS = {
    "max_age": {"max_age": "1d"},
    "max_bytes": {"max_bytes": 10**9},
    "keep_last": {"keep_last": 10**6},
    "all of them": {"max_age": "1d", "max_bytes": 10**9, "keep_last": 10**6},
}


@pytest.mark.parametrize("limits", LIMITS)
def test_while_nothing_can_go_a_save_costs_the_same_however_long_the_run_is(monkeypatch, limits):
    cost = []
    for length in (300, 2400):
        attempt = Attempt(monkeypatch, **LIMITS[limits])
        asyncio.run(attempt.save(length))
        assert attempt.left() == length
        assert attempt.questions == attempt.looks <= 30
        cost.append(attempt.references / length)
    assert max(cost) < 5


def test_nor_does_it_where_all_that_could_go_is_pinned(monkeypatch):
    for length in (300, 2400):
        attempt = Attempt(monkeypatch, keep_last=1, max_age="10s", max_bytes=2000)
        asyncio.run(attempt.save(length, is_pinned=True))
        assert attempt.left() == length
        assert attempt.questions == attempt.looks <= 40
        assert attempt.references / length < 6


@pytest.mark.parametrize(
    "limits", [{"keep_last": 200}, {"max_age": timedelta(seconds=200)}, {"max_bytes": 50_000}], ids=str
)
def test_while_old_ones_go_a_save_costs_the_same_and_never_are_there_many_more(monkeypatch, limits):
    attempt = Attempt(monkeypatch, **limits)

    async def main():
        most = 0
        for _ in range(150):
            await attempt.save(10)
            most = max(most, len(await attempt.store.list_checkpoints("run")))
        return most

    assert 200 <= asyncio.run(main()) <= 200 * 5 / 4 + 11
    assert attempt.references / 1500 < 8


def test_what_has_become_too_old_while_the_run_stood_still_goes_with_the_next_save(monkeypatch):
    attempt = Attempt(monkeypatch, max_age="1d")
    asyncio.run(attempt.save(900, seconds=1))
    attempt.clock.advance(3 * 86_400)
    asyncio.run(attempt.save(1))
    assert attempt.left() == 1


def test_large_checkpoints_behind_many_small_ones_are_noticed_before_there_are_a_third_more(monkeypatch):
    attempt = Attempt(monkeypatch, max_bytes=900 * 250 + 1000)
    sized = attempt.evictor._make_reference

    def reference(data):
        found = sized(data)
        return attrs.evolve(found, size=len(data.snapshot) or found.size)

    monkeypatch.setattr(Evictor, "_make_reference", lambda _, data: reference(data))
    asyncio.run(attempt.save(900))
    assert attempt.left() == 900
    asyncio.run(attempt.save(4, size=60_000))
    assert attempt.left() < 700
    assert attempt.looks < 30


def test_a_look_that_failed_is_made_again_and_told_once(monkeypatch, caplog):
    attempt = Attempt(monkeypatch, keep_last=1)
    plain, calls = attempt.store.pinned, []

    async def broken(workflow_id):
        calls.append(workflow_id)
        if len(calls) < 3:
            raise OSError("no list today")
        return await plain(workflow_id)

    attempt.store.pinned = broken
    with caplog.at_level(logging.INFO, "flowckpt"):
        asyncio.run(attempt.save(60))
    assert attempt.left() < 15
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
