"""Is a recorded result still true? The question that a resume asks of each of them before it reuses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowckpt.core.codec.tags import is_itself
from flowckpt.core.dsl import Step
from flowckpt.core.identity.function import known_of
from flowckpt.core.records import StepResult
from flowckpt.core.replay import Answer, Restore
from flowckpt.core.system.lazy import LazyModule
from flowckpt.engine.rules.identity import is_plainly_same
from flowckpt.engine.rules.reasons import OnStale, Reason, ReasonKind
from flowckpt.engine.run.attempt import Attempt
from flowckpt.engine.run.notify import evidence_event
from flowckpt.engine.run.verification import is_open
from flowckpt.engine.values.failures import recorded_answer, stale_step

if TYPE_CHECKING:
    from flowckpt import events
    from flowckpt.engine.steps import approvals
else:
    events = LazyModule("flowckpt.events")
    approvals = LazyModule("flowckpt.engine.steps.approvals")


UNSURE: Any = object()
"""What `plainly_restored` returns where the record has to be looked at."""


def plainly_restored(attempt: Attempt, command: Restore) -> Any:
    """Return the recorded output of a step where nothing has to be asked, told or decoded; `UNSURE` elsewhere.

    As in most loops: a plain function of numbers, whose output is its own record. It is what `is_still_true` and
    `restored` come to then, in a third of their time, which counts behind a hundred thousand steps.

    Args:
        attempt: the attempt.
        command: the step as it is yielded now, and its recorded result.
    """
    step, result, judge = command.step, command.result, attempt.judge
    action, modifiers, held = step.action, step.modifiers, result.held_output
    known = known_of(action)
    if (
        known is None
        or not known.is_plain
        or attempt.tell is not None
        or command.is_spare
        or result.evidence is not None
        or not result.success
        or modifiers.rollback is not None
        or modifiers.version != result.version
        or judge.policy.from_path
        or judge.reports
        or not is_itself(held)
        or not is_plainly_same(action, known, result, judge.secrets)
    ):
        return UNSURE
    attempt.restored += 1
    return held


async def is_still_true(
    attempt: Attempt, step: Step[Any], result: StepResult, *, is_spare: bool, more: tuple[Reason, ...] = ()
) -> bool:
    """Tell whether a recorded result is reused; one that is not is to be run again.

    Args:
        attempt: the attempt.
        step: the step as it is yielded now.
        result: its recorded result.
        is_spare: whether a step before it runs again.
        more: what else speaks against it.

    Raises:
        StaleStepError: it is no longer true, and the policy is to stop.
    """
    judge = attempt.judge
    if result.evidence is not None and result.success:
        report = judge.reports.get(result.path)
        if attempt.executed or is_open(report):  # the world has moved on, or could not be asked before
            report = judge.reports[result.path] = await attempt.verifying.look_again(step, result)
        if report is not None and report.outcome != "no_evidence" and attempt.tell is not None:
            await attempt.tell(evidence_event(attempt.workflow_id, result.path, report, "resume"))
    reasons = judge.reasons(step, result, is_behind_rerun=is_spare) + more
    if not reasons or (answer := judge.decide(reasons)) is OnStale.REUSE:
        return True
    if answer is OnStale.FAIL:
        raise stale_step(attempt.workflow_id, result.path, reasons, is_at_most_once=step.modifiers.is_at_most_once)
    return judge.proves_done(step, result)


async def restored(attempt: Attempt, step: Step[Any], result: StepResult, *, is_spare: bool) -> Answer:
    """Take a recorded result for the step's, tell so, and return what the generator gets.

    Args:
        attempt: the attempt.
        step: the step as it is yielded now.
        result: its recorded result.
        is_spare: whether the result is not, or not yet again, in the history.

    Raises:
        DecodingError: the record does not fit the step's annotation.
    """
    if is_spare:
        attempt.keep(result)
    attempt.restored += 1
    if step.modifiers.rollback is not None and result.success:
        attempt.undoable[result.path] = step
    if attempt.tell is not None:
        told = events.StepRestored(
            attempt.workflow_id, result.path, result.success, result.duration_ms, step.action.step_type
        )
        await attempt.tell(told)
    answer = recorded_answer(step, result)
    if result.success and result.evidence is not None and step.action.step_type == "approval":
        approvals.stand_again(attempt, step, result, answer[0])
    return answer


def other_members(new: int, gone: int) -> Reason:
    """Return what speaks against the recorded end of a fan-out whose members are no longer those of the record.

    Args:
        new: how many members the record does not have.
        gone: how many recorded results have no member any more.
    """
    return Reason(ReasonKind.ARGUMENTS, f"the members are others: {new} are new, {gone} are gone")
