"""The evidence of a task's steps: taken from the world at the commit, written down as the engine does, checked again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowckpt.core.system.clock import Clock
from flowckpt.errors import EvidenceCaptureError, EvidenceError, SettingError, StaleStepError
from flowckpt.evidence.checks.base import StepFacts
from flowckpt.evidence.claims import EvidencePack, State
from flowckpt.evidence.report import Moment, PackOutcome, VerificationReport
from flowckpt.evidence.verifier import EvidenceVerifier
from flowckpt.execution.claims import ClaimChecker, found_in, not_verified
from flowckpt.maintenance.task_log import CommittedStep, TaskLog


class TaskClaims:
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
        """Return the directory from which a task's relative paths are taken."""
        if self._verifier is not None:
            return log.base_path
        return self._base_path or log.base_path or self._here

    def files_base(self, log: TaskLog) -> str:
        """Return the directory in which files are put back: never one that only the record names.

        Raises:
            SettingError: the task was started in another directory.
        """
        own = self._base_path or (self._here if self._verifier is None else self._verifier.base_path)
        if log.base_path and Path(log.base_path) != Path(own):
            raise SettingError(
                f"task {log.task_id!r} keeps files below {log.base_path}, and this manager works in {own}",
                setting="base_path",
                remedy=f"Pass CheckpointManager(base_path={log.base_path!r}).",
            )
        return own

    def _verifier_of(self, log: TaskLog) -> EvidenceVerifier:
        # As the engine's: what the program itself claims may lie anywhere; only a relative path is held to the base.
        return self._verifier or EvidenceVerifier(self.base_of(log), allow_absolute=True, clock=self._clock)

    async def committed(
        self,
        log: TaskLog,
        pack: EvidencePack | None,
        path: str,
        *,
        exit_code: int | None = None,
        on_refusal: Callable[[VerificationReport], Awaitable[None]],
    ) -> Mapping[str, Any] | None:
        """Take the facts of a step's claims from the world, and check them.

        Args:
            log: the task.
            pack: the claims, or None.
            path: the step.
            exit_code: of the command that the step ran; None if it ran none.
            on_refusal: gets the answers if the claims do not hold.

        Returns:
            The claims with their facts, and the answers, as they are recorded; None where there is nothing to check.

        Raises:
            EvidenceError: it is not a pack.
            EvidenceNotVerifiedError: the claims do not hold, or cannot be checked.
        """
        if pack is not None and not isinstance(pack, EvidencePack):
            raise EvidenceError(
                f"{path}: the evidence of a step is an EvidencePack or None, not {pack!r:.80}",
                remedy="Write EvidencePack([…]).",
            )
        if pack is None or not len(pack):
            return None
        if not self.is_automatic:
            document: dict[str, Any] = {"pack": (await _captured(self._verifier_of(log), pack)).to_document()}
            return document if exit_code is None else {**document, "exit_code": exit_code}
        made = await ClaimChecker(self._verifier_of(log)).commit(pack, path=path, exit_code=exit_code)
        if not made.report:
            await on_refusal(made.report)
            raise not_verified(path, made.report)
        return made.document

    async def report_of(self, log: TaskLog, step: CommittedStep) -> VerificationReport:
        """Check the recorded claims of a step against the world now."""
        return (await self.reports_of(log, [step]))[0]

    async def reports_of(self, log: TaskLog, steps: Sequence[CommittedStep]) -> list[VerificationReport]:
        """Check the recorded claims of many steps against the world now, in one go."""
        packs = [(step.evidence_pack, StepFacts(step.exit_code)) for step in steps]
        return await self._verifier_of(log).verify_packs(packs, moment=Moment.RESUME)

    async def refuse_stale(self, log: TaskLog, index: int) -> None:
        """Refuse a step where its claims, or those of a step that led to it, do not hold any more.

        One without claims is as true as it ever was.

        Raises:
            StaleStepError: they do not hold, or cannot be checked; it names all these steps.
        """
        steps = _with_claims(log.live_chain(index))[::-1]
        reports = await self.reports_of(log, steps)
        stale = {
            step.path: [f"evidence: {each}" for each in (found_in(report) or (report.reason,))]
            for step, report in zip(steps, reports, strict=True)
            if not _may_stay(report)
        }
        if not stale:
            return
        (path, reasons), *others = stale.items()
        raise StaleStepError(
            log.task_id,
            path,
            reasons=reasons,
            others=dict(others),
            remedy="Mend what it left behind; or go back, with rollback_to_checkpoint, to what "
            "get_last_verified_checkpoint finds.",
        )

    async def newest_to_go_on_from(self, log: TaskLog, checkpoint_type: str | None) -> CommittedStep | None:
        """Return the newest step from which a task can continue: its claims hold now, and so do all that led to it.

        Args:
            log: the task.
            checkpoint_type: what kind of step, or None for any.
        """
        steps = _with_claims(log.live_chain(log.head))[::-1]
        found = None
        for step, report in zip(steps, await self.reports_of(log, steps), strict=True):
            if not _may_stay(report):
                break
            if report.verified and checkpoint_type in (None, step.checkpoint_type):
                found = step
        return found

    async def newest_that_holds(self, log: TaskLog, steps: Sequence[CommittedStep]) -> CommittedStep | None:
        """Return the first of some steps that has claims, and whose claims hold now."""
        for step in steps:
            if step.has_claims and (await self.report_of(log, step)).verified:
                return step
        return None


def _with_claims(steps: Sequence[CommittedStep]) -> list[CommittedStep]:
    return [step for step in steps if step.has_claims]


def _may_stay(report: VerificationReport) -> bool:
    return report.outcome in (PackOutcome.VERIFIED, PackOutcome.NO_EVIDENCE)


async def _captured(verifier: EvidenceVerifier, pack: EvidencePack) -> EvidencePack:
    """Return a pack with what facts the world has; a claim without any is never verified later."""
    found = []
    for claim in pack:
        try:
            found.append(await verifier.capture(claim) if claim.state is State.UNCAPTURED else claim)
        except EvidenceCaptureError:
            found.append(claim)
    return EvidencePack(found, pack.require_all, pack.allow_partial, pack.min_verified, extra=pack.extra)
