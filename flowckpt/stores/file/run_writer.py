"""The writer of a run in a directory: its saves, and the writer of the segment that they append to."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from json.encoder import encode_basestring as quote
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import attrs

from flowckpt.core.codec import dumps
from flowckpt.core.codec.blob import Blob, Fetch
from flowckpt.core.codec.checkpoints import encode_head
from flowckpt.core.codec.results import Blobs, encode_time
from flowckpt.core.records import CheckpointData, HistoryView, Reason
from flowckpt.core.system.blocking import APART, Waiting
from flowckpt.core.system.declared import shell_word
from flowckpt.core.system.filesystem import FULL, NOWHERE, Directory, Place, open_if_there
from flowckpt.errors import CheckpointStorageError, DiskFullError, FencedError, VanishedError
from flowckpt.stores.file.directory import StartedSteps, give_up_segment, read_lines, seal_live_note
from flowckpt.stores.file.layout import mark_name, released_name, segment_name, segment_numbers
from flowckpt.stores.file.values import share_blobs, write_blobs
from flowckpt.stores.log.image import RunImage
from flowckpt.stores.log.sealing.protection import PLAIN, Seals
from flowckpt.stores.log.segment import SegmentDamagedError, chain_line, parse_header
from flowckpt.stores.runs_base import FencedWriter, LogRunWriter, PreparedSave

if TYPE_CHECKING:
    from flowckpt.stores.file.directory import TruncationGuard
    from flowckpt.stores.log.sealing.lines import LineSeal

_log = logging.getLogger("flowckpt")
_NO_BLOBS: Blobs = {}
_STEP = Reason.STEP  # a member access on an enum takes 60 ns


@attrs.define(eq=False)
class OpenRun:
    """A run's directory and its lock file, open for the writers of successive attempts.

    Attributes:
        directory: the run's directory.
        workflow_id: the run.
        fetch: reads large values.
        seals: the seals of the store.
        lock: the run's lock file; -1 until a claim opens it.
        is_locked: whether the lock is held; an owner that took the run over from a live process does not hold it.
        token: identifies the owner.
    """

    directory: Directory
    workflow_id: str
    fetch: Fetch
    seals: Seals = PLAIN
    lock: int = attrs.field(init=False, default=-1)
    is_locked: bool = attrs.field(init=False, default=False)
    token: str = attrs.field(init=False, factory=lambda: os.urandom(16).hex())


class FileRunWriter(LogRunWriter):
    """Writes to one run in a directory.

    Args:
        guard: writes the head file of the attempt, if it has one.

    Attributes:
        opened: the run's directory and its lock file.
        writer: the writer of the claimed segment.
        started: notes the steps that start.
    """

    def __init__(
        self, opened: OpenRun, writer: SegmentWriter, image: RunImage, guard: TruncationGuard | None = None
    ) -> None:
        super().__init__(image, writer.number, opened.token, opened.fetch)
        self.opened = opened
        self.writer = writer
        self.started = StartedSteps(opened.directory.calls, opened.lock, writer.number, writer.seal)
        self._guard = guard
        self._has_blob_directory = False
        self._live_note_count = 0
        self._known_ids: dict[int, str] | None = None  # of the checkpoints, after the first deletion

    def note_started(self, path: str) -> None:
        """Note in the lock file, without a sync, that a step starts."""
        self.started.add(path)

    def seal_live_note(self, content: bytes) -> bytes:
        """Return a live note in the form to write."""
        seal = self.writer.seal
        self._live_note_count += 1
        if seal is None or seal.key is None:
            return content
        return seal_live_note(content, self.attempt, seal, self._live_note_count)

    @property
    def can_be_renewed(self) -> bool:
        """Whether to claim a new segment: this one cannot be written any more, and contains a checkpoint.

        A segment without a checkpoint counts as a crash of the run, so there must be at most one.
        """
        return self.writer.is_poisoned and not self.writer.is_fenced and self.is_mine and self._first is not None

    def _check_unfenced(self) -> None:
        self.writer.check_usable()
        if not self.opened.is_locked:
            self._try_lock()

    def _try_lock(self) -> None:
        """Take the lock of a run that was taken over, which is free once the previous owner has ended."""
        opened = self.opened
        # After a later claim, the lock is for the next owner.
        if not opened.is_locked and self.writer.find_fence(is_claim_enough=True) is None:
            opened.is_locked = opened.directory.calls.lock(opened.lock)

    def _encode(self, data: CheckpointData, view: HistoryView) -> tuple[bytes, Blobs]:
        """Return the fields of a checkpoint after its results, and the large values that they refer to.

        Left out are the attempt, which is the segment's number, and the usual values after a step: the path of the last
        result as the id, the reason, and one result less than checkpoints.
        """
        count, checkpoint_id, first = view.length, data.checkpoint_id, self._first
        is_named_by_step = (
            self.is_adopted and count > self.saved.length and checkpoint_id == view.history.results[count - 1].path
        )
        if first is not None and data.differs_only_in_position(first):  # encode_head and dumps take 5 µs more
            what = "" if is_named_by_step else f',"checkpoint_id":{quote(checkpoint_id)}'
            if data.reason is not _STEP:
                what += f',"reason":"{data.reason.value}"'
            results = "" if count == data.sequence - 1 else f',"results":{count}'
            text = f'"sequence":{int.__repr__(data.sequence)}{what},"saved_at":"{encode_time(data.saved_at)}"{results}'
            return text.encode(), _NO_BLOBS
        head, blobs = encode_head(data, first)
        del head["attempt"]
        if is_named_by_step:
            del head["checkpoint_id"]
        if data.reason is _STEP:
            del head["reason"]
        if count != data.sequence - 1:
            head["results"] = count
        return dumps(head)[1:-1].encode(), blobs

    def _begin_attempt(self, view: HistoryView, first: CheckpointData | None = None) -> tuple[tuple[()], HistoryView]:
        """Write the first line, which names the records that are continued: those that share the new history."""
        if self._guard is not None:
            self.writer.is_poisoned = True  # for good on failure: the state of the disk is then unknown
            self._guard.begin()
            self.writer.is_poisoned = False
        if self.writer.number > 1:
            cut = self.image.find_cut(view, first)
            self.writer.append(dumps(cut.to_document())[:-1].encode())
            self.saved = view.history.view(cut.results)
        self.is_adopted = True
        return (), self.saved

    def _append(self, save: PreparedSave, lines: Sequence[bytes]) -> None:
        self.writer.append(lines[0])
        self._note_append(save)

    def save_in_group(self, data: CheckpointData) -> Waiting[None]:
        """Save a checkpoint, like `save`."""
        self._check_process()
        with self._one_at_a_time:
            save = self._prepare_save(data)
            write_and_encode = partial(self._write_values_and_encode, save)
            has_large_values = bool(save.encoded[1])  # each is written and synced
            body = (yield write_and_encode, APART) if has_large_values else write_and_encode()
            digest = self.writer.write(body)
            yield self.writer.sync, None
            self.writer.acknowledge(digest)
            self._note_append(save)
            self._acknowledge(save)

    @property
    def is_guarded(self) -> bool:
        """Whether it writes a head file."""
        return self._guard is not None

    @property
    def may_share_syncs(self) -> bool:
        """Whether the next save without large values has a single sync; the first one of a resume has two."""
        return (self.is_adopted or (self.writer.number == 1 and not self.is_guarded)) and self.is_mine

    def _write_values(self, missing: Mapping[str, Blob]) -> None:
        values, is_durable = self.opened.seals.value_seal, self._has_blob_directory
        write_blobs(self.opened.directory, missing.values(), values, is_folder_durable=is_durable)
        self._has_blob_directory = True

    def _note_append(self, save: PreparedSave) -> None:
        """Update the state after an append."""
        if save.evicted:
            self._known_ids = None  # read again before the next deletion
        elif self._known_ids is not None:
            self._known_ids[save.data.sequence] = save.data.checkpoint_id
        self.started.end = 0
        if self._guard is not None:
            self._note_head()

    def select_sequences(self, wanted: Callable[[str, int], bool], read: Callable[[], RunImage]) -> list[int]:
        """Return the sequences of checkpoints selected by id and sequence. Only the first deletion reads the run.

        Args:
            wanted: selects checkpoints.
            read: reads the current state of the run.
        """
        with self._lock_for_write():
            fence = self.writer.find_fence(is_claim_enough=True)
            if fence is not None:  # nothing was written, so nothing is in doubt
                raise fence
            live = self._known_ids
            if live is None:
                # Before its first save the owner continues from what it read; others may see lines that a fenced writer
                # adopted.
                image = read() if self.is_adopted else self.image
                heads = [image.records[index].head for index in image.checkpoints()]
                # Lines that a fenced writer appended after our claim do not count, and their sequences will be reused.
                live = {
                    head["sequence"]: head["checkpoint_id"] for head in heads if head["sequence"] <= self.last_sequence
                }
                self._known_ids = live if self.is_adopted else None
            return sorted(sequence for sequence, name in live.items() if wanted(name, sequence))

    def delete(self, sequences: list[int]) -> None:
        """Append that checkpoints are deleted."""
        with self._lock_for_write():
            if not self.is_adopted:  # the owner continues from the newest one that it read
                self._begin_attempt(self.image.newest_view())
            self.writer.append(dumps({"deletes": sequences})[:-1].encode())
            self._note_head()
            if self._known_ids is not None:
                for sequence in sequences:
                    self._known_ids.pop(sequence, None)

    @property
    def is_doubtful(self) -> bool:
        """Whether an unacknowledged line may still count: it exists, and no attempt has continued the run since."""
        with self._one_at_a_time:
            return self.writer.is_poisoned and (self._is_closed or self.writer.find_fence() is None)

    def vouch(self) -> None:
        """Append an empty record, so that a sealed segment contains the digest of the line that it continues."""
        self.delete([])

    def _note_head(self) -> None:
        if self._guard is not None:
            self._guard.note(self.writer.digest)

    def release(self) -> None:
        """Release the lock; a claim without a save leaves no segment."""
        self._close(is_release=True)

    def _note_release(self) -> None:
        """Note the release if unlocking does not show it, because an owner that took the run over has no lock."""
        if not self.opened.is_locked:
            with contextlib.suppress(OSError):  # then the run stays locked as long as the process with the lock lives
                self.writer.note_release()

    @property
    def values(self) -> set[str]:
        """The known digests of the large values that its records refer to."""
        return self._values

    def estimate_size(self, history: HistoryView) -> int:
        """Return the approximate size of the unsaved part of a history in the next segment, in bytes."""
        count, full = len(self.saved), history.history
        blobs: Iterable[int] = (
            blob.size for index in range(count, len(history)) for blob in full.blobs.get(index, {}).values()
        )
        return sum(map(len, full.encoded_between(max(count - 1, 0), len(history)))) + sum(blobs, 0)

    def report_if_lost(self, *, is_gone: Callable[[], bool]) -> None:
        """Report the loss of the run to its listener.

        Args:
            is_gone: returns whether the whole store was removed. Then no other process has the run, and the next save
                fails.

        Raises:
            OSError: the directory cannot be read.
        """
        if self.on_lost is None or not self.is_mine:
            return
        with self._one_at_a_time:  # keeps the files open
            if not self._is_closed:
                self._try_lock()
            lost = None if self._is_closed else self.writer.find_fence()
        if lost is not None and not (lost.newest_attempt is None and is_gone()):
            self.on_lost(lost)

    def hand_over(self) -> None:
        """Close the segment, and leave the directory and the lock, still held, to the writer of the next one."""
        with self._one_at_a_time:
            self._is_closed = True
            with contextlib.suppress(OSError):  # an error of a closed segment has no effect
                self.writer.close()
            if self._guard is not None:
                self._guard.close(is_end=False)

    def close(self) -> None:
        """Close the files, and so release the lock."""
        self._close(is_release=False)

    def _close(self, *, is_release: bool) -> None:
        is_mine, opened = self.is_mine, self.opened  # the parent of a forked child may hold the internal lock
        with self._one_at_a_time if is_mine else contextlib.nullcontext():
            if self._is_closed:
                return
            if is_mine and is_release:
                self.writer.give_up()
                self._note_release()
            self._is_closed = True
            try:
                if is_mine:
                    with contextlib.suppress(OSError):  # all that was acknowledged is synced
                        self.writer.close()
                if self._guard is not None:
                    self._guard.close(is_end=is_mine and is_release)
            finally:  # the run must not stay locked, whatever happens
                calls = opened.directory.calls
                # Closing is not enough to unlock: a child that a step forked has the file open, too.
                with contextlib.suppress(OSError):
                    if is_mine and opened.is_locked:
                        calls.unlock(opened.lock)
                with contextlib.suppress(OSError):
                    calls.close(opened.lock)
                with contextlib.suppress(OSError):
                    opened.directory.close()

    def share_from(self, source: Directory, sizes: Mapping[str, int]) -> None:
        """Link large values of another run, given its open directory, as far as that is possible."""
        with self._lock_for_write():
            missing = {digest: size for digest, size in sizes.items() if digest not in self._values}
            opened = self.opened
            self._values |= share_blobs(source, opened.directory, missing, opened.seals.value_seal)
            self._has_blob_directory = True


# The writer of a segment: append, sync, check the ownership, and only then acknowledge.
#
# Why a failure here is final
# ---------------------------
# After a failed write or sync it is unknown what is on the disk: the kernel reports the error once, the next sync
# succeeds without writing, and reads return the new bytes from the page cache. So there is no retry, no truncation and
# no further save on this handle; it is *poisoned*. Only a new segment can decide the fate of the record, because it
# copies the last line that it adopts to its own file.
#
# Why the fence is checked after the sync
# ---------------------------------------
# A new owner first claims a later segment, then marks ours, then reads ours. The mark is a second name of our file, a
# hard link. If our file has one name after our sync has returned, no new owner has started to read, so each will see
# our record: we acknowledge it. The check is one stat (1 µs); reading the directory at each save took 15.
#
# Why a second name
# -----------------
# It is not removed by accident, as `chmod -R` could change a mode; and a tool that adds names (a backup with hard
# links) only causes further checks. A clear also marks, and then removes both names. In between, our file has one name
# again; so a claimer also removes the file's write permission (which does not affect open files), and we check both.
#
# Why a mark is only a request to check
# -------------------------------------
# Its claimer may have given up without a write, or died, and then we are still the owner. So we first remove the mark,
# then read the directory. A process that marks us again later has created its segment before it reads; a process that
# marked us earlier, or found a mark, has already created its segment, unless it gave up. A later segment means: do not
# acknowledge. So does a missing name of ours, or one that belongs to another file: the run was cleared, and perhaps
# started again. The mark's name contains the inode of our file, so we never remove one that was set for another file.
#
# Why the first line is checked without a mark
# --------------------------------------------
# A claimer that was suspended before its `link` may take a number that its first owner gave up, below one that was
# claimed meanwhile. The later owner read the directory before our segment was in it, so it did not mark ours. But its
# segment existed before ours, so one check after the first sync finds it.
#
# Why there is a check each second
# --------------------------------
# A mark may be removed by others (a cleanup script, a restored copy). So we check without a mark if the last check is a
# second old: an owner that was suspended during a takeover is fenced by the names alone, and a running one is fenced
# after a second. It costs 20 µs a second. The clock can only add checks; safety does not depend on it.
#
# A claimer that dies between its `link` and the mark has read nothing, so lines that we acknowledge before the check
# are not lost: the next claimer marks us and reads them. The check fences us, as after a mark.
#
# Why every later segment counts, not only N + 1
# ----------------------------------------------
# The owner of N + 1 may have given it up, unwritten, after a third process continued from N with N + 2.


_CHECK_SECONDS = 1.0
_HEADER_BYTES = 64 * 1024
"""More than the length of any header."""


class SegmentWriter(FencedWriter):
    """Appends lines to one segment.

    Args:
        file: the segment, open.

    Attributes:
        number: the number of the segment, the attempt, and the fencing token.
        has_written: whether any line was appended.
        digest: the digest of the last acknowledged line.
        seal: the seal of the lines, or None.
    """

    def __init__(self, opened: OpenRun, file: int, *, number: int, digest: bytes, seal: LineSeal | None = None) -> None:
        self.number = number
        self.has_written = False
        self._filesystem = opened.directory.calls
        self._directory = opened.directory
        self._file = file
        self._workflow_id = opened.workflow_id
        self.digest = digest
        self.seal = seal
        self._lines = 1
        self._next_check = float("-inf")
        self.directory_path = ""
        self._place = "", NOWHERE
        self._is_moved = False

    def append(self, body: bytes) -> None:
        """Make a line durable, or raise. Call `check_usable` first.

        Args:
            body: a JSON object without its closing brace.

        Raises:
            FencedError: another attempt has started, or the run was cleared; nothing is acknowledged.
            CheckpointStorageError: it is unknown whether the line is durable; the writer is poisoned.
        """
        self.acknowledge(self.write(body, is_synced=True))

    def write(self, body: bytes, *, is_synced: bool = False) -> bytes:
        """Write a line, and return its digest. The writer is poisoned until `acknowledge`."""
        if self.seal is not None:
            self.is_poisoned = True  # from here on, because the number of a line is never reused
            body = self.seal.seal(body, self._lines, self.digest)
        line, digest = chain_line(body, self.digest)
        filesystem = self._filesystem
        self.is_poisoned = True  # until the line is acknowledged, whatever exception follows
        try:
            written = filesystem.write(self._file, line)
            while written < len(line):
                written += filesystem.write(self._file, line[written:])
            if is_synced:
                filesystem.sync_data(self._file)
        except OSError as error:
            raise self._save_error(error) from error
        return digest

    def sync(self) -> None:
        """Sync the written lines."""
        try:
            self._filesystem.sync_data(self._file)
        except OSError as error:
            raise self._save_error(error) from error

    def acknowledge(self, digest: bytes) -> None:
        """Acknowledge a written and synced line, unless the run has a new owner.

        Args:
            digest: the digest of the line.
        """
        try:
            self._check_ownership()
        except OSError as error:
            raise self._save_error(error) from error
        self.digest = digest
        self._lines += 1
        self.has_written = True
        self.is_poisoned = False

    def check_is_newest(self) -> None:
        """Refuse if another attempt has started or the run was removed, regardless of earlier failures here.

        Raises:
            FencedError: the run has a later attempt, or was removed.
            OSError: the directory cannot be read.
        """
        self._next_check = float("-inf")
        self._check_ownership()

    def _check_ownership(self) -> None:
        newest = self._find_newest()
        if newest != self.number:
            self._fence = self._fenced_error(newest)
            raise self._fence

    def _fenced_error(self, newest: int | None) -> FencedError:
        return FencedError(self._workflow_id, attempt=self.number, newest_attempt=newest)

    def find_fence(self, *, is_claim_enough: bool = False) -> FencedError | None:
        """Return the error of the next save if a later attempt has saved a record or the run was removed.

        It changes no state, from any thread: only saves remove marks.

        Args:
            is_claim_enough: whether a later attempt counts that has saved nothing. It may still give up, and then this
                writer continues.

        Raises:
            OSError: the directory cannot be read.
        """
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):  # the directory itself was removed
            names = self._directory.names()
        if not self._directory.is_named(self._file, segment_name(self.number)):
            return self._fenced_error(self._find_newest_of_others(names))
        later = [number for number in segment_numbers(names) if number > self.number]
        is_fenced = bool(later) if is_claim_enough else any(map(self._has_more_than_header, later))
        return self._fenced_error(later[-1]) if is_fenced else None

    def _has_more_than_header(self, number: int) -> bool:
        """Return whether a segment has more than its header, also if that is not yet a record."""
        with open_if_there(self._directory.reading, segment_name(number)) as file:
            start = b"" if file is None else self._filesystem.read(file, _HEADER_BYTES, 0)  # None if given up
        return start.find(b"\n") not in (-1, len(start) - 1)

    def give_up(self) -> None:
        """Remove the segment if nothing was written to it."""
        if not self.has_written and not self.is_poisoned:
            give_up_segment(self._directory, self._file, self.number)

    def note_release(self) -> None:
        """Note in the directory that this writer, which never had the lock, released the run.

        Nothing is synced: see `is_released`.
        """
        if self._directory.is_named(self._file, segment_name(self.number)):
            name = released_name(self.number, self._filesystem.status(self._file).inode)
            self._filesystem.close(self._directory.create(name))

    def close(self) -> None:
        """Close the segment's file."""
        self._filesystem.close(self._file)

    def _find_newest(self) -> int | None:
        """Return the newest attempt of the run; None if our file has lost its name, because the run was cleared.

        Unless its last check was just before and still holds, it also removes the mark of our file and makes the file
        writable.
        """
        now = monotonic()
        path, identity = self._place
        if now < self._next_check and self._filesystem.is_untouched(self._file, path, identity):
            return self.number
        identity = self._remove_mark()
        try:
            names = self._directory.names()
        except FileNotFoundError:  # the directory itself was removed
            return None
        name = segment_name(self.number)
        path = f"{self.directory_path}/{name}" if self.directory_path else ""
        self._place = path, identity
        place = self._filesystem.place_of(self._file, self._directory.descriptor, name, path)
        if place is Place.UNNAMED:
            return self._find_newest_of_others(names)
        if place is not Place.HERE:
            self._check_location(place)
        self._next_check = now + _CHECK_SECONDS
        return max([self.number, *segment_numbers(names)])

    def _check_location(self, place: Place) -> None:
        """Refuse to acknowledge a line that no reader can find; only warn if the directory was moved."""
        store = Path(self.directory_path).parents[1]
        if place is Place.REPLACED:
            raise VanishedError(repr(str(store)), workflow_id=self._workflow_id)
        if not self._is_moved:
            self._is_moved = True
            _log.warning(
                "run %r is no longer in %s: its directory was moved or unmounted, and its checkpoints with it. Put it back",
                self._workflow_id,
                store,
            )

    def _find_newest_of_others(self, names: list[str]) -> int | None:
        """Return the newest attempt after our segment was removed; None if by a clear, not by a compaction."""
        numbers = segment_numbers(names)
        newest = max(numbers, default=0)
        if newest <= self.number or self.number in numbers:  # it was cleared, and perhaps started again
            return None
        try:
            header, _, _ = parse_header(read_lines(self._directory, segment_name(newest), 1))
        except (FileNotFoundError, SegmentDamagedError):
            return newest
        return None if header.get("kind") == "cleared" else newest

    def _remove_mark(self) -> tuple[int, int]:
        """Remove the mark, if any, and return the file's identity; any other second name forces a check each time."""
        filesystem = self._filesystem
        status = filesystem.status(self._file)
        if not status.is_writable:
            filesystem.set_writable(self._file, True)
        if status.links > 1:
            self._directory.discard(mark_name(self.number, status.inode))
        return status.device, status.inode

    def check_usable(self) -> None:
        """Refuse to write after a failure, or after another attempt has started.

        Raises:
            FencedError: a save found that this attempt is not the newest.
            CheckpointStorageError: the writer is poisoned.
        """
        if self._fence is not None or self.is_poisoned:
            self._refuse_write(self._workflow_id, self.number, "on the disk")

    def _save_error(self, error: OSError) -> CheckpointStorageError:
        run, name = self._workflow_id, segment_name(self.number)
        problem = f"saving run {run!r} to {name} failed: {error.strerror or error}; whether the checkpoint is on the disk is unknown"
        if error.errno in FULL:
            return DiskFullError(problem, workflow_id=run, operation="save", is_outcome_unknown=True)
        remedy = f"Repair the disk, then 'flowckpt resume {shell_word(run)}'."
        return CheckpointStorageError(
            problem, workflow_id=run, operation="save", is_outcome_unknown=True, remedy=remedy
        )
