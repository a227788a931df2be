"""What a step claims about the world, as it is yielded."""

from __future__ import annotations

from typing import Any

import attrs

from flowckpt.dsl.caller import caller
from flowckpt.errors import StepDefinitionError


@attrs.frozen(repr=False)
class ClaimedEvidence:
    """What `.evidence()` was given.

    Attributes:
        claims: claims, packs, and functions that make them of the step's result, in the order in which they were given.
        require_all: whether every claim must hold.
        min_verified: how many must hold where not all have to; None where nothing was said.
    """

    claims: tuple[Any, ...]
    require_all: bool = True
    min_verified: int | None = None


def claimed_evidence(
    name: str, claims: tuple[Any, ...], require_all: bool, min_verified: int | None
) -> ClaimedEvidence:
    """Check the arguments of `.evidence()` and return them as one value."""
    if not claims:
        raise StepDefinitionError(
            f"step {name!r}: .evidence() is given no claim",
            step=name,
            where=caller(),
            remedy='Give it claims: .evidence(file_sha256("rows.csv")), or a function of the result that returns some.',
        )
    for claim in claims:
        if not (hasattr(claim, "evidence_type") or hasattr(claim, "evidence_list") or callable(claim)):
            raise StepDefinitionError(
                f"step {name!r}: .evidence() takes claims and functions that make them, got {claim!r:.80} "
                f"({type(claim).__name__})",
                step=name,
                where=caller(),
                remedy="Use the constructors of flowckpt.evidence, and no list around them.",
            )
    if type(require_all) is not bool:
        raise StepDefinitionError(
            f"step {name!r}: .evidence(require_all={require_all!r}) must be True or False", step=name, where=caller()
        )
    if min_verified is not None and (type(min_verified) is not int or min_verified < 1):
        raise StepDefinitionError(
            f"step {name!r}: .evidence(min_verified={min_verified!r}) must be a whole number from 1",
            step=name,
            where=caller(),
            remedy="It counts the claims that must hold, where not all have to.",
        )
    if min_verified is not None and min_verified > len(claims) and not any(callable(claim) for claim in claims):
        raise StepDefinitionError(
            f"step {name!r}: .evidence(min_verified={min_verified}) with only {len(claims)} claims could never hold",
            step=name,
            where=caller(),
            remedy="Add claims, or ask for fewer.",
        )
    has_pack = any(hasattr(claim, "evidence_list") for claim in claims)
    if has_pack and (len(claims) > 1 or not require_all or min_verified is not None):
        raise StepDefinitionError(
            f"step {name!r}: .evidence() is given a pack and something beside it",
            step=name,
            where=caller(),
            remedy="A pack has its own policy and all its claims: give it alone.",
        )
    return ClaimedEvidence(claims, require_all, min_verified)
