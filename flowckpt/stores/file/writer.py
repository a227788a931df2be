"""The one writer of a segment: append, sync, look whether still the owner, and only then acknowledge.

Why a failure here is final
---------------------------
After a failed write or sync nobody knows what is on the disk: the kernel reports the error once, the next sync succeeds
without writing, and reading shows the new bytes from the page cache. So there is no retry, no truncation and no
further save on this handle; it is *poisoned*. Only a new segment can find out what became of the record, because it
copies the last line it adopts into a file of its own.

Why the fence is checked after the sync
---------------------------------------
A successor claims a later segment first, marks ours second, and reads ours third. The mark is a second name of our
file, a hard link. If our file has one name when our sync has returned, no reader has begun, so each will see our
record: acknowledge. Asking is one fstat (1 µs); reading the directory at each save took 15.

Why a second name
-----------------
Nobody takes it away by accident, as `chmod -R` would a mode; and what adds a name to our file (a backup by hard links)
makes us look, no more. A clear marks, too, and then removes both names. Between the two our file has one name again; so
a claimer also takes the writing mode from the file (which an open file does not feel), and we ask for both.

Why a mark is not the answer
----------------------------
It says "look": whose claim it was may have given it up again, unwritten, or died, and then we are the owner as before.
So we take the mark away first, and read the directory second. Whoever marks us again later has its name there before it
reads; whoever marked us before, or found a mark there, has its name there already, unless it gave up. A later name
means: not acknowledged. So does our own name where it is missing or another file's: the run was cleared, and perhaps
begun anew. The mark has our file's inode in its name, so we never take away one that was set for another file.

Why the first line looks without a mark
---------------------------------------
A claimer that was stopped before its `link` may have taken a number below one that was claimed since, and given up by
its first owner. The later owner read the directory when our name was not in it, so it marked nothing of ours. But its
name was there before ours, so one look, behind the first sync, finds it.

Why a look is due after a second
--------------------------------
Somebody may remove a mark (a cleaning script, a copy put back in place). So we look without one where the last look is
a second old: an owner that slept while it was stolen from is fenced by the names alone, and one that is awake is fenced
after a second. It costs 20 µs a second. The clock can only add looks; the promise does not rest upon it.

A claimer that dies between its `link` and the mark has read nothing, so what we acknowledge until we look is not lost:
the next claimer marks us, and reads it. A look fences us, as it does after the mark.

Why the look is for any later segment
-------------------------------------
Not for N + 1 alone: its owner may have given it up again, unwritten, after a third one went on from N under N + 2.
"""

from __future__ import annotations

import contextlib
import os
from time import monotonic
from typing import TYPE_CHECKING

from flowckpt.core.system.declared import shell_word
from flowckpt.core.system.filesystem import FileSystem
from flowckpt.errors import CheckpointStorageError, FencedError
from flowckpt.stores.file.directory import give_up_segment, note_release, read_lines
from flowckpt.stores.file.layout import mark_name, segment_name, segment_numbers
from flowckpt.stores.log.line import seal as seal_line
from flowckpt.stores.log.segment import SegmentDamagedError, read_header

if TYPE_CHECKING:
    from flowckpt.stores.log.sealing.lines import LineSeal


_LOOK_SECONDS = 1.0
_HEADER_BYTES = 64 * 1024
"""No header is as long."""


class SegmentWriter:
    """Appends lines to one segment.

    Attributes:
        number: the segment, the attempt, the fencing number.
        is_poisoned: whether a write failed, so that nothing more may be written.
        has_written: whether any line was appended.
        digest: the digest of the last acknowledged line.
        seal: what seals the lines; None where nothing is done to them.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: int,
        file: int,
        *,
        workflow_id: str,
        number: int,
        digest: bytes,
        seal: LineSeal | None = None,
    ) -> None:
        self.number = number
        self.is_poisoned = False
        self.has_written = False
        self._filesystem = filesystem
        self._directory = directory
        self._file = file
        self._workflow_id = workflow_id
        self.digest = digest
        self.seal = seal
        self._lines = 1
        self._fence: FencedError | None = None
        self._next_look = float("-inf")
        self._pid = os.getpid()

    def append(self, body: bytes) -> None:
        """Make a line durable, or raise. Ask `check_usable` before.

        Args:
            body: a JSON object without its closing brace.

        Raises:
            FencedError: another attempt has begun, or the run was cleared; nothing is acknowledged.
            CheckpointStorageError: the handle is poisoned now.
        """
        if self.seal is not None:
            self.is_poisoned = True  # from here on, for the number of a line is never used for another one
            body = self.seal.sealed(body, self._lines, self.digest)
        line, digest = seal_line(body, self.digest)
        filesystem = self._filesystem
        self.is_poisoned = True  # until the line is acknowledged: any exception from here on, of whatever kind
        try:
            written = filesystem.write(self._file, line)
            while written < len(line):
                written += filesystem.write(self._file, line[written:])
            filesystem.sync_data(self._file)
            newest = self._newest_number()
        except OSError as error:
            raise self._failed(error) from error
        if newest != self.number:
            self._fence = FencedError(self._workflow_id, attempt=self.number, newest_attempt=newest)
            raise self._fence
        self.digest = digest
        self._lines += 1
        self.has_written = True
        self.is_poisoned = False

    def look_for_claim(self) -> FencedError | None:
        """Return what a save would be refused with, where a later segment is there, begun or not, or this one is gone.

        It only looks: whoever claimed may yet give the run up unwritten, and then this writer goes on.

        Raises:
            OSError: the directory cannot be read.
        """
        try:
            names = self._filesystem.names(self._directory)
        except FileNotFoundError:  # the directory itself was removed
            names = []
        numbers = segment_numbers(names)
        if numbers and numbers[-1] == self.number:
            return None
        newest = numbers[-1] if self.number in numbers else self._newest_of_others(names)
        return FencedError(self._workflow_id, attempt=self.number, newest_attempt=newest)

    def check_is_newest(self) -> None:
        """Refuse where another attempt has begun, or the run was removed, whatever became of the writes here.

        Raises:
            FencedError: so it is.
            OSError: the directory cannot be read.
        """
        self._next_look = float("-inf")
        newest = self._newest_number()
        if newest != self.number:
            self._fence = FencedError(self._workflow_id, attempt=self.number, newest_attempt=newest)
            raise self._fence

    def look_for_successor(self) -> FencedError | None:
        """Return what the next save would raise, where a later attempt has saved something or the run was removed.

        It only looks, from whatever thread: marks are left to the saves. A later attempt that has saved nothing may yet
        be refused, and give the run back.

        Raises:
            OSError: the directory cannot be read.
        """
        filesystem, directory = self._filesystem, self._directory
        try:
            names = filesystem.names(directory)
        except FileNotFoundError:
            names = []
        if not filesystem.is_named(self._file, directory, segment_name(self.number)):
            newest = self._newest_of_others(names)
            return FencedError(self._workflow_id, attempt=self.number, newest_attempt=newest)
        later = [number for number in segment_numbers(names) if number > self.number]
        if not any(map(self._is_begun, later)):
            return None
        return FencedError(self._workflow_id, attempt=self.number, newest_attempt=max(later))

    def _is_begun(self, number: int) -> bool:
        """Tell whether a segment has more than its header."""
        try:
            file = self._filesystem.open_read(self._directory, segment_name(number))
        except FileNotFoundError:  # it was given up meanwhile
            return False
        try:
            start = self._filesystem.read(file, _HEADER_BYTES, 0)
        finally:
            self._filesystem.close(file)
        return start.find(b"\n") not in (-1, len(start) - 1)

    @property
    def is_fenced(self) -> bool:
        """Whether it found that it may not write any more."""
        return self._fence is not None

    def give_up(self) -> None:
        """Remove the segment, where nothing was written to it."""
        if self.is_mine and not self.has_written and not self.is_poisoned:
            give_up_segment(self._filesystem, self._directory, self._file, self.number)

    def note_release(self) -> None:
        """Say in the directory that this writer has given the run up."""
        note_release(self._filesystem, self._directory, self._file, self.number)

    def close(self) -> None:
        """Close the segment's file."""
        if self.is_mine:
            self._filesystem.close(self._file)

    @property
    def is_mine(self) -> bool:
        """Whether this process made the writer: a forked child inherits it and may not use it."""
        return os.getpid() == self._pid

    def _newest_number(self) -> int | None:
        """Return the newest attempt of the run; None where our segment's name is not our file's, as it was cleared."""
        now = monotonic()
        if now < self._next_look and self._filesystem.is_untouched(self._file):
            return self.number
        self._take_mark_away()
        try:
            names = self._filesystem.names(self._directory)
        except FileNotFoundError:  # the directory itself was removed since
            return None
        if not self._filesystem.is_named(self._file, self._directory, segment_name(self.number)):
            return self._newest_of_others(names)
        self._next_look = now + _LOOK_SECONDS
        return max([self.number, *segment_numbers(names)])

    def _newest_of_others(self, names: list[str]) -> int | None:
        """Return the newest attempt of a run from which our segment was removed: by a clear (None), or by a compaction."""
        numbers = segment_numbers(names)
        newest = max(numbers, default=0)
        if newest <= self.number or self.number in numbers:  # it was cleared, and perhaps begun anew
            return None
        try:
            header, _, _ = read_header(read_lines(self._filesystem, self._directory, segment_name(newest), 1))
        except (FileNotFoundError, SegmentDamagedError):
            return newest
        return None if header.get("kind") == "cleared" else newest

    def _take_mark_away(self) -> None:
        """Remove the mark, if there is one; a second name that is none stays, and makes us look each time."""
        filesystem = self._filesystem
        status = filesystem.status(self._file)
        if not status.is_writable:
            filesystem.set_writable(self._file, True)
        if status.links > 1:
            with contextlib.suppress(FileNotFoundError):
                filesystem.unlink(self._directory, mark_name(self.number, status.inode))

    def check_usable(self) -> None:
        """Refuse to write from a forked child, after a failure, and after another attempt has begun.

        Raises:
            FencedError: a save found that this attempt is not the newest.
            CheckpointStorageError: the handle is another process's, or poisoned.
        """
        if os.getpid() != self._pid:
            raise CheckpointStorageError(
                f"run {self._workflow_id!r} is owned by the process that this one was forked from",
                workflow_id=self._workflow_id,
                operation="save",
                remedy="Save from the parent, or open a store in the child for runs of its own.",
            )
        if self._fence is not None:
            raise FencedError(
                self._workflow_id, attempt=self.number, newest_attempt=self._fence.newest_attempt
            ) from self._fence
        if self.is_poisoned:
            raise CheckpointStorageError(
                f"an earlier save of run {self._workflow_id!r} failed, so what is on the disk is unknown",
                workflow_id=self._workflow_id,
                operation="save",
                is_outcome_unknown=True,
                remedy="Nothing more is written by this attempt; the next one finds out.",
            )

    def _failed(self, error: OSError) -> CheckpointStorageError:
        return CheckpointStorageError(
            f"saving run {self._workflow_id!r} to {segment_name(self.number)} failed: {error.strerror or error}; "
            "whether the checkpoint is on the disk is unknown",
            workflow_id=self._workflow_id,
            operation="save",
            is_outcome_unknown=True,
            remedy=f"Make room or mend the disk, then 'flowckpt resume {shell_word(self._workflow_id)}'.",
        )
