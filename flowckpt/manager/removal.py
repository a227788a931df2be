"""Removing checkpoints: one that somebody names, and those that are too many."""

from __future__ import annotations

import logging

from flowckpt.checkpoint import Reason
from flowckpt.errors import SettingError
from flowckpt.manager.claims import Verifying
from flowckpt.manager.names import local_part
from flowckpt.manager.owned_task import OwnedTask
from flowckpt.manager.records import CommittedStep
from flowckpt.stores.base import CheckpointStore, DeletesCheckpoints

_log = logging.getLogger("flowckpt")


def deleting_store(store: CheckpointStore, setting: str) -> DeletesCheckpoints:
    """Return a store as one that can delete single checkpoints, or refuse it.

    Args:
        store: the store.
        setting: the argument that asks for it.

    Raises:
        SettingError: it cannot.
    """
    if isinstance(store, DeletesCheckpoints):
        return store
    raise SettingError(
        f"{store!r} cannot delete single checkpoints",
        setting=setting,
        remedy="Use a store that can, or keep all checkpoints (max_per_task=None) and delete whole tasks.",
    )


async def remove(store: DeletesCheckpoints, task: OwnedTask, step: CommittedStep) -> bool:
    """Remove a checkpoint, and the record that its step was begun; tell whether there was one.

    Args:
        store: where it lies.
        task: its task, owned.
        step: its step.
    """
    log = task.log
    if step.sequence == task.sequence:  # else the record of its begin would be the newest: it would be in doubt again
        await task.save(Reason.MANUAL, "@deleting", begun=log.begun.values())
    is_removed = await store.delete_checkpoint(log.task_id, local_part(step.id, log.task_id))
    log.live.pop(local_part(step.id, log.task_id), None)
    await store.delete_checkpoint(log.task_id, local_part(step.step_id, log.task_id))
    return is_removed


async def remove_surplus(store: DeletesCheckpoints, task: OwnedTask, most: int, verifying: Verifying) -> None:
    """Remove the checkpoints that are too many, and begun steps that are settled.

    What fails here is told to the log: the step before it is durable.

    Args:
        store: where they lie.
        task: the task, owned.
        most: how many may stay.
        verifying: finds the newest one whose evidence holds, where none was checked at its commit.
    """
    log = task.log
    if len(log.live) <= most and not log.settled:
        return
    try:
        while log.settled:  # with the states of steps that an earlier attempt began, and that were begun again
            await store.delete_checkpoint(log.task_id, log.settled[0])
            del log.settled[0]
        if len(log.live) <= most:
            return
        steps = log.live_steps()
        verified = next((step for step in steps if step.verified), None)
        if verified is None:
            verified = await verifying.newest_that_holds(log, steps)
        for step in log.to_remove(most, verified):
            await remove(store, task, step)
    except Exception as error:
        _log.warning("task %s keeps more than %d checkpoints: %s", log.task_id, most, error)
