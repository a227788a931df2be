"""Compaction of a run: a pack is written that holds what is kept, is made durable, and then stands in for the rest.

1. The next segment is claimed, as for an attempt: that fences every writer, and only then the run is read.
2. The pack is written under a random name, synced, and *linked* to the name of the segment behind the claim. So it is
   there whole or not at all, and a thief that took the number first makes the link fail.
3. Segments are looked for once more. A later one is a thief's, which may have read the run before the pack was there, or
   the pack: so nothing is removed then, neither the rest nor the pack. A thief that comes after the look finds the pack.
4. The segments below the pack are removed, the lowest first and durably: whoever finds the first attempt's segment knows
   that all of them are there. Until then readers take the pack, the newest that was begun; after a crash the next
   compaction goes on.
5. Large values that no line of the pack names are removed; they were found before the look.

Where there is a key, the pack is sealed with the newest, whatever its parts were sealed with, and so are the large values
that were encrypted with another one: that comes before the link. The pack must not say more than its parts proved: what
nobody vouches for is refused. The word of how far the run has come (`head`) is written behind the look, in place. So it
never names a pack that a thief has passed over; and it says something that no later word of a thief is undone by.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from flowckpt.errors import CheckpointCorruptedError, FencedError, KeyMissingError
from flowckpt.filesystem import FileSystem
from flowckpt.lazy import LazyModule
from flowckpt.process import current_process
from flowckpt.stores.file.claim import segment_header
from flowckpt.stores.file.directory import read_file
from flowckpt.stores.file.image import RunImage, opened_header
from flowckpt.stores.file.line import START
from flowckpt.stores.file.line import seal as seal_line
from flowckpt.stores.file.names import (
    BLOBS,
    is_value,
    marked_segment,
    orphaned,
    segment_name,
    segment_numbers,
    temporary_name,
)
from flowckpt.stores.file.orphans import orphans_of
from flowckpt.stores.file.pack import Attempts, pack_lines, read_attempts
from flowckpt.stores.file.resealing import kept_names, named_values, reseal_values
from flowckpt.stores.file.segment import SegmentDamagedError
from flowckpt.stores.sealing.protection import Seals

if TYPE_CHECKING:
    from flowckpt.stores.file import head as head_note
    from flowckpt.stores.sealing.lines import LineSeal
else:  # only whoever has a key needs it
    head_note = LazyModule("flowckpt.stores.file.head")

FEW = 8
"""Segments that a run may have before it is worth a compaction by itself."""

_CHUNK = 1 << 20


def attempts_in(
    filesystem: FileSystem, directory: int, workflow_id: str, seals: Seals, *, below: int | None = None
) -> Attempts:
    """Read all that the segments in a run's directory hold.

    Args:
        filesystem: the calls.
        directory: the run's directory, open.
        workflow_id: the run.
        seals: the seals of the store.
        below: only the segments below this number.

    Raises:
        CheckpointCorruptedError: one of them is damaged.
        UnauthenticatedRecordError: there is a key, and one holds records that are not proved by it.
        KeyMissingError: one is sealed, and there is no key.
        WrongKeyError: one is sealed with a key that is not at hand.
    """
    numbers = [each for each in segment_numbers(filesystem.names(directory)) if below is None or each < below]
    try:
        found = read_attempts(
            numbers,
            lambda number: read_file(filesystem, directory, segment_name(number)),
            lambda number, data: opened_header(workflow_id, number, data, seals),
        )
    except SegmentDamagedError as damage:
        raise CheckpointCorruptedError(
            workflow_id,
            location="one of its segments",
            detail=f"{damage.detail} (at byte {damage.offset}), so nothing was compacted",
        ) from damage
    if not seals.has_key and any(seal is not None for seal in found.seals):
        raise KeyMissingError(workflow_id)  # what is authenticated can be read without one; a copy would not be
    for number in found.unproved:
        seals.check_plain(workflow_id, segment_name(number))
    return found


def is_worth_it(filesystem: FileSystem, directory: int, attempts: Attempts, seals: Seals, *, is_forced: bool) -> bool:
    """Tell whether a compaction would gain something; to be asked without owning the run.

    Args:
        filesystem: the calls.
        directory: the run's directory, open.
        attempts: what the run holds.
        seals: the seals of the store.
        is_forced: whether little is enough.
    """
    seals = seals.for_pack(attempts.seals)
    kept = sum(record.deletes is None for each in attempts.by_number.values() for record in each.records)
    gone = len(attempts.gone)
    if (
        attempts.stale
        or attempts.files >= FEW
        or 4 * gone >= max(kept, 1)
        or not _is_sealed_as_today(attempts, seals)
        or (is_forced and _is_to_be_packed(attempts))
    ):
        return True
    if BLOBS not in filesystem.names(directory):
        return False
    lines = pack_lines(attempts, {}) if attempts.by_number else []
    blobs = filesystem.open_directory(directory, BLOBS)
    try:
        there = filesystem.names(blobs)
        staying = kept_names(lines, there, seals.for_values())
        return any(orphaned(name) is not None or (is_value(name) and name not in staying) for name in there)
    finally:
        filesystem.close(blobs)


def _is_sealed_as_today(attempts: Attempts, seals: Seals) -> bool:
    return all(seals.would_make(seal) for seal in attempts.seals)


def _is_to_be_packed(attempts: Attempts) -> bool:
    return attempts.files > 1 or bool(attempts.gone)


def compact_owned(
    filesystem: FileSystem,
    directory: int,
    image: RunImage,
    claimed: int,
    now: datetime,
    seals: Seals,
    begun: tuple[int, tuple[str, ...]] = (0, ()),
) -> None:
    """Compact a run whose next segment was just claimed, and not written to.

    Args:
        filesystem: the calls.
        directory: the run's directory, open.
        image: the run, as it was read, whole and proved, when it was claimed.
        claimed: the number of the claimed segment.
        now: the time, for the header.
        seals: the seals of the store.
        begun: an attempt, and the steps that it left word of having begun.

    Raises:
        FencedError: another process took the run over; nothing was removed.
        CheckpointCorruptedError: the run is damaged; nothing was changed.
    """
    workflow_id = image.workflow_id
    attempts = attempts_in(filesystem, directory, workflow_id, seals, below=claimed)
    if not attempts.by_number:
        return
    number = claimed + 1
    seals = seals.for_pack(attempts.seals)
    values = seals.for_values()
    said, seal = seals.for_new(workflow_id, number, secrets.token_bytes(16).hex())
    header = {**segment_header(workflow_id, number, now), **said}
    attempts.taken |= {claimed, number}
    lines = pack_lines(attempts, header, begun if said else (0, ()))
    is_to_be_packed = _is_to_be_packed(attempts) or not _is_sealed_as_today(attempts, seals)
    if is_to_be_packed:
        reseal_values(filesystem, directory, workflow_id, named_values(lines), values)
    with orphans_of(filesystem, directory, lambda names: kept_names(lines, names, values)) as orphans:
        if is_to_be_packed:
            is_proved = image.seal is not None and not seals.protection.is_trusting
            with _head_for(filesystem, directory, number, seal, is_kept=is_proved) as head:
                _write_pack(filesystem, directory, workflow_id, number, lines, seal, head)
            _remove_below(filesystem, directory, number, claimed)
        else:
            # Whoever wrote the pack may have died before the word of it was written, which is under an old key then.
            with _head_for(filesystem, directory, image.begun, image.seal, is_kept=True) as head:
                _begin(head)
                _check_newest(filesystem, directory, workflow_id, claimed)
                if head is not None:
                    head.note(image.end)
            if attempts.stale:
                _remove_below(filesystem, directory, max(attempts.stale) + 1, claimed)
        if orphans is not None:
            orphans.remove()


@contextlib.contextmanager
def _head_for(
    filesystem: FileSystem, directory: int, number: int, seal: LineSeal | None, *, is_kept: bool
) -> Iterator[head_note.HeadNote | None]:
    """Return what notes how far a run has come, to be begun; None where no key seals the segment. It is synced at the end."""
    if seal is None or seal.key is None:
        yield None
        return
    head = head_note.HeadNote(filesystem, directory, number, seal.said, seal, is_kept=is_kept)
    try:
        yield head
    finally:
        head.close(is_end=True)


def _begin(head: head_note.HeadNote | None) -> None:
    if head is not None:
        head.begin()


def _check_newest(filesystem: FileSystem, directory: int, workflow_id: str, claimed: int, newest: int = 0) -> None:
    """Look for a thief: a segment behind the claim, or behind the pack.

    Raises:
        FencedError: there is one, or the claim itself has gone.
    """
    names = filesystem.names(directory)
    found = max(segment_numbers(names), default=0)
    if found > max(newest, claimed) or segment_name(claimed) not in names:
        raise FencedError(workflow_id, attempt=claimed, newest_attempt=found or None)


def _write_pack(
    filesystem: FileSystem,
    directory: int,
    workflow_id: str,
    number: int,
    lines: list[bytes],
    seal: LineSeal | None,
    head: head_note.HeadNote | None,
) -> None:
    _begin(head)
    temporary, target = temporary_name(current_process(), secrets.token_hex(8)), segment_name(number)
    file = filesystem.create(directory, temporary)
    try:
        digest = _write_lines(filesystem, file, lines, seal)
        filesystem.sync(file)
        try:
            filesystem.link(directory, temporary, target)
        except FileExistsError:
            raise FencedError(workflow_id, attempt=number - 1, newest_attempt=number) from None
        filesystem.unlink(directory, temporary)
        filesystem.sync(directory)
        _check_newest(filesystem, directory, workflow_id, number - 1, number)
        if head is not None:
            head.note(digest)
    except BaseException:
        with contextlib.suppress(OSError):
            filesystem.unlink(directory, temporary)
        raise
    finally:
        filesystem.close(file)


def _write_lines(filesystem: FileSystem, file: int, lines: list[bytes], seal: LineSeal | None) -> bytes:
    """Write the lines of a pack, sealed, its header first; return the digest of the last."""
    digest, waiting = START, bytearray()
    for place, body in enumerate(lines):
        line, digest = seal_line(_sealed(body, place, digest, seal), digest)
        waiting += line
        if len(waiting) >= _CHUNK or place == len(lines) - 1:
            content = bytes(waiting)
            written = 0
            while written < len(content):
                written += filesystem.write(file, content[written:] if written else content)
            waiting.clear()
    return digest


def _sealed(body: bytes, place: int, previous: bytes, seal: LineSeal | None) -> bytes:
    if seal is None:
        return body
    return seal.sealed(body, place, previous) if place else seal.signed(body, 0, START)


def _remove_below(filesystem: FileSystem, directory: int, number: int, claimed: int) -> None:
    """Remove the segments below a number, and the marks of those that go; the claim is given up by its owner."""
    names = filesystem.names(directory)
    doomed = [each for each in segment_numbers(names) if each < number and each != claimed]
    for place, each in enumerate(doomed):
        filesystem.unlink(directory, segment_name(each))
        if place == 0:
            filesystem.sync(directory)
    for name in names:
        marked = marked_segment(name)
        if marked is not None and marked in doomed:
            with contextlib.suppress(FileNotFoundError):  # the writer of the segment took it away itself
                filesystem.unlink(directory, name)
    filesystem.sync(directory)
