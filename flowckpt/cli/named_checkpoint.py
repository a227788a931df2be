"""A checkpoint as it is typed: `RUN`, or `RUN@CHECKPOINT`."""

from __future__ import annotations

import attrs

from flowckpt.checkpoint import CheckpointData
from flowckpt.cli.stored_runs import waited
from flowckpt.codec import Json
from flowckpt.engine.earlier import any_checkpoint
from flowckpt.errors import CheckpointNotFoundError
from flowckpt.stores.base import CheckpointStore


@attrs.frozen
class NamedCheckpoint:
    """A checkpoint and the run that it is of.

    Attributes:
        workflow_id: the run.
        data: the checkpoint.
    """

    workflow_id: str
    data: CheckpointData

    def to_document(self) -> Json:
        """Return what says which it is, as plain JSON."""
        data = self.data
        return {
            "workflow_id": self.workflow_id,
            "workflow_name": data.workflow_name,
            "checkpoint_id": data.checkpoint_id,
            "sequence": data.sequence,
            "attempt": data.attempt,
        }


def named_checkpoint(store: CheckpointStore, text: str) -> NamedCheckpoint:
    """Find a checkpoint.

    Args:
        store: where its run lies.
        text: the id of a run, for its newest checkpoint; or that, an `@`, and a checkpoint's id or sequence. An `@` in
            an id of a run is part of it: the shortest id that there is counts, and one that is all the text first.

    Raises:
        CheckpointNotFoundError: there is no such run or checkpoint.
    """
    return waited(_found(store, text))


async def _found(store: CheckpointStore, text: str) -> NamedCheckpoint:
    if (latest := await store.load_latest(text)) is not None:
        return NamedCheckpoint(text, latest)
    at = text.find("@", 1)
    first = text[:at] if at > 0 else text
    while at > 0:
        run, wanted = text[:at], text[at + 1 :]
        if wanted and (latest := await store.load_latest(run)) is not None:
            return NamedCheckpoint(run, await any_checkpoint(store, run, latest, wanted))
        at = text.find("@", at + 1)
    raise CheckpointNotFoundError(first)
