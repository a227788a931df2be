"""A run comes into a store: refused where another one has its id, and found to be there where it is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flowckpt.blocking import finish_despite_cancel
from flowckpt.checkpoint import CheckpointData
from flowckpt.errors import RunExistsError, StoreAbilityError
from flowckpt.portable.gathering import gathered
from flowckpt.portable.writing import identity_of
from flowckpt.stores.base import CheckpointStore, OwnsRuns, ReceivesRuns
from flowckpt.stores.giving_back import released


async def brought_in(
    store: CheckpointStore, workflow_id: str, identity: str, checkpoints: Callable[[], Iterable[CheckpointData]]
) -> bool:
    """Let a store take a run in; tell whether it is new there.

    Args:
        store: the store.
        workflow_id: the id that the run is to have there.
        identity: what `identity_of` says of the run.
        checkpoints: returns its checkpoints afresh.

    Raises:
        RunExistsError: another run has the id, or the same one that has gone on there.
        RunLockedError: another process is about to begin it.
        StoreAbilityError: the store cannot take a run in at once.
        CheckpointStorageError: the store failed.
    """
    if not isinstance(store, ReceivesRuns):
        raise StoreAbilityError(repr(store), ability="ReceivesRuns", purpose="take in a whole run")
    if await _is_there(store, workflow_id, identity):
        return False
    try:
        await finish_despite_cancel(store.receive_run(workflow_id, checkpoints))
    except RunExistsError:  # another process brought it meanwhile
        if await _is_there(store, workflow_id, identity):
            return False
        raise _taken(workflow_id) from None
    return True


async def _is_there(store: CheckpointStore, workflow_id: str, identity: str) -> bool:
    if await store.load_latest(workflow_id) is None:
        return False
    there = await gathered(store, workflow_id)
    if identity_of(workflow_id, there.checkpoints) != identity:
        raise _taken(workflow_id)
    if isinstance(store, OwnsRuns) and there.owner is None:
        # Whoever brought it may have died before its name was on the disk: a claim puts it there, and leaves no trace.
        lease = await finish_despite_cancel(store.acquire(workflow_id))
        await finish_despite_cancel(released(store, lease))
    return True


def _taken(workflow_id: str) -> RunExistsError:
    """Return the error with advice that can hurt neither run: both may have the id, each in its own store."""
    return RunExistsError(
        workflow_id,
        remedy="Another run has that id where this one was to go, or the same run has gone on there; it stays as it is. "
        "Give the one that comes another id: --id NEW.",
    )
