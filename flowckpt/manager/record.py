"""How a task lies in a store: as a run, with a result for each committed step, and read back as a log.

A record that a step was begun has the reason `in_doubt`, the state before it, and as its output a description of the
step (metadata would do, but is carried from record to record); one that it was committed has the reason `step` and the
state after it. The result of a step says what a later reader needs to
know without loading its checkpoint.
"""

from __future__ import annotations

from typing import Any

from flowckpt.checkpoint import CheckpointData, Reason, Status, StepResult
from flowckpt.codec.tags import encode
from flowckpt.errors import CheckpointNotFoundError, ForeignRecordError
from flowckpt.hashing import digest
from flowckpt.manager.names import local_part, marker_id, path_in_marker, public_id
from flowckpt.manager.records import BegunStep, CommittedStep
from flowckpt.manager.task import KEY, is_task
from flowckpt.manager.task_log import TaskLog
from flowckpt.stores.base import CheckpointStore

NO_INPUTS = digest(encode({}))
_STEP_TYPE = "loop"


def result_of_commit(step: CommittedStep, local_id: str, *, index: int, attempt: int, evidence: Any) -> StepResult:
    """Return the result that a committed step leaves in the history.

    Args:
        step: the step.
        local_id: its checkpoint's id in the store.
        index: its place among the committed steps.
        attempt: the attempt that commits it.
        evidence: its claims and the answers to them, as they are recorded.
    """
    said: dict[str, Any] = {"sequence": step.sequence, "step_id": local_part(step.step_id, step.task_id)}
    said["saved_at"] = step.saved_at
    if local_id != step.path:
        said["checkpoint_id"] = local_id
    if step.work_item_id is not None:
        said["work_item_id"] = step.work_item_id
    if step.metadata:
        said["metadata"] = dict(step.metadata)
    if step.after != index - 1:
        said["after"] = step.after
    return StepResult(
        step.checkpoint_type,
        _STEP_TYPE,
        output=said,
        duration_ms=step.duration_ms,
        path=step.path,
        started_at=step.begun_at,
        attempt=attempt,
        evidence=evidence,
    )


def _committed_step(task_id: str, index: int, result: StepResult) -> CommittedStep:
    said = result.output
    return CommittedStep(
        public_id(task_id, said.get("checkpoint_id", result.path)),
        task_id,
        public_id(task_id, said["step_id"]),
        result.path,
        result.name,
        said.get("work_item_id"),
        said.get("metadata", {}),
        said["sequence"],
        result.started_at or said["saved_at"],
        said["saved_at"],
        result.duration_ms,
        said.get("after", index - 1),
        result.evidence,
    )


def description_of(step: BegunStep) -> dict[str, Any]:
    """Return what the record of a begun step says of it.

    Args:
        step: the step.
    """
    return {
        "checkpoint_type": step.checkpoint_type,
        "work_item_id": step.work_item_id,
        "metadata": dict(step.metadata),
    }


async def read_log(store: CheckpointStore, task_id: str, latest: CheckpointData | None) -> TaskLog:
    """Read what a task has done.

    Args:
        store: where it lies.
        task_id: the task.
        latest: its newest checkpoint; None for a task that has none.

    Raises:
        ForeignRecordError: it is a run of the engine.
        FlowckptError: one of the store's errors.
    """
    log = TaskLog(task_id)
    if latest is None:
        return log
    if not is_task(latest):
        raise ForeignRecordError(
            f"run {task_id!r} is one of workflow {latest.workflow_name!r}, not a task of a CheckpointManager",
            workflow_id=task_id,
            found=latest.workflow_name,
            remedy="Choose another task id, or another store.",
        )
    log.committed = [_committed_step(task_id, index, result) for index, result in enumerate(latest.step_results)]
    said = latest.metadata[KEY]
    log.head = said.get("head", len(log.committed) - 1)
    log.plan = tuple(said["plan"]) if "plan" in said else None
    log.base_path = latest.metadata.get("base_path", "")
    log.is_finished = latest.status is Status.COMPLETED
    references = await store.list_checkpoints(task_id)
    saved = {reference.sequence for reference in references if reference.reason is Reason.STEP}
    # By sequence, and the newest of an id: another of the same id may be gone, and this one be the one that is loaded.
    log.live = {local_part(step.id, task_id): i for i, step in enumerate(log.committed) if step.sequence in saved}
    markers = [reference.checkpoint_id for reference in references if reference.reason is Reason.IN_DOUBT]
    for path in latest.in_flight:
        local_id = next((each for each in markers if path_in_marker(each) == path), marker_id(path, 0))
        log.begun[local_id] = await _begun_step(store, task_id, local_id, path, latest)
    held = {local_part(step.step_id, task_id) for step in log.live_steps()}
    log.settle(each for each in reversed(markers) if each not in log.begun and each not in held)
    return log


async def _begun_step(
    store: CheckpointStore, task_id: str, local_id: str, path: str, latest: CheckpointData
) -> BegunStep:
    try:
        data = await store.load(task_id, local_id)
    except CheckpointNotFoundError:  # somebody deleted the record: it is in doubt all the same
        data = latest
    said = (data.output or {}) if data.checkpoint_id == local_id else {}
    return BegunStep(
        public_id(task_id, local_id),
        task_id,
        path,
        said.get("checkpoint_type", path),
        said.get("work_item_id"),
        said.get("metadata", {}),
        data.saved_at,
        data.attempt,
        data.held_snapshot if said else None,
    )
