"""The conformance tests of generations; part of `flowckpt.testing.contract.CheckpointStoreContract`."""

# ruff: noqa: D102 - the name of a test is its docstring

from __future__ import annotations

import os
from datetime import timedelta

import pytest

from flowckpt.core.records import Reason
from flowckpt.core.records.wait import Signal
from flowckpt.errors import CheckpointNotFoundError, FencedError
from flowckpt.stores.base import Ability, StoreBase
from flowckpt.testing.store_under_test import NOON, RUN, StoreUnderTest, checkpoint, history_of, results

_LATER = NOON + timedelta(hours=1)


class GenerationContract(StoreUnderTest):
    """A generation starts with one save, which removes the previous generation."""

    async def test_a_generation_continues_nothing_and_leaves_nothing_of_the_one_before(self, store: StoreBase) -> None:
        self.needs(store, Ability.OWNERS, Ability.GENERATIONS)
        large, shared = "a" * 70_000, "b" * 70_000
        await store.acquire(RUN)
        await store.save(RUN, checkpoint(1, []))
        await store.save(RUN, checkpoint(2, results(large, shared)))
        await store.save(RUN, checkpoint(3, results(large, shared, "c"), checkpoint_id="again"))
        if store.has(Ability.DELETE):
            await store.delete_checkpoint(RUN, "c1")
        if store.has(Ability.PINS):
            await store.pin(RUN, 2)
        if store.has(Ability.SIGNALS):
            await store.send_signal(RUN, Signal("one", "go", NOON))
        for attempt in (2, 3):
            lease = await store.begin_generation(RUN)
            assert (lease.attempt, lease.latest, lease.last_sequence) == (attempt, None, 2 * attempt - 1)
            first = checkpoint(
                2 * attempt, [], attempt=attempt, reason=Reason.CONTINUED, snapshot=shared, saved_at=_LATER
            )
            await store.save(RUN, first)
            assert await self.list_ids(store) == [(2 * attempt, first.checkpoint_id)]
            await store.save(RUN, checkpoint(2 * attempt + 1, results("new" * attempt), attempt=attempt))
        for instance in (store, self.another(store)):
            latest = await self.latest(instance)
            assert [result.output for result in latest.step_results] == ["new" * 3]
            assert (await instance.load(RUN, "c6")).snapshot == shared
            for gone in ("c1", "c2", "again", "c4"):
                with pytest.raises(CheckpointNotFoundError):
                    await instance.load(RUN, gone)
            if instance.has(Ability.ATTEMPTS):
                assert list(await instance.attempts(RUN)) == [3]
                assert [list(await instance.read_attempt(RUN, each)) for each in (1, 2)] == [[], []]
            if instance.has(Ability.LIST):
                info = await self.described(instance)
                assert (info.started_at, info.steps, info.attempt) == (NOON, 1, 3)
            if instance.has(Ability.PINS):
                assert await instance.pinned(RUN) == frozenset()
            if instance.has(Ability.SIGNALS):
                assert [each.signal_id for each in await instance.signals(RUN)] == ["one"]
            if instance.has(Ability.CHECK):
                assert {each.severity for each in await instance.check(RUN)} == {"ok"}
        lease = await self.resume(store)
        assert (lease.attempt, lease.last_sequence, len(history_of(lease))) == (4, 7, 1)
        await store.save(RUN, checkpoint(8, results("new" * 3, "more"), attempt=4))
        assert await self.list_ids(store) == [(8, "c8"), (7, "c7"), (6, "c6")]

    async def test_only_the_newest_owner_of_a_run_starts_a_generation(self, store: StoreBase) -> None:
        self.needs(store, Ability.OWNERS, Ability.GENERATIONS)
        with pytest.raises(FencedError):
            await store.begin_generation(RUN)
        token = (await store.acquire(RUN)).token
        await store.save(RUN, checkpoint(1))
        new_owner = self.another(store)
        lease = await new_owner.acquire(RUN, take_over=True)
        with pytest.raises(FencedError):
            await store.begin_generation(RUN, token=token)
        await new_owner.save(RUN, checkpoint(2, results("a"), attempt=lease.attempt))
        assert [sequence for sequence, _ in await self.list_ids(new_owner)] == [2, 1]

    async def test_a_generation_that_was_claimed_and_not_begun_leaves_the_one_before(self, store: StoreBase) -> None:
        self.needs(store, Ability.OWNERS, Ability.GENERATIONS)
        await store.acquire(RUN)
        await store.save(RUN, checkpoint(1, results("a")))
        lease = await store.begin_generation(RUN)
        claimed = [await store.claimed_by(RUN, attempt) for attempt in (1, lease.attempt)]
        assert claimed[0] == claimed[1] and claimed[0] is not None and claimed[0].pid == os.getpid()
        assert await store.claimed_by(RUN, lease.attempt + 1) in (None, claimed[0])
        await store.release(RUN, token=lease.token)
        assert await store.owner(RUN) is None
        again = await store.acquire(RUN)
        assert [result.output for result in history_of(again)] == ["a"]
        lease = await store.begin_generation(RUN)
        with pytest.raises(FencedError):
            await store.save(RUN, checkpoint(2, results("a", "b"), attempt=again.attempt))
        first = checkpoint(2, [], attempt=lease.attempt, reason=Reason.CONTINUED)
        await store.save(RUN, first)
        assert [sequence for sequence, _ in await self.list_ids(store)] == [2]

    async def test_a_run_that_arrives_in_a_later_generation_keeps_its_start(self, store: StoreBase) -> None:
        self.needs(store, Ability.GENERATIONS, Ability.RECEIVE, Ability.LIST)
        times = {"started_at": _LATER.isoformat(), "run_started_at": NOON.isoformat()}
        metadata = {"generation": {"number": 3, "attempt": 3, **times, "first_inputs": "", "former": []}}
        later = checkpoint(7, [], attempt=3, reason=Reason.CONTINUED, metadata=metadata, saved_at=_LATER)
        await store.receive_run(RUN, lambda: [later])
        for instance in (store, self.another(store)):
            info = await self.described(instance)
            assert (info.started_at, info.updated_at) == (NOON, _LATER)
        assert [each.started_at for each in await store.list_runs()] == [NOON]
        if store.has(Ability.CHECK):
            assert {each.severity for each in await store.check(RUN)} == {"ok"}
