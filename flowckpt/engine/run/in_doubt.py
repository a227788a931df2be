"""Before a step that was started or done earlier is run: look at what it left behind, and undo or adopt it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.dsl import Step
from flowckpt.core.identity.call import CallIdentity
from flowckpt.core.records import StepResult
from flowckpt.engine.rules.in_doubt import LEFT_DONE, Question, Settlement, open_question, settle_done, settle_started
from flowckpt.engine.rules.judge import Judge, moved_reasons
from flowckpt.engine.rules.reasons import OnStale, Reason, ResumePolicy, Settled
from flowckpt.engine.values.failures import stale_step
from flowckpt.engine.values.superseded import ON_RERUN, Superseded
from flowckpt.errors import StepInDoubtError
from flowckpt.execution.claims import ClaimChecker, found_in
from flowckpt.execution.current_step import NO_SERVICES, StepCall
from flowckpt.execution.python import is_left_running
from flowckpt.execution.runner import Outcome, StepRunner, restored_value

if TYPE_CHECKING:
    from flowckpt.evidence.report import VerificationReport


@attrs.frozen
class Resolution:
    """The finding about a step before it is run.

    Attributes:
        reused: its earlier result, which still holds: nothing is run.
        outcome: what it comes to without being run: adopted, or refused by what only its result could tell.
        undo: its earlier result, whose effect is to be undone before it is run.
        report: the answers that decided, if any were asked for.
    """

    reused: StepResult | None = None
    outcome: Outcome | None = None
    undo: StepResult | None = None
    report: VerificationReport | None = None


RUN = Resolution()


@attrs.frozen
class InDoubtResolver:
    """Settles the steps of one attempt.

    Attributes:
        workflow_id: the run.
        attempt: its attempt.
        judge: decides about stale results.
        superseded: results that no longer count.
        in_doubt: the paths of steps whose start was recorded and whose end was not.
        runner: calls what the steps give for adopting and undoing.
        claims: asks the world.
    """

    workflow_id: str
    attempt: int
    judge: Judge
    superseded: Superseded
    in_doubt: set[str]
    runner: StepRunner
    claims: ClaimChecker

    async def before(self, call: StepCall) -> Resolution:
        """Settle a step that is about to run.

        Raises:
            StepInDoubtError: it must not be done twice, and it is unknown whether it was done.
            StaleStepError: it was done by another call, or what it did was not undone, and no person chose.
        """
        path, step = call.path, call.step
        settled = self.policy.settled.get(path) if step.modifiers.is_at_most_once else None
        if settled is not None:
            return await self._settled(call, settled)
        old, is_in_doubt = self.superseded.get(path), path in self.in_doubt
        moved = () if old is None else moved_reasons(step, old, self.judge.secrets)
        question = open_question(step, path, old, self.policy, is_moved=bool(moved), is_in_doubt=is_in_doubt)
        found = RUN
        if question is Question.STARTED:
            found = await self._started(call, has_failed=not is_in_doubt)
        elif question is Question.DONE and old is not None:
            found = await self._done(step, old)
        elif question is Question.MOVED and old is not None:
            found = self._moved(old, moved)
        is_run = found.reused is None and found.outcome is None
        if is_run and old is not None and old.success and ON_RERUN in old.marks and step.modifiers.on_rerun is not None:
            found = attrs.evolve(found, undo=old)
        return found

    @property
    def policy(self) -> ResumePolicy:
        """The policy of this resume."""
        return self.judge.policy

    def _moved(self, old: StepResult, moved: tuple[Reason, ...]) -> Resolution:
        """Settle a step that was done by another call."""
        answer = self.policy.decide(moved, is_done=True)
        if answer is OnStale.FAIL:
            raise stale_step(self.workflow_id, old.path, moved, repeats_effect=True)
        return Resolution(reused=old) if answer is OnStale.REUSE else RUN

    async def _settled(self, call: StepCall, settled: Settled) -> Resolution:
        """Do what a person decided; where the step was recorded before, its own result counts as its output."""
        old = self.superseded.get(call.path)
        if not settled.is_done:
            return RUN
        if old is not None and old.success and settled.make is None:
            return Resolution(reused=old)
        call = attrs.evolve(call, tries=1, services=NO_SERVICES)
        return Resolution(outcome=await self.runner.adopted(call, is_vouched=True, make=settled.make))

    async def _started(self, call: StepCall, *, has_failed: bool) -> Resolution:
        """Settle a step that was started, and whose end is not known or was a failure."""
        report = await self.claims.report_in_doubt(call.step)
        settlement = settle_started(report, may_be_running=self._may_be_running(call.path))
        if settlement is Settlement.ADOPT:
            outcome = await self.runner.adopted(attrs.evolve(call, tries=1, services=NO_SERVICES))
            return Resolution(outcome=outcome, report=report)
        if settlement is Settlement.ASK:
            self._ask_of_start(call.path, report, has_failed=has_failed)
        return Resolution(report=report)

    async def refuse_doubt(self, step: Step[Any], path: str) -> None:
        """Refuse the resume before anything runs, if a step that was started cannot be settled.

        Args:
            step: the step.
            path: its path.

        Raises:
            StepInDoubtError: it is unknown whether it was done.
        """
        if not step.modifiers.is_at_most_once:
            self.in_doubt.discard(path)  # it runs again, whatever it did; or its turn never comes
        elif path in self.in_doubt and path not in self.policy.settled:
            report = await self.claims.report_in_doubt(step)
            if settle_started(report, may_be_running=self._may_be_running(path)) is Settlement.ASK:
                self._ask_of_start(path, report, has_failed=False)

    def _may_be_running(self, path: str) -> bool:
        return self.policy.is_taken_over or is_left_running(self.workflow_id, path)

    def _ask_of_start(self, path: str, report: VerificationReport, *, has_failed: bool) -> None:
        detail = _said(report) if report.verdicts else "it has no evidence"
        ended = "it failed" if has_failed else "it was started, and its end was never recorded"
        if self.policy.is_taken_over:
            ended += ", and the owner that the run was stolen from may still be at it"
        elif is_left_running(self.workflow_id, path):
            ended += ", and its work is still running, though the run no longer waits for it"
        self._ask(path, f"{ended}; {detail}")

    async def retried(self, call: StepCall) -> Resolution:
        """Settle a step before it is tried again: to force a resume does not cover the tries that it makes.

        Raises:
            StepInDoubtError: it is unknown whether it was done.
        """
        judge = attrs.evolve(self.judge, policy=attrs.evolve(self.policy, is_forced=False, settled={}))
        unforced = attrs.evolve(self, judge=judge)
        return await unforced._started(call, has_failed=True)

    async def _done(self, step: Step[Any], old: StepResult) -> Resolution:
        """Settle a step that was done, by the same call, and whose result was dropped with an earlier one."""
        report = None if old.evidence is None else await self.claims.look_again(step, old, restored_value)
        settlement = Settlement.ASK if report is None else settle_done(report)
        if settlement is Settlement.REUSE:
            return Resolution(reused=old, report=report)
        if settlement is Settlement.ASK and not step.modifiers.is_at_most_once:
            if self.policy.on_stale is OnStale.REUSE:
                return Resolution(reused=old, report=report)
            raise stale_step(self.workflow_id, old.path, (LEFT_DONE,), repeats_effect=True)
        if settlement is Settlement.ASK:
            detail = "it has no evidence" if report is None else _said(report)
            changed = f"it was done, something that it depends on has changed since, and {detail}"
            self._ask(old.path, changed, was_done=True)
        return Resolution(report=report)

    async def undone(self, call: StepCall, old: StepResult) -> Outcome | None:
        """Undo what an earlier execution left behind; return the failure of the try if that is not possible.

        Args:
            call: the try that follows.
            old: its earlier result.
        """
        undo = call.modifiers.on_rerun
        assert undo is not None
        identity = CallIdentity(arguments=old.arguments)  # of the call that is undone
        try:
            value = restored_value(call.step, old)
            earlier = attrs.evolve(call, tries=1, identity=identity, services=NO_SERVICES)
            await self.runner.call(undo, (value,), {}, earlier)
        except Exception as error:
            error.add_note(f"It was raised by .on_rerun(), before step {old.path!r} was to be run again.")
            return Outcome(error=error)
        return None

    def _ask(self, path: str, detail: str, *, was_done: bool = False) -> None:
        if not self.policy.is_forced:
            raise StepInDoubtError(self.workflow_id, path, detail=detail, was_done=was_done)


def _said(report: VerificationReport) -> str:
    found = found_in(report)
    return f"its evidence cannot tell: {'; '.join(found) or report.reason}"
