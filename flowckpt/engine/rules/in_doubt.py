"""What to do with a step that must not be done twice, when it may have been done already.

started, its end not recorded     its claims, with the facts that the program states, decide
done, and dropped with what       another call is another effect: run it; the same call: the recorded claims decide
came before it

claims hold         do not run it again: adopt the effect, or reuse the recorded result
claims are denied   it was not done, or is undone: run it
nobody can tell     ask, and never guess
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from flowckpt.core.dsl.modifiers import Modifiers
from flowckpt.core.identity.arguments import argument_differences
from flowckpt.core.records import StepResult

if TYPE_CHECKING:
    from flowckpt.evidence.report import VerificationReport


class Settlement(StrEnum):
    """What to do with a step that may have been done."""

    RUN = "run"
    ADOPT = "adopt"
    REUSE = "reuse"
    ASK = "ask"


class Question(StrEnum):
    """What must be known before a step is run."""

    NONE = "none"
    STARTED = "started"
    """It was started, and its end is not known or was a failure: was it done?"""
    DONE = "done"
    """It was done, by the same call, and its result was dropped with an earlier one: does what it did still hold?"""


def open_question(
    modifiers: Modifiers,
    old: StepResult | None,
    arguments: Mapping[str, Any],
    *,
    is_in_doubt: bool,
    is_asked_for: bool,
) -> Question:
    """Return what must be known before a step is run.

    Args:
        modifiers: the step's.
        old: its result that no longer counts, if there is one.
        arguments: what the record would keep of its arguments now.
        is_in_doubt: whether its start was recorded and its end was not.
        is_asked_for: whether somebody asked for this very step to be run again; that settles no doubt.
    """
    if not modifiers.is_at_most_once:
        return Question.NONE
    if is_in_doubt:
        return Question.STARTED
    if old is None or is_asked_for:
        return Question.NONE
    if not old.success:
        return Question.STARTED
    return Question.DONE if is_same_call(old, arguments, modifiers.version) else Question.NONE


def settle_started(report: VerificationReport, *, may_be_running: bool = False) -> Settlement:
    """Settle a step that was started and whose end was not recorded.

    Args:
        report: the answers to its claims, asked as of a step in doubt.
        may_be_running: whether whoever started it may still be at it, as after a run was stolen from a live owner: what
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
    return Settlement.RUN if report.outcome == "failed" else Settlement.ASK
