"""A store in memory: for tests, and for runs that need not outlive their process.

It stores encoded bytes, so it refuses and returns the same values as the durable stores, and shares no objects with its
callers.
"""

from __future__ import annotations

import copy
import json
import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from flowckpt import stores
from flowckpt.core import records
from flowckpt.core.codec import dumps
from flowckpt.core.codec.blob import Blob
from flowckpt.core.codec.checkpoints import CARRIED, decode_head, encode_head
from flowckpt.core.codec.results import decode_result, encode_time
from flowckpt.core.records import CheckpointData, History, HistoryView, Reason
from flowckpt.core.records.checkpoint import verified_after
from flowckpt.core.records.listing import make_reference, sort_key
from flowckpt.core.system.attrs_base import lazy_define
from flowckpt.core.system.numbers import pluralize
from flowckpt.core.system.process import ProcessIdentity, current_process
from flowckpt.errors import CheckpointNotFoundError, FencedError, RunExistsError, RunLockedError
from flowckpt.stores.base import Finding, RunSurvey, StoreBase, make_survey
from flowckpt.stores.runs_base import (
    Claimed,
    PreparedSave,
    RetainingStore,
    RunsBase,
    RunWriter,
    refused_as_encoding_error,
)

if TYPE_CHECKING:
    from flowckpt.core.records.listing import CheckpointRef, Owner, RunFilter, RunInfo
    from flowckpt.core.records.wait import Signal

_Record: TypeAlias = tuple[int, int, int, str, str, datetime, dict[str, Any] | None]
"""One checkpoint: its sequence, attempt, number of results, id, reason, time, and its head as a tree if that contains more.
Nearly all are tuples of atoms, which the garbage collector no longer tracks."""

_SEQUENCE, _ATTEMPT, _RESULTS = map(itemgetter, range(3))
_TEXT_OF = {reason: reason.value for reason in Reason}


def _make_head(record: _Record) -> dict[str, Any]:
    """Return the head of a checkpoint as a tree."""
    sequence, attempt, _, name, reason, saved_at, head = record
    time = encode_time(saved_at)
    return head or {"sequence": sequence, "checkpoint_id": name, "attempt": attempt, "reason": reason, "saved_at": time}


@lazy_define(eq=False, repr=False)
class _Generation:
    """The parts that all courses of a generation share; a reader in another thread keeps those of the one that it reads.

    Attributes:
        firsts: the fields that later checkpoints of an attempt leave out, by attempt.
        blobs: the large values, by digest.
        deleted: the sequences of deleted checkpoints.
    """

    firsts: dict[int, dict[str, Any]] = attrs.field(factory=dict)
    blobs: dict[str, bytes] = attrs.field(factory=dict)
    deleted: set[int] = attrs.field(factory=set)


@lazy_define(eq=False, repr=False)
class _Course:
    """The checkpoints and results of a run, oldest first: the current ones, or those before a rewind."""

    records: list[_Record] = attrs.field(factory=list)
    encoded: list[bytes] = attrs.field(factory=list)
    generation: _Generation = attrs.field(factory=_Generation)

    def fetch(self, digest: str, size: int) -> bytes:
        return self.generation.blobs[digest]

    def list_records(self) -> list[_Record]:
        return [record for record in self.records if _SEQUENCE(record) not in self.generation.deleted]

    @property
    def has_deleted(self) -> bool:
        return len(self.list_records()) < len(self.records)

    def make_history(self, length: int | None = None) -> History:
        history = History()
        for encoded in self.encoded[:length]:
            result, blobs = decode_result(json.loads(encoded), self.fetch)
            history.append(result, encoded, blobs)
        return history

    def load(self, record: _Record) -> CheckpointData:
        head = {**self.generation.firsts[_ATTEMPT(record)], **_make_head(record)}
        data = decode_head(head, self.make_history(_RESULTS(record)).view(), self.fetch)
        return attrs.evolve(data, extra=copy.deepcopy(data.extra)) if data.extra else data

    def list_references(self, workflow_id: str) -> list[CheckpointRef]:
        """Return the checkpoints of the course, oldest first."""
        references, before, answer = [], 0, None
        history = self.make_history()
        for record in self.records:
            sequence, by_attempt, results, *_ = record
            answer = verified_after(answer, history.results[before:results])
            if sequence not in self.generation.deleted:
                head = _make_head(record)
                size = len(dumps(head)) + sum(map(len, self.encoded[before:results]))
                references.append(make_reference(workflow_id, head, by_attempt, results, size, answer))
            before = results
        return references


@lazy_define(eq=False, repr=False)
class _Run:
    """A stored run.

    Attributes:
        attempt: the newest attempt.
        written_by: the attempts that saved or removed checkpoints.
        earlier: the earlier courses, one for each return to an earlier point.
        steps: the steps that the attempt `steps_of` started since the last checkpoint.
        live: the live note.
    """

    attempt: int = 0
    started_at: datetime | None = None
    last_sequence: int = 0
    current: _Course = attrs.field(factory=_Course)
    earlier: list[_Course] = attrs.field(factory=list)
    written_by: set[int] = attrs.field(factory=set)
    pins: set[int] = attrs.field(factory=set)
    steps_of: int = 0
    steps: dict[str, None] = attrs.field(factory=dict)
    signals: dict[str, bytes] = attrs.field(factory=dict)
    live: bytes | None = None

    @property
    def courses(self) -> list[_Course]:
        return [*self.earlier, self.current]

    @property
    def size(self) -> int:
        heads = sum(len(repr(_make_head(record))) for record in self.current.records)
        return heads + sum(map(len, self.current.encoded)) + sum(map(len, self.current.generation.blobs.values()))

    def fetch(self, digest: str, size: int) -> bytes:
        return self.current.fetch(digest, size)

    def load_latest(self, attempt: int | None = None) -> CheckpointData | None:
        course = self.current  # a generation may begin meanwhile
        live = [record for record in course.list_records() if attempt in (None, _ATTEMPT(record))]
        return course.load(live[-1]) if live else None

    def begin_generation(self, course: _Course, attempt: int) -> None:
        """Let a generation take the place of everything before; another thread reads the one or the other."""
        self.current = course
        self.earlier, self.pins, self.written_by = [], set(), {attempt}

    def drop_unnamed_values(self) -> None:
        texts = [repr(head) for head in self.current.generation.firsts.values()]
        for course in self.courses:
            texts += [repr(_make_head(record)) for record in course.records]
            texts += [encoded.decode() for encoded in course.encoded]
        shared = self.current.generation
        shared.blobs = {name: blob for name, blob in shared.blobs.items() if any(name in text for text in texts)}


_ONLY_ITS_PLACE: tuple[None, dict[str, Blob]] = (None, {})


class MemoryRunWriter(RunWriter):
    """Writes to one run in memory."""

    def __init__(self, run: _Run, workflow_id: str, attempt: int) -> None:
        token = os.urandom(16).hex()
        values: set[str] = set()  # digests are not looked up: a duplicate costs nothing
        super().__init__(workflow_id, attempt, token, last_sequence=run.last_sequence, values=values, fetch=run.fetch)
        self.run = run
        self.acquired_at = datetime.now(UTC)
        self._before, run.attempt = run.attempt, attempt

    def note_started(self, path: str) -> None:
        """Note that a step starts."""
        run = self.run
        if run.steps_of != self.attempt:
            run.steps_of, run.steps = self.attempt, {}
        run.steps[path] = None

    def _check_process(self) -> None:
        """Allow every process: a forked child has its own copy of all runs."""

    def _check_usable(self) -> None:
        if self._is_closed:
            raise FencedError(self.workflow_id, attempt=self.attempt, newest_attempt=self.run.attempt)

    def _encode(self, data: CheckpointData, view: HistoryView) -> tuple[dict[str, Any] | None, Mapping[str, Blob]]:
        if self._first is not None and data.differs_only_in_position(self._first):
            if not data.checkpoint_id.isascii():
                data.checkpoint_id.encode()
            return _ONLY_ITS_PLACE
        head, blobs = encode_head(data, self._first)
        dumps(head).encode()
        return head, blobs

    def _begin_attempt(
        self, view: HistoryView, first: CheckpointData | None = None
    ) -> tuple[Sequence[Any], HistoryView]:
        run = self.run
        if first is not None and first.reason is Reason.CONTINUED:
            return (), view.history.view(0)
        shared = run.current.make_history().view().shared_length(view)
        shared_records = [record for record in run.current.records if _RESULTS(record) <= shared]
        length = _RESULTS(shared_records[-1]) if shared_records else 0
        if len(shared_records) < len(run.current.records):
            run.earlier.append(run.current)
        run.current = _Course(shared_records, run.current.encoded[:length], run.current.generation)
        return (), view.history.view(length)

    def _write(self, save: PreparedSave) -> None:
        run, data, (head, blobs) = self.run, save.data, save.encoded
        held, count, history = save.held, save.view.length, save.view.history
        course = _Course() if data.reason is Reason.CONTINUED else run.current
        if blobs or history.blobs:
            named, missing = self._find_new_values(save, blobs)
            course.generation.blobs.update({digest: blob.content() for digest, blob in missing.items()})
            self._mark_values_durable(named, ())
        if count > held:
            course.encoded += history.encoded_between(held, count)
        if self._first is None:
            fields = head or {}
            course.generation.firsts[self.attempt] = {name: fields[name] for name in CARRIED if name in fields}
            run.written_by.add(self.attempt)
            run.started_at = run.started_at or records.generation.start_of_run(data.metadata) or data.saved_at
        stored, sequence = course.records, data.sequence
        stored.append((sequence, data.attempt, count, data.checkpoint_id, _TEXT_OF[data.reason], data.saved_at, head))
        if course is not run.current:
            run.begin_generation(course, self.attempt)
        run.last_sequence = sequence
        if run.steps:
            run.steps = {}
        for each in save.evicted:  # by bisection, so it takes no longer in a long run
            place = bisect_left(stored, each, key=_SEQUENCE)
            if place < len(stored) - 1 and _SEQUENCE(stored[place]) == each:
                course.generation.deleted.add(each)

    def delete(self, sequences: list[int]) -> None:
        """Delete checkpoints; their results stay."""
        with self._lock_for_write():
            if not self.is_adopted:  # the owner continues from the newest one that it read
                last = self.run.current.list_records()[-1]
                _, self.saved = self._begin_attempt(self.run.current.make_history(_RESULTS(last)).view())
                self.is_adopted = True
            self.run.written_by.add(self.attempt)
            self.run.current.generation.deleted.update(
                set(sequences).intersection(map(_SEQUENCE, self.run.current.records))
            )

    def close(self) -> None:
        """End the writes; a claim without a write leaves no trace."""
        self._is_closed = True
        if not self.is_adopted and self.run.attempt == self.attempt:
            self.run.attempt = self._before


class MemoryRuns(RunsBase[MemoryRunWriter]):
    """The runs in memory."""

    has_leases = False

    def __init__(self) -> None:
        super().__init__(seconds=60.0)
        self.stored: dict[str, _Run] = {}
        self.index: dict[str, bytes] = {}

    @property
    def place(self) -> str:
        """The name of the store, for messages."""
        return "memory"

    def _find_run(self, workflow_id: str) -> _Run:
        """Return a run; an empty one if it does not exist."""
        return self.stored.get(workflow_id) or _Run()

    # --- owners ----------------------------------------------------------------------------------------------------

    def _claim(self, workflow_id: str, *, take_over: bool, at_least: int) -> Claimed[MemoryRunWriter]:
        run, previous = self.stored.setdefault(workflow_id, _Run()), self.owned.get(workflow_id)
        writer = MemoryRunWriter(run, workflow_id, max(run.attempt + 1, at_least))
        if previous is not None:
            previous.close()
        return writer, run.load_latest(), ()

    def _give_up(self, writer: MemoryRunWriter) -> None:
        writer.close()
        if not writer.run.attempt:
            self.stored.pop(writer.workflow_id, None)

    def clear(self, workflow_id: str) -> None:
        """Remove the run."""
        writer = self.owned.pop(workflow_id, None)
        if writer is not None:
            writer.close()
        self.stored.pop(workflow_id, None)

    def owner(self, workflow_id: str) -> Owner | None:
        """Return this process if it owns the run."""
        writer = self.owned.get(workflow_id)
        if writer is None:
            return None
        me = current_process()
        return records.Owner(me.host, me.boot_id, me.pid, me.start_time, writer.acquired_at)

    def claimed_by(self, workflow_id: str, attempt: int) -> ProcessIdentity | None:
        """Return this process: no other process can see the store."""
        return current_process() if workflow_id in self.stored else None

    def started_steps(self, workflow_id: str) -> tuple[int, tuple[str, ...]]:
        """Return the latest attempt that noted steps, and these steps."""
        run = self._find_run(workflow_id)
        return run.steps_of, tuple(run.steps)

    def note_live(self, writer: MemoryRunWriter, content: bytes) -> None:
        """Replace the live note of an owned run."""
        writer.run.live = content

    def live_note(self, workflow_id: str) -> bytes | None:
        """Return the live note of a run."""
        return self._find_run(workflow_id).live

    def share_values(self, source_id: str, workflow_id: str, sizes: Mapping[str, int]) -> None:
        """Give large values of one run to another."""
        writer = self.owned.get(workflow_id)
        if writer is not None:
            blobs = self._find_run(source_id).current.generation.blobs
            writer.run.current.generation.blobs.update({name: blobs[name] for name in sizes if name in blobs})

    def receive_run(self, workflow_id: str, checkpoints: Callable[[], Iterable[CheckpointData]]) -> None:
        """Store a whole run."""
        writer = self.owned.get(workflow_id)
        if self._find_run(workflow_id).written_by:
            raise RunExistsError(workflow_id)
        if writer is not None:
            raise RunLockedError(workflow_id, holder=f"this process, attempt {writer.attempt}")
        staged = MemoryRuns()
        for data in checkpoints():
            if workflow_id in staged.owned and staged.owned[workflow_id].attempt != data.attempt:
                staged.release(workflow_id)
            staged.save(workflow_id, data)
        staged.release(workflow_id)
        self.stored.update(staged.stored)

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Return the newest checkpoint of an id."""
        run = self._find_run(workflow_id)
        if not run.started_at:
            raise CheckpointNotFoundError(workflow_id)
        course = run.current
        for record in reversed(course.list_records()):
            if _make_head(record)["checkpoint_id"] == checkpoint_id:
                return course.load(record)
        raise CheckpointNotFoundError(workflow_id, checkpoint_id)

    def load_latest(self, workflow_id: str, *, attempt: int | None = None) -> CheckpointData | None:
        """Return the newest checkpoint, of all or of an attempt."""
        return self._find_run(workflow_id).load_latest(records.Selection(attempt=attempt).attempt)

    def references(self, workflow_id: str) -> list[CheckpointRef]:
        """Return the checkpoints of a run, newest first."""
        return self._find_run(workflow_id).current.list_references(workflow_id)[::-1]

    def attempts(self, workflow_id: str) -> list[int]:
        """Return the numbers of the attempts that wrote."""
        return sorted(self._find_run(workflow_id).written_by)

    def list_attempt(self, workflow_id: str, attempt: int) -> list[CheckpointRef]:
        """Return the checkpoints of an attempt as it left them, oldest first."""
        for course in self._find_run(workflow_id).courses:
            if found := [each for each in course.list_references(workflow_id) if each.attempt == attempt]:
                return found
        return []

    def read_attempt(self, workflow_id: str, attempt: int) -> list[CheckpointData]:
        """Return the checkpoints of an attempt as it left them, oldest first."""
        for course in self._find_run(workflow_id).courses:
            if found := [course.load(each) for each in course.list_records() if _ATTEMPT(each) == attempt]:
                return found
        return []

    def load_attempt(self, workflow_id: str, attempt: int) -> CheckpointData | None:
        """Return the last checkpoint of an attempt as it left it."""
        checkpoints = self.read_attempt(workflow_id, attempt)
        return checkpoints[-1] if checkpoints else None

    # --- runs ------------------------------------------------------------------------------------------------------

    def survey_runs(self, wanted: RunFilter | None = None) -> RunSurvey:
        """Return the selected runs, most recently started first."""
        return make_survey(map(self.describe_run, self.stored), (), wanted)

    def describe_run(self, workflow_id: str) -> RunInfo | None:
        """Return one run as listed."""
        run = self._find_run(workflow_id)
        data = run.load_latest()
        if data is None or run.started_at is None:
            return None
        return records.RunInfo.of(workflow_id, data, run.started_at).with_owner(self.owner(workflow_id))

    def check(self, workflow_id: str | None = None) -> list[Finding]:
        """Read everything."""
        if workflow_id is not None and workflow_id not in self.stored:
            raise CheckpointNotFoundError(workflow_id)
        runs = {workflow_id: self.stored[workflow_id]} if workflow_id is not None else self.stored
        for run in runs.values():
            run.load_latest()
        return [
            Finding(each, "ok", pluralize(len(run.current.list_records()), "checkpoint")) for each, run in runs.items()
        ]

    def repair(self, workflow_id: str) -> stores.queries.Repaired:
        """Repair nothing: memory is never damaged."""
        latest = self.load_latest(workflow_id)
        if latest is None:
            raise CheckpointNotFoundError(workflow_id)
        count = sum(len(self.list_attempt(workflow_id, attempt)) for attempt in self.attempts(workflow_id))
        return stores.queries.Repaired(workflow_id, "", (), count, len(latest.step_results), latest.checkpoint_id)

    # --- messages, encoded as in the durable stores ----------------------------------------------------------------

    def send_signal(self, workflow_id: str, signal: Signal) -> bool:
        """Store a message; return whether it is new."""
        run = self._find_run(workflow_id)
        if not run.started_at:
            raise CheckpointNotFoundError(workflow_id)
        with refused_as_encoding_error():
            encoded = dumps(signal.to_document()).encode()
        return run.signals.setdefault(signal.signal_id, encoded) is encoded

    def signals(self, workflow_id: str) -> list[Signal]:
        """Return the messages in the order of sending."""
        encoded = self._find_run(workflow_id).signals.values()
        signals = [records.Signal.from_document(json.loads(each)) for each in encoded]
        return sorted(signals, key=lambda signal: (signal.sent_at, signal.signal_id))

    def remove_signals(self, workflow_id: str, signal_ids: Collection[str]) -> None:
        """Remove messages."""
        run = self._find_run(workflow_id)
        for each in signal_ids:
            run.signals.pop(each, None)

    # --- keeping it small ------------------------------------------------------------------------------------------

    def pin(self, workflow_id: str, sequence: int) -> None:
        """Pin a checkpoint."""
        run = self._find_run(workflow_id)
        live = run.current.list_records()
        if sequence not in map(_SEQUENCE, live):
            raise CheckpointNotFoundError(workflow_id, str(sequence) if live else None)
        run.pins.add(sequence)

    def unpin(self, workflow_id: str, sequence: int) -> None:
        """Remove a pin."""
        self._find_run(workflow_id).pins.discard(sequence)

    def pinned(self, workflow_id: str) -> frozenset[int]:
        """Return the pinned sequences."""
        return frozenset(self._find_run(workflow_id).pins)

    def compactable(self, after: str, limit: int) -> list[str]:
        """Return the runs with deleted checkpoints, in the order of their ids."""
        ids = sorted(each for each, run in self.stored.items() if each > after and run.current.has_deleted)
        return ids[:limit]

    def compact(self, workflow_id: str, *, is_forced: bool = False) -> stores.queries.Compacted:
        """Drop deleted checkpoints, and the values that only they refer to."""
        run, writer = self._find_run(workflow_id), self.owned.get(workflow_id)
        if writer is not None:
            raise RunLockedError(workflow_id, holder=f"this process, attempt {writer.attempt}")
        before, newest = run.size, run.current.records[-1:]
        run.current.records = [
            each
            for each in run.current.records
            if _SEQUENCE(each) not in run.current.generation.deleted or [each] == newest
        ]
        run.drop_unnamed_values()
        freed = before - run.size
        return stores.queries.Compacted(freed > 0, freed)

    def page_runs(self, before: RunInfo | None, limit: int) -> list[RunInfo]:
        """Return runs, most recently started first."""
        runs = sorted(self.survey_runs().runs, key=sort_key, reverse=True)
        return [info for info in runs if before is None or sort_key(info) < sort_key(before)][:limit]

    def total_bytes(self) -> int:
        """Return the bytes of all runs."""
        return sum(run.size for run in self.stored.values())

    def stored_bytes(self, workflow_ids: Sequence[str]) -> list[int]:
        """Return the bytes of results, heads and large values."""
        return [self._find_run(each).size for each in workflow_ids]

    def clear_unchanged(self, runs: Sequence[RunInfo]) -> list[str]:
        """Remove the runs that have neither an owner nor a pin and are unchanged since they were listed."""
        removed = []
        for info in runs:
            is_free = not self.pinned(info.workflow_id) and info.workflow_id not in self.owned
            if is_free and self.describe_run(info.workflow_id) == info:
                del self.stored[info.workflow_id]
                removed.append(info.workflow_id)
        return removed

    def tidy(self) -> None:
        """Do nothing: every removal here is complete."""

    def read_index(self, name: str) -> bytes | None:
        """Return a part of the index of results."""
        return self.index.get(name)

    def write_index(self, name: str, content: bytes) -> None:
        """Replace a part of the index of results."""
        self.index[name] = content

    def clear_index(self) -> None:
        """Remove the index of results."""
        self.index.clear()


class MemoryCheckpointStore(RetainingStore[MemoryRuns]):
    """Stores checkpoints in the memory of this process, for tests and for runs that need not outlive it.

    It encodes values like the file store, so it refuses and returns the same values.
    """

    def __init__(self) -> None:
        self.runs = MemoryRuns()

    def __repr__(self) -> str:
        return f"<MemoryCheckpointStore of {pluralize(len(self.runs.stored), 'run')}>"

    async def _run(self, work: Callable[[], Any]) -> Any:
        return work()  # a thread would take longer

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Store the checkpoint's bytes; see `CheckpointStore.save`."""
        self.runs.save(workflow_id, data)

    call_when_lost = StoreBase.call_when_lost  # only this process can own a run

    async def started_steps(self, workflow_id: str) -> tuple[int, tuple[str, ...]]:
        """Return the attempt of the last note, and its steps; see `StoreBase.started_steps`."""
        return self.runs.started_steps(workflow_id)
