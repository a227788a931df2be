"""A run on disk: its directory, its lock, the claim of its next segment, and the saves of its owner.

The order of a claim is the whole safety of it:

1. the directories are made durable, each in its parent;
2. the lock is taken, which tells a live owner from a dead one (but does not stop one that is merely asleep);
3. the header of segment N + 1 is written under a random name, synced, and *linked* to its true name: `link` never
   replaces, so of two claimers one gets EEXIST; then the directory is synced;
4. only then the older segments are read: whatever a former owner acknowledged, it did before it could see N + 1;
5. the first line says what is continued, with a copy of the last line adopted, and is synced before anything else.
"""

from __future__ import annotations

import contextlib
import errno
import json
import secrets
import threading
import time
from datetime import datetime
from typing import Any

from flowckpt.checkpoint import CheckpointData, HistoryView
from flowckpt.checkpoint.data import SCHEMA_VERSION
from flowckpt.checkpoint.reference import Owner
from flowckpt.codec import dumps
from flowckpt.codec.blob import Blob, Fetch
from flowckpt.codec.checkpoints import encode_head
from flowckpt.codec.results import as_view, encode_time
from flowckpt.errors import FencedError, ForeignRecordError, RunLockedError, SaveConflictError
from flowckpt.filesystem import FileSystem
from flowckpt.process import ProcessIdentity, current_process, is_alive
from flowckpt.stores.base import refused_as_encoding_error
from flowckpt.stores.file.blobs import write_blobs
from flowckpt.stores.file.image import RunImage, read_run
from flowckpt.stores.file.line import START, seal
from flowckpt.stores.file.names import (
    BLOBS,
    LOCK,
    maker_of_temporary,
    segment_name,
    segment_numbers,
    temporary_name,
)
from flowckpt.stores.file.segment import SegmentDamagedError, read_header
from flowckpt.stores.file.writer import SegmentWriter

_LOOKS = 20
_LOOK_SECONDS = 0.0005


def take_lock(filesystem: FileSystem, lock: int) -> bool:
    """Take the lock of a run, if it is not owned.

    Whoever asks for the owner holds the lock for some microseconds; so one that is held is asked for again, for 10 ms.
    """
    for _ in range(_LOOKS):
        if filesystem.lock(lock):
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def read_file(filesystem: FileSystem, directory: int, name: str) -> bytes:
    """Return the bytes of a file in a directory."""
    file = filesystem.open_read(directory, name)
    try:
        return filesystem.read(file, filesystem.status(file).size, 0)
    finally:
        filesystem.close(file)


def read_image(
    filesystem: FileSystem, directory: int, workflow_id: str, fetch: Fetch, below: int | None = None
) -> RunImage:
    """Read the run in a directory, from all its segments or those below a number."""
    numbers = [number for number in segment_numbers(filesystem.names(directory)) if below is None or number < below]
    return read_run(workflow_id, numbers, lambda number: read_file(filesystem, directory, segment_name(number)), fetch)


def newest_owner(filesystem: FileSystem, directory: int) -> Owner | None:
    """Return who wrote the newest segment, or None where there is no readable one."""
    numbers = segment_numbers(filesystem.names(directory))
    if not numbers:
        return None
    try:
        header, _, _ = read_header(read_file(filesystem, directory, segment_name(numbers[-1])))
        owner = header["owner"]
        return Owner(**{**owner, "acquired_at": datetime.fromisoformat(owner["acquired_at"])})
    except (SegmentDamagedError, OSError, KeyError, TypeError, ValueError):
        return None


class OwnedRun:
    """A run that this process owns: the only thing that writes to it.

    Attributes:
        workflow_id: the run.
        image: the run as it was read after the claim.
        writer: the writer of the claimed segment.
        last_sequence: the highest sequence that the run ever had, as this owner knows.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: int,
        lock: int,
        *,
        workflow_id: str,
        is_locked: bool,
        writer: SegmentWriter,
        image: RunImage,
        fetch: Fetch,
    ) -> None:
        self.workflow_id = workflow_id
        self.image = image
        self.writer = writer
        self.is_adopted = False
        self._filesystem = filesystem
        self._directory = directory
        self._lock = lock
        self._is_locked = is_locked
        self._is_closed = False
        self._one_at_a_time = threading.Lock()
        self._fetch = fetch
        self._results = 0
        self._chain = image.history.chains[0]
        self.last_sequence = image.last_sequence
        self._first: CheckpointData | None = None  # of this attempt: later ones hold what differs from it
        self._has_blob_directory = False
        self._blobs = {digest for blobs in image.history.blobs.values() for digest in blobs}

    def save(self, data: CheckpointData) -> None:
        """Append a checkpoint with the results that are new in it."""
        with self._one_at_a_time:
            self._save(data)

    def _save(self, data: CheckpointData) -> None:
        self._check_usable()
        if data.attempt != self.writer.number:
            raise FencedError(self.workflow_id, attempt=data.attempt, newest_attempt=self.writer.number)
        if data.sequence <= self.last_sequence:
            raise SaveConflictError(self.workflow_id, sequence=data.sequence, last_sequence=self.last_sequence)
        with refused_as_encoding_error():
            view = as_view(data.step_results)
            head, head_blobs = encode_head(data, self._first)
            del head["attempt"]  # the segment's number says it
            head["results"] = len(view)
            if self.is_adopted and len(view) > self._results and head["checkpoint_id"] == view[-1].path:
                del head["checkpoint_id"]  # it can be read off the results: 30 of 430 bytes
            body = dumps(head)[1:-1].encode()
        if not self.is_adopted:
            self._adopt(view)
        held = self._results
        if len(view) < held or view.chain_at(held) != self._chain:
            raise ForeignRecordError(
                f"the history to be saved for run {self.workflow_id!r} does not continue the one that the store holds",
                workflow_id=self.workflow_id,
                found=f"{held} results held, {len(view)} given",
            )
        history = view.history
        if head_blobs or history.blobs:
            self._save_blobs(view, list(head_blobs.values()))
        results = b",".join(history.encoded[held : len(view)])
        self.writer.append(b'{"step_results":[%b],%b' % (results, body))
        self._results, self._chain = len(view), view.chain
        self.last_sequence, self._first = data.sequence, self._first or data

    def delete(self, sequences: list[int]) -> None:
        """Append that checkpoints are deleted."""
        with self._one_at_a_time:
            self._check_usable()
            if not self.is_adopted:  # what the owner was told is the newest is what it will go on from
                live = self.image.checkpoints()
                self._adopt(self.image.history.view(self.image.counts[live[-1]] if live else 0))
            self.writer.append(dumps({"deletes": sequences})[:-1].encode())

    def release(self) -> None:
        """Give the lock back; a claim that saved nothing leaves no segment."""
        with self._one_at_a_time:
            if self.writer.is_mine and not self.writer.has_written and not self.writer.is_poisoned:
                with contextlib.suppress(OSError):
                    self._filesystem.unlink(self._directory, segment_name(self.writer.number))
            self._close()

    def close(self) -> None:
        """Close the files; closing the lock's only descriptor gives the lock back."""
        with self._one_at_a_time:
            self._close()

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.writer.close()
            self._filesystem.close(self._lock)
            self._filesystem.close(self._directory)

    def _check_usable(self) -> None:
        if self._is_closed:  # given up or stolen by another task, while this one was on its way here
            raise FencedError(self.workflow_id, attempt=self.writer.number, newest_attempt=self.writer.number)
        self.writer.check_usable()
        if not self._is_locked:  # stolen from one that sleeps: once it is gone the lock can be had
            self._is_locked = self._filesystem.lock(self._lock)

    def _adopt(self, view: HistoryView) -> None:
        """Write the first line: which records are continued. They are those whose history the new one shares."""
        if self.writer.number > 1:
            shared = self.image.history.view().shared_length(view)
            kept = sum(count <= shared for count in self.image.counts)
            cut = self.image.cut_at(kept)
            self.writer.append(dumps(cut.document())[:-1].encode())
            self._results = cut.results
            self._chain = view.chain_at(cut.results)
        self.is_adopted = True

    def _save_blobs(self, view: HistoryView, blobs: list[Blob]) -> None:
        for index in range(self._results, len(view)):
            blobs.extend(view.history.blobs.get(index, {}).values())
        missing = {blob.digest: blob for blob in blobs if blob.digest not in self._blobs}
        if missing:
            write_blobs(
                self._filesystem, self._directory, missing.values(), is_directory_durable=self._has_blob_directory
            )
            self._has_blob_directory = True
            self._blobs.update(missing)
        for blob in blobs:
            blob.settle(self._fetch)


def claim(
    filesystem: FileSystem,
    directory: int,
    *,
    workflow_id: str,
    at_least: int,
    steal: bool,
    fetch: Fetch,
    now: datetime,
) -> OwnedRun:
    """Become the owner of the run in an open, durable directory. The descriptor belongs to the result.

    Args:
        filesystem: the calls.
        directory: the run's directory.
        workflow_id: the run.
        at_least: the lowest number that the claimed segment may have.
        steal: go on although the lock is held.
        fetch: reads large values.
        now: the time, for the header.

    Raises:
        RunLockedError: the lock is held, or another process claimed the same segment first.
    """
    lock = filesystem.open_lock(directory, LOCK)
    try:
        is_locked = take_lock(filesystem, lock)
        if not is_locked and _is_dead(newest_owner(filesystem, directory)):
            steal = True  # a child that a dead owner forked still holds its lock; the claim below fences whoever wrote
        if not filesystem.status(lock).links:
            raise FileNotFoundError(errno.ENOENT, "a clear has removed the lock meanwhile", LOCK)
        if not is_locked and not steal:
            raise RunLockedError(workflow_id, holder=_describe(newest_owner(filesystem, directory)))
        _sweep(filesystem, directory)
        numbers = segment_numbers(filesystem.names(directory))
        number = max([*numbers, 0]) + 1
        number = max(number, at_least)
        header = _header(workflow_id, number, now)
        try:
            file, digest = _claim_segment(filesystem, directory, number, header)
        except FileExistsError:
            raise RunLockedError(workflow_id, holder=_describe(newest_owner(filesystem, directory))) from None
        try:
            image = read_image(filesystem, directory, workflow_id, fetch, number)
        except BaseException:
            filesystem.close(file)
            with contextlib.suppress(OSError):
                filesystem.unlink(directory, segment_name(number))
            raise
    except BaseException:
        filesystem.close(lock)
        raise

    writer = SegmentWriter(filesystem, directory, file, workflow_id=workflow_id, number=number, digest=digest)
    return OwnedRun(
        filesystem,
        directory,
        lock,
        workflow_id=workflow_id,
        is_locked=is_locked,
        writer=writer,
        image=image,
        fetch=fetch,
    )


def write_tombstone(filesystem: FileSystem, directory: int, workflow_id: str, now: datetime) -> int:
    """Claim the next segment with a header that says that the run is cleared; return its number."""
    number = max([*segment_numbers(filesystem.names(directory)), 0]) + 1
    header = {**_header(workflow_id, number, now), "kind": "cleared"}
    file, _ = _claim_segment(filesystem, directory, number, header)
    filesystem.close(file)
    return number


def sweep_cleared(filesystem: FileSystem, directory: int, tombstone: int) -> None:
    """Remove everything in a cleared run's directory, the tombstone last: a crash leaves it cleared."""
    names = filesystem.names(directory)
    if BLOBS in names:
        blobs = filesystem.open_directory(directory, BLOBS)
        try:
            for name in filesystem.names(blobs):
                filesystem.unlink(blobs, name)
        finally:
            filesystem.close(blobs)
        filesystem.remove_directory(directory, BLOBS)
    for name in names:
        if name not in (BLOBS, LOCK, segment_name(tombstone)):
            filesystem.unlink(directory, name)
    filesystem.sync(directory)
    filesystem.unlink(directory, segment_name(tombstone))
    filesystem.sync(directory)


def _header(workflow_id: str, number: int, now: datetime) -> dict[str, Any]:
    me = current_process()
    moment = encode_time(now)
    owner = {
        "host": me.host,
        "boot_id": me.boot_id,
        "pid": me.pid,
        "start_time": me.start_time,
        "acquired_at": moment,
    }
    return {
        "flowckpt": "segment",
        "schema_version": SCHEMA_VERSION,
        "workflow_id": workflow_id,
        "segment": number,
        "owner": owner,
        "created_at": moment,
    }


def _claim_segment(filesystem: FileSystem, directory: int, number: int, header: dict[str, Any]) -> tuple[int, bytes]:
    """Write a header under a random name, make it durable, and link it to the segment's name."""
    line, digest = seal(json.dumps(header, separators=(",", ":"))[:-1].encode(), START)
    name = temporary_name(current_process(), secrets.token_hex(8))
    file = filesystem.create(directory, name)
    try:
        written = 0
        while written < len(line):
            written += filesystem.write(file, line[written:])
        filesystem.sync(file)
        filesystem.link(directory, name, segment_name(number))
        filesystem.unlink(directory, name)
        filesystem.sync(directory)
    except BaseException:
        filesystem.close(file)
        with contextlib.suppress(OSError):
            filesystem.unlink(directory, name)
        raise
    return file, digest


def _sweep(filesystem: FileSystem, directory: int) -> None:
    """Remove the temporary files of processes that are dead; those of live ones are theirs."""
    here = current_process()
    places = [directory]
    names = filesystem.names(directory)
    if BLOBS in names:
        places.append(filesystem.open_directory(directory, BLOBS))
    try:
        for place in places:
            for name in names if place == directory else filesystem.names(place):
                maker = maker_of_temporary(name, here)
                if maker is not None and maker != here and is_alive(maker) is False:
                    with contextlib.suppress(FileNotFoundError):
                        filesystem.unlink(place, name)
    finally:
        for place in places[1:]:
            filesystem.close(place)


def _is_dead(owner: Owner | None) -> bool:
    return owner is not None and (
        is_alive(ProcessIdentity(owner.host, owner.boot_id, owner.pid, owner.start_time)) is False
    )


def _describe(owner: Owner | None) -> str:
    return str(owner) if owner else "another process, which has not said who it is yet"
