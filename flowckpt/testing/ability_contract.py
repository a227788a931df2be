"""The conformance tests of what stores can do beyond the five methods, and of what they say of checkpoints.

They are part of `flowckpt.testing.contract.CheckpointStoreContract`. Where a store has not an ability its test is skipped.
"""

# ruff: noqa: D102 - the name of a test is the sentence that it proves

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from flowckpt.checkpoint import Reason, Status, StepError, StepResult
from flowckpt.checkpoint.data import SCHEMA_VERSION
from flowckpt.checkpoint.selection import Selection
from flowckpt.codec.blob import Blob
from flowckpt.errors import SettingError, UnsupportedSchemaError
from flowckpt.stores.base import (
    CheckpointStore,
    DeletesCheckpoints,
    KeepsAttempts,
    ListsAttempts,
    NotesBeginnings,
    OwnsRuns,
    SharesValues,
)
from flowckpt.stores.by_status import runs_of_status
from flowckpt.stores.picking import FiltersCheckpoints, filters_checkpoints
from flowckpt.testing.agreement_contract import AgreementContract
from flowckpt.testing.figures_contract import FiguresContract
from flowckpt.testing.finding_contract import FindingContract
from flowckpt.testing.signals_contract import SignalsContract
from flowckpt.testing.store_under_test import CLAIM, NOON, RUN, checkpoint, claimed, results


class AbilityContract(AgreementContract, FiguresContract, FindingContract, SignalsContract):
    """What stores promise of their references, of the forms they read, and of each ability that they have."""

    # --- what a reference says -------------------------------------------------------------------------------------

    async def test_a_reference_says_what_its_checkpoint_is_without_loading_it(self, store: CheckpointStore) -> None:
        steps = results("a", "b")
        data = checkpoint(3, steps, checkpoint_id="späte Post", reason=Reason.TRIGGER)
        await store.save(RUN, data)
        (found,) = await self.reopen(store).list_checkpoints(RUN)
        assert found.size > 0
        assert attrs.evolve(found, size=0) == type(found).of(RUN, data)
        assert (found.saved_at, found.steps, found.reason, found.verified) == (NOON, 2, Reason.TRIGGER, None)

    async def test_a_checkpoint_is_verified_where_the_claims_of_all_its_results_were_found_to_hold(
        self, store: CheckpointStore
    ) -> None:
        steps = [
            *results("plain"),
            StepResult("empty", evidence={"pack": {"evidence": []}, "outcome": "no_evidence"}),
            claimed("verified", "a"),
            *results("plain", first=4),
            claimed("verified", "b"),
            claimed("cannot_tell", "c"),
            claimed("verified", "d"),
        ]
        for sequence in range(1, 8):
            await store.save(RUN, checkpoint(sequence, steps[:sequence]))
        await store.save("asked by nobody", checkpoint(1, [claimed(None)]))
        await store.save("all at once", checkpoint(1, [claimed("verified", "a"), claimed("failed", "b")]))
        for door in (store, self.reopen(store)):
            found = [reference.verified for reference in await door.list_checkpoints(RUN)]
            assert found == [False, False, True, True, True, None, None]
            assert [each.verified for each in await door.list_checkpoints("asked by nobody")] == [False]
            assert [each.verified for each in await door.list_checkpoints("all at once")] == [False]

    async def test_what_was_left_behind_does_not_count_for_whether_a_checkpoint_is_verified(
        self, store: CheckpointStore
    ) -> None:
        owning = self.able(store, OwnsRuns)
        steps = [claimed("verified", "a"), claimed("failed", "b")]
        for sequence in (1, 2):
            await store.save(RUN, checkpoint(sequence, steps[:sequence]))
        await owning.release(RUN)
        lease = await owning.acquire(RUN)
        assert lease.latest is not None
        again = [*lease.latest.step_results[:1], *results("other", first=2)]
        await store.save(RUN, checkpoint(3, again, attempt=2))
        await store.save(RUN, checkpoint(4, [*again, claimed("failed", "c")], attempt=2))
        found = await self.reopen(store).list_checkpoints(RUN)
        assert [(each.sequence, each.verified) for each in found] == [(4, False), (3, True), (1, True)]
        if isinstance(store, DeletesCheckpoints):
            assert await store.delete_checkpoint(RUN, "c1")
            found = await self.reopen(store).list_checkpoints(RUN)
            assert [(each.sequence, each.verified) for each in found] == [(4, False), (3, True)]

    # --- forms of other versions -----------------------------------------------------------------------------------

    async def test_a_checkpoint_of_a_newer_form_is_refused_and_nothing_is_written(self, store: CheckpointStore) -> None:
        first = checkpoint(1)
        for sequence in (1, 2, 3):  # one that says only its place is written in another way than the first
            data = attrs.evolve(first, sequence=sequence, checkpoint_id=f"c{sequence}")
            with pytest.raises(UnsupportedSchemaError) as refused:
                await store.save(RUN, attrs.evolve(data, schema_version=SCHEMA_VERSION + 1))
            assert (refused.value.found, refused.value.supported) == (SCHEMA_VERSION + 1, SCHEMA_VERSION)
            await store.save(RUN, data)
        assert await self.shown(store) == [(3, "c3"), (2, "c2"), (1, "c1")]

    async def test_fields_that_nobody_knows_are_kept_wherever_they_stand_also_when_they_are_saved_again(
        self, store: CheckpointStore
    ) -> None:
        new: dict[str, Any] = {"later": {"a": [1, None, "ü"]}}
        error = StepError("ValueError", "no", extra=new)
        claim = {**CLAIM, **new, "captured": {"at": "2026-01-01T12:00:00+00:00", "signature": None, **new}}
        verdict = {"status": "verified", **new}
        said = {"pack": {"evidence": [claim], **new}, "verdicts": [verdict], "outcome": "verified", **new}
        steps = [
            StepResult("step-1", evidence=said, extra=new),
            StepResult("step-2", success=False, error=error, extra=new),
        ]
        data = checkpoint(1, steps, error=error, evidence=({"path": "step-1", **new},), extra=new)
        await store.save(RUN, data)
        for run in ("copy", "copy of the copy"):
            loaded = await self.reopen(store).load_latest(RUN if run == "copy" else "copy")
            assert loaded is not None
            assert loaded == data
            await store.save(run, loaded)
        loaded = await self.reopen(store).load_latest("copy of the copy")
        assert loaded is not None
        assert loaded == data
        assert loaded.error is not None
        assert loaded.error.extra == loaded.step_results[1].error.extra == new  # type: ignore[union-attr]
        assert loaded.step_results[0].evidence == said

    # --- ability: picking checkpoints --------------------------------------------------------------------------------

    async def _attempts_with_all_kinds(self, store: CheckpointStore) -> FiltersCheckpoints:
        if not filters_checkpoints(store):
            pytest.skip(f"{type(store).__name__} has not the ability FiltersCheckpoints")
        owning = self.able(store, OwnsRuns)
        steps = [*results("a"), claimed("verified", "b"), claimed("failed", "c"), claimed("verified", "d")]
        reasons = (Reason.STARTED, Reason.STEP, Reason.STEP, Reason.MANUAL)
        for sequence, reason in enumerate(reasons, 1):
            await store.save(RUN, checkpoint(sequence, steps[:sequence], reason=reason))
        await owning.release(RUN)
        lease = await owning.acquire(RUN)
        assert lease.latest is not None
        kept = list(lease.latest.step_results[:2])  # attempt 2 goes back behind the second checkpoint
        for sequence, reason in enumerate((Reason.STARTED, Reason.STEP, Reason.STEP, Reason.COMPLETED), 5):
            kept.append(StepResult(f"n{sequence}", attempt=2))
            await store.save(RUN, checkpoint(sequence, kept, attempt=2, reason=reason))
        await owning.release(RUN)
        return store

    def _selections(self) -> Iterator[dict[str, Any]]:
        """All that may be asked for together."""
        chosen = (None, 1, 2, 3), (None, Reason.STEP, "started", Reason.FAILED), (None, True, False), (None, 0, 1, 5, 9)
        for given in itertools.product(*chosen):
            yield dict(zip(("attempt", "reason", "verified", "limit"), given, strict=True))

    async def test_what_is_picked_are_those_of_the_runs_checkpoints_that_are_wanted(
        self, store: CheckpointStore
    ) -> None:
        await self._attempts_with_all_kinds(store)
        door: Any = self.reopen(store)
        every = await door.list_checkpoints(RUN)
        assert [each.sequence for each in every] == [8, 7, 6, 5, 2, 1]
        for given in self._selections():
            assert list(await door.list_checkpoints(RUN, **given)) == Selection(**given).of(every), given
        assert [each.sequence for each in await door.list_checkpoints(RUN, attempt=1, reason="step")] == [2]
        assert [each.sequence for each in await door.list_checkpoints(RUN, verified=True, limit=2)] == [8, 7]
        assert [each.verified for each in await door.list_checkpoints(RUN, attempt=1)] == [True, None]
        assert list(await door.list_checkpoints(RUN, verified=False)) == []
        assert list(await door.list_checkpoints("no-such-run", attempt=1)) == []

    async def test_the_newest_checkpoint_of_an_attempt_is_the_newest_of_it_that_counts(
        self, store: CheckpointStore
    ) -> None:
        await self._attempts_with_all_kinds(store)
        door: Any = self.reopen(store)
        for attempt, sequence in ((None, 8), (1, 2), (2, 8)):
            found = await door.load_latest(RUN, attempt=attempt)
            assert (found.sequence, len(found.step_results)) == (sequence, {8: 6, 2: 2}[sequence])
        assert await door.load_latest(RUN, attempt=3) is None
        assert await door.load_latest("no-such-run", attempt=1) is None

    async def test_what_cannot_be_picked_is_refused(self, store: CheckpointStore) -> None:
        door: Any = await self._attempts_with_all_kinds(store)
        wrong = {"attempt": (0, "1", True), "reason": ("stopped", 1), "verified": ("yes", 1), "limit": (-1, 1.5)}
        for name, values in wrong.items():
            for value in values:
                for run in (RUN, "no-such-run"):
                    with pytest.raises(SettingError) as refused:
                        await door.list_checkpoints(run, **{name: value})
                    assert refused.value.setting == name
        with pytest.raises(SettingError):
            await door.load_latest(RUN, attempt=0)

    # --- ability: deleting one checkpoint, again and again --------------------------------------------------------------

    async def test_an_owner_that_saves_and_deletes_in_turn_leaves_what_it_did_not_delete(
        self, store: CheckpointStore
    ) -> None:
        deleting, owning = self.able(store, DeletesCheckpoints), self.able(store, OwnsRuns)
        await store.save(RUN, checkpoint(1, checkpoint_id="old"))
        await owning.release(RUN)
        await owning.acquire(RUN)
        assert not await deleting.delete_checkpoint(RUN, "none")
        for sequence in range(2, 8):
            await store.save(RUN, checkpoint(sequence, attempt=2, checkpoint_id=f"even-{sequence % 2}-{sequence // 4}"))
            if sequence == 4:
                assert await deleting.delete_checkpoint(RUN, "even-0-0")
                assert not await deleting.delete_checkpoint(RUN, "even-0-0")
            if sequence == 6:
                assert await deleting.delete_checkpoint(RUN, "old")
                assert await deleting.delete_checkpoint(RUN, "even-0-1")
        assert await self.shown(store) == [(7, "even-1-1"), (5, "even-1-1"), (3, "even-1-0")]
        await owning.release(RUN)
        assert await deleting.delete_checkpoint(RUN, "even-1-1")
        assert await self.shown(store) == [(3, "even-1-0")]

    # --- ability: what attempts left behind ---------------------------------------------------------------------------

    async def test_what_an_attempt_left_behind_can_be_loaded_also_when_a_later_one_went_back(
        self, store: CheckpointStore
    ) -> None:
        owning, keeping = self.able(store, OwnsRuns), self.able(store, KeepsAttempts)
        old = results("a", "b", "c")
        for sequence in (1, 2, 3):
            await store.save(RUN, checkpoint(sequence, old[:sequence]))
        assert await keeping.load_attempt(RUN, 2) is None
        await owning.release(RUN)
        await owning.acquire(RUN)
        new = [*old[:1], *results("other", first=2)]
        await store.save(RUN, checkpoint(4, new, attempt=2))
        await owning.release(RUN)
        await owning.acquire(RUN)
        await store.save(RUN, checkpoint(5, results("anew"), attempt=3))
        await owning.release(RUN)
        keeping = self.able(self.reopen(store), KeepsAttempts)
        for attempt, sequence, held in ((1, 3, old), (2, 4, new), (3, 5, results("anew"))):
            found = await keeping.load_attempt(RUN, attempt)
            assert found is not None
            assert (found.sequence, found.attempt, list(found.step_results)) == (sequence, attempt, held)
        assert await keeping.load_attempt(RUN, 4) is None
        assert await keeping.load_attempt("no-such-run", 1) is None

    async def test_what_an_attempt_saved_is_listed_oldest_first_also_where_a_later_one_went_back(
        self, store: CheckpointStore
    ) -> None:
        listing = self.able(store, ListsAttempts)
        assert list(await listing.attempts(RUN)) == []
        await self._attempts_with_all_kinds(store)
        listing = self.able(self.reopen(store), ListsAttempts)
        assert list(await listing.attempts(RUN)) == [1, 2]
        first, second = await listing.list_attempt(RUN, 1), await listing.list_attempt(RUN, 2)
        assert [(each.sequence, each.steps, each.verified) for each in first] == [
            (1, 1, None),
            (2, 2, True),
            (3, 3, False),
            (4, 4, False),
        ]
        assert [each.sequence for each in second] == [5, 6, 7, 8]
        assert {each.attempt for each in first} == {1}
        assert {each.attempt for each in second} == {2}
        assert list(await listing.list_attempt(RUN, 3)) == []
        assert list(await listing.list_attempt("no-such-run", 1)) == []

    async def test_what_a_later_attempt_deleted_is_not_among_what_an_attempt_saved(
        self, store: CheckpointStore
    ) -> None:
        listing, keeping = self.able(store, ListsAttempts), self.able(store, KeepsAttempts)
        deleting, owning = self.able(store, DeletesCheckpoints), self.able(store, OwnsRuns)
        for sequence in (1, 2, 3):
            await store.save(RUN, checkpoint(sequence))
        await owning.release(RUN)
        await owning.acquire(RUN)
        await store.save(RUN, checkpoint(4, attempt=2))
        for name in ("c1", "c3"):
            assert await deleting.delete_checkpoint(RUN, name)
        await owning.release(RUN)
        await owning.acquire(RUN)
        await store.save(RUN, checkpoint(5, results("anew"), attempt=3))
        await owning.release(RUN)
        assert [each.sequence for each in await listing.list_attempt(RUN, 1)] == [2]
        found = await keeping.load_attempt(RUN, 1)
        assert found is not None
        assert found.sequence == 2

    async def test_attempts_may_leave_numbers_out_and_one_that_wrote_nothing_is_none(
        self, store: CheckpointStore
    ) -> None:
        listing, owning = self.able(store, ListsAttempts), self.able(store, OwnsRuns)
        await store.save(RUN, checkpoint(1, attempt=3))
        await owning.release(RUN)
        await store.save(RUN, checkpoint(2, attempt=1_000_000))
        await owning.release(RUN)
        await owning.acquire(RUN)
        assert list(await self.able(self.reopen(store), ListsAttempts).attempts(RUN)) == [3, 1_000_000]
        await owning.release(RUN)
        assert list(await listing.attempts(RUN)) == [3, 1_000_000]
        await store.clear(RUN)
        assert list(await listing.attempts(RUN)) == []

    async def test_runs_are_found_by_how_they_stand(self, store: CheckpointStore) -> None:
        owning = self.able(store, OwnsRuns)
        for name, reason in (
            ("done", Reason.COMPLETED),
            ("failed", Reason.FAILED),
            ("waits", Reason.SUSPENDED),
            ("died", Reason.STEP),
            ("live", Reason.STEP),
        ):
            await owning.acquire(name)
            await store.save(name, checkpoint(1, results(1), reason=reason))
            if name != "live":
                await owning.release(name)

        async def found(*statuses: Status) -> set[str]:
            return {info.workflow_id for info in await runs_of_status(store, statuses)}

        assert await found(Status.CRASHED) == {"died"}
        assert await found(Status.RUNNING) == {"live"}
        assert await found(Status.CRASHED, Status.SUSPENDED, Status.FAILED) == {"died", "waits", "failed"}
        assert await found(*Status) == {"done", "failed", "waits", "died", "live"}
        assert await found() == set()
        await owning.acquire("waits")
        await store.save("waits", checkpoint(2, results(1), reason=Reason.COMPLETED, attempt=2))
        await owning.release("waits")
        assert await found(Status.SUSPENDED) == set()

    async def test_what_was_begun_since_the_last_checkpoint_is_known_after_the_process_has_died(
        self, store: CheckpointStore
    ) -> None:
        owning, noting = self.able(store, OwnsRuns), self.able(store, NotesBeginnings)
        assert await noting.begun_steps(RUN) == (0, ())
        await owning.acquire(RUN)
        await store.save(RUN, checkpoint(1, []))
        for path in ("a", "b[1]", "ü"):
            noting.note_begun(RUN, path)
        assert await self.able(self.reopen(store), NotesBeginnings).begun_steps(RUN) == (1, ("a", "b[1]", "ü"))
        await store.save(RUN, checkpoint(2, results("a", "b")))
        noting.note_begun(RUN, "c")
        noting.note_begun("no-such-run", "d")
        await owning.release(RUN)
        lease = await owning.acquire(RUN)
        assert await noting.begun_steps(RUN) == (1, ("c",))
        noting.note_begun(RUN, "e")
        assert await noting.begun_steps(RUN) == (lease.attempt, ("e",))
        for number in range(5000):  # more than there is room for
            noting.note_begun(RUN, f"some-step-with-a-name[{number}]")
        attempt, begun = await noting.begun_steps(RUN)
        assert attempt == lease.attempt
        assert begun[:2] == ("e", "some-step-with-a-name[0]")
        assert len(set(begun)) == len(begun) > 1000

    # --- ability: values that two runs have ------------------------------------------------------------------------------

    async def test_a_large_value_that_two_runs_share_lives_as_long_as_one_of_them(self, store: CheckpointStore) -> None:
        sharing, owning = self.able(store, SharesValues), self.able(store, OwnsRuns)
        large, other = "ä" * 70_000, "o" * 70_000
        await store.save("source", checkpoint(1, results(large, other)))
        source = await store.load_latest("source")
        assert source is not None
        blobs = [result.held_output for result in source.step_results]
        assert all(isinstance(blob, Blob) for blob in blobs)
        sizes = {blob.digest: blob.size for blob in blobs}
        await sharing.share_values("source", "not owned", sizes)
        assert await store.load_latest("not owned") is None
        await owning.acquire("target")
        await sharing.share_values("no-such-run", "target", sizes)
        await sharing.share_values("source", "target", {**sizes, "0" * 64: 5, blobs[1].digest: 1})
        for _ in range(2):
            await sharing.share_values("source", "target", {blobs[0].digest: blobs[0].size})
        await store.save("target", source)
        await owning.release("source")
        await store.clear("source")
        found = await self.reopen(store).load_latest("target")
        assert found is not None
        assert [result.output for result in found.step_results] == [large, other]
        await owning.release("target")
        await store.clear("target")
        assert await self.reopen(store).load_latest("target") is None

    async def test_a_run_that_shared_values_and_was_given_up_unsaved_takes_nothing_with_it(
        self, store: CheckpointStore
    ) -> None:
        sharing, owning = self.able(store, SharesValues), self.able(store, OwnsRuns)
        await store.save("source", checkpoint(1, results("ä" * 70_000)))
        source = await store.load_latest("source")
        assert source is not None
        blob = source.step_results[0].held_output
        await owning.acquire("target")
        await sharing.share_values("source", "target", {blob.digest: blob.size})
        await owning.release("target")
        found = await self.reopen(store).load_latest("source")
        assert found is not None
        assert found.step_results[0].output == "ä" * 70_000
