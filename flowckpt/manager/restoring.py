"""Where a task can be taken up again: a committed step with its state, and what is left to do."""

from __future__ import annotations

from flowckpt.manager.claims import Verifying
from flowckpt.manager.names import local_part
from flowckpt.manager.records import CommittedStep, RestoredTask, TaskCheckpoint
from flowckpt.manager.task_log import TaskLog
from flowckpt.stores.base import CheckpointStore


async def load(store: CheckpointStore, step: CommittedStep) -> TaskCheckpoint:
    """Return a committed step with its state.

    Args:
        store: where its checkpoint lies.
        step: the step.

    Raises:
        CheckpointNotFoundError: the store does not hold it any more.
    """
    data = await store.load(step.task_id, local_part(step.id, step.task_id))
    return TaskCheckpoint.of(step, data.held_snapshot)


async def restore(store: CheckpointStore, log: TaskLog, index: int, verifying: Verifying) -> RestoredTask:
    """Return what there is behind a committed step.

    Args:
        store: where the task lies.
        log: what the task has done.
        index: the step; -1 for the beginning.
        verifying: checks the evidence of the step and of those that led to it, where that is to be done unasked.

    Raises:
        StaleStepError: some of it does not hold any more.
    """
    checkpoint = None
    if index >= 0:
        if verifying.is_automatic:
            await verifying.refuse_stale(log, index)
        checkpoint = await load(store, log.committed[index])
    return RestoredTask(
        log.task_id,
        checkpoint,
        tuple(log.chain(index)),
        log.remaining(index),
        log.in_doubt(),
        is_finished=log.is_finished,
    )
