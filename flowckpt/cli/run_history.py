"""All that a run ever recorded, attempt by attempt: also what no longer counts."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import attrs
import click

from flowckpt.checkpoint import CheckpointData, StepResult
from flowckpt.checkpoint.reference import CheckpointRef
from flowckpt.cli.documents import checkpoint_document, step_document
from flowckpt.cli.stored_runs import StoredRun, waited
from flowckpt.codec import Json, encode
from flowckpt.codec.results import encode_time
from flowckpt.engine.rollback import KEY as ROLLED_BACK
from flowckpt.stores.base import CheckpointStore, KeepsAttempts, ListsAttempts


class Standing(StrEnum):
    """What became of a checkpoint or a result."""

    COUNTS = "counts"
    """It is part of the run."""
    OVERWRITTEN = "overwritten"
    """It is part of the run, and a later checkpoint of the same id is the one that the id finds."""
    LEFT_BEHIND = "left_behind"
    """A later attempt went on from before it."""


@attrs.frozen
class Attempt:
    """What one attempt recorded.

    Attributes:
        number: which attempt.
        last: its last checkpoint, as it left it.
        checkpoints: its checkpoints, oldest first, each with what became of it.
        results: the results of the steps that it executed, likewise.
        rolled_back_to: the checkpoint that it went back to, where that is all that it did.
    """

    number: int
    last: CheckpointData
    checkpoints: Sequence[tuple[CheckpointRef, Standing]]
    results: Sequence[tuple[StepResult, Standing]]
    rolled_back_to: Any = None

    def to_document(self) -> Json:
        """Return the attempt: one item of `history` in `show --history --json`."""
        return {
            "attempt": self.number,
            "status": self.last.status.value,
            "updated_at": encode_time(self.last.saved_at),
            "rolled_back_to": encode(self.rolled_back_to),
            "checkpoints": [_checkpoint(*each) for each in self.checkpoints],
            "results": [{**step_document(result), "standing": str(standing)} for result, standing in self.results],
        }


def run_history(store: CheckpointStore, workflow_id: str, run: StoredRun) -> list[Attempt]:
    """Return the attempts of a run, the first one first.

    Args:
        store: where it lies.
        workflow_id: the run.
        run: what counts of it.

    Raises:
        click.UsageError: the store keeps nothing but what counts.
        CheckpointCorruptedError: its record is damaged.
    """
    if not isinstance(store, KeepsAttempts):
        raise click.UsageError(f"{store!r} keeps nothing but what counts, so there is no history to show")
    return waited(_history(store, workflow_id, run))


async def _history(store: KeepsAttempts, workflow_id: str, run: StoredRun) -> list[Attempt]:
    counting = {_identity(result) for result in run.latest.step_results}
    newest: dict[str, int] = {}
    for reference in reversed(run.checkpoints):
        newest[reference.checkpoint_id] = reference.sequence
    sequences = {reference.sequence for reference in run.checkpoints}

    def standing(reference: CheckpointRef) -> Standing:
        if reference.sequence not in sequences:
            return Standing.LEFT_BEHIND
        is_newest = newest[reference.checkpoint_id] == reference.sequence
        return Standing.COUNTS if is_newest else Standing.OVERWRITTEN

    found: list[Attempt] = []
    shown: set[tuple[Any, ...]] = set()
    numbers: Sequence[int] = range(1, run.latest.attempt + 1)
    if isinstance(store, ListsAttempts):
        numbers = await store.attempts(workflow_id)
    for number in numbers:
        last = await store.load_attempt(workflow_id, number)
        if last is None:
            continue
        references = [CheckpointRef.of(workflow_id, last)]  # of a store that cannot list the others
        if isinstance(store, ListsAttempts):
            references = list(await store.list_attempt(workflow_id, number))
        made = [
            each
            for each in last.step_results
            if each.attempt == number
            or (not found and each.attempt == 0)
            # An attempt that could not save it any more went on as this one.
            or (found and 0 < each.attempt < number and _identity(each) not in shown)
        ]
        shown.update(map(_identity, made))
        found.append(
            Attempt(
                number,
                last,
                [(reference, standing(reference)) for reference in references],
                [(each, Standing.COUNTS if _identity(each) in counting else Standing.LEFT_BEHIND) for each in made],
                last.metadata.get(ROLLED_BACK) if last.checkpoint_id == f"@rollback.{number}" else None,
            )
        )
    return found


def _identity(result: StepResult) -> tuple[Any, ...]:
    return result.path, result.attempt, result.started_at


def _checkpoint(reference: CheckpointRef, standing: Standing) -> Json:
    return {**checkpoint_document(reference), "steps": reference.steps, "standing": str(standing)}
