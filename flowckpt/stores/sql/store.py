"""The shared base of both SQL stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.blocking import may_block
from flowckpt.stores.base import Lease, StoreBase
from flowckpt.stores.runs_base import RetainingStore, delegate_to_runs
from flowckpt.stores.sql.runs import SqlRuns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowckpt.core.records.wait import Signal


class SqlCheckpointStore(RetainingStore[SqlRuns]):
    """Stores checkpoints in the tables of a database, in place if that may block the loop, otherwise on a thread.

    Args:
        runs: the runs, with sync methods.
    """

    def __init__(self, runs: SqlRuns) -> None:
        self.runs = runs

    async def acquire(self, workflow_id: str, *, take_over: bool = False) -> Lease:
        """Claim the run's next attempt, then read the run; see `StoreBase.acquire`."""
        if may_block() and workflow_id not in self.runs.owned:
            new = self.runs.acquire_new(workflow_id)
            if new is not None:
                return new
        return await super().acquire(workflow_id, take_over=take_over)

    async def signals(self, workflow_id: str) -> Sequence[Signal]:
        """Return the stored messages in the order of sending; see `StoreBase.signals`."""
        pending = None if may_block() else self.runs.signals_later(workflow_id)
        return await super().signals(workflow_id) if pending is None else await pending

    last_seen = delegate_to_runs(StoreBase.last_seen)
    make_savable = delegate_to_runs(StoreBase.make_savable)
    find_runs = delegate_to_runs(StoreBase.find_runs)
    figures = delegate_to_runs(StoreBase.figures)
