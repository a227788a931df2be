"""The async door of the SQL stores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from flowckpt.blocking import may_block, run_blocking
from flowckpt.checkpoint.selection import Selection

if TYPE_CHECKING:
    from flowckpt.checkpoint import CheckpointData, Reason, Status
    from flowckpt.checkpoint.figures import StoreFigures
    from flowckpt.checkpoint.reference import CheckpointRef, Owner, RunInfo
    from flowckpt.checkpoint.signal import Signal
    from flowckpt.stores.base import Finding, Lease
    from flowckpt.stores.retention import Compacted
    from flowckpt.stores.sql.retaining import RetainedRuns


class SqlCheckpointStore:
    """Checkpoints in the tables of a database: in place where nothing else runs, else on a worker thread.

    Args:
        runs: the synchronous store behind this one.

    Attributes:
        runs: the same.
    """

    def __init__(self, runs: RetainedRuns) -> None:
        self.runs = runs

    # --- the five methods ------------------------------------------------------------------------------------------

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Add the checkpoint with its new results and commit; see `CheckpointStore.save`."""
        if may_block():
            self.runs.save(workflow_id, data)
        else:
            await run_blocking(lambda: self.runs.save(workflow_id, data))

    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Return the newest checkpoint of that id; see `CheckpointStore.load`."""
        return await run_blocking(lambda: self.runs.load(workflow_id, checkpoint_id))

    async def load_latest(self, workflow_id: str, *, attempt: int | None = None) -> CheckpointData | None:
        """Return the newest checkpoint, of all or of an attempt; see `FiltersCheckpoints.load_latest`."""
        wanted = Selection(attempt=attempt)
        return await run_blocking(lambda: self.runs.latest(workflow_id, wanted))

    async def clear(self, workflow_id: str) -> None:
        """Remove the run in one transaction; see `CheckpointStore.clear`."""
        await run_blocking(lambda: self.runs.clear(workflow_id))

    async def list_checkpoints(
        self,
        workflow_id: str,
        *,
        attempt: int | None = None,
        reason: Reason | str | None = None,
        verified: bool | None = None,
        limit: int | None = None,
    ) -> Sequence[CheckpointRef]:
        """Return the run's checkpoints, newest first; see `FiltersCheckpoints.list_checkpoints`."""
        wanted = Selection(attempt=attempt, reason=reason, verified=verified, limit=limit)
        return await run_blocking(lambda: self.runs.references(workflow_id, wanted))

    # --- abilities -------------------------------------------------------------------------------------------------

    async def acquire(self, workflow_id: str, *, steal: bool = False) -> Lease:
        """Claim the run's next attempt and read the run; see `OwnsRuns.acquire`."""
        return await run_blocking(lambda: self.runs.acquire(workflow_id, steal=steal))

    async def release(self, workflow_id: str) -> None:
        """Give the run up; see `OwnsRuns.release`."""
        await run_blocking(lambda: self.runs.release(workflow_id))

    async def owner(self, workflow_id: str) -> Owner | None:
        """Return who owns the run and is alive; see `OwnsRuns.owner`."""
        return await run_blocking(lambda: self.runs.owner(workflow_id))

    async def list_runs(self) -> Sequence[RunInfo]:
        """Return the runs, from one table; see `ListsRuns`."""
        return await run_blocking(self.runs.list_runs)

    async def list_runs_of(self, statuses: Collection[Status]) -> Sequence[RunInfo]:
        """Return the runs that stand so, by an index; see `ListsRunsByStatus`."""
        return await run_blocking(lambda: self.runs.list_runs_of(statuses))

    async def describe_run(self, workflow_id: str) -> RunInfo | None:
        """Return one run as the list shows it; see `ListsRuns`."""
        return await run_blocking(lambda: self.runs.describe(workflow_id))

    async def delete_checkpoint(self, workflow_id: str, checkpoint_id: str) -> bool:
        """Delete the checkpoints of that id; see `DeletesCheckpoints`."""
        return await run_blocking(lambda: self.runs.delete(workflow_id, checkpoint_id))

    async def load_attempt(self, workflow_id: str, attempt: int) -> CheckpointData | None:
        """Return the last checkpoint of an attempt, as it left it; see `KeepsAttempts`."""
        return await run_blocking(lambda: self.runs.latest_of_attempt(workflow_id, attempt))

    async def attempts(self, workflow_id: str) -> Sequence[int]:
        """Return the numbers of the attempts that wrote something; see `ListsAttempts`."""
        return await run_blocking(lambda: self.runs.attempts(workflow_id))

    async def list_attempt(self, workflow_id: str, attempt: int) -> Sequence[CheckpointRef]:
        """Return the checkpoints of an attempt, oldest first; see `ListsAttempts`."""
        return await run_blocking(lambda: self.runs.references_of_attempt(workflow_id, attempt))

    async def read_attempt(self, workflow_id: str, attempt: int) -> Sequence[CheckpointData]:
        """Return the checkpoints of an attempt whole, oldest first; see `ReadsAttempts`."""
        return await run_blocking(lambda: self.runs.data_of_attempt(workflow_id, attempt))

    async def receive_run(self, workflow_id: str, checkpoints: Callable[[], Iterable[CheckpointData]]) -> None:
        """Add a whole run in one transaction; see `ReceivesRuns`."""
        await run_blocking(lambda: self.runs.receive(workflow_id, checkpoints))

    async def figures(self, workflow_id: str | None = None, *, limit: int = 10) -> StoreFigures:
        """Return what the store holds in figures, which the database works out; see `TellsFigures`."""
        return await run_blocking(lambda: self.runs.figures(workflow_id, limit))

    async def share_values(self, source_id: str, workflow_id: str, sizes: Mapping[str, int]) -> None:
        """Name large values of one run in another, in the database; see `SharesValues`."""
        await run_blocking(lambda: self.runs.share(source_id, workflow_id, sizes))

    async def send_signal(self, workflow_id: str, signal: Signal) -> bool:
        """Add a message for a run and commit; see `DeliversSignals`."""
        return await run_blocking(lambda: self.runs.send_signal(workflow_id, signal))

    async def signals(self, workflow_id: str) -> Sequence[Signal]:
        """Return the messages for a run; see `DeliversSignals`."""
        return await run_blocking(lambda: self.runs.signals(workflow_id))

    async def remove_signals(self, workflow_id: str, signal_ids: Collection[str]) -> None:
        """Remove messages; see `DeliversSignals`."""
        await run_blocking(lambda: self.runs.remove_signals(workflow_id, signal_ids))

    # --- retention -------------------------------------------------------------------------------------------------

    def evict_with_next_save(self, workflow_id: str, sequences: Sequence[int]) -> None:
        """Delete checkpoints in the transaction of the next save; see `EvictsCheckpoints`."""
        owned = self.runs.owned.get(workflow_id)
        if owned is not None:
            owned.evict_with_next_save(sequences)

    async def delete_sequences(self, workflow_id: str, sequences: Sequence[int]) -> int:
        """Delete checkpoints; see `EvictsCheckpoints`."""
        return await run_blocking(lambda: self.runs.delete_sequences(workflow_id, sequences))

    async def pin(self, workflow_id: str, sequence: int) -> None:
        """Add a row to the table of pins; see `PinsCheckpoints`."""
        await run_blocking(lambda: self.runs.pin(workflow_id, sequence))

    async def unpin(self, workflow_id: str, sequence: int) -> None:
        """Remove that row; see `PinsCheckpoints`."""
        await run_blocking(lambda: self.runs.unpin(workflow_id, sequence))

    async def pinned(self, workflow_id: str) -> frozenset[int]:
        """Return the pins; see `PinsCheckpoints`."""
        return await run_blocking(lambda: self.runs.pinned(workflow_id))

    async def compactable(self, after: str, limit: int) -> Sequence[str]:
        """Return the runs that have deleted checkpoints; see `CompactsRuns`."""
        return await run_blocking(lambda: self.runs.compactable(after, limit))

    async def compact(self, workflow_id: str, *, is_forced: bool = False) -> Compacted:
        """Remove the rows of deleted checkpoints, and values that no row names; see `CompactsRuns`."""
        del is_forced  # it costs little
        return await run_blocking(lambda: self.runs.compact(workflow_id))

    async def page_runs(self, before: RunInfo | None, limit: int) -> Sequence[RunInfo]:
        """Return runs in the order of an index; see `PrunesRuns`."""
        return await run_blocking(lambda: self.runs.page(before, limit))

    async def stored_bytes(self, workflow_ids: Sequence[str]) -> Sequence[int]:
        """Return what the rows say of their sizes; see `PrunesRuns`."""
        return await run_blocking(lambda: self.runs.stored_bytes(workflow_ids))

    async def clear_unchanged(self, runs: Sequence[RunInfo]) -> Sequence[str]:
        """Remove runs in transactions of some at a time; see `PrunesRuns`."""
        return await run_blocking(lambda: self.runs.clear_unchanged(runs))

    async def tidy(self) -> None:
        """Give free pages back to the system, where the database can do so in passing; see `PrunesRuns`."""
        await run_blocking(self.runs.database.give_back_space)

    async def check(self, workflow_id: str | None = None) -> Sequence[Finding]:
        """Verify the database, all records and large values; see `ChecksIntegrity`."""
        return await run_blocking(lambda: self.runs.check(workflow_id))

    def close(self) -> None:
        """Give up every run that this store owns, and close its connections."""
        self.runs.close()
