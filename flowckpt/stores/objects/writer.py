"""The writer of one attempt: each record is created at the next number, and only where there is nothing.

That is the fence. Whoever takes the run over puts an end at our next number first; then our create finds it taken, and
nothing is acknowledged. A save is one request, and the check is in the store.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from time import monotonic

from flowckpt.errors import CheckpointStorageError, FencedError, VanishedError
from flowckpt.stores.log.line import seal
from flowckpt.stores.objects.attempt import End, is_end
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.stores.objects.layout import AttemptKeys, packed, unpacked

BUNDLE = 64
"""So many records are put together into one object more, for a quick resume."""
_LARGEST_BUNDLE = 4 * 1024 * 1024
_ENOUGH = 1024 * 1024
"""Bytes of lines that are worth an object."""

_log = logging.getLogger("flowckpt")


class AttemptWriter:
    """Creates the records of one attempt.

    Args:
        bucket: the bucket.
        keys: the keys of the attempt.
        workflow_id: the run.
        claim: the line of the claim.
        digest: its digest.
        newest_attempt: tells which attempt is the newest; None where the run was cleared.

    Attributes:
        keys: the same.
        is_poisoned: whether a save failed so that nothing more may be written.
        has_written: whether a record may be there.
        wrote_at: when something was last written, by a monotonic clock.
    """

    def __init__(
        self,
        bucket: Bucket,
        keys: AttemptKeys,
        *,
        workflow_id: str,
        claim: bytes,
        digest: bytes,
        newest_attempt: Callable[[], int | None],
    ) -> None:
        self.keys = keys
        self.is_poisoned = False
        self.has_written = False
        self.wrote_at = monotonic()
        self._bucket = bucket
        self._workflow_id = workflow_id
        self._digest = digest
        self._number = 1
        self._lines = [claim]  # of no bundle yet
        self._newest_attempt = newest_attempt
        self._pending: tuple[bytes, bytes] | None = None  # the last record, where it is not acknowledged
        self._fence: FencedError | None = None
        self._pid = os.getpid()

    @property
    def is_mine(self) -> bool:
        """Whether this process made the writer: a forked child inherits it and may not use it."""
        return os.getpid() == self._pid

    def append(self, *bodies: bytes) -> None:
        """Create the next record, or raise. Ask `check_usable` before.

        Args:
            *bodies: its lines, each a JSON object without its closing brace.

        Raises:
            FencedError: another attempt has begun, or the run was cleared; nothing is acknowledged.
            CheckpointStorageError: the request failed; where the outcome is unknown, nothing more may be written.
        """
        self._pending = self._sealed(bodies)
        self._put_pending()

    def settle(self) -> None:
        """Create the last record again, whose outcome is unknown: its number takes nothing else, so it comes to the same.

        One request is made, and it is not tried again. Where no outcome is unknown, it asks whether the run is there.

        Raises:
            FencedError: another attempt has begun, or the run was cleared.
            CheckpointStorageError: the request failed, or the run is gone.
        """
        if self._pending is not None and self.is_poisoned:
            self._put_pending(patience=0.0)
        self.check_is_there(patience=0.0)

    def check_is_there(self, *, patience: float | None = None) -> None:
        """Refuse to go on where the run's objects were removed by somebody who knows nothing of us.

        Args:
            patience: how long a request that fails in passing is tried again; as the bucket's where not given.

        Raises:
            FencedError: the run was cleared.
            VanishedError: its objects are gone.
            CheckpointStorageError: the request failed.
        """
        if self._bucket.get(self.keys.record(0), self._workflow_id, "save", patience=patience) is None:
            if (fence := self.look_for_end()) is not None:  # it was cleared in good order
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

    def _sealed(self, bodies: tuple[bytes, ...]) -> tuple[bytes, bytes]:
        """Return lines behind the last ones, and the digest of the last of them."""
        text, digest = b"", self._digest
        for body in bodies:
            line, digest = seal(body, digest)
            text += line
        return text, digest

    def _put(self, text: bytes, *, patience: float | None = None) -> None:
        """Create the object at the next number."""
        was_poisoned, had_written = self.is_poisoned, self.has_written
        self.is_poisoned = self.has_written = True  # until it is acknowledged: any exception, of whatever kind
        try:
            other = self._bucket.create(
                self.keys.record(self._number), packed(text), self._workflow_id, "save", patience=patience
            )
        except CheckpointStorageError as error:
            if not error.is_outcome_unknown:
                self.is_poisoned, self.has_written = was_poisoned, had_written
            raise
        self.is_poisoned = False
        if other is not None:
            self.has_written = had_written
            newest = self._newest_attempt()
            self._fence = FencedError(self._workflow_id, attempt=self.keys.attempt, newest_attempt=newest)
            raise self._fence
        self.wrote_at = monotonic()
        self._number += 1

    @property
    def is_fenced(self) -> bool:
        """Whether it found that it may not write any more."""
        return self._fence is not None

    def look_for_end(self) -> FencedError | None:
        """Return what the next save would raise, where another owner has put an end behind our last record.

        It asks for one object, which is not there as long as nobody did.

        Raises:
            CheckpointStorageError: the request failed.
        """
        number = self._number
        for each in (number, number + 1)[: 1 + self.is_poisoned]:  # a record that nobody acknowledged may be there
            found = self._bucket.get(self.keys.record(each), self._workflow_id)
            if found is not None and is_end(unpacked(found)):
                newest = self._newest_attempt()
                return FencedError(self._workflow_id, attempt=self.keys.attempt, newest_attempt=newest)
        return None

    def _bundle(self) -> None:
        """Put the last records into one object as well. It is a help for readers: without it they read the records."""
        lines, self._lines = self._lines, []
        if sum(map(len, lines)) > _LARGEST_BUNDLE:
            return  # so much is not worth a second upload
        body = packed(b"".join(lines))
        try:
            self._bucket.overwrite(
                self.keys.bundle(self._number - len(lines), self._number - 1), body, self._workflow_id, "bundle"
            )
        except CheckpointStorageError as error:
            _log.warning("records of run %r were not bundled, so a resume takes longer: %s", self._workflow_id, error)

    def end(self, end: End) -> bool:
        """Put an end at the next number; tell whether it is there.

        Args:
            end: the end.
        """
        body = packed(end.line())
        for number in (self._number, self._number + 1):
            other = self._bucket.create(self.keys.record(number), body, self._workflow_id, "release")
            if other is None:
                return True
            if not self.is_poisoned or is_end(unpacked(other)):
                break  # else it is the record whose save nobody answered
        return False

    def finish(self, end: End) -> bool:
        """Put an end behind all that was appended; tell whether it is there.

        Args:
            end: the end.
        """
        return self.end(end)

    def check_usable(self) -> None:
        """Refuse to write from a forked child, after a failure, and after another attempt has begun.

        Raises:
            FencedError: a save found that this attempt is not the newest.
            CheckpointStorageError: the writer is another process's, or poisoned.
        """
        if not self.is_mine:
            raise CheckpointStorageError(
                f"run {self._workflow_id!r} is owned by the process that this one was forked from",
                workflow_id=self._workflow_id,
                operation="save",
                remedy="Save from the parent; start processes with 'spawn' or 'forkserver'.",
            )
        if self._fence is not None:
            newest = self._fence.newest_attempt
            raise FencedError(self._workflow_id, attempt=self.keys.attempt, newest_attempt=newest) from self._fence
        if self.is_poisoned:
            raise CheckpointStorageError(
                f"an earlier save of run {self._workflow_id!r} failed, so what is in {self._bucket} is unknown",
                workflow_id=self._workflow_id,
                operation="save",
                is_outcome_unknown=True,
                remedy="Nothing more is written by this attempt; the next one finds out.",
            )


class GatheringWriter(AttemptWriter):
    """Creates the records of an attempt that counts when it has its end and no sooner: many lines in one object."""

    _gathered = b""

    def append(self, *bodies: bytes) -> None:
        """Keep lines, and put them into one object where they are enough for one."""
        text, self._digest = self._sealed(bodies)
        self._gathered += text
        self.has_written = True
        if len(self._gathered) >= _ENOUGH:
            self._put_gathered()

    def check_is_there(self, *, patience: float | None = None) -> None:
        """Do nothing: what it writes counts with its end, and that finds out."""

    def mark(self, content: bytes) -> None:
        """Create a record that is no part of the chain of lines.

        Args:
            content: what it holds.
        """
        self._put(content)

    def finish(self, end: End) -> bool:
        """Put what is left and then the end; tell whether it is there."""
        self._put_gathered()
        return self.end(end)

    def _put_gathered(self) -> None:
        text, self._gathered = self._gathered, b""
        if text:
            self._put(text)
