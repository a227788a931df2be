"""Checking the recorded evidence of a run against the world, without running anything of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import attrs

from flowckpt.cli.notices import warn
from flowckpt.core.records import CheckpointData, StepResult
from flowckpt.engine import RunOptions
from flowckpt.engine.history.checkpoints import Program, checkpoint_packs, lend_functions
from flowckpt.engine.values.placeholders import PlanStopped
from flowckpt.evidence.checks.base import StepFacts
from flowckpt.evidence.claims import EvidencePack
from flowckpt.evidence.report import Moment, VerdictStatus, VerificationReport
from flowckpt.evidence.verifier import EvidenceVerifier
from flowckpt.execution.claims import ClaimChecker, recorded_pack

_CHUNKS_A_JOB = 4
_UNANSWERED = (VerdictStatus.CANNOT_CHECK, VerdictStatus.REFUSED)
"""Answers that may change once the program is loaded: it lends functions, and knows its databases."""


@attrs.frozen
class Checked:
    """The evidence of a step, or of the checkpoint itself, as the world answers it now.

    Attributes:
        path: the step; empty for the checkpoint.
        report: the answers.
    """

    path: str
    report: VerificationReport

    @property
    def holds(self) -> bool:
        """Whether a resume would take it for true."""
        return self.report.verified or self.report.outcome == "no_evidence"

    def to_document(self) -> dict[str, Any]:
        """Return the answers as plain JSON, without secrets."""
        return {"path": self.path, **self.report.to_document()}


def check_evidence(data: CheckpointData, options: RunOptions, program: Program, *, jobs: int) -> list[Checked]:
    """Check the recorded claims of every result of a checkpoint, and its own.

    Args:
        data: the checkpoint.
        options: how files are checked, and what may be reached.
        program: loads the workflow of the run; called if a claim needs it.
        jobs: how many checks run at the same time.

    Raises:
        DecodingError: a record of claims is malformed.
    """
    asked = [*_asked_of_steps(data.step_results), *_asked_of_checkpoint(data)]
    if not asked:
        return []
    with ExitStack() as pools:
        verifier = ClaimChecker.of(data, None, options).verifier
        if jobs > 1:
            verifier = verifier.changed(executor=pools.enter_context(ThreadPoolExecutor(jobs, "flowckpt-verify")))
        reports = asyncio.run(_reports(verifier, [each[1:] for each in asked], jobs))
        again = [index for index, report in enumerate(reports) if _is_unanswered(report)]
        if again and _learn_from_program(data, program):
            answers = asyncio.run(_reports(verifier, [asked[index][1:] for index in again], jobs))
            for index, report in zip(again, answers, strict=True):
                reports[index] = report
    return [Checked(path, report) for (path, _, _), report in zip(asked, reports, strict=True)]


def _asked_of_steps(results: Sequence[StepResult]) -> Iterator[tuple[str, EvidencePack, StepFacts]]:
    for result in results:
        if result.evidence is not None and result.success:
            code = result.evidence.get("exit_code")
            yield result.path, recorded_pack(result), StepFacts(exit_code=code if type(code) is int else None)


def _asked_of_checkpoint(data: CheckpointData) -> Iterator[tuple[str, EvidencePack, StepFacts]]:
    return (("", pack, StepFacts()) for pack in checkpoint_packs(data))


async def _reports(
    verifier: EvidenceVerifier, asked: Sequence[tuple[EvidencePack, StepFacts]], jobs: int
) -> list[VerificationReport]:
    # In pieces, or a few large files would all be read by one worker.
    size = max(1, -(-len(asked) // (jobs * _CHUNKS_A_JOB))) if jobs > 1 else len(asked)
    pieces = [asked[begin : begin + size] for begin in range(0, len(asked), size)]
    answers = await asyncio.gather(*(verifier.verify_packs(piece, moment=Moment.RESUME) for piece in pieces))
    return [report for piece in answers for report in piece]


def _is_unanswered(report: VerificationReport) -> bool:
    return any(verdict.status in _UNANSWERED for verdict in report.verdicts)


# --- what only the program knows -------------------------------------------------------------------------------------


def _learn_from_program(data: CheckpointData, program: Program) -> bool:
    """Load the run's program and let its generator make its claims; return whether there was anything to learn."""
    workflow = program()
    if workflow is None:
        return False
    try:
        lend_functions(workflow, data)
    except (Exception, PlanStopped) as error:
        said = "it needs the output of a step that is run at each resume" if isinstance(error, PlanStopped) else error
        warn(f"not all claims of the run's program are known: {said}")
    return True
