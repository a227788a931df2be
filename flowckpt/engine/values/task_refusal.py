"""A task of a checkpoint manager lies in the store as a run does, and is none that an engine can go on with."""

from __future__ import annotations

from flowckpt.core.records import CheckpointData
from flowckpt.errors import InputError
from flowckpt.maintenance.task_log import is_task


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
            remedy="The program that made the task goes on with it, when it is run again; and it goes back by its manager: "
            "await manager.rollback_to_checkpoint(id).",
        )
