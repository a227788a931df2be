"""The async door of the SQL stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.blocking import run_blocking
from flowckpt.stores.async_store import RetainingStore, in_runs
from flowckpt.stores.base import StoreBase
from flowckpt.stores.sql.runs import SqlRuns

if TYPE_CHECKING:
    from flowckpt.core.records import HistoryView
    from flowckpt.stores.base import Lease


class SqlCheckpointStore(RetainingStore[SqlRuns]):
    """Checkpoints in the tables of a database: in place where nothing else runs, else on a worker thread.

    Args:
        runs: the synchronous store behind this one.

    Attributes:
        runs: the same.
    """

    def __init__(self, runs: SqlRuns) -> None:
        self.runs = runs

    async def renew(self, workflow_id: str, history: HistoryView) -> Lease | None:
        """Find out what became of a failed save, and continue the same attempt; see `StoreBase.renew`."""
        del history  # the next save holds it
        await run_blocking(lambda: self.runs.renew(workflow_id))
        return None

    find_runs = in_runs(StoreBase.find_runs)
    figures = in_runs(StoreBase.figures)
