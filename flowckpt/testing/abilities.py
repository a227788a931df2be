"""The conformance tests of abilities beyond the five methods, and of references to checkpoints.

They are part of `flowckpt.testing.contract.CheckpointStoreContract`. Tests of abilities that a store lacks are skipped.
"""

# ruff: noqa: D102 - the name of a test is its docstring

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import attrs
import pytest

from flowckpt.core.codec.blob import Blob
from flowckpt.core.records import CheckpointData, Reason, Signal, Status, StepError, StepResult, Wait, WaitKind
from flowckpt.core.records.checkpoint import SCHEMA_VERSION
from flowckpt.core.records.listing import RunFilter, Selection
from flowckpt.core.records.statistics import (
    ClaimStatistics,
    DayStatistics,
    FailureStatistics,
    FigureStatistics,
    StepStatistics,
)
from flowckpt.errors import (
    CheckpointNotFoundError,
    EncodingError,
    FencedError,
    RunExistsError,
    RunLockedError,
    SettingError,
    UnsupportedSchemaError,
)
from flowckpt.stores.base import Ability, StoreBase
from flowckpt.stores.queries import runs_of_status, store_statistics, sum_up_runs
from flowckpt.testing.generations import GenerationContract
from flowckpt.testing.repair import RepairContract
from flowckpt.testing.store_under_test import (
    CLAIM,
    HOSTILE_IDS,
    NOON,
    RUN,
    StoreUnderTest,
    checkpoint,
    claimed,
    history_of,
    results,
)

# The conformance tests of cases in which stores once differed; part of `flowckpt.testing.contract.CheckpointStoreContract`.


class AgreementContract(StoreUnderTest):
    """The state of a run after takeovers, removals and refusals."""

    def make_two_owners(self, store: StoreBase) -> tuple[Any, Any]:
        """Return two instances of the store with different owners; skip the test if the store has one owner per process."""
        self.needs(store, Ability.OWNERS)
        second = self.another(store)
        if store is second:
            pytest.skip(f"{type(store).__name__} has one owner per process")
        return store, second

    async def test_a_run_was_started_when_its_first_checkpoint_was_saved(self, store: StoreBase) -> None:
        self.needs(store, Ability.LIST, Ability.OWNERS)
        moments = [NOON + timedelta(seconds=number) for number in range(4)]
        await store.acquire("claimed first, begun last")
        await store.save(RUN, checkpoint(1, results("a"), saved_at=moments[1]))
        await store.save("claimed first, begun last", checkpoint(1, saved_at=moments[3]))
        assert [info.workflow_id for info in await store.list_runs()] == ["claimed first, begun last", RUN]
        await store.release(RUN)
        for attempt in (2, 3):  # each continues from before the first result
            await store.acquire(RUN)
            data = checkpoint(attempt, results(f"other-{attempt}"), attempt=attempt, saved_at=moments[2])
            await store.save(RUN, data)
            await store.release(RUN)
        info = await self.described(self.another(store))
        assert (info.started_at, info.updated_at) == (moments[1], moments[2])

    async def test_a_run_whose_checkpoints_were_all_removed_takes_messages(self, store: StoreBase) -> None:
        self.needs(store, Ability.DELETE, Ability.SIGNALS)
        await store.save(RUN, checkpoint(1))
        assert await store.delete_checkpoint(RUN, "c1")
        message = Signal("one", "go", NOON, None, "ann")
        assert await store.send_signal(RUN, message)
        assert list(await self.another(store).signals(RUN)) == [message]

    async def test_a_new_owner_that_saved_and_released_the_run_leaves_it_to_anybody(self, store: StoreBase) -> None:
        old_owner, new_owner = self.make_two_owners(store)
        await old_owner.acquire(RUN)
        await old_owner.save(RUN, checkpoint(1))
        await new_owner.acquire(RUN, take_over=True)
        assert await old_owner.owner(RUN) is not None
        await new_owner.save(RUN, checkpoint(2, attempt=2))
        await new_owner.release(RUN)
        assert await old_owner.owner(RUN) is await new_owner.owner(RUN) is None
        lease = await self.another(store).acquire(RUN)
        assert (lease.attempt, lease.last_sequence) == (3, 2)
        with pytest.raises(RunLockedError):
            await new_owner.acquire(RUN)
        with pytest.raises(FencedError):
            await old_owner.save(RUN, checkpoint(2))

    async def test_what_a_fenced_owner_was_refused_is_nothing_that_its_attempt_left_behind(
        self, store: StoreBase
    ) -> None:
        old_owner, new_owner = self.make_two_owners(store)
        self.needs(store, Ability.ATTEMPTS)
        await old_owner.acquire(RUN)
        await self.save_each(old_owner, results("a", "b"))
        lease = await new_owner.acquire(RUN, take_over=True)
        await new_owner.save(RUN, checkpoint(3, [*history_of(lease)[:1], *results("c", first=2)], attempt=2))
        with pytest.raises(FencedError):
            await old_owner.save(RUN, checkpoint(3, results("a", "b", "refused")))
        assert [each.sequence for each in await store.read_attempt(RUN, 1)] == [1, 2]
        assert [each.sequence for each in await store.list_attempt(RUN, 1)] == [1, 2]
        last = await store.load_attempt(RUN, 1)
        assert last is not None
        assert last.sequence == 2

    async def test_an_attempt_whose_every_save_was_refused_is_none(self, store: StoreBase) -> None:
        old_owner, new_owner = self.make_two_owners(store)
        self.needs(store, Ability.ATTEMPTS)
        await old_owner.acquire(RUN)
        await new_owner.acquire(RUN, take_over=True)
        await new_owner.save(RUN, checkpoint(1, attempt=2, saved_at=NOON + timedelta(seconds=9)))
        with pytest.raises(FencedError):
            await old_owner.save(RUN, checkpoint(1))
        assert list(await store.attempts(RUN)) == [2]
        assert list(await store.list_attempt(RUN, 1)) == []
        if new_owner.has(Ability.LIST):
            info = await self.described(new_owner)
            assert info.started_at == NOON + timedelta(seconds=9)

    async def test_an_attempt_that_only_removed_something_has_written(self, store: StoreBase) -> None:
        self.needs(store, Ability.DELETE, Ability.OWNERS, Ability.ATTEMPTS)
        for sequence in (1, 2):
            await store.save(RUN, checkpoint(sequence))
        await store.release(RUN)
        assert await store.delete_checkpoint(RUN, "c1")
        assert list(await store.attempts(RUN)) == [1, 2]
        assert list(await store.list_attempt(RUN, 2)) == []

    async def test_what_was_removed_stays_removed_where_a_later_attempt_goes_back_behind_it(
        self, store: StoreBase
    ) -> None:
        self.needs(store, Ability.DELETE, Ability.OWNERS, Ability.ATTEMPTS)
        steps = results("a", "b", "c")
        await self.save_each(store, steps)
        await store.release(RUN)
        assert await store.delete_checkpoint(RUN, "c2")  # by an attempt of its own
        await store.acquire(RUN)
        await store.save(RUN, checkpoint(4, results("anew"), attempt=3))
        assert [each.sequence for each in await store.list_attempt(RUN, 1)] == [1, 3]

    async def test_what_was_removed_stays_removed_and_nothing_else_goes_where_the_run_is_taken_over(
        self, store: StoreBase
    ) -> None:
        self.needs(store, Ability.DELETE, Ability.OWNERS)
        new_owner = self.another(store)
        steps = results("a", "b", "c")
        await self.save_each(store, steps)
        for name in ("c1", "c3"):  # the newest, too
            assert await store.delete_checkpoint(RUN, name)
        lease = await new_owner.acquire(RUN, take_over=True)
        assert lease.latest is not None
        assert lease.latest.checkpoint_id == "c2"
        assert lease.last_sequence == 3
        assert await self.list_ids(new_owner) == [(2, "c2")]
        await new_owner.save(RUN, checkpoint(4, history_of(lease), attempt=2))
        assert await self.list_ids(self.another(store)) == [(4, "c4"), (2, "c2")]
        assert [result.output for result in (await store.load(RUN, "c2")).step_results] == ["a", "b"]
        with pytest.raises(FencedError):
            await store.save(RUN, checkpoint(5, steps))
        assert not await store.delete_checkpoint(RUN, "c1")

    async def test_a_removal_that_is_refused_is_never_taken_for_one_of_nothing(self, store: StoreBase) -> None:
        old_owner, new_owner = self.make_two_owners(store)
        self.needs(store, Ability.DELETE)
        steps = results("a", "b")
        await self.save_each(store, steps)
        lease = await new_owner.acquire(RUN, take_over=True)
        for _ in range(2):  # asked again, it is refused again
            with pytest.raises(FencedError):
                await store.delete_checkpoint(RUN, "c1")
        await new_owner.save(RUN, checkpoint(3, history_of(lease), attempt=2))
        with pytest.raises(FencedError):
            await store.delete_checkpoint(RUN, "c1")
        assert await self.list_ids(old_owner) == [(3, "c3"), (2, "c2"), (1, "c1")]
        assert await new_owner.delete_checkpoint(RUN, "c1")
        assert not await store.delete_checkpoint(RUN, "c1")  # now there is none

    async def test_a_run_that_cannot_be_taken_in_is_refused_before_its_source_is_asked(self, store: StoreBase) -> None:
        self.needs(store, Ability.RECEIVE, Ability.OWNERS)

        def source() -> Iterator[CheckpointData]:
            raise AssertionError("it was asked")

        await store.acquire(RUN)
        with pytest.raises(RunLockedError):
            await store.receive_run(RUN, source)
        await store.save(RUN, checkpoint(1))
        with pytest.raises(RunExistsError):  # it is owned, too
            await store.receive_run(RUN, source)

    async def test_checkpoints_go_with_the_next_save_and_never_the_one_that_is_saved(self, store: StoreBase) -> None:
        self.needs(store, Ability.EVICT)
        for sequence in (1, 2, 3):
            await store.save(RUN, checkpoint(sequence))
        store.evict_with_next_save(RUN, [1, 3, 4])
        assert await self.list_ids(store) == [(3, "c3"), (2, "c2"), (1, "c1")]
        await store.save(RUN, checkpoint(4))
        assert await self.list_ids(store) == [(4, "c4"), (2, "c2")]
        assert await store.delete_sequences(RUN, [2, 7]) == 1
        assert await self.list_ids(store) == [(4, "c4")]

    async def test_a_checkpoint_that_was_named_to_go_with_itself_stays_removed_once_it_is(
        self, store: StoreBase
    ) -> None:
        self.needs(store, Ability.EVICT, Ability.OWNERS)
        steps = results("a", "b", "c")
        await store.save(RUN, checkpoint(1, steps[:1]))
        store.evict_with_next_save(RUN, [2])
        await store.save(RUN, checkpoint(2, steps[:2]))  # it is never among them
        await store.save(RUN, checkpoint(3, steps))
        assert await store.delete_sequences(RUN, [2]) == 1
        await self.resume(store)
        await store.save(RUN, checkpoint(4, steps[:2], attempt=2))  # continues from before the removal
        assert await self.list_ids(self.another(store)) == [(4, "c4"), (1, "c1")]


# The conformance tests of statistics; part of `flowckpt.testing.contract.CheckpointStoreContract`.


class FiguresContract(StoreUnderTest):
    """The statistics of a store."""

    async def test_the_figures_are_those_of_all_that_happened_and_of_one_run_where_it_is_named(
        self, store: StoreBase
    ) -> None:
        self.needs(store, Ability.LIST, Ability.OWNERS)
        empty = await store.figures()
        assert (empty.runs, empty.checkpoints, empty.size, empty.days, empty.slowest_steps) == (0, 0, 0, (), ())
        assert empty.mean_run_size is empty.all_claims.success_rate is None
        for run in ("one", "two"):
            await self._save_figures(store, run)
        await store.acquire("alive")
        await store.save("alive", checkpoint(1, workflow_name="other", saved_at=NOON + timedelta(days=2)))
        figures = await store_statistics(self.another(store), limit=2)
        assert dict(figures.statuses) == {Status.COMPLETED: 2, Status.RUNNING: 1}
        assert (figures.runs, figures.checkpoints, figures.steps) == (3, 11, 10)
        assert figures.stored is None or figures.stored > 0
        day = NOON.date()
        assert [attrs.evolve(each, runs=0, size=0) for each in figures.days if each.checkpoints] == [
            DayStatistics(day, 0, 8, 0),
            DayStatistics(day + timedelta(days=1), 0, 2, 0),
            DayStatistics(day + timedelta(days=2), 0, 1, 0),
        ]
        assert sum(each.runs for each in figures.days) == 3
        assert sum(each.size for each in figures.days) == figures.size > 0
        assert [(run.workflow_id, run.checkpoints) for run in figures.largest_runs] == [("one", 5), ("two", 5)]
        assert [each.workflow_id for each in figures.largest_checkpoints] == ["one", "two"]
        assert figures.claims == (ClaimStatistics("file_sha256", 4, 2, 4),)
        assert figures.all_claims.success_rate == 0.4
        assert figures.figures == (
            FigureStatistics("cost", 4, 0.1 + 0.1 + 0.2 + 0.2, 0.2),
            FigureStatistics("rows", 2, 2**53 * 2 + 2, 2**53 + 1),
        )
        assert figures.failures == (FailureStatistics("ValueError", 2, 2),)
        assert figures.slowest_steps == (
            StepStatistics("etl", "slow", 2, 90.0, 90.0),
            StepStatistics("etl", "a", 6, 20.0, 60.0),
        )
        one = await store.figures("one", limit=5)
        assert (one.runs, one.checkpoints, one.steps) == (1, 5, 5)
        assert one.claims == (ClaimStatistics("file_sha256", 2, 1, 2),)
        assert [step.path for step in one.slowest_steps] == ["slow", "a", "b"]
        for each in (None, "one"):  # the store's own way and the one by its lists
            assert await store.figures(each, limit=3) == await sum_up_runs(store, each, limit=3)
        with pytest.raises(CheckpointNotFoundError):
            await store.figures("no-such-run")
        for limit in (0, True, "3"):
            with pytest.raises(SettingError):
                await store_statistics(store, limit=limit)  # type: ignore[arg-type]

    async def _save_figures(self, store: StoreBase, run: str) -> None:
        """Save a run whose first attempt failed, and whose second one continued from an earlier point and completed."""
        self.needs(store, Ability.OWNERS)
        error = StepError("ValueError", "no")
        first = [
            StepResult("from a fork", attempt=0, duration_ms=5000.0, evidence=claimed("failed").evidence),
            claimed("verified", "a", "verified", "verified", "failed", duration_ms=10.0),
            StepResult("b", success=False, error=error, duration_ms=1.0, figures={"cost": 0.1}),
        ]
        await store.save(run, checkpoint(1, first[:2]))
        await store.save(run, checkpoint(2, first, reason=Reason.FAILED, error=error))
        if store.has(Ability.DELETE):
            await store.save(run, checkpoint(3, first, checkpoint_id="gone"))
            await store.delete_checkpoint(run, "gone")
        await store.release(run)
        await store.acquire(run)
        second = [
            *first[:2],
            claimed("cannot_tell", "a", "timed_out", attempt=2, duration_ms=20.0),
            claimed(None, "a", attempt=2, duration_ms=60.0),
            StepResult("slow", attempt=2, duration_ms=90.0, figures={"cost": 0.2, "rows": 2**53 + 1}),
            StepResult("all", "map", attempt=2, duration_ms=900.0, success=False, error=error),
        ]
        later = NOON + timedelta(days=1)
        await store.save(run, checkpoint(4, second[:3], attempt=2))
        await store.save(run, checkpoint(5, second, attempt=2, snapshot="x" * 5000))
        await store.save(run, checkpoint(6, second, attempt=2, reason=Reason.COMPLETED, saved_at=later))
        await store.release(run)


# The conformance tests of finding runs; part of `flowckpt.testing.contract.CheckpointStoreContract`.


_HOSTILE_TAGS = ("", "a=b", "line\nfeed", "a\0b", "é", "e\u0301", '"quoted"', "'; --", "%", "x" * 3_000, "🚀")
_REASONS = (Reason.COMPLETED, Reason.FAILED, Reason.SUSPENDED, Reason.STEP, Reason.CANCELLED)


class FindingContract(StoreUnderTest):
    """Filters find the same runs as reading all runs."""

    async def test_runs_are_found_by_status_workflow_and_tags_as_if_all_were_read(self, store: StoreBase) -> None:
        self.needs(store, Ability.LIST, Ability.OWNERS)
        for number in range(20):
            run = f"run-{number:02d}"
            tags = {"team": ("data", "web")[number % 2], **({"urgent": ""} if number % 7 == 0 else {})}
            lease = await store.acquire(run)
            await store.save(
                run,
                checkpoint(
                    1,
                    results(1),
                    reason=_REASONS[number % 5],
                    attempt=lease.attempt,
                    workflow_name=("etl", "train", "ETL")[number % 3],
                    saved_at=NOON + timedelta(seconds=number),
                    metadata={"tags": tags} if number % 4 else {},
                ),
            )
            if number != 3:  # the only one that is live
                await store.release(run)
        everything = list(await store.list_runs())
        finding = self.another(store)
        for each in self._list_filters(everything[0].workflow_id):
            for limit in (None, 1, 3):
                runs = await finding.find_runs(RunFilter(**each, limit=limit))
                expected = RunFilter(**each, limit=limit).of(everything)
                assert [info.workflow_id for info in runs] == [info.workflow_id for info in expected], (each, limit)
            survey = await finding.survey_runs(RunFilter(**each, limit=3))
            assert [info.workflow_id for info in survey.runs] == [info.workflow_id for info in expected], each
            pages: list[str] = []
            before = None
            while page := await finding.find_runs(RunFilter(**each, limit=2, before=before)):
                pages += [info.workflow_id for info in page]
                before = (page[-1].started_at, page[-1].workflow_id)
            expected = RunFilter(**each).of(everything)
            assert pages == [info.workflow_id for info in expected], each
        last = everything[-1]
        gone = RunFilter(before=(last.started_at + timedelta(microseconds=1), "a run that was removed"))
        assert last.workflow_id in [info.workflow_id for info in await finding.find_runs(gone)]

    def _list_filters(self, run: str) -> list[dict[str, Any]]:
        """Return the filters to test; a store with slow requests may test fewer if another one has the same code."""
        return [
            {},
            *({"statuses": [status]} for status in Status),
            {"statuses": [*Status]},
            {"statuses": []},
            {"statuses": [Status.CRASHED, Status.FAILED]},
            *({"workflow": name} for name in ("etl", "ETL", "no such", "")),
            {"workflow": "train", "statuses": [Status.FAILED, Status.CANCELLED]},
            *(
                {"tags": [tag]}
                for tag in (("team", "data"), ("team", None), ("urgent", ""), ("TEAM", None), ("team", ""))
            ),
            {"tags": [("urgent", None), ("team", "web")], "workflow": "etl"},
            {"tags": [("team", "data")], "statuses": [Status.CRASHED, Status.SUSPENDED]},
            *({"text": text} for text in ("1", run.upper(), "%", "_", "\0", "no such")),
            {"text": run[:2], "tags": [("team", None)]},
        ]

    async def test_a_run_is_found_by_a_tag_of_any_text(self, store: StoreBase) -> None:
        self.needs(store, Ability.LIST)
        tags = {text: text[::-1] for text in _HOSTILE_TAGS}
        await store.save("one", checkpoint(1, results(1), metadata={"tags": tags}))
        await store.save("two", checkpoint(1, results(1), metadata={"tags": {"a": "b"}}))
        for name, value in tags.items():
            for wanted in ((name, value), (name, None)):
                runs = await store.find_runs(RunFilter(tags=[wanted]))
                assert [info.workflow_id for info in runs] == ["one"], wanted
            assert not await store.find_runs(RunFilter(tags=[(name, value + "?")]))
        assert len(await store.find_runs(RunFilter(tags=[*tags.items()]))) == 1


# The conformance tests of messages for runs; part of `flowckpt.testing.contract.CheckpointStoreContract`.


def signal(signal_id: str, data: Any = None) -> Signal:
    """Return a message with the given fields and simple defaults.

    Args:
        signal_id: its id.
        data: what it carries.
    """
    return Signal(signal_id, "go", NOON, data, "ann")


class SignalsContract(StoreUnderTest):
    """The delivery of signals."""

    async def test_a_message_is_kept_for_a_run_that_another_process_owns(self, store: StoreBase) -> None:
        self.needs(store, Ability.OWNERS, Ability.SIGNALS)
        sender = self.another(store)
        await store.acquire(RUN)
        await store.save(RUN, checkpoint(1, results("a")))
        assert list(await sender.signals(RUN)) == []
        assert await sender.send_signal(RUN, signal("one", {"rows": [1, 2]}))
        await store.save(RUN, checkpoint(2, results("a", "b")))
        assert list(await store.signals(RUN)) == [signal("one", {"rows": [1, 2]})]
        latest = await self.latest(store)
        assert (latest.sequence, latest.attempt) == (2, 1)

    async def test_messages_come_in_the_order_in_which_they_were_sent(self, store: StoreBase) -> None:
        self.needs(store, Ability.SIGNALS)
        await store.save(RUN, checkpoint(1, []))
        times = [NOON + timedelta(seconds=number) for number in (3, 1, 2, 1)]
        for index, moment in enumerate(times):
            await store.send_signal(RUN, attrs.evolve(signal(f"{index}"), sent_at=moment))
        ids = [each.signal_id for each in await self.another(store).signals(RUN)]
        assert ids == ["1", "3", "2", "0"]

    async def test_a_message_sent_twice_is_there_once_as_it_was_first(self, store: StoreBase) -> None:
        self.needs(store, Ability.SIGNALS)
        await store.save(RUN, checkpoint(1, []))
        assert await store.send_signal(RUN, signal("01ARZ3NDEKTSV4RRFFQ69G5FAV", 1)) is True
        assert await store.send_signal(RUN, signal("01ARZ3NDEKTSV4RRFFQ69G5FAV", 2)) is False
        assert await store.send_signal(RUN, signal("01arz3ndektsv4rrffq69g5fav", 3)) is True  # another id
        assert [each.data for each in await store.signals(RUN)] in ([1, 3], [3, 1])

    async def test_a_message_for_no_run_is_refused_and_leaves_nothing(self, store: StoreBase) -> None:
        self.needs(store, Ability.SIGNALS, Ability.OWNERS)
        with pytest.raises(CheckpointNotFoundError):
            await store.send_signal(RUN, signal("one"))
        assert list(await store.signals(RUN)) == []
        await store.acquire(RUN)
        with pytest.raises(CheckpointNotFoundError):  # claimed, but nothing was ever saved
            await store.send_signal(RUN, signal("one"))
        await store.save(RUN, checkpoint(1, []))
        assert list(await store.signals(RUN)) == []

    async def test_removed_messages_are_gone_and_others_stay(self, store: StoreBase) -> None:
        self.needs(store, Ability.SIGNALS)
        await store.save(RUN, checkpoint(1, []))
        for name in ("one", "two"):
            await store.send_signal(RUN, signal(name))
        await store.remove_signals(RUN, ["one", "no such"])
        await store.remove_signals("no-such-run", ["two"])
        assert [each.signal_id for each in await self.another(store).signals(RUN)] == ["two"]

    async def test_a_cleared_run_takes_its_messages_with_it(self, store: StoreBase) -> None:
        self.needs(store, Ability.SIGNALS)
        for run in (RUN, "other"):
            await store.save(run, checkpoint(1, []))
            await store.send_signal(run, signal("one"))
        await store.clear(RUN)
        with pytest.raises(CheckpointNotFoundError):
            await store.send_signal(RUN, signal("two"))
        await store.save(RUN, checkpoint(1, []))
        assert list(await store.signals(RUN)) == []
        assert [each.signal_id for each in await store.signals("other")] == ["one"]

    async def test_hostile_names_and_texts_in_messages_come_back_or_are_refused(self, store: StoreBase) -> None:
        self.needs(store, Ability.SIGNALS)
        await store.save(RUN, checkpoint(1, []))
        for text in HOSTILE_IDS:
            sent = attrs.evolve(signal(text), name=text, by=text, path=text, request=text)
            if not text.isascii() and text.encode("utf-8", "replace").decode() != text:
                with pytest.raises(EncodingError):  # it is no Unicode
                    await store.send_signal(RUN, sent)
                continue
            assert await store.send_signal(RUN, sent)
            assert list(await store.signals(RUN)) == [sent]
            await store.remove_signals(RUN, [text])
        assert list(await store.signals(RUN)) == []
        with pytest.raises(EncodingError):
            await store.send_signal(RUN, signal("one", "\udc80"))
        assert list(await store.signals(RUN)) == []

    async def test_what_a_run_waits_for_is_told_without_loading_it(self, store: StoreBase) -> None:
        self.needs(store, Ability.LIST)
        wait = Wait("nap", WaitKind.SLEEP, "", NOON, NOON + timedelta(hours=1))
        waiting = {"target": {}, "tags": {}, "waits": {"nap": wait.to_document()}}
        done = results("a", "b")
        for sequence in range(1, 8):
            data = checkpoint(sequence, done[: sequence // 4])
            if sequence >= 4:
                data = attrs.evolve(data, reason=Reason.SUSPENDED, status=Status.SUSPENDED, metadata=waiting)
            await store.save(RUN, data)
        info = await self.described(self.another(store))
        assert (info.waits, info.due_at) == ((wait,), NOON + timedelta(hours=1))
        await store.save(RUN, attrs.evolve(checkpoint(8, done), reason=Reason.STEP, status=Status.RUNNING))
        info = await self.described(store)
        assert (info.waits, info.due_at) == ((), None)


class AbilityContract(
    AgreementContract, FiguresContract, FindingContract, GenerationContract, RepairContract, SignalsContract
):
    """References to checkpoints, records of other versions, and further abilities."""

    # --- what a reference says -------------------------------------------------------------------------------------

    async def test_a_reference_says_what_its_checkpoint_is_without_loading_it(self, store: StoreBase) -> None:
        steps = results("a", "b")
        data = checkpoint(3, steps, checkpoint_id="späte Post", reason=Reason.TRIGGER)
        await store.save(RUN, data)
        (reference,) = await self.another(store).list_checkpoints(RUN)
        assert reference.size > 0
        assert attrs.evolve(reference, size=0) == type(reference).of(RUN, data)
        assert (reference.saved_at, reference.steps, reference.reason, reference.verified) == (
            NOON,
            2,
            Reason.TRIGGER,
            None,
        )

    async def test_a_checkpoint_is_verified_where_the_claims_of_all_its_results_were_found_to_hold(
        self, store: StoreBase
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
        await self.save_each(store, steps)
        await store.save("not asked for", checkpoint(1, [claimed(None)]))
        await store.save("all at once", checkpoint(1, [claimed("verified", "a"), claimed("failed", "b")]))
        for instance in (store, self.another(store)):
            answers = [reference.verified for reference in await instance.list_checkpoints(RUN)]
            assert answers == [False, False, True, True, True, None, None]
            assert [each.verified for each in await instance.list_checkpoints("not asked for")] == [False]
            assert [each.verified for each in await instance.list_checkpoints("all at once")] == [False]

    async def test_what_was_left_behind_does_not_count_for_whether_a_checkpoint_is_verified(
        self, store: StoreBase
    ) -> None:
        self.needs(store, Ability.OWNERS)
        steps = [claimed("verified", "a"), claimed("failed", "b")]
        await self.save_each(store, steps)
        again = [*history_of(await self.resume(store))[:1], *results("other", first=2)]
        await store.save(RUN, checkpoint(3, again, attempt=2))
        await store.save(RUN, checkpoint(4, [*again, claimed("failed", "c")], attempt=2))
        references = await self.another(store).list_checkpoints(RUN)
        assert [(each.sequence, each.verified) for each in references] == [(4, False), (3, True), (1, True)]
        if store.has(Ability.DELETE):
            assert await store.delete_checkpoint(RUN, "c1")
            references = await self.another(store).list_checkpoints(RUN)
            assert [(each.sequence, each.verified) for each in references] == [(4, False), (3, True)]

    # --- forms of other versions -----------------------------------------------------------------------------------

    async def test_a_checkpoint_of_a_newer_form_is_refused_and_nothing_is_written(self, store: StoreBase) -> None:
        first = checkpoint(1)
        for sequence in (1, 2, 3):  # one that says only its place is written in another way than the first
            data = attrs.evolve(first, sequence=sequence, checkpoint_id=f"c{sequence}")
            with pytest.raises(UnsupportedSchemaError) as refused:
                await store.save(RUN, attrs.evolve(data, schema_version=SCHEMA_VERSION + 1))
            assert (refused.value.found, refused.value.supported) == (SCHEMA_VERSION + 1, SCHEMA_VERSION)
            await store.save(RUN, data)
        assert await self.list_ids(store) == [(3, "c3"), (2, "c2"), (1, "c1")]

    async def test_fields_that_nobody_knows_are_kept_wherever_they_stand_also_when_they_are_saved_again(
        self, store: StoreBase
    ) -> None:
        new: dict[str, Any] = {"later": {"a": [1, None, "ü"]}}
        error = StepError("ValueError", "no", extra=new)
        claim = {**CLAIM, **new, "captured": {"at": "2026-01-01T12:00:00+00:00", "signature": None, **new}}
        verdict = {"status": "verified", **new}
        evidence = {"pack": {"evidence": [claim], **new}, "verdicts": [verdict], "outcome": "verified", **new}
        steps = [
            StepResult("step-1", evidence=evidence, extra=new),
            StepResult("step-2", success=False, error=error, extra=new),
        ]
        data = checkpoint(1, steps, error=error, evidence=({"path": "step-1", **new},), extra=new)
        await store.save(RUN, data)
        for run in ("copy", "copy of the copy"):
            loaded = await self.latest(self.another(store), RUN if run == "copy" else "copy")
            assert loaded == data
            await store.save(run, loaded)
        loaded = await self.latest(self.another(store), "copy of the copy")
        assert loaded == data
        assert loaded.error is not None
        assert loaded.error.extra == loaded.step_results[1].error.extra == new  # type: ignore[union-attr]
        assert loaded.step_results[0].evidence == evidence

    # --- ability: picking checkpoints --------------------------------------------------------------------------------

    async def _save_attempts_of_all_kinds(self, store: StoreBase) -> StoreBase:
        self.needs(store, Ability.OWNERS)
        steps = [*results("a"), claimed("verified", "b"), claimed("failed", "c"), claimed("verified", "d")]
        reasons = (Reason.STARTED, Reason.STEP, Reason.STEP, Reason.MANUAL)
        for sequence, reason in enumerate(reasons, 1):
            await store.save(RUN, checkpoint(sequence, steps[:sequence], reason=reason))
        continued = history_of(await self.resume(store))[:2]  # attempt 2 continues from the second checkpoint
        for sequence, reason in enumerate((Reason.STARTED, Reason.STEP, Reason.STEP, Reason.COMPLETED), 5):
            continued.append(StepResult(f"n{sequence}", attempt=2))
            await store.save(RUN, checkpoint(sequence, continued, attempt=2, reason=reason))
        await store.release(RUN)
        return store

    def _list_selections(self) -> Iterator[dict[str, Any]]:
        """All combinations of selection criteria."""
        options = (
            (None, 1, 2, 3),
            (None, Reason.STEP, "started", Reason.FAILED),
            (None, True, False),
            (None, 0, 1, 5, 9),
        )
        for values in itertools.product(*options):
            yield dict(zip(("attempt", "reason", "verified", "limit"), values, strict=True))

    async def test_what_is_picked_are_those_of_the_runs_checkpoints_that_are_wanted(self, store: StoreBase) -> None:
        await self._save_attempts_of_all_kinds(store)
        instance: Any = self.another(store)
        every = await instance.list_checkpoints(RUN)
        assert [each.sequence for each in every] == [8, 7, 6, 5, 2, 1]
        for selection in self._list_selections():
            assert list(await instance.list_checkpoints(RUN, **selection)) == Selection(**selection).of(every), (
                selection
            )
        assert [each.sequence for each in await instance.list_checkpoints(RUN, attempt=1, reason="step")] == [2]
        assert [each.sequence for each in await instance.list_checkpoints(RUN, verified=True, limit=2)] == [8, 7]
        assert [each.verified for each in await instance.list_checkpoints(RUN, attempt=1)] == [True, None]
        assert list(await instance.list_checkpoints(RUN, verified=False)) == []
        assert list(await instance.list_checkpoints("no-such-run", attempt=1)) == []

    async def test_the_newest_checkpoint_of_an_attempt_is_the_newest_of_it_that_counts(self, store: StoreBase) -> None:
        await self._save_attempts_of_all_kinds(store)
        instance: Any = self.another(store)
        for attempt, sequence in ((None, 8), (1, 2), (2, 8)):
            latest = await instance.load_latest(RUN, attempt=attempt)
            assert (latest.sequence, len(latest.step_results)) == (sequence, {8: 6, 2: 2}[sequence])
        assert await instance.load_latest(RUN, attempt=3) is None
        assert await instance.load_latest("no-such-run", attempt=1) is None

    async def test_what_cannot_be_picked_is_refused(self, store: StoreBase) -> None:
        instance: Any = await self._save_attempts_of_all_kinds(store)
        wrong = {"attempt": (0, "1", True), "reason": ("stopped", 1), "verified": ("yes", 1), "limit": (-1, 1.5)}
        for name, values in wrong.items():
            for value in values:
                for run in (RUN, "no-such-run"):
                    with pytest.raises(SettingError) as refused:
                        await instance.list_checkpoints(run, **{name: value})
                    assert refused.value.setting == name
        with pytest.raises(SettingError):
            await instance.load_latest(RUN, attempt=0)

    # --- ability: deleting one checkpoint, again and again --------------------------------------------------------------

    async def test_an_owner_that_saves_and_deletes_in_turn_leaves_what_it_did_not_delete(
        self, store: StoreBase
    ) -> None:
        self.needs(store, Ability.DELETE, Ability.OWNERS)
        await store.save(RUN, checkpoint(1, checkpoint_id="old"))
        await self.resume(store)
        assert not await store.delete_checkpoint(RUN, "none")
        for sequence in range(2, 8):
            await store.save(RUN, checkpoint(sequence, attempt=2, checkpoint_id=f"even-{sequence % 2}-{sequence // 4}"))
            if sequence == 4:
                assert await store.delete_checkpoint(RUN, "even-0-0")
                assert not await store.delete_checkpoint(RUN, "even-0-0")
            if sequence == 6:
                assert await store.delete_checkpoint(RUN, "old")
                assert await store.delete_checkpoint(RUN, "even-0-1")
        assert await self.list_ids(store) == [(7, "even-1-1"), (5, "even-1-1"), (3, "even-1-0")]
        await store.release(RUN)
        assert await store.delete_checkpoint(RUN, "even-1-1")
        assert await self.list_ids(store) == [(3, "even-1-0")]

    # --- ability: the checkpoints of each attempt ---------------------------------------------------------------------------

    async def test_what_an_attempt_left_behind_can_be_loaded_also_when_a_later_one_went_back(
        self, store: StoreBase
    ) -> None:
        self.needs(store, Ability.OWNERS, Ability.ATTEMPTS)
        old = results("a", "b", "c")
        await self.save_each(store, old)
        assert await store.load_attempt(RUN, 2) is None
        await self.resume(store)
        new = [*old[:1], *results("other", first=2)]
        await store.save(RUN, checkpoint(4, new, attempt=2))
        await self.resume(store)
        await store.save(RUN, checkpoint(5, results("anew"), attempt=3))
        await store.release(RUN)
        store = self.another(store)
        for attempt, sequence, steps in ((1, 3, old), (2, 4, new), (3, 5, results("anew"))):
            last = await store.load_attempt(RUN, attempt)
            assert last is not None
            assert (last.sequence, last.attempt, list(last.step_results)) == (sequence, attempt, steps)
        assert await store.load_attempt(RUN, 4) is None
        assert await store.load_attempt("no-such-run", 1) is None

    async def test_what_an_attempt_saved_is_listed_oldest_first_also_where_a_later_one_went_back(
        self, store: StoreBase
    ) -> None:
        self.needs(store, Ability.ATTEMPTS)
        assert list(await store.attempts(RUN)) == []
        await self._save_attempts_of_all_kinds(store)
        store = self.another(store)
        assert list(await store.attempts(RUN)) == [1, 2]
        first, second = await store.list_attempt(RUN, 1), await store.list_attempt(RUN, 2)
        assert [(each.sequence, each.steps, each.verified) for each in first] == [
            (1, 1, None),
            (2, 2, True),
            (3, 3, False),
            (4, 4, False),
        ]
        assert [each.sequence for each in second] == [5, 6, 7, 8]
        assert {each.attempt for each in first} == {1}
        assert {each.attempt for each in second} == {2}
        assert list(await store.list_attempt(RUN, 3)) == []
        assert list(await store.list_attempt("no-such-run", 1)) == []

    async def test_what_a_later_attempt_deleted_is_not_among_what_an_attempt_saved(self, store: StoreBase) -> None:
        self.needs(store, Ability.ATTEMPTS, Ability.DELETE, Ability.OWNERS)
        for sequence in (1, 2, 3):
            await store.save(RUN, checkpoint(sequence))
        await self.resume(store)
        await store.save(RUN, checkpoint(4, attempt=2))
        for name in ("c1", "c3"):
            assert await store.delete_checkpoint(RUN, name)
        await self.resume(store)
        await store.save(RUN, checkpoint(5, results("anew"), attempt=3))
        await store.release(RUN)
        assert [each.sequence for each in await store.list_attempt(RUN, 1)] == [2]
        last = await store.load_attempt(RUN, 1)
        assert last is not None
        assert last.sequence == 2

    async def test_attempts_may_leave_numbers_out_and_one_that_wrote_nothing_is_none(self, store: StoreBase) -> None:
        self.needs(store, Ability.ATTEMPTS, Ability.OWNERS)
        await store.save(RUN, checkpoint(1, attempt=3))
        await store.release(RUN)
        await store.save(RUN, checkpoint(2, attempt=1_000_000))
        await self.resume(store)
        assert list(await self.another(store).attempts(RUN)) == [3, 1_000_000]
        await store.release(RUN)
        assert list(await store.attempts(RUN)) == [3, 1_000_000]
        await store.clear(RUN)
        assert list(await store.attempts(RUN)) == []

    async def test_runs_are_found_by_how_they_stand(self, store: StoreBase) -> None:
        self.needs(store, Ability.OWNERS)
        for name, reason in (
            ("done", Reason.COMPLETED),
            ("failed", Reason.FAILED),
            ("waits", Reason.SUSPENDED),
            ("died", Reason.STEP),
            ("live", Reason.STEP),
        ):
            await store.acquire(name)
            await store.save(name, checkpoint(1, results(1), reason=reason))
            if name != "live":
                await store.release(name)

        async def find_ids(*statuses: Status) -> set[str]:
            return {info.workflow_id for info in await runs_of_status(store, statuses)}

        assert await find_ids(Status.CRASHED) == {"died"}
        assert await find_ids(Status.RUNNING) == {"live"}
        assert await find_ids(Status.CRASHED, Status.SUSPENDED, Status.FAILED) == {"died", "waits", "failed"}
        assert await find_ids(*Status) == {"done", "failed", "waits", "died", "live"}
        assert await find_ids() == set()
        await store.acquire("waits")
        await store.save("waits", checkpoint(2, results(1), reason=Reason.COMPLETED, attempt=2))
        await store.release("waits")
        assert await find_ids(Status.SUSPENDED) == set()

    async def test_the_last_sign_of_life_of_an_attempt_is_a_moment(self, store: StoreBase) -> None:
        self.needs(store, Ability.OWNERS, Ability.SEEN)
        assert await store.last_seen(RUN, 1) is None
        lease = await store.acquire(RUN)
        await store.save(RUN, checkpoint(1, []))
        store.note_started(RUN, "a")
        moment = await self.another(store).last_seen(RUN, lease.attempt)
        assert moment is None or moment.tzinfo is not None
        assert await store.last_seen(RUN, lease.attempt + 1) is None

    async def test_what_was_begun_since_the_last_checkpoint_is_known_after_the_process_has_died(
        self, store: StoreBase
    ) -> None:
        self.needs(store, Ability.OWNERS, Ability.HINTS)
        assert await store.started_steps(RUN) == (0, ())
        await store.acquire(RUN)
        await store.save(RUN, checkpoint(1, []))
        for path in ("a", "b[1]", "ü"):
            store.note_started(RUN, path)
        assert await self.another(store).started_steps(RUN) == (1, ("a", "b[1]", "ü"))
        await store.save(RUN, checkpoint(2, results("a", "b")))
        store.note_started(RUN, "c")
        store.note_started("no-such-run", "d")
        lease = await self.resume(store)
        assert await store.started_steps(RUN) == (1, ("c",))
        store.note_started(RUN, "e")
        assert await store.started_steps(RUN) == (lease.attempt, ("e",))
        for number in range(5000):  # more than there is room for
            store.note_started(RUN, f"some-step-with-a-name[{number}]")
        attempt, begun = await store.started_steps(RUN)
        assert attempt == lease.attempt
        assert begun[:2] == ("e", "some-step-with-a-name[0]")
        assert len(set(begun)) == len(begun) > 1000

    # --- ability: values that two runs have ------------------------------------------------------------------------------

    async def test_a_large_value_that_two_runs_share_lives_as_long_as_one_of_them(self, store: StoreBase) -> None:
        self.needs(store, Ability.SHARE, Ability.OWNERS)
        large, other = "ä" * 70_000, "o" * 70_000
        await store.save("source", checkpoint(1, results(large, other)))
        source = await self.latest(store, "source")
        blobs = [result.held_output for result in source.step_results]
        assert all(isinstance(blob, Blob) for blob in blobs)
        sizes = {blob.digest: blob.size for blob in blobs}
        await store.share_values("source", "not owned", sizes)
        assert await store.load_latest("not owned") is None
        await store.acquire("target")
        await store.share_values("no-such-run", "target", sizes)
        await store.share_values("source", "target", {**sizes, "0" * 64: 5, blobs[1].digest: 1})
        for _ in range(2):
            await store.share_values("source", "target", {blobs[0].digest: blobs[0].size})
        await store.save("target", source)
        await store.release("source")
        await store.clear("source")
        target = await self.latest(self.another(store), "target")
        assert [result.output for result in target.step_results] == [large, other]
        await store.release("target")
        await store.clear("target")
        assert await self.another(store).load_latest("target") is None

    async def test_a_run_that_shared_values_and_was_given_up_unsaved_takes_nothing_with_it(
        self, store: StoreBase
    ) -> None:
        self.needs(store, Ability.SHARE, Ability.OWNERS)
        await store.save("source", checkpoint(1, results("ä" * 70_000)))
        source = await self.latest(store, "source")
        blob = source.step_results[0].held_output
        await store.acquire("target")
        await store.share_values("source", "target", {blob.digest: blob.size})
        await store.release("target")
        reloaded = await self.latest(self.another(store), "source")
        assert reloaded.step_results[0].output == "ä" * 70_000
