"""Giving a run back that was taken, and no other owner's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowckpt.stores.base import Lease, OwnsRuns


async def released(store: OwnsRuns, lease: Lease) -> None:
    """Give a run back that was taken; one that somebody else has taken since, through the same store, stays theirs.

    Args:
        store: where it lies.
        lease: what was taken.

    Raises:
        CheckpointStorageError: the medium failed.
    """
    if lease.token:
        await store.release(lease.workflow_id, token=lease.token)
    else:  # of a store that cannot tell owners apart
        await store.release(lease.workflow_id)
