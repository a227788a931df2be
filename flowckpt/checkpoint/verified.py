"""Whether the evidence that a checkpoint holds was found to hold.

The answer is worked out from the results alone: each says what its claims came to when its step ended. So it needs no
value, costs nothing to keep up while results are added, is the same in every store, and stays what it was when the
checkpoint was saved. What holds *now* only a check against the world can tell (`flowckpt verify`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowckpt.checkpoint.result import StepResult


def verified_after(before: bool | None, results: Iterable[StepResult]) -> bool | None:
    """Return the answer for a history that goes on with more results.

    Args:
        before: the answer for the results before them; None for an empty history.
        results: the further results, failures included.

    Returns:
        True where the claims of every result that has any were found to hold; False where those of one were not, or
        where nobody asked; None where no result has claims.
    """
    for result in results:
        if result.evidence is not None and _has_claims(result.evidence):
            before = before is not False and result.evidence.get("outcome") == "verified"
    return before


def recorded_claims(evidence: Mapping[str, Any]) -> list[tuple[Any, Mapping[str, Any]]]:
    """Return the recorded claims of a result, each with the answer to it; what is malformed is no answer.

    Args:
        evidence: what the result says of its evidence, of any form.
    """
    pack, verdicts = evidence.get("pack"), evidence.get("verdicts")
    claims = pack.get("evidence") if isinstance(pack, Mapping) else None
    answers = verdicts if isinstance(verdicts, list | tuple) else []
    return [
        (claim, answers[index] if index < len(answers) and isinstance(answers[index], Mapping) else {})
        for index, claim in enumerate(claims if isinstance(claims, list | tuple) else [])
    ]


def _has_claims(evidence: Mapping[str, Any]) -> bool:
    pack = evidence.get("pack")
    return not isinstance(pack, Mapping) or pack.get("evidence") != []
