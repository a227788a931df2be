"""The parts that the classes of both SQL stores share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.blocking import may_block
from flowckpt.stores.async_store import RetainingStore, in_runs
from flowckpt.stores.base import Lease, StoreBase
from flowckpt.stores.sql.runs import SqlRuns

if TYPE_CHECKING:
    from flowckpt.core.records import CheckpointData


class SqlCheckpointStore(RetainingStore[SqlRuns]):
    """Checkpoints in the tables of a database: in place where nothing else runs, else on a worker thread.

    Args:
        runs: the runs, with synchronous methods.
    """

    def __init__(self, runs: SqlRuns) -> None:
        self.runs = runs

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Add the checkpoint with its new results and commit; saves that wait at the same time share one commit."""
        writer = None if may_block() else self.runs.owned.get(workflow_id)
        saved = None if writer is None else writer.save_later(data)
        if saved is None:
            await super().save(workflow_id, data)
        else:
            await saved

    async def acquire(self, workflow_id: str, *, take_over: bool = False) -> Lease:
        """Claim the run's next attempt, then read the run; see `StoreBase.acquire`."""
        if not may_block() and workflow_id not in self.runs.owned:
            lease = await self.runs.acquire_new(workflow_id)
            if lease is not None:
                return lease
        return await super().acquire(workflow_id, take_over=take_over)

    async def release(self, workflow_id: str, *, token: str = "") -> None:
        """Release the run, if the owner with that token still owns it; see `StoreBase.release`."""
        released = None if may_block() else self.runs.release_later(workflow_id, token)
        if released is None:
            await super().release(workflow_id, token=token)
        else:
            await released

    last_seen = in_runs(StoreBase.last_seen)
    renew = in_runs(StoreBase.renew)
    find_runs = in_runs(StoreBase.find_runs)
    figures = in_runs(StoreBase.figures)
