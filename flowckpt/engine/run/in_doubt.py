"""Before a step runs that an earlier attempt started or finished: check its effect, and undo or adopt it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.dsl import Step
from flowckpt.core.identity.call import CallIdentity
from flowckpt.core.records import StepResult
from flowckpt.core.system.numbers import join_names
from flowckpt.engine.rules.in_doubt import (
    LEFT_DONE,
    Question,
    Settlement,
    describe_missed,
    describe_start,
    find_missed,
    open_question,
    settle_by_user,
    settle_done,
    settle_started,
)
from flowckpt.engine.rules.judge import moved_reasons
from flowckpt.engine.rules.reasons import OnStale, Reason, ResumePolicy
from flowckpt.engine.values.failures import stale_step_error
from flowckpt.engine.values.superseded import ON_RERUN
from flowckpt.errors import StepInDoubtError
from flowckpt.execution.claims import ClaimChecker, list_failures
from flowckpt.execution.current_step import NO_SERVICES, StepCall, find_at_work
from flowckpt.execution.python import is_left_running
from flowckpt.execution.runner import Outcome, restore_value

if TYPE_CHECKING:
    from flowckpt.engine.run.context import RunContext
    from flowckpt.evidence.report import VerificationReport


@attrs.frozen
class Resolution:
    """The treatment of a step that may have been done before.

    Attributes:
        reused: the earlier result, which is still valid; the step does not run.
        outcome: the outcome of a step that does not run: it is adopted, or adopting it failed.
        undo: the earlier result, whose effect must be undone before the step runs.
        report: the verdicts that decided, if claims were checked.
    """

    reused: StepResult | None = None
    outcome: Outcome | None = None
    undo: StepResult | None = None
    report: VerificationReport | None = None


RUN = Resolution()


async def resolve(run: RunContext, call: StepCall) -> Resolution:
    """Decide about a step that is about to run.

    Raises:
        StepInDoubtError: it is unknown whether the step was done, and it must not be done twice.
        StaleStepError: the step was done with other arguments, or its effect was not undone, and the user has not
            decided.
    """
    path, step, policy = call.path, call.step, run.judge.policy
    old, is_in_doubt = run.recorder.superseded.get(path), path in run.recorder.in_doubt
    moved = () if old is None else moved_reasons(step, old, run.judge.secrets)
    question = open_question(step, path, old, policy, is_moved=bool(moved), is_in_doubt=is_in_doubt)
    is_new = old is None and question is Question.NONE and path not in run.recorder.superseded.recorded_once
    if is_new and (doubts := run.recorder.list_doubts()):
        refuse_missed(run, find_missed(doubts, run.generators, path, call.action.function_name), path)
    if question is Question.SETTLED:
        return await _follow_decision(run, call, old)
    resolution = RUN
    if question is Question.STARTED:
        resolution = await _resolve_started(run, call, has_failed=not is_in_doubt, is_forced=policy.is_forced)
    elif question is Question.DONE and old is not None:
        resolution = await _resolve_done(run, step, old)
    elif question is Question.MOVED and old is not None:
        resolution = _resolve_moved(run, old, moved)
    is_run = resolution.reused is None and resolution.outcome is None
    if is_run and old is not None and old.success and ON_RERUN in old.marks and step.modifiers.on_rerun is not None:
        resolution = attrs.evolve(resolution, undo=old)
    return resolution


def _resolve_moved(run: RunContext, old: StepResult, moved: tuple[Reason, ...]) -> Resolution:
    """Decide about a step that was done with another call."""
    answer = run.judge.policy.decide(moved, is_done=True)
    if answer is OnStale.FAIL:
        raise stale_step_error(run.workflow_id, old.path, moved, repeats_effect=True)
    return Resolution(reused=old) if answer is OnStale.REUSE else RUN


async def _follow_decision(run: RunContext, call: StepCall, old: StepResult | None) -> Resolution:
    """Follow the user's decision."""
    settled = run.judge.policy.settled[call.path]
    settlement = settle_by_user(settled, old)
    if settlement is not Settlement.ADOPT:
        return Resolution(reused=old) if settlement is Settlement.REUSE else RUN
    call = attrs.evolve(call, tries=1, services=NO_SERVICES)
    return Resolution(outcome=await run.runner.adopt(call, is_vouched=True, make=settled.make))


async def _resolve_started(run: RunContext, call: StepCall, *, has_failed: bool, is_forced: bool) -> Resolution:
    """Decide about a step that was started and has failed, or has no recorded end."""
    policy = attrs.evolve(run.judge.policy, is_forced=is_forced)
    report, settlement, runner = await check_started(run.claims, policy, run.workflow_id, call.step, call.path)
    if settlement is Settlement.ADOPT:
        outcome = await run.runner.adopt(attrs.evolve(call, tries=1, services=NO_SERVICES))
        return Resolution(outcome=outcome, report=report)
    if settlement is Settlement.ASK:
        raise _make_start_doubt(run, call.path, report, runner, has_failed=has_failed)
    return Resolution(report=report)


async def resolve_retry(run: RunContext, call: StepCall) -> Resolution:
    """Decide about a step before it is retried; `--force` does not apply to retries.

    Raises:
        StepInDoubtError: it is unknown whether the step was done.
    """
    return await _resolve_started(run, call, has_failed=True, is_forced=False)


async def refuse_doubt(run: RunContext, step: Step[Any], path: str) -> None:
    """Refuse the resume before any step runs, if a started step stays in doubt.

    Raises:
        StepInDoubtError: it is unknown whether the step was done.
    """
    if not step.modifiers.is_at_most_once:
        run.recorder.in_doubt.discard(path)  # it runs again in any case, or is never reached
    elif path in run.recorder.in_doubt and path not in run.judge.policy.settled:
        report, settlement, runner = await check_started(run.claims, run.judge.policy, run.workflow_id, step, path)
        if settlement is Settlement.ASK:
            raise _make_start_doubt(run, path, report, runner, has_failed=False)


def refuse_missed(run: RunContext, missed: Iterable[str], instead: str = "") -> None:
    """Refuse code that no longer yields a step which may have been done; forget what the user has decided about it.

    Under another name, the step would be done twice.

    Args:
        run: the current attempt of the run.
        missed: the steps.
        instead: the new step that it yields now; empty if there is none.

    Raises:
        StepInDoubtError: the user has not decided about one of them.
    """
    recorder, policy = run.recorder, run.judge.policy
    for path in missed:
        if not (policy.is_forced or path in policy.settled):
            has_failed = path not in recorder.in_doubt
            raise StepInDoubtError(run.workflow_id, path, detail=describe_missed(instead, has_failed=has_failed))
        if not instead:  # else the code may still yield it
            recorder.in_doubt.discard(path)
            recorder.forget_superseded(path)


def _make_start_doubt(
    run: RunContext, path: str, report: VerificationReport, runner: str, *, has_failed: bool
) -> StepInDoubtError:
    detail = _describe_doubt(report) if report.verdicts else "it has no evidence"
    ended = f"{describe_start(has_failed=has_failed)}{runner}"
    return StepInDoubtError(run.workflow_id, path, detail=f"{ended}; {detail}", was_done=False)


async def _resolve_done(run: RunContext, step: Step[Any], old: StepResult) -> Resolution:
    """Decide about a step that was done with the same call; its result was dropped because of an earlier step."""
    report = None if old.evidence is None else await run.claims.verify_again(step, old)
    settlement = settle_done(step, report, run.judge.policy)
    if settlement in (Settlement.REUSE, Settlement.LEAVE):
        return Resolution(reused=old, report=report)
    if settlement is Settlement.ASK and not step.modifiers.is_at_most_once:
        raise stale_step_error(run.workflow_id, old.path, (LEFT_DONE,), repeats_effect=True)
    if settlement is Settlement.ASK:
        detail = "it has no evidence" if report is None else _describe_doubt(report)
        changed = f"it was done, something that it depends on has changed since, and {detail}"
        raise StepInDoubtError(run.workflow_id, old.path, detail=changed, was_done=True)
    return Resolution(report=report)


async def undo_earlier(run: RunContext, call: StepCall, old: StepResult) -> Outcome | None:
    """Undo the effect of an earlier execution; return the failure of the try if that is not possible.

    Args:
        run: the current attempt of the run.
        call: the next try.
        old: the step's earlier result.
    """
    undo = call.modifiers.on_rerun
    assert undo is not None
    identity = CallIdentity(arguments=old.arguments)  # the identity of the undone call
    try:
        value = restore_value(call.step, old)
        earlier = attrs.evolve(call, tries=1, identity=identity, services=NO_SERVICES)
        await run.runner.call(undo, (value,), {}, earlier)
    except Exception as error:
        error.add_note(f"It was raised by .on_rerun(), which runs before a rerun of step {old.path!r}.")
        return Outcome(error=error)
    return None


async def check_started(
    claims: ClaimChecker, policy: ResumePolicy, workflow_id: str, step: Step[Any], path: str
) -> tuple[VerificationReport, Settlement, str]:
    """Check the claims of a step that was started and has failed, or has no recorded end, and decide about it.

    Returns:
        The verdicts, the decision, and who may still be running the step, for a message.
    """
    runner = _describe_runner(policy, workflow_id, step, path)  # first: it may end in between
    report = await claims.verify_in_doubt(step)
    return report, settle_started(report, is_forced=policy.is_forced, may_be_running=bool(runner)), runner


def _describe_runner(policy: ResumePolicy, workflow_id: str, step: Step[Any], path: str) -> str:
    """Return who may still be running a step, as the end of a sentence; empty if it cannot be running."""
    if path not in policy.settled and (processes := policy.runners.get(path)):
        named = join_names([f"process {each.pid} on {each.host}" for each in processes], 3)
        return f", and an earlier owner of the run ({named}) may still be running it"
    if is_left_running(workflow_id, path):
        return ", and its function still runs after the timeout"
    what = "command" if step.action.is_command else "worker"
    pids = find_at_work(policy.birth, path)
    if pids is None and (step.action.is_command or step.modifiers.placement is not None):
        return f", and its {what} may still be running"
    return f", and its {what} still runs (process {join_names([*map(str, pids)], 3)})" if pids else ""


def _describe_doubt(report: VerificationReport) -> str:
    failures = list_failures(report)
    return f"its evidence cannot tell: {'; '.join(failures) or report.reason}"
