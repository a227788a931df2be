"""The claims of a step's recorded result, for people and their tools: without secrets, and safe to show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from flowckpt.checkpoint import StepResult
from flowckpt.codec import Json
from flowckpt.errors import DecodingError
from flowckpt.evidence.model import Evidence
from flowckpt.evidence.redaction import redacted, redacted_text
from flowckpt.evidence.verdict import Verdict, VerdictStatus
from flowckpt.execution.evidence import recorded_pack


@attrs.frozen
class RecordedClaim:
    """A claim with the answer that was recorded when its step ended.

    Attributes:
        claim: the claim.
        status: the answer; empty where none was recorded.
        verified_at: when, as ISO 8601; empty likewise.
        error: why it did not hold; empty where it did.
    """

    claim: Evidence
    status: str
    verified_at: str
    error: str

    @property
    def description(self) -> str:
        """What it claims."""
        return redacted_text(self.claim.description)

    def to_document(self) -> dict[str, Json]:
        """Return the claim as plain JSON without its secrets."""
        claim = self.claim
        document: dict[str, Any] = {
            "evidence_type": str(claim.evidence_type),
            "description": self.description,
            "expected": redacted(dict(claim.expected), claim.hidden_names),
            "is_transient": claim.is_transient,
            "status": self.status,
            "verified_at": self.verified_at or None,
            "error": self.error or None,
        }
        return document


def recorded_claims(result: StepResult) -> list[RecordedClaim]:
    """Return the claims of a result; none where it has none, or where they cannot be read.

    Args:
        result: the result.
    """
    if result.evidence is None:
        return []
    try:
        claims = list(recorded_pack(result))
    except DecodingError:
        return []
    recorded = result.evidence.get("verdicts")
    verdicts = list(recorded) if isinstance(recorded, list | tuple) else []
    verdicts += [{}] * (len(claims) - len(verdicts))
    return [
        RecordedClaim(claim, _text(verdict, "status"), _text(verdict, "verified_at"), _text(verdict, "error"))
        for claim, verdict in zip(claims, verdicts, strict=False)
    ]


def evidence_document(result: StepResult) -> Json:
    """Return the evidence of a result: null where it has none.

    Args:
        result: the result.
    """
    if result.evidence is None:
        return None
    return {
        "outcome": result.evidence.get("outcome"),
        "claims": [claim.to_document() for claim in recorded_claims(result)],
    }


def verdict_text(verdict: Verdict) -> str:
    """Write the answer to a claim on one line: `holds: …`, `fails: …`, `cannot be checked: …`.

    Args:
        verdict: the answer.
    """
    description = redacted_text(verdict.evidence.description)
    if verdict.verified:
        return f"holds: {description}"
    if verdict.status is VerdictStatus.NOT_RECHECKED:
        return f"not checked again: {description} (it was to be true when the step ended, and only then)"
    word = "fails" if verdict.status is VerdictStatus.FAILED else "cannot be checked"
    return f"{word}: {description}: {verdict.error}"


def _text(verdict: Any, key: str) -> str:
    value = verdict.get(key) if isinstance(verdict, Mapping) else None
    return value if isinstance(value, str) else ""
