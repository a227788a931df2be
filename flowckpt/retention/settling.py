"""What becomes of a run that has completed, after it was told: nothing, a compaction, or its removal."""

from __future__ import annotations

import logging

from flowckpt.retention.rule import OnSuccess, Retention
from flowckpt.stores.base import CheckpointStore
from flowckpt.stores.retention import CompactsRuns, PinsCheckpoints

_log = logging.getLogger("flowckpt")


async def settle_completed(store: CheckpointStore, workflow_id: str, retention: Retention) -> bool:
    """Do with a completed run what its engine was told; tell whether it was removed.

    Never raises: the run has succeeded; a failure is logged.

    A crash before it leaves the run completed, and a resume of it, which runs nothing, comes here again.

    Args:
        store: where it lies; nobody owns the run.
        workflow_id: the run.
        retention: what was told.
    """
    if retention.on_success is OnSuccess.KEEP:
        return False
    try:
        if retention.on_success is OnSuccess.CLEAR and not await _is_pinned(store, workflow_id, retention):
            await store.clear(workflow_id)
            return True
        if isinstance(store, CompactsRuns):
            await store.compact(workflow_id, is_forced=True)
    except Exception as error:
        _log.warning("run %s has completed, and stays as it is: %s", workflow_id, error)
    return False


async def _is_pinned(store: CheckpointStore, workflow_id: str, retention: Retention) -> bool:
    if isinstance(store, PinsCheckpoints) and await store.pinned(workflow_id):
        return True
    if not retention.pinned:
        return False
    return any(each.checkpoint_id in retention.pinned for each in await store.list_checkpoints(workflow_id))
