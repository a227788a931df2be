"""Checkpoints in a bucket; the async door.

::

    runs/RUN/000001.000000000002/records/000000000017   one object a checkpoint, created where there is none

The protocol stands in `claim` (claiming), `writer` (saving), `attempt` (reading) and `clearing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowckpt.blocking import may_block, run_blocking
from flowckpt.checkpoint.selection import Selection
from flowckpt.stores.figures import added_up
from flowckpt.stores.objects.address import driver_at
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.stores.objects.owning import ObjectRuns
from flowckpt.stores.objects.receiving import receive_run

if TYPE_CHECKING:
    from flowckpt.checkpoint import CheckpointData, Reason
    from flowckpt.checkpoint.figures import StoreFigures
    from flowckpt.checkpoint.reference import CheckpointRef, Owner, RunInfo
    from flowckpt.clock import Clock
    from flowckpt.stores.base import Finding, Lease


class ObjectCheckpointStore:
    """Checkpoints in object storage: immutable objects, each created only where there is none.

    Args:
        place: `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`, with options as `address` says;
            or a store of the library `obstore`, for credentials that no environment has.
        lease_seconds: how long a run stays owned without a sign of life of an owner on another machine.
        patience_seconds: how long a request that fails in passing is tried again.
        clock: the time, for tests.

    Attributes:
        runs: the synchronous store behind this one.
    """

    def __init__(
        self,
        place: Any,
        *,
        lease_seconds: float = 30.0,
        patience_seconds: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        driver, shown = driver_at(place) if isinstance(place, str) else (place, repr(place))
        self.runs = ObjectRuns(
            Bucket(driver, shown, patience_seconds=patience_seconds), lease_seconds=lease_seconds, clock=clock
        )

    def __repr__(self) -> str:
        return f"ObjectCheckpointStore({str(self.runs.bucket)!r})"

    # --- the five methods ------------------------------------------------------------------------------------------

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Create the object of the checkpoint; see `CheckpointStore.save`."""
        if may_block():
            self.runs.save(workflow_id, data)
        else:
            await run_blocking(lambda: self.runs.save(workflow_id, data))

    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Return the newest checkpoint of that id; see `CheckpointStore.load`."""
        return await run_blocking(lambda: self.runs.load(workflow_id, checkpoint_id))

    async def load_latest(self, workflow_id: str, *, attempt: int | None = None) -> CheckpointData | None:
        """Return the newest checkpoint, of all or of an attempt; see `FiltersCheckpoints.load_latest`."""
        if attempt is not None:
            attempt = Selection(attempt=attempt).attempt
        return await run_blocking(lambda: self.runs.latest(workflow_id, attempt))

    async def clear(self, workflow_id: str) -> None:
        """Remove the run, behind a tombstone; see `CheckpointStore.clear`."""
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
        return await run_blocking(lambda: wanted.of(self.runs.references(workflow_id)))

    # --- abilities -------------------------------------------------------------------------------------------------

    async def acquire(self, workflow_id: str, *, steal: bool = False) -> Lease:
        """Claim the run's next attempt, end those below it, and read the run; see `OwnsRuns.acquire`."""
        return await run_blocking(lambda: self.runs.acquire(workflow_id, steal=steal))

    async def release(self, workflow_id: str) -> None:
        """Give the run up; see `OwnsRuns.release`."""
        await run_blocking(lambda: self.runs.release(workflow_id))

    async def owner(self, workflow_id: str) -> Owner | None:
        """Return who owns the run and is alive; see `OwnsRuns.owner`."""
        return await run_blocking(lambda: self.runs.owner(workflow_id))

    async def list_runs(self) -> Sequence[RunInfo]:
        """Return the runs, from the ends of their newest attempts; see `ListsRuns`."""
        return await run_blocking(self.runs.list_runs)

    async def describe_run(self, workflow_id: str) -> RunInfo | None:
        """Return one run as the list shows it; see `ListsRuns`."""
        return await run_blocking(lambda: self.runs.describe(workflow_id))

    async def delete_checkpoint(self, workflow_id: str, checkpoint_id: str) -> bool:
        """Record that the checkpoints of that id are deleted; see `DeletesCheckpoints`."""
        return await run_blocking(lambda: self.runs.delete(workflow_id, checkpoint_id))

    async def load_attempt(self, workflow_id: str, attempt: int) -> CheckpointData | None:
        """Return the last checkpoint of an attempt, as it left it; see `KeepsAttempts`."""
        return await run_blocking(lambda: self.runs.latest_of_attempt(workflow_id, attempt))

    async def list_attempt(self, workflow_id: str, attempt: int) -> Sequence[CheckpointRef]:
        """Return the checkpoints of an attempt, oldest first; see `ListsAttempts`."""
        return await run_blocking(lambda: self.runs.references_of_attempt(workflow_id, attempt))

    async def attempts(self, workflow_id: str) -> Sequence[int]:
        """Return the numbers of the attempts that have a record; see `ListsAttempts`."""
        return await run_blocking(lambda: self.runs.attempts(workflow_id))

    async def read_attempt(self, workflow_id: str, attempt: int) -> Sequence[CheckpointData]:
        """Return the checkpoints of an attempt whole, oldest first; see `ReadsAttempts`."""
        return await run_blocking(lambda: self.runs.data_of_attempt(workflow_id, attempt))

    async def figures(self, workflow_id: str | None = None, *, limit: int = 10) -> StoreFigures:
        """Return what the store holds in figures, reading run by run; see `TellsFigures`."""
        return await added_up(self, workflow_id, limit=limit)

    async def share_values(self, source_id: str, workflow_id: str, sizes: Mapping[str, int]) -> None:
        """Have the server copy large values of one run to another; see `SharesValues`."""
        await run_blocking(lambda: self.runs.share(source_id, workflow_id, sizes))

    async def receive_run(self, workflow_id: str, checkpoints: Callable[[], Iterable[CheckpointData]]) -> None:
        """Write the run under a claim that nobody looks behind, and end that; see `ReceivesRuns`."""
        await run_blocking(lambda: receive_run(self.runs, workflow_id, checkpoints))

    async def check(self, workflow_id: str | None = None) -> Sequence[Finding]:
        """Read all records, bundles and large values and verify them; see `ChecksIntegrity`."""
        return await run_blocking(lambda: self.runs.check(workflow_id))

    def close(self) -> None:
        """Give up every run that this store owns."""
        self.runs.close()
