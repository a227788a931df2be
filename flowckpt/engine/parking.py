"""A run that keeps dying at the same step is parked: what its record says, read from a store."""

from __future__ import annotations

from flowckpt.checkpoint import CheckpointData, Status
from flowckpt.errors import RunParkedError
from flowckpt.plan.limits import MAX_DEATHS
from flowckpt.plan.parking import KEY, Deaths, deaths_of, limit_of
from flowckpt.stores.base import CheckpointStore, Lease, ListsAttempts, NotesBeginnings, OwnsRuns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flowckpt.checkpoint import RunInfo


async def deaths_at_resume(store: CheckpointStore, lease: Lease, latest: CheckpointData) -> Deaths:
    """Return how often a run that was just taken over has died where it died last.

    Args:
        store: where it lies.
        lease: what says which attempt begins now.
        latest: its newest checkpoint.
    """
    silent = 0
    between = range(latest.attempt + 1, lease.attempt)
    if between and isinstance(store, ListsAttempts):  # those that only deleted checkpoints have written something
        silent = len(between) - sum(number in between for number in await store.attempts(lease.workflow_id))
    return deaths_of(latest, await _begun(store, lease.workflow_id, latest), silent=silent)


async def parked(store: CheckpointStore, info: RunInfo, *, max_deaths: int = MAX_DEATHS) -> Deaths | None:
    """Return how often a run has died where it died last, if it is parked; None where a resume would begin.

    Most runs need no look into the store: their description says enough.

    Args:
        store: where it lies.
        info: the run, as the store lists it.
        max_deaths: how often a run may die at one step, where its record does not say.
    """
    most, said = limit_of(info.metadata, default=max_deaths), info.metadata.get(KEY)
    before = 0 if said is None else said["count"]
    if info.status is not Status.CRASHED or not 0 < most <= before + 1 or (said and info.steps > said["results"]):
        return None
    latest = await store.load_latest(info.workflow_id)
    return None if latest is None else await parked_at(store, info.workflow_id, latest, most=most)


async def parked_at(store: CheckpointStore, workflow_id: str, latest: CheckpointData, *, most: int) -> Deaths | None:
    """Return how often a run has died where it died last, if it is parked.

    Args:
        store: where it lies.
        workflow_id: the run.
        latest: its newest checkpoint.
        most: how often a run may die at one step; 0 for no limit.
    """
    if latest.status is not Status.RUNNING:
        return None
    found = deaths_of(latest, await _begun(store, workflow_id, latest))
    if not found.is_parked(most):
        return None
    is_alive = isinstance(store, OwnsRuns) and await store.owner(workflow_id) is not None
    return None if is_alive else found


def parked_error(workflow_id: str, deaths: Deaths) -> RunParkedError:
    """Return the error of a resume of a parked run.

    Args:
        workflow_id: the run.
        deaths: how often it died.
    """
    return RunParkedError(
        workflow_id, path=deaths.path, count=deaths.count, since=deaths.since, candidates=deaths.paths
    )


async def _begun(store: CheckpointStore, workflow_id: str, latest: CheckpointData) -> tuple[str, ...]:
    if not isinstance(store, NotesBeginnings):
        return ()
    attempt, paths = await store.begun_steps(workflow_id)
    return paths if attempt == latest.attempt else ()
