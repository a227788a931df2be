"""A run that this process owns: the saves, and what is written once before the first of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from json.encoder import encode_basestring as quote
from typing import TYPE_CHECKING

from flowckpt.core.codec import dumps
from flowckpt.core.codec.blob import Blob, Fetch
from flowckpt.core.codec.checkpoints import encode_head
from flowckpt.core.codec.results import Blobs, as_view, encode_time
from flowckpt.core.records import CheckpointData, History, HistoryView, Reason
from flowckpt.core.system.filesystem import FileSystem
from flowckpt.errors import FencedError, ForeignRecordError, SaveConflictError
from flowckpt.stores.async_store import refusal_of_field
from flowckpt.stores.file.hints import BegunSteps
from flowckpt.stores.file.values import share_blobs, write_blobs
from flowckpt.stores.file.writer import SegmentWriter
from flowckpt.stores.log.image import RunImage
from flowckpt.stores.log.sealing.protection import PLAIN, Seals

if TYPE_CHECKING:
    from flowckpt.stores.file.head import HeadNote


class OwnedRun:
    """A run that this process owns: the only thing that writes to it.

    Attributes:
        workflow_id: the run.
        token: tells this owner from every other one.
        image: the run as it was read after the claim.
        writer: the writer of the claimed segment.
        is_adopted: whether the segment says what it continues.
        saved: the history at the last checkpoint of the run, as far as it belongs to it.
        last_sequence: the highest sequence that the run ever had, as this owner knows.
        begun: notes the steps that are begun.
        on_lost: told when the run is found to be another's; None where nobody wants to know.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each part of a claim
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
        token: str,
        seals: Seals = PLAIN,
        head: HeadNote | None = None,
    ) -> None:
        self.workflow_id = workflow_id
        self.token = token
        self.image = image
        self.writer = writer
        self.is_adopted = False
        self.saved: HistoryView = History().view()
        self.last_sequence = image.last_sequence
        self.begun = BegunSteps(filesystem, lock, writer.number, writer.seal)
        self._filesystem = filesystem
        self._directory = directory
        self._lock = lock
        self._is_locked = is_locked
        self._is_closed = False
        self._one_at_a_time = threading.Lock()
        self._fetch = fetch
        self._seals = seals
        self._head_note = head
        self._first: CheckpointData | None = None  # of this attempt: later ones hold what differs from it
        self._has_blob_directory = False
        self._live: dict[str, list[int]] | None = None  # once something was deleted: the checkpoints by id
        self._blobs = {digest for blobs in image.history.blobs.values() for digest in blobs}
        self._evicted: set[int] = set()
        self.on_lost: Callable[[FencedError], None] | None = None

    @property
    def directory(self) -> int:
        """The run's directory, open."""
        return self._directory

    @property
    def can_be_renewed(self) -> bool:
        """Whether nothing can be saved here any more, and a new segment may do: not where this one never held anything.

        A segment without a checkpoint counts as a death of the run, so there is to be one such at most.
        """
        return self.writer.is_poisoned and not self.writer.is_fenced and self.writer.is_mine and self._first is not None

    @property
    def is_locked(self) -> bool:
        """Whether it has the run's lock, as all owners have but those that stole it."""
        return self._is_locked

    def evict_with_next_save(self, sequences: Sequence[int]) -> None:
        """Let the next save remove checkpoints, too."""
        self._evicted.update(sequences)

    def save(self, data: CheckpointData) -> None:
        """Append a checkpoint with the results that are new in it."""
        with self._one_at_a_time:
            self._check_usable()
            if data.attempt != self.writer.number:
                raise FencedError(self.workflow_id, attempt=data.attempt, newest_attempt=self.writer.number)
            if data.sequence <= self.last_sequence:
                raise SaveConflictError(self.workflow_id, sequence=data.sequence, last_sequence=self.last_sequence)
            try:
                view = as_view(data.step_results)
                head, head_blobs = self._head(data, view)
            except (TypeError, ValueError, RecursionError) as error:
                raise refusal_of_field(error) from error
            if not self.is_adopted:
                self._adopt(view)
            if not view.continues(self.saved):
                raise ForeignRecordError(
                    f"the history to be saved for run {self.workflow_id!r} does not continue the one that the store "
                    "holds",
                    workflow_id=self.workflow_id,
                    found=f"{len(self.saved)} results held, {len(view)} given",
                )
            history = view.history
            if head_blobs or history.blobs:
                self._save_blobs(view, list(head_blobs.values()))
            results = b",".join(history.encoded_between(len(self.saved), len(view)))
            if self._evicted:
                head += b',"evicts":%b' % dumps(sorted(self._evicted)).encode()
            self.writer.append(b'{"step_results":[%b],%b' % (results, head))
            if self._evicted:
                self._live = None  # to be read again, if something is deleted by name
                self._evicted.clear()
            self.saved, self.last_sequence, self._first = view, data.sequence, self._first or data
            if self._live is not None:
                self._live.setdefault(data.checkpoint_id, []).append(data.sequence)
            self.begun.begin_anew()
            if self._head_note is not None:
                self._head_note.note(self.writer.digest)

    def _head(self, data: CheckpointData, view: HistoryView) -> tuple[bytes, Blobs]:
        """Return the fields of a checkpoint behind its results, and the large values that they name.

        Left out are the attempt, which the segment's number says, and what goes without saying after a step: the
        path of its last result as the id, its reason, and one result less than checkpoints.
        """
        count = len(view)
        checkpoint_id, first = data.checkpoint_id, self._first
        is_named_by_step = (
            self.is_adopted and count > len(self.saved) and checkpoint_id == view.history.results[count - 1].path
        )
        if first is not None and data.says_only_its_place(first):  # by hand: encode_head and dumps take 5 µs more
            parts = [f'"sequence":{data.sequence:d}']
            if not is_named_by_step:
                parts.append(f'"checkpoint_id":{quote(checkpoint_id)}')
            if data.reason is not Reason.STEP:
                parts.append(f'"reason":"{data.reason.value}"')
            parts.append(f'"saved_at":"{encode_time(data.saved_at)}"')
            if count != data.sequence - 1:
                parts.append(f'"results":{count}')
            return ",".join(parts).encode(), {}
        head, blobs = encode_head(data, first)
        del head["attempt"]
        if is_named_by_step:
            del head["checkpoint_id"]
        if data.reason is Reason.STEP:
            del head["reason"]
        if count != data.sequence - 1:
            head["results"] = count
        return dumps(head)[1:-1].encode(), blobs

    def delete(self, checkpoint_id: str, read: Callable[[], RunImage]) -> bool:
        """Append that the checkpoints of an id are deleted; tell whether there were any.

        The run is read for the first deletion, and not for those that follow.

        Args:
            checkpoint_id: the id.
            read: reads the run as it is now.
        """
        return self._delete(lambda live: {checkpoint_id: live.get(checkpoint_id, [])}, read) > 0

    def delete_sequences(self, sequences: Collection[int], read: Callable[[], RunImage]) -> int:
        """Append that checkpoints are deleted; return how many there were.

        Args:
            sequences: which.
            read: reads the run as it is now.
        """
        wanted = {*sequences}
        return self._delete(
            lambda live: {name: [n for n in found if n in wanted] for name, found in live.items()}, read
        )

    def _delete(
        self, choose: Callable[[dict[str, list[int]]], dict[str, list[int]]], read: Callable[[], RunImage]
    ) -> int:
        with self._one_at_a_time:
            self._check_usable()
            if (fence := self.writer.look_for_claim()) is not None:  # nothing is written, so nothing is in doubt
                raise fence
            live = self._live
            if live is None:
                # Before its first save the owner goes on from what it read; others may see what a fenced writer adopted.
                live = self._live_in(read() if self.is_adopted else self.image)
            if self.is_adopted:
                self._live = live
            chosen = {name: found for name, found in choose(live).items() if found}
            if not chosen:
                return 0
            if not self.is_adopted:  # what the owner was told is the newest is what it will go on from
                newest = self.image.checkpoints()[-1]
                self._adopt(self.image.history.view(self.image.counts[newest]))
            self._live = live
            doomed = sorted(sequence for found in chosen.values() for sequence in found)
            self.writer.append(dumps({"deletes": doomed})[:-1].encode())
            self._note_head()
            for name, found in chosen.items():
                live[name] = [sequence for sequence in live[name] if sequence not in found]
                if not live[name]:
                    del live[name]
        return len(doomed)

    @property
    def is_doubtful(self) -> bool:
        """Whether a line that was not acknowledged may yet count: it is there, and nobody has gone on from the run since."""
        with self._one_at_a_time:
            return self.writer.is_poisoned and (self._is_closed or self.writer.look_for_successor() is None)

    def vouch(self) -> None:
        """Append a record that says nothing, so that a sealed segment holds the digest of what it goes on from."""
        with self._one_at_a_time:
            self._check_usable()
            if not self.is_adopted:
                live = self.image.checkpoints()
                self._adopt(self.image.history.view(self.image.counts[live[-1]] if live else 0))
            self.writer.append(b'{"deletes":[]')
            self._note_head()

    def _note_head(self) -> None:
        if self._head_note is not None:
            self._head_note.note(self.writer.digest)

    def _live_in(self, image: RunImage) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for index in image.checkpoints():
            head = image.records[index].head
            # What a fenced writer appended after our claim is not ours, and its sequence will be used again.
            if head["sequence"] <= self.last_sequence:
                found.setdefault(head["checkpoint_id"], []).append(head["sequence"])
        return found

    def release(self) -> None:
        """Give the lock back; a claim that saved nothing leaves no segment."""
        with self._one_at_a_time:
            if not self._is_closed:
                self.writer.give_up()
                self._note_release()
            self._close(is_end=True)

    def _note_release(self) -> None:
        """Say that the run is given up, where giving the lock back does not: who stole it has none."""
        if self.writer.is_mine and not self._is_locked:
            with contextlib.suppress(OSError):  # then it is held for as long as the one that has the lock lives
                self.writer.note_release()

    def bytes_missing_of(self, history: HistoryView) -> int:
        """Return about how many bytes the next segment needs for what is not saved yet of a history."""
        count, full = len(self.saved), history.history
        blobs: Iterable[int] = (
            blob.size for index in range(count, len(history)) for blob in full.blobs.get(index, {}).values()
        )
        return sum(map(len, full.encoded_between(max(count - 1, 0), len(history)))) + sum(blobs, 0)

    def look(self, *, is_gone: Callable[[], bool]) -> None:
        """Tell whoever wants to know, where the run is another's by now.

        Args:
            is_gone: tells whether the whole store was removed: nobody else has the run then, and the next save says so.

        Raises:
            OSError: the directory cannot be read.
        """
        if self.on_lost is None or not self.writer.is_mine:
            return
        with self._one_at_a_time:  # so that the files stay open
            if not self._is_closed:
                self._try_lock()
            lost = None if self._is_closed else self.writer.look_for_successor()
        if lost is not None and not (lost.newest_attempt is None and is_gone()):
            self.on_lost(lost)

    def hand_over(self) -> tuple[int, int]:
        """Close the segment, and return the descriptors of the directory and of the lock, which stays held."""
        with self._one_at_a_time:
            self._is_closed = True
            with contextlib.suppress(OSError):  # what it says of a file that is given up is nothing to anybody
                self.writer.close()
            if self._head_note is not None:
                self._head_note.close(is_end=False)
            return self._directory, self._lock

    def close(self) -> None:
        """Close the files; closing the lock's only descriptor gives the lock back."""
        with self._one_at_a_time:
            self._close(is_end=False)

    def _close(self, *, is_end: bool) -> None:
        if not self._is_closed:
            self._is_closed = True
            try:
                self.writer.close()
                if self._head_note is not None:
                    self._head_note.close(is_end=is_end and self.writer.is_mine)
            finally:  # whatever stops us, the run is not to stay locked
                self._filesystem.close(self._lock)
                self._filesystem.close(self._directory)

    def _check_usable(self) -> None:
        if self._is_closed:  # given up or stolen by another task, while this one was on its way here
            raise FencedError(self.workflow_id, attempt=self.writer.number, newest_attempt=self.writer.number)
        self.writer.check_usable()
        self._try_lock()

    def _try_lock(self) -> None:
        """Take the lock of a run that was stolen: once whoever it was stolen from has gone it can be had."""
        if not self._is_locked and self.writer.look_for_claim() is None:  # else it is the next one's to have
            self._is_locked = self._filesystem.lock(self._lock)

    def _adopt(self, view: HistoryView) -> None:
        """Write the first line: which records are continued. They are those whose history the new one shares."""
        if self._head_note is not None:
            self.writer.is_poisoned = True  # for good, should it fail: after a failed sync nothing can be known
            self._head_note.begin()
            self.writer.is_poisoned = False
        if self.writer.number > 1:
            shared = self.image.history.view().shared_length(view)
            kept = sum(count <= shared for count in self.image.counts)
            cut = self.image.cut_at(kept)
            self.writer.append(dumps(cut.document())[:-1].encode())
            self.saved = view.history.view(cut.results)
        self.is_adopted = True

    def share_from(self, source: int, sizes: Mapping[str, int]) -> None:
        """Take large values over from another run's open directory, as far as that is possible."""
        with self._one_at_a_time:
            self._check_usable()
            missing = {digest: size for digest, size in sizes.items() if digest not in self._blobs}
            self._blobs |= share_blobs(self._filesystem, source, self._directory, missing, self._seals.for_values())
            self._has_blob_directory = True

    def _save_blobs(self, view: HistoryView, blobs: list[Blob]) -> None:
        for index in range(len(self.saved), len(view)):
            blobs.extend(view.history.blobs.get(index, {}).values())
        missing = {blob.digest: blob for blob in blobs if blob.digest not in self._blobs}
        if missing:
            write_blobs(
                self._filesystem,
                self._directory,
                missing.values(),
                is_directory_durable=self._has_blob_directory,
                values=self._seals.for_values(),
            )
            self._has_blob_directory = True
            self._blobs.update(missing)
        for blob in blobs:
            blob.settle(self._fetch)
