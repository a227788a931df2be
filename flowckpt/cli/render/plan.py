"""The plan of a resume as text, and the explanation of one of its steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import attrs
import click

from flowckpt.cli.exit_codes import ExitCode, code_of_stop
from flowckpt.cli.next_steps import (
    ResumeLine,
    changed_ways,
    crash_loop_ways,
    final_ways,
    handled_ways,
    in_doubt_ways,
    not_undoable_ways,
    stale_ways,
)
from flowckpt.cli.render.documents import RecordedClaim, read_recorded_claims, verdict_text
from flowckpt.cli.render.tables import duration_text, moment_text
from flowckpt.cli.render.terminal import escape, escape_lines, shorten
from flowckpt.cli.runs import run_async
from flowckpt.core.codec.results import encode_time
from flowckpt.core.identity.values import UNKNOWN, is_incomplete
from flowckpt.core.records import CheckpointData, StepResult
from flowckpt.core.records.result import COMPOSITES
from flowckpt.core.system.numbers import join_names, pluralize
from flowckpt.engine.rules.paths import group_nested
from flowckpt.engine.rules.plan import Decision, PlannedStep, ResumePlan
from flowckpt.engine.rules.reasons import ReasonKind
from flowckpt.engine.undo.plan_resume import PlannedResume
from flowckpt.engine.values.failures import read_failure
from flowckpt.engine.values.superseded import Superseded
from flowckpt.errors import StepFailedError, StepNotFoundError
from flowckpt.evidence.report import Verdict, VerificationReport

_WORDS = {Decision.IN_DOUBT: "in doubt"}
_COLORS = {
    Decision.REUSE: "green",
    Decision.RERUN: "yellow",
    Decision.NEW: "blue",
    Decision.IN_DOUBT: "red",
    Decision.INTERRUPTED: "yellow",
    Decision.CACHED: "green",
    Decision.ORPHANED: "bright_black",
    Decision.UNDO: "magenta",
    Decision.KEEP: "bright_black",
}
_WIDTH = 10
_WIDER = 13
_MOST_ALIKE = 8
_MOST_ASSUMED = 3


def plan_text(plan: ResumePlan, line: ResumeLine, *, is_colored: bool) -> str:
    """Return a plan as text: its steps with their reasons, the outcome, and the command to resume.

    Args:
        plan: the plan.
        line: the planned resume.
        is_colored: whether colours are allowed.
    """
    lines = [f"plan of run {escape(plan.workflow_id)} ({escape(plan.workflow_name)})"]
    width = min(40, max((len(escape(step.path)) for step in plan.steps), default=0))
    indent = _WIDER if plan.count(Decision.INTERRUPTED) else _WIDTH
    assumptions: set[str] = set()
    for group in _group_alike(plan.steps):
        lines += _step_lines(group, indent, width, assumptions, is_colored=is_colored)
    lines.append(_summary(plan))
    if plan.handled is not None:
        lines += handled_ways(line.command("--from", plan.handled.path), plan.handled)
    elif plan.ends_otherwise:
        lines.append(_sentence("The run ends differently", plan.ends_otherwise))
    elif plan.ends_at and not plan.stops:
        lines.append(_sentence("The plan ends here", plan.ends_at))
    if plan.is_undoing and not plan.is_crash_loop and not plan.stopped_by:
        lines += _undoing_lines(plan, line)
    elif plan.stops:
        lines.append(f"The resume would stop: {escape(plan.stops)}")
        lines += _ways(plan, line)
    elif not plan.is_nothing_to_do or _ends_early(plan):
        lines.append(f"Resume with: {line.command(*['--force'] * line.options.force)}")
    return "".join(f"{each}\n" for each in lines)


def decision_text(decision: Decision, width: int = _WIDTH, *, is_colored: bool) -> str:
    """Return the text of a decision.

    Args:
        decision: the decision.
        width: the minimum width.
        is_colored: whether colours are allowed.
    """
    word = f"{_WORDS.get(decision, str(decision)):{width}}"
    return click.style(word, fg=_COLORS[decision]) if is_colored else word


def _group_alike(steps: Sequence[PlannedStep]) -> Iterable[list[PlannedStep]]:
    """Group long sequences of steps with one name and the same decision and reasons."""
    for _, row in groupby(steps, key=lambda step: (_first_name(step), step.decision, step.reasons, step.assumes)):
        group = list(row)
        if len(group) > _MOST_ALIKE:
            yield group
        else:
            yield from ([step] for step in group)


def _first_name(step: PlannedStep) -> str:
    return step.path.partition("[")[0]


def _step_lines(
    group: list[PlannedStep], indent: int, width: int, assumptions: set[str], *, is_colored: bool
) -> list[str]:
    step = group[0]
    path = shorten(step.path, 80)
    durations = [each.duration_ms for each in group if each.duration_ms is not None]
    took = duration_text(sum(durations)) if durations else ""
    if len(group) > 1:
        path = f"{path} … {shorten(group[-1].path, 80)}"
        took = f"{len(group)} steps, {took}" if took else f"{len(group)} steps"
    lines = [f"{decision_text(step.decision, indent, is_colored=is_colored)}{path:{width}}  {took}".rstrip()]
    lines += [" " * indent + "  " + escape(str(reason)) for reason in step.reasons]
    if step.assumes and step.decision is not Decision.RERUN:
        assumption = _assumption_text(step)
        if assumption in assumptions:  # then the resume would already have stopped at an earlier step
            assumption = _assumption_text(attrs.evolve(step, may_stop=False))
        lines.append(" " * indent + f"  if {assumption}")
        assumptions.update([assumption] * step.may_stop)
    return lines


def _assumption_text(step: PlannedStep) -> str:
    otherwise = "; otherwise the resume stops here" if step.may_stop else ""
    leave = "leaves" if len(step.assumes) == 1 else "leave"
    return f"{escape(join_names(step.assumes, _MOST_ASSUMED))} {leave} the same result as before{otherwise}"


def _ends_early(plan: ResumePlan) -> bool:
    """Return whether the plan ends before the workflow does, other than at a handled failure."""
    return bool(plan.ends_at) and plan.handled is None


def _sentence(begin: str, why: str) -> str:
    return f"{begin}: {escape(why.removesuffix('.'))}."


def _undoing_lines(plan: ResumePlan, line: ResumeLine) -> list[str]:
    """Return the lines of a resume that only undoes steps."""
    lines = [_sentence("The plan ends here", plan.ends_at)] if plan.ends_at else []
    lines.append(f"The resume would run nothing: {escape(plan.stops)}; the resume after that continues")
    undoes = line.options.rolls_back
    words = ["--force"] if line.options.force else []
    if not undoes:
        words.append("--no-rollback")
    lines.append(f"{'Undo the remaining steps' if undoes else 'End the run without that'}: {line.command(*words)}")
    return lines


def _summary(plan: ResumePlan) -> str:
    if plan.is_undoing:
        undo, left = plan.count(Decision.UNDO), plan.count(Decision.KEEP)
        lost = plan.count(Decision.ORPHANED)
        return f"{undo} to undo, {left} left as {'it is' if left == 1 else 'they are'}" + (
            f", {lost} that cannot be undone" if lost else ""
        )
    if plan.is_nothing_to_do:
        reused = plan.count(Decision.REUSE)
        if _ends_early(plan):
            return f"nothing to run up to the end of the plan ({pluralize(reused, 'recorded result')})"
        return f"nothing to run: all {reused} results are reused"
    rerun = [step for step in plan.steps if step.decision is Decision.RERUN]
    took = duration_text(_sum_times(rerun))
    parts = [f"{plan.count(Decision.REUSE)} reused"]
    parts.append(
        f"{len(rerun)} to run again" + (f" ({'it' if len(rerun) == 1 else 'they'} took {took})" if rerun else "")
    )
    for decision, word in (
        (Decision.CACHED, "cached"),
        (Decision.NEW, "new"),
        (Decision.INTERRUPTED, "interrupted"),
        (Decision.IN_DOUBT, "in doubt"),
        (Decision.ORPHANED, "orphaned"),
    ):
        if count := plan.count(decision):
            parts.append(f"{count} {word}")
    return ", ".join(parts)


def _sum_times(steps: Iterable[PlannedStep]) -> float:
    """Return the total time of steps; a step made of steps counts with its own time or that of its steps, if shorter."""
    durations = {step.path: step.duration_ms for step in steps}
    nested = group_nested(durations)

    def took(path: str) -> float:
        whole = durations.get(path)
        if path not in nested:
            return whole or 0.0
        together = sum(map(took, nested[path]))
        return together if whole is None else min(whole, together)

    return sum(map(took, {path.partition("/")[0] for path in durations}))


def _ways(plan: ResumePlan, line: ResumeLine) -> list[str]:
    if plan.is_crash_loop:
        return crash_loop_ways(line)
    if plan.is_final:
        return final_ways(line)
    if plan.is_undoing:
        return not_undoable_ways(line)
    code = code_of_stop(plan)
    if code is ExitCode.MISMATCH:
        return changed_ways(line)
    if code is ExitCode.IN_DOUBT:
        return in_doubt_ways(line, plan.stopped_by, was_done=plan.repeats_effect)
    return stale_ways(line, stop_kinds(plan), plan.stopped_by if plan.repeats_effect else "")


def stop_kinds(plan: ResumePlan) -> frozenset[ReasonKind]:
    """Return the reasons for which the step that stops the resume is stale."""
    step = plan.step(plan.stopped_by)
    return frozenset() if step is None else frozenset(reason.kind for reason in step.reasons if reason.makes_stale)


# The explanation of one step: everything that is compared, with the results.


_MEANINGS = {
    Decision.REUSE: "it is reused: its recorded result is still valid",
    Decision.RERUN: "it would run again",
    Decision.NEW: "it is new: it was never recorded",
    Decision.IN_DOUBT: "it is in doubt",
    Decision.INTERRUPTED: "it was interrupted, and would run again",
    Decision.CACHED: "it would take the result of another step",
    Decision.ORPHANED: "it is orphaned: it was recorded, but the workflow no longer yields it",
    Decision.UNDO: "it would be undone: the run stopped while its steps were undone",
    Decision.KEEP: "it is left as it is: the resume only undoes steps",
}


@attrs.frozen
class StepExplanation:
    """The facts about one step.

    Attributes:
        step: the decision and its reasons.
        result: its recorded result, if any.
        report: the current verdicts of its recorded claims, if it has any.
        failure: its failure, if its result is one.
    """

    step: PlannedStep
    result: StepResult | None
    report: VerificationReport | None
    failure: StepFailedError | None = None

    def to_document(self, workflow_id: str) -> dict[str, Any]:
        """Return the explanation as plain JSON, without secrets."""
        return {
            "workflow_id": workflow_id,
            **self.step.to_document(),
            "assumes": list(self.step.assumes),
            "stale": self.step.is_stale,
            "recorded": None if self.result is None else _recorded_document(self.result),
            "arguments": [] if self.result is None else _list_arguments(self.step, self.result),
            "evidence": None if self.result is None or self.result.evidence is None else self._evidence_document(),
        }

    def lines(self, *, is_colored: bool) -> list[str]:
        """Return the explanation as lines of text.

        Args:
            is_colored: whether colours are allowed.
        """
        step, result = self.step, self.result
        decision = decision_text(step.decision, is_colored=is_colored).rstrip()
        meaning = _MEANINGS[step.decision]
        if step.decision is Decision.REUSE and step.reasons:
            meaning = "it is reused anyway"
        lines = [f"{escape(step.path)}: {decision}: {meaning}"]
        lines += [f"  {escape(str(reason))}" for reason in step.reasons]
        if step.assumes:
            lines.append(f"  this holds if {_assumption_text(step)}")
        if result is None:
            if step.location:
                lines.append(f"yielded: {escape(step.location)}")
            return lines
        when = "" if result.started_at is None else f"{moment_text(result.started_at)} "
        ended = "" if result.success else ", and failed"
        lines.append(f"recorded: {when}by attempt {result.attempt}, in {duration_text(result.duration_ms)}{ended}")
        if self.failure is not None:
            lines.append(f"error: {escape(f'{self.failure.error_type}: {self.failure.error_message}')}")
            lines += [f"  {line}" for line in escape_lines(self.failure.trace).splitlines()]
        if result.location:
            lines.append(f"yielded: {escape(result.location)}")
        moved = {reason.kind for reason in step.reasons}
        if result.function:
            if ReasonKind.CODE in moved:
                code = "edited"
            elif result.fingerprint:
                code = "no change seen"
            else:
                code = "compared in its members" if result.step_type in COMPOSITES else "cannot be compared"
            lines.append(f"code: {escape(result.function)}: {code}")
        version = "changed" if ReasonKind.VERSION in moved else "no change seen"
        if result.version is not None or ReasonKind.VERSION in moved:
            lines.append(f"version: recorded {escape(repr(result.version))}: {version}")
        for argument in _list_arguments(step, result):
            lines.append(f"argument {escape(argument['name'])}: {escape(_argument_text(argument))}")
        lines += self._claim_lines()
        return lines

    def _pair_verdicts(self) -> Iterable[tuple[RecordedClaim, Verdict | None]]:
        """Return the recorded claims, each with its current verdict; None if it was not checked."""
        claims = [] if self.result is None else read_recorded_claims(self.result)
        return zip(claims, [None] * len(claims) if self.report is None else self.report.verdicts, strict=False)

    def _claim_lines(self) -> list[str]:
        lines = []
        for claim, verdict in self._pair_verdicts():
            current = f"not checked: {claim.description}" if verdict is None else verdict_text(verdict)
            lines.append(f"evidence {escape(current)}")
            lines += [f"  {escape(detail)}" for detail in ([] if verdict is None else verdict.details)]
            lines.append(f"  {escape(_recorded_verdict(claim))}")
        return lines

    def _evidence_document(self) -> dict[str, Any]:
        return {
            "outcome": None if self.report is None else str(self.report.outcome),
            "reason": None if self.report is None else self.report.reason,
            "claims": [
                {**claim.to_document(), "now": None if verdict is None else verdict.to_document()}
                for claim, verdict in self._pair_verdicts()
            ],
        }


def explain_step(workflow_id: str, wanted: str, latest: CheckpointData, planned: PlannedResume) -> StepExplanation:
    """Return the explanation of a step.

    Args:
        workflow_id: the run.
        wanted: the path of the step, or its name for its first use.
        latest: the run's newest checkpoint.
        planned: the plan of the run.

    Raises:
        StepNotFoundError: neither the record nor the plan has such a step.
    """
    recorded = {result.path: result for result in [*Superseded(latest.metadata).values(), *latest.step_results]}
    steps = planned.plan.steps
    step = planned.plan.step(wanted) or next((each for each in steps if _find_name(each, recorded) == wanted), None)
    if step is None:
        raise StepNotFoundError(workflow_id, wanted, known=[each.path for each in steps])
    result = recorded.get(step.path)
    report = planned.reports.get(step.path)
    if report is None and result is not None:
        report = run_async(planned.claims.verify_results([result])).get(step.path)
    failure = None
    if result is not None and result.error is not None:
        failure = read_failure(result.error, recorded.values())
    return StepExplanation(step, result, report, failure)


def _find_name(step: PlannedStep, recorded: Mapping[str, StepResult]) -> str:
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


def _list_arguments(step: PlannedStep, result: StepResult) -> list[dict[str, Any]]:
    """Return the arguments, each with its recorded form and its change; None if no change was seen."""
    details = (reason.detail.partition(": ") for reason in step.reasons if reason.kind is ReasonKind.ARGUMENTS)
    moved = {name: how for name, _, how in details}
    names = [*result.arguments, *(name for name in moved if name not in result.arguments)]
    return [{"name": name, "recorded": result.arguments.get(name), "moved": moved.get(name)} for name in names]


def _argument_text(argument: Mapping[str, Any]) -> str:
    if argument["moved"] is not None:
        return str(argument["moved"])
    recorded = argument["recorded"]
    if recorded == UNKNOWN:
        return "cannot be compared"
    if is_incomplete(recorded):
        return "no change seen; the state of an object in it is not compared"
    return "no change seen" if isinstance(recorded, str) else f"{recorded!r}, no change seen"


def _recorded_verdict(claim: RecordedClaim) -> str:
    if not claim.status:
        return "no verdict was recorded when the step ended"
    return f"when the step ended: {claim.status}" + (f", {claim.verified_at}" if claim.verified_at else "")
