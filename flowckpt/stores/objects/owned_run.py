"""A run that this process owns: the saves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from flowckpt.core.codec import dumps, encode
from flowckpt.core.codec.blob import Blob, Fetch
from flowckpt.core.codec.checkpoints import encode_head
from flowckpt.core.codec.results import Blobs, as_view, encode_time
from flowckpt.core.records import CheckpointData, History, HistoryView, Status
from flowckpt.errors import CheckpointStorageError, FencedError, ForeignRecordError, SaveConflictError, VanishedError
from flowckpt.stores.async_store import refusal_of_field
from flowckpt.stores.log.image import RunImage
from flowckpt.stores.objects.attempt import CLEARED, RELEASED, End
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.stores.objects.clearing import sweep_values
from flowckpt.stores.objects.layout import RunKeys, packed
from flowckpt.stores.objects.writer import AttemptWriter


class OwnedRun:
    """A run that this process owns: the only thing that writes to it.

    Args:
        bucket: the bucket.
        keys: the keys of the run.
        writer: the writer of the claimed attempt.
        image: the run as it was read after the claim.
        token: the random name of this owner.
        fetch: reads large values.

    Attributes:
        keys: the same.
        writer: the same.
        token: the same.
        last_sequence: the highest sequence that the run ever had, as this owner knows.
        on_lost: told when the run is found to be another's; None where nobody wants to know.
    """

    def __init__(
        self,
        bucket: Bucket,
        keys: RunKeys,
        *,
        writer: AttemptWriter,
        image: RunImage,
        token: str,
        fetch: Fetch,
    ) -> None:
        self.keys = keys
        self.writer = writer
        self.last_sequence = image.last_sequence
        self._workflow_id = image.workflow_id
        self._bucket = bucket
        self._image = image
        self.token = token
        self._fetch = fetch
        self._is_adopted = False
        self._is_closed = False
        self._saved: HistoryView = History().view()
        self._first: CheckpointData | None = None  # of this attempt: later ones hold what differs from it
        self._last: CheckpointData | None = None  # None where a list must read the run to know its newest
        self._started_at = image.started_at
        self._evicted: set[int] = set()
        self._values = {digest for blobs in image.history.blobs.values() for digest in blobs}
        self._adds_values = False
        self._one_at_a_time = threading.Lock()
        self._alive = threading.Lock()
        self._acknowledged: Callable[[], None] | None = None  # what is to be done once the last record is there
        self.on_lost: Callable[[FencedError], None] | None = None

    def evict_with_next_save(self, sequences: Sequence[int]) -> None:
        """Let the next save remove checkpoints, too."""
        self._evicted.update(sequences)

    def save(self, data: CheckpointData) -> None:
        """Add a checkpoint with the results that are new in it."""
        self._check_process()
        with self._one_at_a_time:
            self._check_usable()
            attempt = self.writer.keys.attempt
            if data.attempt != attempt:
                raise FencedError(self._workflow_id, attempt=data.attempt, newest_attempt=attempt)
            if data.sequence <= self.last_sequence:
                raise SaveConflictError(self._workflow_id, sequence=data.sequence, last_sequence=self.last_sequence)
            try:
                view = as_view(data.step_results)
                head, head_blobs = self._head(data, len(view))
            except (TypeError, ValueError, RecursionError) as error:
                raise refusal_of_field(error) from error
            begin, saved = ([], self._saved) if self._is_adopted else self._beginning(view)
            if not view.continues(saved):
                raise ForeignRecordError(
                    f"the history to be saved for run {self._workflow_id!r} does not continue the one that the store "
                    "holds",
                    workflow_id=self._workflow_id,
                    found=f"{len(saved)} results held, {len(view)} given",
                )
            self._save_values(view, len(saved), list(head_blobs.values()))
            results = b",".join(view.history.encoded_between(len(saved), len(view)))
            evicted = frozenset(self._evicted)
            if evicted:
                head += b',"evicts":%b' % dumps(sorted(evicted)).encode()

            def acknowledged() -> None:
                self._is_adopted = True
                self._evicted -= evicted  # not what was named for the next one since
                self._started_at = self._started_at or data.saved_at
                self._saved, self.last_sequence, self._last = view, data.sequence, data
                self._first = self._first or data

            try:
                self._append(acknowledged, *begin, b'{"step_results":[%b],%b' % (results, head))
            except FencedError as error:
                if error.newest_attempt is None and self._adds_values:  # added when the run was cleared already
                    with contextlib.suppress(CheckpointStorageError):
                        sweep_values(self._bucket, self.keys, self._workflow_id)
                raise
            if data.status is not Status.RUNNING:  # it ends or rests, and that is not to be said of a run that is gone
                self._check_is_there()

    def _check_is_there(self) -> None:
        try:
            self.writer.check_is_there()
        except VanishedError:
            raise
        except CheckpointStorageError:  # the save itself was answered
            pass

    def _append(self, acknowledged: Callable[[], None], *bodies: bytes) -> None:
        self._acknowledged = acknowledged
        self.writer.append(*bodies)
        acknowledged()

    def settle(self) -> None:
        """Do again a save whose outcome is unknown, so that more can be saved; it comes to the same where it was done.

        Raises:
            FencedError: another owner has the run, or it was cleared.
            CheckpointStorageError: the store still fails, or the run is gone.
        """
        with self._one_at_a_time:
            if self._is_closed or self.writer.is_fenced:
                return
            was_unknown = self.writer.is_poisoned
            self.writer.settle()
            if was_unknown and self._acknowledged is not None:
                self._acknowledged()

    def _head(self, data: CheckpointData, count: int) -> tuple[bytes, Blobs]:
        """Return the fields of a checkpoint behind its results, and the large values that they name."""
        head, blobs = encode_head(data, self._first)
        del head["attempt"]  # the key says it
        head["results"] = count
        return dumps(head)[1:-1].encode(), blobs

    def _beginning(self, view: HistoryView) -> tuple[list[bytes], HistoryView]:
        """Return the line that says which records are continued, and the history there: what the new one shares."""
        if self.writer.keys.attempt == 1:
            return [], self._saved
        shared = self._image.history.view().shared_length(view)
        cut = self._image.cut_at(sum(count <= shared for count in self._image.counts))
        document = cut.document()
        document["adopts"]["last_line"] = ""  # an object is there or it is not: no copy is needed
        return [dumps(document)[:-1].encode()], view.history.view(cut.results)

    def delete(self, sequences: list[int]) -> None:
        """Record that checkpoints are deleted; their results stay."""
        self._check_process()
        with self._one_at_a_time:
            self._check_usable()
            begin: list[bytes] = []
            saved = self._saved
            if not self._is_adopted:  # what the owner was told is the newest is what it will go on from
                live = self._image.checkpoints()
                begin, saved = self._beginning(self._image.history.view(self._image.counts[live[-1]] if live else 0))

            def acknowledged() -> None:
                self._is_adopted, self._saved, self._last = True, saved, None

            self._append(acknowledged, *begin, dumps({"deletes": sequences})[:-1].encode())

    def share_from(self, source: RunKeys, sizes: Mapping[str, int]) -> None:
        """Copy large values of another run within the bucket, as far as they are there."""
        with self._one_at_a_time:
            self._check_usable()
            missing = [digest for digest in sizes if digest not in self._values]

            self._adds_values = self._adds_values or bool(missing)

            def copy(digest: str) -> bool:
                return self._bucket.copy(source.value(digest), self.keys.value(digest), self._workflow_id)

            is_there = self._bucket.each([lambda digest=digest: copy(digest) for digest in missing])  # type: ignore[misc]
            self._values |= {digest for digest, found in zip(missing, is_there, strict=True) if found}

    def _save_values(self, view: HistoryView, held: int, blobs: list[Blob]) -> None:
        if view.history.blobs:
            for index in range(held, len(view)):
                blobs.extend(view.history.blobs.get(index, {}).values())
        missing = {blob.digest: blob for blob in blobs if blob.digest not in self._values}
        if missing:
            bodies = [
                (self.keys.value(digest), lambda blob=blob: packed(blob.content())) for digest, blob in missing.items()
            ]
            self._adds_values = True
            self._bucket.create_all(bodies, self._workflow_id, "save")
            self._values.update(missing)
        for blob in blobs:
            blob.settle(self._fetch)

    @property
    def leaves_values(self) -> bool:
        """Whether it added large values and no record, to a run that has none: no name would lead to them."""
        return self._adds_values and not self.writer.has_written and not self._image.records

    # --- ends and signs of life ------------------------------------------------------------------------------------

    def give_sign(self, interval: float) -> None:
        """Look for a later owner and overwrite the sign of life, where nothing was written for a while.

        Args:
            interval: the while, in seconds.
        """
        with self._alive:
            if self._is_closed or monotonic() - self.writer.wrote_at < interval:
                return
            if self.on_lost is not None and (fence := self.writer.look_for_end()) is not None:
                self.on_lost(fence)
            else:
                self._bucket.overwrite(self.writer.keys.alive, b"", self._workflow_id, "renew")

    def release(self, now: str) -> bool:
        """Give the run up: the attempt gets its end; a claim under which nothing was recorded leaves no trace.

        Args:
            now: the time.

        Returns:
            Whether the end is there.
        """
        if not self.writer.is_mine:
            return False
        with self._one_at_a_time:
            if not self._close():
                return False
            if self.writer.has_written:
                return self.writer.finish(End(RELEASED, now, self.token, self._summary()))
            keys = self.writer.keys
            self._bucket.delete([keys.record(0), keys.alive], self._workflow_id, "release")
            return False

    def entomb(self, now: str) -> None:
        """End the attempt with the word that the run is cleared.

        Raises:
            FencedError: another attempt has begun.
        """
        with self._one_at_a_time:
            self._check_usable()
            if not self.writer.end(End(CLEARED, now, self.token)):
                raise FencedError(self._workflow_id, attempt=self.writer.keys.attempt, newest_attempt=None)
            self._close()

    def close(self) -> None:
        """Save nothing more."""
        if self.writer.is_mine:
            with self._one_at_a_time:
                self._close()

    def _close(self) -> bool:
        with self._alive:
            was_open, self._is_closed = not self._is_closed, True
        return was_open

    def _summary(self) -> dict[str, Any] | None:
        """Return how the run stands, for lists; None where the last record does not say so."""
        data = self._last
        if data is None or self._started_at is None or self.writer.is_poisoned:
            return None
        return {
            "workflow_id": self._workflow_id,
            "workflow_name": data.workflow_name,
            "status": data.status.value,
            "attempt": data.attempt,
            "started_at": encode_time(self._started_at),
            "updated_at": encode_time(data.saved_at),
            "steps": len(data.step_results),
            "metadata": encode(dict(data.metadata)),
        }

    def _check_process(self) -> None:
        """Refuse a forked child before it waits for a lock that nobody in it holds."""
        if not self.writer.is_mine:
            self.writer.check_usable()

    def _check_usable(self) -> None:
        if self._is_closed:  # given up or stolen by another task, while this one was on its way here
            attempt = self.writer.keys.attempt
            raise FencedError(self._workflow_id, attempt=attempt, newest_attempt=attempt)
        self.writer.check_usable()
