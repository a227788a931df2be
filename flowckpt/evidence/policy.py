"""When a pack holds: pure functions of its policy and of the answers to its claims.

- An empty pack is no evidence. It is never verified.
- Without partial success every claim must hold; with it, `min_verified` of them, and at least one.
- A claim that could not be checked does not hold.
- Claims that are not checked again (transient ones, at a resume) count neither way.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowckpt.evidence.model import EvidencePack
from flowckpt.evidence.verdict import PackOutcome, VerdictStatus


def needed(pack: EvidencePack, counted: int) -> int:
    """Return how many of the counted claims must hold; at least one.

    Args:
        pack: the pack.
        counted: how many of its claims were checked.
    """
    if pack.require_all and not pack.allow_partial:
        return max(1, counted)
    return max(1, min(pack.min_verified, counted))


def decide(pack: EvidencePack, answers: Sequence[VerdictStatus]) -> tuple[PackOutcome, str]:
    """Return the answer to a pack, and why.

    Args:
        pack: the pack.
        answers: the answers to its claims, in their order.
    """
    if not answers:
        return PackOutcome.NO_EVIDENCE, "there is no evidence"
    counted = [answer for answer in answers if answer is not VerdictStatus.NOT_RECHECKED]
    if not counted:
        return PackOutcome.NO_EVIDENCE, f"all {len(answers)} claims were to be true at the commit only"
    minimum = needed(pack, len(counted))
    verified, failed = counted.count(VerdictStatus.VERIFIED), counted.count(VerdictStatus.FAILED)
    said = f"{verified} of {len(counted)} claims hold, {minimum} must"
    if verified >= minimum:
        return PackOutcome.VERIFIED, said
    if len(counted) - failed >= minimum:
        return PackOutcome.CANNOT_TELL, f"{said}; {len(counted) - verified - failed} could not be checked"
    return PackOutcome.FAILED, said
