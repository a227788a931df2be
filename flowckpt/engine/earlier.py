"""A checkpoint of a run, found by its id or by its sequence: one that counts, or one that was left behind."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from flowckpt.checkpoint import CheckpointData, Reason
from flowckpt.checkpoint.data import STATUS_OF_REASON
from flowckpt.checkpoint.reference import CheckpointRef
from flowckpt.codec.results import as_view
from flowckpt.errors import CheckpointNotFoundError, shell_word
from flowckpt.stores.base import CheckpointStore, ListsAttempts, ReadsAttempts


async def earlier_checkpoint(
    store: CheckpointStore, workflow_id: str, latest: CheckpointData, wanted: str
) -> CheckpointData:
    """Return a checkpoint that counts.

    Args:
        store: where the run lies.
        workflow_id: the run.
        latest: its newest checkpoint.
        wanted: the id, whose newest is meant; or, where no id is so, the sequence in digits. A sequence finds a
            checkpoint whose id was used again, too.

    Raises:
        CheckpointNotFoundError: there is no such checkpoint.
    """
    references = await store.list_checkpoints(workflow_id)
    if any(each.checkpoint_id == wanted for each in references):
        return await store.load(workflow_id, wanted)
    found = next((each for each in references if str(each.sequence) == wanted), None)
    if found is None:
        if _named(await left_behind(store, workflow_id), wanted) is None:
            raise CheckpointNotFoundError(workflow_id, wanted)
        raise CheckpointNotFoundError(
            workflow_id,
            wanted,
            detail="not any more: it was left behind, and a run only goes back to what counts",
            remedy=f"See 'flowckpt show {shell_word(workflow_id)} --history'. A new run can start from it: "
            f"'flowckpt fork {shell_word(workflow_id)} --checkpoint {shell_word(wanted)}'.",
        )
    data = await store.load(workflow_id, found.checkpoint_id)
    if data.sequence == found.sequence:
        return data
    if found.reason is Reason.FAILED:  # how it failed is written only in the checkpoint itself
        raise CheckpointNotFoundError(workflow_id, wanted, detail="a later one of the same id has taken its place")
    # Its id was used again. All checkpoints that count share one history, so its results are at hand.
    return attrs.evolve(
        latest,
        checkpoint_id=found.checkpoint_id,
        step_results=as_view(latest.step_results).history.view(found.steps),
        saved_at=found.saved_at,
        sequence=found.sequence,
        attempt=found.attempt,
        reason=found.reason,
        status=STATUS_OF_REASON[found.reason],
        evidence=(),
        in_flight=(),
        snapshot=None,
        output=None,
        error=None,
    )


async def any_checkpoint(
    store: CheckpointStore, workflow_id: str, latest: CheckpointData, wanted: str
) -> CheckpointData:
    """Return a checkpoint to look at or to start anew from: one that counts, else one that was left behind.

    Args:
        store: where the run lies.
        workflow_id: the run.
        latest: its newest checkpoint.
        wanted: as for `earlier_checkpoint`. Of those left behind, the newest of that id is meant; each has a sequence of
            its own.

    Raises:
        CheckpointNotFoundError: there is no such checkpoint.
    """
    try:
        return await earlier_checkpoint(store, workflow_id, latest, wanted)
    except CheckpointNotFoundError:
        found = _named(await left_behind(store, workflow_id), wanted)
        if found is None or not isinstance(store, ReadsAttempts):
            raise
    for data in await store.read_attempt(workflow_id, found.attempt):
        if data.sequence == found.sequence:
            return data
    raise CheckpointNotFoundError(workflow_id, wanted)


async def left_behind(store: CheckpointStore, workflow_id: str) -> list[CheckpointRef]:
    """Return the checkpoints that no longer count, because a later attempt went on from before them; the oldest first.

    Args:
        store: where the run lies; one that cannot tell has none.
        workflow_id: the run.

    Raises:
        CheckpointCorruptedError: the record is damaged.
    """
    if not isinstance(store, ListsAttempts):
        return []
    counting = {(each.attempt, each.sequence) for each in await store.list_checkpoints(workflow_id)}
    parts: list[list[CheckpointRef]] = []
    bound: int | None = None
    for attempt in reversed(await store.attempts(workflow_id)):
        # What a fenced writer appended when its successor had read the run was never acknowledged.
        part = [
            each
            for each in await store.list_attempt(workflow_id, attempt)
            if each.attempt == attempt and (bound is None or each.sequence < bound)
        ]
        if part:
            bound = part[0].sequence
            parts.append([each for each in part if (each.attempt, each.sequence) not in counting])
    return [each for part in reversed(parts) for each in part]


def _named(references: Sequence[CheckpointRef], wanted: str) -> CheckpointRef | None:
    newest = references[::-1]
    by_id = (each for each in newest if each.checkpoint_id == wanted)
    return next(by_id, None) or next((each for each in newest if str(each.sequence) == wanted), None)
