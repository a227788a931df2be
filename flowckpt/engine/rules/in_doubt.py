"""Rules for a step whose effect must not be repeated, when the effect may have happened already.

Such a step is marked `.at_most_once()`, or has a `.rollback()` that was not called.

started, its end not recorded     its claims, with the facts that the program states, decide (at-most-once steps only)
done, and called otherwise now    stop, unless a person chose
done, and dropped with an         the recorded claims decide
earlier step

claims hold         do not run it again: adopt the effect, or reuse the recorded result
claims are denied   it was not done, or is undone: run it
it is unknown       ask, and never guess
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from flowckpt.core.dsl import Step
from flowckpt.core.identity.call import argument_differences
from flowckpt.core.records import StepResult
from flowckpt.engine.rules.reasons import Reason, ReasonKind, ResumePolicy

if TYPE_CHECKING:
    from flowckpt.evidence.report import VerificationReport


class Settlement(StrEnum):
    """The decision about a step that may have been done."""

    RUN = "run"
    ADOPT = "adopt"
    REUSE = "reuse"
    ASK = "ask"


class Question(StrEnum):
    """The question that must be answered before a step is run."""

    NONE = "none"
    STARTED = "started"
    """It was started, and its end is not known or was a failure: was it done?"""
    DONE = "done"
    """It was done, by the same call, and its result was dropped with an earlier one: does what it did still hold?"""
    MOVED = "moved"
    """It was done, by another call: is it to be done by this one, too?"""


NOT_STARTED = "not_started"
"""The only mark of a failure before the function of an at-most-once step was called."""
LEFT_DONE = Reason(ReasonKind.UPSTREAM, "a step before it runs again, and what this one did was not undone")
"""Why a step with a `.rollback()` is not simply run again after an earlier one."""


def repeats_effect(step: Step[Any], result: StepResult) -> bool:
    """Return whether a rerun of a step would repeat an effect that must not be repeated without a person.

    With `.on_rerun()`, the effect is undone before it happens again.

    Args:
        step: the step as it is yielded now.
        result: its recorded result, which was not undone.
    """
    modifiers = step.modifiers
    if not result.success or modifiers.on_rerun is not None or step.action.modifies_members:
        return False
    return modifiers.is_at_most_once or modifiers.rollback is not None


def open_question(
    step: Step[Any],
    path: str,
    old: StepResult | None,
    policy: ResumePolicy,
    *,
    is_moved: bool,
    is_in_doubt: bool = False,
) -> Question:
    """Return what must be known before a step is run.

    Args:
        step: the step as it is yielded now.
        path: its path.
        old: its result that no longer counts, if there is one.
        policy: what was asked for; to ask for this very step settles no doubt.
        is_moved: whether its arguments or its version tag are no longer those of the old result.
        is_in_doubt: whether its start was recorded and its end was not.
    """
    is_at_most_once = step.modifiers.is_at_most_once
    if is_at_most_once and is_in_doubt:
        return Question.STARTED
    if old is None or path == policy.from_path:
        return Question.NONE
    if not old.success:
        return Question.STARTED if is_at_most_once and NOT_STARTED not in old.marks else Question.NONE
    if is_at_most_once and not is_moved:
        return Question.DONE
    if not repeats_effect(step, old) or (not is_at_most_once and policy.reruns_what_follows):
        return Question.NONE
    return Question.MOVED if is_moved else Question.DONE


def settle_started(report: VerificationReport, *, may_be_running: bool = False) -> Settlement:
    """Settle a step that was started and whose end was not recorded.

    Args:
        report: the answers to its claims, asked as of a step in doubt.
        may_be_running: whether the process that started it may still be at it, as after a run was stolen from a live owner: what
            is not done yet may be done in a moment.
    """
    if report.verified:
        return Settlement.ADOPT
    return Settlement.RUN if report.outcome == "failed" and not may_be_running else Settlement.ASK


def is_same_call(result: StepResult, arguments: Mapping[str, Any], version: str | None) -> bool:
    """Tell whether a step, run now, would repeat the effect of a recorded result.

    Args:
        result: the recorded result.
        arguments: what the record would keep of the arguments now.
        version: its version tag now.
    """
    return not argument_differences(result.arguments, arguments) and result.version == version


def settle_done(report: VerificationReport) -> Settlement:
    """Settle a step that was done with the same arguments, and would run again because one before it does.

    Args:
        report: the answers to its recorded claims.
    """
    if report.verified:
        return Settlement.REUSE
    if any(verdict.evidence.role == "reads" and verdict.is_against for verdict in report.verdicts):
        return Settlement.ASK  # it was done, of other files
    return Settlement.RUN if report.outcome == "failed" else Settlement.ASK
