"""The attempts of a run with everything that they recorded, including what no longer counts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import attrs

from flowckpt.core.records import CheckpointData, StepResult
from flowckpt.core.records.listing import ROLLED_BACK, CheckpointRef
from flowckpt.core.system.declared import shell_word
from flowckpt.stores.base import StoreBase
from flowckpt.stores.queries import DAMAGE

_log = logging.getLogger("flowckpt")


def warn_of_damage(workflow_id: str, attempt: int, error: Exception) -> None:
    """Warn that a superseded attempt is damaged: everything that counts can be read without it."""
    text = "run %s: attempt %d is damaged, and what it recorded beyond the current history is left out: %s"
    _log.warning(
        f"{text} ('flowckpt store repair %s' sets it aside)", workflow_id, attempt, error, shell_word(workflow_id)
    )


class Standing(StrEnum):
    """Whether a checkpoint or a result still counts.

    Attributes:
        COUNTS: it is part of the run.
        OVERWRITTEN: it is part of the run, but its id finds a later checkpoint.
        LEFT_BEHIND: a later attempt resumed from before it.
    """

    COUNTS = "counts"
    OVERWRITTEN = "overwritten"
    LEFT_BEHIND = "left_behind"


@attrs.frozen
class Attempt:
    """The record of one attempt.

    Attributes:
        number: the number of the attempt.
        last: its last checkpoint, as the attempt left it.
        checkpoints: its checkpoints, oldest first, each with its standing.
        results: the results of the steps that it executed, each with its standing.
        rolled_back_to: the checkpoint that it returned to, if it only rolled back.
    """

    number: int
    last: CheckpointData
    checkpoints: Sequence[tuple[CheckpointRef, Standing]]
    results: Sequence[tuple[StepResult, Standing]]
    rolled_back_to: Any = None


async def read_attempts(
    store: StoreBase, workflow_id: str, latest: CheckpointData, checkpoints: Sequence[CheckpointRef]
) -> list[Attempt]:
    """Return the attempts of a run, oldest first.

    Args:
        store: a store that keeps attempts.
        workflow_id: the run.
        latest: its newest checkpoint.
        checkpoints: the checkpoints that count, newest first.

    Raises:
        CheckpointCorruptedError: the record is damaged.
    """
    counting = {_identity(result) for result in latest.step_results}
    newest: dict[str, int] = {}
    for reference in reversed(checkpoints):
        newest[reference.checkpoint_id] = reference.sequence
    sequences = {reference.sequence for reference in checkpoints}

    def standing(reference: CheckpointRef) -> Standing:
        if reference.sequence not in sequences:
            return Standing.LEFT_BEHIND
        is_newest = newest[reference.checkpoint_id] == reference.sequence
        return Standing.COUNTS if is_newest else Standing.OVERWRITTEN

    attempts: list[Attempt] = []
    seen: set[tuple[Any, ...]] = set()
    for number in await store.attempts(workflow_id):
        try:
            last = latest if number == latest.attempt else await store.load_attempt(workflow_id, number)
            references = () if last is None else await store.list_attempt(workflow_id, number)
        except DAMAGE as error:
            warn_of_damage(workflow_id, number, error)
            continue
        if last is None:
            continue
        executed = [
            each
            for each in last.step_results
            if each.attempt == number
            or (not attempts and each.attempt == 0)
            # The attempt that executed it could not save it; this one continued from its memory.
            or (attempts and 0 < each.attempt < number and _identity(each) not in seen)
        ]
        seen.update(map(_identity, executed))
        attempts.append(
            Attempt(
                number,
                last,
                [(reference, standing(reference)) for reference in references],
                [(each, Standing.COUNTS if _identity(each) in counting else Standing.LEFT_BEHIND) for each in executed],
                last.metadata.get(ROLLED_BACK) if last.checkpoint_id == f"@rollback.{number}" else None,
            )
        )
    return attempts


def _identity(result: StepResult) -> tuple[Any, ...]:
    return result.path, result.attempt, result.started_at
