"""Old checkpoints of one run that go by hand: chosen, and chosen again under the ownership under which they are removed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from flowckpt.ages import age_of
from flowckpt.clock import Clock, SystemClock
from flowckpt.errors import CheckpointNotFoundError, SettingError
from flowckpt.lazy import LazyModule
from flowckpt.retention.rule import ALL_IN_THE_NEWEST, Resting, Retention, count_of, removable
from flowckpt.stores.base import CheckpointStore, OwnsRuns
from flowckpt.stores.giving_back import released
from flowckpt.stores.retention import CompactsRuns, EvictsCheckpoints, PinsCheckpoints

if TYPE_CHECKING:
    from flowckpt.checkpoint.reference import CheckpointRef
    from flowckpt.manager import record, task
else:  # an engine's run needs none of it
    record = LazyModule("flowckpt.manager.record")
    task = LazyModule("flowckpt.manager.task")


async def prune_checkpoints(
    store: CheckpointStore,
    workflow_id: str,
    *,
    keep: int | None = None,
    older_than: timedelta | float | str | None = None,
    max_bytes: int | None = None,
    is_dry_run: bool = False,
    clock: Clock | None = None,
) -> tuple[Sequence[int], int]:
    """Remove old checkpoints of one run, and make the run smaller.

    A checkpoint goes only if all that is said holds of it; where nothing is said, none goes. The newest one, the newest
    verified one and those that are pinned never go, nor what the state of a manager's task rests on.

    Args:
        store: the store.
        workflow_id: the run.
        keep: how many of the newest stay, from 1; of a manager's task, how many committed steps.
        older_than: how long ago it must have been saved: a `timedelta`, seconds, or text as `30d`.
        max_bytes: only what does not fit into so many bytes beside the newer ones, from 1.
        is_dry_run: remove nothing, and say what would go.
        clock: the time.

    Returns:
        The sequences of those that went, the oldest first, and how many bytes less the run takes.

    Raises:
        CheckpointNotFoundError: there is no such run.
        RunLockedError: somebody owns it.
        SettingError: a value is out of its range, or the store cannot remove single checkpoints.
    """
    conditions = Retention(
        keep_last=count_of(keep, "keep"),
        max_age=None if older_than is None else age_of(older_than, "older_than"),
        max_bytes=count_of(max_bytes, "max_bytes"),
    )
    now = (clock or SystemClock()).now()
    found, freed = await _to_go(store, workflow_id, conditions, now), 0
    if not isinstance(store, EvictsCheckpoints):
        raise SettingError(f"{store!r} cannot remove single checkpoints", setting="store", remedy="Clear whole runs.")
    if not is_dry_run:
        if found:
            found = await _removed(store, workflow_id, conditions, now, found)
        if isinstance(store, CompactsRuns):
            freed = (await store.compact(workflow_id, is_forced=True)).bytes_freed
    return [each.sequence for each in found], freed


async def _to_go(
    store: CheckpointStore, workflow_id: str, conditions: Retention, now: datetime
) -> Sequence[CheckpointRef]:
    references = await store.list_checkpoints(workflow_id)
    if not references:
        raise CheckpointNotFoundError(workflow_id)
    if not conditions.has_limits:
        return ()
    pinned = await store.pinned(workflow_id) if isinstance(store, PinsCheckpoints) else frozenset[int]()
    resting = await _resting_of(store, workflow_id)
    return removable(references, conditions, now, pinned=pinned, resting=resting, must_pass_all=True)


async def _resting_of(store: CheckpointStore, workflow_id: str) -> Resting:
    latest = await store.load_latest(workflow_id)
    if latest is None or not task.is_task(latest):
        return ALL_IN_THE_NEWEST
    log = await record.read_log(store, workflow_id, latest)
    return Resting(log.needed_sequences(), frozenset(step.sequence for step in log.live_steps()))


async def _removed(
    store: CheckpointStore, workflow_id: str, conditions: Retention, now: datetime, found: Sequence[CheckpointRef]
) -> Sequence[CheckpointRef]:
    """Remove checkpoints, chosen again while nobody else can change what the run rests on; return them."""
    assert isinstance(store, EvictsCheckpoints), "it was asked before"
    if not isinstance(store, OwnsRuns):
        await store.delete_sequences(workflow_id, [each.sequence for each in found])
        return found
    lease = await store.acquire(workflow_id)
    try:
        found = await _to_go(store, workflow_id, conditions, now)
        if found:
            await store.delete_sequences(workflow_id, [each.sequence for each in found])
    finally:
        await released(store, lease)
    return found
