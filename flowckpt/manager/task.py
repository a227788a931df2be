"""What tells the record of a manager's task from that of a run of a workflow."""

from __future__ import annotations

from flowckpt.checkpoint import CheckpointData

WORKFLOW_NAME = "CheckpointManager"
"""What a task is called in a list of runs."""
KEY = "manager"
"""What its metadata have."""


def is_task(data: CheckpointData) -> bool:
    """Tell whether a run is a manager's task.

    Args:
        data: one of its checkpoints.
    """
    return data.workflow_name == WORKFLOW_NAME and KEY in data.metadata
