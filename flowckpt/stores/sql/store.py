"""The async door of the SQL stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from flowckpt.core.records.listing import Selection
from flowckpt.core.system.blocking import run_blocking
from flowckpt.stores.async_store import RetainingDoor

if TYPE_CHECKING:
    from flowckpt.core.records import CheckpointData, HistoryView, Reason
    from flowckpt.core.records.listing import CheckpointRef, RunFilter, RunInfo
    from flowckpt.core.records.statistics import StoreStatistics
    from flowckpt.errors import FencedError
    from flowckpt.stores.base import Lease
    from flowckpt.stores.sql.retention import RetainedRuns


class SqlCheckpointStore(RetainingDoor["RetainedRuns"]):
    """Checkpoints in the tables of a database: in place where nothing else runs, else on a worker thread.

    Args:
        runs: the synchronous store behind this one.

    Attributes:
        runs: the same.
    """

    def __init__(self, runs: RetainedRuns) -> None:
        self.runs = runs

    def tell_when_lost(self, workflow_id: str, tell: Callable[[FencedError], None]) -> None:
        """Have somebody told once the run is lost."""
        self.runs.tell_when_lost(workflow_id, tell)

    async def renew(self, workflow_id: str, history: HistoryView) -> Lease | None:
        """Find out what became of a save that failed, and go on in the same attempt."""
        del history  # the next save holds it
        await run_blocking(lambda: self.runs.renew(workflow_id))
        return None

    async def load_latest(self, workflow_id: str, *, attempt: int | None = None) -> CheckpointData | None:
        """Return the newest checkpoint, of all or of an attempt."""
        wanted = Selection(attempt=attempt)
        return await run_blocking(lambda: self.runs.latest(workflow_id, wanted))

    async def list_checkpoints(
        self,
        workflow_id: str,
        *,
        attempt: int | None = None,
        reason: Reason | str | None = None,
        verified: bool | None = None,
        limit: int | None = None,
    ) -> Sequence[CheckpointRef]:
        """Return the run's checkpoints, newest first."""
        wanted = Selection(attempt=attempt, reason=reason, verified=verified, limit=limit)
        return await run_blocking(lambda: self.runs.references(workflow_id, wanted))

    async def find_runs(self, wanted: RunFilter) -> Sequence[RunInfo]:
        """Return the runs that are wanted, by an index."""
        return await run_blocking(lambda: self.runs.find_runs(wanted))

    async def receive_run(self, workflow_id: str, checkpoints: Callable[[], Iterable[CheckpointData]]) -> None:
        """Add a whole run in one transaction."""
        await run_blocking(lambda: self.runs.receive(workflow_id, checkpoints))

    async def figures(self, workflow_id: str | None = None, *, limit: int = 10) -> StoreStatistics:
        """Return what the store holds in figures, which the database works out."""
        return await run_blocking(lambda: self.runs.figures(workflow_id, limit))

    # --- retention -------------------------------------------------------------------------------------------------
