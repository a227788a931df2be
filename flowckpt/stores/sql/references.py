"""The light description of a checkpoint, from the columns of its row."""

from __future__ import annotations

from flowckpt.checkpoint import Reason
from flowckpt.checkpoint.reference import CheckpointRef
from flowckpt.stores.sql.database import Row
from flowckpt.stores.sql.texts import moment_of, name_of

REFERENCE = "checkpoint_id, sequence, attempt, reason, saved_at, steps, size, verified"


def reference_of(workflow_id: str, row: Row) -> CheckpointRef:
    """Return the light description of a checkpoint.

    Args:
        workflow_id: the run.
        row: the columns of `REFERENCE`.
    """
    name, sequence, attempt, reason, saved_at, steps, size, verified = row
    return CheckpointRef(
        workflow_id,
        name_of(name),
        sequence,
        attempt,
        Reason(reason),
        moment_of(saved_at),
        steps,
        size,
        None if verified is None else bool(verified),
    )
