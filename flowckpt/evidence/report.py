"""Verdicts on single claims, and reports on packs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

import attrs

from flowckpt.evidence.claims import Evidence, EvidencePack, redact_text


class Moment(StrEnum):
    """When a claim is checked, which decides how its verdict counts."""

    NOW = "now"
    """A step commits, or a check was requested: every claim is checked."""
    RESUME = "resume"
    """Before a recorded result is reused: transient claims are not checked again."""
    IN_DOUBT = "in_doubt"
    """A step has a recorded start and no end: a partial effect proves nothing."""


class VerdictStatus(StrEnum):
    """The verdict on a claim. Only `verified` means yes, and only `failed` means no."""

    VERIFIED = "verified"
    FAILED = "failed"
    UNCAPTURED = "uncaptured"
    MALFORMED = "malformed"
    REFUSED = "refused"
    CANNOT_CHECK = "cannot_check"
    TIMED_OUT = "timed_out"
    DISAGREEMENT = "disagreement"
    NOT_RECHECKED = "not_rechecked"


class PackOutcome(StrEnum):
    """The answer to a pack."""

    VERIFIED = "verified"
    FAILED = "failed"
    """It does not hold, whatever the unchecked claims would have shown."""
    CANNOT_TELL = "cannot_tell"
    """It is not verified, but would be if the claims that could not be checked held."""
    NO_EVIDENCE = "no_evidence"
    """There was nothing to check, which never counts as verified."""


@attrs.frozen
class Verdict:
    """The answer to one claim.

    Attributes:
        status: the answer.
        error: why it is not verified, in one sentence; None if it is.
        verified_at: when it was checked, aware and in UTC.
        details: what differs, leaf by leaf.
        method: how it was checked, if there are several ways: `stat`, `hash`, `captured`, `quorum`.
        duration_ms: how long the check took, together with the claims that were checked at the same time.
    """

    evidence: Evidence
    status: VerdictStatus
    error: str | None
    verified_at: datetime
    details: tuple[str, ...] = ()
    method: str = ""
    duration_ms: float = attrs.field(default=0.0, eq=False, repr=False)

    @property
    def verified(self) -> bool:
        """Whether the claim holds."""
        return self.status is VerdictStatus.VERIFIED

    def __bool__(self) -> bool:
        return self.verified

    @property
    def is_against(self) -> bool:
        """Whether it prevents its pack from holding; False also for a claim that is not checked again."""
        return self.status not in (VerdictStatus.VERIFIED, VerdictStatus.NOT_RECHECKED)

    @property
    def can_tell(self) -> bool:
        """Whether the check found an answer, yes or no."""
        return self.status in (VerdictStatus.VERIFIED, VerdictStatus.FAILED)

    def to_document(self) -> dict[str, Any]:
        """Return the verdict as plain JSON without secrets."""
        document: dict[str, Any] = {
            "evidence_type": str(self.evidence.evidence_type),
            "description": redact_text(self.evidence.description),
            "verified": self.verified,
            "status": str(self.status),
            "error": self.error,
            "verified_at": self.verified_at.isoformat().replace("+00:00", "Z"),
        }
        if self.details:
            document["details"] = list(self.details)
        if self.method:
            document["method"] = self.method
        return document


@attrs.frozen
class VerificationReport:
    """The answer to a pack.

    Attributes:
        outcome: the answer to the pack.
        verdicts: the answers to its claims, in their order.
        reason: why, in one sentence.
    """

    outcome: PackOutcome
    verdicts: Sequence[Verdict]
    reason: str

    @property
    def verified(self) -> bool:
        """Whether the pack holds; an empty pack does not."""
        return self.outcome is PackOutcome.VERIFIED

    def __bool__(self) -> bool:
        return self.verified

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of claims by answer: `total`, `verified`, `failed`, `not_rechecked`, `cannot_tell`."""
        found = [verdict.status for verdict in self.verdicts]
        verified, failed = found.count(VerdictStatus.VERIFIED), found.count(VerdictStatus.FAILED)
        skipped = found.count(VerdictStatus.NOT_RECHECKED)
        return {
            "total": len(found),
            "verified": verified,
            "failed": failed,
            "not_rechecked": skipped,
            "cannot_tell": len(found) - verified - failed - skipped,
        }

    @property
    def answers(self) -> list[tuple[str, str]]:
        """The kind and the answer of each claim that was checked."""
        asked = (each for each in self.verdicts if each.status is not VerdictStatus.NOT_RECHECKED)
        return [(str(each.evidence.evidence_type), str(each.status)) for each in asked]

    @property
    def total(self) -> int:
        """The number of claims."""
        return len(self.verdicts)

    @property
    def verified_count(self) -> int:
        """The number of claims that hold."""
        return self.counts["verified"]

    @property
    def failed_count(self) -> int:
        """The number of claims that do not hold."""
        return self.counts["failed"]

    def to_document(self) -> dict[str, Any]:
        """Return the report as plain JSON without secrets."""
        return {
            "verified": self.verified,
            "outcome": str(self.outcome),
            "reason": self.reason,
            "counts": dict(self.counts),
            "verdicts": [verdict.to_document() for verdict in self.verdicts],
        }


# When a pack holds: pure functions of its policy and of the verdicts on its claims.
#
# - An empty pack is not evidence. It is never verified.
# - Without partial success every claim must hold; with it, `min_verified` of them, and at least one.
# - A claim that could not be checked does not hold.
# - Claims that are not checked again (transient ones, at a resume) count as they were when the step ended, if that is
#   known; otherwise they do not count. So if they alone met the number that must hold, none of the others has to.
# - Files of `.reads()` and `.writes()` must hold, whatever the policy of the other claims.


def required_count(pack: EvidencePack, counted: int) -> int:
    """Return how many of the counted claims must hold; at least one."""
    if pack.require_all and not pack.allow_partial:
        return max(1, counted)
    return max(1, min(pack.min_verified, counted))


def decide(
    pack: EvidencePack, answers: Sequence[VerdictStatus], *, transient_held: int | None = None
) -> tuple[PackOutcome, str]:
    """Return the answer to a pack, and why.

    Args:
        pack: the pack.
        answers: the answers to its claims.
        transient_held: how many of the claims that are not checked again held when the step ended, if that is known.
    """
    if not answers:
        return PackOutcome.NO_EVIDENCE, "there is no evidence"
    roles = [claim.role for claim in pack]
    pairs = [pair for pair in zip(roles, answers, strict=True) if pair[1] is not VerdictStatus.NOT_RECHECKED]
    if not pairs:
        return PackOutcome.NO_EVIDENCE, f"all {len(answers)} claims had to hold only at the commit"
    files = [answer for role, answer in pairs if role]
    others = [answer for role, answer in pairs if not role]
    minimum = required_count(pack, len(others)) if others else 0
    if transient_held is not None and (pack.allow_partial or not pack.require_all):
        minimum = max(0, required_count(pack, roles.count("")) - transient_held)
    verified, failed = others.count(VerdictStatus.VERIFIED), others.count(VerdictStatus.FAILED)
    held = files.count(VerdictStatus.VERIFIED)
    reason = f"{verified + held} of {len(pairs)} claims hold, {minimum + len(files)} required"
    if verified >= minimum and held == len(files):
        return PackOutcome.VERIFIED, reason
    unsure = len(pairs) - verified - held - failed - files.count(VerdictStatus.FAILED)
    if len(others) - failed >= minimum and VerdictStatus.FAILED not in files:
        return PackOutcome.CANNOT_TELL, f"{reason}; {unsure} could not be checked"
    return PackOutcome.FAILED, reason


def make_report(
    pack: EvidencePack, verdicts: Sequence[Verdict], *, transient_held: int | None = None
) -> VerificationReport:
    """Return the report of a pack whose claims were answered; see `decide`."""
    outcome, reason = decide(pack, [verdict.status for verdict in verdicts], transient_held=transient_held)
    return VerificationReport(outcome, tuple(verdicts), reason)
