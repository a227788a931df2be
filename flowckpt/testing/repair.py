"""The conformance tests of repairs; part of `flowckpt.testing.contract.CheckpointStoreContract`."""

# ruff: noqa: D102 - the name of a test is its docstring

from __future__ import annotations

import pytest

from flowckpt.core.records import CheckpointData
from flowckpt.core.records.wait import Signal
from flowckpt.errors import CheckpointCorruptedError, CheckpointNotFoundError, RunLockedError
from flowckpt.stores.base import Ability, StoreBase
from flowckpt.stores.content import find_damaged_attempts
from flowckpt.stores.queries import read_all_attempts
from flowckpt.testing.store_under_test import NOON, RUN, StoreUnderTest, checkpoint, history_of, results


class RepairContract(StoreUnderTest):
    """A repair sets the damaged part aside, names it, and keeps everything intact."""

    async def saved(self, store: StoreBase) -> StoreBase:
        """Save a run of two attempts (checkpoints 1 to 4, then 5 and 6 after 2), and return another instance of the store."""
        self.needs(store, Ability.REPAIR)
        await store.acquire(RUN)
        await self.save_each(store, results("one", "two", "three", "four"))
        back = history_of(await self.resume(store))[:2]
        for sequence in (5, 6):
            steps = [*back, *results("five", "six", first=3)[: sequence - 4]]
            await store.save(RUN, checkpoint(sequence, steps, attempt=2))
        await store.release(RUN)
        return self.another(store)

    async def read(self, store: StoreBase) -> dict[int, CheckpointData]:
        """Return every checkpoint of the run, by its sequence."""
        return {data.sequence: data for data in await read_all_attempts(store, RUN)}

    async def is_damaged(self, store: StoreBase) -> bool:
        """Return whether the check of the run, or a reading of its attempts, finds damage."""
        if any(each.severity == "corrupt" for each in await store.check(RUN)):
            return True
        return bool(await find_damaged_attempts(store, RUN))

    async def test_an_intact_run_is_not_repaired(self, store: StoreBase) -> None:
        other = await self.saved(store)
        before = await self.read(other)
        done = await other.repair(RUN)
        assert (done.is_changed, done.aside, list(done.lost)) == (False, "", [])
        assert (done.checkpoints, done.steps, done.newest) == (6, 4, "c6")
        assert await self.read(other) == before

    async def test_a_run_that_is_missing_cannot_be_repaired(self, store: StoreBase) -> None:
        self.needs(store, Ability.REPAIR)
        with pytest.raises(CheckpointNotFoundError):
            await store.repair("none")

    @pytest.mark.parametrize("sequence", [1, 2, 5, 6])
    async def test_a_repair_keeps_what_is_intact(self, store: StoreBase, sequence: int) -> None:
        other = await self.saved(store)
        before = await self.read(other)
        self.damage(sequence)
        other = self.another(store)
        is_damaged = await self.is_damaged(other)
        try:
            done = await other.repair(RUN)
        except CheckpointCorruptedError as error:
            assert sequence == 1, "the first checkpoint alone may be all that a run depends on"
            assert "no checkpoint of it can be read" in str(error)
            assert await self.is_damaged(self.another(store))
            return
        assert done.is_changed is is_damaged
        assert bool(done.aside) is is_damaged
        other = self.another(store)
        assert not await self.is_damaged(other)
        after = await self.read(other)
        assert after == {number: before[number] for number in after}
        assert bool(done.lost) is (sequence not in after)
        if sequence == 2 and 2 in after:  # it was restored from its copy in the second attempt
            assert set(before) - set(after) <= {3, 4}
            assert 6 in after
        assert {each for each in before if each < min(sequence, 5)} <= set(after)
        assert not (await other.repair(RUN)).is_changed
        lease = await other.acquire(RUN)
        assert lease.latest is not None
        assert lease.latest.checkpoint_id == done.newest
        steps = [*history_of(lease), *results("next", first=9)]
        await other.save(RUN, checkpoint(7, steps, attempt=lease.attempt))
        await other.release(RUN)
        latest = await self.latest(self.another(store))
        assert latest.step_results[-1].output == "next"

    @pytest.mark.parametrize("sequence", [3, 4])
    async def test_damage_that_no_longer_counts_hides_nothing_that_does(self, store: StoreBase, sequence: int) -> None:
        other = await self.saved(store)
        latest, listed = await other.load_latest(RUN), list(await other.list_checkpoints(RUN))
        self.damage(sequence)
        for is_repaired in (False, True):
            other = self.another(store)
            if is_repaired:
                assert (await other.repair(RUN)).lost
            assert await self.is_damaged(other) is not is_repaired
            assert await other.load_latest(RUN) == latest
            assert list(await other.list_checkpoints(RUN)) == listed
            assert list(await other.attempts(RUN)) == [1, 2]
        lease = await other.acquire(RUN)
        assert lease.latest == latest

    async def test_a_live_run_is_not_repaired(self, store: StoreBase) -> None:
        other = await self.saved(store)
        if other is store:
            pytest.skip(f"{store.kind} has one owner per process")
        await store.acquire(RUN)
        self.damage(6)
        with pytest.raises(RunLockedError):
            await other.repair(RUN)

    async def test_messages_and_pins_outlive_a_repair(self, store: StoreBase) -> None:
        other = await self.saved(store)
        message = Signal("one", "go", NOON, None, "ann")
        if store.has(Ability.SIGNALS):
            await other.send_signal(RUN, message)
        if store.has(Ability.PINS):
            await other.pin(RUN, 2)
        self.damage(6)
        other = self.another(store)
        assert (await other.repair(RUN)).is_changed
        if store.has(Ability.SIGNALS):
            assert list(await other.signals(RUN)) == [message]
        if store.has(Ability.PINS):
            assert await other.pinned(RUN) == {2}
