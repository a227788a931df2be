"""A run taken for a while, and given back whatever happens; for what changes a record without running anything."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from flowckpt.blocking import finish_despite_cancel
from flowckpt.stores.base import CheckpointStore, Lease, OwnsRuns


@asynccontextmanager
async def taken(store: CheckpointStore, workflow_id: str) -> AsyncGenerator[Lease, None]:
    """Own a run for the block.

    Args:
        store: where it lies; one that knows no owners is trusted to have one user.
        workflow_id: the run; it need not exist.

    Raises:
        RunLockedError: another process owns it.
        CheckpointCorruptedError: its record is damaged.
    """
    if not isinstance(store, OwnsRuns):
        latest = await store.load_latest(workflow_id)
        yield (
            Lease(workflow_id, 1, None)
            if latest is None
            else Lease(workflow_id, latest.attempt + 1, latest, latest.sequence)
        )
        return
    lease = await finish_despite_cancel(store.acquire(workflow_id))
    try:
        yield lease
    finally:
        await finish_despite_cancel(store.release(workflow_id))
