"""A store in memory: for tests, and for runs that need not outlive their process.

It keeps encoded bytes: it refuses and gives back what the durable ones do, and shares no object with its callers.
"""

from __future__ import annotations

import copy
import json
import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.records import CheckpointData, History, HistoryView, Reason, checkpoint
from flowckpt.core.system.lazy import LazyModule
from flowckpt.core.system.numbers import counted
from flowckpt.errors import (
    CheckpointNotFoundError,
    FencedError,
    ForeignRecordError,
    RunExistsError,
    RunLockedError,
    SaveConflictError,
)
from flowckpt.stores.async_store import refusal_of_field, refused_as_encoding_error
from flowckpt.stores.base import Compacted, Finding, Lease, StoreBase

if TYPE_CHECKING:
    from flowckpt.core import codec
    from flowckpt.core.codec import checkpoints, results
    from flowckpt.core.codec.blob import Blob
    from flowckpt.core.records import listing
    from flowckpt.core.records import wait as messages
    from flowckpt.core.records.listing import CheckpointRef, Owner, RunInfo
    from flowckpt.core.records.wait import Signal
    from flowckpt.core.system import process as processes
else:
    checkpoints = LazyModule("flowckpt.core.codec.checkpoints")
    codec = LazyModule("flowckpt.core.codec")
    messages = LazyModule("flowckpt.core.records.wait")
    processes = LazyModule("flowckpt.core.system.process")
    listing = LazyModule("flowckpt.core.records.listing")
    results = LazyModule("flowckpt.core.codec.results")


class _Record:
    """One saved checkpoint: its head as a tree, which nobody else holds, and how many results the run has there.

    The head of a checkpoint that says only its place is made when somebody asks; atoms until then, which the garbage
    collector need not look into again and again.
    """

    __slots__ = ("_attempt", "_head", "_id", "_reason", "_saved_at", "is_deleted", "results", "sequence")

    def __init__(self, head: dict[str, Any] | None, results: int, data: CheckpointData) -> None:
        self.results = results
        self.is_deleted = False  # it goes on carrying the fields that later heads leave out
        self._head = head
        self.sequence = data.sequence
        self._id = data.checkpoint_id
        self._attempt = data.attempt
        self._reason = data.reason
        self._saved_at = data.saved_at

    @property
    def head(self) -> dict[str, Any]:
        if self._head is None:
            self._head = {
                "sequence": self.sequence,
                "checkpoint_id": self._id,
                "attempt": self._attempt,
                "reason": self._reason.value,
                "saved_at": results.encode_time(self._saved_at),
            }
        return self._head


@attrs.define(eq=False, repr=False)
class _Run:
    """What is held of one run."""

    attempt: int = 0
    attempt_before: int = 0
    is_owned: bool = False
    token: str = ""
    is_adopted: bool = False  # the attempt wrote something, so it goes on from where the run is
    has_saved: bool = False
    acquired_at: datetime | None = None
    started_at: datetime | None = None
    last_sequence: int = 0
    records: list[_Record] = attrs.field(factory=list)
    encoded: list[bytes] = attrs.field(factory=list)
    saved: HistoryView = attrs.field(factory=lambda: History().view())
    blobs: dict[str, bytes] = attrs.field(factory=dict)
    previous: CheckpointData | None = None
    begun_by: int = 0
    begun: dict[str, None] = attrs.field(factory=dict)
    evicted: set[int] = attrs.field(factory=set)
    pins: set[int] = attrs.field(factory=set)
    written_by: set[int] = attrs.field(factory=set)
    """The attempts that saved or removed something."""
    former: list[_Run] = attrs.field(factory=list)
    """The run as it was, each time that an attempt went back behind what an earlier one had saved."""

    @property
    def live(self) -> list[_Record]:
        """The checkpoints that were not deleted, oldest first."""
        return [record for record in self.records if not record.is_deleted]

    def fetch(self, digest: str, size: int) -> bytes:
        del size
        return self.blobs[digest]


class MemoryCheckpointStore(StoreBase):
    """Stores checkpoints in the memory of this process, for tests and for runs that need not outlive it.

    It encodes values like the file store, so it refuses and returns the same values.
    """

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._signals: dict[str, tuple[_Run, dict[str, bytes]]] = {}
        self._as_view = results.as_view  # each look through a lazy module takes 1 µs

    def __repr__(self) -> str:
        return f"<MemoryCheckpointStore of {counted(len(self._runs), 'run')}>"

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Keep the checkpoint's bytes; see `CheckpointStore.save`."""
        run = self._runs.get(workflow_id)
        if run is None or data.attempt != run.attempt or not run.is_owned:
            newest = 0 if run is None else run.attempt
            if data.attempt <= newest or (run is not None and run.is_owned):
                raise FencedError(workflow_id, attempt=data.attempt, newest_attempt=newest)
            run = self._claimed(workflow_id, data.attempt)
        if data.sequence <= run.last_sequence:
            raise SaveConflictError(workflow_id, sequence=data.sequence, last_sequence=run.last_sequence)
        previous = run.previous if run.has_saved else None
        head: dict[str, Any] | None = None
        blobs: Mapping[str, Blob] = {}
        try:
            given = data.step_results
            view = given if type(given) is HistoryView else self._as_view(given)
            if previous is not None and data.says_only_its_place(previous):
                if not data.checkpoint_id.isascii():
                    data.checkpoint_id.encode()
            else:
                head, blobs = checkpoints.encode_head(data, previous)
                codec.dumps(head).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise refusal_of_field(error) from error
        if not run.is_adopted:
            self._go_back_to(run, view)
        count, history, held = len(view), view.history, len(run.encoded)
        if not (history is run.saved.history and count >= held) and not view.continues(run.saved):
            raise ForeignRecordError(
                f"the history to be saved for run {workflow_id!r} does not continue the one that the store holds",
                workflow_id=workflow_id,
                found=f"{held} results held, {count} given",
            )
        if blobs or history.blobs:
            self._keep_blobs(run, view, list(blobs.values()))
        if count > held:
            run.encoded += history.encoded_between(held, count)
        run.records.append(_Record(head, count, data))
        if run.started_at is None:
            run.started_at = data.saved_at
        run.last_sequence, run.previous, run.saved = data.sequence, data, view
        run.has_saved = run.is_adopted = True
        run.written_by.add(run.attempt)
        if run.begun:
            run.begun = {}
        if run.evicted:
            self._delete_evicted(run)

    @staticmethod
    def _keep_blobs(run: _Run, view: HistoryView, blobs: list[Blob]) -> None:
        for index in range(len(run.encoded), len(view)):
            blobs.extend(view.history.blobs.get(index, {}).values())
        for blob in blobs:
            run.blobs[blob.digest] = blob.content()
            blob.settle(run.fetch)

    def _go_back_to(self, run: _Run, view: HistoryView) -> None:
        """Let go of the results that the new attempt does not share, and of the checkpoints that hold them."""
        shared = self._history(run).view().shared_length(view)
        if run.records and run.records[-1].results > shared:
            run.former.append(attrs.evolve(run, records=run.records, encoded=run.encoded[:]))
        run.records = [record for record in run.records if record.results <= shared]
        kept = run.records[-1].results if run.records else 0
        del run.encoded[kept:]
        run.saved = view.history.view(kept)

    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Decode the newest checkpoint of that id; see `CheckpointStore.load`."""
        run = self._runs.get(workflow_id)
        if run is None or not run.started_at:
            raise CheckpointNotFoundError(workflow_id)
        for record in reversed(run.live):
            if record.head["checkpoint_id"] == checkpoint_id:
                return self._data(run, record)
        raise CheckpointNotFoundError(workflow_id, checkpoint_id)

    async def load_latest(self, workflow_id: str, *, attempt: int | None = None) -> CheckpointData | None:
        """Decode the newest checkpoint, of all or of an attempt."""
        wanted = listing.Selection(attempt=attempt)
        run = self._runs.get(workflow_id)
        return self._latest(run, wanted.attempt) if run else None

    def _latest(self, run: _Run, attempt: int | None = None) -> CheckpointData | None:
        live = [record for record in run.live if attempt is None or record.head["attempt"] == attempt]
        return self._data(run, live[-1]) if live else None

    def _history(self, run: _Run, length: int | None = None) -> History:
        history = History()
        for encoded in run.encoded[:length]:
            result, blobs = results.decode_result(json.loads(encoded), run.fetch)
            history.append(result, encoded, blobs)
        return history

    def _data(self, run: _Run, record: _Record) -> CheckpointData:
        merged: dict[str, Any] = {}
        for earlier in run.records[: run.records.index(record)]:
            merged.update({name: earlier.head[name] for name in checkpoints.CARRIED if name in earlier.head})
        merged.update(record.head)
        data = checkpoints.decode_head(merged, self._history(run, record.results).view(), run.fetch)
        return attrs.evolve(data, extra=copy.deepcopy(data.extra)) if data.extra else data

    def note_begun(self, workflow_id: str, path: str) -> None:
        """Note that a step begins."""
        run = self._runs.get(workflow_id)
        if run is not None and run.is_owned:
            if run.begun_by != run.attempt:
                run.begun_by, run.begun = run.attempt, {}
            run.begun[path] = None

    async def begun_steps(self, workflow_id: str) -> tuple[int, tuple[str, ...]]:
        """Return what was noted last."""
        run = self._runs.get(workflow_id)
        return (0, ()) if run is None else (run.begun_by, tuple(run.begun))

    async def load_attempt(self, workflow_id: str, attempt: int) -> CheckpointData | None:
        """Decode the last checkpoint of an attempt, as the attempt left it."""
        run = self._runs.get(workflow_id)
        for state in [] if run is None else [*run.former, run]:
            for record in reversed(state.live):
                if record.head["attempt"] == attempt:
                    return self._data(state, record)
        return None

    async def attempts(self, workflow_id: str) -> Sequence[int]:
        """Return the numbers of the attempts that wrote something."""
        run = self._runs.get(workflow_id)
        return [] if run is None else sorted(run.written_by)

    async def list_attempt(self, workflow_id: str, attempt: int) -> Sequence[CheckpointRef]:
        """Return the checkpoints of an attempt, oldest first."""
        run = self._runs.get(workflow_id)
        for state in [] if run is None else [*run.former, run]:
            found = [each for each in self._references(workflow_id, state) if each.attempt == attempt]
            if found:
                return found
        return []

    async def read_attempt(self, workflow_id: str, attempt: int) -> Sequence[CheckpointData]:
        """Decode the checkpoints of an attempt, oldest first."""
        run = self._runs.get(workflow_id)
        for state in [] if run is None else [*run.former, run]:
            found = [self._data(state, each) for each in state.live if each.head["attempt"] == attempt]
            if found:
                return found
        return []

    async def receive_run(self, workflow_id: str, checkpoints: Callable[[], Iterable[CheckpointData]]) -> None:
        """Take in a whole run."""
        run = self._runs.get(workflow_id)
        if run is not None and run.written_by:
            raise RunExistsError(workflow_id)
        if run is not None and run.is_owned:
            raise RunLockedError(workflow_id, holder=f"this process, attempt {run.attempt}")
        staged = MemoryCheckpointStore()
        attempt = 0
        for data in checkpoints():
            if data.attempt != attempt:
                await staged.release(workflow_id)
                attempt = data.attempt
            await staged.save(workflow_id, data)
        await staged.release(workflow_id)
        self._runs.update(staged._runs)

    async def share_values(self, source_id: str, workflow_id: str, sizes: Mapping[str, int]) -> None:
        """Let one run have large values of another."""
        run, source = self._runs.get(workflow_id), self._runs.get(source_id)
        if run is not None and run.is_owned and source is not None:
            run.blobs.update({digest: source.blobs[digest] for digest in sizes if digest in source.blobs})

    async def clear(self, workflow_id: str) -> None:
        """Forget the run; see `CheckpointStore.clear`."""
        run = self._runs.get(workflow_id)
        if run is not None:
            run.is_owned = False
            del self._runs[workflow_id]

    async def list_checkpoints(
        self,
        workflow_id: str,
        *,
        attempt: int | None = None,
        reason: Reason | str | None = None,
        verified: bool | None = None,
        limit: int | None = None,
    ) -> Sequence[CheckpointRef]:
        """Return the run's checkpoints, newest first."""
        wanted = listing.Selection(attempt=attempt, reason=reason, verified=verified, limit=limit)
        run = self._runs.get(workflow_id)
        return [] if run is None else wanted.of(self._references(workflow_id, run)[::-1])

    def _references(self, workflow_id: str, run: _Run) -> list[CheckpointRef]:
        found, before = [], 0
        history, answer = self._history(run), None
        for record in run.records:
            answer = checkpoint.verified_after(answer, history.results[before : record.results])
            if not record.is_deleted:
                found.append(self._reference(workflow_id, run, record, before, answer))
            before = record.results
        return found

    @staticmethod
    def _reference(
        workflow_id: str, run: _Run, record: _Record, before: int, is_verified: bool | None
    ) -> CheckpointRef:
        head = record.head
        return listing.CheckpointRef(
            workflow_id,
            head["checkpoint_id"],
            head["sequence"],
            head["attempt"],
            Reason(head["reason"]),
            datetime.fromisoformat(head["saved_at"]),
            record.results,
            len(codec.dumps(head)) + sum(map(len, run.encoded[before : record.results])),
            is_verified,
        )

    async def acquire(self, workflow_id: str, *, steal: bool = False) -> Lease:
        """Become the run's owner."""
        run = self._runs.get(workflow_id)
        if run is not None and run.is_owned and not steal:
            raise RunLockedError(workflow_id, holder=f"this process, attempt {run.attempt}")
        run = self._claimed(workflow_id, 0)
        return Lease(workflow_id, run.attempt, self._latest(run), run.last_sequence, token=run.token)

    def _claimed(self, workflow_id: str, attempt: int) -> _Run:
        run = self._runs.setdefault(workflow_id, _Run())
        run.attempt, run.attempt_before = max(run.attempt + 1, attempt), run.attempt
        run.is_owned, run.is_adopted, run.has_saved, run.acquired_at = True, False, False, datetime.now(UTC)
        run.evicted, run.token = set(), os.urandom(16).hex()
        return run

    async def release(self, workflow_id: str, *, token: str = "") -> None:
        """Give the run up."""
        run = self._runs.get(workflow_id)
        if run is None or not run.is_owned or token not in ("", run.token):
            return
        run.is_owned = False
        if not run.is_adopted:
            run.attempt = run.attempt_before
        if not run.attempt:
            del self._runs[workflow_id]

    async def owner(self, workflow_id: str) -> Owner | None:
        """Return this process where the run is owned."""
        run = self._runs.get(workflow_id)
        if run is None or not run.is_owned or run.acquired_at is None:
            return None
        me = processes.current_process()
        return listing.Owner(me.host, me.boot_id, me.pid, me.start_time, run.acquired_at)

    async def list_runs(self) -> Sequence[RunInfo]:
        """Return the runs."""
        found = [info for workflow_id in self._runs if (info := await self.describe_run(workflow_id))]
        return sorted(found, key=lambda info: info.started_at, reverse=True)

    async def describe_run(self, workflow_id: str) -> RunInfo | None:
        """Return one run as the list shows it."""
        run = self._runs.get(workflow_id)
        data = self._latest(run) if run else None
        if run is None or data is None or run.started_at is None:
            return None
        return listing.RunInfo(
            workflow_id,
            data.workflow_name,
            data.status,
            data.attempt,
            run.started_at,
            data.saved_at,
            len(data.step_results),
            data.metadata,
        ).with_owner(await self.owner(workflow_id))

    async def check(self, workflow_id: str | None = None) -> Sequence[Finding]:
        """Read everything."""
        ids = list(self._runs) if workflow_id is None else [workflow_id]
        if workflow_id is not None and workflow_id not in self._runs:
            raise CheckpointNotFoundError(workflow_id)
        for each in ids:
            await self.load_latest(each)
        return [Finding(each, "ok", counted(len(self._runs[each].live), "checkpoint")) for each in ids]

    # --- messages, kept encoded, as the durable stores keep them -------------------------------------------------

    def _held(self, workflow_id: str) -> dict[str, bytes] | None:
        """Return the messages of a run, by their ids; None where there is no such run."""
        run: _Run | None = self._runs.get(workflow_id)
        if run is None or not run.started_at:
            return None
        held = self._signals
        if workflow_id not in held or held[workflow_id][0] is not run:  # it was cleared, and begun anew
            held[workflow_id] = run, {}
        return held[workflow_id][1]

    async def send_signal(self, workflow_id: str, signal: Signal) -> bool:
        """Keep a message."""
        held = self._held(workflow_id)
        if held is None:
            raise CheckpointNotFoundError(workflow_id)
        with refused_as_encoding_error():
            encoded = codec.dumps(signal.to_document()).encode()
        return held.setdefault(signal.signal_id, encoded) is encoded

    async def signals(self, workflow_id: str) -> Sequence[Signal]:
        """Return the messages for a run."""
        held = self._held(workflow_id) or {}
        found = [messages.Signal.from_document(json.loads(each)) for each in held.values()]
        return sorted(found, key=lambda signal: (signal.sent_at, signal.signal_id))

    async def remove_signals(self, workflow_id: str, signal_ids: Collection[str]) -> None:
        """Forget messages."""
        held = self._held(workflow_id) or {}
        for each in signal_ids:
            held.pop(each, None)

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def evict_with_next_save(self, workflow_id: str, sequences: Sequence[int]) -> None:
        """Let the next save remove checkpoints, too."""
        run = self._runs.get(workflow_id)
        if run is not None and run.is_owned:
            run.evicted.update(sequences)

    @staticmethod
    def _delete_evicted(run: _Run) -> None:
        """Mark what goes with the save that was just made; found by halving, so it costs the same in a long run."""
        for sequence in run.evicted:
            place = bisect_left(run.records, sequence, key=lambda record: record.sequence)
            if place < len(run.records) - 1 and run.records[place].sequence == sequence:
                run.records[place].is_deleted = True
        run.evicted = set()

    async def delete_checkpoint(self, workflow_id: str, checkpoint_id: str) -> bool:
        """Remove the checkpoints of that id."""
        run = self._runs.get(workflow_id)
        if run is None:
            return False
        doomed = [record for record in run.live if record.head["checkpoint_id"] == checkpoint_id]
        return await self._delete(workflow_id, run, doomed) > 0

    async def _delete(self, workflow_id: str, run: _Run, doomed: Sequence[_Record]) -> int:
        if not doomed:
            return 0
        is_mine = run.is_owned
        if not is_mine:
            self._claimed(workflow_id, 0)
        if not run.is_adopted:
            self._go_back_to(run, self._history(run, run.live[-1].results).view())
        run.is_adopted = True
        run.written_by.add(run.attempt)
        for record in doomed:
            record.is_deleted = True
        if not is_mine:
            await self.release(workflow_id)
        return len(doomed)

    async def delete_sequences(self, workflow_id: str, sequences: Sequence[int]) -> int:
        """Remove checkpoints."""
        run = self._runs.get(workflow_id)
        if run is None:
            return 0
        return await self._delete(workflow_id, run, [each for each in run.live if each.sequence in sequences])

    async def pin(self, workflow_id: str, sequence: int) -> None:
        """Remember that a checkpoint is pinned."""
        run = self._runs.get(workflow_id)
        if run is None or all(each.sequence != sequence for each in run.live):
            raise CheckpointNotFoundError(workflow_id, None if run is None or not run.live else str(sequence))
        run.pins.add(sequence)

    async def unpin(self, workflow_id: str, sequence: int) -> None:
        """Forget a pin."""
        if workflow_id in self._runs:
            self._runs[workflow_id].pins.discard(sequence)

    async def pinned(self, workflow_id: str) -> frozenset[int]:
        """Return the pins."""
        run = self._runs.get(workflow_id)
        return frozenset() if run is None else frozenset(run.pins)

    # --- one run ---------------------------------------------------------------------------------------------------

    async def compactable(self, after: str, limit: int) -> Sequence[str]:
        """Return the runs that hold deleted checkpoints, in the order of their ids."""
        found = (run for run in sorted(self._runs) if run > after)
        return [run for run in found if any(each.is_deleted for each in self._runs[run].records)][:limit]

    async def compact(self, workflow_id: str, *, is_forced: bool = False) -> Compacted:
        """Let go of deleted checkpoints and of values that only they had."""
        del is_forced  # it costs little
        run = self._runs.get(workflow_id)
        if run is None:
            return Compacted()
        if run.is_owned:
            raise RunLockedError(workflow_id, holder=f"this process, attempt {run.attempt}")
        before = _size(run)
        for record, following in pairwise(run.records):
            if record.is_deleted:  # what later heads leave out, because it stands here, moves on
                carried = {name: record.head[name] for name in checkpoints.CARRIED if name in record.head}
                following.head.update({**carried, **following.head})
        run.records = [
            record for place, record in enumerate(run.records) if not record.is_deleted or place == len(run.records) - 1
        ]
        named = _texts_of(run)
        run.blobs = {digest: content for digest, content in run.blobs.items() if any(digest in each for each in named)}
        freed = before - _size(run)
        return Compacted(freed > 0, freed)

    # --- many runs -------------------------------------------------------------------------------------------------

    async def page_runs(self, before: RunInfo | None, limit: int) -> Sequence[RunInfo]:
        """Return runs, the one started last first."""
        runs: list[RunInfo] = sorted(await self.list_runs(), key=_place, reverse=True)
        return [info for info in runs if before is None or _place(info) < _place(before)][:limit]

    async def stored_bytes(self, workflow_ids: Sequence[str]) -> Sequence[int]:
        """Return how much results, heads and large values take."""
        return [_size(self._runs[each]) if each in self._runs else 0 for each in workflow_ids]

    async def clear_unchanged(self, runs: Sequence[RunInfo]) -> Sequence[str]:
        """Forget those of the runs that nobody owns and that stand as they did."""
        gone = []
        for info in runs:
            run = self._runs.get(info.workflow_id)
            now = await self.describe_run(info.workflow_id)
            if run is not None and not run.is_owned and not run.pins and now == info:
                del self._runs[info.workflow_id]
                gone.append(info.workflow_id)
        return gone

    async def tidy(self) -> None:
        """Do nothing: nothing is ever left half removed here."""


def _place(info: RunInfo) -> tuple[Any, str]:
    return info.started_at, info.workflow_id


def _texts_of(run: _Run) -> list[str]:
    states = [*run.former, run]
    return [repr(each.head) for state in states for each in state.records] + [
        text.decode() for state in states for text in state.encoded
    ]


def _size(run: _Run) -> int:
    heads = sum(len(repr(record.head)) for record in run.records)
    return heads + sum(map(len, run.encoded)) + sum(map(len, run.blobs.values()))
