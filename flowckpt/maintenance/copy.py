"""Copying a run from one store to another."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from flowckpt.core.codec import Json
from flowckpt.core.records import CheckpointData
from flowckpt.core.records.listing import Owner
from flowckpt.core.system.blocking import finish_despite_cancel
from flowckpt.core.system.ids import check_new_id
from flowckpt.errors import RunExistsError
from flowckpt.maintenance.export import identity_of, read_whole_run
from flowckpt.stores.adapted import CheckpointStore, adapt
from flowckpt.stores.base import Ability, StoreBase
from flowckpt.stores.leases import release_lease

# Storing a whole run: refused if another run has its id, and a no-op if the identical run exists.


async def store_run(
    store: StoreBase, workflow_id: str, identity: str, checkpoints: Callable[[], Iterable[CheckpointData]]
) -> bool:
    """Store a whole run; return whether it is new there.

    Raises:
        RunExistsError: another run has the id, or the same one that has continued there.
        RunLockedError: another process is about to begin it.
        StoreAbilityError: the store cannot receive whole runs.
        CheckpointStorageError: the store failed.
    """
    if not store.has(Ability.RECEIVE):
        store.lacks(Ability.RECEIVE, "receive a whole run")
    if await _is_stored(store, workflow_id, identity):
        return False
    try:
        await finish_despite_cancel(store.receive_run(workflow_id, checkpoints), is_last=True)
    except RunExistsError:  # another process stored it meanwhile
        if await _is_stored(store, workflow_id, identity):
            return False
        raise _run_exists_error(workflow_id) from None
    return True


async def _is_stored(store: StoreBase, workflow_id: str, identity: str) -> bool:
    if await store.load_latest(workflow_id) is None:
        return False
    stored = await read_whole_run(store, workflow_id)
    if identity_of(workflow_id, stored.checkpoints) != identity:
        raise _run_exists_error(workflow_id)
    if stored.owner is None:
        # Its writer may have died before the name was on the disk: a claim syncs it, and leaves no trace.
        lease = await finish_despite_cancel(store.acquire(workflow_id))
        await finish_despite_cancel(release_lease(store, lease), is_last=True)
    return True


def _run_exists_error(workflow_id: str) -> RunExistsError:
    """Return the error with advice that is safe for both runs."""
    return RunExistsError(
        workflow_id,
        remedy="Another run has that id in the target, or the same run has continued there; it was not changed. "
        "Choose another id for the copy: --id NEW.",
    )


@attrs.frozen
class CopiedRun:
    """A copied run.

    Attributes:
        workflow_id: its id in the target.
        source_id: its id in the source.
        attempts: the number of attempts that saved something.
        checkpoints: the number of checkpoints.
        left_behind: how many of these no longer count.
        steps: the number of results in its newest checkpoint.
        is_new: whether it was copied now; False if the identical run already existed.
        owner: the process that ran it in the source during the copy, or None.
    """

    workflow_id: str
    source_id: str
    attempts: int
    checkpoints: int
    steps: int
    is_new: bool
    owner: Owner | None = None
    left_behind: int = 0

    def to_document(self) -> dict[str, Json]:
        """Return it as plain JSON: an item of `flowckpt copy --json`."""
        document = attrs.asdict(self, filter=lambda attribute, _: attribute.name != "owner")
        return {**document, "is_live": self.owner is not None}


async def copy_run(
    source: CheckpointStore, target: CheckpointStore, workflow_id: str, *, new_id: str | None = None
) -> CopiedRun:
    """Copy a whole run into another store: all attempts, checkpoints, results and large values, unchanged.

    The source is only read. The copy is independent, so resuming both runs the steps twice. An interrupted copy leaves
    nothing, and repeating a copy finds the existing one.

    Args:
        source: the store of the run.
        target: the other store.
        workflow_id: the run.
        new_id: its id in the target; the same by default.

    Raises:
        InputError: the new id is invalid.
        CheckpointNotFoundError: the run does not exist.
        CheckpointCorruptedError: a record is damaged.
        RunExistsError: another run has the id in the target, or the same run continued there.
        RunLockedError: another process is about to start it there.
        StoreAbilityError: the source cannot read whole runs, or the target cannot receive them.
        CheckpointStorageError: a store failed.
    """
    source = adapt(source)
    target = adapt(target)
    target_id = workflow_id if new_id is None else check_new_id(new_id)
    run = await read_whole_run(source, workflow_id)
    is_new = await store_run(target, target_id, identity_of(workflow_id, run.checkpoints), run.copy_checkpoints)
    return CopiedRun(target_id, workflow_id, is_new=is_new, **run.facts)
