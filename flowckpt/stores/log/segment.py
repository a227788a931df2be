r"""One segment file: its lines, its header, its adoption, and its records, each verified by the chain of digests.

A segment belongs to one attempt and is only ever appended to. Its lines:

1. the header: which run, which segment, who wrote it;
2. in every segment but the first, the adoption: which earlier segment it continues, up to which point, with a copy of the
   last adopted line (which may never have reached the disk);
3. records: checkpoints with the results that are new in them, and deletions of checkpoints.

A *pack*, written by a compaction, holds the records of several attempts. Instead of an adoption, a line before the records
of each attempt names the attempt and what it continues.

A line is readable JSON, with a digest that covers it and all lines before it::

    digest(0)  = 32 zero bytes
    line(n)    = BODY,"sha256":"DIGEST(n)"}\n        where BODY is a JSON object without its last brace
    digest(n)  = SHA-256(digest(n - 1) + BODY)

The digest is at a fixed distance from the end of the line, so it is checked before a byte is parsed. It covers every
byte except itself, the quotes and braces around it (compared literally) and the line feed (which ends the line).

Nothing here touches the disk: bytes in, a `Segment` out, or `SegmentDamagedError`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.codec.blob import TAG
from flowckpt.core.codec.results import (
    AFTER_OUTPUT,
    AFTER_PLAIN_OUTPUT,
    TIME,
    check_origin,
    encode_time,
    make_plain_result,
)
from flowckpt.core.records.checkpoint import SCHEMA_VERSION
from flowckpt.core.records.listing import Owner
from flowckpt.stores.log import sealing
from flowckpt.stores.log.sealing.protection import SealBrokenError

if TYPE_CHECKING:
    from flowckpt.core.records import StepResult
    from flowckpt.core.system.process import ProcessIdentity
    from flowckpt.stores.log.sealing.lines import LineSeal


START = bytes(32)
MARK = b',"sha256":"'
_END = b'"}'
TRAILER = len(MARK) + 64 + len(_END)
SECTOR = 512
PACKED = b'{"packed":"'
"""The start of a compressed body."""
NOTE = (1 << 64) - 1
"""The line number used to sign content outside the lines of a segment; no line has it."""


def chain_line(body: bytes, previous: bytes) -> tuple[bytes, bytes]:
    """Return the line of a body, line feed included, and its digest.

    Args:
        body: a JSON object without its closing brace.
        previous: the digest of the line before.
    """
    digest = sha256(previous + body).digest()
    return b"".join((body, MARK, digest.hex().encode(), b'"}\n')), digest


def verify_line(line: bytes, previous: bytes) -> bytes | None:
    """Return the digest of a line; None if the line is incomplete or did not follow `previous`.

    Args:
        line: the line without its line feed.
        previous: the digest of the line before.
    """
    cut = len(line) - TRAILER
    if cut < 1 or line[cut : cut + 11] != MARK or line[-2:] != _END:
        return None
    digest_so_far = sha256(previous)
    digest_so_far.update(memoryview(line)[:cut])  # a line may be as long as the run: avoid copies
    digest = digest_so_far.digest()
    return digest if digest.hex().encode("ascii") == line[cut + 11 : -2] else None


def has_line_form(line: bytes) -> bool:
    """Return whether a line has the form of a complete one, without checking its digest."""
    cut = len(line) - TRAILER
    return cut >= 1 and line[:1] == b"{" and line[cut : cut + 11] == MARK and line[-2:] == _END


def is_torn(tail: bytes, offset: int) -> bool:
    """Return whether the tail of a file is a write that a crash cut short, and not damage.

    A torn write leaves a prefix of the record, or the record with whole sectors that never reached the disk and read
    as zeros (sectors are written whole or not at all). Anything else after the last good line (a changed byte, a
    line feed in the wrong place, a good line after a bad one) did not come from a crash.

    Args:
        tail: everything after the last good line, up to the end of the file.
        offset: its offset in the file.
    """
    if b"\n" not in tail and not has_line_form(tail) and not has_line_form(tail[:-1]):
        return True
    if any(has_line_form(line) and 0 not in line for line in tail.split(b"\n")[1:]):
        return False
    return has_zero_sector(tail, offset)


def has_zero_sector(tail: bytes, offset: int) -> bool:
    """Return whether a sector of the file is all zeros, as far as it is in the tail."""
    start = offset - offset % SECTOR
    for begin in range(start, offset + len(tail), SECTOR):
        part = tail[max(begin, offset) - offset : begin + SECTOR - offset]
        if part and not part.strip(b"\0"):
            return True
    return False


PACK = "pack"
"""The kind of a segment that holds several attempts."""

RESULTS = b'{"step_results":['
_NEXT = b"\n" + RESULTS
_CHUNK = 1 << 20
"""Bytes of lines that are parsed together."""
_MOST_MISSES = 100
"""After this many consecutive lines that cannot be parsed together, the rest of the segment is parsed line by line."""
_SECTION = b'{"attempt":'
_DIGEST = MARK + b'%b"}'
_BESIDE = ("seen", "started_at", "generation")
_ARRAY = len(RESULTS) - 1
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # a value at a place, and its end; written in C


class SegmentDamagedError(Exception):
    """A segment is damaged at an offset; the store turns this into `CheckpointCorruptedError`."""

    def __init__(self, offset: int, detail: str) -> None:
        super().__init__(f"byte {offset}: {detail}")
        self.offset = offset
        self.detail = detail


@attrs.frozen(eq=False, repr=False)
class Cut:
    """The point up to which a successor continues a segment.

    Attributes:
        segment: the continued segment; 0 for none.
        size: the number of its bytes that are continued.
        records: the number of its lines that are continued, after header and adoption.
        digest: the digest of the last of these lines, in hex.
        results: how many results the run has at this point.
        last_line: the last of these lines, without its line feed.
        last_sequence: the highest sequence that the run ever had by then.
        deleted: sequences whose deletion was recorded after the cut: a deletion stays valid even if the run went back to a
            point before it, and also for checkpoints after the cut.
        seen: the newest segment that the successor found, and how many bytes of it the successor had read, whatever it
            continues: everything written after that, or to a segment between the two, was refused. None if not recorded.
        started_at: when the run's first checkpoint was saved; empty if there was none, or it was not recorded.
        generation: whether the successor starts a generation of the run: then nothing before it counts.
    """

    segment: int
    size: int = 0
    records: int = 0
    digest: str = ""
    results: int = 0
    last_line: str = ""
    last_sequence: int = 0
    deleted: Sequence[int] = ()
    seen: Sequence[int] | None = None
    started_at: str = ""
    generation: bool = False

    def to_document(self) -> dict[str, Any]:
        """Return the cut as stored in the adoption line, without fields that an earlier version would refuse."""
        adopts = attrs.asdict(self)
        beside = {name: adopts.pop(name) for name in _BESIDE}
        return {"adopts": adopts, **{name: value for name, value in beside.items() if value}}


@attrs.define(eq=False, repr=False)
class Record:
    """One line after the header and the adoption.

    Attributes:
        data: the bytes that contain the line: its file's, or its own.
        start: its start in `data`.
        stop: its end in `data`, without its line feed.
        end: the end of the line in its file.
        segment: the attempt that wrote it: the number of its segment.
        file: the number of the file that contains it: its segment, or a pack.
        sequence: the sequence of its checkpoint; 0 for a deletion.
        plain: the result of the step before the checkpoint, if the line holds nothing else.
        results: documents of its new results, for any other line.
        deletes: the sequences that it deletes, for a deletion.
        count: how many results the run has after it, once the segments of the run are joined.
        unsealed: the line as it was before sealing; None if it was not.
    """

    data: bytes
    start: int
    stop: int
    end: int
    segment: int
    file: int
    sequence: int = 0
    plain: StepResult | None = None
    results: Sequence[Any] = ()
    deletes: list[int] | None = None
    count: int = 0
    unsealed: bytes | None = None
    _head: Mapping[str, Any] | None = None

    @property
    def head(self) -> Mapping[str, Any]:
        """The checkpoint's fields, or `{"deletes": [sequence, …]}`."""
        if self._head is None:  # a plain line
            self._head, _ = _split_document(json.loads(self.line))
        return self._head

    @property
    def evicts(self) -> Sequence[int]:
        """The sequences that this save removes."""
        found: Sequence[int] = () if self._head is None else self._head.get("evicts", ())
        return found

    @property
    def line(self) -> bytes:
        """The line as stored, without its line feed."""
        return self.data[self.start : self.stop]

    @property
    def opened(self) -> bytes:
        """The line as it was before sealing."""
        return self.line if self.unsealed is None else self.unsealed

    @property
    def digest(self) -> bytes:
        """The digest of the line."""
        return bytes.fromhex(self.data[self.stop - TRAILER + len(MARK) : self.stop - 2].decode())

    @property
    def body(self) -> bytes:
        """The body with which a writer copies the record to another segment, sealing it again."""
        return self.opened[:-TRAILER]


@attrs.define(eq=False, repr=False)
class Segment:
    """A segment that was read.

    Attributes:
        header: the header's fields.
        adoption: what it continues; None if it has no such line (yet).
        records: its records.
        notice: a description of dropped bytes, if any.
        seal: the seal of its lines; None if they are not sealed.
        sections: for a pack: the content of each attempt, by its number.
        end: the digest of its last line.
    """

    header: Mapping[str, Any]
    adoption: Cut | None
    records: list[Record]
    notice: str = ""
    seal: LineSeal | None = None
    sections: dict[int, Segment] = attrs.field(factory=dict)
    end: bytes = START

    @property
    def is_begun(self) -> bool:
        """Whether the segment has its first record, so that readers follow it.

        An adoption alone does not count: if the run goes back, it would drop results before a record confirms it.
        """
        return bool(self.records or self.sections)

    def lineage(self, attempt: int) -> list[Segment]:
        """Return an attempt in a pack and what it continues, newest first, each up to the continued point.

        Raises:
            SegmentDamagedError: a continued attempt is not in the pack.
        """
        found = [self.sections[attempt]]
        while (cut := found[-1].adoption) is not None and cut.segment:
            section = self.sections.get(cut.segment)
            if section is None or len(section.records) < cut.records:
                raise SegmentDamagedError(
                    0, f"the pack lacks records of attempt {cut.segment}, which a later attempt continues"
                )
            found.append(attrs.evolve(section, records=section.records[: cut.records]))
        return found


def find_removed(records: Sequence[Record]) -> set[int]:
    """Return the sequences that records remove. A save that names its own sequence removes only an earlier record with it.

    Args:
        records: all records, from the first of the run.
    """
    found: set[int] = set()
    last = 0
    for record in records:
        if record.plain is None and (removed := record.deletes or record.evicts):
            found.update(sequence for sequence in removed if sequence <= last)
        last = record.sequence or last
    return found


def make_header(workflow_id: str, number: int, process: ProcessIdentity, now: datetime) -> dict[str, Any]:
    """Return the header of a segment that a process claims."""
    moment = encode_time(now)
    return {
        "flowckpt": "segment",
        "schema_version": SCHEMA_VERSION,
        "workflow_id": workflow_id,
        "segment": number,
        "owner": {**attrs.asdict(process), "acquired_at": moment},
        "created_at": moment,
    }


def parse_owner(header: Mapping[str, Any]) -> Owner:
    """Return the owner that a header names.

    Raises:
        KeyError, TypeError, ValueError: it names none.
    """
    owner = header["owner"]
    return Owner(**{**owner, "acquired_at": datetime.fromisoformat(owner["acquired_at"])})


def parse_header(data: bytes) -> tuple[dict[str, Any], int, bytes]:
    """Return the header's fields, its end, and its digest.

    Raises:
        SegmentDamagedError: the header is incomplete. That is damage: it was synced before the segment got its name.
    """
    end = data.find(b"\n")
    digest = verify_line(data[:end], START) if end > 0 else None
    if digest is None:
        raise SegmentDamagedError(0, "the header does not match its checksum")
    header: dict[str, Any] = json.loads(data[:end])
    return header, end + 1, digest


def parse_segment(data: bytes, *, number: int, cut: Cut | None = None, seal: LineSeal | None = None) -> Segment:
    """Read a segment.

    Args:
        data: the file's bytes.
        number: the number in the file's name.
        cut: the point up to which the successor continues it; None for the newest segment, whose end may be torn.
        seal: the seal of its lines, according to its header.

    Raises:
        SegmentDamagedError: it is damaged, other than by a torn end.
    """
    header, position, digest = parse_header(data)
    adoption: Cut | None = None
    records: list[Record] = []
    limit = len(data) if cut is None else cut.size
    notice, attempt, place = "", 0, 0
    sections: dict[int, Segment] = {}
    is_pack = header.get("kind") == PACK
    misses = _MOST_MISSES if is_pack or seal is not None else 0
    while position < limit:
        if misses < _MOST_MISSES and (place or number == 1):
            found_here, position, digest = _read_records(data, position, limit, digest, number)
            records += found_here
            place += len(found_here)
            misses = 0 if found_here else misses + 1
            if position >= limit:
                break
        end = data.find(b"\n", position, limit)
        line = data[position : limit if end < 0 else end]
        found = verify_line(line, digest) if end >= 0 else None
        if found is None:
            line, found, end, notice = _handle_damage(data, position, digest, cut)
            if found is None:
                break
        place += 1
        plain = _unseal_line(line, position, place, digest, seal)
        if is_pack and plain.startswith(_SECTION):
            attempt, section = _parse_section(plain, position)
            sections[attempt], records = section, section.records
        elif place == 1 and number > 1:
            adoption = _parse_adoption_line(plain, position, number)
        else:
            head, results = _parse_record(plain, position)
            unsealed = None if plain is line else plain
            made = Record(line, 0, len(line), end + 1, attempt if is_pack else number, number, unsealed=unsealed)
            _fill_record(made, head, results)
            records.append(made)
        position, digest = end + 1, found
    if cut is not None:
        _check_cut(cut, records, position, digest)
    elif is_pack and sum(len(each.records) + 1 for each in sections.values()) != header["lines"]:
        raise SegmentDamagedError(position, f"it has fewer than the {header['lines']} lines that were written")
    return Segment(header, adoption, [] if is_pack else records, notice, seal, sections, digest)


def _unseal_line(line: bytes, position: int, place: int, previous: bytes, seal: LineSeal | None) -> bytes:
    """Return a line as it was before sealing, with its own trailer."""
    if seal is None and not line.startswith(PACKED):
        return line
    body = line[:-TRAILER]
    try:
        found = sealing.lines.inflate(body) if seal is None else seal.open(body, place, previous)
    except SealBrokenError as broken:
        raise SegmentDamagedError(position, f"a record does not open: {broken}") from broken
    if found.startswith(PACKED):
        raise SegmentDamagedError(position, "a record is packed within a packed one")
    return found + line[-TRAILER:]


def parse_adoption(data: bytes, *, number: int, seal: LineSeal | None = None) -> Cut | None:
    """Return what a segment continues, without its records; None if it has no record yet, or continues nothing.

    Args:
        data: the file's bytes.
        number: the number in the file's name.
        seal: how its lines are sealed, according to its header.

    Raises:
        SegmentDamagedError: the part that is read is damaged.
    """
    _, position, digest = parse_header(data)
    end = data.find(b"\n", position)
    if end < 0 or data.find(b"\n", end + 1) < 0 or verify_line(data[position:end], digest) is None:
        segment = parse_segment(data, number=number, seal=seal)
        return segment.adoption if segment.is_begun else None
    return _parse_adoption_line(_unseal_line(data[position:end], position, 1, digest, seal), position, number)


def _handle_damage(data: bytes, position: int, digest: bytes, cut: Cut | None) -> tuple[bytes, bytes | None, int, str]:
    """Handle a line that does not match: take the copy of the last adopted line, drop a torn end, or raise for damage."""
    if cut is not None:
        copy = cut.last_line.encode()
        found = verify_line(copy, digest) if position + len(copy) + 1 == cut.size else None
        if found is None or found.hex() != cut.digest:
            raise SegmentDamagedError(position, "a record does not match its checksum")
        return copy, found, cut.size - 1, f"the last record was restored from its copy in segment {cut.segment + 1}"
    tail = data[position:]
    # If only the first or last byte of a record is in a sector that never reached the disk, the record can be restored.
    for whole, end in ((tail, len(tail)), (tail[:-1], len(tail) - 1)) if b"\n" not in tail else ():
        found = verify_line(whole, digest)
        if found is not None and (end == len(tail) or tail[-1] == 0):
            return whole, found, position + end, "the last record lacked its line feed"
    if tail[:1] == b"\0" and tail[-1:] == b"\n" and (found := verify_line(b"{" + tail[1:-1], digest)) is not None:
        return b"{" + tail[1:-1], found, position + len(tail) - 1, "the last record lacked its first byte"
    if is_torn(tail, position):
        return b"", None, position, f"a torn record of {len(tail)} bytes at its end was dropped"
    first = tail.split(b"\n", 1)[0]
    what = "does not match its checksum" if has_line_form(first) else "is not whole"
    raise SegmentDamagedError(position, f"a record {what}")


def _check_cut(cut: Cut, records: list[Record], position: int, digest: bytes) -> None:
    if position != cut.size or digest.hex() != cut.digest or len(records) != cut.records:
        raise SegmentDamagedError(position, f"it ends before byte {cut.size}, up to which a later segment continues it")


def _parse_adoption_line(line: bytes, position: int, number: int) -> Cut:
    document = json.loads(line)
    try:
        beside = {name: document[name] for name in _BESIDE if name in document}
        cut = Cut(**document["adopts"], **beside)
    except (KeyError, TypeError) as error:
        raise SegmentDamagedError(position, "the second line is not a valid adoption") from error
    if cut.segment >= number:
        raise SegmentDamagedError(position, f"it claims to continue segment {cut.segment}")
    return cut


def _parse_section(line: bytes, position: int) -> tuple[int, Segment]:
    document = json.loads(line)
    try:
        continues = document["continues"]
        return document["attempt"], Segment(document, None if continues is None else Cut(**continues), [])
    except (KeyError, TypeError) as error:
        raise SegmentDamagedError(
            position, "a line of a pack does not name the attempt of the records after it"
        ) from error


def _parse_record(line: bytes, position: int) -> tuple[dict[str, Any], list[Any]]:
    """Return the head of a line and the documents of its results."""
    if not line.startswith(RESULTS):
        return json.loads(line), []
    try:
        text = line.decode()
        # All at once: one by one, the keys would be created again for each (2.6 instead of 1.7 µs per result).
        results, at = _scan(text, _ARRAY)
        return _split_document({"step_results": results, **json.loads("{" + text[at + 1 :])})
    except (StopIteration, ValueError, LookupError, TypeError) as error:  # only a foreign writer: its digest matches
        raise SegmentDamagedError(position, "a record is not JSON of this format") from error


def _split_document(document: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return the head of a parsed line, with omitted fields filled in, and the documents of its results."""
    results: list[Any] = document.pop("step_results")
    if results and "checkpoint_id" not in document:  # omitted if it is the path of the step before the checkpoint
        document["checkpoint_id"] = results[-1]["path"]
    fill_in(document)
    return document, results


def _fill_record(record: Record, head: dict[str, Any], results: Sequence[Any]) -> None:
    record._head, record.results, record.deletes = head, results, head.get("deletes")
    if record.deletes is None and type(sequence := head.get("sequence")) is int:
        record.sequence = sequence


@functools.cache
def _compile_plain_end() -> Callable[[bytes, int], re.Match[bytes] | None]:
    """Return a function that matches the rest of a line with one plain result, after its output."""
    rest = rb'\],"sequence":(?P<sequence>[1-9][0-9]*+),"saved_at":"' + TIME + rb'","sha256":".{64}"\}'
    return re.compile(AFTER_PLAIN_OUTPUT + rest, re.DOTALL).fullmatch


def _read_records(
    data: bytes, position: int, limit: int, digest: bytes, number: int
) -> tuple[list[Record], int, bytes]:
    """Read consecutive records with results, many at once.

    Stops at any other line (a deletion, a torn end, damage).

    Returns:
        The records, their end, and the digest of the last.
    """
    # NOTE: digests first, then one parse per megabyte of lines instead of one per line; measured by
    # `python -m benchmarks --only users`, a further finished step.
    found: list[Record] = []
    while (end := data.rfind(b"\n", position, min(position + _CHUNK, limit)) + 1) > 0:
        chunk = data[position : end - 1]
        lines = chunk.split(b"\n")
        has_form = chunk.startswith(RESULTS) and chunk.count(_NEXT) == len(lines) - 1
        proved = _verify_lines(lines, digest, has_form=has_form)
        if not proved:
            break
        is_all = len(proved) == len(lines)
        try:
            if not chunk.isascii():
                chunk.decode()  # fields that are read lazily must be text
            has_tags = chunk.find(TAG) >= 0
            here = _parse_lines(data, lines if is_all else lines[: len(proved)], position, number, has_tags=has_tags)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            break
        found += here
        position, digest = here[-1].end, proved[-1]
        if not is_all:
            break
    return found, position, digest


def _verify_lines(lines: list[bytes], digest: bytes, *, has_form: bool) -> list[bytes]:
    """Return the digests of lines with results, up to the first line of another form or outside the chain.

    Args:
        lines: the lines.
        digest: the digest of the line before.
        has_form: whether all of them start like lines with results.
    """
    digests: list[bytes] = []
    for line in lines:
        digest = sha256(digest + line[:-TRAILER]).digest()
        digests.append(digest)
    stated_trailers = b"".join([line[-TRAILER:] for line in lines])
    between = (_END + MARK).decode()
    whole = b"".join(digests).hex("|", 32).replace("|", between).encode()
    if has_form and stated_trailers == MARK + whole + _END:
        return digests
    proved = 0
    for line, made in zip(lines, digests, strict=True):
        if not line.endswith(_DIGEST % made.hex().encode()) or not line.startswith(RESULTS):
            break
        proved += 1
    return digests[:proved]


def _parse_lines(data: bytes, lines: list[bytes], position: int, number: int, *, has_tags: bool) -> list[Record]:
    """Return the records of verified lines that are consecutive in the data of a segment."""
    end_of, first = _compile_plain_end(), len(RESULTS)
    ends: list[re.Match[bytes] | None] = []
    pieces: list[bytes] = []
    for line in lines:
        found, end = None, line.find(AFTER_OUTPUT)
        if end > 0 and not (has_tags and line.find(TAG, 0, end) >= 0):
            found = end_of(line, end)
        ends.append(found)
        pieces.append(line if found is None else line[first:end] + b"}")
    documents = json.loads((b"[%b]" % b",".join(pieces)).decode())
    if len(documents) != len(lines):
        raise ValueError("a line is not one document")
    here: list[Record] = []
    origins: dict[bytes, bytes] = {}
    for line, found, document in zip(lines, ends, documents, strict=True):
        stop = position + len(line)
        record = Record(data, position, stop, stop + 1, number, number)
        here.append(record)
        position = stop + 1
        if found is None:
            _fill_record(record, *_split_document(document))
            continue
        if "output" not in document:
            document["output"] = None
        if len(document) != 2 or type(document["path"]) is not str:
            _fill_record(record, *_split_document(json.loads(line)))  # more than a plain result
            continue
        origin, arguments, sequence = found.groups()
        if (known := origins.get(origin)) is None:
            known = origins[origin] = check_origin(origin)
        record.sequence = int(sequence)
        record.plain = make_plain_result(document, known, arguments, record)
    return here


def fill_in(head: dict[str, Any]) -> None:
    """Fill in the fields that a checkpoint after a step omits to be faster to read.

    Args:
        head: the fields of a record.
    """
    if type(sequence := head.get("sequence")) is int:
        head.setdefault("reason", "step")
        head.setdefault("results", sequence - 1)


def extract_results(records: Iterable[Record]) -> list[bytes]:
    """Return the canonical bytes of the results in records, as read."""
    lines = (record.opened for record in records)
    return [result for line in lines if line.startswith(RESULTS) for result in split_record(line)[0]]


def split_record(line: bytes) -> tuple[list[bytes], bytes]:
    """Return the canonical bytes of the results in a line, and the rest of the line up to the digest.

    Args:
        line: the line of a record, as read.
    """
    text = line.decode()
    is_ascii = len(text) == len(line)
    found: list[bytes] = []
    at = _ARRAY + 1
    while text[at] != "]":
        at += text[at] == ","
        _, end = _scan(text, at)
        found.append(line[at:end] if is_ascii else text[at:end].encode())
        at = end
    rest = line[at + 1 :] if is_ascii else text[at + 1 :].encode()
    return found, rest[:-TRAILER]
