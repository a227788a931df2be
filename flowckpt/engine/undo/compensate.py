"""When a run fails or is cancelled, what its steps did is undone: newest first, also what an earlier attempt did.

Each step undone is recorded at once. Before the first one, a checkpoint says that undoing has begun, and how the run
ends: whatever dies in the middle, the next resume continues undoing and ends the run in the same way.

A step that cannot be undone keeps no other from being undone, and does not hide why the run ended.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import attrs

from flowckpt.core.codec.results import decode_error, encode_error
from flowckpt.core.records import CheckpointData, Reason, Status, StepError
from flowckpt.core.records.listing import refuse_task
from flowckpt.engine.rules.paths import UNFINISHED, left_to_undo
from flowckpt.engine.run.context import RunContext
from flowckpt.engine.run.undo_steps import undo_step
from flowckpt.errors import CancelRefusedError, FlowckptError, StepFailedError

_log = logging.getLogger("flowckpt")


@attrs.frozen
class UnfinishedRollback:
    """How a run ends whose undoing was begun.

    Attributes:
        reason: `failed` or `cancelled`.
        error: what made it fail, or None.
    """

    reason: Reason
    error: StepError | None

    def written_to(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return metadata that say so."""
        error = None if self.error is None else encode_error(self.error)
        return {**metadata, UNFINISHED: {"reason": self.reason.value, "error": error}}


def unfinished_rollback(metadata: Mapping[str, Any]) -> UnfinishedRollback | None:
    """Return how a run ends that died while its steps were undone; None for any other.

    Args:
        metadata: of its newest checkpoint.
    """
    found = metadata.get(UNFINISHED)
    if found is None:
        return None
    error = found["error"]
    return UnfinishedRollback(Reason(found["reason"]), None if error is None else decode_error(error))


def cancelling(workflow_id: str, latest: CheckpointData) -> UnfinishedRollback:
    """Return how a run ends that is resumed only to be cancelled.

    Args:
        workflow_id: the run.
        latest: its newest checkpoint.

    Raises:
        CancelRefusedError: it has completed.
        InputError: it is a task of a checkpoint manager.
    """
    refuse_task(workflow_id, latest)
    if latest.status is Status.COMPLETED:
        raise CancelRefusedError(workflow_id)
    return UnfinishedRollback(Reason.CANCELLED, None)


async def roll_back(run: RunContext, end: UnfinishedRollback) -> tuple[StepFailedError, ...] | None:
    """Undo what is to be undone, and return what could not be.

    Returns:
        The failures; None where nothing was undone, because it could not be saved that undoing begins: a resume would
        take for done what was undone.

    Raises:
        FlowckptError: what was undone cannot be saved; nothing more is undone.
        KeyboardInterrupt: a signal came; the next resume continues.
        asyncio.CancelledError: likewise, of a cancel.
    """
    checkpointer = run.recorder.checkpointer
    undoable = run.recorder.undo.undoable.keys() | run.recorder.undo.not_undoable.keys()
    todo = left_to_undo(checkpointer.history.results, undoable)
    if not todo:
        checkpointer.metadata = without_key(checkpointer.metadata)
        return ()
    before = checkpointer.metadata
    checkpointer.metadata = end.written_to(before)
    saved = await run.recorder.checkpoint(
        Reason.ROLLBACK
    )  # also if the record says so: it counts how often that crashed
    await run.recorder.emit_saved(saved)
    if isinstance(saved, FlowckptError):
        checkpointer.metadata = before
        return None
    failures = [failure for result in todo if (failure := await undo_step(run, result)) is not None]
    checkpointer.metadata = without_key(checkpointer.metadata)
    return tuple(failures)


def without_key(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return metadata that say nothing of undoing.

    Args:
        metadata: the metadata of a run.
    """
    return (
        {name: value for name, value in metadata.items() if name != UNFINISHED} if UNFINISHED in metadata else metadata
    )
