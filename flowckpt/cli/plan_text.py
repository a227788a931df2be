"""A resume plan for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import click

from flowckpt.cli.durations import duration_text
from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.planned_run import code_of_stop, kinds_of_stop
from flowckpt.cli.terminal_text import escaped, shortened
from flowckpt.cli.ways_on import (
    ResumeLine,
    changed_ways,
    in_doubt_ways,
    not_undoable_ways,
    parked_ways,
    stale_ways,
)
from flowckpt.plan.model import Decision, PlannedStep, ResumePlan

_WORDS = {Decision.IN_DOUBT: "in doubt"}
_COLORS = {
    Decision.REUSE: "green",
    Decision.RERUN: "yellow",
    Decision.NEW: "blue",
    Decision.IN_DOUBT: "red",
    Decision.ORPHANED: "bright_black",
    Decision.UNDO: "magenta",
    Decision.KEEP: "bright_black",
}
_WIDTH = 10
_MOST_ALIKE = 8
_MOST_ASSUMED = 3


def plan_text(plan: ResumePlan, line: ResumeLine, *, is_colored: bool) -> str:
    """Write a plan: its steps with their reasons, what would be run, and what would stop it.

    Args:
        plan: the plan.
        line: the resume that it is of.
        is_colored: whether there may be colours.
    """
    lines = [f"plan of run {escaped(plan.workflow_id)} ({escaped(plan.workflow_name)})"]
    width = min(40, max((len(escaped(step.path)) for step in plan.steps), default=0))
    for group in _alike(plan.steps):
        lines += _step_lines(group, width, is_colored=is_colored)
    lines.append(_summary(plan))
    if plan.ends_at and not plan.stops:
        lines.append(f"The plan sees no further: {escaped(plan.ends_at)}.")
    if plan.is_undoing and not plan.is_parked and not plan.stopped_by:
        lines += _undoing_lines(plan, line)
    elif plan.stops:
        lines.append(f"The resume would stop: {escaped(plan.stops)}")
        lines += _ways(plan, line)
    elif not plan.is_nothing_to_do:
        lines.append(f"Resume with: {line.command(*['--force'] * line.options.force)}")
    return "".join(f"{each}\n" for each in lines)


def decision_text(decision: Decision, *, is_colored: bool) -> str:
    """Write a decision, as wide as the widest.

    Args:
        decision: the decision.
        is_colored: whether there may be colours.
    """
    word = f"{_WORDS.get(decision, str(decision)):{_WIDTH}}"
    return click.style(word, fg=_COLORS[decision]) if is_colored else word


def _alike(steps: Sequence[PlannedStep]) -> Iterable[list[PlannedStep]]:
    """Gather long rows of steps of one name, of which the same is to be said."""
    for _, row in groupby(steps, key=lambda step: (_name(step), step.decision, step.reasons, step.assumes)):
        group = list(row)
        if len(group) > _MOST_ALIKE:
            yield group
        else:
            yield from ([step] for step in group)


def _name(step: PlannedStep) -> str:
    return step.path.partition("[")[0]


def _step_lines(group: list[PlannedStep], width: int, *, is_colored: bool) -> list[str]:
    step = group[0]
    path = shortened(step.path, 80)
    durations = [each.duration_ms for each in group if each.duration_ms is not None]
    took = duration_text(sum(durations)) if durations else ""
    if len(group) > 1:
        path = f"{path} … {shortened(group[-1].path, 80)}"
        took = f"{len(group)} steps, {took}" if took else f"{len(group)} steps"
    lines = [f"{decision_text(step.decision, is_colored=is_colored)}{path:{width}}  {took}".rstrip()]
    lines += [" " * _WIDTH + "  " + escaped(str(reason)) for reason in step.reasons]
    if step.assumes and step.decision is not Decision.RERUN:
        lines.append(" " * _WIDTH + f"  if {assumed_text(step.assumes)} what was returned before")
    return lines


def assumed_text(paths: Sequence[str]) -> str:
    """Write of which steps the plan takes for granted that they return the same: `a, b and 3 more return`.

    Args:
        paths: the steps.
    """
    shown = ", ".join(escaped(path) for path in paths[:_MOST_ASSUMED])
    more = f" and {len(paths) - _MOST_ASSUMED} more" if len(paths) > _MOST_ASSUMED else ""
    return f"{shown}{more} return{'s' if len(paths) == 1 else ''}"


def _undoing_lines(plan: ResumePlan, line: ResumeLine) -> list[str]:
    """Write what a resume does that runs nothing."""
    lines = [f"The plan sees no further: {escaped(plan.ends_at)}."] * bool(plan.ends_at)
    lines.append(f"The resume would run nothing: {escaped(plan.stops)}; the resume after that carries on")
    undoes = line.options.rolls_back
    words = [*["--force"] * line.options.force, *["--no-rollback"] * (not undoes)]
    lines.append(f"{'Undo what is left' if undoes else 'End the run so'}: {line.command(*words)}")
    return lines


def _summary(plan: ResumePlan) -> str:
    if plan.is_undoing:
        undo, kept = plan.count(Decision.UNDO), plan.count(Decision.KEEP)
        lost = plan.count(Decision.ORPHANED)
        return f"{undo} to undo, {kept} left as {'it is' if kept == 1 else 'they are'}" + (
            f", {lost} that cannot be undone" if lost else ""
        )
    if plan.is_nothing_to_do:
        return f"nothing to run: all {plan.count(Decision.REUSE)} results are reused"
    rerun = [step.duration_ms for step in plan.steps if step.decision is Decision.RERUN]
    took = duration_text(sum(each for each in rerun if each is not None))
    parts = [f"{plan.count(Decision.REUSE)} reused"]
    parts.append(f"{len(rerun)} run again" + (f" ({'it' if len(rerun) == 1 else 'they'} took {took})" if rerun else ""))
    for decision, word in ((Decision.NEW, "new"), (Decision.IN_DOUBT, "in doubt"), (Decision.ORPHANED, "orphaned")):
        if count := plan.count(decision):
            parts.append(f"{count} {word}")
    return ", ".join(parts)


def _ways(plan: ResumePlan, line: ResumeLine) -> list[str]:
    if plan.is_parked:
        return parked_ways(line)
    if plan.is_undoing:
        return not_undoable_ways(line)
    code = code_of_stop(plan)
    if code is ExitCode.MISMATCH:
        return changed_ways(line)
    if code is ExitCode.IN_DOUBT:
        return in_doubt_ways(line)
    return stale_ways(line, kinds_of_stop(plan))
