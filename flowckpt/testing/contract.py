"""The conformance tests of the store port, as a class to subclass.

::

    class TestMyStore(CheckpointStoreContract):
        @pytest.fixture(autouse=True)
        def place(self, tmp_path):
            self.path = tmp_path / "store"

        def make_store(self):
            return MyStore(self.path)

        def reopen(self, store):
            return MyStore(self.path)

They run with pytest alone. What only some stores can do (owning runs, listing them, deleting
one checkpoint) is tested where the store has the method, and skipped elsewhere.
"""

# ruff: noqa: D102 - the name of a test is its docstring

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import UUID

import attrs
import pytest

from flowckpt.core.records import CheckpointData, PartialState, Reason, Status, StepError, StepResult
from flowckpt.errors import (
    CheckpointNotFoundError,
    EncodingError,
    FencedError,
    ForeignRecordError,
    RunExistsError,
    RunLockedError,
    SaveConflictError,
)
from flowckpt.stores.base import Ability, StoreBase
from flowckpt.testing.abilities import AbilityContract
from flowckpt.testing.store_under_test import (
    HOSTILE_IDS,
    NOON,
    RUN,
    StoreUnderTest,
    checkpoint,
    history_of,
    results,
    same,
)

__all__ = ["EXACT", "HOSTILE_IDS", "NOON", "RUN", "CheckpointStoreContract", "checkpoint", "results", "same"]

EXACT: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**200,
    1.5,
    -0.0,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "plain",
    "snowman ☃ 🚀 \u2028 \x00 \x7f",
    "a lone surrogate \udc80",
    b"",
    b"\x00\xff",
    (),
    (1, (2, [3, {"four": (5,)}])),
    [True, 1, 1.0],
    {"a": {"b": []}},
    {1: "int key", (1, 2): "tuple key", None: "none", False: "bool"},
    {"$tuple": [1]},
    set(),
    {1, "two", (3,)},
    frozenset({1}),
    1 - 2j,
    date(2026, 2, 28),
    time(1, 2, 3, 4),
    datetime(2026, 1, 1, 1, 2, 3, 4),  # noqa: DTZ001 - a naive time comes back naive
    NOON,
    datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30), "IST")),
    timedelta(days=-1, microseconds=1),
    Decimal("1.10"),
    Fraction(1, 3),
    UUID(int=1),
    Path("some/where"),
)
"""Values that must be restored with equal value and type."""


def _stable_id(value: object) -> str:
    """Return an id of a value that is the same in every test process."""
    text = ", ".join(sorted(map(repr, value))) if isinstance(value, set | frozenset) else repr(value)
    return text[:30].encode("ascii", "replace").decode()


class IndexContract(StoreUnderTest):
    """The index of results, which `.cache()` reads."""

    async def test_a_part_of_the_index_is_what_was_written_last_until_all_is_removed(self, store: StoreBase) -> None:
        self.needs(store, Ability.INDEX)
        large = bytes(range(256)) * 300
        assert await store.read_index("3f") is None
        await store.save(RUN, checkpoint(1, results("a")))
        for name, content in (("3f", b"{}"), ("runs", large), ("3f", b"[1]")):
            await store.write_index(name, content)
        await store.release(RUN)
        again = self.another(store)
        assert [await again.read_index(name) for name in ("3f", "runs", "40")] == [b"[1]", large, None]
        await again.clear_index()
        assert await store.read_index("runs") is None
        latest = await self.latest(store)
        assert latest.step_results == results("a")


class LiveContract(StoreUnderTest):
    """The live note of a run: its running steps."""

    async def test_a_live_note_is_what_its_owner_wrote_last_and_goes_with_the_run(self, store: StoreBase) -> None:
        self.needs(store, Ability.LIVE)
        large = bytes(range(256)) * 300
        assert await store.live_note(RUN) is None
        await store.acquire(RUN)
        await store.save(RUN, checkpoint(1, results("a")))
        assert await store.live_note(RUN) is None
        for content in (b'{"steps":["a"]}', large, b"[1]"):
            store.note_live(RUN, content)
            assert await self.another(store).live_note(RUN) == content
        await store.save(RUN, checkpoint(2, results("a", "b")))
        assert await store.live_note(RUN) == b"[1]"
        await store.release(RUN)
        store.note_live(RUN, b"of a former owner")
        assert await self.another(store).live_note(RUN) != b"of a former owner"
        await store.clear(RUN)
        await store.acquire(RUN)
        await store.save(RUN, checkpoint(1, results("c")))
        assert await store.live_note(RUN) is None

    async def test_live_notes_of_several_runs_are_written_together(self, store: StoreBase) -> None:
        self.needs(store, Ability.LIVE)
        for run in (RUN, "other"):
            await store.acquire(run)
            await store.save(run, checkpoint(1, results("a")))
        for content in (b"[1]", b"[2]"):
            store.note_live_all({RUN: content, "not-owned": b"[0]", "other": content * 2})
            notes = [await self.another(store).live_note(run) for run in (RUN, "other", "not-owned")]
            assert notes == [content, content * 2, None]
        store.note_live_all({})

    async def test_a_live_note_changes_nothing_of_the_record(self, store: StoreBase) -> None:
        self.needs(store, Ability.LIVE)
        await store.acquire(RUN)
        await store.save(RUN, checkpoint(1, results("a")))
        store.note_live(RUN, b'{"birth":')
        await store.save(RUN, checkpoint(2, results("a", "b")))
        await store.release(RUN)
        latest = await self.latest(self.another(store))
        assert latest.step_results == results("a", "b")
        assert await self.list_ids(store) == [(2, "c2"), (1, "c1")]
        if store.has(Ability.CHECK):
            assert [finding.severity for finding in await store.check(RUN)] == ["ok"]

    async def test_a_check_finds_what_flowckpt_never_writes(self, store: StoreBase) -> None:
        self.needs(store, Ability.CHECK, Ability.ATTEMPTS)
        await store.save("other", checkpoint())
        await store.save(RUN, checkpoint(metadata={"limits": {"retries": "many"}}))
        severities = {each.workflow_id: each.severity for each in await self.another(store).check()}
        assert severities == {"other": "ok", RUN: "corrupt"}
        (finding,) = await store.check(RUN)
        assert (finding.severity, "'limits'" in finding.detail) == ("corrupt", True), finding


class CheckpointStoreContract(AbilityContract, IndexContract, LiveContract):
    """The conformance tests of a store. Override `make_store`, and `reopen` if runs outlive the store object."""

    # --- what is not there -----------------------------------------------------------------------------------------

    async def test_a_run_that_does_not_exist_is_empty_and_no_error(self, store: StoreBase) -> None:
        assert await store.load_latest(RUN) is None
        assert list(await store.list_checkpoints(RUN)) == []
        await store.clear(RUN)

    async def test_a_missing_run_and_a_missing_checkpoint_are_not_found(self, store: StoreBase) -> None:
        with pytest.raises(CheckpointNotFoundError) as no_run:
            await store.load(RUN, "c1")
        assert no_run.value.workflow_id == RUN
        await store.save(RUN, checkpoint())
        with pytest.raises(CheckpointNotFoundError) as no_checkpoint:
            await store.load(RUN, "other")
        assert no_checkpoint.value.checkpoint_id == "other"

    # --- what was saved comes back ---------------------------------------------------------------------------------

    async def test_what_was_saved_is_loaded_equal_in_every_field(self, store: StoreBase) -> None:
        error = StepError("ValueError", "bad ☃", ("ValueError", "Exception"), "Traceback …", "step-2", 3)
        steps = [
            *results((1, 2)),
            StepResult(
                "step-2",
                "command",
                success=False,
                duration_ms=12.5,
                error=error,
                path="outer/step-2[2]",
                started_at=NOON,
                attempt=1,
                tries=3,
                function="shop:fetch",
                version="v2",
                location="shop.py:7",
                argument_values={"source": "orders ☃", "limit": 3},
            ),
        ]
        data = checkpoint(
            7,
            steps,
            checkpoint_id="späte Post",
            reason=Reason.FAILED,
            status=Status.SUSPENDED,
            inputs={"path": Path("orders.csv"), "limit": 10},
            fingerprint="f1",
            evidence=({"kind": "file_sha256", "path": Path("report.html")},),
            in_flight=("step-3", "step-4"),
            snapshot={"rows": {1: (2, 3)}},
            metadata={"tags": {"team": "ops"}},
            output={"n": Decimal(1)},
            error=error,
        )
        await store.save(RUN, data)
        for instance in (store, self.another(store)):
            assert await instance.load_latest(RUN) == data
            assert await instance.load(RUN, "späte Post") == data

    @pytest.mark.parametrize("value", EXACT, ids=_stable_id)
    async def test_a_value_comes_back_with_its_type(self, store: StoreBase, value: Any) -> None:
        data = checkpoint(1, results(value), inputs={"it": value}, snapshot=[value], output=(value,))
        await store.save(RUN, data)
        loaded = await self.latest(self.another(store))
        assert same(loaded.step_results[0].output, value)
        assert same(loaded.inputs, {"it": value})
        assert same(loaded.snapshot, [value])
        assert same(loaded.output, (value,))

    async def test_a_change_to_what_was_saved_or_loaded_never_reaches_the_store(self, store: StoreBase) -> None:
        output, inputs, snapshot = {"rows": [[1]]}, {"deep": [[1]]}, [{"a": [1]}]
        metadata, extra = {"tags": {"a": "b"}}, {"new": {"list": [1]}}
        steps = results(output)
        data = checkpoint(1, steps, inputs=inputs, snapshot=snapshot, metadata=metadata, extra=extra)
        await store.save(RUN, data)
        output["rows"][0].append(2)
        inputs["deep"][0].append(2)
        snapshot[0]["a"].append(2)
        metadata["tags"]["a"] = "changed"
        extra["new"]["list"].append(2)
        steps.clear()
        for _ in range(2):
            loaded = await self.latest(store)
            assert loaded.step_results[0].output == {"rows": [[1]]}
            assert loaded.inputs == {"deep": [[1]]}
            assert loaded.snapshot == [{"a": [1]}]
            assert loaded.metadata == {"tags": {"a": "b"}}
            assert loaded.extra == {"new": {"list": [1]}}
            loaded.step_results[0].output["rows"][0].append(3)
            loaded.inputs["deep"].append(3)
            loaded.snapshot[0]["a"].append(3)
            dict(loaded.metadata)["tags"]["a"] = "changed"
            dict(loaded.extra)["new"]["list"].append(3)

    async def test_large_values_come_back_and_stay_readable_at_every_later_checkpoint(self, store: StoreBase) -> None:
        large = {"text": "ä" * 70_000, "tuple": (1, b"x" * 70_000)}
        steps = results(large, "small", large)
        for sequence in (1, 2, 3):
            await store.save(RUN, checkpoint(sequence, steps[:sequence], snapshot=large, inputs=large))
        instance = self.another(store)
        for sequence in (1, 2, 3):
            loaded = await instance.load(RUN, f"c{sequence}")
            assert [result.output for result in loaded.step_results] == [large, "small", large][:sequence]
            assert (loaded.snapshot, loaded.inputs) == (large, large)

    async def test_fields_of_a_newer_version_are_kept(self, store: StoreBase) -> None:
        steps = [StepResult("step-1", extra={"colour": {"red": [1]}})]
        await store.save(RUN, checkpoint(1, steps, extra={"later": {"a": [1, None]}}))
        loaded = await self.latest(self.another(store))
        assert dict(loaded.extra) == {"later": {"a": [1, None]}}
        assert dict(loaded.step_results[0].extra) == {"colour": {"red": [1]}}

    async def test_what_changes_from_checkpoint_to_checkpoint_is_told_apart(self, store: StoreBase) -> None:
        names = ("etl", "etl", "other", "etl")
        for sequence, name in enumerate(names, 1):
            await store.save(
                RUN, checkpoint(sequence, workflow_name=name, inputs={"x": sequence // 2}, metadata={"n": sequence % 2})
            )
        for sequence, name in enumerate(names, 1):
            loaded = await self.another(store).load(RUN, f"c{sequence}")
            assert (loaded.workflow_name, loaded.inputs, loaded.metadata) == (
                name,
                {"x": sequence // 2},
                {"n": sequence % 2},
            )

    async def test_the_history_grows_and_each_checkpoint_shows_its_own_part(self, store: StoreBase) -> None:
        steps = results(*range(20))
        await self.save_each(store, steps)
        for sequence in (1, 7, 20):
            assert list((await self.another(store).load(RUN, f"c{sequence}")).step_results) == steps[:sequence]

    # --- the newest is the one with the highest sequence ----------------------------------------------------------

    @pytest.mark.parametrize(
        "times",
        [
            (NOON, NOON, NOON),
            (NOON, NOON - timedelta(days=1), NOON - timedelta(days=2)),
            (NOON, NOON.astimezone(timezone(timedelta(hours=-11))), NOON.astimezone(timezone(timedelta(hours=14)))),
            (datetime.fromisoformat("2026-01-01T12:00:00Z"), datetime.fromisoformat("2026-01-01T12:00:00+00:00"), NOON),
        ],
        ids=["equal times", "a clock going backwards", "other time zones", "Z and +00:00"],
    )
    async def test_the_order_is_that_of_the_sequence_whatever_the_clock_said(
        self, store: StoreBase, times: tuple[datetime, ...]
    ) -> None:
        for sequence, saved_at in zip((1, 5, 6), times, strict=True):
            await store.save(RUN, checkpoint(sequence, saved_at=saved_at))
        assert await self.list_ids(store) == [(6, "c6"), (5, "c5"), (1, "c1")]
        latest = await self.latest(store)
        assert latest.sequence == 6
        assert [ref.saved_at for ref in reversed(await store.list_checkpoints(RUN))] == list(times)

    async def test_an_id_saved_again_is_the_newest_and_the_one_that_is_loaded(self, store: StoreBase) -> None:
        steps = results("a", "b", "c")
        for sequence, name in enumerate(("first", "second", "first"), 1):
            await store.save(RUN, checkpoint(sequence, steps[:sequence], checkpoint_id=name))
        assert await self.list_ids(store) == [(3, "first"), (2, "second"), (1, "first")]
        assert len((await self.another(store).load(RUN, "first")).step_results) == 3
        latest = await self.latest(store)
        assert latest.checkpoint_id == "first"

    async def test_a_reference_says_what_the_checkpoint_is(self, store: StoreBase) -> None:
        await store.save(RUN, checkpoint(3, results(1, 2), reason=Reason.STEP))
        (ref,) = await self.another(store).list_checkpoints(RUN)
        assert (ref.workflow_id, ref.checkpoint_id, ref.sequence, ref.attempt) == (RUN, "c3", 3, 1)
        assert (ref.reason, ref.saved_at, ref.steps) == (Reason.STEP, NOON, 2)
        assert ref.size > 0

    async def test_what_steps_saved_of_themselves_comes_back_with_each_checkpoint(self, store: StoreBase) -> None:
        large = "large " * 50_000
        states = [
            {"a": PartialState({"at": (1, 2)}, "m:f", "1:abc", {"n": 1, "x": "sha256:0"}, "v2")},
            {"a": PartialState(large, "m:f"), "b/[0]": PartialState(None)},
            {},
            {"b/[0]": PartialState(large)},
        ]
        for sequence, partial in enumerate(states, 1):
            await store.save(RUN, checkpoint(sequence, partial=partial))
            latest = await self.latest(self.another(store))
            assert latest.partial == partial
        for sequence, partial in enumerate(states, 1):
            assert (await self.another(store).load(RUN, f"c{sequence}")).partial == partial

    # --- what is refused -------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("sequence", [2, 1, 0, -1])
    async def test_a_sequence_that_is_taken_or_passed_is_refused(self, store: StoreBase, sequence: int) -> None:
        await store.save(RUN, checkpoint(2))
        with pytest.raises(SaveConflictError) as refused:
            await store.save(RUN, checkpoint(sequence, checkpoint_id="again"))
        assert (refused.value.sequence, refused.value.last_sequence) == (sequence, 2)
        await store.save(RUN, checkpoint(3))
        assert await self.list_ids(store) == [(3, "c3"), (2, "c2")]

    @pytest.mark.parametrize(
        "broken",
        [
            {"step_results": results(1, object())},
            {"snapshot": {"deep": [object()]}},
            {"inputs": {"x": lambda: None}},
            {"output": {1, (2, (object(),))}},
            {"metadata": {"x": object()}},
            {"evidence": (object(),)},
            {"extra": {"x": object()}},
            {"extra": {"x": math.nan}},
            {"in_flight": ("\udc80",)},
            {"partial": {"a": PartialState({"deep": object()})}},
            {"workflow_name": "\udc80"},
        ],
        ids=", ".join,
    )
    async def test_what_cannot_be_recorded_is_refused_before_anything_is_written(
        self, store: StoreBase, broken: dict[str, Any]
    ) -> None:
        steps = results(1, "x" * 100_000)
        await store.save(RUN, checkpoint(1, steps[:1]))
        bad = attrs.evolve(checkpoint(2, steps), **broken)
        for _ in range(2):
            with pytest.raises(EncodingError):
                await store.save(RUN, bad)
        assert await self.list_ids(store) == [(1, "c1")]
        await store.save(RUN, checkpoint(2, steps))
        assert await self.list_ids(store) == [(2, "c2"), (1, "c1")]
        latest = await self.latest(self.another(store))
        assert list(latest.step_results) == steps

    async def test_a_first_save_that_is_refused_leaves_the_run_usable(self, store: StoreBase) -> None:
        with pytest.raises(EncodingError):
            await store.save(RUN, checkpoint(1, results(object())))
        assert await store.load_latest(RUN) is None
        await store.save(RUN, checkpoint(1))
        assert await self.list_ids(store) == [(1, "c1")]

    async def test_a_history_that_does_not_continue_the_stored_one_is_refused(self, store: StoreBase) -> None:
        await store.save(RUN, checkpoint(1, results("a", "b")))
        for other in (results("a"), results("a", "c"), results("a", "c", "d"), []):
            with pytest.raises(ForeignRecordError):
                await store.save(RUN, checkpoint(2, other))
        await store.save(RUN, checkpoint(2, results("a", "b", "c")))
        assert await self.list_ids(store) == [(2, "c2"), (1, "c1")]

    @pytest.mark.parametrize("attempt", [0, 1, 3])
    async def test_a_save_of_another_attempt_than_the_owners_is_fenced(self, store: StoreBase, attempt: int) -> None:
        if attempt > 2 and not store.has(Ability.OWNERS):
            return  # without owners a newer attempt is how a resume takes the run over
        await store.save(RUN, checkpoint(1, attempt=2))
        with pytest.raises(FencedError) as refused:
            await store.save(RUN, checkpoint(2, attempt=attempt))
        assert refused.value.attempt == attempt
        await store.save(RUN, checkpoint(2, attempt=2))
        assert [ref.attempt for ref in await store.list_checkpoints(RUN)] == [2, 2]

    # --- names -----------------------------------------------------------------------------------------------------

    async def test_every_run_id_is_a_run_of_its_own(self, store: StoreBase) -> None:
        for number, run in enumerate(HOSTILE_IDS):
            await store.save(run, checkpoint(1, results(number)))
        instance = self.another(store)
        for number, run in enumerate(HOSTILE_IDS):
            loaded = await self.latest(instance, run)
            assert loaded.step_results[0].output == number, run
        if store.has(Ability.LIST):
            assert sorted(info.workflow_id for info in await instance.list_runs()) == sorted(HOSTILE_IDS)
        await store.clear(HOSTILE_IDS[0])
        assert await instance.load_latest(HOSTILE_IDS[0]) is None
        for run in HOSTILE_IDS[1:]:
            assert await instance.load_latest(run) is not None

    @pytest.mark.parametrize("name", ["../x", "a/b", "", "x" * 300, "🚀", "a\x00b", '"quoted"', "line\nfeed"])
    async def test_every_checkpoint_id_is_found_again(self, store: StoreBase, name: str) -> None:
        await store.save(RUN, checkpoint(1, checkpoint_id="before"))
        await store.save(RUN, attrs.evolve(checkpoint(2), checkpoint_id=name))
        assert (await self.another(store).load(RUN, name)).sequence == 2
        assert await self.list_ids(store) == [(2, name), (1, "before")]

    # --- clearing --------------------------------------------------------------------------------------------------

    async def test_a_large_value_that_is_asked_for_behind_the_clear_is_there_or_said_to_be_cleared(
        self, store: StoreBase
    ) -> None:
        """Large values are read on access; if the record was removed before, it is not reported as damaged."""
        await store.save(RUN, checkpoint(1, results("ä" * 70_000)))
        loaded = await self.latest(self.another(store))
        await store.clear(RUN)
        try:
            assert loaded.step_results[0].output == "ä" * 70_000
        except CheckpointNotFoundError as error:
            assert "it was cleared" in error.message

    async def test_a_cleared_run_is_gone_and_begins_anew(self, store: StoreBase) -> None:
        await store.save(RUN, checkpoint(5, results("x" * 100_000)))
        await store.save("other", checkpoint(1))
        await store.clear(RUN)
        assert await self.another(store).load_latest(RUN) is None
        assert await self.list_ids(store) == []
        with pytest.raises(CheckpointNotFoundError):
            await store.load(RUN, "c5")
        if store.has(Ability.LIST):
            assert [info.workflow_id for info in await store.list_runs()] == ["other"]
        await store.clear(RUN)
        await store.save(RUN, checkpoint(1, results("new")))
        assert await self.list_ids(store) == [(1, "c1")]
        assert await self.list_ids(store, "other") == [(1, "c1")]

    # --- ability: deleting one checkpoint -------------------------------------------------------------------------

    async def test_a_deleted_checkpoint_is_gone_and_later_ones_keep_its_results(self, store: StoreBase) -> None:
        self.needs(store, Ability.DELETE)
        steps = results("a", "b", "c")
        for sequence, name in enumerate(("one", "two", "one", "three"), 1):
            await store.save(RUN, checkpoint(sequence, steps[: min(sequence, 3)], checkpoint_id=name))
        assert await store.delete_checkpoint(RUN, "one") is True
        assert await store.delete_checkpoint(RUN, "one") is False
        assert await store.delete_checkpoint(RUN, "never") is False
        assert await store.delete_checkpoint("no run", "one") is False
        assert await self.list_ids(store) == [(4, "three"), (2, "two")]
        with pytest.raises(CheckpointNotFoundError):
            await self.another(store).load(RUN, "one")
        latest = await self.latest(self.another(store))
        assert list(latest.step_results) == steps
        assert latest.workflow_name == "etl"

    async def test_after_the_newest_was_deleted_the_one_before_is_the_newest(self, store: StoreBase) -> None:
        self.needs(store, Ability.DELETE)
        for sequence in (1, 2):
            await store.save(RUN, checkpoint(sequence, metadata={"n": sequence}))
        assert await store.delete_checkpoint(RUN, "c2")
        latest = await self.latest(self.another(store))
        assert (latest.sequence, latest.metadata) == (1, {"n": 1})
        with pytest.raises(SaveConflictError):
            await store.save(RUN, checkpoint(2))
        await store.save(RUN, checkpoint(3))
        assert await self.list_ids(store) == [(3, "c3"), (1, "c1")]

    async def test_a_deletion_stands_when_the_run_goes_back_behind_it(self, store: StoreBase) -> None:
        self.needs(store, Ability.DELETE, Ability.OWNERS)
        steps = results("a", "b", "c")
        await self.save_each(store, steps)
        await store.delete_checkpoint(RUN, "c1")
        await store.release(RUN)
        for last in (3, 4):
            lease = await store.acquire(RUN)
            assert lease.last_sequence == last
            await store.save(RUN, checkpoint(last + 1, steps[:2], attempt=lease.attempt))
            await store.release(RUN)
        assert await self.list_ids(store) == [(5, "c5"), (4, "c4"), (2, "c2")]

    async def test_a_run_stays_listed_when_one_of_its_checkpoints_was_deleted(self, store: StoreBase) -> None:
        self.needs(store, Ability.DELETE, Ability.LIST, Ability.OWNERS)
        await store.save(RUN, checkpoint(1, metadata={"tags": {"a": "b"}}))
        await store.save(RUN, checkpoint(2, results(1), reason=Reason.COMPLETED))
        await store.release(RUN)
        await store.delete_checkpoint(RUN, "c2")
        (info,) = await store.list_runs()
        assert (info.workflow_id, info.workflow_name, info.steps, info.tags) == (RUN, "etl", 0, {"a": "b"})
        assert info.status is Status.CRASHED
        await store.delete_checkpoint(RUN, "c1")
        assert list(await store.list_runs()) == []

    async def test_an_owner_may_delete_before_it_saves(self, store: StoreBase) -> None:
        self.needs(store, Ability.DELETE, Ability.OWNERS)
        steps = results("a", "b", "c")
        await self.save_each(store, steps)
        assert await store.delete_checkpoint(RUN, "c3")
        lease = await self.resume(store)
        assert await store.delete_checkpoint(RUN, "c1")
        history = [*history_of(lease), *results("new", first=3)]
        await store.save(RUN, checkpoint(4, history, attempt=lease.attempt))
        assert await self.list_ids(store) == [(4, "c4"), (2, "c2")]

    async def test_what_a_fenced_writer_left_behind_cannot_be_deleted_nor_hide_what_comes(
        self, store: StoreBase
    ) -> None:
        self.needs(store, Ability.OWNERS)
        await store.acquire(RUN)
        await store.save(RUN, checkpoint(1))
        new_owner = self.another(store)
        lease = await new_owner.acquire(RUN, take_over=True)
        with pytest.raises(FencedError):
            await store.save(RUN, checkpoint(2, checkpoint_id="x"))
        assert await new_owner.delete_checkpoint(RUN, "x") is False
        await new_owner.save(RUN, checkpoint(2, attempt=lease.attempt, checkpoint_id="kept"))
        assert await self.list_ids(store) == [(2, "kept"), (1, "c1")]

    # --- ability: listing runs ------------------------------------------------------------------------------------

    async def test_runs_are_listed_with_where_they_stand(self, store: StoreBase) -> None:
        self.needs(store, Ability.LIST)
        assert list(await store.list_runs()) == []
        await store.save("one", checkpoint(1, metadata={"tags": {"team": "ops"}}))
        await store.save(
            "one", checkpoint(2, results(1, 2), reason=Reason.COMPLETED, metadata={"tags": {"team": "ops"}})
        )
        await store.save("two", checkpoint(1, results("x" * 100_000), workflow_name="other"))
        runs = {info.workflow_id: info for info in await store.list_runs()}
        assert sorted(runs) == ["one", "two"]
        one = runs["one"]
        assert (one.workflow_name, one.status, one.attempt, one.steps) == ("etl", Status.COMPLETED, 1, 2)
        assert (one.updated_at, one.tags) == (NOON, {"team": "ops"})
        assert runs["two"].workflow_name == "other"

    async def test_a_running_run_without_an_owner_has_crashed(self, store: StoreBase) -> None:
        self.needs(store, Ability.LIST, Ability.OWNERS)
        await store.acquire(RUN)
        assert list(await store.list_runs()) == []
        await store.save(RUN, checkpoint())
        (info,) = await store.list_runs()
        assert info.status is Status.RUNNING
        assert info.owner is not None
        await store.release(RUN)
        (info,) = await store.list_runs()
        assert info.status is Status.CRASHED
        assert info.owner is None

    # --- ability: owning runs ------------------------------------------------------------------------------------

    async def test_a_new_run_is_acquired_under_attempt_one(self, store: StoreBase) -> None:
        self.needs(store, Ability.OWNERS)
        lease = await store.acquire(RUN)
        assert (lease.workflow_id, lease.attempt, lease.latest, lease.last_sequence) == (RUN, 1, None, 0)
        owner = await store.owner(RUN)
        assert owner is not None
        assert str(owner.pid) in str(owner)

    async def test_a_run_that_is_owned_cannot_be_acquired_twice(self, store: StoreBase) -> None:
        self.needs(store, Ability.OWNERS)
        await store.acquire(RUN)
        for instance in (store, self.another(store)):
            with pytest.raises(RunLockedError) as refused:
                await instance.acquire(RUN)
            assert refused.value.workflow_id == RUN
            assert refused.value.holder
        await store.save(RUN, checkpoint())
        assert await self.list_ids(store) == [(1, "c1")]

    async def test_a_resumed_run_goes_on_under_the_next_attempt(self, store: StoreBase) -> None:
        self.needs(store, Ability.OWNERS)
        steps = results("a", "b")
        await store.save(RUN, checkpoint(1, steps[:1]))
        await store.release(RUN)
        assert await store.owner(RUN) is None
        instance = self.another(store)
        lease = await instance.acquire(RUN)
        assert (lease.attempt, lease.last_sequence) == (2, 1)
        assert history_of(lease) == steps[:1]
        await instance.save(RUN, checkpoint(2, steps, attempt=2))
        assert [ref.attempt for ref in await self.another(store).list_checkpoints(RUN)] == [2, 1]

    async def test_a_writer_that_lost_its_run_is_fenced_for_good(self, store: StoreBase) -> None:
        self.needs(store, Ability.OWNERS)
        await store.acquire(RUN)
        await store.save(RUN, checkpoint(1))
        new_owner = self.another(store)
        lease = await new_owner.acquire(RUN, take_over=True)
        assert lease.attempt == 2
        for sequence in (2, 3):
            with pytest.raises(FencedError) as refused:
                await store.save(RUN, checkpoint(sequence, checkpoint_id="from the old owner"))
            assert refused.value.attempt == 1
        await new_owner.save(RUN, checkpoint(2, attempt=2, checkpoint_id="from the new owner"))
        assert await self.list_ids(store) == [(2, "from the new owner"), (1, "c1")]

    async def test_a_released_claim_under_which_nothing_was_saved_leaves_no_trace(self, store: StoreBase) -> None:
        self.needs(store, Ability.OWNERS)
        for _ in range(2):
            assert (await store.acquire(RUN)).attempt == 1
            await store.release(RUN)
        assert await store.owner(RUN) is None
        assert await self.another(store).load_latest(RUN) is None
        if store.has(Ability.LIST):
            assert list(await store.list_runs()) == []
        await store.save(RUN, checkpoint())
        await store.release(RUN)
        for _ in range(2):
            assert (await store.acquire(RUN)).attempt == 2
            await store.release(RUN)
        await store.release(RUN)
        await store.release("never acquired")

    async def test_an_owner_releases_its_own_lease_and_never_that_of_a_new_owner(self, store: StoreBase) -> None:
        self.needs(store, Ability.OWNERS)
        first = await store.acquire(RUN)
        await store.save(RUN, checkpoint(1))
        second = await store.acquire(RUN, take_over=True)
        assert first.token
        assert second.token
        assert first.token != second.token
        for sequence in (2, 3):
            await store.release(RUN, token=first.token)
            assert await store.owner(RUN) is not None
            await store.save(RUN, checkpoint(sequence, attempt=second.attempt))
        await store.release(RUN, token=second.token)
        assert await store.owner(RUN) is None
        third = await store.acquire(RUN)
        await store.release(RUN, token=second.token)
        await store.save(RUN, checkpoint(4, attempt=third.attempt))
        assert await self.list_ids(store) == [(4, "c4"), (3, "c3"), (2, "c2"), (1, "c1")]

    async def test_a_writer_that_gave_the_run_up_is_fenced(self, store: StoreBase) -> None:
        self.needs(store, Ability.OWNERS)
        await store.save(RUN, checkpoint(1))
        await store.release(RUN)
        with pytest.raises(FencedError):
            await store.save(RUN, checkpoint(2))
        assert await self.list_ids(store) == [(1, "c1")]

    async def test_an_old_owner_stays_fenced_when_the_one_between_gave_up_unwritten(self, store: StoreBase) -> None:
        self.needs(store, Ability.OWNERS)
        await store.acquire(RUN)
        await store.save(RUN, checkpoint(1))
        between, last = self.another(store), self.another(store)
        await between.acquire(RUN, take_over=True)
        lease = await last.acquire(RUN, take_over=True)
        await last.save(RUN, checkpoint(2, attempt=lease.attempt, checkpoint_id="kept"))
        if between is not last:
            await between.release(RUN)
        with pytest.raises(FencedError):
            await store.save(RUN, checkpoint(3, checkpoint_id="lost"))
        assert await self.list_ids(store) == [(2, "kept"), (1, "c1")]

    async def test_a_claim_that_skips_numbers_fences_all_below(self, store: StoreBase) -> None:
        self.needs(store, Ability.OWNERS)
        await store.save(RUN, checkpoint(1, attempt=1))
        await store.release(RUN)
        await store.save(RUN, checkpoint(2, attempt=1_000_000_000))
        await store.release(RUN)
        assert (await store.acquire(RUN)).attempt == 1_000_000_001
        assert await self.list_ids(store) == [(2, "c2"), (1, "c1")]
        with pytest.raises(FencedError):
            await store.save(RUN, checkpoint(3, attempt=2))

    async def test_an_owner_may_clear_its_run_and_nobody_else_may(self, store: StoreBase) -> None:
        self.needs(store, Ability.OWNERS)
        await store.acquire(RUN)
        await store.save(RUN, checkpoint(1))
        instance = self.another(store)
        if instance is not store:
            with pytest.raises(RunLockedError):
                await instance.clear(RUN)
            assert await self.list_ids(store) == [(1, "c1")]
        await store.clear(RUN)
        assert await self.list_ids(store) == []
        assert await store.owner(RUN) is None
        assert (await store.acquire(RUN)).attempt == 1

    # --- going back -------------------------------------------------------------------------------------------------

    async def test_after_going_back_the_later_checkpoints_no_longer_belong_to_the_run(self, store: StoreBase) -> None:
        self.needs(store, Ability.OWNERS)
        old = results("a", "b", "c", "d")
        await self.save_each(store, old)
        await store.release(RUN)
        store = self.another(store)
        lease = await store.acquire(RUN)
        assert await self.list_ids(store) == [(4, "c4"), (3, "c3"), (2, "c2"), (1, "c1")]
        new = [*old[:2], *results("other", first=3)]
        with pytest.raises(SaveConflictError):
            await store.save(RUN, checkpoint(3, new, attempt=lease.attempt))
        await store.save(RUN, checkpoint(5, new, attempt=lease.attempt))
        assert await self.list_ids(store) == [(5, "c5"), (2, "c2"), (1, "c1")]
        with pytest.raises(CheckpointNotFoundError):
            await self.another(store).load(RUN, "c4")
        latest = await self.latest(self.another(store))
        assert list(latest.step_results) == new
        lease = await self.resume(store)
        assert (lease.attempt, lease.last_sequence) == (3, 5)
        await store.save(RUN, checkpoint(6, results("quite", "new"), attempt=3))
        assert await self.list_ids(store) == [(6, "c6")]
        await store.release(RUN)
        assert (await store.acquire(RUN)).last_sequence == 6

    # --- the checkpoints of each attempt -----------------------------------------------------------------------------------

    async def test_all_that_an_attempt_saved_can_be_read_also_when_a_later_one_went_back(
        self, store: StoreBase
    ) -> None:
        self.needs(store, Ability.OWNERS, Ability.ATTEMPTS)
        old = results("a", "b" * 70_000, "c")
        await store.save(RUN, checkpoint(1, []))
        for sequence in (2, 3, 4):  # ids that come again
            await store.save(RUN, checkpoint(sequence, old[: sequence - 1], checkpoint_id="again"))
        await self.resume(store)
        new = [*old[:1], *results("other", first=2)]
        await store.save(RUN, checkpoint(5, new, attempt=2, snapshot={"at": (5,)}))
        await store.release(RUN)
        store = self.another(store)
        first, second = await store.read_attempt(RUN, 1), await store.read_attempt(RUN, 2)
        assert [(data.sequence, list(data.step_results)) for data in first] == [
            *((sequence, old[: sequence - 1]) for sequence in (1, 2, 3, 4))
        ]
        assert [(data.sequence, list(data.step_results), data.snapshot) for data in second] == [(5, new, {"at": (5,)})]
        assert list(await store.read_attempt(RUN, 3)) == list(await store.read_attempt("no-such-run", 1)) == []

    async def test_a_whole_run_is_taken_in_at_once_or_not_at_all(self, store: StoreBase) -> None:
        self.needs(store, Ability.RECEIVE, Ability.ATTEMPTS)
        old = results("a", "b" * 70_000)
        new = [*old[:1], *results("other", first=2)]
        run = [
            checkpoint(1, []),
            checkpoint(2, old[:1]),
            checkpoint(3, old, checkpoint_id="c2"),
            checkpoint(7, new, attempt=3, output=(1,), reason=Reason.COMPLETED),
        ]

        class StoppedError(Exception):
            pass

        def stopped() -> Iterator[CheckpointData]:
            yield from run[:3]
            raise StoppedError

        with pytest.raises(StoppedError):
            await store.receive_run(RUN, stopped)
        assert await self.another(store).load_latest(RUN) is None
        if store.has(Ability.LIST):
            assert list(await store.list_runs()) == []
        await store.receive_run(RUN, lambda: iter(run))
        again = self.another(store)
        received = [data for attempt in (1, 2, 3) for data in await again.read_attempt(RUN, attempt)]
        assert [(d.sequence, d.checkpoint_id, d.attempt, list(d.step_results), d.saved_at) for d in received] == [
            (d.sequence, d.checkpoint_id, d.attempt, list(d.step_results), d.saved_at) for d in run
        ]
        latest = await self.latest(again)
        assert (latest.sequence, latest.output, latest.status) == (7, (1,), Status.COMPLETED)
        with pytest.raises(RunExistsError):
            await store.receive_run(RUN, lambda: iter(run))
        if again.has(Ability.OWNERS):
            assert await again.owner(RUN) is None
            lease = await again.acquire(RUN)
            assert (lease.attempt, lease.last_sequence) == (4, 7)
            await again.save(RUN, checkpoint(8, [*new, *results("on", first=3)], attempt=4))
            await again.release(RUN)

    async def test_a_run_that_another_has_taken_and_not_begun_is_not_taken_in(self, store: StoreBase) -> None:
        self.needs(store, Ability.OWNERS, Ability.RECEIVE)
        await store.acquire(RUN)
        with pytest.raises(RunLockedError):
            await store.receive_run(RUN, lambda: iter([checkpoint(1, [])]))
        await store.release(RUN)
        await store.receive_run(RUN, lambda: iter([checkpoint(1, [])]))
        await store.clear(RUN)
        await store.receive_run(RUN, lambda: iter([checkpoint(1, results("a"))]))
        latest = await self.latest(self.another(store))
        assert list(latest.step_results) == results("a")
