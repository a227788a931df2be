"""The writer of a run in a bucket: the saves, and the objects of its attempt."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

from flowckpt.core.codec import dumps, encode
from flowckpt.core.codec.blob import Blob
from flowckpt.core.codec.checkpoints import encode_head
from flowckpt.core.codec.results import Blobs, encode_time
from flowckpt.core.records import CheckpointData, HistoryView, Status
from flowckpt.core.records.generation import start_of_run
from flowckpt.errors import CheckpointStorageError, FencedError, VanishedError
from flowckpt.stores.log.image import LoadedRun
from flowckpt.stores.log.segment import chain_line
from flowckpt.stores.objects.attempt import CLEARED, RELEASED, AttemptEnd, is_end
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.stores.objects.claim import ClaimedAttempt, read_keys, sweep, sweep_values, withdraw_claim
from flowckpt.stores.objects.layout import RunKeys, pack, unpack
from flowckpt.stores.runs_base import FencedWriter, LogRunWriter, PreparedSave


class ObjectRunWriter(LogRunWriter):
    """Writes to one run in a bucket.

    Args:
        claimed: the claimed attempt.
        loaded: the run as read after the claim.
        writer: the writer of the attempt, if one exists already.
    """

    def __init__(
        self, bucket: Bucket, claimed: ClaimedAttempt, loaded: LoadedRun, writer: AttemptWriter | None = None
    ) -> None:
        super().__init__(loaded.image, claimed.attempt, claimed.token, loaded.fetch)
        self.keys = claimed.keys
        self.writer = writer or AttemptWriter(bucket, claimed, self.workflow_id)
        self._bucket = bucket
        self._last: CheckpointData | None = None  # None if a list must read the run to find its newest checkpoint
        self._started_at = self.image.started_at
        self._adds_values = False
        self._unacknowledged: Callable[[], None] | None = None  # what to note once the last write is durable
        self._alive = threading.Lock()
        self._live = b""

    def _check_unfenced(self) -> None:
        self.writer.check_usable()

    def _encode(self, data: CheckpointData, view: HistoryView) -> tuple[bytes, Blobs]:
        head, blobs = encode_head(data, self._first)
        del head["attempt"]  # the key has it
        head["results"] = len(view)
        return dumps(head)[1:-1].encode(), blobs

    def _begin_attempt(self, view: HistoryView, first: CheckpointData | None = None) -> tuple[list[bytes], HistoryView]:
        if self.attempt == 1:
            return [], self.saved
        cut = self.image.find_cut(view, first)
        document = cut.to_document()
        document["adopts"]["last_line"] = ""  # an object exists or not: no copy is needed
        return [dumps(document)[:-1].encode()], view.history.view(cut.results)

    def _append(self, save: PreparedSave, lines: Sequence[bytes]) -> None:
        self._unacknowledged = partial(self._acknowledge, save)
        try:
            self.writer.append(*lines)
        except FencedError as error:
            if error.newest_attempt is None and self._adds_values:  # they were added after the run was cleared
                with contextlib.suppress(CheckpointStorageError):
                    sweep_values(self._bucket, self.keys, self.workflow_id)
            raise
        if save.data.status is not Status.RUNNING:  # it ends or waits: do not report that for a removed run
            self._check_exists()

    def _write_values(self, missing: Mapping[str, Blob]) -> None:
        bodies = [(self.keys.value(digest), lambda blob=blob: pack(blob.content())) for digest, blob in missing.items()]
        self._adds_values = True
        self._bucket.create_all(bodies, self.workflow_id, "save")

    def _check_exists(self) -> None:
        try:
            self.writer.check_exists()
        except VanishedError:
            raise
        except CheckpointStorageError:  # the save itself succeeded
            pass

    def _acknowledge(self, save: PreparedSave) -> None:
        super()._acknowledge(save)
        self._unacknowledged, self._last = None, save.data
        self._started_at = self._started_at or start_of_run(save.data.metadata) or save.data.saved_at

    def repeat_unknown_save(self) -> None:
        """Repeat a save whose outcome is unknown; see `RunWriter.repeat_unknown_save`."""
        with self._one_at_a_time:
            if self._is_closed or self.writer.is_fenced:
                return
            was_unknown = self.writer.is_poisoned
            self.writer.repeat_unknown_save()
            if was_unknown and self._unacknowledged is not None:
                self._unacknowledged()

    def delete(self, sequences: list[int]) -> None:
        """Record that checkpoints are deleted; their results stay."""
        with self._lock_for_write():
            beginning, saved = ((), self.saved) if self.is_adopted else self._begin_attempt(self.image.newest_view())

            def acknowledge() -> None:
                self.is_adopted, self.saved, self._last, self._unacknowledged = True, saved, None, None

            self._unacknowledged = acknowledge
            self.writer.append(*beginning, dumps({"deletes": sequences})[:-1].encode())
            acknowledge()

    def copy_values_from(self, source: RunKeys, sizes: Mapping[str, int]) -> None:
        """Copy large values of another run within the bucket, as far as they exist."""
        with self._lock_for_write():
            missing = [digest for digest in sizes if digest not in self._values]
            self._adds_values = self._adds_values or bool(missing)

            def copy(digest: str) -> bool:
                return self._bucket.copy(source.value(digest), self.keys.value(digest), self.workflow_id)

            are_copied = self._bucket.map(copy, missing)
            self._values |= {digest for digest, is_copied in zip(missing, are_copied, strict=True) if is_copied}

    def drop_earlier(self) -> None:
        """Remove the attempts before this one, and the large values that only they used."""
        bucket, run, keys = self._bucket, self.workflow_id, self.keys
        sweep(bucket, [keys.at(attempt) for attempt in keys.attempts if attempt < self.attempt], run)
        used = {keys.value(digest) for digest in self._values}
        bucket.delete([key for key in bucket.list_keys(keys.values, run) if key not in used], run, "save")

    @property
    def has_unused_values(self) -> bool:
        """Whether it added large values to a run without records, so that nothing refers to them."""
        return self._adds_values and not self.writer.has_written and not self.image.records

    # --- ends and heartbeats ------------------------------------------------------------------------------------

    def send_heartbeat(self, interval: float) -> None:
        """Check for a later owner and overwrite the heartbeat, unless something was written recently.

        Args:
            interval: how recently, in seconds.
        """
        with self._alive:
            if self._is_closed or monotonic() - self.writer.wrote_at < interval:
                return
            if self.on_lost is not None and (fence := self.writer.find_fence()) is not None:
                self.on_lost(fence)
            else:
                self._bucket.overwrite(self.writer.keys.alive, self._live, self.workflow_id, "renew")

    def note_live(self, content: bytes) -> None:
        """Overwrite the heartbeat with a live note."""
        self._live = content
        if not self._is_closed:  # without the lock: the end of the run must not wait for it
            self._bucket.overwrite(self.writer.keys.alive, content, self.workflow_id, "note")

    def release(self, now: str) -> bool:
        """Release the run: the attempt gets its end; a claim without records is removed.

        Returns:
            Whether the end was written.
        """
        if not self.is_mine:
            return False
        with self._one_at_a_time:
            if not self._close():
                return False
            if self.writer.has_written:
                return self.writer.finish(AttemptEnd(RELEASED, now, self.token, self._summary()))
            withdraw_claim(self._bucket, self.writer.keys, self.workflow_id)
            return False

    def entomb(self, now: str) -> None:
        """End the attempt with a tombstone, which clears the run.

        Raises:
            FencedError: another attempt has started.
        """
        with self._lock_for_write():
            if not self.writer.end(AttemptEnd(CLEARED, now, self.token)):
                raise FencedError(self.workflow_id, attempt=self.attempt, newest_attempt=None)
            self._close()

    def close(self) -> None:
        """Refuse further saves."""
        if self.is_mine:
            with self._one_at_a_time:
                self._close()

    def _close(self) -> bool:
        with self._alive:
            was_open, self._is_closed = not self._is_closed, True
        return was_open

    def _summary(self) -> dict[str, Any] | None:
        """Return the state of the run, for lists; None if it does not follow from the last record."""
        data = self._last
        if data is None or self._started_at is None or self.writer.is_poisoned:
            return None
        return {
            "workflow_id": self.workflow_id,
            "workflow_name": data.workflow_name,
            "status": data.status.value,
            "attempt": data.attempt,
            "started_at": encode_time(self._started_at),
            "updated_at": encode_time(data.saved_at),
            "steps": len(data.step_results),
            "metadata": encode(dict(data.metadata)),
        }


# The writer of one attempt: each record is created at the next number, and only if nothing exists there.
#
# That is the fence. A process that takes the run over first puts an end at our next number; then our create finds it taken, and
# nothing is acknowledged. A save is one request, and the server does the check.

BUNDLE = 64
"""The number of records that are copied together into one more object, for a quick resume."""
_LARGEST_BUNDLE = 4 * 1024 * 1024
_ENOUGH = 1024 * 1024
"""The bytes of lines that are put into one object."""

_log = logging.getLogger("flowckpt")


class AttemptWriter(FencedWriter):
    """Creates the records of one attempt.

    Attributes:
        keys: the keys of the attempt.
        has_written: whether a record may exist.
        wrote_at: the time of the last write, by a monotonic clock.
    """

    def __init__(self, bucket: Bucket, claimed: ClaimedAttempt, workflow_id: str) -> None:
        self.keys = claimed.attempt_keys
        self.has_written = False
        self.wrote_at = monotonic()
        self._bucket = bucket
        self._workflow_id = workflow_id
        self._digest = claimed.digest
        self._number = 1
        self._lines = [claimed.line]  # in no bundle yet
        self._pending: tuple[bytes, bytes] | None = None  # the last record, if it is not acknowledged

    def append(self, *bodies: bytes) -> None:
        """Create the next record, or raise. Call `check_usable` before.

        Args:
            *bodies: its lines, each a JSON object without its closing brace.

        Raises:
            FencedError: another attempt has started, or the run was cleared; nothing is acknowledged.
            CheckpointStorageError: the request failed; if the outcome is unknown, nothing more may be written.
        """
        self._pending = self._chain(bodies)
        self._put_pending()

    def repeat_unknown_save(self) -> None:
        """Repeat the last record, whose outcome is unknown. Its number can hold nothing else, so repeating is harmless.

        It makes one request, without retries. If no outcome is unknown, it only checks that the run exists.

        Raises:
            FencedError: another attempt has started, or the run was cleared.
            CheckpointStorageError: the request failed, or the run no longer exists.
        """
        if self._pending is not None and self.is_poisoned:
            self._put_pending(patience=0.0)
        self.check_exists(patience=0.0)

    def check_exists(self, *, patience: float | None = None) -> None:
        """Refuse to continue if another program removed the run's objects.

        Args:
            patience: how long to retry after temporary failures; the bucket's value by default.

        Raises:
            FencedError: the run was cleared.
            VanishedError: its objects are gone.
            CheckpointStorageError: the request failed.
        """
        if self._bucket.get(self.keys.record(0), self._workflow_id, "save", patience=patience) is None:
            if (fence := self.find_fence()) is not None:  # it was cleared by flowckpt
                self._fence = fence
                raise fence
            self.is_poisoned, self._pending = True, None
            raise VanishedError(str(self._bucket), workflow_id=self._workflow_id)

    def _put_pending(self, *, patience: float | None = None) -> None:
        assert self._pending is not None, "it was set before"
        text, digest = self._pending
        self._put(text, patience=patience)
        self._pending, self._digest = None, digest
        self._lines.append(text)
        if len(self._lines) >= BUNDLE:
            self._bundle()

    def _chain(self, bodies: tuple[bytes, ...]) -> tuple[bytes, bytes]:
        """Return the lines of the next record, chained to the previous ones, and their last digest."""
        text, digest = b"", self._digest
        for body in bodies:
            line, digest = chain_line(body, digest)
            text += line
        return text, digest

    def _put(self, text: bytes, *, patience: float | None = None) -> None:
        """Create the object at the next number."""
        was_poisoned, had_written = self.is_poisoned, self.has_written
        self.is_poisoned = self.has_written = True  # until it is acknowledged, whatever is raised
        try:
            other = self._bucket.create(
                self.keys.record(self._number), pack(text), self._workflow_id, "save", patience=patience
            )
        except CheckpointStorageError as error:
            if not error.is_outcome_unknown:
                self.is_poisoned, self.has_written = was_poisoned, had_written
            raise
        self.is_poisoned = False
        if other is not None:
            self.has_written = had_written
            self._fence = self._fenced_error()
            raise self._fence
        self.wrote_at = monotonic()
        self._number += 1

    def find_fence(self) -> FencedError | None:
        """Return the error of the next save if another owner has put an end after our last record.

        It makes one request for an object that normally does not exist.

        Raises:
            CheckpointStorageError: the request failed.
        """
        number = self._number
        for each in (number, number + 1)[: 1 + self.is_poisoned]:  # an unacknowledged record may exist
            content = self._bucket.get(self.keys.record(each), self._workflow_id)
            if content is not None and is_end(unpack(content)):
                return self._fenced_error()
        return None

    def _fenced_error(self) -> FencedError:
        """Return the error of a save that another owner refuses; it names no newest attempt if the run was cleared."""
        listed = read_keys(self._bucket, self._workflow_id)
        newest = listed.attempts[-1] if listed.life == self.keys.life and listed.attempts else None
        return FencedError(self._workflow_id, attempt=self.keys.attempt, newest_attempt=newest)

    def _bundle(self) -> None:
        """Copy the last records into one object, for faster reading. Readers can do without it."""
        lines, self._lines = self._lines, []
        if sum(map(len, lines)) > _LARGEST_BUNDLE:
            return  # too large to upload twice
        body = pack(b"".join(lines))
        try:
            self._bucket.overwrite(
                self.keys.bundle(self._number - len(lines), self._number - 1), body, self._workflow_id, "bundle"
            )
        except CheckpointStorageError as error:
            _log.warning("records of run %r were not bundled, so a resume takes longer: %s", self._workflow_id, error)

    def end(self, end: AttemptEnd) -> bool:
        """Put an end at the next number; return whether it was written.

        Args:
            end: the end.
        """
        body = pack(end.line())
        for number in (self._number, self._number + 1):
            other = self._bucket.create(self.keys.record(number), body, self._workflow_id, "release")
            if other is None:
                return True
            if not self.is_poisoned or is_end(unpack(other)):
                break  # otherwise it is our record, whose save was not answered
        return False

    def finish(self, end: AttemptEnd) -> bool:
        """Put an end after all appended records; return whether it was written.

        Args:
            end: the end.
        """
        return self.end(end)

    def check_usable(self) -> None:
        """Refuse to write after a failure, and after another attempt has started.

        Raises:
            FencedError: a save found that this attempt is not the newest.
            CheckpointStorageError: the writer is poisoned.
        """
        if self._fence is not None or self.is_poisoned:
            self._refuse_write(self._workflow_id, self.keys.attempt, f"in {self._bucket}")


class BulkWriter(AttemptWriter):
    """Creates the records of an attempt that counts only once it has its end, with many lines per object."""

    _gathered = b""

    def append(self, *bodies: bytes) -> None:
        """Collect lines, and put them into one object when there are enough."""
        text, self._digest = self._chain(bodies)
        self._gathered += text
        self.has_written = True
        if len(self._gathered) >= _ENOUGH:
            self._flush()

    def check_exists(self, *, patience: float | None = None) -> None:
        """Do nothing: its records count only with its end, whose creation does the check."""

    def write_mark(self, content: bytes) -> None:
        """Create a record outside the chain of lines.

        Args:
            content: its content.
        """
        self._put(content)

    def finish(self, end: AttemptEnd) -> bool:
        """Put the remaining lines and then the end; return whether the end was written."""
        self._flush()
        return self.end(end)

    def _flush(self) -> None:
        text, self._gathered = self._gathered, b""
        if text:
            self._put(text)
