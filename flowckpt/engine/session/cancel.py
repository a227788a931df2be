"""Cancelling a run: a live one is asked to stop, and one that nobody runs is taken, undone and ended as cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from flowckpt.core.records import CheckpointData, Reason, Status
from flowckpt.core.records.listing import Owner
from flowckpt.core.records.wait import birth_of
from flowckpt.core.system.blocking import finish_despite_cancel
from flowckpt.core.system.clock import Clock
from flowckpt.core.system.process import ProcessIdentity, send_if_expected
from flowckpt.engine.rules.paths import ROLLBACK, not_yielded, step_of
from flowckpt.engine.run.cancel_requests import new_request, remove_requests
from flowckpt.engine.run.lease import live_interrupts, taken
from flowckpt.engine.undo.compensate import cancelling, without_key
from flowckpt.errors import CancelPendingError, CheckpointNotFoundError, RunLockedError
from flowckpt.execution.interrupts import CANCEL_SIGNALS
from flowckpt.stores.base import Ability, StoreBase

if TYPE_CHECKING:
    from flowckpt.engine.session.session import Session


PATIENCE_SECONDS = 60.0
"""So long is waited for a live run to stop, where nothing else is said."""
_LOOK_SECONDS = 0.05


@attrs.frozen
class Cancelled:
    """A run that was cancelled.

    Attributes:
        was: its previous status.
        undone: the undone steps, newest first.
        not_undone: the steps that could not be undone.
        attempt: the attempt that ended it.
    """

    workflow_id: str
    was: Status
    undone: tuple[str, ...]
    not_undone: tuple[str, ...]
    attempt: int


async def cancel_run(
    store: StoreBase,
    clock: Clock,
    workflow_id: str,
    *,
    undo: Callable[[], Session] | None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Cancelled:
    """Cancel a run.

    Args:
        store: where it lies.
        clock: the time.
        workflow_id: the run.
        undo: makes a resume that only undoes what the run did; None to leave that as it is.
        patience_seconds: how long to wait for a live run to stop.

    Raises:
        CheckpointNotFoundError: there is no such run.
        CancelRefusedError: it has completed.
        CancelPendingError: it is live, and has not stopped in time.
        RunLockedError: somebody took it while it was to be taken; or it is live, and cannot be asked from here.
    """
    before = await _latest(store, workflow_id)
    cancelling(workflow_id, before)
    was = before.status
    owner = await store.owner(workflow_id)
    if owner is not None:
        await _stopped(store, clock, workflow_id, before, owner, rolls_back=undo is not None, patience=patience_seconds)
        now = await _latest(store, workflow_id)
        await remove_requests(store, workflow_id)
        if now.status is Status.CANCELLED and (undo is None or not _left(before, now)):
            return _cancelled(workflow_id, was, before, now)
        cancelling(workflow_id, now)  # it has come to its end meanwhile
        was = now.status
    if was is Status.RUNNING:
        was = Status.CRASHED
    if undo is not None:
        await undo().result()
        await remove_requests(store, workflow_id)
        return _cancelled(workflow_id, was, before, await _latest(store, workflow_id))
    async with taken(store, workflow_id) as lease:
        latest = lease.latest
        if latest is None:
            raise CheckpointNotFoundError(workflow_id)
        cancelling(workflow_id, latest)
        data = attrs.evolve(
            latest,
            checkpoint_id=f"@{Reason.CANCELLED}.{lease.attempt}",
            saved_at=clock.now(),
            sequence=lease.last_sequence + 1,
            attempt=lease.attempt,
            reason=Reason.CANCELLED,
            status=Status.CANCELLED,
            evidence=(),
            metadata=without_key(latest.metadata),
            output=None,
            error=None,
        )
        await finish_despite_cancel(store.save(workflow_id, data))
        await remove_requests(store, workflow_id)
    return _cancelled(workflow_id, was, before, data)


def _cancelled(workflow_id: str, was: Status, before: CheckpointData, now: CheckpointData) -> Cancelled:
    """Compare two checkpoints: what was appended between them says what was undone."""
    added = [each for each in now.step_results[len(before.step_results) :] if each.step_type == ROLLBACK]
    undone = tuple(step_of(each.path) for each in added if each.success)
    not_undone = tuple(step_of(each.path) for each in added if not each.success)
    return Cancelled(workflow_id, was, undone, not_undone, now.attempt)


def _left(before: CheckpointData, now: CheckpointData) -> bool:
    """Tell whether a run was stopped with nothing undone, before it had come to where it stood."""
    added = now.step_results[len(before.step_results) :]
    tried = {step_of(each.path) for each in added if each.step_type == ROLLBACK}
    return not tried and bool(not_yielded(now.step_results, tried))


async def _latest(store: StoreBase, workflow_id: str) -> CheckpointData:
    latest = await store.load_latest(workflow_id)
    if latest is None:
        raise CheckpointNotFoundError(workflow_id)
    return latest


async def _stopped(
    store: StoreBase,
    clock: Clock,
    workflow_id: str,
    before: CheckpointData,
    owner: Owner,
    *,
    rolls_back: bool,
    patience: float,
) -> None:
    """Ask the owner of a live run to stop it, and wait until it has given it up."""
    own = live_interrupts(store, workflow_id)
    if own is not None:
        own.request_cancel(rolls_back=rolls_back)
    else:
        can_leave_word = store.has(Ability.SIGNALS)
        if can_leave_word:
            signal_id, birth = f"cancel-{clock.now():%Y%m%dT%H%M%S.%f}", birth_of(before.metadata)
            request = new_request(signal_id, clock.now(), birth, rolls_back=rolls_back)
            await store.send_signal(workflow_id, request)
        process = ProcessIdentity(owner.host, owner.boot_id, owner.pid, owner.start_time)
        is_nudged = bool(CANCEL_SIGNALS) and send_if_expected(process, CANCEL_SIGNALS[rolls_back])
        if not can_leave_word and not is_nudged:
            raise RunLockedError(workflow_id, holder=str(owner))
    began_ns = clock.elapsed_ns()
    while await store.owner(workflow_id) == owner:
        if (clock.elapsed_ns() - began_ns) / 1e9 >= patience:
            raise CancelPendingError(workflow_id, holder=str(owner), waited_seconds=patience)
        await clock.sleep(_LOOK_SECONDS)
