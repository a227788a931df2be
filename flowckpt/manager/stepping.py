"""The two records of a step: that it was begun, and that it was committed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowckpt.checkpoint import LazyValue, Reason
from flowckpt.clock import Clock
from flowckpt.codec.blob import Recorded, pack
from flowckpt.codec.tags import encode
from flowckpt.errors import StepNotBegunError
from flowckpt.manager.names import local_part, marker_id, public_id
from flowckpt.manager.owned_task import OwnedTask
from flowckpt.manager.record import description_of, result_of_commit
from flowckpt.manager.records import BegunStep, CommittedStep
from flowckpt.manager.task_log import TaskLog


def encoded(snapshot: Any) -> LazyValue:
    """Return a state encoded, so that nobody can change it any more.

    Args:
        snapshot: the state.

    Raises:
        EncodingError: it cannot be recorded.
    """
    recorded = Recorded(encode(snapshot, "snapshot"))
    _, blob = pack(recorded.tree)
    return blob or recorded


def find_begun(log: TaskLog, step_id: str, local_id: str) -> BegunStep:
    """Return a step that is begun.

    Args:
        log: its task.
        step_id: its id.
        local_id: its id in the store.

    Raises:
        StepNotBegunError: it is not begun, or not any more.
    """
    step = log.begun.get(local_id)
    if step is not None:
        return step
    committed = log.committed_as(local_id)
    raise StepNotBegunError(
        log.task_id,
        step_id,
        detail=f"it was committed as {committed.id!r}"
        if committed is not None
        else "it was abandoned, given up by a rollback, begun again by a later process, or never begun",
    )


async def begin(
    task: OwnedTask,
    clock: Clock,
    *,
    checkpoint_type: str,
    work_item_id: str | None,
    metadata: Mapping[str, Any],
    snapshot: LazyValue,
) -> BegunStep:
    """Record that a step begins. It takes the place of the same work in doubt from an earlier attempt.

    Args:
        task: its task, owned.
        clock: the time.
        checkpoint_type: what kind of step it is.
        work_item_id: which piece of work it is, or None.
        metadata: notes of the program, which nobody else holds.
        snapshot: the state before it, encoded.
    """
    log = task.log
    gone = log.superseded_by(checkpoint_type, work_item_id, task.attempt)
    path = log.new_path(checkpoint_type, gone)
    local_id = marker_id(path, task.sequence + 1)
    step = BegunStep(
        public_id(log.task_id, local_id),
        log.task_id,
        path,
        checkpoint_type,
        work_item_id,
        metadata,
        clock.now(),
        task.attempt,
        snapshot,
        clock.elapsed_ns(),
    )
    begun = {**log.without_begun(gone), local_id: step}
    description = description_of(step)
    await task.save(Reason.IN_DOUBT, local_id, begun=begun.values(), snapshot=snapshot, description=description)
    log.settle(gone)
    log.begun, log.is_finished = begun, False
    return step


async def commit(
    task: OwnedTask,
    clock: Clock,
    step: BegunStep,
    *,
    checkpoint_id: str | None,
    evidence: Mapping[str, Any] | None,
    snapshot: LazyValue | None,
) -> CommittedStep:
    """Make a begun step durable.

    Args:
        task: its task, owned.
        clock: the time.
        step: the step.
        checkpoint_id: what to call its checkpoint; its path where not given.
        evidence: its claims and the answers to them, as they are recorded.
        snapshot: the state after it, encoded; None for the one before it.
    """
    log = task.log
    local_id = checkpoint_id or step.path
    elapsed_ns = 0 if step.began_ns is None else clock.elapsed_ns() - step.began_ns
    committed = CommittedStep(
        public_id(log.task_id, local_id),
        log.task_id,
        step.step_id,
        step.path,
        step.checkpoint_type,
        step.work_item_id,
        step.metadata,
        task.sequence + 1,
        step.begun_at,
        clock.now(),
        elapsed_ns / 1e6,
        log.head,
        evidence,
    )
    index = len(log.committed)
    await task.save(
        Reason.STEP,
        local_id,
        begun=log.without_begun([local_part(step.step_id, log.task_id)]).values(),
        snapshot=step.held_snapshot if snapshot is None else snapshot,
        result=result_of_commit(committed, local_id, index=index, attempt=task.attempt, evidence=evidence),
        metadata=log.metadata(head=index),
    )
    log.add(committed)
    return committed
