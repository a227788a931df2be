"""Is a recorded result still true? The question that a resume asks of each of them before it reuses it."""

from __future__ import annotations

import logging
from typing import Any

from flowckpt.core.codec.results import UNREAD, take_plainly
from flowckpt.core.dsl import Step
from flowckpt.core.identity.call import function_info
from flowckpt.core.records import StepResult
from flowckpt.core.replay import Answer, Restore
from flowckpt.engine import steps
from flowckpt.engine.rules.identity import is_plainly_same
from flowckpt.engine.rules.reasons import NONDETERMINISM, OnStale, Reason, ReasonKind
from flowckpt.engine.run.context import RunContext
from flowckpt.engine.run.notify import events, evidence_event
from flowckpt.engine.values.failures import recorded_answer, stale_step
from flowckpt.execution.claims import is_open
from flowckpt.execution.runner import restored_value

_log = logging.getLogger("flowckpt")

UNSURE = UNREAD
"""The return value of `plainly_restored` where the record has to be read."""


def plainly_restored(run: RunContext, command: Restore) -> Any:
    """Return the recorded output of a step where nothing has to be asked, told or decoded; `UNSURE` elsewhere.

    As in most loops: a plain function of numbers, whose output needs no decoding. It is what `is_still_true` and
    `restored` come to then, in a third of their time, which counts after a hundred thousand steps.
    """
    step, result, judge = command.step, command.result, run.judge
    action, modifiers = step.action, step.modifiers
    info = function_info(action)
    if (
        info is None
        or not info.is_plain
        or run.notifier.names_restored
        or command.is_spare
        or result.evidence is not None
        or not result.success
        or modifiers.rollback is not None
        or modifiers.files is not None
        or modifiers.version != result.version
        or judge.policy.from_path
        or judge.reports
        or judge.packages
        or not is_plainly_same(action, info, result, judge.secrets)
    ):
        return UNSURE
    notifier = run.notifier
    if notifier.emit is not None and "/" in result.path:  # progress counts the members of each map
        return UNSURE
    value = take_plainly(result)
    if value is not UNSURE:
        if notifier.emit is not None:
            notifier.folded += 1
            notifier.last_folded = result.path
        notifier.restored += 1
    return value


async def is_still_true(
    run: RunContext, step: Step[Any], result: StepResult, *, is_spare: bool, more: tuple[Reason, ...] = ()
) -> bool:
    """Tell whether a recorded result is reused; one that is not is to be run again.

    Raises:
        StaleStepError: it is no longer true, and the policy is to stop.
    """
    judge = run.judge
    if result.evidence is not None and result.success:
        report = judge.reports.get(result.path)
        if run.notifier.executed or is_open(report):  # the world has moved on, or could not be asked before
            report = judge.reports[result.path] = await run.claims.look_again(step, result, restored_value)
        if report is not None and report.outcome != "no_evidence" and run.notifier.emit is not None:
            await run.notifier.emit(evidence_event(run.workflow_id, result.path, report, "resume"))
    is_first = not (is_spare or run.notifier.executed or run.recorder.aside.dropped)
    reasons = judge.reasons(step, result, is_behind_rerun=is_spare, is_first=is_first) + more
    answer = judge.decide(step, result, reasons) if reasons else OnStale.REUSE
    if answer is OnStale.FAIL:
        raise stale_step(run.workflow_id, result.path, reasons, repeats_effect=judge.repeats_effect(step, result))
    if NONDETERMINISM in reasons:
        said = "; ".join(judge.secrets.text(str(each)) for each in reasons)
        _log.warning("run %s: step %s: %s", run.workflow_id, result.path, said)
    if answer is OnStale.REUSE:
        return step.modifiers.files is None or run.runner.files.restored(run.claims.verifier.base_path, result)
    return judge.proves_done(step, result)


async def restored(run: RunContext, step: Step[Any], result: StepResult, *, is_spare: bool) -> Answer:
    """Take a recorded result for the step's, tell so, and return what the generator gets.

    Raises:
        DecodingError: the record does not fit the step's annotation.
    """
    if is_spare:
        run.recorder.restore(result)
    run.notifier.restored += 1
    if step.modifiers.rollback is not None and result.success:
        run.recorder.undo.undoable[result.path] = step
    if run.notifier.emit is not None:
        told = events.StepRestored(
            run.workflow_id, result.path, result.success, result.duration_ms, step.action.step_type
        )
        await run.notifier.emit(told)
    answer = recorded_answer(step, result)
    if result.success and result.evidence is not None and step.action.step_type == "approval":
        steps.approvals.stand_again(run, step, result, answer[0])
    return answer


def other_members(new: int, gone: int) -> Reason:
    """Return what speaks against the recorded end of a fan-out whose members are no longer those of the record.

    Args:
        new: how many members the record does not have.
        gone: how many recorded results have no member any more.
    """
    return Reason(ReasonKind.ARGUMENTS, f"the members are others: {new} are new, {gone} are gone")
