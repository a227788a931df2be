"""Queries over many runs of any store: lists, statistics, and the latest verifications of evidence."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.records.listing import CheckpointRef, RunFilter
from flowckpt.core.records.statistics import RecordedAttempt, StoreStatistics, Tally
from flowckpt.core.records.wait import Signal, WaitKind, birth_of, sent_to
from flowckpt.core.system.attrs_base import FieldEquality
from flowckpt.core.system.clock import Clock
from flowckpt.core.system.declared import shell_word
from flowckpt.core.system.ids import new_message_id
from flowckpt.core.system.numbers import check_number, pluralize
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    DecodingError,
    FlowckptError,
    ForeignRecordError,
)
from flowckpt.stores.adapted import CheckpointStore, adapt
from flowckpt.stores.base import Ability, StoreBase, refuse_failed

if TYPE_CHECKING:
    from flowckpt.core.records import CheckpointData, Status
    from flowckpt.core.records.listing import RunInfo


async def find_runs(store: CheckpointStore, wanted: RunFilter) -> Sequence[RunInfo]:
    """Return the selected runs of any store, most recently started first.

    Args:
        store: the store.
        wanted: the filter.

    Raises:
        SettingError: the store cannot list its runs.
        CheckpointStorageError: the medium failed.
    """
    return await adapt(store).find_runs(wanted)


async def runs_of_status(store: CheckpointStore, statuses: Collection[Status]) -> Sequence[RunInfo]:
    """Return the runs with one of some statuses, most recently started first.

    Args:
        store: the store.
        statuses: the statuses; a live owner distinguishes `running` from `crashed`.

    Raises:
        SettingError: the store cannot list its runs.
        CheckpointStorageError: the medium failed.
    """
    return await find_runs(store, RunFilter(statuses=frozenset(statuses)))


async def store_statistics(
    store: CheckpointStore, workflow_id: str | None = None, *, limit: int = 10
) -> StoreStatistics:
    """Return the statistics of any store.

    Args:
        store: the store.
        workflow_id: one run; all by default.
        limit: the number of largest runs, largest checkpoints and slowest steps, from 1.

    Raises:
        CheckpointNotFoundError: the run does not exist.
        SettingError: the limit is not a whole number from 1, or the store cannot list its runs.
        CheckpointStorageError: the medium failed.
    """
    check_number(limit, "limit", "Write limit=10.")
    opened = adapt(store)
    figures = await opened.figures(workflow_id, limit=limit)
    (stored,) = [await opened.total_bytes()] if workflow_id is None else await opened.stored_bytes([workflow_id])
    return attrs.evolve(figures, stored=stored)


async def sum_up_runs(store: StoreBase, workflow_id: str | None, *, limit: int) -> StoreStatistics:
    """Return the statistics of a store that can only list: reads its runs one at a time, and each attempt twice.

    Args:
        store: the store.
        workflow_id: one run; all by default.
        limit: the number of largest and slowest entries.

    Raises:
        CheckpointNotFoundError: the run does not exist.
        CheckpointCorruptedError: the requested run is damaged; without `workflow_id`, damaged runs are only named.
        SettingError: the store cannot list its runs.
    """
    tally = Tally(limit)
    if workflow_id is not None:
        info = await store.describe_run(workflow_id)
        if info is None:
            raise CheckpointNotFoundError(workflow_id)
        tally.add_run(info, await _read_attempts(store, workflow_id), await _read_claims(store, info))
        return tally.figures()
    survey = await store.survey_runs()
    refuse_failed(survey.unreadable)
    for finding in survey.unreadable:
        tally.add_unreadable(finding.workflow_id)
    for info in survey.runs:
        try:
            attempts = await _read_attempts(store, info.workflow_id)
            later = await _read_claims(store, info)
        except CheckpointCorruptedError:
            tally.add_unreadable(info.workflow_id)
        else:
            if attempts:  # else it was cleared meanwhile
                tally.add_run(info, attempts, later)
    return tally.figures()


async def _read_claims(store: StoreBase, info: RunInfo) -> Mapping[str, Mapping[str, int]]:
    return (await read_verifications(store, info.workflow_id, info.metadata)).claims


async def _read_attempts(store: StoreBase, workflow_id: str) -> list[RecordedAttempt]:
    latest = await store.load_latest(workflow_id)  # held, so that the store does not parse the run for each attempt
    if not store.has(Ability.ATTEMPTS):
        references = await store.list_checkpoints(workflow_id)
        return [] if latest is None else [RecordedAttempt.of(references, latest, is_all=True)]
    attempts = []
    for number in await store.attempts(workflow_id):
        last = await store.load_attempt(workflow_id, number)
        if last is not None:
            attempts.append(RecordedAttempt.of(await store.list_attempt(workflow_id, number), last))
    return attempts


async def check_references(store: StoreBase, workflow_id: str, references: Iterable[CheckpointRef]) -> None:
    """Compare the list of a run's checkpoints, which a store may read from an index, with the records.

    Raises:
        CheckpointCorruptedError: a record is damaged, or differs from the list.
    """
    if not store.has(Ability.ATTEMPTS):
        return
    listed: dict[int, dict[int, CheckpointRef]] = {}
    for each in references:
        listed.setdefault(each.attempt, {})[each.sequence] = each
    for attempt, by_sequence in listed.items():
        for data in await _read_listed(store, workflow_id, attempt, by_sequence):
            reference = by_sequence.get(data.sequence)
            if reference is not None and CheckpointRef.of(workflow_id, data, size=reference.size) != reference:
                raise CheckpointCorruptedError(
                    workflow_id,
                    location=f"checkpoint {data.sequence}",
                    detail="it differs from the list of checkpoints",
                )


async def _read_listed(
    store: StoreBase, workflow_id: str, attempt: int, listed: Mapping[int, CheckpointRef]
) -> Sequence[CheckpointData]:
    """Return the checkpoints of an attempt; if a superseded part of it is damaged, only the listed ones.

    Raises:
        CheckpointCorruptedError: a listed checkpoint is damaged, or cannot be loaded by its id.
    """
    try:
        return await store.read_attempt(workflow_id, attempt)
    except CheckpointCorruptedError:
        checkpoints = [await store.load(workflow_id, each.checkpoint_id) for each in listed.values()]
        if {data.sequence for data in checkpoints} != listed.keys():
            raise
        return checkpoints


# The outcome of maintenance.


@attrs.frozen(eq=False, repr=False)
class Compacted(FieldEquality):
    """The outcome of a compaction.

    Attributes:
        is_changed: whether anything was removed.
        bytes_freed: how many bytes were freed.
    """

    is_changed: bool = False
    bytes_freed: int = 0


# The damage in a run, and its repair.

DAMAGE = CheckpointCorruptedError, ForeignRecordError, DecodingError
"""The errors of a record that is damaged, as opposed to one that cannot be read now."""


@attrs.frozen(eq=False, repr=False)
class Loss(FieldEquality):
    """A damaged part of a record.

    Attributes:
        place: the file, row or object.
        size: how many bytes of it are no longer used.
        detail: what is wrong with it.
    """

    place: str
    size: int
    detail: str

    def __str__(self) -> str:
        return f"{self.place}: {pluralize(self.size, 'byte')}: {self.detail}"


@attrs.frozen(eq=False, repr=False)
class Repaired(FieldEquality):
    """The outcome of a repair.

    Attributes:
        workflow_id: the run.
        aside: where the original is kept; empty if nothing was damaged.
        lost: the damaged parts; empty also if all of them could be restored.
        checkpoints: how many checkpoints the run has now, those of earlier attempts included.
        steps: how many results its newest checkpoint holds.
        newest: the id of that checkpoint.
    """

    workflow_id: str
    aside: str
    lost: Sequence[Loss]
    checkpoints: int
    steps: int
    newest: str

    @property
    def is_changed(self) -> bool:
        """Whether anything was damaged."""
        return bool(self.aside)


async def read_all_attempts(store: StoreBase, workflow_id: str) -> Sequence[CheckpointData]:
    """Return the checkpoints of all attempts of a run without an owner, attempt by attempt, oldest first.

    Raises:
        CheckpointCorruptedError: one is damaged.
    """
    read = [await store.read_attempt(workflow_id, attempt) for attempt in await store.attempts(workflow_id)]
    return [data for part in read for data in part]


def unrepairable_error(workflow_id: str, place: str) -> CheckpointCorruptedError:
    """Return the error for a repair that finds no readable checkpoint."""
    return CheckpointCorruptedError(
        workflow_id,
        location=place,
        detail="no checkpoint of it can be read",
        remedy="Restore the run from a backup, or remove it: 'flowckpt store clear "
        f"{shell_word(workflow_id)}'. Nothing was changed.",
    )


_MOST_NOTES = 50
"""The number of notes after which the next one replaces them all."""
_MOST_CHECKPOINTS = 1_000

_log = logging.getLogger("flowckpt")


@attrs.frozen
class LaterCheck:
    """The newest verification of a checkpoint since it was saved.

    Attributes:
        at: the time.
        verified: whether its evidence held.
        held_at: when it last held; None if it never held since.
        counts: the number of claims: `total`, `verified`, `failed`.
    """

    at: datetime
    verified: bool
    held_at: datetime | None
    counts: Mapping[str, int]

    def to_document(self) -> dict[str, Any]:
        """Return plain JSON."""
        held_at = None if self.held_at is None else self.held_at.isoformat()
        return {"at": self.at.isoformat(), "verified": self.verified, "held_at": held_at, "counts": dict(self.counts)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> LaterCheck:
        """Return the check of a document."""
        held = document["held_at"]
        counts = {str(name): int(count) for name, count in document["counts"].items()}
        held_at = None if held is None else datetime.fromisoformat(held)
        return cls(datetime.fromisoformat(document["at"]), document["verified"] is True, held_at, counts)


@attrs.define
class Verifications:
    """The results of later verifications of a run.

    Attributes:
        checkpoints: the newest check by the sequence of its checkpoint.
        claims: the number of claims by kind and answer, those of refused commits included.
    """

    checkpoints: dict[int, LaterCheck] = attrs.field(factory=dict)
    claims: dict[str, Counter[str]] = attrs.field(factory=dict)

    @classmethod
    def of(
        cls, answers: Sequence[tuple[str, str]], now: datetime, sequence: int = 0, *, is_verified: bool = False
    ) -> Verifications:
        """Return the result of one verification.

        Args:
            answers: the kind and the answer of each checked claim.
            now: when.
            sequence: the checkpoint; 0 for a refused commit, which has none.
            is_verified: whether its evidence held.
        """
        verifications = cls()
        for kind, answer in answers:
            verifications.claims.setdefault(kind, Counter())[answer] += 1
        if sequence and answers:
            number = Counter(answer for _, answer in answers)
            counts = {"total": len(answers), "verified": number["verified"], "failed": number["failed"]}
            verifications.checkpoints[sequence] = LaterCheck(now, is_verified, now if is_verified else None, counts)
        return verifications

    def add(self, other: Verifications) -> None:
        """Add the content of a newer note."""
        for kind, answers in other.claims.items():
            self.claims.setdefault(kind, Counter()).update(answers)
        for sequence, check in other.checkpoints.items():
            before = self.checkpoints.pop(sequence, None)
            held_at = check.held_at if check.held_at is not None or before is None else before.held_at
            self.checkpoints[sequence] = attrs.evolve(check, held_at=held_at)

    def to_document(self) -> dict[str, Any]:
        """Return plain JSON."""
        newest = list(self.checkpoints.items())[-_MOST_CHECKPOINTS:]
        return {
            "checkpoints": {str(sequence): check.to_document() for sequence, check in newest},
            "claims": {kind: dict(answers) for kind, answers in self.claims.items()},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Verifications:
        """Return the verifications of a document."""
        checks = {int(key): LaterCheck.from_document(each) for key, each in document["checkpoints"].items()}
        claims = {
            str(kind): Counter({str(answer): int(count) for answer, count in answers.items()})
            for kind, answers in document["claims"].items()
        }
        return cls(checks, claims)


def parse_verifications(messages: Iterable[Signal]) -> Verifications:
    """Return the verifications noted among a run's messages; damaged notes are skipped."""
    notes = [each for each in messages if each.kind is WaitKind.VERIFICATION and isinstance(each.data, Mapping)]
    replaced = {str(name) for note in notes for name in note.data.get("replaces") or ()}
    verifications = Verifications()
    for note in sorted(notes, key=lambda each: each.sent_at):
        if note.signal_id not in replaced:  # otherwise a crash prevented the removal of this older note
            try:
                verifications.add(Verifications.from_document(note.data))
            except (LookupError, TypeError, ValueError, AttributeError):
                _log.warning("ignoring a damaged note about verifications: %s", note.signal_id)
    return verifications


async def read_verifications(store: StoreBase, workflow_id: str, metadata: Mapping[str, Any]) -> Verifications:
    """Return the later verifications of a run.

    Args:
        store: the run's store; a store without messages has no notes.
        workflow_id: the run.
        metadata: the run's metadata; notes about an earlier run with the same id do not count.
    """
    if not store.has(Ability.SIGNALS):
        return Verifications()
    return parse_verifications(sent_to(metadata, await store.signals(workflow_id)))


async def note_verification(
    store: StoreBase, clock: Clock, workflow_id: str, metadata: Mapping[str, Any], verifications: Verifications
) -> None:
    """Save a note about a verification. A failure is only logged, for example in a read-only store.

    Args:
        store: the run's store.
        clock: the time.
        workflow_id: the run.
        metadata: of the run.
        verifications: the result of the verification.
    """
    if not store.has(Ability.SIGNALS) or not (verifications.claims or verifications.checkpoints):
        return
    try:
        before = sent_to(metadata, await store.signals(workflow_id))
        notes = [each for each in before if each.kind is WaitKind.VERIFICATION]
        data: dict[str, Any] = verifications.to_document()
        if len(notes) >= _MOST_NOTES:
            merged = parse_verifications(notes)
            merged.add(verifications)
            data = {**merged.to_document(), "replaces": [each.signal_id for each in notes]}
        birth, kind = birth_of(metadata), WaitKind.VERIFICATION
        note = Signal(new_message_id(), "verification", clock.now(), data, kind=kind, birth=birth)
        await store.send_signal(workflow_id, note)
        if "replaces" in data:
            await store.remove_signals(workflow_id, data["replaces"])
    except FlowckptError as error:
        _log.info("the verification of run %s cannot be noted: %s", workflow_id, error)
