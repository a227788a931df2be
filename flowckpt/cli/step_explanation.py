"""Why a resume would run one step again, or reuse it: everything that is compared, and what was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from flowckpt.checkpoint import CheckpointData, StepResult
from flowckpt.cli.claims import RecordedClaim, recorded_claims, verdict_text
from flowckpt.cli.durations import duration_text, moment_text
from flowckpt.cli.plan_text import assumed_text, decision_text
from flowckpt.cli.stored_runs import waited
from flowckpt.cli.terminal_text import escaped
from flowckpt.codec.results import encode_time
from flowckpt.engine.resume_planning import PlannedResume
from flowckpt.engine.superseded import Superseded
from flowckpt.errors import StepNotFoundError
from flowckpt.evidence.verdict import VerificationReport
from flowckpt.plan.model import Decision, PlannedStep
from flowckpt.plan.reason import ReasonKind

_SAID = {
    Decision.REUSE: "it is reused: nothing speaks against its recorded result",
    Decision.RERUN: "it would run again",
    Decision.NEW: "it is new: it was never recorded",
    Decision.IN_DOUBT: "it is in doubt",
    Decision.ORPHANED: "it is orphaned: it was recorded, and the workflow does not yield it any more",
    Decision.UNDO: "it would be undone: the run stopped while that was done",
    Decision.KEEP: "it is left as it is: nothing is run but what undoes",
}


@attrs.frozen
class StepExplanation:
    """What is known of one step.

    Attributes:
        step: what would be done with it, and why.
        result: its recorded result, if any.
        report: the answers to its recorded claims now, if it has any.
    """

    step: PlannedStep
    result: StepResult | None
    report: VerificationReport | None

    def to_document(self, workflow_id: str) -> dict[str, Any]:
        """Return the explanation as plain JSON, without secrets.

        Args:
            workflow_id: the run.
        """
        return {
            "workflow_id": workflow_id,
            **self.step.to_document(),
            "assumes": list(self.step.assumes),
            "stale": self.step.is_stale,
            "recorded": None if self.result is None else _recorded_document(self.result),
            "arguments": [] if self.result is None else _arguments(self.step, self.result),
            "evidence": None if self.result is None or self.result.evidence is None else self._evidence_document(),
        }

    def lines(self, *, is_colored: bool) -> list[str]:
        """Write the explanation for people.

        Args:
            is_colored: whether there may be colours.
        """
        step, result = self.step, self.result
        decision = decision_text(step.decision, is_colored=is_colored).rstrip()
        said = _SAID[step.decision]
        if step.decision is Decision.REUSE and step.reasons:
            said = "it is reused all the same"
        lines = [f"{escaped(step.path)}: {decision}: {said}"]
        lines += [f"  {escaped(str(reason))}" for reason in step.reasons]
        if step.assumes:
            lines.append(f"  this holds if {assumed_text(step.assumes)} what was returned before")
        if result is None:
            lines += [f"yielded: {escaped(step.location)}"] * bool(step.location)
            return lines
        when = "" if result.started_at is None else f"{moment_text(result.started_at)} "
        ended = "" if result.success else ", and failed"
        lines.append(f"recorded: {when}by attempt {result.attempt}, in {duration_text(result.duration_ms)}{ended}")
        lines += [f"yielded: {escaped(result.location)}"] * bool(result.location)
        moved = {reason.kind for reason in step.reasons}
        if result.function:
            code = (
                "edited" if ReasonKind.CODE in moved else "no change seen" if result.fingerprint else "cannot be known"
            )
            lines.append(f"code: {escaped(result.function)}: {code}")
        version = "changed" if ReasonKind.VERSION in moved else "no change seen"
        if result.version is not None or ReasonKind.VERSION in moved:
            lines.append(f"version: recorded {escaped(repr(result.version))}: {version}")
        for argument in _arguments(step, result):
            lines.append(f"argument {escaped(argument['name'])}: {escaped(_argument_text(argument))}")
        lines += self._claim_lines()
        return lines

    def _claim_lines(self) -> list[str]:
        assert self.result is not None
        claims = recorded_claims(self.result)
        verdicts = [None] * len(claims) if self.report is None else self.report.verdicts
        lines = []
        for claim, verdict in zip(claims, verdicts, strict=False):
            now = f"not checked: {claim.description}" if verdict is None else verdict_text(verdict)
            lines.append(f"evidence {escaped(now)}")
            lines += [f"  {escaped(detail)}" for detail in ([] if verdict is None else verdict.details)]
            lines.append(f"  {escaped(_then(claim))}")
        return lines

    def _evidence_document(self) -> dict[str, Any]:
        assert self.result is not None
        claims = recorded_claims(self.result)
        verdicts = [None] * len(claims) if self.report is None else self.report.verdicts
        return {
            "outcome": None if self.report is None else str(self.report.outcome),
            "reason": None if self.report is None else self.report.reason,
            "claims": [
                {**claim.to_document(), "now": None if verdict is None else verdict.to_document()}
                for claim, verdict in zip(claims, verdicts, strict=False)
            ],
        }


def explained_step(workflow_id: str, wanted: str, latest: CheckpointData, planned: PlannedResume) -> StepExplanation:
    """Return what is known of a step.

    Args:
        workflow_id: the run.
        wanted: the step: its path, or its name, whose first use is meant.
        latest: the run's newest checkpoint.
        planned: the plan of the run.

    Raises:
        StepNotFoundError: neither the record nor the plan has such a step.
    """
    recorded = {result.path: result for result in [*Superseded(latest.metadata).results, *latest.step_results]}
    steps = planned.plan.steps
    step = planned.plan.step(wanted) or next((each for each in steps if _name_of(each, recorded) == wanted), None)
    if step is None:
        raise StepNotFoundError(workflow_id, wanted, known=[each.path for each in steps])
    result = recorded.get(step.path)
    report = planned.reports.get(step.path)
    if report is None and result is not None:
        report = waited(planned.verifying.reports_of([result])).get(step.path)
    return StepExplanation(step, result, report)


def _name_of(step: PlannedStep, recorded: Mapping[str, StepResult]) -> str:
    result = recorded.get(step.path)
    return step.path.partition("[")[0] if result is None else result.name


def _recorded_document(result: StepResult) -> dict[str, Any]:
    return {
        "step_type": result.step_type,
        "success": result.success,
        "function": result.function,
        "fingerprint": result.fingerprint,
        "version": result.version,
        "marks": list(result.marks),
        "attempt": result.attempt,
        "started_at": None if result.started_at is None else encode_time(result.started_at),
    }


def _arguments(step: PlannedStep, result: StepResult) -> list[dict[str, Any]]:
    """Return the arguments, each as it is recorded, and how it moved; None where no change was seen."""
    moved = dict(_moved(reason.detail for reason in step.reasons if reason.kind is ReasonKind.ARGUMENTS))
    names = [*result.arguments, *(name for name in moved if name not in result.arguments)]
    return [{"name": name, "recorded": result.arguments.get(name), "moved": moved.get(name)} for name in names]


def _moved(details: Iterable[str]) -> Iterable[tuple[str, str]]:
    for detail in details:
        name, _, how = detail.partition(": ")
        yield name, how


def _argument_text(argument: Mapping[str, Any]) -> str:
    if argument["moved"] is not None:
        return str(argument["moved"])
    recorded = argument["recorded"]
    if recorded == "?":
        return "cannot be compared"
    return "no change seen" if isinstance(recorded, str) else f"{recorded!r}, no change seen"


def _then(claim: RecordedClaim) -> str:
    if not claim.status:
        return "nothing was recorded of it when the step ended"
    return f"when the step ended: {claim.status}" + (f", {claim.verified_at}" if claim.verified_at else "")
