"""Before a step runs that an earlier attempt started or finished: check its effect, and undo or adopt it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.dsl import Step
from flowckpt.core.identity.call import CallIdentity
from flowckpt.core.records import StepResult
from flowckpt.engine.rules.in_doubt import LEFT_DONE, Question, Settlement, open_question, settle_done, settle_started
from flowckpt.engine.rules.judge import Judge, moved_reasons
from flowckpt.engine.rules.reasons import OnStale, Reason, ResumePolicy, Settled
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
        settled = self.policy.settled.get(path) if step.modifiers.is_at_most_once else None
        if settled is not None:
            return await self._follow_decision(call, settled)
        old, is_in_doubt = self.superseded.get(path), path in self.in_doubt
        moved = () if old is None else moved_reasons(step, old, self.judge.secrets)
        question = open_question(step, path, old, self.policy, is_moved=bool(moved), is_in_doubt=is_in_doubt)
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

    async def _follow_decision(self, call: StepCall, settled: Settled) -> Resolution:
        """Follow the user's decision; if the step has an earlier result, that is its output."""
        old = self.superseded.get(call.path)
        if not settled.is_done:
            return RUN
        if old is not None and old.success and settled.make is None:
            return Resolution(reused=old)
        call = attrs.evolve(call, tries=1, services=NO_SERVICES)
        return Resolution(outcome=await self.runner.adopt(call, is_vouched=True, make=settled.make))

    async def _resolve_started(self, call: StepCall, *, has_failed: bool) -> Resolution:
        """Decide about a step that was started and has failed, or has no recorded end."""
        report = await self.claims.verify_in_doubt(call.step)
        settlement = settle_started(report, may_be_running=self._may_be_running(call.path))
        if settlement is Settlement.ADOPT:
            outcome = await self.runner.adopt(attrs.evolve(call, tries=1, services=NO_SERVICES))
            return Resolution(outcome=outcome, report=report)
        if settlement is Settlement.ASK:
            self._raise_start_doubt(call.path, report, has_failed=has_failed)
        return Resolution(report=report)

    async def refuse_doubt(self, step: Step[Any], path: str) -> None:
        """Refuse the resume before any step runs, if a started step stays in doubt.

        Raises:
            StepInDoubtError: it is unknown whether the step was done.
        """
        if not step.modifiers.is_at_most_once:
            self.in_doubt.discard(path)  # it runs again in any case, or is never reached
        elif path in self.in_doubt and path not in self.policy.settled:
            report = await self.claims.verify_in_doubt(step)
            if settle_started(report, may_be_running=self._may_be_running(path)) is Settlement.ASK:
                self._raise_start_doubt(path, report, has_failed=False)

    def _may_be_running(self, path: str) -> bool:
        return self.policy.is_taken_over or is_left_running(self.workflow_id, path)

    def _raise_start_doubt(self, path: str, report: VerificationReport, *, has_failed: bool) -> None:
        detail = _describe_doubt(report) if report.verdicts else "it has no evidence"
        ended = "it failed" if has_failed else "it was started, and its end was never recorded"
        if self.policy.is_taken_over:
            ended += ", and the previous owner of the run may still be running it"
        elif is_left_running(self.workflow_id, path):
            ended += ", and its function still runs after the timeout"
        self._raise_doubt(path, f"{ended}; {detail}")

    async def resolve_retry(self, call: StepCall) -> Resolution:
        """Decide about a step before it is retried; `--force` does not apply to retries.

        Raises:
            StepInDoubtError: it is unknown whether the step was done.
        """
        judge = attrs.evolve(self.judge, policy=attrs.evolve(self.policy, is_forced=False, settled={}))
        unforced = attrs.evolve(self, judge=judge)
        return await unforced._resolve_started(call, has_failed=True)

    async def _resolve_done(self, step: Step[Any], old: StepResult) -> Resolution:
        """Decide about a step that was done with the same call; its result was dropped because of an earlier step."""
        report = None if old.evidence is None else await self.claims.verify_again(step, old, restore_value)
        settlement = Settlement.ASK if report is None else settle_done(report)
        if settlement is Settlement.REUSE:
            return Resolution(reused=old, report=report)
        if settlement is Settlement.ASK and not step.modifiers.is_at_most_once:
            if self.policy.on_stale is OnStale.REUSE:
                return Resolution(reused=old, report=report)
            raise stale_step_error(self.workflow_id, old.path, (LEFT_DONE,), repeats_effect=True)
        if settlement is Settlement.ASK:
            detail = "it has no evidence" if report is None else _describe_doubt(report)
            changed = f"it was done, something that it depends on has changed since, and {detail}"
            self._raise_doubt(old.path, changed, was_done=True)
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

    def _raise_doubt(self, path: str, detail: str, *, was_done: bool = False) -> None:
        if not self.policy.is_forced:
            raise StepInDoubtError(self.workflow_id, path, detail=detail, was_done=was_done)


def _describe_doubt(report: VerificationReport) -> str:
    failures = list_failures(report)
    return f"its evidence cannot tell: {'; '.join(failures) or report.reason}"
