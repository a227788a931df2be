"""Compaction of a run: a pack with everything that is kept is made durable, and then replaces the other segments.

1. The next segment is claimed, as for an attempt, which fences every writer. Only then the run is read.
2. The pack is written under a random name, synced, and *linked* to the name of the segment after the claim. So it is
   complete or absent, and the link fails if a new owner took the number first.
3. The directory is checked again. A later segment belongs to a new owner, which may have read the run with or without
   the pack. So nothing is removed then, neither the other segments nor the pack. Later owners find the pack.
4. The segments below the pack are removed, the lowest first and durably: a process that finds the first attempt's
   segment knows that all of them exist. Until then readers use the pack, the newest segment with records; after a crash
   the next compaction continues.
5. Large values that no line of the pack refers to are removed; they were determined before the check.

With a key, the pack is sealed with the newest key, regardless of the keys of its parts, and large values encrypted with
another key are encrypted again before the link; messages are sealed again at the end. The pack must not claim more than
its parts proved: unproved records are refused. The head file (`head-…`) is written after the check, in place. So it
never refers to a pack that a new owner has ignored, and never overrides the head file of a new owner.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.codec import dumps
from flowckpt.core.codec.blob import Blob
from flowckpt.core.codec.checkpoints import CARRIED
from flowckpt.core.system.filesystem import FULL, Directory, FileSystem, open_if_there, write_all
from flowckpt.errors import CheckpointCorruptedError, FencedError, KeyMissingError
from flowckpt.stores.file.claim import make_sealed_header
from flowckpt.stores.file.directory import TruncationGuard, make_guard, read_segment, temporary_file
from flowckpt.stores.file.layout import (
    BLOBS,
    is_value,
    orphan_name,
    parse_mark,
    parse_orphan,
    pin_name,
    pinned_sequences,
    segment_name,
    segment_numbers,
)
from flowckpt.stores.file.signals import find_old_seals, reseal_signals
from flowckpt.stores.file.values import read_blob, write_blobs
from flowckpt.stores.log.image import RunImage, open_header, select_segments
from flowckpt.stores.log.sealing.protection import Seals
from flowckpt.stores.log.segment import (
    PACK,
    RESULTS,
    START,
    Cut,
    Record,
    Segment,
    SegmentDamagedError,
    chain_line,
    parse_segment,
    split_record,
)

if TYPE_CHECKING:
    from flowckpt.stores.file.run_writer import FileRunWriter
    from flowckpt.stores.log.sealing.lines import LineSeal, ValueSeal


# Orphans: large values that no record refers to any more.
#
# They remain from an interrupted save, or only a removed checkpoint referred to them. The owner of the run removes
# them, but a new owner may take over at any moment and save the same value. So:
#
# 1. The orphans are determined, and their files are opened, before the owner's last check for a new owner. A value that
#    a new owner saves later is another file with another inode: as long as ours is open, its inode number is not
#    reused.
# 2. An orphan is not removed under its own name. It is renamed to a name that contains the inode, and checked there: a
#    file with another inode belongs to the new owner, which had just renamed it to the same name, and is moved back.
#
# If the process dies in between, readers find the value under its other name, and the next collection moves it back.


SelectNames = Callable[[list[str]], Collection[str]]

AT_ONCE = 200
"""Maximum orphans per collection, because each is kept open."""


class Orphans:
    """The orphans of a run, found and not yet removed.

    Args:
        directory: the directory of large values, open.
        kept: returns the names to keep, given the existing ones.
    """

    def __init__(self, directory: Directory, kept: SelectNames) -> None:
        self._directory = directory
        self._kept = kept
        self._named: Collection[str] = ()
        self._files: dict[str, int] = {}
        self._moved: list[str] = []

    def find(self) -> None:
        """Find the orphans and open them."""
        names = self._directory.names()
        self._moved = [name for name in names if parse_orphan(name) is not None]
        self._named = self._kept([*names, *(found[1] for name in names if (found := parse_orphan(name)) is not None)])
        for name in names:
            if is_value(name) and name not in self._named and len(self._files) < AT_ONCE:
                self._files[name] = self._directory.open_read(name)

    @property
    def is_any(self) -> bool:
        """Whether there are orphans."""
        return bool(self._files or self._moved)

    def remove(self) -> None:
        """Remove the orphans, except values of a new owner."""
        directory = self._directory
        for name in self._moved:
            found = parse_orphan(name)
            assert found is not None, "`find` was called before"
            self._remove_or_put_back(name, *found)
        for value, file in self._files.items():
            inode = directory.calls.status(file).inode
            name = orphan_name(inode, value)
            with contextlib.suppress(FileNotFoundError):
                directory.rename(value, name)
                self._remove_or_put_back(name, inode, value)
        if self._files or self._moved:
            directory.sync()

    def _remove_or_put_back(self, name: str, inode: int, value: str) -> None:
        """Remove a renamed orphan, or move it back if it belongs to a new owner."""
        directory = self._directory
        if directory.status(name).inode != inode or value in self._named:
            with contextlib.suppress(FileExistsError):
                directory.link(name, value)
                directory.sync()
        directory.unlink(name)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            self._directory.calls.close(file)


@contextlib.contextmanager
def open_orphans(run: Directory, kept: SelectNames) -> Iterator[Orphans | None]:
    """Find the orphans of an owned run, which stay open for the block. None if it has no large values.

    Args:
        run: the run's directory, open.
        kept: returns the names of values to keep, given the existing ones.
    """
    with open_if_there(run.open, BLOBS) as directory:
        if directory is None:
            yield None
            return
        with contextlib.closing(Orphans(directory, kept)) as orphans:
            orphans.find()
            yield orphans


# The large values of a compacted run: the files that are kept, and those that are encrypted again.
#
# Records refer to a value by its digest; the name of its file depends on how it is sealed
# (`flowckpt.stores.log.sealing.lines`). After a key rotation, the same value may exist twice, under the old and the new
# key.


_NAMED = re.compile(rb'"([0-9a-f]{64})"')
_REFERENCE = re.compile(rb'\{"\$blob":\["([0-9a-f]{64})",([0-9]+)\]\}')
_ENCRYPTED = ".sealed"


def find_references(lines: list[bytes]) -> dict[str, int]:
    """Return the digests of the large values that lines refer to, with their sizes.

    Args:
        lines: bodies of records, before sealing.
    """
    return {digest.decode(): int(size) for line in lines for digest, size in _REFERENCE.findall(line)}


def find_needed_names(lines: list[bytes], there: Collection[str], values: ValueSeal) -> set[str]:
    """Return the names of files that must be kept.

    Of a value that is encrypted with the current key, no other file is needed. Of every other possible value, all files
    are kept: an extra text that looks like a digest does no harm. If a value is not found, all encrypted files are
    kept, because one of them may contain it under a missing key.

    Args:
        lines: bodies of records, before sealing.
        there: the existing names in the directory of large values.
        values: the seal of the values.
    """
    found = set(there)
    kept: set[str] = set()
    is_one_missing = False
    references = find_references(lines)
    for digest in {digest.decode() for line in lines for digest in _NAMED.findall(line)}:
        target = values.encrypted_name(digest)
        names = found.intersection([target] if target in found else values.names(digest))
        is_one_missing |= digest in references and not names
        kept |= names
    return kept | {name for name in found if is_one_missing and name.endswith(_ENCRYPTED)}


def reseal_values(run: Directory, workflow_id: str, named: Mapping[str, int], values: ValueSeal) -> None:
    """Encrypt values of an older key again, durably; their old files are kept for now.

    Args:
        run: the run's directory, open.
        workflow_id: the run, for errors.
        named: the digests of the values, with their sizes.
        values: the seal of the values.

    Raises:
        CheckpointCorruptedError: a value is damaged.
    """
    with open_if_there(run.open, BLOBS) as directory:
        there = set(() if directory is None else directory.names())
    for digest, size in named.items():
        target = values.encrypted_name(digest)
        if target is not None and target not in there and there.intersection(values.names(digest)):
            content = read_blob(run, workflow_id, digest, size, values)
            write_blobs(run, [Blob(digest, size, content=content)], values)


FEW = 8
"""Number of segments from which a compaction is worthwhile without other reasons."""

_CHUNK = 1 << 20


def load_attempts(directory: Directory, workflow_id: str, seals: Seals, *, below: int | None = None) -> Attempts:
    """Read all records of the segments in a run's directory.

    Args:
        directory: the run's directory, open.
        workflow_id: the run.
        seals: the seals of the store.
        below: only the segments below this number.

    Raises:
        CheckpointCorruptedError: one of them is damaged.
        UnauthenticatedRecordError: there is a key, but a segment has records that it does not authenticate.
        KeyMissingError: a segment is sealed, and there is no key.
        WrongKeyError: a segment is sealed with a missing key.
    """
    numbers = [each for each in segment_numbers(directory.names()) if below is None or each < below]
    try:
        read = partial(read_segment, directory)
        found = read_attempts(numbers, read, lambda number, data: open_header(workflow_id, number, data, seals))
    except SegmentDamagedError as damage:
        raise CheckpointCorruptedError(
            workflow_id,
            location="one of its segments",
            detail=f"{damage.detail} (at byte {damage.offset}), so nothing was compacted",
        ) from damage
    if not seals.has_key and any(seal is not None for seal in found.seals):
        raise KeyMissingError(workflow_id)  # readable without a key, but a copy would not be authenticated
    for number in found.unproved:
        seals.check_plain(workflow_id, segment_name(number))
    return found


def is_worthwhile(directory: Directory, workflow_id: str, attempts: Attempts, seals: Seals, *, is_forced: bool) -> bool:
    """Return whether a compaction is worthwhile; can be called without owning the run.

    Args:
        directory: the run's directory, open.
        workflow_id: the run.
        attempts: the records of the run.
        seals: the seals of the store.
        is_forced: whether any gain is enough.
    """
    if attempts.by_number and find_old_seals(directory, workflow_id, seals):
        return True
    seals = seals.choose_pack_seals(attempts.seals)
    kept = sum(record.deletes is None for each in attempts.by_number.values() for record in each.records)
    gone = len(attempts.gone)
    if (
        attempts.stale
        or attempts.files >= FEW
        or 4 * gone >= max(kept, 1)
        or not _is_sealed_as_today(attempts, seals)
        or (is_forced and _needs_pack(attempts))
    ):
        return True
    if BLOBS not in directory.names():
        return False
    lines = encode_pack(attempts, {}) if attempts.by_number else []
    with directory.open(BLOBS) as blobs:
        there = blobs.names()
        staying = find_needed_names(lines, there, seals.value_seal)
        return any(parse_orphan(name) is not None or (is_value(name) and name not in staying) for name in there)


def _is_sealed_as_today(attempts: Attempts, seals: Seals) -> bool:
    return all(seals.is_current(seal) for seal in attempts.seals)


def _needs_pack(attempts: Attempts) -> bool:
    return attempts.files > 1 or bool(attempts.gone)


def compact_run(owned: FileRunWriter, directory: Directory, now: datetime, begun: tuple[int, tuple[str, ...]]) -> None:
    """Compact a run whose next segment was just claimed and not written.

    Args:
        owned: the writer of that segment, with the run as read after the claim, complete and proved.
        directory: the run's directory, open.
        now: the time, for the header.
        begun: an attempt, and the steps that it noted as started.

    Raises:
        FencedError: another process took the run over; nothing was removed.
        CheckpointCorruptedError: the run is damaged; nothing was changed.
    """
    image, workflow_id, claimed, seals = owned.image, owned.workflow_id, owned.attempt, owned.opened.seals
    attempts = load_attempts(directory, workflow_id, seals, below=claimed)
    if not attempts.by_number:
        return
    number = claimed + 1
    seals = seals.choose_pack_seals(attempts.seals)
    values = seals.value_seal
    header, seal = make_sealed_header(seals, workflow_id, number, now)
    attempts.taken |= {claimed, number}
    lines = encode_pack(attempts, header, begun if "seal" in header else (0, ()))
    needs_pack = _needs_pack(attempts) or not _is_sealed_as_today(attempts, seals)
    if needs_pack:
        reseal_values(directory, workflow_id, find_references(lines), values)
    with open_orphans(directory, lambda names: find_needed_names(lines, names, values)) as orphans:
        if needs_pack:
            with _open_guard(directory, number, seal, image, seals) as head:
                _write_pack(directory, workflow_id, number, lines, seal, head)
            _remove_below(directory, number, claimed)
        else:
            # A process that wrote the pack may have died before it wrote the head file, which then has an old key.
            with _open_guard(directory, image.begun, image.seal, image, seals) as head:
                _check_newest(directory, workflow_id, claimed)
                if head is not None:
                    head.note(image.end)
            if attempts.stale:
                _remove_below(directory, max(attempts.stale) + 1, claimed)
        if orphans is not None:
            orphans.remove()
    reseal_signals(directory, workflow_id, owned.opened.seals)


@contextlib.contextmanager
def _open_guard(
    directory: Directory, number: int, seal: LineSeal | None, image: RunImage, seals: Seals
) -> Iterator[TruncationGuard | None]:
    """Begin a head file, and sync it at the end; None if the segment is not sealed."""
    head = make_guard(directory, number, seal, image, seals)
    if head is None:
        yield None
        return
    try:
        head.begin()
        yield head
    finally:
        head.close(is_end=True)


def _check_newest(directory: Directory, workflow_id: str, claimed: int, newest: int = 0) -> None:
    """Check for a new owner: a segment after the claim, or after the pack.

    Raises:
        FencedError: there is one, or the claim itself was removed.
    """
    names = directory.names()
    found = max(segment_numbers(names), default=0)
    if found > max(newest, claimed) or segment_name(claimed) not in names:
        raise FencedError(workflow_id, attempt=claimed, newest_attempt=found or None)


def _write_pack(
    directory: Directory,
    workflow_id: str,
    number: int,
    lines: list[bytes],
    seal: LineSeal | None,
    head: TruncationGuard | None,
) -> None:
    with temporary_file(directory) as (file, temporary):
        try:
            digest = _write_lines(directory.calls, file, lines, seal)
            directory.calls.sync(file)
        except OSError as error:
            if error.errno in FULL:
                size = sum(map(len, lines))
                raise OSError(error.errno, f"{error.strerror}; the rewritten run needs about {size:,} bytes") from error
            raise
        try:
            directory.link(temporary, segment_name(number))
        except FileExistsError:
            raise FencedError(workflow_id, attempt=number - 1, newest_attempt=number) from None
        directory.unlink(temporary)
        directory.sync()
        _check_newest(directory, workflow_id, number - 1, number)
        if head is not None:
            head.note(digest)


def _write_lines(filesystem: FileSystem, file: int, lines: list[bytes], seal: LineSeal | None) -> bytes:
    """Write the sealed lines of a pack, header first; return the digest of the last one."""
    digest, waiting = START, bytearray()
    for place, body in enumerate(lines):
        line, digest = chain_line(_seal_line(body, place, digest, seal), digest)
        waiting += line
        if len(waiting) >= _CHUNK or place == len(lines) - 1:
            write_all(filesystem, file, bytes(waiting))
            waiting.clear()
    return digest


def _seal_line(body: bytes, place: int, previous: bytes, seal: LineSeal | None) -> bytes:
    if seal is None:
        return body
    return seal.seal(body, place, previous) if place else seal.authenticate(body, 0, START)


def drop_earlier(owned: FileRunWriter, sequence: int) -> None:
    """Remove the records of earlier generations; the next generation repeats it if this is interrupted.

    Args:
        owned: the writer whose segment starts the generation.
        sequence: the first checkpoint of the generation.

    Raises:
        FencedError: the run has another owner now.
        OSError: something was not removed.
    """
    directory = owned.opened.directory
    kept = {name for digest in owned.values for name in owned.opened.seals.value_seal.names(digest)}
    is_left = True
    while is_left:  # each collection removes a limited number
        with open_orphans(directory, lambda _: kept) as orphans:
            owned.writer.check_is_newest()
            is_left = orphans is not None and orphans.is_any
            if orphans is not None:
                orphans.remove()
    _remove_below(directory, owned.writer.number, owned.writer.number)
    for each in pinned_sequences(directory.names()):
        if each < sequence:
            directory.unlink(pin_name(each))


def _remove_below(directory: Directory, number: int, claimed: int) -> None:
    """Remove the segments below a number, and their marks; the claim is given up by its owner."""
    names = directory.names()
    doomed = [each for each in segment_numbers(names) if each < number and each != claimed]
    for place, each in enumerate(doomed):
        directory.unlink(segment_name(each))
        if place == 0:
            directory.sync()
    for name in names:
        marked = parse_mark(name)
        if marked is not None and marked in doomed:
            directory.discard(name)  # the writer of the segment may have removed it
    directory.sync()


# A pack: all attempts of a run in one segment, without removed checkpoints. Pure: segments in, lines out.
#
# Nothing that an attempt recorded is lost except removed checkpoints; records that a later attempt discarded are kept,
# too. So each attempt has its own section, which names the record that it continues. The results of a removed
# checkpoint are stored with the next checkpoint of its attempt, or on their own if another attempt continues from that
# point. Results keep their bytes, and so their chain of digests; the digests of lines are computed again.


_DELETES = b'{"deletes":'
_SECTION_KEYS = ("attempt", "created_at", "owner")

OpenHeader = Callable[[int, bytes], tuple[Mapping[str, Any], "LineSeal | None"]]
"""Returns the header of a segment and the seal of its lines, from its number and bytes."""


@attrs.define(eq=False)
class Attempts:
    """All records of a run, by attempt.

    Attributes:
        files: the number of segments read, including those without records.
        by_number: the records and the header of each attempt.
        continues: for each attempt that continues another: that attempt, and how many of its records.
        gone: the attempt and place of the records of removed checkpoints.
        last_sequence: the highest sequence ever used.
        started_at: when the first checkpoint was saved.
        taken: used numbers without records: of attempts that only removed checkpoints, and of compactions.
        stale: numbers of segments that a pack has replaced.
        seals: the seals of the segments with records; None for those that are not sealed.
        unproved: numbers of segments with unauthenticated records that no later segment vouches for.
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
        """Return the parts of an attempt's history, oldest first: an attempt and how many of its records."""
        found = [(attempt, len(self.by_number[attempt].records))]
        while (before := self.continues.get(found[-1][0])) is not None:
            found.append(before)
        return found[::-1]


def read_attempts(numbers: list[int], read: Callable[[int], bytes], read_header: OpenHeader) -> Attempts:
    """Read all records of a run's segments, including those that no longer count.

    Args:
        numbers: the numbers of the segments with records before the caller's own, ascending.
        read: returns the bytes of a segment.
        read_header: returns the header of a segment, and the seal of its lines.

    Raises:
        SegmentDamagedError: a segment is damaged, or the record that it continues is missing.
    """
    found = Attempts()
    adopted: dict[int, list[Cut]] = {}
    looked: dict[int, tuple[Segment, LineSeal | None]] = {}
    pack = 0

    def inspect(number: int) -> tuple[bool, Cut | None]:
        data = read(number)
        header, seal = read_header(number, data)
        is_pack = header.get("kind") == PACK
        segment = (
            parse_segment(data, number=number, seal=seal) if is_pack else _read_with_copy(data, number, adopted, seal)
        )
        looked[number] = segment, seal
        return is_pack or segment.is_begun, segment.adoption

    last = 0
    for number, end in select_segments(numbers, inspect):
        segment, seal = looked.pop(number)
        last = number
        header = segment.header
        if header.get("kind") == PACK:
            pack = number
            found.by_number.update(segment.sections)
            _note_seal(found, number, seal, segment.sections.values(), adopted.get(number, ()))
            found.last_sequence = header["last_sequence"]
            found.started_at = found.started_at or header["started_at"]
            found.taken.update(header.get("taken", ()))
            break
        if end is not None:
            segment.records = [record for record in segment.records if record.end <= end]
            if not segment.is_begun:  # none of it was acknowledged
                continue
        found.started_at = found.started_at or (segment.adoption.started_at if segment.adoption else "")
        _note_seal(found, number, seal, [segment], adopted.get(number, ()))
        found.by_number[number] = segment
        if segment.adoption is not None:
            adopted.setdefault(segment.adoption.segment, []).append(segment.adoption)
    found.stale = [each for each in numbers if each < last] if pack or _is_generation(found, last) else []
    found.files = len(numbers) - len(found.stale)
    for attempt in sorted(found.by_number):
        _connect_attempt(found, attempt, pack)
    if not found.started_at and found.by_number:
        lowest = found.by_number[min(found.by_number)]
        saved = (record.head["saved_at"] for record in lowest.records if record.deletes is None)
        found.started_at = next(saved, lowest.header["created_at"])
    _find_deleted(found)
    _drop_empty_attempts(found)
    return found


def _is_generation(found: Attempts, number: int) -> bool:
    """Return whether a segment starts a generation, and so continues nothing."""
    adoption = found.by_number[number].adoption if number in found.by_number else None
    return adoption is not None and adoption.generation


def _note_seal(
    found: Attempts, number: int, seal: LineSeal | None, segments: Iterable[Segment], cuts: Iterable[Cut]
) -> None:
    """Note the seal of a segment, and whether later segments contain the digests of all its records."""
    found.seals.append(seal)
    vouched = max((cut.size for cut in cuts), default=0)
    if seal is None and any(each.records and each.records[-1].end > vouched for each in segments):
        found.unproved.append(number)


def _read_with_copy(data: bytes, number: int, adopted: Mapping[int, Iterable[Cut]], seal: LineSeal | None) -> Segment:
    """Read a segment; if the disk lost its last record, use the copy in the next segment."""
    segment = parse_segment(data, number=number, seal=seal)
    for cut in adopted.get(number, ()):
        if len(segment.records) < cut.records:
            segment = parse_segment(data, number=number, cut=cut, seal=seal)
    return segment


def _connect_attempt(found: Attempts, attempt: int, pack: int) -> None:
    cut = found.by_number[attempt].adoption
    if cut is None:
        return
    found.last_sequence = max(found.last_sequence, cut.last_sequence)
    before, count = cut.segment, cut.records
    if not before:
        return
    if pack and attempt > pack >= before:
        before, count = _find_in_pack(found, pack, cut) if before == pack else (0, 0)
    continued = found.by_number.get(before)
    if continued is None or len(continued.records) < count:
        raise SegmentDamagedError(0, f"attempt {before}, which attempt {attempt} continues, is missing")
    found.continues[attempt] = before, count


def _find_in_pack(found: Attempts, pack: int, cut: Cut) -> tuple[int, int]:
    for number, segment in found.by_number.items():
        for place, record in enumerate(segment.records, 1):
            if record.file == pack and record.end == cut.size:
                return number, place
    raise SegmentDamagedError(cut.size, "a later attempt continues from the middle of a record in the pack")


def _drop_empty_attempts(found: Attempts) -> None:
    """Drop the newest attempts if they only removed checkpoints: the run is then what they continue."""
    while found.by_number:
        newest = max(found.by_number)
        before, count = found.continues.get(newest, (0, 0))
        has_more = any(not record.opened.startswith(_DELETES) for record in found.by_number[newest].records)
        if has_more or not before or count < len(found.by_number[before].records):
            return
        del found.by_number[newest], found.continues[newest]
        found.taken.add(newest)


def _find_deleted(found: Attempts) -> None:
    """Find the removed checkpoints, by their unique sequences."""
    ends = {
        attempt: max((n for b, n in found.continues.values() if b == attempt), default=0) for attempt in found.by_number
    }
    removed: set[int] = set()
    places: dict[tuple[int, int], int] = {}
    for attempt, segment in found.by_number.items():
        if len(segment.records) > ends[attempt]:  # otherwise a later attempt knows the same removals
            _find_removed(found, attempt, removed, places)
    found.gone |= {place for place, sequence in places.items() if sequence in removed}


def _find_removed(found: Attempts, attempt: int, removed: set[int], places: dict[tuple[int, int], int]) -> None:
    """Add the removals recorded in an attempt, including those of other attempts, and the places of its checkpoints."""
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


def encode_pack(
    attempts: Attempts, header: Mapping[str, Any], begun: tuple[int, tuple[str, ...]] = (0, ())
) -> list[bytes]:
    """Return the bodies of the lines of a pack, its header first.

    Args:
        attempts: all records of the run.
        header: the header of a segment, to be completed.
        begun: an attempt, and the steps that it noted as started; attempt 0 for none.
    """
    lines: list[bytes] = []
    written: dict[int, list[int]] = {}
    newest = max(attempts.by_number)
    for attempt in sorted(attempts.by_number):
        segment = attempts.by_number[attempt]
        continued = {count for before, count in attempts.continues.values() if before == attempt}
        bodies, counts = _encode_attempt(attempts, attempt, continued, is_newest=attempt == newest)
        written[attempt] = counts
        before = attempts.continues.get(attempt)
        cut = None if before is None else {"segment": before[0], "records": written[before[0]][before[1]]}
        fields = {**segment.header, "attempt": attempt}
        section = {name: fields[name] for name in _SECTION_KEYS if name in fields}
        if begun[0] and attempt == newest:  # its own segment may be removed, which is needed to open the note
            section["begun"] = [begun[0], [*begun[1]]]
        lines += [dumps({**section, "continues": cut})[:-1].encode(), *bodies]
    fields = {
        **header,
        "kind": PACK,
        "started_at": attempts.started_at,
        "last_sequence": attempts.last_sequence,
        "lines": len(lines),
        "taken": sorted(attempts.taken),
    }
    return [json.dumps(fields, separators=(",", ":"))[:-1].encode(), *lines]


def _encode_attempt(
    attempts: Attempts, attempt: int, continued: set[int], *, is_newest: bool
) -> tuple[list[bytes], list[int]]:
    """Return the lines of an attempt, and the number of lines after each of its records."""
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
            if is_end:  # so that a list needs to read only this line
                extra |= {"attempt": attempt, **{name: carried[name] for name in ("workflow_name", "metadata")}}
            first = first or carried
            bodies.append(RESULTS + b",".join(waiting) + b"]" + _add_fields(rest, extra, record.head))
            waiting = []
        if waiting and (place + 1 in continued or place + 1 == len(records)):
            bodies.append(RESULTS + b",".join(waiting) + b'],"deletes":[]')
            waiting = []
        counts.append(len(bodies))
    return bodies, counts


def _is_kept(attempts: Attempts, attempt: int, place: int, record: Record) -> bool:
    return record.deletes is None and (attempt, place) not in attempts.gone


def _add_fields(rest: bytes, extra: Mapping[str, Any], head: Mapping[str, Any]) -> bytes:
    added = {name: value for name, value in extra.items() if name not in head}
    return rest + b"," + dumps(added)[1:-1].encode() if added else rest
