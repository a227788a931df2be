"""A task of a checkpoint manager is stored as a run is, and an engine refuses to resume it."""

from __future__ import annotations

from flowckpt.core.records import CheckpointData
from flowckpt.core.records.listing import is_task
from flowckpt.errors import InputError


def refuse_task(workflow_id: str, latest: CheckpointData) -> None:
    """Refuse a task of a checkpoint manager: a resume cannot drive it.

    Args:
        workflow_id: the run.
        latest: its newest checkpoint.

    Raises:
        InputError: it is a task of a checkpoint manager.
    """
    if is_task(latest):
        raise InputError(
            f"{workflow_id!r} is a task of a CheckpointManager, not a run of a workflow",
            parameter="workflow_id",
            remedy="The program that made the task continues it when it is run again; its manager rolls it back: "
            "await manager.rollback_to_checkpoint(id).",
        )
