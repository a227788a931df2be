"""Going back: the next resume continues from an earlier checkpoint.

Nothing is rewritten. A new attempt saves one checkpoint whose history is the shorter one; what an earlier attempt saved
behind it stays in the store, and counts no more. So a crash leaves the run either as it was, or gone back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from flowckpt.core.codec.results import as_view
from flowckpt.core.records import CheckpointData, Reason, Status, StepResult
from flowckpt.core.records.listing import IMPORTED, ROLLED_BACK, refuse_task
from flowckpt.core.system.blocking import finish_despite_cancel
from flowckpt.core.system.clock import Clock
from flowckpt.engine.history.checkpoints import Rechecking as Rechecking  # noqa: PLC0414 - for the engine
from flowckpt.engine.history.checkpoints import earlier_checkpoint
from flowckpt.engine.rules.paths import ROLLBACK, failures_behind, step_of, undone_in_races, undone_paths
from flowckpt.engine.run.lease import taken
from flowckpt.engine.run.resumption import without_reusable
from flowckpt.engine.values.superseded import Superseded
from flowckpt.engine.values.waits import waits_after_rollback
from flowckpt.errors import CheckpointNotFoundError, StaleCheckpointError
from flowckpt.stores.base import StoreBase


@attrs.frozen
class RolledBack:
    """The outcome of a rollback.

    Attributes:
        checkpoint_id: the checkpoint it went back to.
        sequence: the sequence of that checkpoint.
        steps: the number of results that count now.
        dropped: the paths of the results that no longer count.
        attempt: the attempt that went back.
        is_new: whether anything was saved; False if the run was already there.
    """

    workflow_id: str
    checkpoint_id: str
    sequence: int
    steps: int
    dropped: tuple[str, ...]
    attempt: int
    is_new: bool

    def to_document(self) -> dict[str, Any]:
        """Return it as plain JSON: what `rollback --json` prints."""
        return {**attrs.asdict(self), "dropped": list(self.dropped)}


async def roll_back(
    store: StoreBase,
    clock: Clock,
    workflow_id: str,
    checkpoint_id: str,
    rechecking: Rechecking,
) -> RolledBack:
    """Make an earlier checkpoint the one to resume from.

    Args:
        store: where the run lies.
        clock: the time.
        workflow_id: the run.
        checkpoint_id: the checkpoint: its id, whose newest is meant, or its sequence in digits.
        rechecking: checks its evidence.

    Raises:
        CheckpointNotFoundError: there is no such run or checkpoint.
        RunLockedError: another process owns the run.
        StaleCheckpointError: results up to the checkpoint are no longer true; nothing was changed.
        CheckpointStorageError: the store failed.
    """
    async with taken(store, workflow_id) as lease:
        latest = lease.latest
        if latest is None:
            raise CheckpointNotFoundError(workflow_id)
        refuse_task(workflow_id, latest)
        target = await earlier_checkpoint(store, workflow_id, latest, checkpoint_id)
        view = as_view(latest.step_results)
        length = standing_length(view, length_to_go_on_from(target))
        dropped = view[length:]
        moved, answers = await rechecking.moved(target, target.step_results[:length], base=latest)
        if moved:
            raise StaleCheckpointError(workflow_id, target.checkpoint_id, reasons=moved)
        place: dict[str, Any] = {"checkpoint_id": target.checkpoint_id, "sequence": target.sequence}
        is_there = latest.reason is Reason.MANUAL and latest.metadata.get(ROLLED_BACK) == place and not dropped
        if is_there or target.sequence == latest.sequence:
            return RolledBack(workflow_id, **place, steps=length, dropped=(), attempt=latest.attempt, is_new=False)
        (superseded := Superseded(latest.metadata)).add(dropped)
        kept = rechecking.options.written_to(without_reusable(latest.metadata))
        metadata = _held(superseded.written_to(kept), target)
        data = attrs.evolve(
            latest,
            checkpoint_id=f"@rollback.{lease.attempt}",
            step_results=(view.history.forked(length) if dropped else view.history).view(length),
            saved_at=clock.now(),
            sequence=lease.last_sequence + 1,
            attempt=lease.attempt,
            reason=Reason.MANUAL,
            status=Status.SUSPENDED,
            evidence=answers,
            snapshot=target.held_snapshot,
            partial=target.partial,
            metadata={**waits_after_rollback(metadata, target.metadata, dropped), ROLLED_BACK: place},
            output=None,
            error=None,
        )
        await finish_despite_cancel(store.save(workflow_id, data))
    paths = tuple(result.path for result in dropped)
    return RolledBack(workflow_id, target.checkpoint_id, target.sequence, length, paths, data.attempt, is_new=True)


def _held(metadata: Mapping[str, Any], target: CheckpointData) -> dict[str, Any]:
    """Return metadata with the mark of an import if the checkpoint has it: its answers count no more than before."""
    return {**metadata, IMPORTED: target.metadata[IMPORTED]} if IMPORTED in target.metadata else {**metadata}


def standing_length(results: Sequence[StepResult], length: int) -> int:
    """Return how many results still stand: what was undone when the run failed ends them.

    Args:
        results: the newest history of the run.
        length: how many of them are looked at.
    """
    standing = results[:length]
    of_races = undone_in_races(standing)
    undone = undone_paths(results) - (undone_paths(standing) & of_races.keys())
    stop = (
        i
        for i, each in enumerate(standing)
        if each.path in undone or (each.step_type == ROLLBACK and step_of(each.path) not in of_races)
    )
    return next(stop, length)


def length_to_go_on_from(data: CheckpointData) -> int:
    """Return how many results of a checkpoint a resume keeps: a failure that ended the run is not one of them.

    Args:
        data: the checkpoint.
    """
    results = data.step_results
    if data.status is Status.FAILED and data.error is not None and data.error.path:
        failed = set(failures_behind(results, data.error.path))
        return next((index for index, result in enumerate(results) if result.path in failed), len(results))
    return len(results)
