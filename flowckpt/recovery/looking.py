"""Looking for runs that are to be resumed: the store is asked for those that may be, and the rule picks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from flowckpt.checkpoint.recorded_waits import TAKEN
from flowckpt.checkpoint.reference import RunInfo
from flowckpt.checkpoint.wait import Wait, WaitKind
from flowckpt.clock import Clock
from flowckpt.errors import CheckpointStorageError, FlowckptError
from flowckpt.recovery.due import RECOVERED_STATUSES, DueRun, Why, why_due
from flowckpt.stores.base import CheckpointStore, DeliversSignals, ListsRuns
from flowckpt.stores.by_status import runs_of_status


async def due_runs(store: CheckpointStore, clock: Clock, *, workflows: Collection[str] = ()) -> list[DueRun]:
    """Return the runs that are to be resumed now, the one that was updated first of all first.

    Args:
        store: where they lie.
        clock: the time.
        workflows: only runs of these workflows, by name; of any where not given.

    Raises:
        SettingError: the store cannot list its runs.
        CheckpointStorageError: the medium failed.
    """
    found = []
    for info in await runs_of_status(store, RECOVERED_STATUSES):
        if workflows and info.workflow_name not in workflows:
            continue
        due = await _looked_at(store, info, clock.now())
        if due is not None:
            found.append(due)
    return sorted(found, key=lambda due: due.info.updated_at)


async def look_again(store: CheckpointStore, clock: Clock, run: DueRun) -> DueRun | None:
    """Return a run as it stands now, if it is still to be resumed and nobody has gone on with it; else None.

    Args:
        store: where it lies.
        clock: the time.
        run: the run as it stood.
    """
    if not isinstance(store, ListsRuns):
        return run
    info = await store.describe_run(run.workflow_id)
    if info is None or info.attempt != run.info.attempt or info.status not in RECOVERED_STATUSES:
        return None
    return await _looked_at(store, info, clock.now())


async def _looked_at(store: CheckpointStore, info: RunInfo, now: datetime) -> DueRun | None:
    """Look at one run. What is damaged of it is its own trouble: the other runs are looked at all the same."""
    try:
        waits = info.waits
        is_signalled = await _is_signalled(store, info, waits)
        why = why_due(info, now, waits=len(waits), due_at=info.due_at, is_signalled=is_signalled)
    except CheckpointStorageError:
        raise
    except FlowckptError as error:
        return DueRun(info, Why.DAMAGED, error.message)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return DueRun(info, Why.DAMAGED, f"its record says what cannot be: {error!r:.200}")
    return None if why is None else DueRun(info, why)


async def _is_signalled(store: CheckpointStore, info: RunInfo, waits: Sequence[Wait]) -> bool:
    """Tell whether something lies there that a wait is for."""
    if not isinstance(store, DeliversSignals) or all(wait.kind is WaitKind.SLEEP for wait in waits):
        return False
    taken = info.metadata.get(TAKEN, ())
    found = [signal for signal in await store.signals(info.workflow_id) if signal.signal_id not in taken]
    return any(signal.ends(wait) for signal in found for wait in waits)
