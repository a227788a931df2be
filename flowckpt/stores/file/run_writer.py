"""The writer of a run in a directory: the saves, and the one writer of a segment that they append to."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from json.encoder import encode_basestring as quote
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from flowckpt.core.codec import dumps
from flowckpt.core.codec.blob import Fetch
from flowckpt.core.codec.checkpoints import encode_head
from flowckpt.core.codec.results import Blobs, encode_time
from flowckpt.core.records import CheckpointData, HistoryView, Reason
from flowckpt.core.system.blocking import APART, Waiting
from flowckpt.core.system.declared import shell_word
from flowckpt.core.system.filesystem import NOWHERE, FileSystem, Place, open_if_there
from flowckpt.errors import CheckpointStorageError, FencedError, VanishedError
from flowckpt.stores.file.directory import StartedSteps, give_up_segment, note_release, read_lines, sealed_live
from flowckpt.stores.file.layout import mark_name, segment_name, segment_numbers
from flowckpt.stores.file.values import share_blobs, write_blobs
from flowckpt.stores.log.image import RunImage
from flowckpt.stores.log.sealing.protection import PLAIN, Seals
from flowckpt.stores.log.segment import SegmentDamagedError, chain_line, read_header
from flowckpt.stores.runs_base import RunWriter, refuse_write

if TYPE_CHECKING:
    from flowckpt.stores.file.directory import TruncationGuard
    from flowckpt.stores.log.sealing.lines import LineSeal

_log = logging.getLogger("flowckpt")
_NO_BLOBS: Blobs = {}
_STEP = Reason.STEP  # an enum takes 60 ns to find a member of it


class FileRunWriter(RunWriter):
    """Writes to one run in a directory.

    Attributes:
        directory: the run's directory, open.
        lock: the run's lock file, open.
        image: the run as read after the claim.
        writer: the writer of the claimed segment.
        started: notes the steps that start.
        is_locked: whether it has the run's lock; an owner that took the run over from a live one has not.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each part of a claim
        self,
        filesystem: FileSystem,
        directory: int,
        lock: int,
        *,
        is_locked: bool,
        writer: SegmentWriter,
        image: RunImage,
        fetch: Fetch,
        token: str,
        seals: Seals = PLAIN,
        head: TruncationGuard | None = None,
    ) -> None:
        values = {digest for blobs in image.history.blobs.values() for digest in blobs}
        last_sequence = image.last_sequence
        super().__init__(
            image.workflow_id, writer.number, token, last_sequence=last_sequence, values=values, fetch=fetch
        )
        self.directory = directory
        self.image = image
        self.writer = writer
        self.started = StartedSteps(filesystem, lock, writer.number, writer.seal)
        self.is_locked = is_locked
        self._filesystem = filesystem
        self.lock = lock
        self._seals = seals
        self._head_note = head
        self._has_blob_directory = False
        self._live_notes = 0
        self._live: dict[int, str] | None = None  # once something was deleted: the checkpoints' ids

    def note_started(self, path: str) -> None:
        """Note in the lock file, without a sync, that a step starts."""
        self.started.add(path)

    def sealed_live(self, content: bytes) -> bytes:
        """Return a live note as it is written."""
        seal = self.writer.seal
        self._live_notes += 1
        return (
            content if seal is None or seal.key is None else sealed_live(content, self.attempt, seal, self._live_notes)
        )

    @property
    def can_be_renewed(self) -> bool:
        """Whether a new segment may help: nothing more can be saved to this one, and it holds a checkpoint.

        A segment without a checkpoint counts as a crash of the run, so there is to be one such at most.
        """
        return self.writer.is_poisoned and not self.writer.is_fenced and self.is_mine and self._first is not None

    def _check_usable(self) -> None:
        if self._is_closed:  # another task released it or took it over, while this one was on its way here
            raise FencedError(self.workflow_id, attempt=self.attempt, newest_attempt=self.attempt)
        self.writer.check_usable()
        if not self.is_locked:
            self._try_lock()

    def _try_lock(self) -> None:
        """Take the lock of a run that was taken over: it is free once the previous owner has gone."""
        if not self.is_locked and self.writer.look_for_claim() is None:  # else the next owner is to have it
            self.is_locked = self._filesystem.lock(self.lock)

    def _encode(self, data: CheckpointData, view: HistoryView) -> tuple[bytes, Blobs]:
        """Return the fields of a checkpoint after its results, and the large values that they name.

        Left out are the attempt, which the segment's number says, and what is the rule after a step: the
        path of its last result as the id, its reason, and one result less than checkpoints.
        """
        count, checkpoint_id, first = view.length, data.checkpoint_id, self._first
        is_named_by_step = (
            self.is_adopted and count > self.saved.length and checkpoint_id == view.history.results[count - 1].path
        )
        if first is not None and data.differs_only_in_position(first):  # by hand: encode_head and dumps take 5 µs more
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

    def _begin(self, view: HistoryView, first: CheckpointData | None = None) -> tuple[tuple[()], HistoryView]:
        """Write the first line: which records are continued, those whose history the new one shares."""
        if self._head_note is not None:
            self.writer.is_poisoned = True  # for good, should it fail: after a failed sync nothing can be known
            self._head_note.begin()
            self.writer.is_poisoned = False
        if self.writer.number > 1:
            cut = self.image.cut_for(view, first)
            self.writer.append(dumps(cut.document())[:-1].encode())
            self.saved = view.history.view(cut.results)
        self.is_adopted = True
        return (), self.saved

    def _write(
        self,
        data: CheckpointData,
        view: HistoryView,
        held: int,
        encoded: tuple[bytes, Blobs],
        beginning: Sequence[bytes],
        evicted: frozenset[int],
    ) -> None:
        self.writer.append(self._body(view, held, encoded, evicted))
        self._appended(data, evicted)

    def saving(self, data: CheckpointData) -> Waiting[None]:
        """Save a checkpoint, as `save` does."""
        self._check_process()
        with self._one_at_a_time:
            view, held, encoded, _, evicted = self._prepared(data)
            make_body = partial(self._body, view, held, encoded, evicted)
            has_large_values = bool(encoded[1])  # of which each is written and synced
            body = (yield make_body, APART) if has_large_values else make_body()
            digest = self.writer.write(body, is_synced=False)
            yield self.writer.sync, None
            self.writer.acknowledge(digest)
            self._appended(data, evicted)
            self._acknowledge(data, view, evicted)

    @property
    def is_guarded(self) -> bool:
        """Whether it notes, in a protected store, how far the run has come."""
        return self._head_note is not None

    @property
    def may_share_syncs(self) -> bool:
        """Whether the next save has one sync, if it has no large values: the first one of a resume has two."""
        return (self.is_adopted or (self.writer.number == 1 and not self.is_guarded)) and self.is_mine

    def _body(self, view: HistoryView, held: int, encoded: tuple[bytes, Blobs], evicted: frozenset[int]) -> bytes:
        """Return the line of a checkpoint, without its closing brace; its large values are durable then."""
        head, of_head = encoded
        if of_head or view.history.blobs:
            blobs, missing = self._new_values(view, held, of_head)
            if missing:
                write_blobs(
                    self._filesystem,
                    self.directory,
                    missing.values(),
                    is_directory_durable=self._has_blob_directory,
                    values=self._seals.for_values(),
                )
                self._has_blob_directory = True
            self._have_values(blobs, missing)
        results = b",".join(view.history.encoded_between(held, view.length))
        if evicted:
            head += b',"evicts":%b' % dumps(sorted(evicted)).encode()
        return b'{"step_results":[%b],%b' % (results, head)

    def _appended(self, data: CheckpointData, evicted: frozenset[int]) -> None:
        """Note what was appended."""
        if evicted:
            self._live = None  # to be read again before the next deletion
        elif self._live is not None:
            self._live[data.sequence] = data.checkpoint_id
        self.started.end = 0
        if self._head_note is not None:
            self._note_head()

    def selected(self, wanted: Callable[[str, int], bool], read: Callable[[], RunImage]) -> list[int]:
        """Return the sequences of checkpoints chosen by id and sequence. The run is read for the first deletion only.

        Args:
            wanted: chooses.
            read: reads the run as it is now.
        """
        with self._usable():
            if (fence := self.writer.look_for_claim()) is not None:  # nothing is written, so nothing is in doubt
                raise fence
            live = self._live
            if live is None:
                # Before its first save the owner continues what it read; others may see what a fenced writer adopted.
                image = read() if self.is_adopted else self.image
                heads = [image.records[index].head for index in image.checkpoints()]
                # What a fenced writer appended after our claim is not ours, and its sequence will be used again.
                live = {
                    head["sequence"]: head["checkpoint_id"] for head in heads if head["sequence"] <= self.last_sequence
                }
                self._live = live if self.is_adopted else None
            return sorted(sequence for sequence, name in live.items() if wanted(name, sequence))

    def delete(self, sequences: list[int]) -> None:
        """Append that checkpoints are deleted."""
        with self._usable():
            if not self.is_adopted:  # what the owner read as the newest is what it continues
                self._begin(self.image.newest_view())
            self.writer.append(dumps({"deletes": sequences})[:-1].encode())
            self._note_head()
            if self._live is not None:
                for sequence in sequences:
                    self._live.pop(sequence, None)

    @property
    def is_doubtful(self) -> bool:
        """Whether an unacknowledged line may still count: it is there, and no attempt has continued the run since."""
        with self._one_at_a_time:
            return self.writer.is_poisoned and (self._is_closed or self.writer.look_for_successor() is None)

    def vouch(self) -> None:
        """Append an empty record, so that a sealed segment holds the digest of what it continues."""
        with self._usable():
            if not self.is_adopted:
                self._begin(self.image.newest_view())
            self.writer.append(b'{"deletes":[]')
            self._note_head()

    def _note_head(self) -> None:
        if self._head_note is not None:
            self._head_note.note(self.writer.digest)

    def release(self) -> None:
        """Give the lock back; a claim that saved nothing leaves no segment."""
        if not self.is_mine:  # a forked child, whose parent may have held the lock below
            self._close(is_end=True)
            return
        with self._one_at_a_time:
            if not self._is_closed:
                self.writer.give_up()
                self._note_release()
            self._close(is_end=True)

    def _note_release(self) -> None:
        """Note the release if unlocking does not show it: an owner that took the run over has no lock."""
        if not self.is_locked:
            with contextlib.suppress(OSError):  # then it is held for as long as the one that has the lock lives
                self.writer.note_release()

    @property
    def values(self) -> set[str]:
        """The digests of the large values that its records name, as far as it knows them."""
        return self._values

    def bytes_missing_of(self, history: HistoryView) -> int:
        """Return about how many bytes the next segment needs for what is not saved yet of a history."""
        count, full = len(self.saved), history.history
        blobs: Iterable[int] = (
            blob.size for index in range(count, len(history)) for blob in full.blobs.get(index, {}).values()
        )
        return sum(map(len, full.encoded_between(max(count - 1, 0), len(history)))) + sum(blobs, 0)

    def look(self, *, is_gone: Callable[[], bool]) -> None:
        """Tell the listener, where the run is another's by now.

        Args:
            is_gone: returns whether the whole store was removed: no other process has the run then, and the next save says so.

        Raises:
            OSError: the directory cannot be read.
        """
        if self.on_lost is None or not self.is_mine:
            return
        with self._one_at_a_time:  # so that the files stay open
            if not self._is_closed:
                self._try_lock()
            lost = None if self._is_closed else self.writer.look_for_successor()
        if lost is not None and not (lost.newest_attempt is None and is_gone()):
            self.on_lost(lost)

    def hand_over(self) -> None:
        """Close the segment, and leave the directory and the lock, which stays held, to the writer of the next one."""
        with self._one_at_a_time:
            self._is_closed = True
            with contextlib.suppress(OSError):  # what it says of a file that is given up is nothing to anybody
                self.writer.close()
            if self._head_note is not None:
                self._head_note.close(is_end=False)

    def close(self) -> None:
        """Close the files; closing the lock's only descriptor gives the lock back."""
        if not self.is_mine:
            self._close(is_end=False)
            return
        with self._one_at_a_time:
            self._close(is_end=False)

    def _close(self, *, is_end: bool) -> None:
        if not self._is_closed:
            self._is_closed = True
            try:
                if self.is_mine:
                    self.writer.close()
                if self._head_note is not None:
                    self._head_note.close(is_end=is_end and self.is_mine)
            finally:  # whatever stops us, the run is not to stay locked
                self._filesystem.close(self.lock)
                self._filesystem.close(self.directory)

    def share_from(self, source: int, sizes: Mapping[str, int]) -> None:
        """Link large values of another run, given its open directory, as far as that is possible."""
        with self._usable():
            missing = {digest: size for digest, size in sizes.items() if digest not in self._values}
            self._values |= share_blobs(self._filesystem, source, self.directory, missing, self._seals.for_values())
            self._has_blob_directory = True


# The one writer of a segment: append, sync, look whether still the owner, and only then acknowledge.
#
# Why a failure here is final
# ---------------------------
# After a failed write or sync it is unknown what is on the disk: the kernel reports the error once, the next sync succeeds
# without writing, and reading shows the new bytes from the page cache. So there is no retry, no truncation and no
# further save on this handle; it is *poisoned*. Only a new segment can find out what became of the record, because it
# copies the last line it adopts into a file of its own.
#
# Why the fence is checked after the sync
# ---------------------------------------
# A successor claims a later segment first, marks ours second, and reads ours third. The mark is a second name of our
# file, a hard link. If our file has one name when our sync has returned, no reader has started, so each will see our
# record: acknowledge. Asking is one stat (1 µs); reading the directory at each save took 15.
#
# Why a second name
# -----------------
# It is not taken away by accident, as `chmod -R` would a mode; and what adds a name to our file (a backup by hard links)
# makes us look, no more. A clear marks, too, and then removes both names. Between the two our file has one name again; so
# a claimer also takes the writing mode from the file (which an open file does not feel), and we ask for both.
#
# Why a mark is not the answer
# ----------------------------
# It says "look": whose claim it was may have given it up again, unwritten, or died, and then we are the owner as before.
# So we take the mark away first, and read the directory second. A process that marks us again later has its name there before it
# reads; the process that marked us before, or found a mark there, has its name there already, unless it gave up. A later name
# means: not acknowledged. So does our own name where it is missing or another file's: the run was cleared, and perhaps
# started again. The mark has our file's inode in its name, so we never take away one that was set for another file.
#
# Why the first line looks without a mark
# ---------------------------------------
# A claimer that was stopped before its `link` may have taken a number below one that was claimed since, and given up by
# its first owner. The later owner read the directory when our name was not in it, so it marked nothing of ours. But its
# name was there before ours, so one look, behind the first sync, finds it.
#
# Why a look is due after a second
# --------------------------------
# Somebody may remove a mark (a cleaning script, a copy put back in place). So we look without one where the last look is
# a second old: an owner that slept during a takeover is fenced by the names alone, and one that is awake is fenced
# after a second. It costs 20 µs a second. The clock can only add looks; the promise does not rest upon it.
#
# A claimer that dies between its `link` and the mark has read nothing, so what we acknowledge until we look is not lost:
# the next claimer marks us, and reads it. A look fences us, as it does after the mark.
#
# Why the look is for any later segment
# -------------------------------------
# Not for N + 1 alone: its owner may have given it up again, unwritten, after a third one continued from N under N + 2.


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
        seal: what seals the lines; None if nothing is done to them.
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
        self.directory_path = ""
        self._place = "", NOWHERE
        self._is_moved = False

    def append(self, body: bytes) -> None:
        """Make a line durable, or raise. Ask `check_usable` before.

        Args:
            body: a JSON object without its closing brace.

        Raises:
            FencedError: another attempt has started, or the run was cleared; nothing is acknowledged.
            CheckpointStorageError: the handle is poisoned now.
        """
        self.acknowledge(self.write(body))

    def write(self, body: bytes, *, is_synced: bool = True) -> bytes:
        """Write a line, sync it or leave that to the caller, and return its digest. The handle is poisoned until it is acknowledged."""
        if self.seal is not None:
            self.is_poisoned = True  # from here on, for the number of a line is never used for another one
            body = self.seal.sealed(body, self._lines, self.digest)
        line, digest = chain_line(body, self.digest)
        filesystem = self._filesystem
        self.is_poisoned = True  # until the line is acknowledged: any exception from here on, of whatever kind
        try:
            written = filesystem.write(self._file, line)
            while written < len(line):
                written += filesystem.write(self._file, line[written:])
            if is_synced:
                filesystem.sync_data(self._file)
        except OSError as error:
            raise self._failed(error) from error
        return digest

    def sync(self) -> None:
        """Sync what was written."""
        try:
            self._filesystem.sync_data(self._file)
        except OSError as error:
            raise self._failed(error) from error

    def acknowledge(self, digest: bytes) -> None:
        """Take note of a line that was written and synced, unless the run has a new owner.

        Args:
            digest: the line's.
        """
        try:
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

        It only looks: the process that claimed may yet give the run up unwritten, and then this writer continues.

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
        """Refuse where another attempt has started, or the run was removed, whatever became of the writes here.

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
        filesystem = self._filesystem
        with open_if_there(filesystem, filesystem.open_read, self._directory, segment_name(number)) as file:
            start = b"" if file is None else filesystem.read(file, _HEADER_BYTES, 0)  # None: it was given up meanwhile
        return start.find(b"\n") not in (-1, len(start) - 1)

    @property
    def is_fenced(self) -> bool:
        """Whether it found that it may not write any more."""
        return self._fence is not None

    def give_up(self) -> None:
        """Remove the segment, where nothing was written to it."""
        if not self.has_written and not self.is_poisoned:
            give_up_segment(self._filesystem, self._directory, self._file, self.number)

    def note_release(self) -> None:
        """Say in the directory that this writer has given the run up."""
        note_release(self._filesystem, self._directory, self._file, self.number)

    def close(self) -> None:
        """Close the segment's file."""
        self._filesystem.close(self._file)

    def _newest_number(self) -> int | None:
        """Return the newest attempt of the run; None if our segment's name is not our file's, as it was cleared."""
        now = monotonic()
        path, identity = self._place
        if now < self._next_look and self._filesystem.is_untouched(self._file, path, identity):
            return self.number
        identity = self._take_mark_away()
        try:
            names = self._filesystem.names(self._directory)
        except FileNotFoundError:  # the directory itself was removed since
            return None
        name = segment_name(self.number)
        path = f"{self.directory_path}/{name}" if self.directory_path else ""
        self._place = path, identity
        place = self._filesystem.place_of(self._file, self._directory, name, path)
        if place is Place.UNNAMED:
            return self._newest_of_others(names)
        if place is not Place.HERE:
            self._tell_misplaced(place)
        self._next_look = now + _LOOK_SECONDS
        return max([self.number, *segment_numbers(names)])

    def _tell_misplaced(self, place: Place) -> None:
        """Refuse to acknowledge what no reader finds; a directory that was merely moved continues to be written."""
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

    def _newest_of_others(self, names: list[str]) -> int | None:
        """Return the newest attempt of a run from which our segment was removed: by a clear (None), or by a compaction."""
        numbers = segment_numbers(names)
        newest = max(numbers, default=0)
        if newest <= self.number or self.number in numbers:  # it was cleared, and perhaps started again
            return None
        try:
            header, _, _ = read_header(read_lines(self._filesystem, self._directory, segment_name(newest), 1))
        except (FileNotFoundError, SegmentDamagedError):
            return newest
        return None if header.get("kind") == "cleared" else newest

    def _take_mark_away(self) -> tuple[int, int]:
        """Remove the mark, if there is one, and return the file's identity; any other second name makes us look each time."""
        filesystem = self._filesystem
        status = filesystem.status(self._file)
        if not status.is_writable:
            filesystem.set_writable(self._file, True)
        if status.links > 1:
            with contextlib.suppress(FileNotFoundError):
                filesystem.unlink(self._directory, mark_name(self.number, status.inode))
        return status.device, status.inode

    def check_usable(self) -> None:
        """Refuse to write after a failure, and after another attempt has started.

        Raises:
            FencedError: a save found that this attempt is not the newest.
            CheckpointStorageError: the handle is poisoned.
        """
        if self._fence is not None or self.is_poisoned:
            refuse_write(self._workflow_id, self.number, self._fence, "on the disk")

    def _failed(self, error: OSError) -> CheckpointStorageError:
        return CheckpointStorageError(
            f"saving run {self._workflow_id!r} to {segment_name(self.number)} failed: {error.strerror or error}; "
            "whether the checkpoint is on the disk is unknown",
            workflow_id=self._workflow_id,
            operation="save",
            is_outcome_unknown=True,
            remedy=f"Make room or mend the disk, then 'flowckpt resume {shell_word(self._workflow_id)}'.",
        )
