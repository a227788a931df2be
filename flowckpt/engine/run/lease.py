"""A run taken for a while, and given back whatever happens; for what changes a record without running anything."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import attrs

from flowckpt.core.records import CheckpointData
from flowckpt.core.system.blocking import begin, finish_despite_cancel
from flowckpt.core.system.clock import Clock
from flowckpt.errors import CheckpointNotFoundError, CheckpointStorageError, FencedError
from flowckpt.execution.interrupts import Interrupts
from flowckpt.stores.base import Lease, StoreBase
from flowckpt.stores.leases import released

T = TypeVar("T")

_MOMENT = 1.0
"""For how many seconds the end of a run waits for a store that did not take its last save."""

_log = logging.getLogger("flowckpt")


def existing(workflow_id: str, found: T | None) -> T:
    """Return what a store has found of a run: its newest checkpoint, or its description.

    Raises:
        CheckpointNotFoundError: the run does not exist.
    """
    if found is None:
        raise CheckpointNotFoundError(workflow_id)
    return found


@asynccontextmanager
async def taken(store: StoreBase, workflow_id: str) -> AsyncGenerator[Lease, None]:
    """Own a run for the block.

    Args:
        store: where it lies.
        workflow_id: the run; it need not exist.

    Raises:
        RunLockedError: another process owns it.
        CheckpointCorruptedError: its record is damaged.
    """
    lease = await finish_despite_cancel(store.acquire(workflow_id))
    try:
        yield lease
    finally:
        await finish_despite_cancel(released(store, lease), is_last=True)


async def saved_after(
    store: StoreBase, clock: Clock, lease: Lease, latest: CheckpointData, name: str, **changes: Any
) -> CheckpointData:
    """Save the newest checkpoint of a run with some changes as its next one, under a name and the number of the attempt."""
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


async def given_back(store: StoreBase, lease: Lease, *, is_away: bool = False) -> None:
    """Give a run back. If that fails, the run has ended all the same, and how must not be hidden.

    Args:
        store: where it lies.
        lease: what says that it is owned.
        is_away: whether the store did not take the last save, so that its answer is not worth a long wait.
    """
    failure: object = "it does not answer; the lease expires by itself"
    try:
        if not is_away:
            await released(store, lease)
            return
        giving = await begin(released(store, lease), patience=_MOMENT)
        if giving.done():
            giving.result()
            return
    except CheckpointStorageError as error:
        failure = error
    _log.warning("run %s: it could not be given back to the store: %s", lease.workflow_id, failure)


# The runs that this very process drives, so that they can be stopped without a signal.


_live: dict[str, list[tuple[StoreBase, Interrupts]]] = {}


@contextmanager
def known_as_live(store: StoreBase, workflow_id: str, interrupts: Interrupts) -> Iterator[None]:
    """Let a run be found for the block.

    Args:
        store: where it lies.
        workflow_id: the run.
        interrupts: what stops it.
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
    """Tell whether this process drives one run at most."""
    return sum(map(len, _live.values())) <= 1


def live_interrupts(store: object, workflow_id: str) -> Interrupts | None:
    """Return what stops a run that is driven in this process on this store, or None.

    Args:
        store: where it lies.
        workflow_id: the run.
    """
    return next((interrupts for place, interrupts in _live.get(workflow_id, ()) if place == store), None)


# The end of work for a run that another process has taken over.


def stop_when_lost(store: StoreBase, workflow_id: str, interrupts: Interrupts, *, continue_on_save_error: bool) -> None:
    """Let the store stop a run once it is lost, where it can tell; else the next save finds out.

    Args:
        store: where the run lies.
        workflow_id: the run; this process owns it.
        interrupts: what stops it.
        continue_on_save_error: whether it continues where it was removed, and has no other owner.
    """

    def tell(error: FencedError) -> None:
        if error.newest_attempt or not continue_on_save_error:
            interrupts.lose(error)

    store.call_when_lost(workflow_id, tell)
