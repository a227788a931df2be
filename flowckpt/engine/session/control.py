"""Requests that any process may make of a run: cancel it, change its tags, have it save a checkpoint.

If the run is live, its owner is asked to act. A run without an owner is taken for the moment of the change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from flowckpt.core.records import CheckpointData, Reason, Status
from flowckpt.core.records.listing import Owner
from flowckpt.core.records.wait import Signal, WaitKind, birth_of
from flowckpt.core.system.clock import Clock
from flowckpt.core.system.ids import new_message_id
from flowckpt.core.system.process import send_if_expected
from flowckpt.engine.rules.crash_loop import list_crash_sites
from flowckpt.engine.rules.paths import ROLLBACK, find_not_yielded, find_unended, list_in_flight, step_of
from flowckpt.engine.run.inbox import change_tags, make_cancel_request, remove_cancel_requests
from flowckpt.engine.run.lease import find_live_interrupts, hold_lease, require_run, save_after
from flowckpt.engine.run.resumption import count_crashes, read_started_steps
from flowckpt.engine.undo.compensate import check_cancel, drop_unfinished, note_failed_step
from flowckpt.engine.values.superseded import Superseded
from flowckpt.errors import InputError, RequestPendingError, RunLockedError
from flowckpt.execution.interrupts import CANCEL_SIGNALS
from flowckpt.stores.base import Ability, StoreBase

if TYPE_CHECKING:
    from flowckpt.engine.session.session import Session


_LOOK_SECONDS = 0.05
_ASKED = {WaitKind.CHECKPOINT: "save a checkpoint", WaitKind.TAG: "change its tags"}


@attrs.frozen
class Cancelled:
    """A run that was cancelled.

    Attributes:
        was: its previous status.
        undone: the undone steps, newest first.
        not_undone: the steps that could not be undone.
        in_doubt: the steps that had started and have no recorded end: whether they had an effect is unknown, so they were
            not undone.
        attempt: the attempt that ended it.
    """

    workflow_id: str
    was: Status
    undone: tuple[str, ...]
    not_undone: tuple[str, ...]
    in_doubt: tuple[str, ...]
    attempt: int


async def cancel_run(
    store: StoreBase,
    clock: Clock,
    workflow_id: str,
    *,
    undo: Callable[[], Session] | None,
    patience_seconds: float = 60.0,
) -> Cancelled:
    """Cancel a run.

    Args:
        store: the store of the run.
        clock: the time.
        workflow_id: the run.
        undo: creates a session that only undoes the run's effects; None to leave the effects.
        patience_seconds: how long to wait for a live run to stop.

    Raises:
        CheckpointNotFoundError: there is no such run.
        CancelRefusedError: the run has completed.
        RequestPendingError: the run is live, and has not stopped in time.
        RunLockedError: another process took the run first; or the run is live, and its store cannot deliver requests.
    """
    before = await _load_latest(store, workflow_id)
    check_cancel(workflow_id, before)
    was = before.status
    end_ns = clock.elapsed_ns() + round(patience_seconds * 1e9)
    while True:
        owner = await store.owner(workflow_id)
        if owner is not None:
            await _stop_owner(
                *(store, clock, workflow_id, before, owner),
                rolls_back=undo is not None,
                patience=patience_seconds,
                end_ns=end_ns,
            )
            after = await _load_latest(store, workflow_id)
            await remove_cancel_requests(store, workflow_id)
            if after.status is Status.CANCELLED and (undo is None or not _is_undo_missing(before, after)):
                return _describe_cancel(workflow_id, was, before, after)
            check_cancel(workflow_id, after)  # refuses a run that has completed meanwhile
            was = after.status
        try:
            return await _cancel_unowned(store, clock, workflow_id, before, was, undo)
        except RunLockedError:  # it had suspended before it noticed the request, and was resumed at once
            if clock.elapsed_ns() >= end_ns:
                raise
            await clock.sleep(_LOOK_SECONDS)


async def _cancel_unowned(
    store: StoreBase,
    clock: Clock,
    workflow_id: str,
    before: CheckpointData,
    was: Status,
    undo: Callable[[], Session] | None,
) -> Cancelled:
    """Cancel a run that no process owns."""
    started: tuple[str, ...] = ()
    if was is Status.RUNNING:
        was, started = Status.CRASHED, await read_started_steps(store, workflow_id, before)
    if undo is None:
        return _describe_cancel(workflow_id, was, before, await _save_as_cancelled(store, clock, workflow_id), started)
    await undo().result()
    await remove_cancel_requests(store, workflow_id)
    return _describe_cancel(workflow_id, was, before, await _load_latest(store, workflow_id), started)


async def _save_as_cancelled(store: StoreBase, clock: Clock, workflow_id: str) -> CheckpointData:
    """Mark a run without an owner as cancelled; undo nothing."""
    async with hold_lease(store, workflow_id) as lease:
        latest = require_run(workflow_id, lease.latest)
        check_cancel(workflow_id, latest)
        data = await save_after(
            store,
            clock,
            lease,
            latest,
            f"@{Reason.CANCELLED}",
            reason=Reason.CANCELLED,
            status=Status.CANCELLED,
            evidence=(),
            metadata=note_failed_step(drop_unfinished(latest.metadata), latest),
            output=None,
            error=None,
        )
        await remove_cancel_requests(store, workflow_id)
    return data


def _describe_cancel(
    workflow_id: str, was: Status, before: CheckpointData, after: CheckpointData, started: Sequence[str] = ()
) -> Cancelled:
    """Return what a cancel has undone: the rollback results appended between two checkpoints.

    Args:
        workflow_id: the run.
        was: its previous status.
        before: its newest checkpoint before the cancel.
        after: that after the cancel.
        started: the steps that a crashed attempt had started after its last checkpoint.
    """
    added = [each for each in after.step_results[len(before.step_results) :] if each.step_type == ROLLBACK]
    undone = tuple(step_of(each.path) for each in added if each.success)
    not_undone = tuple(step_of(each.path) for each in added if not each.success)
    unended = find_unended([*list_crash_sites(before.metadata), *started], before.step_results)
    in_doubt = [path for path in after.in_flight if path in before.in_flight]  # others were stopped by the cancel
    return Cancelled(workflow_id, was, undone, not_undone, (*dict.fromkeys([*in_doubt, *unended]),), after.attempt)


def _is_undo_missing(before: CheckpointData, after: CheckpointData) -> bool:
    """Return whether a run was stopped before it had reached all steps to undo: in its record, or set aside by a rerun."""
    if Superseded(after.metadata).list_undoable():
        return True
    added = after.step_results[len(before.step_results) :]
    tried = {step_of(each.path) for each in added if each.step_type == ROLLBACK}
    return not tried and bool(find_not_yielded(after.step_results, tried))


async def _load_latest(store: StoreBase, workflow_id: str) -> CheckpointData:
    return require_run(workflow_id, await store.load_latest(workflow_id))


async def _stop_owner(
    store: StoreBase,
    clock: Clock,
    workflow_id: str,
    before: CheckpointData,
    owner: Owner,
    *,
    rolls_back: bool,
    patience: float,
    end_ns: int,
) -> None:
    """Ask the owner of a live run to stop, and wait until it has released the run, or a later attempt has it here."""
    own = find_live_interrupts(store, workflow_id)
    if own is not None:
        own.request_cancel(rolls_back=rolls_back)
    else:
        can_leave_word = store.has(Ability.SIGNALS)
        if can_leave_word:
            signal_id = f"cancel-{clock.now():%Y%m%dT%H%M%S.%f}"
            request = make_cancel_request(signal_id, clock.now(), before, rolls_back=rolls_back)
            await store.send_signal(workflow_id, request)

        is_nudged = bool(CANCEL_SIGNALS) and send_if_expected(owner.process, CANCEL_SIGNALS[rolls_back])
        if not can_leave_word and not is_nudged:
            raise RunLockedError(workflow_id, holder=str(owner))
    while _is_same(await store.owner(workflow_id), owner):
        if own is not None and find_live_interrupts(store, workflow_id) not in (None, own):
            return
        if clock.elapsed_ns() >= end_ns:
            raise RequestPendingError(workflow_id, asked="stop", holder=str(owner), waited_seconds=patience)
        await clock.sleep(_LOOK_SECONDS)


def _is_same(owner: Owner | None, before: Owner) -> bool:
    """Return whether the same process still owns the run; a new generation of the run has a newer claim."""
    return owner is not None and attrs.evolve(owner, acquired_at=before.acquired_at) == before


# Tags and checkpoints: changes that need no program.


async def tag_run(
    store: StoreBase,
    clock: Clock,
    workflow_id: str,
    change: Mapping[str, str | None],
    *,
    patience_seconds: float = 60.0,
) -> CheckpointData:
    """Change the tags of a run, and return the checkpoint that holds them; see `WorkflowEngine.tag`."""
    latest = await _load_latest(store, workflow_id)
    if await _ask_owner(store, clock, latest, workflow_id, WaitKind.TAG, change, patience_seconds):
        return await _load_latest(store, workflow_id)
    async with hold_lease(store, workflow_id) as lease:
        latest = require_run(workflow_id, lease.latest)
        metadata, started = change_tags(latest.metadata, change), tuple[str, ...]()
        if latest.status is Status.RUNNING:  # the attempt that starts here must not count as a crash
            started = await read_started_steps(store, workflow_id, latest)
            count = await count_crashes(store, lease, latest, started)
            before = attrs.evolve(count, count=max(count.count - 1, 0))
            metadata = before.add_to_metadata(metadata, results=len(latest.step_results), partial=latest.partial)
        changes = {"evidence": (), "metadata": metadata, "in_flight": list_in_flight(latest, started)}
        return await save_after(store, clock, lease, latest, "@tagged", **changes)


async def checkpoint_run(
    store: StoreBase, clock: Clock, workflow_id: str, *, patience_seconds: float = 60.0
) -> CheckpointData:
    """Have the owner of a live run save a checkpoint, and return it; see `WorkflowEngine.save_checkpoint`."""
    latest = await _load_latest(store, workflow_id)
    if not await _ask_owner(store, clock, latest, workflow_id, WaitKind.CHECKPOINT, {}, patience_seconds):
        raise InputError(
            f"no process runs {workflow_id!r}, so there is nothing to save beyond checkpoint {latest.checkpoint_id!r}",
            parameter="workflow_id",
            remedy=f"'flowckpt show {workflow_id} --checkpoints' lists what is saved.",
        )
    return await _load_latest(store, workflow_id)


async def _ask_owner(
    store: StoreBase,
    clock: Clock,
    latest: CheckpointData,
    workflow_id: str,
    kind: WaitKind,
    data: Mapping[str, str | None],
    patience: float,
) -> bool:
    """Ask the owner of a run; return True if it acted, False if the run has no owner or was released instead.

    The owner removes a request once it has acted on it.
    """
    owner = await store.owner(workflow_id)
    if owner is None:
        return False
    if not store.has(Ability.SIGNALS):
        raise RunLockedError(workflow_id, holder=str(owner))
    birth = birth_of(latest.metadata)
    request = Signal(new_message_id(), str(kind), clock.now(), dict(data), kind=kind, birth=birth)
    await store.send_signal(workflow_id, request)
    started_ns = clock.elapsed_ns()
    while True:
        # read the owner first: an owner that has ended removes no requests afterwards
        is_owned = _is_same(await store.owner(workflow_id), owner)
        if request.signal_id not in {each.signal_id for each in await store.signals(workflow_id)}:
            return True
        if not is_owned or (clock.elapsed_ns() - started_ns) / 1e9 >= patience:
            await store.remove_signals(workflow_id, [request.signal_id])
            if not is_owned:
                return False
            raise RequestPendingError(workflow_id, asked=_ASKED[kind], holder=str(owner), waited_seconds=patience)
        await clock.sleep(_LOOK_SECONDS)
