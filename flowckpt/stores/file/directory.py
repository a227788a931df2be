"""The directory of a run: its lock, its segments, and the writer of the newest."""

from __future__ import annotations

import contextlib
import errno
import time
from datetime import datetime

from flowckpt.core.codec.blob import Fetch
from flowckpt.core.records.listing import Owner
from flowckpt.core.system.declared import shell_word
from flowckpt.core.system.filesystem import FileSystem
from flowckpt.errors import CheckpointCorruptedError
from flowckpt.stores.file.hints import what_is_cut
from flowckpt.stores.file.layout import (
    HEAD,
    head_number,
    mark_name,
    released_name,
    released_segment,
    segment_name,
    segment_numbers,
)
from flowckpt.stores.log.image import RunImage, read_run
from flowckpt.stores.log.sealing.protection import PLAIN, Seals
from flowckpt.stores.log.segment import SegmentDamagedError, read_header

_STEP = 16 * 1024
"""Bytes; most headers are of a few hundred."""


def read_file(filesystem: FileSystem, directory: int, name: str) -> bytes:
    """Return the bytes of a file in a directory."""
    file = filesystem.open_read(directory, name)
    try:
        return filesystem.read(file, filesystem.status(file).size, 0)
    finally:
        filesystem.close(file)


def read_lines(filesystem: FileSystem, directory: int, name: str, count: int) -> bytes:
    """Return the beginning of a file, with so many lines at least, where it has them, and not the whole of a long one.

    Args:
        filesystem: the calls.
        directory: the file's directory, open.
        name: the file.
        count: how many lines.
    """
    file = filesystem.open_read(directory, name)
    try:
        size = _STEP
        while True:
            data = filesystem.read(file, size, 0)
            if data.count(b"\n") >= count or len(data) < size:
                return data
            size *= 8
    finally:
        filesystem.close(file)


def read_image(
    filesystem: FileSystem,
    directory: int,
    workflow_id: str,
    fetch: Fetch,
    below: int | None = None,
    *,
    seals: Seals = PLAIN,
    attempt: int | None = None,
    known: RunImage | None = None,
) -> RunImage:
    """Read the run in a directory, from all its segments or those below a number.

    Args:
        filesystem: the calls.
        directory: the run's directory, open.
        workflow_id: the run.
        fetch: reads large values.
        below: only segments below this number are read; None for all.
        seals: the seals of the store.
        attempt: as this attempt left it, whose end is unknown; as it is now where not given.
        known: the run as it was read before; taken if its bytes are the same.

    Raises:
        CheckpointCorruptedError: a record is damaged, or was taken away.
        FileNotFoundError: it was cleared or compacted meanwhile; look again.
    """
    is_compared = attempt is None and seals.has_key and not seals.protection.is_trusting

    def there() -> list[int]:
        return segment_numbers(filesystem.names(directory))

    while True:
        # The word first: it is never ahead of what it tells of.
        heads = heads_in(filesystem, directory) if is_compared else {}
        found = there()
        numbers = [number for number in found if below is None or number < below]
        try:
            image = read_run(
                workflow_id,
                numbers,
                lambda number: read_file(filesystem, directory, segment_name(number)),
                fetch,
                seals,
                attempt=attempt,
                known=known,
            )
        except CheckpointCorruptedError:
            if there() != found:  # a list made during a compaction may lack the new segment and an old one, too
                raise FileNotFoundError(errno.ENOENT, "a segment was removed meanwhile") from None
            raise
        if not is_compared or image.is_cleared:
            return image
        later = [number for number in found if below is not None and number > below]
        missing = what_is_cut(image, heads, seals, later)
        if not missing:
            return image
        # Else the run was begun, or cleared and started again, or compacted, meanwhile.
        if heads_in(filesystem, directory) == heads and there() == found:
            raise _cut_off(workflow_id, missing, max(heads, default=HEAD))


def _cut_off(workflow_id: str, missing: str, location: str) -> CheckpointCorruptedError:
    way = f"'flowckpt store trust {shell_word(workflow_id)}'"
    remedy = f"Restore the run from a backup, its 'head-' files too. If you know that it is whole: {way}."
    return CheckpointCorruptedError(workflow_id, location=location, detail=missing, remedy=remedy)


def heads_in(filesystem: FileSystem, directory: int) -> dict[str, bytes]:
    """Return what the files in a run's directory say of how far its attempts have come, by name."""
    found = {}
    for name in filesystem.names(directory):
        if head_number(name) is not None:
            with contextlib.suppress(FileNotFoundError):
                found[name] = read_file(filesystem, directory, name)
    return found


def give_up_segment(filesystem: FileSystem, directory: int, file: int, number: int) -> None:
    """Remove a claimed segment that nothing was written to, and the mark that another claimer may have set on it.

    The run may have been cleared and started again in this directory while the claimer slept; then the segment of this
    number is another owner's, and stays.

    Args:
        filesystem: the calls.
        directory: the run's directory.
        file: the segment's file, open.
        number: the segment.
    """
    with contextlib.suppress(OSError):
        if filesystem.is_named(file, directory, segment_name(number)):
            filesystem.unlink(directory, segment_name(number))
        if (status := filesystem.status(file)).links:
            filesystem.unlink(directory, mark_name(number, status.inode))


def note_release(filesystem: FileSystem, directory: int, file: int, number: int) -> None:
    """Note that a segment's writer, which never had the lock, has given the run up. Nothing is synced: see `is_released`.

    Args:
        filesystem: the calls.
        directory: the run's directory.
        file: the segment's file, open.
        number: the segment.
    """
    if filesystem.is_named(file, directory, segment_name(number)):
        filesystem.close(filesystem.create(directory, released_name(number, filesystem.status(file).inode)))


def is_released(filesystem: FileSystem, directory: int) -> bool:
    """Tell whether the writer of the newest segment has given the run up, though somebody else holds the lock.

    A power cut that loses the word of it has ended the process that holds the lock, too.
    """
    names = filesystem.names(directory)
    newest = max(segment_numbers(names), default=0)
    if newest not in map(released_segment, names):
        return False
    try:
        file = filesystem.open_read(directory, segment_name(newest))
    except FileNotFoundError:
        return False
    try:
        return released_name(newest, filesystem.status(file).inode) in names
    finally:
        filesystem.close(file)


def newest_owner(filesystem: FileSystem, directory: int) -> Owner | None:
    """Return who wrote the newest segment, or None where there is no readable one."""
    numbers = segment_numbers(filesystem.names(directory))
    if not numbers:
        return None
    try:
        header, _, _ = read_header(read_lines(filesystem, directory, segment_name(numbers[-1]), 1))
        owner = header["owner"]
        return Owner(**{**owner, "acquired_at": datetime.fromisoformat(owner["acquired_at"])})
    except (SegmentDamagedError, OSError, KeyError, TypeError, ValueError):
        return None


# A lock on a file that others only look at: who finds it held asks again, for a moment.


_LOOKS = 20
_LOOK_SECONDS = 0.0005


def take_lock(filesystem: FileSystem, lock: int) -> bool:
    """Take a lock, if it is free.

    A process that looks whether it is held holds it for some microseconds; so one that is held is asked for again, for 10 ms.

    Args:
        filesystem: the calls.
        lock: the file, open.
    """
    for _ in range(_LOOKS):
        if filesystem.lock(lock):
            return True
        time.sleep(_LOOK_SECONDS)
    return False
