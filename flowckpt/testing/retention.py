"""The conformance tests of retention; see `flowckpt.stores.retention`.

::

    class TestMyStore(RetentionContract, CheckpointStoreContract):
        ...

What a store cannot do is skipped.
"""

# ruff: noqa: D102 - the name of a test is its docstring

from __future__ import annotations

from base64 import b85encode
from hashlib import sha256
from typing import Any

import attrs
import pytest

from flowckpt.core.records import CheckpointData, Reason, StepResult
from flowckpt.errors import CheckpointNotFoundError, RunLockedError, SaveConflictError
from flowckpt.stores.base import Ability, StoreBase
from flowckpt.testing.store_under_test import RUN, StoreUnderTest, checkpoint, history_of, results

LARGE = b85encode(b"".join(sha256(b"%d" % n).digest() for n in range(2_500))).decode()
"""A large value that compression hardly shortens."""


async def read_everything(store: Any, run: str = RUN) -> dict[str, Any]:
    """Return all that a store returns for a run: its description, every checkpoint, and the records of each attempt."""
    latest = await store.load_latest(run)
    references = await store.list_checkpoints(run)
    newest = max((each.attempt for each in references), default=0) if store.has(Ability.ATTEMPTS) else 0
    attempts = range(1, 1 + newest)
    info = await store.describe_run(run) if store.has(Ability.LIST) else None
    return {
        "latest": None if latest is None else to_comparable(latest),
        "checkpoints": [attrs.evolve(each, size=0) for each in references],
        "whole": {each.checkpoint_id: to_comparable(await store.load(run, each.checkpoint_id)) for each in references},
        "left": {n: to_comparable(await store.load_attempt(run, n)) for n in attempts},
        "listed": {n: [attrs.evolve(each, size=0) for each in await store.list_attempt(run, n)] for n in attempts},
        "read": {n: [to_comparable(each) for each in await store.read_attempt(run, n)] for n in attempts},
        "info": info,
    }


def to_comparable(data: CheckpointData | None) -> Any:
    """Return a checkpoint in a form that compares by value, with every large value read."""
    if data is None:
        return None
    fields = {name: getattr(data, name) for name in ("inputs", "output", "snapshot", "step_results")}
    fields["step_results"] = [(each.path, each.output, each.attempt) for each in data.step_results]
    others = ("checkpoint_id", "sequence", "attempt", "reason", "status", "saved_at", "metadata", "error", "evidence")
    return {**fields, **{name: getattr(data, name) for name in others}}


class RetentionContract(StoreUnderTest):
    """Tests of stores that can remove checkpoints; a mixin for subclasses of `CheckpointStoreContract`."""

    async def fill(self, store: StoreBase) -> list[StepResult]:
        """Save a run of three attempts: the second continues from before the end of the first, the third resumes it."""
        self.needs(store, Ability.OWNERS)
        steps = results("a", LARGE, "c", "d")
        lease = await store.acquire(RUN)
        for sequence in (1, 2, 3, 4):
            await store.save(
                RUN, checkpoint(sequence, steps[:sequence], attempt=lease.attempt, inputs={"n": LARGE + "i"})
            )
        lease = await self.resume(store)
        steps = [*steps[:2], *results("e", "f" + LARGE, first=3)]
        for sequence in (5, 6, 7):
            data = checkpoint(sequence, steps[: sequence - 3], attempt=lease.attempt, metadata={"n": sequence})
            await store.save(RUN, attrs.evolve(data, snapshot=f"{sequence}{LARGE}"))
        lease = await self.resume(store)
        steps = [*steps, *results("g", first=5)]
        await store.save(RUN, checkpoint(8, steps, attempt=lease.attempt, reason=Reason.COMPLETED, output="done"))
        await store.release(RUN)
        return steps

    # --- removing checkpoints ---------------------------------------------------------------------------------------

    async def test_what_is_evicted_goes_with_the_next_save_and_not_without_it(self, store: StoreBase) -> None:
        self.needs(store, Ability.EVICT)
        steps = results("a", "b", "c", "d")
        await self.save_each(store, steps[:3])
        store.evict_with_next_save(RUN, [1, 2])
        store.evict_with_next_save("no run", [1])
        assert await self.list_ids(store) == [(3, "c3"), (2, "c2"), (1, "c1")]
        with pytest.raises(SaveConflictError):
            await store.save(RUN, checkpoint(3, steps))
        assert len(await self.list_ids(store)) == 3
        await store.save(RUN, checkpoint(4, steps))
        assert await self.list_ids(store) == [(4, "c4"), (3, "c3")]
        latest = await self.latest(self.another(store))
        assert list(latest.step_results) == steps
        assert latest.extra == {}
        await store.save(RUN, checkpoint(5, steps))
        assert await self.list_ids(store) == [(5, "c5"), (4, "c4"), (3, "c3")]

    async def test_what_an_owner_wanted_to_evict_stays_when_it_gives_the_run_up(self, store: StoreBase) -> None:
        self.needs(store, Ability.EVICT, Ability.OWNERS)
        await store.save(RUN, checkpoint(1))
        store.evict_with_next_save(RUN, [1])
        lease = await self.resume(store)
        await store.save(RUN, checkpoint(2, attempt=lease.attempt))
        assert await self.list_ids(store) == [(2, "c2"), (1, "c1")]

    async def test_checkpoints_are_removed_by_their_sequences(self, store: StoreBase) -> None:
        self.needs(store, Ability.EVICT)
        steps = results("a", "b", "c")
        for sequence in (1, 2, 3):
            await store.save(RUN, checkpoint(sequence, steps[:sequence], checkpoint_id="same"))
        assert await store.delete_sequences(RUN, [1, 3, 9]) == 2
        assert await store.delete_sequences(RUN, [1, 3, 9]) == 0
        assert await store.delete_sequences("no run", [1]) == 0
        assert await self.list_ids(store) == [(2, "same")]

    # --- pins -------------------------------------------------------------------------------------------------------

    async def test_a_pin_is_kept_until_it_is_taken_away_and_goes_with_its_run(self, store: StoreBase) -> None:
        self.needs(store, Ability.PINS)
        await store.save(RUN, checkpoint(1))
        await store.save(RUN, checkpoint(2))
        assert await store.pinned(RUN) == await store.pinned("no run") == frozenset()
        for _ in range(2):
            await store.pin(RUN, 1)
        await store.pin(RUN, 2)
        other = self.another(store)
        assert await other.pinned(RUN) == {1, 2}
        for _ in range(2):
            await other.unpin(RUN, 2)
        await other.unpin("no run", 1)
        assert await store.pinned(RUN) == {1}
        for run, sequence in ((RUN, 9), ("no run", 1)):
            with pytest.raises(CheckpointNotFoundError):
                await store.pin(run, sequence)
        await store.clear(RUN)
        await store.save(RUN, checkpoint(1))
        assert await store.pinned(RUN) == frozenset()

    # --- compaction -------------------------------------------------------------------------------------------------

    async def test_a_compaction_loses_nothing_that_any_attempt_recorded(self, store: StoreBase) -> None:
        self.needs(store, Ability.COMPACT)
        await self.fill(store)
        before = await read_everything(self.another(store))
        assert before["latest"]["output"] == "done"
        assert before["left"][1]["step_results"][-1][1] == "d"
        for _ in range(3):
            await store.compact(RUN, is_forced=True)
            assert await read_everything(self.another(store)) == before
            assert await read_everything(store) == before

    @pytest.mark.parametrize("gone", [(1,), (4,), (8,), (1, 2, 3, 4), (5, 6), (2, 3, 7, 8), (7,)], ids=str)
    async def test_what_was_removed_does_not_come_back_and_all_else_is_there(
        self, store: StoreBase, gone: tuple[int, ...]
    ) -> None:
        self.needs(store, Ability.COMPACT, Ability.EVICT, Ability.OWNERS)
        steps = await self.fill(store)
        await store.delete_sequences(RUN, gone)
        before = await read_everything(store)
        for _ in range(2):
            await store.compact(RUN, is_forced=True)
            after = await read_everything(self.another(store))
            for name in ("latest", "checkpoints", "whole", "info"):
                assert after[name] == before[name]
        lease = await store.acquire(RUN)
        assert lease.last_sequence == 8
        assert lease.latest is not None
        await store.save(RUN, checkpoint(9, [*steps, *results("h", first=6)], attempt=lease.attempt))
        shown = await self.list_ids(store)
        assert shown == [(9, "c9"), *((each.sequence, each.checkpoint_id) for each in before["checkpoints"])]

    async def test_after_a_compaction_a_run_can_go_back_and_be_compacted_again(self, store: StoreBase) -> None:
        self.needs(store, Ability.COMPACT, Ability.EVICT, Ability.OWNERS)
        steps = await self.fill(store)
        await store.delete_sequences(RUN, [5])
        for sequence, length in ((9, 3), (10, 0), (11, 1), (12, 2)):
            await store.compact(RUN, is_forced=True)
            lease = await store.acquire(RUN)
            steps = [*steps[:length], *results(f"new {sequence}", first=length + 1)]
            await store.save(RUN, checkpoint(sequence, steps, attempt=lease.attempt))
            await store.release(RUN)
            before = await read_everything(store)
            assert before["latest"]["step_results"] == [(each.path, each.output, each.attempt) for each in steps]
            await store.compact(RUN, is_forced=True)
            assert await read_everything(self.another(store)) == before

    async def test_what_only_removed_checkpoints_had_is_freed(self, store: StoreBase) -> None:
        self.needs(store, Ability.COMPACT, Ability.PRUNE, Ability.EVICT)
        await self.fill(store)
        await store.delete_sequences(RUN, [5, 6])
        assert RUN in await store.compactable("", 10)
        (before,) = await store.stored_bytes([RUN])
        done = await store.compact(RUN, is_forced=True)
        assert done.is_changed
        assert done.bytes_freed > 2 * len(LARGE) * 0.7
        (after,) = await store.stored_bytes([RUN])
        assert before is not None and after is not None
        assert after < before - 2 * len(LARGE) * 0.7
        again = await store.compact(RUN, is_forced=True)
        assert not again.is_changed
        assert not (await store.compact("no run", is_forced=True)).is_changed

    async def test_results_count_although_the_checkpoint_that_added_them_is_gone(self, store: StoreBase) -> None:
        self.needs(store, Ability.COMPACT, Ability.PRUNE, Ability.EVICT, Ability.OWNERS)
        steps = results(
            *("".join(sha256(bytes([number, part])).hexdigest() for part in range(16)) for number in range(3))
        )
        for sequence in (1, 2, 3):
            await store.save(RUN, checkpoint(sequence, steps[:sequence]))
        await store.release(RUN)
        await store.delete_sequences(RUN, [1, 2])
        await store.compact(RUN, is_forced=True)
        (after,) = await store.stored_bytes([RUN])
        assert after is not None and after > 3 * 500

    async def test_a_run_that_is_owned_is_not_compacted(self, store: StoreBase) -> None:
        self.needs(store, Ability.COMPACT, Ability.OWNERS)
        await self.fill(store)
        lease = await store.acquire(RUN)
        for instance in (store, self.another(store)):
            with pytest.raises(RunLockedError):
                await instance.compact(RUN, is_forced=True)
        await store.save(RUN, checkpoint(9, history_of(lease), attempt=lease.attempt))

    # --- removing runs ----------------------------------------------------------------------------------------------

    async def test_runs_are_gone_through_in_pages_while_they_are_removed(self, store: StoreBase) -> None:
        self.needs(store, Ability.PRUNE, Ability.OWNERS)
        names = [f"run {number}" for number in range(7)]
        for name in names:
            await store.save(name, checkpoint(1))
            await store.release(name)
        ids: list[str] = []
        last = None
        while page := await store.page_runs(last, 3):
            assert len(page) <= 3
            ids += [info.workflow_id for info in page]
            last = page[-1]
            assert {*await store.clear_unchanged(page[:2])} == {info.workflow_id for info in page[:2]}
        assert sorted(ids) == names
        assert len(await store.page_runs(None, 100)) == 7 - 5
        assert list(await store.stored_bytes(["no run"])) == [0]
        await store.tidy()

    async def test_a_run_is_removed_only_as_it_was_described(self, store: StoreBase) -> None:
        self.needs(store, Ability.PRUNE, Ability.PINS, Ability.OWNERS)
        for name in ("owned", "changed", "pinned", "gone", "there"):
            await store.save(name, checkpoint(1))
            await store.release(name)
        runs = await store.page_runs(None, 10)
        lease = await store.acquire("changed")
        await store.save("changed", checkpoint(2, attempt=lease.attempt))
        await store.release("changed")
        await store.acquire("owned")
        await store.pin("pinned", 1)
        await store.clear("gone")
        instance = self.another(store)
        assert await instance.clear_unchanged(runs) == ["there"]
        remaining = {info.workflow_id for info in await instance.page_runs(None, 10)}
        assert remaining == {"owned", "changed", "pinned"}
