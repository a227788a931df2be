"""The resume plan: the generator driven against its record with all effects off.

The comparing is the very one of a resume: the same replay, the same judge, the same policy. Where a step would run, its
output is not known; behind a recorded one that would run again, the plan goes on with what it returned before, and says
so (`assumes`). It ends at the first step whose output nobody has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import attrs

from flowckpt.checkpoint import Status, StepError, StepResult
from flowckpt.dsl import Step, Workflow
from flowckpt.engine.failures import step_failure
from flowckpt.engine.resumption import Resumption
from flowckpt.engine.superseded import AT_MOST_ONCE
from flowckpt.engine.verifying import Verifying, is_open
from flowckpt.errors import WorkflowChangedError
from flowckpt.execution.runner import restored_value
from flowckpt.plan.identity import arguments_of
from flowckpt.plan.in_doubt import Question, Settlement, is_same_call, open_question, settle_done, settle_started
from flowckpt.plan.judge import evidence_reasons
from flowckpt.plan.model import Decision, PlannedStep, ResumePlan
from flowckpt.plan.policy import OnStale, ReuseMode
from flowckpt.plan.reason import Reason, ReasonKind
from flowckpt.replay import Crash, Execute, Finish, Replay, Restore

if TYPE_CHECKING:
    from flowckpt.evidence.verdict import VerificationReport

MOST_ASSUMED = 8
"""How many steps are named that a step's plan assumes to return the same again; a long loop has thousands."""


class PlanStopped(BaseException):
    """No error, and no `Exception`: raised where the generator uses the output of a step that a plan does not run."""


def _stop(self: NotRun, *_: Any, **__: Any) -> NoReturn:
    raise PlanStopped(self._path)


class NotRun:
    """Stands for the output of an ephemeral step, which a plan does not run; it may be handed on, but not used."""

    def __init__(self, path: str) -> None:
        object.__setattr__(self, "_path", path)

    def __getattribute__(self, name: str) -> Any:
        if name in ("_path", "__class__"):
            return object.__getattribute__(self, name)
        raise PlanStopped(object.__getattribute__(self, "_path"))

    __bool__ = __len__ = __iter__ = __call__ = __getitem__ = __enter__ = __eq__ = __lt__ = __add__ = __str__ = _stop
    __repr__ = __contains__ = __setattr__ = __radd__ = __int__ = __float__ = __index__ = __hash__ = _stop


@attrs.define
class Planning:
    """Makes the plan of one resume.

    Attributes:
        workflow: the workflow.
        workflow_id: the run.
        resumption: what the resume starts from.
        verifying: checks the recorded claims.
        doubts: the answers to the claims of results that are marked `at_most_once` and would be dropped, by path.
    """

    workflow: Workflow[Any, Any]
    workflow_id: str
    resumption: Resumption
    verifying: Verifying
    doubts: Mapping[str, VerificationReport] = attrs.field(factory=dict)
    _steps: list[PlannedStep] = attrs.field(init=False, factory=list)
    _reruns: list[str] = attrs.field(init=False, factory=list)
    _seen: set[str] = attrs.field(init=False, factory=set)
    _stops: str = ""
    _stopped_by: str = ""

    async def plan(self) -> ResumePlan:
        """Drive the generator and return what a resume would do."""
        resumption = self.resumption
        policy = resumption.judge.policy
        history = resumption.history
        replay = Replay(
            self.workflow(**resumption.bound.values(self.workflow)),
            history.results,
            self.workflow.name,
            drops_what_changed=policy.is_forced,
            spare=resumption.spare,
        )
        ends_at = ""
        try:
            ends_at = await self._driven(replay)
        except PlanStopped as stop:
            ends_at = f"the workflow uses the output of {stop.args[0]!r}, which is run at each resume and not by a plan"
        except WorkflowChangedError as error:
            self._stops, self._stopped_by = error.message, error.yielded
            ends_at = "the workflow yields something else than the record says"
        finally:
            replay.close()
        self._add_the_unseen(replay, is_finished=not ends_at)
        steps = self._steps
        if resumption.latest.status is Status.COMPLETED and not any(_is_work(each) for each in steps):
            steps = [each for each in steps if each.decision is Decision.REUSE]  # nothing is run in a complete run
            self._stops = self._stopped_by = ends_at = ""
        return ResumePlan(self.workflow_id, self.workflow.name, tuple(steps), ends_at, self._stops, self._stopped_by)

    async def _driven(self, replay: Replay) -> str:
        command = replay.start()
        while True:
            if isinstance(command, Finish):
                return ""
            if isinstance(command, Crash):
                if isinstance(command.error, PlanStopped):
                    raise command.error
                return f"the workflow raises {type(command.error).__name__}: {command.error}"[:300]
            self._seen.add(command.path)
            if isinstance(command, Restore):
                reports = self.resumption.judge.reports
                if is_open(reports.get(command.path)):
                    reports[command.path] = await self.verifying.look_again(command.step, command.result)
                decision, reasons = await self._judged(command)
                self._add(command.result, decision, reasons)
                if decision is not Decision.REUSE:
                    replay.rerun(command, keeps_rest=True)
                result: StepResult | None = command.result
            elif command.step.modifiers.is_ephemeral:
                command = replay.send(NotRun(command.path))
                continue
            else:
                result = await self._executed(command, replay)
            if result is None:
                return f"the output of {command.path!r} is not known yet"
            if result.success:
                command = replay.send(restored_value(command.step, result))
            else:
                command = replay.throw(step_failure(result.path, result.error or StepError("", "")))

    async def _judged(self, command: Restore) -> tuple[Decision, tuple[Reason, ...]]:
        """Decide about a recorded result as the resume would."""
        result, judge = command.result, self.resumption.judge
        reasons = judge.reasons(
            command.step, result, is_behind_rerun=command.is_spare and judge.policy.reuse is ReuseMode.INPUTS
        )
        if self._reruns and judge.policy.reuse is ReuseMode.PREFIX:
            reasons += (Reason(ReasonKind.UPSTREAM, f"{self._reruns[0]} runs again before it"),)
            answer = OnStale.RERUN
        else:
            answer = judge.decide(reasons)
        if answer is OnStale.FAIL and not self._stops:
            self._stops = f"{result.path}: " + "; ".join(map(str, reasons))
            self._stopped_by = result.path
        if answer is OnStale.REUSE:
            return Decision.REUSE, reasons
        modifiers, is_forced = command.step.modifiers, result.path == judge.policy.from_path
        is_settled = modifiers.is_at_most_once and result.success and not is_forced
        if is_settled and is_same_call(result, arguments_of(command.step.action), modifiers.version):
            return await self._settled(command.step, result, reasons)
        return Decision.RERUN, reasons

    async def _settled(
        self, step: Step[Any], result: StepResult, reasons: tuple[Reason, ...]
    ) -> tuple[Decision, tuple[Reason, ...]]:
        """Decide about a step that must not be done twice and would run again."""
        report = self.doubts.get(result.path)
        if is_open(report):
            report = await self.verifying.look_again(step, result)
        settlement = Settlement.ASK if report is None else settle_done(report)
        if settlement is Settlement.REUSE:
            return Decision.REUSE, (*reasons, Reason(ReasonKind.STARTED, "it was done, as its evidence shows"))
        if settlement is Settlement.RUN or self.resumption.judge.policy.is_forced:
            return Decision.RERUN, reasons
        self._stops = self._stops or f"{result.path}: it was done, and its evidence cannot tell whether it still is"
        self._stopped_by = self._stopped_by or result.path
        return Decision.IN_DOUBT, (*reasons, Reason(ReasonKind.STARTED, "it is to be done at most once, and was done"))

    async def _executed(self, command: Execute, replay: Replay) -> StepResult | None:
        """Add a step that would run, and return the output to go on with, if it had one."""
        path, step, resumption = command.path, command.step, self.resumption
        old, reason = self._earlier(path, replay, step)
        question = open_question(
            step.modifiers,
            old,
            arguments_of(step.action),
            is_in_doubt=path in resumption.in_doubt,
            is_asked_for=path == resumption.judge.policy.from_path,
        )
        if question is Question.STARTED:
            await self._started(command, has_failed=path not in resumption.in_doubt)
            return None
        if question is Question.DONE and old is not None:
            self._add(old, *await self._settled(step, old, () if reason is None else (reason,)))
            return old
        if old is not None:
            self._add(old, Decision.RERUN, () if reason is None else (reason,))
            ended_it = reason is not None and reason.kind is ReasonKind.FAILED
            return old if path in resumption.cut and not ended_it else None
        if path in resumption.in_doubt or path in resumption.begun:
            reason = Reason(ReasonKind.STARTED, "it was started, and its end was never recorded; it is run again")
            self._steps.append(PlannedStep(path, Decision.IN_DOUBT, (reason,), location=command.location))
        else:
            self._steps.append(PlannedStep(path, Decision.NEW, assumes=self._assumed(), location=command.location))
            self._reruns.append(path)
        return None

    def _earlier(self, path: str, replay: Replay, step: Step[Any]) -> tuple[StepResult | None, Reason | None]:
        """Return the result of a path that no longer counts, and why it does not."""
        resumption = self.resumption
        if path in resumption.cut:
            return resumption.cut[path]
        old = resumption.superseded.get(path)
        if old is not None:
            return old, Reason(
                ReasonKind.UPSTREAM, "its earlier result no longer counts: the run went on from before it"
            )
        for dropped in replay.aside.dropped:
            if dropped.path == path:  # another step under a recorded path
                action = step.action
                now = f"{action.step_type} {action.function_name}".rstrip()
                return dropped, Reason(ReasonKind.CODE, f"was {dropped.step_type} {dropped.function}, is {now}")
        return None, None

    async def _started(self, command: Execute, *, has_failed: bool) -> None:
        """Add a step that must not be done twice, and was started; its evidence says what comes of it."""
        report = await self.verifying.report_in_doubt(command.step)
        settlement = settle_started(report)
        ended = "it failed" if has_failed else "it was started, and its end was never recorded"
        if settlement is Settlement.ASK and not self.resumption.judge.policy.is_forced:
            said = "its evidence cannot tell whether it was done, and the resume stops"
            self._stops = self._stops or f"{command.path}: {ended}, and its evidence cannot tell whether it was done"
            self._stopped_by = self._stopped_by or command.path
        elif settlement is Settlement.ADOPT:
            said = "its evidence proves that it was done: it is adopted"
        else:
            denied = settlement is Settlement.RUN
            said = "its evidence shows that it was not done: it is run" if denied else "it is forced to run again"
        reasons = (Reason(ReasonKind.STARTED, f"{ended}; {said}"), *evidence_reasons(report))
        self._steps.append(PlannedStep(command.path, Decision.IN_DOUBT, reasons, location=command.location))

    def _assumed(self) -> tuple[str, ...]:
        """Return the steps that run again before the next one: one where the first drags all others along, else a few."""
        is_prefix = self.resumption.judge.policy.reuse is ReuseMode.PREFIX
        return tuple(self._reruns[: 1 if is_prefix else MOST_ASSUMED])

    def _add(self, result: StepResult, decision: Decision, reasons: tuple[Reason, ...]) -> None:
        assumes = self._assumed()
        self._steps.append(PlannedStep(result.path, decision, reasons, assumes, result.duration_ms, result.location))
        if decision is not Decision.REUSE:
            self._reruns.append(result.path)

    def _add_the_unseen(self, replay: Replay, *, is_finished: bool) -> None:
        """Add the recorded results that the generator has not come to."""
        resumption, judge = self.resumption, self.resumption.judge
        recorded = [*resumption.history.results, *(result for result, _ in resumption.cut.values())]
        recorded += () if is_finished else resumption.spare.values()
        is_changed = bool(self._stops) and self._stopped_by not in self._seen
        is_completed = resumption.latest.status is Status.COMPLETED
        dropped = {result.path for result in replay.aside.dropped}
        if not (is_finished or is_changed or is_completed):  # those that wait for their step since an earlier resume
            known = {result.path for result in recorded}
            earlier = [result for result in resumption.superseded.results if AT_MOST_ONCE in result.marks]
            recorded += (result for result in earlier if result.path not in known)
        for result in recorded:
            if result.path in self._seen:
                continue
            is_dropped = result.path in dropped or result.path in resumption.cut or result.path in resumption.superseded
            is_dropped |= bool(self._reruns) and judge.policy.reuse is ReuseMode.PREFIX
            if is_finished or is_changed or (is_completed and result.path in dropped):
                self._steps.append(PlannedStep(result.path, Decision.ORPHANED, duration_ms=result.duration_ms))
            elif is_dropped and AT_MOST_ONCE in result.marks:
                detail = "it is to be done at most once, and was begun; what comes of it is seen when it is come to"
                self._add(result, Decision.IN_DOUBT, (Reason(ReasonKind.STARTED, detail),))
            elif result.path in dropped:
                reason = Reason(ReasonKind.UPSTREAM, "the workflow yields another step before it")
                self._add(result, Decision.RERUN, (reason,))
            elif result.path in resumption.cut:
                self._add(result, Decision.RERUN, (resumption.cut[result.path][1],))
            elif self._reruns and judge.policy.reuse is ReuseMode.PREFIX:
                reason = Reason(ReasonKind.UPSTREAM, f"{self._reruns[0]} runs again before it")
                self._add(result, Decision.RERUN, (reason,))
            else:
                reasons = judge.evidence_reasons(result)
                answer = judge.decide(reasons)
                self._add(result, Decision.REUSE if answer is OnStale.REUSE else Decision.RERUN, reasons)


async def make_plan(
    workflow: Workflow[Any, Any], workflow_id: str, resumption: Resumption, verifying: Verifying
) -> ResumePlan:
    """Return what a resume would do.

    Args:
        workflow: the workflow.
        workflow_id: the run.
        resumption: what the resume starts from.
        verifying: checks the recorded claims.
    """
    doubts = await verifying.reports_of(_doubtful(resumption))
    return await Planning(workflow, workflow_id, resumption, verifying, doubts).plan()


def _doubtful(resumption: Resumption) -> list[StepResult]:
    """Return the results of steps that must not be done twice and would be, were something before them stale.

    Args:
        resumption: what the resume starts from.
    """
    results = [*resumption.history.results, *resumption.superseded.results]
    return [result for result in results if AT_MOST_ONCE in result.marks and result.success]


def _is_work(step: PlannedStep) -> bool:
    return step.decision in (Decision.RERUN, Decision.IN_DOUBT)
