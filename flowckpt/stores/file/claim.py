"""Becoming the owner of a run: the claim of its next segment.

The safety of a claim depends on its order:

1. the directories are made durable, each in its parent;
2. the lock is taken, which distinguishes a live owner from a dead one (but does not stop an owner that is only
   suspended);
3. the header of segment N + 1 is written under a random name, synced, and *linked* to its final name: `link` never
   replaces a file, so one of two claimers gets EEXIST; then the directory is synced;
4. the lower segments are marked: each gets a second name. A writer of one of them that wakes up sees that its file has
   two names, checks, and finds itself fenced (`run_writer` explains why that is enough);
5. only then the older segments are read: everything that a previous owner acknowledged was written before the mark;
6. the first line names the record that is continued, with a copy of the last adopted line, and is synced before
   anything else.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from flowckpt.core.system.blocking import Waiting, run_in_place
from flowckpt.core.system.filesystem import FULL, Directory, FileSystem, held_open, write_all
from flowckpt.core.system.ids import new_token
from flowckpt.core.system.process import current_process, is_alive
from flowckpt.errors import FencedError, KeyMissingError, RunLockedError
from flowckpt.stores.file.directory import (
    clear_folder,
    give_up_segment,
    is_released,
    make_guard,
    read_image,
    read_newest_owner,
    sweep_abandoned,
    take_lock,
    temporary_file,
)
from flowckpt.stores.file.layout import (
    BLOBS,
    LOCK,
    NOT_OURS,
    SIGNALS,
    mark_name,
    parse_mark,
    parse_release,
    segment_name,
    segment_numbers,
    temporary_name,
)
from flowckpt.stores.file.run_writer import FileRunWriter, OpenRun, SegmentWriter
from flowckpt.stores.log.sealing.protection import PLAIN, Seals
from flowckpt.stores.log.segment import START, chain_line, make_header

if TYPE_CHECKING:
    from flowckpt.core.records.listing import Owner
    from flowckpt.stores.log.image import RunImage
    from flowckpt.stores.log.sealing.lines import LineSeal


T = TypeVar("T")
_SLACK = 1 << 14
"""Bytes of a segment besides results: its header, its first line, and the fields that only the first checkpoint has."""


def claim_run(
    opened: OpenRun, *, at_least: int, take_over: bool, now: datetime, known: RunImage | None = None
) -> Waiting[FileRunWriter]:
    """Become the owner of a run. Its open files belong to the result, and after an error to the caller.

    Args:
        opened: the run's durable directory; its lock is opened here.
        at_least: the lowest allowed number of the claimed segment.
        take_over: continue even if the lock is held.
        now: the time, for the header.
        known: the run as read before; reused if its bytes are the same.

    Raises:
        RunLockedError: the lock is held, or another process claimed the same segment first.
    """
    directory, filesystem = opened.directory, opened.directory.calls
    opened.lock = lock = yield partial(directory.open_lock, LOCK), None
    opened.is_locked = take_lock(filesystem, lock)
    is_free = opened.is_locked or take_over
    if not is_free:  # a child that a dead owner forked holds its lock, or the previous owner does: the claim fences it
        is_free = _is_dead(read_newest_owner(directory)) or is_released(directory)
    lock_status = filesystem.status(lock)
    if not lock_status.links:
        raise FileNotFoundError(errno.ENOENT, "a clear has removed the lock", LOCK)
    if not lock_status.size:
        reserve_room(filesystem, lock)
    if not is_free:
        raise _locked_error(opened)
    names = _sweep_leftovers(directory)
    numbers = segment_numbers(names)
    if not numbers and SIGNALS in names:  # messages without a run remain from a clear
        clear_folder(directory, SIGNALS)
    writer = yield from _claim_and_read(opened, max(max(numbers, default=0) + 1, at_least), now, known)
    if writer is None:
        raise _locked_error(opened)
    return writer


def claim_next(former: FileRunWriter, *, needed: int = 0, now: datetime) -> FileRunWriter:
    """Claim the next segment for the owner of a run. The owner keeps the lock; the open files belong to the result.

    Args:
        former: the current writer of the run; unusable afterwards if this succeeds, otherwise unchanged.
        needed: the approximate size of the next save in bytes; without room for it, nothing is claimed. 0 skips the
            check.
        now: the time, for the header.

    Raises:
        FencedError: another owner has claimed a later segment, or the run was removed.
        OSError: the disk cannot be written yet.
    """
    opened, number = former.opened, former.writer.number + 1
    former.writer.check_is_newest()
    if needed:
        _check_space(opened.directory, needed + _SLACK)
    writer = run_in_place(_claim_and_read(opened, number, now))
    if writer is None:
        raise FencedError(opened.workflow_id, attempt=number - 1, newest_attempt=number)
    writer.writer.directory_path = former.writer.directory_path
    former.hand_over()
    return writer


def _claim_and_read(
    opened: OpenRun, number: int, now: datetime, known: RunImage | None = None
) -> Waiting[FileRunWriter | None]:
    """Claim a segment, mark the lower ones, and only then read the run; after an error nothing is claimed.

    Returns:
        The writer; None if another process claimed the segment first.
    """
    directory, seals, workflow_id = opened.directory, opened.seals, opened.workflow_id
    header, seal = make_sealed_header(seals, workflow_id, number, now)
    try:
        file, digest = yield from claim_segment(directory, number, header, seal)
    except FileExistsError:
        return None
    try:
        mark_segments(directory, number)
        image = read_image(directory, workflow_id, opened.fetch, number, seals=seals, known=known)
        image.sources = {}  # as large as the run
        if image.seal is not None and not seals.has_key:  # all other signs of the seal were removed
            raise KeyMissingError(workflow_id)
    except BaseException:
        give_up_segment(directory, file, number)
        directory.calls.close(file)
        raise
    guard = make_guard(directory, number, seal, image, seals)
    return FileRunWriter(opened, SegmentWriter(opened, file, number=number, digest=digest, seal=seal), image, guard)


def _check_space(directory: Directory, size: int) -> None:
    """Write `size` bytes to a scratch file, sync and remove it: nothing is claimed without room for a record."""
    block = os.urandom(min(size, 1 << 20))  # incompressible
    with temporary_file(directory) as (file, name):
        while size > 0:
            size -= directory.calls.write(file, block[:size])
        directory.calls.sync_data(file)
        directory.unlink(name)


def make_sealed_header(
    seals: Seals, workflow_id: str, number: int, now: datetime, **kind: str
) -> tuple[dict[str, Any], LineSeal | None]:
    """Return the header of a new segment of this process, and the seal of its lines.

    Args:
        seals: the seals of the store.
        workflow_id: the run.
        number: the segment.
        now: the time of the claim.
        **kind: the kind of a segment that is not one attempt.
    """
    seal_fields, seal = seals.make_seal(workflow_id, number, new_token(16))
    return {**make_header(workflow_id, number, current_process(), now), **kind, **seal_fields}, seal


def claim_segment(
    directory: Directory, number: int, header: dict[str, Any], signer: LineSeal | None
) -> Waiting[tuple[int, bytes]]:
    """Write a header under a random name, make it durable, and link it to the segment's name.

    Args:
        directory: the run's directory, open.
        number: the segment.
        header: its header.
        signer: authenticates the header, or None.

    Returns:
        The open file, and the digest of its header.
    """
    body = json.dumps(header, separators=(",", ":"))[:-1].encode()
    line, digest = chain_line(body if signer is None else signer.authenticate(body, 0, START), START)
    name = temporary_name(current_process(), new_token(8))
    file: int = yield partial(directory.create, name), None
    try:
        write_all(directory.calls, file, line)
        yield partial(directory.calls.sync, file), None
        directory.link(name, segment_name(number))
        directory.unlink(name)
        yield directory.sync, None
    except BaseException:
        directory.calls.close(file)
        directory.discard(name, OSError)
        raise
    return file, digest


def mark_segments(directory: Directory, below: int) -> None:
    """Mark all segments below a claimed one, so that their writers check for later segments.

    Nothing is synced: a power cut that loses a mark has also ended the process that it was meant for.

    Args:
        directory: the run's directory.
        below: the number of the claimed segment, which already has its name.

    Raises:
        OSError: a segment could not be marked, so a writer of it could not be fenced.
    """
    if below == 1:
        return
    for number in segment_numbers(directory.names()):
        if number < below:
            try:
                file = directory.open_read(segment_name(number))
            except OSError as error:
                if error.errno in NOT_OURS:  # gone, or planted: its writer finds that the name belongs to another file
                    continue
                raise
            with held_open(directory.calls, file):
                _mark(directory, file, number)


def _mark(directory: Directory, file: int, number: int) -> None:
    """Give a segment's file a second name, and remove its write permission, as a second sign.

    The segment's writer may remove an existing mark at any moment; it then reads the directory and finds our segment.
    """
    directory.calls.set_writable(file, False)
    name = mark_name(number, directory.calls.status(file).inode)
    try:
        directory.link(segment_name(number), name)
    except FileNotFoundError:  # given up or cleared meanwhile
        return
    except FileExistsError:
        if not directory.is_named(file, name) and directory.exists(name):
            what = "the name of a segment's mark belongs to another file"
            raise FileExistsError(errno.EEXIST, what, name) from None


def _sweep_leftovers(directory: Directory) -> list[str]:
    """Remove temporary files of dead processes and marks of removed segments; return the names from before.

    The mark of an existing segment stays until its writer or a clear removes it: the writer may be alive, and the next
    claimer would set the mark again.
    """
    names = directory.names()
    newest = max(segment_numbers(names), default=0)
    for name in names:
        released, marked = parse_release(name), parse_mark(name)
        is_over = released is not None and released < newest
        # Checked one by one: a directory listing is not a snapshot.
        if is_over or (marked is not None and not directory.exists(segment_name(marked))):
            directory.discard(name)
    sweep_abandoned(directory)
    if BLOBS in names:
        with directory.open(BLOBS) as blobs:
            sweep_abandoned(blobs)
    return names


def _is_dead(owner: Owner | None) -> bool:
    return owner is not None and (is_alive(owner.process) is False)


def _locked_error(opened: OpenRun) -> RunLockedError:
    owner = read_newest_owner(opened.directory)
    return RunLockedError(opened.workflow_id, holder=str(owner or "another process, not identified yet"))


# The removal of a run: a tombstone first, so that a half-cleared run never reappears.
#
# On a full disk, a run makes room for its own tombstone: its lock file is never empty and contains only hints, so it is
# truncated, and the tombstone can use its block.


def reserve_room(filesystem: FileSystem, lock: int) -> None:
    """Make an empty lock file take up a block."""
    with contextlib.suppress(OSError):
        filesystem.write_at(lock, b"\0", 0)


def write_with_reserve(filesystem: FileSystem, lock: int, write: Callable[[], T]) -> T:
    """Call a function that writes up to one block. If the disk is full, truncate the lock file and call it again."""
    try:
        return write()
    except OSError as error:
        if error.errno not in FULL:
            raise
    filesystem.empty(lock)
    return write()


def write_tombstone(directory: Directory, workflow_id: str, now: datetime, seals: Seals = PLAIN) -> int:
    """Claim the next segment with a header that marks the run as cleared; return its number."""
    number = max([*segment_numbers(directory.names()), 0]) + 1
    header, seal = make_sealed_header(seals, workflow_id, number, now, kind="cleared")
    file, _ = run_in_place(claim_segment(directory, number, header, seal))
    directory.calls.close(file)
    mark_segments(directory, number)
    return number


def sweep_cleared(directory: Directory, tombstone: int) -> None:
    """Remove everything in a cleared run's directory, the tombstone last, so that a crash leaves the run cleared.

    Meanwhile a marked segment may have only one name, like an unmarked one. Its writer still detects the mark, because
    the file has also lost its write permission.
    """
    names = directory.names()
    for folder in (BLOBS, SIGNALS):
        clear_folder(directory, folder)
    for name in names:
        if name not in (BLOBS, SIGNALS, LOCK, segment_name(tombstone)):
            directory.discard(name)  # the writer of a segment removes its mark itself
    directory.sync()
    directory.unlink(segment_name(tombstone))
    directory.sync()
