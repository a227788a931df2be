"""Owned runs in a bucket: claimed, released, cleared, imported."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

import attrs

from flowckpt.core.codec.results import encode_time
from flowckpt.core.records import CheckpointData
from flowckpt.core.records.wait import Signal
from flowckpt.core.system.clock import Clock, SystemClock
from flowckpt.core.system.process import current_process
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointStorageError,
    FencedError,
    RunExistsError,
    RunLockedError,
)
from flowckpt.stores.base import Lease
from flowckpt.stores.leases import LeaseTimes
from flowckpt.stores.log.image import LoadedRun, RunImage
from flowckpt.stores.objects import repair
from flowckpt.stores.objects.attempt import CLEARED, AttemptEnd, make_mark
from flowckpt.stores.objects.bucket import Bucket, check_conditions
from flowckpt.stores.objects.claim import (
    ClaimedAttempt,
    Claimer,
    finish_clearing,
    read_keys,
    read_keys_at,
    sweep_former,
    sweep_late,
    sweep_values,
    withdrawn_on_error,
)
from flowckpt.stores.objects.layout import INDEX, RunKeys
from flowckpt.stores.objects.reader import ObjectReader, RunRead, list_run_keys
from flowckpt.stores.objects.run_writer import AttemptWriter, BulkWriter, ObjectRunWriter
from flowckpt.stores.objects.signals import send_signal
from flowckpt.stores.queries import Repaired
from flowckpt.stores.runs_base import Claimed

_log = logging.getLogger("flowckpt")


class ObjectRuns(ObjectReader):
    """The runs in a bucket, and those of them that this process owns.

    Args:
        lease_seconds: how long a run stays owned without a heartbeat of its owner.
        clock: the time, for people and for showing leases.

    Attributes:
        owned: the runs that this process owns.
        arriving: the runs that are being imported: owned, but they cannot be saved to or released.
    """

    def __init__(self, bucket: Bucket, *, lease_seconds: float, clock: Clock | None = None) -> None:
        self._times = LeaseTimes(lease_seconds)
        super().__init__(bucket, clock or SystemClock(), self._times.interval)
        self._process = current_process
        self.arriving: dict[str, ObjectRunWriter] = {}
        self._is_probed = False
        self._probing = threading.Lock()

    def _claim(self, workflow_id: str, *, take_over: bool, at_least: int) -> Claimed[ObjectRunWriter]:
        claimed = self.claim(workflow_id, take_over=take_over, at_least=at_least)
        with withdrawn_on_error(self.bucket, claimed, workflow_id):
            writer, loaded = self._read_claimed(workflow_id, claimed)
            return writer, loaded.latest(), ()

    def acquire(self, workflow_id: str, *, take_over: bool = False, at_least: int = 1) -> Lease:
        """Claim the run's next attempt, then read the run."""
        lease = super().acquire(workflow_id, take_over=take_over, at_least=at_least)
        with contextlib.suppress(CheckpointStorageError):  # otherwise the next claim does it
            sweep_late(self.bucket, self.owned[workflow_id].keys, workflow_id)
        return lease

    def claim(self, workflow_id: str, **options: Any) -> ClaimedAttempt:
        """Claim the next attempt of a run, without reading the run.

        Args:
            workflow_id: the run.
            **options: as for `Claimer`.
        """
        self._probe()
        return self.make_claimer(workflow_id, **options).claim()

    def _claim_next(self, writer: ObjectRunWriter) -> ObjectRunWriter:
        run = writer.workflow_id
        claimed = self.claim(run, after=writer.attempt)
        with withdrawn_on_error(self.bucket, claimed, run):
            return self._read_claimed(run, claimed)[0]

    def _read_claimed(self, workflow_id: str, claimed: ClaimedAttempt) -> tuple[ObjectRunWriter, RunRead]:
        """Read a run after a claim, which ends this store's earlier one, and return the new writer and what was read."""
        previous = self.owned.pop(workflow_id, None)
        if previous is not None:
            previous.close()
        loaded = self.read(workflow_id, keys=claimed.keys)
        return ObjectRunWriter(self.bucket, claimed, loaded), loaded

    def _drop_earlier_generations(self, writer: ObjectRunWriter, sequence: int) -> None:
        try:
            writer.drop_earlier()
        except CheckpointStorageError as error:
            _log.warning("run %s: earlier generations were not removed: %s", writer.workflow_id, error.message)

    def _probe(self) -> None:
        """Check once per process that the server honours conditions."""
        with self._probing:
            if not self._is_probed:
                check_conditions(self.bucket)
                self._is_probed = True

    def make_claimer(self, workflow_id: str, **options: Any) -> Claimer:
        """Return a claimer for this process.

        Args:
            workflow_id: the run.
            **options: as for `Claimer`.
        """
        now = self._clock.now()
        return Claimer(self.bucket, workflow_id, self._process(), self._times.seconds, now, **options)

    def format_now(self) -> str:
        """Return the time in the format of records."""
        return encode_time(self._clock.now())

    def keep_alive(self, workflow_id: str, writer: ObjectRunWriter) -> None:
        """Send heartbeats for a run that is being imported."""
        self.arriving[workflow_id] = writer
        self._heartbeat.start()

    def receive_run(self, workflow_id: str, checkpoints: Callable[[], Iterable[CheckpointData]]) -> None:
        """Write a whole run under a claim that readers ignore, then end the claim."""
        _check_absent(self, workflow_id)
        if (owner := self.owner(workflow_id)) is not None:
            raise RunLockedError(workflow_id, holder=str(owner))
        began_at: dict[int, datetime] = {}
        for data in checkpoints():
            began_at.setdefault(data.attempt, data.saved_at)
        if not began_at:
            return
        claimed = _claim_alone(self, workflow_id, max(began_at), began_at[max(began_at)])
        arrival = _BulkImport(self, workflow_id, claimed, began_at)
        try:
            arrival.write(checkpoints())
        except BaseException as error:
            arrival.withdraw()
            if isinstance(error, FencedError):
                raise _overtaken_error(workflow_id) from error
            raise
        finally:
            self.arriving.pop(workflow_id, None)

    def repair(self, workflow_id: str) -> Repaired:
        """Set aside the damaged parts of a run, and keep the rest."""
        return repair.repair_run(self, workflow_id)

    def renew_leases(self) -> bool:
        """Send heartbeats for all owned runs, report lost ones, and return whether any are owned."""
        owned = [each for each in [*self.owned.values(), *self.arriving.values()] if each.is_mine]
        failure: CheckpointStorageError | None = None
        for each in owned:
            try:
                each.send_heartbeat(self._times.interval)
            except CheckpointStorageError as error:  # the other runs may be lost soon, too
                failure = error
        if failure is not None:
            raise failure
        return bool(owned)

    def share_values(self, source_id: str, workflow_id: str, sizes: Mapping[str, int]) -> None:
        """Copy large values of another run to an owned run, on the server."""
        owned = self.owned.get(workflow_id)
        if owned is not None:
            owned.copy_values_from(read_keys(self.bucket, source_id), sizes)

    def _give_up(self, writer: ObjectRunWriter) -> None:
        if writer.has_unused_values and writer.is_mine:
            with contextlib.suppress(FencedError):  # its new owner clears it then
                writer.entomb(self.format_now())
                self.finish_clearing(writer.workflow_id, writer)
        writer.release(self.format_now())

    def send_signal(self, workflow_id: str, signal: Signal) -> bool:
        """Create the object of a message, also without owning the run; return whether it is new."""
        self._probe()
        return send_signal(self.bucket, workflow_id, signal)

    def remove_signals(self, workflow_id: str, signal_ids: Collection[str]) -> None:
        """Delete messages for a run."""
        owned = self.owned.get(workflow_id)
        if signal_ids:
            keys = read_keys(self.bucket, workflow_id) if owned is None else owned.keys
            self.bucket.delete([keys.signal(each) for each in signal_ids], workflow_id, "signal")

    def note_live(self, writer: ObjectRunWriter, content: bytes) -> None:
        """Replace the live note of an owned run."""
        writer.note_live(content)

    def read_index(self, name: str) -> bytes | None:
        """Return a part of the index of results."""
        return self.bucket.get(f"{INDEX}/{name}", "", "read the index")

    def write_index(self, name: str, content: bytes) -> None:
        """Replace a part of the index of results."""
        self.bucket.overwrite(f"{INDEX}/{name}", content, "", "write the index")

    def clear_index(self) -> None:
        """Remove the index of results."""
        self.bucket.delete_under(INDEX, "", "clear the index")

    def clear(self, workflow_id: str) -> None:
        """Remove a run, after a tombstone."""
        keys = read_keys(self.bucket, workflow_id)
        if keys.attempts:
            self._entomb(workflow_id)
        sweep_former(self.bucket, keys, workflow_id)

    def _entomb(self, workflow_id: str) -> None:
        owned = self.owned.get(workflow_id)
        if owned is None or not owned.is_mine:
            owned = self.make_blank_writer(workflow_id, self.claim(workflow_id))
        now = self.format_now()
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

    def make_blank_writer(
        self, workflow_id: str, claimed: ClaimedAttempt, writer: AttemptWriter | None = None
    ) -> ObjectRunWriter:
        """Return the writer of an attempt that does not continue the run.

        Args:
            workflow_id: the run.
            claimed: the attempt.
            writer: its attempt writer, if one exists already.
        """
        nothing = LoadedRun(RunImage(workflow_id), self._make_fetch(workflow_id, claimed.keys))
        return ObjectRunWriter(self.bucket, claimed, nothing, writer)

    def finish_clearing(self, workflow_id: str, writer: ObjectRunWriter) -> None:
        """Remove the objects of a run that has a tombstone.

        Args:
            workflow_id: the run.
            writer: the writer of the attempt with the tombstone.
        """
        keys = read_keys(self.bucket, workflow_id)
        if keys.life == writer.keys.life:
            finish_clearing(self.bucket, keys, writer.attempt, workflow_id)

    def tidy(self) -> None:
        """Remove the remains of all runs' former lives."""
        self.bucket.call_for_each(self._tidy_run, list_run_keys(self.bucket))

    def _tidy_run(self, run: str) -> None:
        sweep_former(self.bucket, read_keys_at(self.bucket, run), run)


# Importing a whole run: it is written under a claim with an import mark, and visible as soon as that has its end.
#
# 1. The newest attempt of the run is claimed, in a life without other attempts. Earlier claims that never
# started are removed after a tombstone, as by a clear; a started attempt means that the run exists.
# 2. Its first record is the mark. From then on, only the claim of this life is visible.
# 3. The attempts below are written, and then the records of this one.
# 4. Its end, `released`, is created at its next number. That one request makes the run visible or, if another process
# has put an end there first, fails for good.
#
# A process that claims the run after the importer has died puts that other end, and clears the life.

_PATIENCE = 100


def _check_absent(runs: ObjectRuns, workflow_id: str, keys: RunKeys | None = None) -> None:
    if runs.read(workflow_id, keys=keys).image.records:
        raise RunExistsError(workflow_id)


def _claim_alone(runs: ObjectRuns, workflow_id: str, attempt: int, began_at: datetime) -> ClaimedAttempt:
    """Claim an attempt of a run without other attempts."""
    for _ in range(_PATIENCE):
        _check_absent(runs, workflow_id)
        claimed = runs.claim(workflow_id, at_least=attempt, began_at=began_at, gives_way=True)
        if claimed.attempt == attempt and not claimed.keys.attempts:
            return claimed
        with withdrawn_on_error(runs.bucket, claimed, workflow_id):
            _check_absent(runs, workflow_id, claimed.keys)
        writer = runs.make_blank_writer(workflow_id, claimed)
        writer.entomb(runs.format_now())
        runs.finish_clearing(workflow_id, writer)
    raise CheckpointStorageError(
        f"run {workflow_id!r} could not be imported: another process starts it again and again",
        workflow_id=workflow_id,
        operation="receive",
    )


def _overtaken_error(workflow_id: str) -> RunLockedError:
    return RunLockedError(workflow_id, holder="another process, which took it over during the import")


class _BulkImport:
    """An import in progress.

    Args:
        claimed: its newest attempt.
        began_at: when each of its attempts started.
    """

    def __init__(
        self, runs: ObjectRuns, workflow_id: str, claimed: ClaimedAttempt, began_at: dict[int, datetime]
    ) -> None:
        self._runs = runs
        self._workflow_id = workflow_id
        self._claimed = claimed
        self._began_at = began_at
        self._token = secrets.token_hex(16)
        self._writer = BulkWriter(runs.bucket, claimed, workflow_id)
        self._holding = runs.make_blank_writer(workflow_id, claimed, self._writer)
        self._written: list[int] = []

    def write(self, checkpoints: Iterable[CheckpointData]) -> None:
        """Write all records, then the end that makes them visible."""
        bucket, keys = self._runs.bucket, self._writer.keys
        self._runs.keep_alive(self._workflow_id, self._holding)
        bucket.create_all([(keys.arriving, lambda: b"")], self._workflow_id, "receive")
        self._writer.write_mark(make_mark(self._token))
        owned: ObjectRunWriter | None = None
        for data in checkpoints:
            if owned is None or data.attempt != owned.writer.keys.attempt:
                self._end(owned)
                owned = self._start_attempt(data.attempt)
            owned.save(data)
        if owned is None or owned.writer is not self._writer:
            raise self._changed_error()
        self._end(owned)

    def withdraw(self) -> None:
        """Remove the written records, unless they are visible already, or another process has ended the attempt."""
        with contextlib.suppress(CheckpointStorageError):
            if self._writer.end(AttemptEnd(CLEARED, self._runs.format_now(), self._token)):
                self._runs.finish_clearing(self._workflow_id, self._holding)
            else:  # remove what was added after the other process cleared the run
                sweep_values(self._runs.bucket, self._claimed.keys, self._workflow_id)

    def _start_attempt(self, attempt: int) -> ObjectRunWriter:
        """Start an attempt after the written ones."""
        began_at = self._began_at.get(attempt)
        if began_at is None or attempt <= max(self._written, default=0):
            raise self._changed_error()
        keys = attrs.evolve(self._claimed.keys, attempts=tuple(self._written))
        if attempt == self._claimed.attempt:
            claimed, writer = attrs.evolve(self._claimed, keys=keys), self._writer
        else:
            claimer = self._runs.make_claimer(self._workflow_id, began_at=began_at)
            claimed = claimer.create(keys, attempt)
            writer = BulkWriter(self._runs.bucket, claimed, self._workflow_id)
        self._written.append(attempt)
        try:
            loaded = self._runs.read(self._workflow_id, keys=keys)
        except CheckpointCorruptedError as error:
            if read_keys(self._runs.bucket, self._workflow_id).life != keys.life:  # it is being removed
                raise _overtaken_error(self._workflow_id) from error
            raise
        return ObjectRunWriter(self._runs.bucket, claimed, loaded, writer)

    def _end(self, owned: ObjectRunWriter | None) -> None:
        if owned is not None and not owned.release(self._runs.format_now()):
            raise _overtaken_error(self._workflow_id)

    def _changed_error(self) -> CheckpointStorageError:
        return CheckpointStorageError(
            f"run {self._workflow_id!r} changed during the import, so nothing was imported",
            workflow_id=self._workflow_id,
            operation="receive",
            remedy="Do it again.",
        )
