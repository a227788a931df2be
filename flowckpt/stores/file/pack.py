"""A pack: all attempts of a run in one segment, without the checkpoints that were removed. Pure: segments in, lines out.

Nothing that an attempt recorded is lost but what was removed by name: also what a later attempt went back behind stays,
under its attempt. So each attempt keeps a part of its own, which says what it continues. The results of a removed
checkpoint stand with the next one of its attempt, or by themselves where another attempt goes on from just there. Results
keep their bytes, and so their chain of digests; the digests of lines are made anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.codec import dumps
from flowckpt.core.codec.checkpoints import CARRIED
from flowckpt.stores.log.image import counted_segments
from flowckpt.stores.log.segment import (
    PACK,
    RESULTS,
    Cut,
    Record,
    Segment,
    SegmentDamagedError,
    read_segment,
    split_record,
)

if TYPE_CHECKING:
    from flowckpt.stores.log.sealing.lines import LineSeal


_DELETES = b'{"deletes":'
_SECTION_KEYS = ("attempt", "created_at", "owner")

OpenHeader = Callable[[int, bytes], tuple[Mapping[str, Any], "LineSeal | None"]]
"""Returns the header of a segment, and how its lines are sealed: number and bytes in."""


@attrs.define(eq=False)
class Attempts:
    """All that a run recorded, attempt by attempt.

    Attributes:
        files: how many segments it was read from, those without records included.
        by_number: the records of each attempt, and its header.
        continues: for each attempt that goes on from another: which, and how many of its records.
        gone: attempt and place of the records of checkpoints that were removed.
        last_sequence: the highest sequence that there ever was.
        started_at: when the first checkpoint was saved.
        taken: numbers under which nothing is left: of attempts that only removed something, and of compactions.
        stale: numbers of segments that no reader follows any more, because a pack stands in for them.
        seals: how the segments that hold records are sealed; None for those that are not.
        unproved: numbers of segments that are not authenticated and hold records that no later one vouches for.
    """

    files: int = 0
    by_number: dict[int, Segment] = attrs.field(factory=dict)
    continues: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    gone: set[tuple[int, int]] = attrs.field(factory=set)
    last_sequence: int = 0
    started_at: str = ""
    taken: set[int] = attrs.field(factory=set)
    stale: list[int] = attrs.field(factory=list)
    seals: list[LineSeal | None] = attrs.field(factory=list)
    unproved: list[int] = attrs.field(factory=list)

    def lineage(self, attempt: int) -> list[tuple[int, int]]:
        """Return the parts that an attempt is made of, oldest first: an attempt and how many of its records."""
        found = [(attempt, len(self.by_number[attempt].records))]
        while (before := self.continues.get(found[-1][0])) is not None:
            found.append(before)
        return found[::-1]


def read_attempts(numbers: list[int], read: Callable[[int], bytes], open_header: OpenHeader) -> Attempts:
    """Read all that the segments of a run hold, also what no longer counts.

    Args:
        numbers: the numbers of the segments that were begun before the caller's own, ascending.
        read: returns the bytes of one of them.
        open_header: returns the header of one, and how its lines are sealed.

    Raises:
        SegmentDamagedError: one is damaged, or what it continues is missing.
    """
    found = Attempts()
    adopted: dict[int, list[Cut]] = {}
    looked: dict[int, tuple[Segment, LineSeal | None]] = {}
    pack = 0

    def look(number: int) -> tuple[bool, Cut | None]:
        data = read(number)
        header, seal = open_header(number, data)
        is_pack = header.get("kind") == PACK
        segment = read_segment(data, number=number, seal=seal) if is_pack else _whole(data, number, adopted, seal)
        looked[number] = segment, seal
        return is_pack or segment.is_begun, segment.adoption

    for number, end in counted_segments(numbers, look):
        segment, seal = looked.pop(number)
        header = segment.header
        if header.get("kind") == PACK:
            pack = number
            found.by_number.update(segment.sections)
            _note_seal(found, number, seal, segment.sections.values(), adopted.get(number, ()))
            found.last_sequence = header["last_sequence"]
            found.started_at = found.started_at or header["started_at"]
            found.taken.update(header.get("taken", ()))
            found.stale = [each for each in numbers if each < number]
            break
        if end is not None:
            segment.records = [record for record in segment.records if record.end <= end]
            if not segment.is_begun:  # all of it was refused
                continue
        found.started_at = found.started_at or (segment.adoption.started_at if segment.adoption else "")
        _note_seal(found, number, seal, [segment], adopted.get(number, ()))
        found.by_number[number] = segment
        if segment.adoption is not None:
            adopted.setdefault(segment.adoption.segment, []).append(segment.adoption)
    found.files = len(numbers) - len(found.stale)
    for attempt in sorted(found.by_number):
        _connect(found, attempt, pack)
    if not found.started_at and found.by_number:
        lowest = found.by_number[min(found.by_number)]
        saved = (record.head["saved_at"] for record in lowest.records if record.deletes is None)
        found.started_at = next(saved, lowest.header["created_at"])
    _find_gone(found)
    _leave_empty_ends_out(found)
    return found


def _note_seal(
    found: Attempts, number: int, seal: LineSeal | None, segments: Iterable[Segment], cuts: Iterable[Cut]
) -> None:
    """Take note of how a segment is sealed, and of whether later ones hold the digests of all its records."""
    found.seals.append(seal)
    vouched = max((cut.size for cut in cuts), default=0)
    if seal is None and any(each.records and each.records[-1].end > vouched for each in segments):
        found.unproved.append(number)


def _whole(data: bytes, number: int, adopted: Mapping[int, Iterable[Cut]], seal: LineSeal | None) -> Segment:
    """Read a segment to its end; where the disk lost its last record, with the copy that its successor made."""
    segment = read_segment(data, number=number, seal=seal)
    for cut in adopted.get(number, ()):
        if len(segment.records) < cut.records:
            segment = read_segment(data, number=number, cut=cut, seal=seal)
    return segment


def _connect(found: Attempts, attempt: int, pack: int) -> None:
    cut = found.by_number[attempt].adoption
    if cut is None:
        return
    found.last_sequence = max(found.last_sequence, cut.last_sequence)
    before, count = cut.segment, cut.records
    if not before:
        return
    if pack and attempt > pack >= before:
        before, count = _in_pack(found, pack, cut) if before == pack else (0, 0)
    continued = found.by_number.get(before)
    if continued is None or len(continued.records) < count:
        raise SegmentDamagedError(0, f"attempt {before} is not there, and attempt {attempt} continues it")
    found.continues[attempt] = before, count


def _in_pack(found: Attempts, pack: int, cut: Cut) -> tuple[int, int]:
    for number, segment in found.by_number.items():
        for place, record in enumerate(segment.records, 1):
            if record.file == pack and record.end == cut.size:
                return number, place
    raise SegmentDamagedError(cut.size, "a later attempt goes on from a place in the pack where no record ends")


def _leave_empty_ends_out(found: Attempts) -> None:
    """Forget the newest attempts where they only removed something: what they continue is the run then."""
    while found.by_number:
        newest = max(found.by_number)
        before, count = found.continues.get(newest, (0, 0))
        has_more = any(not record.opened.startswith(_DELETES) for record in found.by_number[newest].records)
        if has_more or not before or count < len(found.by_number[before].records):
            return
        del found.by_number[newest], found.continues[newest]
        found.taken.add(newest)


def _find_gone(found: Attempts) -> None:
    """Find the checkpoints that were removed, by whichever attempt: no two have the same sequence."""
    ends = {
        attempt: max((n for b, n in found.continues.values() if b == attempt), default=0) for attempt in found.by_number
    }
    removed: set[int] = set()
    places: dict[tuple[int, int], int] = {}
    for attempt, segment in found.by_number.items():
        if len(segment.records) > ends[attempt]:  # else a later attempt knows all that this one knows
            _find_removed(found, attempt, removed, places)
    found.gone |= {place for place, sequence in places.items() if sequence in removed}


def _find_removed(found: Attempts, attempt: int, removed: set[int], places: dict[tuple[int, int], int]) -> None:
    """Add what an attempt knows to have been removed, also of another one; and where the checkpoints stand."""
    last = 0
    for number, count in found.lineage(attempt):
        segment = found.by_number[number]
        for place, record in enumerate(segment.records[:count]):
            head = record.head
            deletes = head.get("evicts", ()) if record.deletes is None else record.deletes
            removed.update(sequence for sequence in deletes if sequence <= last)
            if record.deletes is None:
                last = max(last, head["sequence"])
                places[number, place] = head["sequence"]
        if segment.adoption is not None:
            removed.update(segment.adoption.deleted)
    found.last_sequence = max(found.last_sequence, last)


def pack_lines(
    attempts: Attempts, header: Mapping[str, Any], begun: tuple[int, tuple[str, ...]] = (0, ())
) -> list[bytes]:
    """Return the bodies of the lines of a pack, its header first.

    Args:
        attempts: all that the run recorded.
        header: the header of a segment, to be completed.
        begun: an attempt, and the steps that it left word of having begun; attempt 0 for none.
    """
    lines: list[bytes] = []
    written: dict[int, list[int]] = {}
    newest = max(attempts.by_number)
    for attempt in sorted(attempts.by_number):
        segment = attempts.by_number[attempt]
        continued = {count for before, count in attempts.continues.values() if before == attempt}
        bodies, counts = _bodies(attempts, attempt, continued, is_newest=attempt == newest)
        written[attempt] = counts
        before = attempts.continues.get(attempt)
        cut = None if before is None else {"segment": before[0], "records": written[before[0]][before[1]]}
        said = {**segment.header, "attempt": attempt}
        section = {name: said[name] for name in _SECTION_KEYS if name in said}
        if begun[0] and attempt == newest:  # its own segment may go, and with it what opens the word beside it
            section["begun"] = [begun[0], [*begun[1]]]
        lines += [dumps({**section, "continues": cut})[:-1].encode(), *bodies]
    said = {
        **header,
        "kind": PACK,
        "started_at": attempts.started_at,
        "last_sequence": attempts.last_sequence,
        "lines": len(lines),
        "taken": sorted(attempts.taken),
    }
    return [json.dumps(said, separators=(",", ":"))[:-1].encode(), *lines]


def _bodies(attempts: Attempts, attempt: int, continued: set[int], *, is_newest: bool) -> tuple[list[bytes], list[int]]:
    """Return the lines of an attempt, and for each number of its records how many lines stand for them."""
    records = attempts.by_number[attempt].records
    bodies: list[bytes] = []
    counts = [0]
    waiting: list[bytes] = []
    original = next((record.head for record in records if record.deletes is None), {})
    first: dict[str, Any] | None = None
    last = max((place for place, each in enumerate(records) if _is_kept(attempts, attempt, place, each)), default=-1)
    for place, record in enumerate(records):
        results, rest = split_record(record.opened) if record.opened.startswith(RESULTS) else ([], b"")
        waiting += results
        if _is_kept(attempts, attempt, place, record):
            carried = {name: record.head.get(name, original.get(name)) for name in CARRIED}
            is_end = is_newest and place == last
            extra = {name: value for name, value in carried.items() if first is None or value != first[name]}
            if is_end:  # so that a list need not read more than this line
                extra |= {"attempt": attempt, **{name: carried[name] for name in ("workflow_name", "metadata")}}
            first = first or carried
            bodies.append(RESULTS + b",".join(waiting) + b"]" + _completed(rest, extra, record.head))
            waiting = []
        if waiting and (place + 1 in continued or place + 1 == len(records)):
            bodies.append(RESULTS + b",".join(waiting) + b'],"deletes":[]')
            waiting = []
        counts.append(len(bodies))
    return bodies, counts


def _is_kept(attempts: Attempts, attempt: int, place: int, record: Record) -> bool:
    return record.deletes is None and (attempt, place) not in attempts.gone


def _completed(rest: bytes, extra: Mapping[str, Any], head: Mapping[str, Any]) -> bytes:
    added = {name: value for name, value in extra.items() if name not in head}
    return rest + b"," + dumps(added)[1:-1].encode() if added else rest
