"""A run kept for the process that is to resume it, while that starts: of many recoverers, one starts a process for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs

from flowckpt.blocking import finish_despite_cancel
from flowckpt.errors import RunLockedError
from flowckpt.recovery.due import DueRun
from flowckpt.stores.base import CheckpointStore, OwnsRuns


@attrs.define
class KeptRun:
    """A run that this process owns until it gives it up; nothing is ever saved under such a claim.

    Attributes:
        store: where it lies.
        workflow_id: the run.
    """

    store: CheckpointStore
    workflow_id: str
    _is_kept: bool = True

    async def give_up(self) -> None:
        """Give the run up, once: who asks for it next has it. The claim leaves no trace."""
        if self._is_kept and isinstance(self.store, OwnsRuns):
            await finish_despite_cancel(self.store.release(self.workflow_id))
        self._is_kept = False


@asynccontextmanager
async def kept(store: CheckpointStore, run: DueRun) -> AsyncGenerator[KeptRun | None, None]:
    """Keep a run for the block, or until it is given up; None where another process has it, or has gone on with it.

    Args:
        store: where it lies; one that knows no owners keeps nothing, and is trusted to have one user.
        run: the run as it stood.

    Raises:
        CheckpointCorruptedError: its record is damaged.
        CheckpointStorageError: the medium failed.
    """
    if not isinstance(store, OwnsRuns):
        yield KeptRun(store, run.workflow_id)
        return
    try:
        lease = await finish_despite_cancel(store.acquire(run.workflow_id))
    except RunLockedError:
        yield None
        return
    keeping = KeptRun(store, run.workflow_id)
    try:
        is_as_it_stood = lease.latest is not None and lease.latest.attempt == run.info.attempt
        yield keeping if is_as_it_stood else None
    finally:
        await keeping.give_up()
