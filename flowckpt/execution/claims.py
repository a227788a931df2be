"""The evidence of a step: its claims made, taken from the world when it ends, and read back from its record."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.dsl.modifiers import ClaimedEvidence
from flowckpt.core.records import StepResult
from flowckpt.errors import DecodingError, EvidenceError, EvidenceNotVerifiedError
from flowckpt.evidence.checks.base import StepFacts
from flowckpt.evidence.claims import Evidence, EvidencePack, EvidenceType
from flowckpt.evidence.report import Moment, VerificationReport, decided
from flowckpt.evidence.verifier import EvidenceVerifier

if TYPE_CHECKING:
    from flowckpt.execution.files import RunFiles

READS, WRITES = "reads", "writes"
"""The roles of files."""


@attrs.frozen
class Committed:
    """The claims of a step as they were when it ended.

    Attributes:
        document: the claims with their facts, and the answers to them, as they are recorded.
        report: the answers.
    """

    document: Mapping[str, Any]
    report: VerificationReport


def claimed_pack(claimed: ClaimedEvidence, value: Any, *, place: str) -> EvidencePack:
    """Return the claims of a step whose result is known.

    Raises:
        EvidenceError: a function returned something else than claims, or the policy cannot be met.
    """
    claims: list[Evidence] = []
    for each in claimed.claims:
        made = each(value) if callable(each) else each
        if isinstance(made, EvidencePack):
            if len(claimed.claims) > 1:
                raise EvidenceError(
                    f"{place}: .evidence() is given a pack and something beside it", remedy="Give the pack alone."
                )
            return made
        claims += [made] if isinstance(made, Evidence) else _listed(made, place)
    return _pack(claimed, claims, place)


def stated_pack(claimed: ClaimedEvidence | None) -> EvidencePack:
    """Return the claims that can be made without the step's result: those of a step in doubt."""
    if claimed is None:
        return EvidencePack([])
    given = [each for each in claimed.claims if not callable(each)]
    if given and isinstance(given[0], EvidencePack):
        return given[0]
    pack = EvidencePack(given)
    if len(given) < len(claimed.claims):
        return pack  # what only the result could tell is missing: all that is there must hold
    return _pack(claimed, given, "a step in doubt")


async def commit(
    verifier: EvidenceVerifier, pack: EvidencePack, *, path: str, exit_code: int | None, files: RunFiles | None = None
) -> Committed:
    """Take the facts of a step's claims from the world, and check them.

    Raises:
        StepFilesError: a file that the step reads changed while it ran.
    """
    recorded, report = await verifier.commit(pack, facts=StepFacts(exit_code=exit_code))
    unchanged = None if files is None else await files.unchanged(verifier, path)
    if unchanged is not None and files is not None:
        recorded = attrs.evolve(recorded, evidence_list=[*recorded, *files.read.pop(path)])
        verdicts = (*report.verdicts, *unchanged.verdicts)
        report = decided(recorded, verdicts)
    document: dict[str, Any] = {
        "pack": recorded.to_document(),
        "outcome": str(report.outcome),
        "verdicts": [_verdict_document(verdict.to_document()) for verdict in report.verdicts],
    }
    if exit_code is not None:
        document["exit_code"] = exit_code
    return Committed(document, report)


def not_verified(path: str, report: VerificationReport) -> EvidenceNotVerifiedError:
    """Return the error of a step whose claims do not hold."""
    return EvidenceNotVerifiedError(path, reason=report.reason, reasons=found_in(report))


def found_in(report: VerificationReport) -> tuple[str, ...]:
    """Return what was found, a sentence for each claim that does not hold."""
    return tuple(verdict.error for verdict in report.verdicts if verdict.error is not None and verdict.is_against)


async def reports_of(
    verifier: EvidenceVerifier, results: Iterable[StepResult], *, moment: Moment = Moment.RESUME
) -> dict[str, VerificationReport]:
    """Check the recorded claims of results against the world.

    Args:
        verifier: what checks them.
        results: the results; those without claims, and failures, are left out.
        moment: why they are checked.

    Raises:
        DecodingError: a record of claims is malformed.
    """
    with_claims = [result for result in results if result.evidence is not None and result.success]
    asked = [(recorded_pack(result), _facts(result)) for result in with_claims]
    reports = await verifier.verify_packs(asked, moment=moment)
    return {result.path: report for result, report in zip(with_claims, reports, strict=True)}


def recorded_pack(result: StepResult) -> EvidencePack:
    """Return the claims of a recorded result.

    Raises:
        DecodingError: the record is malformed.
    """
    document = result.evidence or {}
    if "pack" not in document:
        raise DecodingError("recorded evidence without its claims", place=f"{result.path}: evidence")
    return EvidencePack.from_document(document["pack"])


def paths_of(result: StepResult, role: str) -> tuple[str, ...]:
    """Return the paths that a recorded result read or wrote."""
    return tuple(str(facts["path"]) for facts in _recorded(result, role))


def written_by(result: StepResult) -> dict[str, str]:
    """Return the digests of what a recorded result wrote, by path."""
    facts = _recorded(result, WRITES)
    return {os.path.normpath(each["path"]): each.get("sha256", each.get("digest", "")) for each in facts}


def _recorded(result: StepResult, role: str) -> list[Any]:
    documents = ((result.evidence or {}).get("pack") or {}).get("evidence") or ()
    return [each["expected"] for each in documents if each.get("role") == role]


def has_exit_claim(pack: EvidencePack) -> bool:
    """Tell whether a claim says what the step's command returns, so that it decides about success."""
    return any(claim.evidence_type == EvidenceType.COMMAND_EXIT for claim in pack)


def _facts(result: StepResult) -> StepFacts:
    code = (result.evidence or {}).get("exit_code")
    return StepFacts(exit_code=code if type(code) is int else None)


def _pack(claimed: ClaimedEvidence, claims: Sequence[Evidence], place: str) -> EvidencePack:
    if claimed.min_verified is None:
        return EvidencePack(claims, require_all=claimed.require_all, allow_partial=not claimed.require_all)
    if claimed.min_verified > len(claims):
        raise EvidenceError(
            f"{place}: .evidence(min_verified={claimed.min_verified}) with only {len(claims)} claims could never hold",
            remedy="Add claims, or ask for fewer.",
        )
    return EvidencePack(claims, require_all=False, allow_partial=True, min_verified=claimed.min_verified)


def _listed(made: Any, place: str) -> list[Evidence]:
    if inspect.iscoroutine(made):
        made.close()  # of an async function, which is none that returns claims
    if made is None or isinstance(made, str | bytes | Mapping) or not isinstance(made, Iterable):
        raise _no_claims(made, place)
    claims = list(made)
    for claim in claims:
        if not isinstance(claim, Evidence):
            raise _no_claims(claim, place)
    return claims


def _no_claims(made: object, place: str) -> EvidenceError:
    return EvidenceError(
        f"{place}: a function in .evidence() returned {made!r:.80} ({type(made).__name__}), not a claim",
        remedy="Return a claim of flowckpt.evidence, or a list of them.",
    )


def _verdict_document(document: dict[str, Any]) -> dict[str, Any]:
    return {key: document[key] for key in ("status", "verified_at", "error", "details") if document.get(key)}
