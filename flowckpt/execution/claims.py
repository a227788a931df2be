"""The claims of a step: created when it ends, recorded with the facts of that moment, and checked again by a resume."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt import evidence, execution
from flowckpt.core.dsl import Step
from flowckpt.core.dsl.modifiers import ClaimedEvidence
from flowckpt.core.records import StepResult
from flowckpt.core.system.attrs_base import FieldEquality, lazy_frozen
from flowckpt.errors import DecodingError, EvidenceError, EvidenceNotVerifiedError

if TYPE_CHECKING:
    from flowckpt.evidence.claims import Evidence, EvidencePack
    from flowckpt.evidence.report import VerificationReport
    from flowckpt.evidence.verifier import EvidenceVerifier
    from flowckpt.execution.files import RunFiles


READS, WRITES = "reads", "writes"
"""The roles of files."""


@lazy_frozen(eq=False, repr=False)
class CommittedClaims(FieldEquality):
    """The claims of a step as they were when it ended.

    Attributes:
        document: the document to record, with the claims, their facts and the verdicts.
        report: the verdicts.
    """

    document: Mapping[str, Any]
    report: VerificationReport


class ClaimChecker:
    """Checks the claims of a run's steps.

    Args:
        given: the verifier of the program; None for one that resolves relative paths in the directory of the run's
            start.
        mode: `hash` or `stat`; None for the verifier's own.
        base_path: the directory where the run was started; empty if it is unknown or no longer exists.
        allow_network: hosts that network claims may reach, if no verifier is given.
    """

    def __init__(
        self,
        verifier: EvidenceVerifier | None = None,
        mode: str | None = None,
        base_path: str = "",
        allow_network: Sequence[str] = (),
    ) -> None:
        self._given_verifier = verifier
        self._mode = mode
        self._base_path = base_path
        self._allow_network = allow_network

    @cached_property
    def verifier(self) -> EvidenceVerifier:
        """The verifier; created when the first claim is checked."""
        verifier = self._given_verifier
        if verifier is None:
            here = self._base_path
            # The program's own claims may have paths anywhere; only relative paths must stay below the base.
            verifier = evidence.verifier.EvidenceVerifier(
                here if here and Path(here).is_dir() else ".", allow_absolute=True, allow_network=self._allow_network
            )
        return verifier if self._mode is None else verifier.changed(mode=self._mode)

    @property
    def reads_all(self) -> bool:
        """Whether every byte of a file is to be read each time."""
        return self._mode == "hash"

    @property
    def quick_verifier(self) -> EvidenceVerifier:
        """The verifier for claims that were checked before in this run: it skips files with unchanged metadata.

        With the mode `hash` it still reads every byte.
        """
        return self.verifier if self.reads_all else self.verifier.changed(mode="stat")

    async def commit(
        self, pack: EvidencePack, *, path: str, exit_code: int | None = None, files: RunFiles | None = None
    ) -> CommittedClaims:
        """Capture the facts of a step's claims, and check them.

        Args:
            pack: the claims.
            path: the step.
            exit_code: the exit code of its command; None for other steps.
            files: the files of the run, if the step reads or writes any.

        Raises:
            StepFilesError: a file that the step reads changed while it ran.
        """
        recorded, report = await self.verifier.commit(pack, facts=evidence.StepFacts(exit_code=exit_code))
        files_report = None if files is None else await files.verify_unchanged(self.verifier, path)
        if files_report is not None and files is not None:
            recorded = attrs.evolve(recorded, evidence_list=[*recorded, *files.read.pop(path)])
            report = evidence.report.make_report(recorded, (*report.verdicts, *files_report.verdicts))
        document: dict[str, Any] = {
            "pack": recorded.to_document(),
            "outcome": str(report.outcome),
            "verdicts": [_trim_verdict(verdict.to_document()) for verdict in report.verdicts],
        }
        if exit_code is not None:
            document["exit_code"] = exit_code
        return CommittedClaims(document, report)

    async def verify_results(self, results: Iterable[StepResult]) -> dict[str, VerificationReport]:
        """Check the recorded claims of results, all together.

        Args:
            results: the results; failures and results without claims are skipped.

        Raises:
            DecodingError: a record of claims is malformed.
        """
        with_claims = [each for each in results if each.evidence is not None and each.success]
        if not with_claims:
            return {}
        packs = [(read_pack(result), read_facts(result)) for result in with_claims]
        reports = await self.verifier.verify_packs(packs, moment=evidence.report.Moment.RESUME)
        return {result.path: answer for result, answer in zip(with_claims, reports, strict=True)}

    async def verify_again(self, step: Step[Any], result: StepResult) -> VerificationReport:
        """Check the claims of one result, now that the program has yielded its step again.

        Some claims can only be checked then: a record alone does not give access to a database server or a function.

        Args:
            step: the step as it is yielded now.
            result: its recorded result.
        """
        claimed = step.modifiers.evidence
        if claimed is not None and any(callable(each) for each in claimed.claims):
            with contextlib.suppress(Exception):  # the present claims do not matter: the recorded ones are checked
                make_pack(claimed, execution.runner.restore_value(step, result), place=result.path)
        return (await self.verify_results([result]))[result.path]

    async def verify_in_doubt(self, step: Step[Any]) -> VerificationReport:
        """Check the claims that do not need the step's result: whether a step without a recorded end was done."""
        return await self.verifier.verify_evidence_pack(
            make_stated_pack(step.modifiers.evidence), moment=evidence.report.Moment.IN_DOUBT
        )


# --- the claims of a step ---------------------------------------------------------------------------------------------


def make_pack(claimed: ClaimedEvidence, value: Any, *, place: str) -> EvidencePack:
    """Return the claims of a step whose result is known.

    Raises:
        EvidenceError: a function did not return claims, or the policy cannot be met.
    """
    claims: list[Evidence] = []
    for each in claimed.claims:
        returned = each(value) if callable(each) else each
        if isinstance(returned, evidence.claims.EvidencePack):
            if len(claimed.claims) > 1:
                raise EvidenceError(
                    f"{place}: .evidence() got a pack and other arguments", remedy="Pass only the pack."
                )
            return returned
        claims += [returned] if isinstance(returned, evidence.claims.Evidence) else _list_claims(returned, place)
    return _apply_policy(claimed, claims, place)


def make_stated_pack(claimed: ClaimedEvidence | None) -> EvidencePack:
    """Return the claims that do not need the step's result, for a step in doubt."""
    if claimed is None:
        return evidence.claims.EvidencePack([])
    claims = [each for each in claimed.claims if not callable(each)]
    if claims and isinstance(claims[0], evidence.claims.EvidencePack):
        return claims[0]
    pack = evidence.claims.EvidencePack(claims)
    if len(claims) < len(claimed.claims):
        return pack  # claims that need the result are missing, so all others must hold
    return _apply_policy(claimed, claims, "a step in doubt")


def meets_demands(step: Step[Any], result: StepResult, output: Any) -> bool:
    """Return whether a result that was recorded for another step is one that this step could have recorded.

    A command must have an exit code that this step accepts. Every claim of this step must be recorded, for only recorded
    claims are checked before the result is used. Files, and the length of an output, are compared elsewhere.

    Args:
        step: the step that would use the result.
        result: the result of an equal call.
        output: its output, as the step's function returns it.

    Raises:
        DecodingError: the recorded claims are malformed.
        EncodingError: the claims of the step cannot be recorded.
    """
    claimed = step.modifiers.evidence
    try:
        pack = make_stated_pack(None) if claimed is None else make_pack(claimed, output, place=result.path)
    except Exception:  # the step fails with it when it runs
        return False
    if step.action.is_command and output.exit_code != 0 and not has_exit_claim(pack):
        return False
    return claimed is None or (result.evidence is not None and _is_covered(pack, read_pack(result)))


def _is_covered(pack: EvidencePack, recorded: EvidencePack) -> bool:
    """Return whether a recorded pack can only hold if a stated one does."""
    pack = evidence.claims.EvidencePack.from_document(pack.to_document())  # its values as a record holds them
    own = [claim for claim in recorded if not claim.role]
    required = evidence.report.required_count(recorded, len(own))
    is_as_strict = required >= evidence.report.required_count(pack, len(pack)) and len(own) == len(pack)
    return (required == len(own) or is_as_strict) and all(any(_is_same(claim, each) for each in own) for claim in pack)


def _is_same(claim: Evidence, recorded: Evidence) -> bool:
    facts = recorded.expected
    if recorded.state is evidence.claims.State.CAPTURED:  # facts were added when its step ended
        facts = {name: facts.get(name) for name in claim.expected}
    return (
        (claim.evidence_type, claim.description, claim.expected, claim.metadata)
        == (recorded.evidence_type, recorded.description, facts, recorded.metadata)
        and claim.workers <= recorded.workers
        and claim.is_transient >= recorded.is_transient
    )


def has_exit_claim(pack: EvidencePack) -> bool:
    """Return whether a claim gives the exit code of the step's command, and so decides about success."""
    return any(claim.evidence_type == evidence.claims.EvidenceType.COMMAND_EXIT for claim in pack)


def _apply_policy(claimed: ClaimedEvidence, claims: Sequence[Evidence], place: str) -> EvidencePack:
    if claimed.min_verified is None:
        return evidence.claims.EvidencePack(
            claims, require_all=claimed.require_all, allow_partial=not claimed.require_all
        )
    if claimed.min_verified > len(claims):
        raise EvidenceError(
            f"{place}: .evidence(min_verified={claimed.min_verified}) with only {len(claims)} claims can never hold",
            remedy="Add claims, or lower min_verified.",
        )
    return evidence.claims.EvidencePack(
        claims, require_all=False, allow_partial=True, min_verified=claimed.min_verified
    )


def _list_claims(returned: Any, place: str) -> list[Evidence]:
    if inspect.iscoroutine(returned):
        returned.close()  # a coroutine: an async function cannot return claims
    if returned is None or isinstance(returned, str | bytes | Mapping) or not isinstance(returned, Iterable):
        raise _claim_error(returned, place)
    claims = list(returned)
    for claim in claims:
        if not isinstance(claim, evidence.claims.Evidence):
            raise _claim_error(claim, place)
    return claims


def _claim_error(returned: object, place: str) -> EvidenceError:
    return EvidenceError(
        f"{place}: a function in .evidence() returned {returned!r:.80} ({type(returned).__name__}), not a claim",
        remedy="Return a claim of flowckpt.evidence, or a list of them.",
    )


# --- recorded claims -------------------------------------------------------------------------------------------------


def read_pack(result: StepResult) -> EvidencePack:
    """Return the claims of a recorded result.

    Raises:
        DecodingError: the record is malformed.
    """
    document = result.evidence or {}
    if "pack" not in document:
        raise DecodingError("recorded evidence without its claims", place=f"{result.path}: evidence")
    return evidence.claims.EvidencePack.from_document(document["pack"])


def recorded_paths(result: StepResult, role: str) -> tuple[str, ...]:
    """Return the paths that a recorded result read or wrote."""
    return tuple(str(each.expected["path"]) for each in _list_recorded(result) if each.role == role)


def file_digests(result: StepResult) -> dict[str, str | None]:
    """Return the digests of the files that a recorded result wrote or has evidence about, by path; None if it has none."""
    facts = [each.expected for each in _list_recorded(result) if each.role != READS]
    return {
        os.path.normpath(each["path"]): each.get("sha256", each.get("digest"))
        for each in facts
        if isinstance(each.get("path"), str)
    }


def _list_recorded(result: StepResult) -> Iterable[Evidence]:
    """Return the recorded claims, decoded: a path that is not UTF-8 is recorded in another form than others."""
    return read_pack(result) if (result.evidence or {}).get("pack") else ()


def read_facts(result: StepResult) -> evidence.StepFacts:
    """Return what the record of a step says about its end."""
    return evidence.StepFacts.from_record(result.evidence or {})


def _trim_verdict(document: dict[str, Any]) -> dict[str, Any]:
    return {key: document[key] for key in ("status", "verified_at", "error", "details") if document.get(key)}


# --- verdicts --------------------------------------------------------------------------------------------------------


def list_failures(report: VerificationReport) -> tuple[str, ...]:
    """Return a sentence for each claim that does not hold."""
    return tuple(verdict.error for verdict in report.verdicts if verdict.error is not None and verdict.is_against)


def evidence_error(path: str, report: VerificationReport) -> EvidenceNotVerifiedError:
    """Return the error of a step whose claims do not hold."""
    return EvidenceNotVerifiedError(path, reason=report.reason, reasons=list_failures(report))


def is_open(report: VerificationReport | None) -> bool:
    """Return whether claims could not be checked before their step was yielded."""
    return report is not None and any(verdict.is_against and not verdict.can_tell for verdict in report.verdicts)
