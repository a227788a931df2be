"""An earlier checkpoint of a run, found by its id or by its sequence."""

from __future__ import annotations

import attrs

from flowckpt.checkpoint import CheckpointData, Reason
from flowckpt.checkpoint.data import STATUS_OF_REASON
from flowckpt.codec.results import as_view
from flowckpt.errors import CheckpointNotFoundError
from flowckpt.stores.base import CheckpointStore


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
        raise CheckpointNotFoundError(workflow_id, wanted)
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
