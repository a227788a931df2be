"""The evidence of a task's steps: taken from the world at the commit, written down as the engine does, checked again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowckpt.clock import Clock
from flowckpt.errors import EvidenceCaptureError, EvidenceError, EvidenceNotVerifiedError, StaleStepError
from flowckpt.evidence.model import EvidencePack, State
from flowckpt.evidence.verdict import Moment, PackOutcome, VerificationReport
from flowckpt.evidence.verifier import EvidenceVerifier
from flowckpt.manager.records import CommittedStep
from flowckpt.manager.task_log import TaskLog

_SHOWN_OF_A_VERDICT = ("status", "verified_at", "error", "details")


class Verifying:
    """How the evidence of a manager's tasks is checked.

    Args:
        verifier: what checks it, or None for one that looks where the manager or the task says.
        base_path: where relative paths are taken from; None for where the task was begun.
        clock: the time.
        is_automatic: whether evidence is checked without being asked for, at commits and restores.

    Attributes:
        is_automatic: likewise.
    """

    def __init__(
        self, verifier: EvidenceVerifier | None, base_path: str | None, clock: Clock, *, is_automatic: bool
    ) -> None:
        self.is_automatic = is_automatic
        self._verifier = verifier
        self._base_path = base_path
        self._here = str(Path.cwd())  # a program may change its directory between two steps
        self._clock = clock

    def base_of(self, log: TaskLog) -> str:
        """Return the directory from which a task's relative paths are taken.

        Args:
            log: the task.
        """
        if self._verifier is not None:
            return log.base_path
        return self._base_path or log.base_path or self._here

    def _verifier_of(self, log: TaskLog) -> EvidenceVerifier:
        return self._verifier or EvidenceVerifier(self.base_of(log), clock=self._clock)

    async def committed(self, log: TaskLog, pack: EvidencePack | None, path: str) -> Mapping[str, Any] | None:
        """Take the facts of a step's claims from the world, and check them.

        Args:
            log: the task.
            pack: the claims, or None.
            path: the step.

        Returns:
            The claims with their facts, and the answers, as they are recorded; None where there is nothing to check.

        Raises:
            EvidenceError: it is no pack.
            EvidenceNotVerifiedError: the claims do not hold, or nobody can tell.
        """
        if pack is not None and not isinstance(pack, EvidencePack):
            raise EvidenceError(
                f"{path}: the evidence of a step is an EvidencePack or None, not {pack!r:.80}",
                remedy="Write EvidencePack([…]).",
            )
        if pack is None or not len(pack):
            return None
        verifier = self._verifier_of(log)
        if not self.is_automatic:
            return {"pack": (await _captured(verifier, pack)).to_document()}
        recorded, report = await verifier.commit(pack)
        if not report.verified:
            raise EvidenceNotVerifiedError(path, reason=report.reason, reasons=_found_in(report))
        verdicts = [verdict.to_document() for verdict in report.verdicts]
        return {
            "pack": recorded.to_document(),
            "outcome": str(report.outcome),
            "verdicts": [{key: said[key] for key in _SHOWN_OF_A_VERDICT if said.get(key)} for said in verdicts],
        }

    async def report_of(self, log: TaskLog, step: CommittedStep) -> VerificationReport:
        """Check the recorded claims of a step against the world now.

        Args:
            log: the task.
            step: the step.
        """
        return await self._verifier_of(log).verify_evidence_pack(step.evidence_pack, moment=Moment.RESUME)

    async def refuse_stale(self, log: TaskLog, step: CommittedStep) -> None:
        """Refuse a step whose claims do not hold any more. One without claims is as true as it ever was.

        Args:
            log: the task.
            step: the step.

        Raises:
            StaleStepError: they do not hold, or nobody can tell.
        """
        report = await self.report_of(log, step)
        if report.outcome in (PackOutcome.VERIFIED, PackOutcome.NO_EVIDENCE):
            return
        raise StaleStepError(
            step.task_id,
            step.path,
            reasons=[f"evidence: {each}" for each in (_found_in(report) or (report.reason,))],
            remedy="Mend what it left behind; or go back, with rollback_to_checkpoint, to what "
            "get_last_verified_checkpoint finds.",
        )

    async def newest_that_holds(self, log: TaskLog, steps: Sequence[CommittedStep]) -> CommittedStep | None:
        """Return the first of some steps that has claims, and whose claims hold now.

        Args:
            log: the task.
            steps: the steps, newest first.
        """
        for step in steps:
            if step.has_claims and (await self.report_of(log, step)).verified:
                return step
        return None


async def _captured(verifier: EvidenceVerifier, pack: EvidencePack) -> EvidencePack:
    """Return a pack with what facts the world has; a claim without any is never verified later."""
    claims = []
    for claim in pack:
        try:
            claims.append(await verifier.capture(claim) if claim.state is State.UNCAPTURED else claim)
        except EvidenceCaptureError:
            claims.append(claim)
    return EvidencePack(claims, pack.require_all, pack.allow_partial, pack.min_verified, extra=pack.extra)


def _found_in(report: VerificationReport) -> tuple[str, ...]:
    return tuple(verdict.error for verdict in report.verdicts if verdict.error is not None and not verdict.verified)
