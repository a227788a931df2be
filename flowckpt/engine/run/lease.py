"""Hold the lease of a run for a while, to change its record without running anything."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import attrs

from flowckpt import stores
from flowckpt.core.records import CheckpointData
from flowckpt.core.system.blocking import finish_despite_cancel, start_within
from flowckpt.core.system.clock import Clock
from flowckpt.errors import CheckpointNotFoundError, CheckpointStorageError, FencedError, FlowckptError
from flowckpt.execution.interrupts import Interrupts
from flowckpt.stores.base import Lease, StoreBase
from flowckpt.stores.leases import release_lease

T = TypeVar("T")

_MOMENT = 1.0
"""How many seconds the end of a run waits for a store whose last save failed."""

_log = logging.getLogger("flowckpt")


def require_run(workflow_id: str, found: T | None) -> T:
    """Return the checkpoint or description that a store has found.

    Raises:
        CheckpointNotFoundError: the store has found nothing: the run does not exist.
    """
    if found is None:
        raise CheckpointNotFoundError(workflow_id)
    return found


async def explain_failure(store: StoreBase, workflow_id: str, work: Awaitable[T]) -> T:
    """Await work with a record; if content that flowckpt never writes makes it fail, raise an error of the record.

    Raises:
        CheckpointCorruptedError: the content of the record made the work fail.
    """
    try:
        return await work
    except FlowckptError:
        raise
    except Exception as error:
        if (found := await stores.content.find_content_error(store, workflow_id)) is not None:
            raise found from error
        raise


@asynccontextmanager
async def hold_lease(store: StoreBase, workflow_id: str) -> AsyncGenerator[Lease, None]:
    """Hold the lease of a run during the block.

    Args:
        store: the store of the run.
        workflow_id: the run; it need not exist.

    Raises:
        RunLockedError: another process owns the run.
        CheckpointCorruptedError: the run's record is damaged.
    """
    lease = await finish_despite_cancel(store.acquire(workflow_id))
    try:
        yield lease
    finally:
        await finish_despite_cancel(release_lease(store, lease), is_last=True)


async def save_after(
    store: StoreBase, clock: Clock, lease: Lease, latest: CheckpointData, name: str, **changes: Any
) -> CheckpointData:
    """Save a changed copy of a run's newest checkpoint as the next one; its id is the name and the attempt's number."""
    data = attrs.evolve(
        latest,
        checkpoint_id=f"{name}.{lease.attempt}",
        saved_at=clock.now(),
        sequence=lease.last_sequence + 1,
        attempt=lease.attempt,
        **changes,
    )
    await finish_despite_cancel(store.save(lease.workflow_id, data))
    return data


async def give_back(store: StoreBase, lease: Lease, *, is_away: bool = False) -> None:
    """Release a run. A failure is only logged: it must not hide how the run ended.

    Args:
        store: the store of the run.
        lease: the lease of the run.
        is_away: whether the last save failed, so that the store gets little time to answer.
    """
    failure: object = "the store does not answer; the lease expires by itself"
    try:
        if not is_away:
            await release_lease(store, lease)
            return
        giving = await start_within(release_lease(store, lease), patience=_MOMENT)
        if giving.done():
            giving.result()
            return
    except CheckpointStorageError as error:
        failure = error
    _log.warning("run %s: its lease could not be released: %s", lease.workflow_id, failure)


# The runs that this process drives, so that they can be stopped without a signal.


_live: dict[str, list[tuple[StoreBase, Interrupts]]] = {}


@contextmanager
def register_live(store: StoreBase, workflow_id: str, interrupts: Interrupts) -> Iterator[None]:
    """Register a run as driven by this process during the block.

    Args:
        store: the store of the run.
        workflow_id: the run.
        interrupts: stops the run.
    """
    entry = store, interrupts
    interrupts.is_alone = is_alone
    _live.setdefault(workflow_id, []).append(entry)
    try:
        yield
    finally:
        left = [each for each in _live.get(workflow_id, ()) if each is not entry]
        if left:
            _live[workflow_id] = left
        else:
            _live.pop(workflow_id, None)


def is_alone() -> bool:
    """Return whether this process drives at most one run."""
    return sum(map(len, _live.values())) <= 1


def find_live_interrupts(store: object, workflow_id: str) -> Interrupts | None:
    """Return the `Interrupts` of a run that this process drives on this store; None for any other run."""
    return next((interrupts for place, interrupts in _live.get(workflow_id, ()) if place == store), None)


# A run that another process has taken over must stop.


def stop_when_lost(store: StoreBase, workflow_id: str, interrupts: Interrupts, *, continue_on_save_error: bool) -> None:
    """Have the store stop a run once its lease is lost, if the store can notice; otherwise the next save finds out.

    Args:
        store: the store of the run.
        workflow_id: the run; this process owns it.
        interrupts: stops the run.
        continue_on_save_error: whether the run continues if it was removed and has no other owner.
    """

    def stop(error: FencedError) -> None:
        if error.newest_attempt or not continue_on_save_error:
            interrupts.lose(error)

    store.call_when_lost(workflow_id, stop)
