"""Taking in a whole run: written under a claim that is marked as an arrival, and there as soon as that has its end.

1. The newest attempt of the run is claimed, in a life of the run that has no other. What was claimed before, and never
   begun, makes way behind a tombstone, as at a clear; what was begun is a run that exists.
2. Its first record is the mark. From here on nobody sees anything of this life but the claim.
3. The attempts below are written, and then the records of this one.
4. Its end, `released`, is created at its next number. With that one request the run is there, or, where another one
   has put an end there first, it never will be.

Whoever claims the run over one that brought it and died puts that other end, and clears the life.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable
from datetime import datetime

import attrs

from flowckpt.core.records import CheckpointData
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointStorageError,
    FencedError,
    RunExistsError,
    RunLockedError,
)
from flowckpt.stores.objects.attempt import CLEARED, End, mark_of
from flowckpt.stores.objects.claim import Claimed, give_up, look
from flowckpt.stores.objects.clearing import sweep_values
from flowckpt.stores.objects.owned_run import OwnedRun
from flowckpt.stores.objects.runs import ObjectRuns
from flowckpt.stores.objects.writer import GatheringWriter

_PATIENCE = 100


def receive_run(runs: ObjectRuns, workflow_id: str, checkpoints: Callable[[], Iterable[CheckpointData]]) -> None:
    """Take a run in.

    Args:
        runs: the store's.
        workflow_id: the run.
        checkpoints: returns its checkpoints. They are asked for twice: first for their attempts.
    """
    _check_absent(runs, workflow_id)
    began_at: dict[int, datetime] = {}
    for data in checkpoints():
        began_at.setdefault(data.attempt, data.saved_at)
    if not began_at:
        return
    claimed = _claimed_alone(runs, workflow_id, max(began_at), began_at[max(began_at)])
    arrival = _Arrival(runs, workflow_id, claimed, began_at)
    try:
        arrival.write(checkpoints())
    except FencedError as error:
        arrival.withdraw()
        raise _overtaken(workflow_id) from error
    except BaseException:
        arrival.withdraw()
        raise
    finally:
        runs.arriving.pop(workflow_id, None)


def _check_absent(runs: ObjectRuns, workflow_id: str) -> None:
    """Refuse a run that cannot be taken in before anything is asked of whoever brings it."""
    if runs.read(workflow_id).image.records:
        raise RunExistsError(workflow_id)
    if (owner := runs.owner(workflow_id)) is not None:
        raise RunLockedError(workflow_id, holder=str(owner))


def _claimed_alone(runs: ObjectRuns, workflow_id: str, attempt: int, began_at: datetime) -> Claimed:
    """Claim an attempt of a run that has no other."""
    for _ in range(_PATIENCE):
        if runs.read(workflow_id).image.records:
            raise RunExistsError(workflow_id)
        claimed = runs.claim(workflow_id, at_least=attempt, began_at=began_at, gives_way=True)
        if claimed.attempt == attempt and not claimed.keys.attempts:
            return claimed
        owned = runs.unread(workflow_id, claimed)
        try:
            exists = bool(runs.read(workflow_id, keys=claimed.keys).image.records)
        except BaseException:
            give_up(runs.bucket, owned.writer.keys, workflow_id)
            raise
        if exists:
            give_up(runs.bucket, owned.writer.keys, workflow_id)
            raise RunExistsError(workflow_id)
        owned.entomb(runs.now())
        runs.finish_clearing(workflow_id, owned)
    raise CheckpointStorageError(
        f"run {workflow_id!r} could not be taken in: another process begins it again and again",
        workflow_id=workflow_id,
        operation="receive",
    )


def _overtaken(workflow_id: str) -> RunLockedError:
    return RunLockedError(workflow_id, holder="another process, which took it over while it was brought")


class _Arrival:
    """A run that is being taken in.

    Args:
        runs: the store's.
        workflow_id: the run.
        claimed: its newest attempt.
        began_at: when each of its attempts began.
    """

    def __init__(self, runs: ObjectRuns, workflow_id: str, claimed: Claimed, began_at: dict[int, datetime]) -> None:
        self._runs = runs
        self._workflow_id = workflow_id
        self._claimed = claimed
        self._began_at = began_at
        self._token = secrets.token_hex(16)
        self._writer = runs.written(claimed, workflow_id, GatheringWriter)
        self._holding = runs.unread(workflow_id, claimed, self._writer)
        self._written: list[int] = []

    def write(self, checkpoints: Iterable[CheckpointData]) -> None:
        """Write all of it, and make it count."""
        bucket, keys = self._runs.bucket, self._writer.keys
        self._runs.bring(self._workflow_id, self._holding)
        bucket.create_all([(keys.arriving, lambda: b"")], self._workflow_id, "receive")
        self._writer.mark(mark_of(self._token))
        owned: OwnedRun | None = None
        for data in checkpoints:
            if owned is None or data.attempt != owned.writer.keys.attempt:
                self._end(owned)
                owned = self._begun(data.attempt)
            owned.save(data)
        if owned is None or owned.writer is not self._writer:
            raise self._changed()
        self._end(owned)

    def withdraw(self) -> None:
        """Remove what was written, unless it counts already, or another one has ended it."""
        with contextlib.suppress(CheckpointStorageError):
            if self._writer.end(End(CLEARED, self._runs.now(), self._token)):
                self._runs.finish_clearing(self._workflow_id, self._holding)
            else:  # what was added behind the other one's clearing
                sweep_values(self._runs.bucket, self._claimed.keys, self._workflow_id)

    def _begun(self, attempt: int) -> OwnedRun:
        """Begin an attempt behind those that are written."""
        began_at = self._began_at.get(attempt)
        if began_at is None or attempt <= max(self._written, default=0):
            raise self._changed()
        keys = attrs.evolve(self._claimed.keys, attempts=tuple(self._written))
        if attempt == self._claimed.attempt:
            claimed, writer = attrs.evolve(self._claimed, keys=keys), self._writer
        else:
            claimer = self._runs.claimer(self._workflow_id, began_at=began_at)
            claimed = claimer.create(self._runs.bucket, keys, attempt)
            writer = self._runs.written(claimed, self._workflow_id, GatheringWriter)
        self._written.append(attempt)
        try:
            found = self._runs.read(self._workflow_id, keys=keys)
        except CheckpointCorruptedError as error:
            if look(self._runs.bucket, self._workflow_id).life != keys.life:  # it is being removed meanwhile
                raise _overtaken(self._workflow_id) from error
            raise
        return self._runs.owned_run(claimed, found, writer)

    def _end(self, owned: OwnedRun | None) -> None:
        if owned is not None and not owned.release(self._runs.now()):
            raise _overtaken(self._workflow_id)

    def _changed(self) -> CheckpointStorageError:
        return CheckpointStorageError(
            f"run {self._workflow_id!r} changed while it was taken in, and nothing of it was",
            workflow_id=self._workflow_id,
            operation="receive",
            remedy="Do it again.",
        )
