"""Whether the evidence of each checkpoint held when its results were recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flowckpt.checkpoint import StepResult
from flowckpt.checkpoint.reference import CheckpointRef


def verified_checkpoints(results: Sequence[StepResult], checkpoints: Iterable[CheckpointRef]) -> dict[int, bool | None]:
    """Return by sequence whether all evidence up to a checkpoint held when it was recorded.

    None where no result up to there has evidence, or where the checkpoint does not hold these results.

    Args:
        results: the results of the newest checkpoint.
        checkpoints: the checkpoints that it continues.
    """
    answers = _answers(results)
    newest_attempts = [0]
    for result in results:
        newest_attempts.append(max(newest_attempts[-1], result.attempt))
    return {
        reference.sequence: answers[reference.steps]
        if reference.steps < len(answers) and newest_attempts[reference.steps] <= reference.attempt
        else None
        for reference in checkpoints
    }


def _answers(results: Sequence[StepResult]) -> list[bool | None]:
    """Return the answer after each number of results, none of them included."""
    answers: list[bool | None] = [None]
    for result in results:
        answer = answers[-1]
        if result.evidence is not None:
            answer = answer is not False and result.evidence.get("outcome") == "verified"
        answers.append(answer)
    return answers
