"""A run taken for a while, and given back whatever happens; for what changes a record without running anything."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from flowckpt.blocking import finish_despite_cancel
from flowckpt.errors import CheckpointStorageError
from flowckpt.stores.base import CheckpointStore, Lease, OwnsRuns
from flowckpt.stores.giving_back import released

_log = logging.getLogger("flowckpt")


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
    lease = await finish_despite_cancel(acquired(store, workflow_id))
    if not isinstance(store, OwnsRuns):
        yield lease
        return
    try:
        yield lease
    finally:
        await finish_despite_cancel(released(store, lease))


async def acquired(store: CheckpointStore, workflow_id: str, *, steal: bool = False) -> Lease:
    """Take a run; a store that knows no owners is trusted to have one user.

    Args:
        store: where it lies.
        workflow_id: the run; it need not exist.
        steal: take it although its owner's process still holds it.

    Raises:
        RunLockedError: another process owns it.
        CheckpointCorruptedError: its record is damaged.
    """
    if isinstance(store, OwnsRuns):
        return await store.acquire(workflow_id, steal=steal)
    latest = await store.load_latest(workflow_id)
    if latest is None:
        return Lease(workflow_id, 1, None)
    return Lease(workflow_id, latest.attempt + 1, latest, latest.sequence)


async def given_back(store: OwnsRuns, lease: Lease) -> None:
    """Give a run back. Where that fails the run has ended all the same, and how must not be hidden.

    Args:
        store: where it lies.
        lease: what says that it is owned.
    """
    try:
        await released(store, lease)
    except CheckpointStorageError as error:
        _log.warning("run %s: it could not be given back to the store: %s", lease.workflow_id, error)
