"""Rules for a step whose effect must not be repeated, when the effect may have happened already.

Such a step is marked `.at_most_once()`, or has a `.rollback()` that was not called.

started, its end not recorded     its claims, with the facts that the program states, decide (at-most-once steps only)
done with another call            stop, unless the user has decided
done, and dropped because of      the recorded claims decide
an earlier step

claims hold         do not run it again: adopt the effect, or reuse the recorded result
claims are denied   it was not done, or is undone: run it
unknown             ask, never guess
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from flowckpt.core.dsl import Step
from flowckpt.core.identity.call import argument_differences
from flowckpt.core.records import StepResult
from flowckpt.engine.rules.reasons import OnStale, Reason, ReasonKind, ResumePolicy, Settled

if TYPE_CHECKING:
    from flowckpt.core.replay import Replay
    from flowckpt.evidence.report import VerificationReport


class Settlement(StrEnum):
    """The decision about a step that may have been done."""

    RUN = "run"
    FORCE = "force"
    """Nothing is known, and the user forces it: run it."""
    ADOPT = "adopt"
    REUSE = "reuse"
    LEAVE = "leave"
    """Its effect was not undone, and the user asked for the recorded results: reuse it."""
    ASK = "ask"


class Question(StrEnum):
    """The question to answer before a step runs."""

    NONE = "none"
    SETTLED = "settled"
    """The user has decided whether the step was done: does its recorded output count?"""
    STARTED = "started"
    """The step was started and failed, or its end is unknown: was it done?"""
    DONE = "done"
    """The step was done by the same call, and its result was dropped with an earlier one: does its effect hold?"""
    MOVED = "moved"
    """The step was done by another call: should this call do it too?"""


NOT_STARTED = "not_started"
"""The only mark of an at-most-once step that failed before its function was called."""
RERUN_DECIDED = "rerun_decided"
"""Marks a result that the user set aside: its step runs again unasked."""
LEFT_DONE = Reason(ReasonKind.UPSTREAM, "an earlier step runs again, and the effect of this one was not undone")
"""Why a step with `.rollback()` is not simply run again after an earlier step."""


def repeats_effect(step: Step[Any], result: StepResult) -> bool:
    """Return whether a rerun would repeat an effect that must not be repeated without the user's decision.

    `.on_rerun()` undoes the effect before it happens again.

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
    """Return the question to answer before a step runs; `Question.NONE` if there is none.

    Args:
        step: the step as it is yielded now.
        path: its path.
        old: its earlier result that no longer counts, if there is one.
        policy: the policy of the resume; `--from` with this step does not resolve a doubt about it.
        is_moved: whether its arguments or version tag differ from those of the old result.
        is_in_doubt: whether its start was recorded and its end was not.
    """
    is_at_most_once = step.modifiers.is_at_most_once
    if is_at_most_once and path in policy.settled:
        return Question.SETTLED
    if is_at_most_once and is_in_doubt:
        return Question.STARTED
    if old is None or path == policy.from_path or RERUN_DECIDED in old.marks:
        return Question.NONE
    if not old.success:
        return Question.STARTED if is_at_most_once and NOT_STARTED not in old.marks else Question.NONE
    if is_at_most_once and not is_moved:
        return Question.DONE
    if not repeats_effect(step, old) or (not is_at_most_once and policy.reruns_what_follows):
        return Question.NONE
    return Question.MOVED if is_moved else Question.DONE


def find_missed(
    doubts: Mapping[str, str], replays: Iterable[Replay], path: str, function: str | None = None
) -> list[str]:
    """Return the steps that may have been done and that the code did not yield before a step, as it did when they started.

    A generator that has raised yields no more steps; if one around it yields or returns, that failure was handled.

    Args:
        doubts: the at-most-once steps that may have been done, each with its function.
        replays: the generators of the run.
        path: the step, or the prefix of a generator that has ended.
        function: the function of the step, which may be the same step under another name; None for a generator.
    """
    place = path[: path.rfind("/") + 1]
    return [
        each
        for replay in replays
        if replay.prefix == place
        or (replay in replay.aside.raised and replay.prefix.startswith(place))
        or (function is not None and place.startswith(replay.prefix))
        for each in replay.list_unreached(doubts)
        if each != path and (function is None or doubts[each].partition(":")[2] == function.partition(":")[2])
    ]


def settle_by_user(settled: Settled, old: StepResult | None) -> Settlement:
    """Follow the user's decision about a step; the output of its earlier result counts, unless the user gave another.

    Args:
        settled: the decision.
        old: its earlier result, if there is one.
    """
    if not settled.is_done:
        return Settlement.RUN
    return Settlement.REUSE if old is not None and old.success and settled.make is None else Settlement.ADOPT


def describe_start(*, has_failed: bool) -> str:
    """Return how the last call of a step in doubt ended."""
    return "it failed" if has_failed else "it was started, and its end was never recorded"


def describe_missed(instead: str, *, has_failed: bool) -> str:
    """Return what is known about a step in doubt that the code no longer yields.

    Args:
        instead: the new step that the code yields now, which may be the same under another name; empty if there is none.
        has_failed: whether the last call of the step in doubt failed.
    """
    start = describe_start(has_failed=has_failed)
    if not instead:
        return f"{start}, and the workflow no longer yields it"
    return (
        f"{start}, and the workflow now yields step {instead!r}, which would run whatever you decide; if both do the same, "
        "give it the old name and place first"
    )


def settle_started(report: VerificationReport, *, is_forced: bool = False, may_be_running: bool = False) -> Settlement:
    """Decide about a step that was started and has failed, or has no recorded end.

    Args:
        report: the verdicts on its claims, checked as for a step in doubt.
        is_forced: whether the user forces it if nothing is known.
        may_be_running: whether the process that started it may still be running it, as after `--steal` from a live
            owner. Then an effect that is missing now may still happen.
    """
    if report.verified:
        return Settlement.ADOPT
    if report.outcome == "failed" and not may_be_running:
        return Settlement.RUN
    return Settlement.FORCE if is_forced else Settlement.ASK


def is_same_call(result: StepResult, arguments: Mapping[str, Any], version: str | None) -> bool:
    """Return whether running a step now would repeat the effect of a recorded result.

    Args:
        result: the recorded result.
        arguments: the present arguments, in the form of the record.
        version: the present version tag.
    """
    return not argument_differences(result.arguments, arguments) and result.version == version


def settle_done(step: Step[Any], report: VerificationReport | None, policy: ResumePolicy) -> Settlement:
    """Decide about a step that was done with the same arguments, and would run again because an earlier step does.

    Args:
        step: the step as it is yielded now.
        report: the verdicts on its recorded claims; None if it has none.
        policy: the policy of the resume.
    """
    if report is not None and report.verified:
        return Settlement.REUSE
    if report is not None and report.outcome == "failed" and not _has_other_files(report):
        return Settlement.RUN
    if policy.is_forced:
        return Settlement.FORCE
    if not step.modifiers.is_at_most_once and policy.on_stale is OnStale.REUSE:
        return Settlement.LEAVE
    return Settlement.ASK


def _has_other_files(report: VerificationReport) -> bool:
    """Return whether a step was done with other files than there are now."""
    return any(verdict.evidence.role == "reads" and verdict.is_against for verdict in report.verdicts)
