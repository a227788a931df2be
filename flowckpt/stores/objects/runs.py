"""The runs in a bucket, to be owned: claimed, saved to, given up, cleared. Synchronous; `store` is its async door."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from flowckpt.core.codec.results import encode_time
from flowckpt.core.records import CheckpointData
from flowckpt.core.records.listing import CheckpointRef
from flowckpt.core.records.wait import Signal
from flowckpt.core.system.clock import Clock, SystemClock
from flowckpt.core.system.process import ProcessIdentity, current_process
from flowckpt.errors import CheckpointStorageError, FencedError, RunLockedError
from flowckpt.stores.base import Lease
from flowckpt.stores.leases import Heartbeat, LeaseTimes
from flowckpt.stores.log.image import RunImage
from flowckpt.stores.objects.bucket import Bucket, check_conditions
from flowckpt.stores.objects.claim import Claimed, Claimer, give_up, look
from flowckpt.stores.objects.clearing import finish_clearing, sweep_former, sweep_late
from flowckpt.stores.objects.layout import RunKeys, run_keys
from flowckpt.stores.objects.listing import listed_runs
from flowckpt.stores.objects.owned_run import OwnedRun
from flowckpt.stores.objects.reading import ReadableRuns, RunRead
from flowckpt.stores.objects.signals import send_signal
from flowckpt.stores.objects.writer import AttemptWriter

W = TypeVar("W", bound=AttemptWriter)


class ObjectRuns(ReadableRuns):
    """The runs in a bucket, and those among them that this process owns.

    Args:
        bucket: the bucket.
        lease_seconds: how long a run stays owned without a sign of life of its owner.
        clock: the time, for people, and for the leases that are shown.
        process: tells which process this is, for tests.

    Attributes:
        owned: the runs that this process owns.
        arriving: the runs that are being brought whole: owned, and nothing may save to them or give them up.
    """

    def __init__(
        self,
        bucket: Bucket,
        *,
        lease_seconds: float,
        clock: Clock | None = None,
        process: Callable[[], ProcessIdentity] = current_process,
    ) -> None:
        super().__init__(bucket, clock or SystemClock())
        self.owned: dict[str, OwnedRun] = {}
        self._times = LeaseTimes(lease_seconds)
        self._process = process
        self._heartbeat = Heartbeat(self.renew_leases, self._times.interval)
        self.arriving: dict[str, OwnedRun] = {}
        self._is_probed = False
        self._probing = threading.Lock()

    def close(self) -> None:
        """Give up every run that this process owns."""
        for workflow_id in list(self.owned):
            self.release(workflow_id)
        self._heartbeat.stop()

    def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Create the object of a checkpoint with its new results."""
        owned = self.owned.get(workflow_id)
        if owned is None:
            owned = self._own_for(workflow_id, data.attempt)
        owned.save(data)

    def _own_for(self, workflow_id: str, attempt: int) -> OwnedRun:
        """Claim a run for a caller that saves without having acquired it."""
        lease = self.acquire(workflow_id, steal=False, at_least=attempt)
        if lease.attempt != attempt:
            self.release(workflow_id)
            raise FencedError(workflow_id, attempt=attempt, newest_attempt=lease.attempt - 1)
        return self.owned[workflow_id]

    def acquire(self, workflow_id: str, *, steal: bool, at_least: int = 1) -> Lease:
        """Claim the run's next attempt, then read the run."""
        mine = self.owned.get(workflow_id)
        if mine is not None and not steal:
            raise RunLockedError(workflow_id, holder=f"this process, by a store in {self.bucket}")
        claimed = self.claim(workflow_id, steal=steal, at_least=at_least)
        if mine is not None:
            self.owned.pop(workflow_id).close()
        try:
            found = self.read(workflow_id, keys=claimed.keys)
            latest = found.latest()
        except BaseException:
            give_up(self.bucket, claimed.keys.at(claimed.attempt), workflow_id)
            raise
        self.owned[workflow_id] = self.owned_run(claimed, found)
        self._heartbeat.start()
        with contextlib.suppress(CheckpointStorageError):  # the next one does it
            sweep_late(self.bucket, claimed.keys, workflow_id)
        return Lease(workflow_id, claimed.attempt, latest, found.image.last_sequence, token=claimed.token)

    def claim(self, workflow_id: str, **options: Any) -> Claimed:
        """Claim the next attempt of a run, without reading the run.

        Args:
            workflow_id: the run.
            **options: as for `Claimer`.
        """
        self._probe()
        return self.claimer(workflow_id, **options).claim(self.bucket)

    def _probe(self) -> None:
        """Ask, once a process, whether the server honours conditions."""
        with self._probing:
            if not self._is_probed:
                check_conditions(self.bucket)
                self._is_probed = True

    def claimer(self, workflow_id: str, **options: Any) -> Claimer:
        """Return this process as one that claims.

        Args:
            workflow_id: the run.
            **options: as for `Claimer`.
        """
        return Claimer(workflow_id, self._process(), self._times.seconds, self._clock.now(), **options)

    def now(self) -> str:
        """Return the time, as records hold it."""
        return encode_time(self._clock.now())

    def bring(self, workflow_id: str, owned: OwnedRun) -> None:
        """Give signs of life for a run that is being brought whole.

        Args:
            workflow_id: the run.
            owned: the attempt that holds it.
        """
        self.arriving[workflow_id] = owned
        self._heartbeat.start()

    def written(self, claimed: Claimed, workflow_id: str, writer: type[W]) -> W:
        """Return the writer of an attempt that was claimed.

        Args:
            claimed: the attempt.
            workflow_id: the run.
            writer: which kind.
        """
        keys = claimed.keys
        return writer(
            self.bucket,
            keys.at(claimed.attempt),
            workflow_id=workflow_id,
            claim=claimed.line,
            digest=claimed.digest,
            newest_attempt=lambda: self._newest_attempt(workflow_id, keys),
        )

    def owned_run(self, claimed: Claimed, found: RunRead, writer: AttemptWriter | None = None) -> OwnedRun:
        """Return what saves to an attempt that was claimed.

        Args:
            claimed: the attempt.
            found: the run below it, read.
            writer: its writer, where that is there already.
        """
        return OwnedRun(
            self.bucket,
            claimed.keys,
            writer=writer or self.written(claimed, found.image.workflow_id, AttemptWriter),
            image=found.image,
            token=claimed.token,
            fetch=found.fetch,
        )

    def _newest_attempt(self, workflow_id: str, keys: RunKeys) -> int | None:
        """Return the newest attempt of a run; None where the life that is meant has ended."""
        found = look(self.bucket, workflow_id)
        return found.attempts[-1] if found.life == keys.life and found.attempts else None

    def renew(self, workflow_id: str) -> None:
        """Find out what became of a save whose outcome is unknown, so that more can be saved."""
        owned = self.owned.get(workflow_id)
        if owned is not None and owned.writer.is_mine:
            owned.settle()

    def renew_leases(self) -> bool:
        """Give signs of life for all owned runs, and tell of those that are lost; tell whether there are any."""
        owned = [each for each in [*self.owned.values(), *self.arriving.values()] if each.writer.is_mine]
        failure: CheckpointStorageError | None = None
        for each in owned:
            try:
                each.give_sign(self._times.interval)
            except CheckpointStorageError as error:  # the others may be in other hands soon, too
                failure = error
        if failure is not None:
            raise failure
        return bool(owned)

    def tell_when_lost(self, workflow_id: str, tell: Callable[[FencedError], None]) -> None:
        """Have somebody told once a run is lost."""
        owned = self.owned.get(workflow_id)
        if owned is not None:
            owned.on_lost = tell

    def share(self, source_id: str, workflow_id: str, sizes: Mapping[str, int]) -> None:
        """Let an owned run have large values of another, copied by the server."""
        owned = self.owned.get(workflow_id)
        if owned is not None:
            owned.share_from(look(self.bucket, source_id), sizes)

    def release(self, workflow_id: str, *, token: str = "") -> None:
        """Give a run up, if whoever has the token owns it still."""
        owned = self.owned.get(workflow_id)
        if owned is not None and token in ("", owned.token):
            del self.owned[workflow_id]
            if owned.leaves_values and owned.writer.is_mine:
                with contextlib.suppress(FencedError):  # then it is another's to clear
                    owned.entomb(self.now())
                    self.finish_clearing(workflow_id, owned)
            owned.release(self.now())

    def send_signal(self, workflow_id: str, signal: Signal) -> bool:
        """Create the object of a message, whoever owns the run; tell whether it is new."""
        self._probe()
        return send_signal(self.bucket, workflow_id, signal)

    def remove_signals(self, workflow_id: str, signal_ids: Collection[str]) -> None:
        """Delete messages for a run."""
        owned = self.owned.get(workflow_id)
        if signal_ids:
            keys = look(self.bucket, workflow_id) if owned is None else owned.keys
            self.bucket.delete([keys.signal(each) for each in signal_ids], workflow_id, "signal")

    def clear(self, workflow_id: str) -> None:
        """Remove a run, behind a tombstone."""
        keys = look(self.bucket, workflow_id)
        if keys.attempts:
            self._entomb(workflow_id)
        sweep_former(self.bucket, keys, workflow_id)

    def _entomb(self, workflow_id: str) -> None:
        owned = self.owned.get(workflow_id)
        if owned is None or not owned.writer.is_mine:
            owned = self.unread(workflow_id, self.claim(workflow_id))
        now = self.now()
        try:
            owned.entomb(now)
        except FencedError as error:
            holder = self.owner(workflow_id)
            raise RunLockedError(workflow_id, holder=str(holder or "another process")) from error
        except BaseException:
            if workflow_id not in self.owned:
                with contextlib.suppress(CheckpointStorageError):
                    owned.release(now)
            raise
        self.owned.pop(workflow_id, None)
        self.finish_clearing(workflow_id, owned)

    def unread(self, workflow_id: str, claimed: Claimed, writer: AttemptWriter | None = None) -> OwnedRun:
        """Return an attempt that was claimed for something else than going on with the run.

        Args:
            workflow_id: the run.
            claimed: the attempt.
            writer: its writer, where that is there already.
        """
        nothing = RunRead(claimed.keys, RunImage(workflow_id), self._fetch(workflow_id, claimed.keys))
        return self.owned_run(claimed, nothing, writer)

    def finish_clearing(self, workflow_id: str, owned: OwnedRun) -> None:
        """Remove what a run has whose tombstone is there.

        Args:
            workflow_id: the run.
            owned: the attempt that has the tombstone.
        """
        found = look(self.bucket, workflow_id)
        if found.life == owned.keys.life:
            finish_clearing(self.bucket, found, owned.writer.keys.attempt, workflow_id)

    def tidy(self) -> None:
        """Remove what the former lives of all runs have left."""
        works = [lambda run=run: self._tidy_run(run) for run in listed_runs(self.bucket)]
        for _ in self.bucket.each(works):
            pass

    def _tidy_run(self, run: str) -> None:
        sweep_former(self.bucket, run_keys(run, self.bucket.names(run, run)), run)

    def delete(self, workflow_id: str, checkpoint_id: str) -> bool:
        """Delete the checkpoints of an id."""
        return bool(self._delete_where(workflow_id, lambda reference: reference.checkpoint_id == checkpoint_id))

    def delete_sequences(self, workflow_id: str, sequences: Collection[int]) -> int:
        """Delete checkpoints; return how many."""
        return self._delete_where(workflow_id, lambda reference: reference.sequence in sequences)

    def evict_with_next_save(self, workflow_id: str, sequences: Sequence[int]) -> None:
        """Name checkpoints in the record of the next save that go with it."""
        owned = self.owned.get(workflow_id)
        if owned is not None:
            owned.evict_with_next_save(sequences)

    def _delete_where(self, workflow_id: str, wanted: Callable[[CheckpointRef], bool]) -> int:
        is_mine = workflow_id in self.owned
        if not any(map(wanted, self.references(workflow_id))):
            return 0  # so that nothing is claimed, or refused, for nothing
        if not is_mine:
            self.acquire(workflow_id, steal=False)
        try:
            doomed = [reference.sequence for reference in self.references(workflow_id) if wanted(reference)]
            if doomed:
                self.owned[workflow_id].delete(doomed)
        finally:
            if not is_mine:
                self.release(workflow_id)
        return len(doomed)
