"""The conformance tests of what stores once answered differently; part of `flowckpt.testing.contract.CheckpointStoreContract`."""

# ruff: noqa: D102 - the name of a test is the sentence that it proves

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from flowckpt.checkpoint import CheckpointData, Signal
from flowckpt.errors import FencedError, RunExistsError, RunLockedError
from flowckpt.stores.base import (
    CheckpointStore,
    DeletesCheckpoints,
    DeliversSignals,
    KeepsAttempts,
    ListsAttempts,
    ListsRuns,
    OwnsRuns,
    ReadsAttempts,
    ReceivesRuns,
)
from flowckpt.stores.retention import EvictsCheckpoints
from flowckpt.testing.store_under_test import NOON, RUN, StoreUnderTest, checkpoint, results


class AgreementContract(StoreUnderTest):
    """What a run is that was fought for, emptied, or refused."""

    def two_owners(self, store: CheckpointStore) -> tuple[Any, Any]:
        """Return the store for two owners, or skip the test where this process cannot be two."""
        first, second = self.able(store, OwnsRuns), self.reopen(store)
        if first is second:
            pytest.skip(f"{type(store).__name__} has one owner a process")
        return first, second

    async def test_a_run_was_started_when_its_first_checkpoint_was_saved(self, store: CheckpointStore) -> None:
        listing, owning = self.able(store, ListsRuns), self.able(store, OwnsRuns)
        moments = [NOON + timedelta(seconds=number) for number in range(4)]
        await owning.acquire("claimed first, begun last")
        await store.save(RUN, checkpoint(1, results("a"), saved_at=moments[1]))
        await store.save("claimed first, begun last", checkpoint(1, saved_at=moments[3]))
        assert [info.workflow_id for info in await listing.list_runs()] == ["claimed first, begun last", RUN]
        await owning.release(RUN)
        for attempt in (2, 3):  # each goes back behind everything
            await owning.acquire(RUN)
            data = checkpoint(attempt, results(f"other-{attempt}"), attempt=attempt, saved_at=moments[2])
            await store.save(RUN, data)
            await owning.release(RUN)
        info = await self.able(self.reopen(store), ListsRuns).describe_run(RUN)
        assert info is not None
        assert (info.started_at, info.updated_at) == (moments[1], moments[2])

    async def test_a_run_whose_checkpoints_were_all_removed_takes_messages(self, store: CheckpointStore) -> None:
        deleting, sending = self.able(store, DeletesCheckpoints), self.able(store, DeliversSignals)
        await store.save(RUN, checkpoint(1))
        assert await deleting.delete_checkpoint(RUN, "c1")
        message = Signal("one", "go", NOON, None, "ann")
        assert await sending.send_signal(RUN, message)
        assert list(await self.able(self.reopen(store), DeliversSignals).signals(RUN)) == [message]

    async def test_a_thief_that_saved_and_gave_the_run_up_leaves_it_to_anybody(self, store: CheckpointStore) -> None:
        robbed, thief = self.two_owners(store)
        await robbed.acquire(RUN)
        await robbed.save(RUN, checkpoint(1))
        await thief.acquire(RUN, steal=True)
        assert await robbed.owner(RUN) is not None
        await thief.save(RUN, checkpoint(2, attempt=2))
        await thief.release(RUN)
        assert await robbed.owner(RUN) is await thief.owner(RUN) is None
        lease = await self.reopen(store).acquire(RUN)  # type: ignore[attr-defined]
        assert (lease.attempt, lease.last_sequence) == (3, 2)
        with pytest.raises(RunLockedError):
            await thief.acquire(RUN)
        with pytest.raises(FencedError):
            await robbed.save(RUN, checkpoint(2))

    async def test_what_a_fenced_owner_was_refused_is_nothing_that_its_attempt_left_behind(
        self, store: CheckpointStore
    ) -> None:
        robbed, thief = self.two_owners(store)
        reading = self.able(store, ReadsAttempts)
        self.able(store, KeepsAttempts)
        await robbed.acquire(RUN)
        for sequence in (1, 2):
            await robbed.save(RUN, checkpoint(sequence, results("a", "b")[:sequence]))
        lease = await thief.acquire(RUN, steal=True)
        back = list(lease.latest.step_results[:1])
        await thief.save(RUN, checkpoint(3, [*back, *results("c", first=2)], attempt=2))
        with pytest.raises(FencedError):
            await robbed.save(RUN, checkpoint(3, results("a", "b", "refused")))
        assert [each.sequence for each in await reading.read_attempt(RUN, 1)] == [1, 2]
        assert [each.sequence for each in await reading.list_attempt(RUN, 1)] == [1, 2]
        left = await reading.load_attempt(RUN, 1)
        assert left.sequence == 2

    async def test_an_attempt_whose_every_save_was_refused_is_none(self, store: CheckpointStore) -> None:
        robbed, thief = self.two_owners(store)
        listing = self.able(store, ListsAttempts)
        await robbed.acquire(RUN)
        await thief.acquire(RUN, steal=True)
        await thief.save(RUN, checkpoint(1, attempt=2, saved_at=NOON + timedelta(seconds=9)))
        with pytest.raises(FencedError):
            await robbed.save(RUN, checkpoint(1))
        assert list(await listing.attempts(RUN)) == [2]
        assert list(await listing.list_attempt(RUN, 1)) == []
        if isinstance(thief, ListsRuns):
            info = await thief.describe_run(RUN)
            assert info is not None
            assert info.started_at == NOON + timedelta(seconds=9)

    async def test_an_attempt_that_only_removed_something_has_written(self, store: CheckpointStore) -> None:
        deleting, owning = self.able(store, DeletesCheckpoints), self.able(store, OwnsRuns)
        listing = self.able(store, ListsAttempts)
        for sequence in (1, 2):
            await store.save(RUN, checkpoint(sequence))
        await owning.release(RUN)
        assert await deleting.delete_checkpoint(RUN, "c1")
        assert list(await listing.attempts(RUN)) == [1, 2]
        assert list(await listing.list_attempt(RUN, 2)) == []

    async def test_what_was_removed_stays_removed_where_a_later_attempt_goes_back_behind_it(
        self, store: CheckpointStore
    ) -> None:
        deleting, owning = self.able(store, DeletesCheckpoints), self.able(store, OwnsRuns)
        listing = self.able(store, ListsAttempts)
        steps = results("a", "b", "c")
        for sequence in (1, 2, 3):
            await store.save(RUN, checkpoint(sequence, steps[:sequence]))
        await owning.release(RUN)
        assert await deleting.delete_checkpoint(RUN, "c2")  # by an attempt of its own
        await owning.acquire(RUN)
        await store.save(RUN, checkpoint(4, results("anew"), attempt=3))
        assert [each.sequence for each in await listing.list_attempt(RUN, 1)] == [1, 3]

    async def test_what_was_removed_stays_removed_and_nothing_else_goes_where_the_run_is_taken_over(
        self, store: CheckpointStore
    ) -> None:
        deleting, thief = self.able(store, DeletesCheckpoints), self.able(self.reopen(store), OwnsRuns)
        steps = results("a", "b", "c")
        for sequence in (1, 2, 3):
            await store.save(RUN, checkpoint(sequence, steps[:sequence]))
        for name in ("c1", "c3"):  # the newest, too
            assert await deleting.delete_checkpoint(RUN, name)
        lease = await thief.acquire(RUN, steal=True)
        assert lease.latest.checkpoint_id == "c2"
        assert lease.last_sequence == 3
        assert await self.shown(thief) == [(2, "c2")]
        await thief.save(RUN, checkpoint(4, [*lease.latest.step_results], attempt=2))
        assert await self.shown(self.reopen(store)) == [(4, "c4"), (2, "c2")]
        assert [result.output for result in (await store.load(RUN, "c2")).step_results] == ["a", "b"]
        with pytest.raises(FencedError):
            await store.save(RUN, checkpoint(5, steps))
        assert not await deleting.delete_checkpoint(RUN, "c1")

    async def test_a_removal_that_is_refused_is_never_taken_for_one_of_nothing(self, store: CheckpointStore) -> None:
        robbed, thief = self.two_owners(store)
        deleting = self.able(store, DeletesCheckpoints)
        steps = results("a", "b")
        for sequence in (1, 2):
            await store.save(RUN, checkpoint(sequence, steps[:sequence]))
        lease = await thief.acquire(RUN, steal=True)
        for _ in range(2):  # asked again, it is refused again
            with pytest.raises(FencedError):
                await deleting.delete_checkpoint(RUN, "c1")
        await thief.save(RUN, checkpoint(3, [*lease.latest.step_results], attempt=2))
        with pytest.raises(FencedError):
            await deleting.delete_checkpoint(RUN, "c1")
        assert await self.shown(robbed) == [(3, "c3"), (2, "c2"), (1, "c1")]
        assert await thief.delete_checkpoint(RUN, "c1")
        assert not await deleting.delete_checkpoint(RUN, "c1")  # now there is none, whoever asks

    async def test_a_run_that_cannot_be_taken_in_is_refused_before_its_source_is_asked(
        self, store: CheckpointStore
    ) -> None:
        receiving, owning = self.able(store, ReceivesRuns), self.able(store, OwnsRuns)

        def source() -> Iterator[CheckpointData]:
            raise AssertionError("it was asked")

        await owning.acquire(RUN)
        with pytest.raises(RunLockedError):
            await receiving.receive_run(RUN, source)
        await store.save(RUN, checkpoint(1))
        with pytest.raises(RunExistsError):  # it is owned, too
            await receiving.receive_run(RUN, source)

    async def test_checkpoints_go_with_the_next_save_and_never_the_one_that_is_saved(
        self, store: CheckpointStore
    ) -> None:
        evicting = self.able(store, EvictsCheckpoints)
        for sequence in (1, 2, 3):
            await store.save(RUN, checkpoint(sequence))
        evicting.evict_with_next_save(RUN, [1, 3, 4])
        assert await self.shown(store) == [(3, "c3"), (2, "c2"), (1, "c1")]
        await store.save(RUN, checkpoint(4))
        assert await self.shown(store) == [(4, "c4"), (2, "c2")]
        assert await evicting.delete_sequences(RUN, [2, 7]) == 1
        assert await self.shown(store) == [(4, "c4")]

    async def test_a_checkpoint_that_was_named_to_go_with_itself_stays_removed_once_it_is(
        self, store: CheckpointStore
    ) -> None:
        evicting, owning = self.able(store, EvictsCheckpoints), self.able(store, OwnsRuns)
        steps = results("a", "b", "c")
        await store.save(RUN, checkpoint(1, steps[:1]))
        evicting.evict_with_next_save(RUN, [2])
        await store.save(RUN, checkpoint(2, steps[:2]))  # it is never among them
        await store.save(RUN, checkpoint(3, steps))
        assert await evicting.delete_sequences(RUN, [2]) == 1
        await owning.release(RUN)
        await owning.acquire(RUN)
        await store.save(RUN, checkpoint(4, steps[:2], attempt=2))  # back behind where the removal was said
        assert await self.shown(self.reopen(store)) == [(4, "c4"), (1, "c1")]
