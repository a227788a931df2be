"""A run as recorded by its segments: the newest started segment, followed back to the first, and joined.

Read without a lock and without writing, so a reader can crash too. The segments are given as a function, so the
rules here need no disk.
"""

from __future__ import annotations

import copy
import functools
import weakref
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from flowckpt.core.codec import decode
from flowckpt.core.codec.blob import TAG, Blob, Fetch
from flowckpt.core.codec.checkpoints import CARRIED, check_schema, decode_head
from flowckpt.core.codec.results import Blobs, encode_time, make_result
from flowckpt.core.records import CheckpointData, History, HistoryView, Reason, Status, StepResult, checkpoint
from flowckpt.core.records.checkpoint import STATUS_OF_REASON
from flowckpt.core.records.generation import start_of_run
from flowckpt.core.records.listing import CheckpointRef, RunInfo, Selection, make_reference
from flowckpt.core.system.attrs_base import FieldEquality
from flowckpt.core.system.lazy import paused_collector
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    DecodingError,
    FlowckptError,
    ForeignRecordError,
)
from flowckpt.stores.file.layout import segment_name
from flowckpt.stores.log.sealing.protection import PLAIN, SealBrokenError, Seals
from flowckpt.stores.log.segment import (
    PACK,
    START,
    TRAILER,
    Cut,
    Record,
    Segment,
    SegmentDamagedError,
    extract_results,
    find_removed,
    parse_adoption,
    parse_header,
    parse_segment,
)
from flowckpt.stores.runs_base import LogRunWriter, RunsBase

if TYPE_CHECKING:
    from flowckpt.stores.log.sealing.lines import LineSeal


# Which segments of a run count, and how much of each: the successor records how far it has read.
#
# A fenced writer finds out only after its write, so a refused record remains in its segment: after the
# point up to which the successor had read, or in a segment started after a later one was claimed.
#
# A pack replaces everything below it, and a tombstone ends it, except if a new owner had read the run before and continues
# from the segments below. Then those count, and the pack does not.


InspectSegment = Callable[[int], tuple[bool, Cut | None]]
"""Returns whether a segment has a record, and what it continues. That is None for the first segment, a pack and a
tombstone. The first segment of a generation records that it continues nothing."""


def select_segments(numbers: Sequence[int], inspect: InspectSegment) -> Iterator[tuple[int, int | None]]:
    """Yield the segments that count, newest first, and how many bytes of each; None for all.

    Segments of an earlier version do not record what they had read: then everything below them counts.

    Args:
        numbers: the numbers of the segments, ascending.
        inspect: reads one.
    """
    seen: Sequence[int] | None = None
    continued: set[int] = set()
    for number in reversed(numbers):
        if seen is not None and number > seen[0]:
            continue
        is_begun, cut = inspect(number)
        if not is_begun:
            continue
        if cut is None and number not in continued and any(0 < each < number for each in continued):
            continue
        yield number, seen[1] if seen is not None and seen[0] == number else None
        if cut is None or cut.generation:
            return
        continued.add(cut.segment)
        seen = cut.seen


ReadSegment = Callable[[int], bytes]


@attrs.define(eq=False, repr=False)
class RunImage:
    """A run as recorded by its segments.

    Attributes:
        workflow_id: the run.
        newest: the number of the newest segment, started or not; 0 if there is none.
        records: the lines that belong to the run, oldest first.
        history: all its results.
        last_sequence: the highest sequence that the run ever had.
        started_at: when its first checkpoint was saved; None if it has none.
        notices: what was dropped or restored while reading.
        is_cleared: whether the run was cleared and has not started again.
        begun: the number of the newest segment that has a record; 0 if there is none.
        seal: the seal of that segment's lines; None if they are not sealed.
        place: names a segment in errors and notices.
        end: the digest of that segment's last line.
        sources: the bytes of the segments that were read, by number.
    """

    workflow_id: str
    newest: int = 0
    records: list[Record] = attrs.field(factory=list)
    history: History = attrs.field(factory=History)
    last_sequence: int = 0
    started_at: datetime | None = None
    notices: list[str] = attrs.field(factory=list)
    is_cleared: bool = False
    begun: int = 0
    seal: LineSeal | None = None
    place: Callable[[int], str] = segment_name
    end: bytes = START
    sources: dict[int, bytes] = attrs.field(factory=dict)
    _deleted: set[int] = attrs.field(factory=set)
    _first: dict[int, Record] = attrs.field(factory=dict)

    def checkpoints(self) -> list[int]:
        """Return the indices of the records that are checkpoints and were not deleted, oldest first."""
        return [index for index, record in enumerate(self.records) if self.is_checkpoint(record)]

    def is_checkpoint(self, record: Record) -> bool:
        """Return whether a record is a checkpoint that was not deleted."""
        return record.deletes is None and record.sequence not in self._deleted

    def forget_deleted(self, later: RunImage) -> None:
        """Drop the checkpoints that the run has deleted since.

        Args:
            later: the run as read later.
        """
        self._deleted |= later._deleted

    def data(self, index: int, fetch: Fetch) -> CheckpointData:
        """Return a checkpoint.

        Args:
            index: the index of its record.
            fetch: reads large values.
        """
        record = self.records[index]
        first = self._first[record.segment].head
        merged: dict[str, Any] = {name: first[name] for name in CARRIED if name in first}
        merged.update(record.head)
        merged["attempt"] = record.segment
        del merged["results"], merged["sha256"]  # the line's own
        merged.pop("evicts", None)
        data = decode_head(merged, self.history.view(record.count), fetch)
        # The record may be read again, so a caller must not be able to change its fields.
        return attrs.evolve(data, extra=copy.deepcopy(data.extra)) if data.extra else data

    def references(self) -> list[CheckpointRef]:
        """Return the light descriptions of the checkpoints, oldest first."""
        found: list[CheckpointRef] = []
        answer: bool | None = None
        before = 0
        for index in self.checkpoints():
            record = self.records[index]
            count = record.count
            answer = checkpoint.verified_after(answer, self.history.results[before:count])
            before = count
            found.append(
                make_reference(self.workflow_id, record.head, record.segment, count, len(record.line) + 1, answer)
            )
        return found

    def newest_view(self) -> HistoryView:
        """Return the history at the newest checkpoint."""
        live = self.checkpoints()
        return self.history.view(self.records[live[-1]].count if live else 0)

    def find_cut(self, view: HistoryView, first: CheckpointData | None) -> Cut:
        """Return the adoption of the records that share a new record's history; none if it starts a generation.

        Args:
            view: the history of the new record.
            first: its checkpoint; None if the attempt only removes something.
        """
        if first is not None:
            self.started_at = self.started_at or start_of_run(first.metadata)
        if first is not None and first.reason is Reason.CONTINUED:
            return attrs.evolve(self.make_cut(0), deleted=(), generation=True)
        shared = self.history.view().shared_length(view)
        return self.make_cut(bisect_right(self.records, shared, key=lambda record: record.count))

    def make_cut(self, records: int) -> Cut:
        """Return the adoption of the first `records` lines: where they end, and a copy of the last.

        Args:
            records: how many lines the successor continues from.
        """
        started_at = "" if self.started_at is None else encode_time(self.started_at)
        if records == 0:
            known, seen = sorted(self._deleted), self._end_position
            return Cut(0, last_sequence=self.last_sequence, deleted=known, seen=seen, started_at=started_at)
        kept = self.records[:records]
        last = kept[-1]
        return Cut(
            last.file,
            last.end,
            records - bisect_left(kept, last.segment, key=lambda record: record.segment),
            last.digest.hex(),
            last.count,
            last.line.decode(),
            self.last_sequence,
            sorted(self._deleted - find_removed(kept)),
            self._end_position,
            started_at,
        )

    @property
    def _end_position(self) -> tuple[int, int]:
        """The number of the newest segment, and how many bytes of it were read. A pack counts even if its end is empty."""
        return self.begun, self.records[-1].end if self.records else 0


def read_run(
    workflow_id: str,
    numbers: list[int],
    read: ReadSegment,
    fetch: Fetch,
    seals: Seals = PLAIN,
    *,
    place: Callable[[int], str] = segment_name,
    attempt: int | None = None,
    known: RunImage | None = None,
) -> RunImage:
    """Join the segments of a run.

    Args:
        workflow_id: the run.
        numbers: the numbers of its segments, ascending.
        read: returns the bytes of a segment.
        fetch: reads large values.
        seals: the seals of the store.
        place: names a segment in errors and notices.
        attempt: read the run as this attempt left it; by default, as it is now.
        known: an earlier result; returned if the bytes are unchanged.

    Raises:
        CheckpointCorruptedError: a record of the run is damaged or missing.
        ForeignRecordError: a segment belongs to another run, or to another store.
        UnauthenticatedRecordError: there is a key, and the newest segment was written without one.
        KeyMissingError: a segment is encrypted, and there is no key.
        WrongKeyError: a segment is sealed with a key that is not available.
    """
    image = RunImage(workflow_id, newest=numbers[-1] if numbers else 0, place=place)
    if not numbers:
        return image
    if known is not None and _is_same(known, numbers, read):
        return known

    def kept(number: int) -> bytes:
        data = image.sources[number] = read(number)
        return data

    try:
        with paused_collector():  # the objects stay alive: saves 1 of 4.5 µs per result
            if attempt is None:
                chosen = _follow_back(image, numbers, kept, seals)
            else:
                chosen = _find_segments_of(image, numbers, kept, seals, attempt)
            for segment in chosen:
                _join_records(image, segment.records, fetch)
        if chosen:
            _set_run_fields(image, chosen)
    except FlowckptError:
        raise
    except _RAISED as error:
        raise _foreign_content_error(image, error) from error
    return image


def _set_run_fields(image: RunImage, chosen: list[Segment]) -> None:
    """Set the fields of a run that come from its segments, apart from their records."""
    image.started_at = _find_start(chosen)
    for segment in chosen:
        if segment.sections:
            image.last_sequence = max(image.last_sequence, segment.header["last_sequence"])
        if (cut := segment.adoption) is not None:
            image.last_sequence = max(image.last_sequence, cut.last_sequence)
            image._deleted.update(cut.deleted)


_RAISED = (AttributeError, LookupError, OverflowError, TypeError, ValueError)
"""The exceptions that Python raises for content that no valid record has."""


def _foreign_content_error(image: RunImage, error: Exception) -> CheckpointCorruptedError:
    detail = f"its digests match, but it holds content that flowckpt never writes ({type(error).__name__}: {error})"
    return _corruption_error(image, image.newest, detail)


def _is_same(known: RunImage, numbers: list[int], read: ReadSegment) -> bool:
    """Return whether the bytes of a run are the same as when it was read."""
    sources = known.sources
    if not sources or known.newest != numbers[-1] or not sources.keys() <= {*numbers}:
        return False
    return all(read(number) == data for number, data in sources.items())


def _follow_back(image: RunImage, numbers: list[int], read: ReadSegment, seals: Seals) -> list[Segment]:
    """Return the segments that make up the run, oldest first.

    With a key, the newest segment with content must be authenticated by it. That segment holds the digest of the one that
    it continues, and so on, so it also proves segments written before there was a key.
    """
    chosen: list[Segment] = []
    for number in reversed(numbers):
        data = read(number)
        header, seal = _open_header(image, number, data, seals)
        is_cleared = header.get("kind") == "cleared"  # also below a claim that never started
        segment = None if is_cleared else _read_segment(image, number, data, None, seal)
        if is_cleared or (segment is not None and segment.is_begun):
            if seal is None:
                seals.check_plain(image.workflow_id, segment_name(number))
            elif not seal.is_verified:
                image.notices.append(f"{segment_name(number)}: only checksums were verified: there is no key")
        if segment is None:
            image.is_cleared = True
            return []
        if segment.is_begun:
            image.begun, image.seal, image.end = number, seal, segment.end
            chosen.append(segment)
            break
    while chosen and (cut := chosen[-1].adoption) is not None and cut.segment > 0:
        if cut.segment not in numbers:
            raise _corruption_error(image, cut.segment, "it is missing, and a later one continues it")
        data = read(cut.segment)
        _, seal = _open_header(image, cut.segment, data, seals)
        chosen.append(_read_segment(image, cut.segment, data, cut, seal))
    if chosen and (pack := chosen[-1]).sections:
        chosen += _trace_lineage(image, pack, max(pack.sections) if len(chosen) == 1 else [*pack.sections][-1])
    return chosen[::-1]


def _find_start(chosen: list[Segment]) -> datetime | None:
    """Return when the first checkpoint of a run was saved, from the newest segment that records it, else from the first."""
    for segment in reversed(chosen):
        said = segment.header["started_at"] if segment.sections else segment.adoption and segment.adoption.started_at
        if said:
            return datetime.fromisoformat(said)
    heads = (record.head for segment in chosen for record in segment.records if record.deletes is None)
    first = next(heads, None)
    return None if first is None else datetime.fromisoformat(first["saved_at"])


def _trace_lineage(image: RunImage, pack: Segment, attempt: int) -> list[Segment]:
    try:
        return pack.lineage(attempt)
    except SegmentDamagedError as damage:
        raise _corruption_error(image, pack.header["segment"], str(damage)) from damage


def _find_segments_of(
    image: RunImage, numbers: list[int], read: ReadSegment, seals: Seals, attempt: int
) -> list[Segment]:
    """Return the segments of the run at the end of an attempt, oldest first: its own, or those in a pack.

    If the run is read through a pack, the attempts below it are, too, even if their segments still exist: the pack no
    longer records what was removed from them.
    """
    if attempt < 1:  # the first segment continues nothing
        return []

    def inspect(number: int) -> tuple[bool, Cut | None]:
        if number == attempt:
            return True, Cut(0)
        data = read(number)
        header, seal = _open_header(image, number, data, seals)
        if header.get("kind") is not None:
            return True, None
        try:
            cut = parse_adoption(data, number=number, seal=seal)
        except SegmentDamagedError as damage:
            raise _corruption_error(image, number, str(damage)) from damage
        return cut is not None, cut

    counted = dict(select_segments([number for number in numbers if number >= attempt], inspect))
    if (lowest := min(counted, default=attempt)) > attempt:
        data = read(lowest)
        header, seal = _open_header(image, lowest, data, seals)
        if header.get("kind") is not None and seal is None:
            seals.check_plain(image.workflow_id, segment_name(lowest))
        if header.get("kind") == "cleared":
            image.is_cleared = True
            return []
        if (cut := inspect(lowest)[1]) is not None and cut.generation:  # it started later
            return []
        if header.get("kind") == PACK:
            pack = _read_segment(image, lowest, data, None, seal)
            held = max((each for each in pack.sections if each <= attempt), default=0)
            return [*_trace_lineage(image, pack, held)[::-1]] if held else []
    chosen = _follow_back(image, [number for number in numbers if number <= attempt], read, seals)
    if chosen and image.begun == attempt and (seen := counted.get(attempt, 0)) is not None:
        chosen[-1].records = [record for record in chosen[-1].records if record.end <= seen]
    return chosen


def _open_header(image: RunImage, number: int, data: bytes, seals: Seals) -> tuple[dict[str, Any], LineSeal | None]:
    return open_header(image.workflow_id, number, data, seals, image.place)


def open_header(
    workflow_id: str, number: int, data: bytes, seals: Seals, place: Callable[[int], str] = segment_name
) -> tuple[dict[str, Any], LineSeal | None]:
    """Return the verified header of a segment, and the seal of its lines.

    Args:
        workflow_id: the run.
        number: the segment.
        data: its bytes.
        seals: the seals of the store.
        place: names a segment in errors.

    Raises:
        CheckpointCorruptedError: it is damaged.
        ForeignRecordError: it belongs to another run, or to another store.
        KeyMissingError: it is encrypted, and there is no key.
        WrongKeyError: it is sealed with a key that is not available.
    """
    try:
        header, end, _ = parse_header(data)
    except SegmentDamagedError as damage:
        raise CheckpointCorruptedError(workflow_id, location=place(number), detail=str(damage)) from damage
    check_schema(header.get("schema_version"))
    if header.get("workflow_id") != workflow_id or header.get("segment") != number:
        raise ForeignRecordError(
            f"{place(number)} of run {workflow_id!r} is segment {header.get('segment')!r} "
            f"of run {header.get('workflow_id')!r}",
            workflow_id=workflow_id,
            found=str(header.get("workflow_id")),
            remedy="It was moved or copied between runs; put it back where it belongs.",
        )
    try:
        seal = seals.find_seal(workflow_id, number, header, place(number))
        if seal is not None:
            seal.verify(data[: end - 1 - TRAILER], 0, START)
    except SealBrokenError as broken:
        detail = f"the header does not open: {broken}"
        raise CheckpointCorruptedError(workflow_id, location=place(number), detail=detail) from broken
    return header, seal


def _read_segment(image: RunImage, number: int, data: bytes, cut: Cut | None, seal: LineSeal | None) -> Segment:
    try:
        segment = parse_segment(data, number=number, cut=cut, seal=seal)
    except SegmentDamagedError as damage:
        raise _corruption_error(image, number, str(damage)) from damage
    if segment.notice:
        image.notices.append(f"{image.place(number)}: {segment.notice}")
    return segment


def _join_records(image: RunImage, records: list[Record], fetch: Fetch) -> None:
    made: list[StepResult] = []
    large: dict[int, Blobs] = {}
    notable: list[int] = []
    count, first, last = len(image.history.results), image._first, image.last_sequence
    for record in records:
        if (plain := record.plain) is not None:
            made.append(plain)
            count += 1
            record.count = count
            if not last < record.sequence == count + 1:
                raise _order_error(image, record)
            last = record.sequence
            if record.segment not in first:
                first[record.segment] = record
            continue
        head = record.head
        try:
            if record.results:
                source = record if TAG not in record.opened else None
                for place, document in enumerate(record.results):
                    result, blobs = make_result(document, fetch, source, place)
                    if blobs:
                        large[len(made)] = blobs
                    notable.append(len(made))
                    made.append(result)
                count += len(record.results)
            if (deletes := head.get("deletes")) is None:
                sequence = head["sequence"]
                if record.evicts:
                    image._deleted.update(each for each in record.evicts if each <= last)
                if sequence <= last or head["results"] != count:
                    raise _order_error(image, record)
                last = sequence
                if record.segment not in first:
                    first[record.segment] = record
            else:
                image._deleted.update(each for each in deletes if each <= last)
        except (DecodingError, KeyError, TypeError) as error:
            raise _corruption_error(image, record.segment, f"before byte {record.end}: {error}") from error
        record.results = ()  # the history holds them now
        record.count = count
    image.records += records
    image.last_sequence = last
    if made:
        image.history.extend(made, large, functools.partial(extract_results, records), notable)


def _order_error(image: RunImage, record: Record) -> CheckpointCorruptedError:
    return _corruption_error(image, record.segment, f"byte {record.end}: checkpoint {record.sequence} is out of order")


def _corruption_error(image: RunImage, number: int, detail: str) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(image.workflow_id, location=image.place(number), detail=detail)


# The runs of a store whose records form a log: lines of a file, or objects of a bucket.


def make_run_info(
    workflow_id: str, attempt: int, started_at: datetime, first: Mapping[str, Any], last: Mapping[str, Any]
) -> RunInfo:
    """Return a run as listed, from two records of an attempt, unverified.

    Args:
        workflow_id: the run.
        attempt: its newest attempt.
        started_at: when its first checkpoint was saved.
        first: the first checkpoint of the attempt.
        last: the last checkpoint, without the fields that equal those of the first.
    """
    return RunInfo(
        workflow_id,
        last.get("workflow_name") or first["workflow_name"],
        Status(last.get("status", STATUS_OF_REASON[Reason(last["reason"])])),
        attempt,
        started_at,
        datetime.fromisoformat(last["saved_at"]),
        last["results"],
        decode(last["metadata"] if "metadata" in last else first["metadata"]),
    )


@attrs.frozen(eq=False, repr=False)
class LoadedRun(FieldEquality):
    """A run that was read.

    Attributes:
        image: its records.
        fetch: reads its large values.
    """

    image: RunImage
    fetch: Fetch

    def latest(self, attempt: int | None = None) -> CheckpointData | None:
        """Return the newest checkpoint of the run, or of an attempt."""
        records, image = self.image.records, self.image
        newest = (
            index
            for index in reversed(range(len(records)))
            if image.is_checkpoint(records[index]) and attempt in (None, records[index].segment)
        )
        index = next(newest, None)
        return None if index is None else image.data(index, self.fetch)

    def all(self, attempt: int) -> list[CheckpointData]:
        """Return the checkpoints of an attempt, oldest first."""
        records = self.image.records
        indices = [index for index in self.image.checkpoints() if records[index].segment == attempt]
        return [self.image.data(index, self.fetch) for index in indices]

    def check_values(self) -> None:
        """Read each large value of the run.

        Raises:
            CheckpointCorruptedError: one is damaged or missing.
        """
        image = self.image
        held = {digest: blob for blobs in image.history.blobs.values() for digest, blob in blobs.items()}
        for index in image.checkpoints():
            values = image.data(index, self.fetch).held_values
            held.update({each.digest: each for each in values if isinstance(each, Blob)})
        for blob in held.values():
            blob.content()

    def info(self) -> RunInfo | None:
        """Return the run as listed, without its owner; None if it has no checkpoint."""
        data = self.latest()
        return (
            None if data is None else RunInfo.of(self.image.workflow_id, data, self.image.started_at or data.saved_at)
        )


W = TypeVar("W", bound=LogRunWriter)


class LogRuns(RunsBase[W]):
    """Runs that are read from a log."""

    _read: weakref.ref[History] | None = None

    @abstractmethod
    def load_run(self, workflow_id: str, attempt: int | None = None) -> LoadedRun:
        """Read a run as it is or as an attempt left it; empty if it was cleared or never started."""

    def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Return the newest checkpoint of an id."""
        found = self.load_run(workflow_id)
        image = found.image
        if not image.records:
            raise CheckpointNotFoundError(workflow_id)
        for index in reversed(image.checkpoints()):
            if image.records[index].head["checkpoint_id"] == checkpoint_id:
                return image.data(index, found.fetch)
        raise CheckpointNotFoundError(workflow_id, checkpoint_id)

    def load_latest(self, workflow_id: str, *, attempt: int | None = None) -> CheckpointData | None:
        """Return the newest checkpoint of the run, or of an attempt."""
        if attempt is not None:
            return self.load_run(workflow_id).latest(Selection(attempt=attempt).attempt)
        found = self.load_run(workflow_id)
        latest = found.latest()
        if latest is not None:
            self._remember(found.image)
        return latest

    def _remember(self, image: RunImage) -> None:
        """Keep a run for the claim that often follows, as long as the caller holds a result of the read."""
        image.history.read_as, self._read = copy.copy(image), weakref.ref(image.history)
        image.history.read_as.history = History()  # a cycle would keep both until garbage collection

    def _recall(self, workflow_id: str) -> RunImage | None:
        """Return the run as last read, if it is still held, and forget it."""
        image = self._peek(workflow_id)
        if image is not None:
            image.history.read_as, self._read = None, None
        return image

    def _peek(self, workflow_id: str) -> RunImage | None:
        """Return the run as last read, if it is still held."""
        history = None if self._read is None else self._read()
        image: RunImage | None = None if history is None else history.read_as
        if history is None or image is None or image.workflow_id != workflow_id:
            return None
        image = copy.copy(image)
        image.history = history
        return image

    def references(self, workflow_id: str) -> list[CheckpointRef]:
        """Return the checkpoints of a run, newest first."""
        image = self.load_run(workflow_id).image
        try:
            return image.references()[::-1]
        except _RAISED as error:
            raise _foreign_content_error(image, error) from error

    def load_attempt(self, workflow_id: str, attempt: int) -> CheckpointData | None:
        """Return the last checkpoint of an attempt as it left it."""
        latest = self._load_as_left(workflow_id, attempt).latest()
        return latest if latest is not None and latest.attempt == attempt else None

    def list_attempt(self, workflow_id: str, attempt: int) -> list[CheckpointRef]:
        """Return the checkpoints of an attempt as it left them, oldest first."""
        return [each for each in self._load_as_left(workflow_id, attempt).image.references() if each.attempt == attempt]

    def read_attempt(self, workflow_id: str, attempt: int) -> list[CheckpointData]:
        """Return the checkpoints of an attempt as it left them, oldest first, with their results."""
        return self._load_as_left(workflow_id, attempt).all(attempt)

    def _load_as_left(self, workflow_id: str, attempt: int) -> LoadedRun:
        """Read a run as an attempt left it, without the checkpoints that later attempts deleted."""
        now = self.load_run(workflow_id)
        if now.image.records and now.image.records[-1].segment == attempt:
            return now
        then = self.load_run(workflow_id, attempt)
        then.image.forget_deleted(now.image)
        return then
