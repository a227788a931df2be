"""Whether the results up to a checkpoint are still true: what was verified once may have moved since."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from flowckpt.codec.results import encode_time, plain_tree
from flowckpt.dsl import Step, Workflow
from flowckpt.engine.binding import rebind_inputs
from flowckpt.engine.following import follow, recorded_answer
from flowckpt.engine.looking_back import Answer
from flowckpt.engine.not_run import PlanStopped, use_missing_secret
from flowckpt.engine.options import RunOptions
from flowckpt.engine.verifying import is_open, verifying_of
from flowckpt.evidence.model import EvidencePack
from flowckpt.evidence.verdict import Moment, VerificationReport
from flowckpt.execution import evidence
from flowckpt.plan.judge import evidence_reasons
from flowckpt.replay import Replay

if TYPE_CHECKING:
    from flowckpt.checkpoint import CheckpointData, StepResult
    from flowckpt.evidence.verifier import EvidenceVerifier

Program: TypeAlias = Callable[[], Workflow[Any, Any] | None]


@attrs.frozen
class Rechecking:
    """Checks again what was verified once.

    Attributes:
        options: how, and what may be reached.
        verifier: checks the claims, or None for one that looks where the run was started.
        program: returns the workflow, which can answer more than its record; asked for only where that matters.
    """

    options: RunOptions
    verifier: EvidenceVerifier | None = None
    program: Program | None = None

    async def moved(
        self, data: CheckpointData, results: Sequence[StepResult], *, base: CheckpointData, is_whole: bool = True
    ) -> tuple[dict[str, tuple[str, ...]], tuple[Any, ...]]:
        """Check the claims of some results of a checkpoint against the world.

        Args:
            data: the checkpoint.
            results: those of its results that are to be gone on from.
            base: the newest checkpoint of its run, which says where relative paths begin.
            is_whole: whether the claims of the checkpoint itself are checked, too.

        Returns:
            What moved, by the path of the step, an empty one for the checkpoint itself; and the answers for the record.
        """
        verifying = verifying_of(base, self.verifier, self.options)
        reports = await verifying.reports_of(results)
        if any(map(is_open, reports.values())) and (workflow := self.workflow()) is not None:
            with contextlib.suppress(Exception, PlanStopped):  # what nobody can answer then counts as moved
                lend_functions(workflow, data)
            asked_again = [result for result in results if is_open(reports.get(result.path))]
            reports.update(await verifying.reports_of(asked_again))
        answers = _recorded(reports)
        moved = {path: found for path, report in reports.items() if (found := _against(report))}
        for pack in checkpoint_packs(data) if is_whole else ():
            found = _against(await verifying().verify_evidence_pack(pack, moment=Moment.RESUME))
            if found:
                moved[""] = moved.get("", ()) + found
        return moved, answers

    def workflow(self) -> Workflow[Any, Any] | None:
        """Return the workflow, where it is at hand."""
        return None if self.program is None else self.program()


def _against(report: VerificationReport) -> tuple[str, ...]:
    return tuple(reason.detail for reason in evidence_reasons(report))


def checkpoint_packs(data: CheckpointData) -> Sequence[EvidencePack]:
    """Return the claims of a checkpoint itself.

    Args:
        data: the checkpoint.
    """
    packs = []
    for each in data.evidence:
        if isinstance(each, EvidencePack):
            packs.append(each)
        elif isinstance(each, Mapping) and "pack" in each:
            packs.append(EvidencePack.from_document(each["pack"]))
    return packs


def _recorded(reports: Mapping[str, VerificationReport]) -> tuple[Any, ...]:
    return tuple(
        {"path": path, "outcome": str(report.outcome), "verified_at": encode_time(report.verdicts[0].verified_at)}
        for path, report in reports.items()
        if report.verdicts
    )


def lend_functions(workflow: Workflow[Any, Any], data: CheckpointData) -> None:
    """Answer the generator with its recorded results, so that it makes the claims of its steps again.

    That lends the functions of its claims, and the addresses of its databases, to whoever checks them. Nothing is run.

    Args:
        workflow: the workflow.
        data: a checkpoint of it.

    Raises:
        PlanStopped: it needs the output of a step that is run at each resume.
        FlowckptError: the record is not one of the workflow as it is now.
    """
    bound = rebind_inputs(
        workflow,
        recorded=plain_tree(data.held_inputs, "inputs"),
        recorded_hash=data.inputs_hash,
        defaulted=tuple(data.metadata.get("defaulted", ())),
        given={},
    )
    values = bound.values(workflow, use_missing=use_missing_secret)
    replay = Replay(workflow(**values), data.step_results, workflow.name, is_muted=True)

    def visit(step: Step[Any], result: StepResult) -> Answer:
        value, failure = recorded_answer(step, result)
        claimed = step.modifiers.evidence
        if failure is None and claimed is not None and any(callable(each) for each in claimed.claims):
            evidence.claimed_pack(claimed, value, place=result.path)
        return value, failure

    with contextlib.closing(replay):
        follow(replay, visit)
