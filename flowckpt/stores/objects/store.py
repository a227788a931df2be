"""Checkpoints in a bucket; the async door.

::

    runs/RUN/000001.000000000002/records/000000000017   one object a checkpoint, created where there is none

The protocol stands in `claim` (claiming), `writer` (saving), `attempt` (reading) and `clearing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from flowckpt.core.records.listing import Selection
from flowckpt.core.system.blocking import run_blocking
from flowckpt.stores.async_store import EvictingDoor
from flowckpt.stores.objects.address import driver_at
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.stores.objects.receive import receive_run
from flowckpt.stores.objects.runs import ObjectRuns

if TYPE_CHECKING:
    from flowckpt.core.records import CheckpointData, HistoryView, Reason
    from flowckpt.core.records.listing import CheckpointRef
    from flowckpt.core.system.clock import Clock
    from flowckpt.errors import FencedError
    from flowckpt.stores.base import Lease


class ObjectCheckpointStore(EvictingDoor[ObjectRuns]):
    """Stores checkpoints as immutable objects in object storage; needs `flowckpt[s3]`.

    Args:
        place: `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`, with the options `endpoint`,
            `region` and `request_seconds`; or a store of the library obstore, for other credentials.
        lease_seconds: how long a run stays owned without a sign of life of an owner on another machine.
        patience_seconds: how long to retry requests after temporary failures.
        clock: the time, for tests.
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
        if attempt is not None:
            attempt = Selection(attempt=attempt).attempt
        return await run_blocking(lambda: self.runs.latest(workflow_id, attempt))

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
        return await run_blocking(lambda: wanted.of(self.runs.references(workflow_id)))

    async def tidy(self) -> None:
        """Remove what came to runs when they had been cleared."""
        await run_blocking(self.runs.tidy)

    async def receive_run(self, workflow_id: str, checkpoints: Callable[[], Iterable[CheckpointData]]) -> None:
        """Write the run under a claim that nobody looks behind, and end that."""
        await run_blocking(lambda: receive_run(self.runs, workflow_id, checkpoints))
