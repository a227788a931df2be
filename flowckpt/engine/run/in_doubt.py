"""Before a step runs that an earlier attempt started or finished: check its effect, and undo or adopt it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.dsl import Step
from flowckpt.core.identity.call import CallIdentity
from flowckpt.core.records import StepResult
from flowckpt.engine.rules.in_doubt import (
    LEFT_DONE,
    Question,
    Settlement,
    describe_start,
    open_question,
    settle_by_user,
    settle_done,
    settle_started,
)
from flowckpt.engine.rules.judge import Judge, moved_reasons
from flowckpt.engine.rules.reasons import OnStale, Reason, ResumePolicy
from flowckpt.engine.values.failures import stale_step_error
from flowckpt.engine.values.superseded import ON_RERUN, Superseded
from flowckpt.errors import StepInDoubtError
from flowckpt.execution.claims import ClaimChecker, list_failures
from flowckpt.execution.current_step import NO_SERVICES, StepCall
from flowckpt.execution.python import is_left_running
from flowckpt.execution.runner import Outcome, StepRunner, restore_value

if TYPE_CHECKING:
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


@attrs.frozen
class InDoubtResolver:
    """Decides about steps that may have been done before.

    Attributes:
        workflow_id: the run.
        attempt: the number of the attempt.
        judge: decides about stale results.
        superseded: results that no longer count.
        in_doubt: the paths of steps with a recorded start and no recorded end.
        runner: calls the steps' functions for adopting and undoing.
        claims: checks the steps' claims.
    """

    workflow_id: str
    attempt: int
    judge: Judge
    superseded: Superseded
    in_doubt: set[str]
    runner: StepRunner
    claims: ClaimChecker

    async def resolve(self, call: StepCall) -> Resolution:
        """Decide about a step that is about to run.

        Raises:
            StepInDoubtError: it is unknown whether the step was done, and it must not be done twice.
            StaleStepError: the step was done with other arguments, or its effect was not undone, and the user has not
                decided.
        """
        path, step = call.path, call.step
        old, is_in_doubt = self.superseded.get(path), path in self.in_doubt
        moved = () if old is None else moved_reasons(step, old, self.judge.secrets)
        question = open_question(step, path, old, self.policy, is_moved=bool(moved), is_in_doubt=is_in_doubt)
        if question is Question.SETTLED:
            return await self._follow_decision(call, old)
        resolution = RUN
        if question is Question.STARTED:
            resolution = await self._resolve_started(call, has_failed=not is_in_doubt)
        elif question is Question.DONE and old is not None:
            resolution = await self._resolve_done(step, old)
        elif question is Question.MOVED and old is not None:
            resolution = self._resolve_moved(old, moved)
        is_run = resolution.reused is None and resolution.outcome is None
        if is_run and old is not None and old.success and ON_RERUN in old.marks and step.modifiers.on_rerun is not None:
            resolution = attrs.evolve(resolution, undo=old)
        return resolution

    @property
    def policy(self) -> ResumePolicy:
        """The policy of this resume."""
        return self.judge.policy

    def _resolve_moved(self, old: StepResult, moved: tuple[Reason, ...]) -> Resolution:
        """Decide about a step that was done with another call."""
        answer = self.policy.decide(moved, is_done=True)
        if answer is OnStale.FAIL:
            raise stale_step_error(self.workflow_id, old.path, moved, repeats_effect=True)
        return Resolution(reused=old) if answer is OnStale.REUSE else RUN

    async def _follow_decision(self, call: StepCall, old: StepResult | None) -> Resolution:
        """Follow the user's decision."""
        settled = self.policy.settled[call.path]
        settlement = settle_by_user(settled, old)
        if settlement is not Settlement.ADOPT:
            return Resolution(reused=old) if settlement is Settlement.REUSE else RUN
        call = attrs.evolve(call, tries=1, services=NO_SERVICES)
        return Resolution(outcome=await self.runner.adopt(call, is_vouched=True, make=settled.make))

    async def _resolve_started(self, call: StepCall, *, has_failed: bool, is_forced: bool | None = None) -> Resolution:
        """Decide about a step that was started and has failed, or has no recorded end."""
        report = await self.claims.verify_in_doubt(call.step)
        settlement = settle_started(
            report,
            is_forced=self.policy.is_forced if is_forced is None else is_forced,
            may_be_running=may_be_running(self.policy, self.workflow_id, call.path),
        )
        if settlement is Settlement.ADOPT:
            outcome = await self.runner.adopt(attrs.evolve(call, tries=1, services=NO_SERVICES))
            return Resolution(outcome=outcome, report=report)
        if settlement is Settlement.ASK:
            raise self._make_start_doubt(call.path, report, has_failed=has_failed)
        return Resolution(report=report)

    async def resolve_retry(self, call: StepCall) -> Resolution:
        """Decide about a step before it is retried; `--force` does not apply to retries.

        Raises:
            StepInDoubtError: it is unknown whether the step was done.
        """
        return await self._resolve_started(call, has_failed=True, is_forced=False)

    async def refuse_doubt(self, step: Step[Any], path: str) -> None:
        """Refuse the resume before any step runs, if a started step stays in doubt.

        Raises:
            StepInDoubtError: it is unknown whether the step was done.
        """
        if not step.modifiers.is_at_most_once:
            self.in_doubt.discard(path)  # it runs again in any case, or is never reached
        elif path in self.in_doubt and path not in self.policy.settled:
            report = await self.claims.verify_in_doubt(step)
            is_running = may_be_running(self.policy, self.workflow_id, path)
            if settle_started(report, is_forced=self.policy.is_forced, may_be_running=is_running) is Settlement.ASK:
                raise self._make_start_doubt(path, report, has_failed=False)

    def _make_start_doubt(self, path: str, report: VerificationReport, *, has_failed: bool) -> StepInDoubtError:
        detail = _describe_doubt(report) if report.verdicts else "it has no evidence"
        ended = describe_start(has_failed=has_failed)
        if self.policy.is_taken_over:
            ended += ", and the previous owner of the run may still be running it"
        elif is_left_running(self.workflow_id, path):
            ended += ", and its function still runs after the timeout"
        return StepInDoubtError(self.workflow_id, path, detail=f"{ended}; {detail}", was_done=False)

    async def _resolve_done(self, step: Step[Any], old: StepResult) -> Resolution:
        """Decide about a step that was done with the same call; its result was dropped because of an earlier step."""
        report = None if old.evidence is None else await self.claims.verify_again(step, old, restore_value)
        settlement = settle_done(step, report, self.policy)
        if settlement in (Settlement.REUSE, Settlement.LEAVE):
            return Resolution(reused=old, report=report)
        if settlement is Settlement.ASK and not step.modifiers.is_at_most_once:
            raise stale_step_error(self.workflow_id, old.path, (LEFT_DONE,), repeats_effect=True)
        if settlement is Settlement.ASK:
            detail = "it has no evidence" if report is None else _describe_doubt(report)
            changed = f"it was done, something that it depends on has changed since, and {detail}"
            raise StepInDoubtError(self.workflow_id, old.path, detail=changed, was_done=True)
        return Resolution(report=report)

    async def undo_earlier(self, call: StepCall, old: StepResult) -> Outcome | None:
        """Undo the effect of an earlier execution; return the failure of the try if that is not possible.

        Args:
            call: the next try.
            old: the step's earlier result.
        """
        undo = call.modifiers.on_rerun
        assert undo is not None
        identity = CallIdentity(arguments=old.arguments)  # the identity of the undone call
        try:
            value = restore_value(call.step, old)
            earlier = attrs.evolve(call, tries=1, identity=identity, services=NO_SERVICES)
            await self.runner.call(undo, (value,), {}, earlier)
        except Exception as error:
            error.add_note(f"It was raised by .on_rerun(), which runs before a rerun of step {old.path!r}.")
            return Outcome(error=error)
        return None


def may_be_running(policy: ResumePolicy, workflow_id: str, path: str) -> bool:
    """Return whether the last call of a step may still run: in the previous owner, or here after its timeout."""
    return policy.is_taken_over or is_left_running(workflow_id, path)


def _describe_doubt(report: VerificationReport) -> str:
    failures = list_failures(report)
    return f"its evidence cannot tell: {'; '.join(failures) or report.reason}"
