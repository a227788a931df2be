"""The plan of one step: a resume reuses its result, runs it again, or stops.

It compares exactly like a resume: the same judge, the same policy, the same questions about a step in doubt.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.dsl import Step, Workflow
from flowckpt.core.dsl.modifiers import list_declared_files
from flowckpt.core.identity.call import identify
from flowckpt.core.records import Status, StepResult
from flowckpt.core.records.wait import Signal, Wait, wait_in
from flowckpt.core.replay import Answer, Execute, Replay, Restore
from flowckpt.engine.dry.recorded_drive import DryResponder
from flowckpt.engine.rules.in_doubt import (
    LEFT_DONE,
    Question,
    Settlement,
    describe_missed,
    describe_start,
    find_missed,
    open_question,
    repeats_effect,
    settle_by_user,
    settle_done,
)
from flowckpt.engine.rules.judge import CONTINUES, evidence_reasons, keep_partial, moved_reasons, partial_reasons
from flowckpt.engine.rules.plan import Decision, PlannedStep, wait_reason
from flowckpt.engine.rules.reasons import OnStale, Reason, ReasonKind, ReuseMode
from flowckpt.engine.run.in_doubt import check_started
from flowckpt.engine.run.result_cache import Cached, ResultCache
from flowckpt.engine.run.resumption import Resumption
from flowckpt.engine.values.failures import misfit_error, misfit_reason, read_answer
from flowckpt.engine.values.placeholders import make_placeholder
from flowckpt.engine.values.superseded import GUARDED
from flowckpt.errors import DecodingError
from flowckpt.evidence.claims import Evidence, EvidencePack
from flowckpt.execution.claims import WRITES, ClaimChecker, file_digests, is_open
from flowckpt.execution.runner import output_annotation

if TYPE_CHECKING:
    from flowckpt.evidence.report import VerificationReport


_OF_STARTED = {
    Settlement.ASK: "its evidence cannot tell whether it was done, and the resume stops",
    Settlement.ADOPT: "its evidence proves that it was done: it is adopted",
    Settlement.RUN: "its evidence shows that it was not done: it is run",
    Settlement.FORCE: "it is forced to run again",
}
MOST_ASSUMED = 8
"""How many assumed steps the plan of a step names at most; a long loop has thousands."""


@attrs.frozen
class PlanEnd:
    """Why a resume would stop; empty if no reason is known.

    Attributes:
        why: the reason.
        at: the step.
        repeats_effect: whether running that step again would repeat an effect that happened once.
    """

    why: str = ""
    at: str = ""
    repeats_effect: bool = False


@attrs.define
class Reruns:
    """The steps that run again.

    Attributes:
        paths: the steps.
        returned: the steps among them with a recorded output.
        rewritten: the recorded digests of the files that they write, by path; None if unknown, as for a step without a
            result.
        has_ephemeral: whether an ephemeral step was yielded, whose output is not recorded.
    """

    paths: list[str] = attrs.field(factory=list)
    returned: set[str] = attrs.field(factory=set)
    rewritten: dict[str, str | None] = attrs.field(factory=dict)
    has_ephemeral: bool = False


@attrs.define(eq=False)
class PlannedSteps(DryResponder):
    """Decides about each step that the generator yields, and keeps the decisions.

    Attributes:
        workflow: the workflow.
        workflow_id: the run.
        resumption: the start of the resume.
        claims: checks the recorded claims.
        cache: the results that steps with `.cache()` may take.
        doubts: the reports on at-most-once results that would be dropped, by path.
        steps: the planned steps so far, in the order of the yields.
        again: the rerun steps on which the next step depends.
        unknown: the step whose unknown output ends the plan.
        seen: the paths that the generator has yielded.
        stop: why the resume would stop, once known.
        messages: the messages to the run that no step has consumed so far.
        replays: the generators that were driven.
    """

    workflow: Workflow[Any, Any]
    workflow_id: str
    resumption: Resumption
    claims: ClaimChecker
    cache: ResultCache
    doubts: Mapping[str, VerificationReport] = attrs.field(factory=dict)
    steps: list[PlannedStep] = attrs.field(init=False, factory=list)
    again: Reruns = attrs.field(init=False, factory=Reruns)
    unknown: tuple[str, ...] = attrs.field(init=False, default=())
    seen: set[str] = attrs.field(init=False, factory=set)
    replays: list[Replay] = attrs.field(init=False, factory=list)
    stop: PlanEnd = attrs.field(init=False, default=PlanEnd())
    messages: list[Signal] = attrs.field(
        init=False, default=attrs.Factory(lambda self: [*self.resumption.messages], takes_self=True)
    )

    async def restore(self, replay: Replay, command: Restore) -> Answer | None:
        """Plan a step with a recorded result; return its recorded answer, if that is known and fits."""
        decision, answer = await self.plan_recorded(command)
        if decision is not Decision.REUSE and answer is not None:
            replay.rerun(command, keeps_rest=True)
        return answer

    async def plan_recorded(self, command: Restore) -> tuple[Decision, Answer | None]:
        """Plan a step with a recorded result.

        Returns:
            The decision, and the answer with which the plan continues; None if a failure is in doubt, or if the
            recorded value does not fit the present code.

        Raises:
            DecodingError: the value does not fit, and the policy is to reuse it.
        """
        step, path, result = command.step, command.path, command.result
        self.seen.add(path)
        reports = self.resumption.judge.reports
        if is_open(reports.get(path)):
            reports[path] = await self.claims.verify_again(step, result)
        decision, reasons = await self.judge_result(command)
        answer: Answer | None = None
        try:
            answer = read_answer(step, result)
        except DecodingError as error:
            if decision is Decision.REUSE:
                decision, reasons = await self.judge_result(command, misfit_reason(error))
            if decision is Decision.REUSE:
                raise misfit_error(self.workflow_id, path, error) from error
        if decision is Decision.RERUN and (cached := await self._find_cached(step, path)) is not None:
            decision, reasons = Decision.CACHED, (*reasons, Reason(ReasonKind.CACHED, cached.sentence))
            answer = read_answer(step, cached.result)
        self.add(result, decision, reasons)
        return decision, None if decision is Decision.IN_DOUBT and not result.success else answer

    async def _find_cached(self, step: Step[Any], path: str) -> Cached | None:
        """Return the cached result that a step takes instead of running, and note it."""
        judge = self.resumption.judge
        if (
            step.modifiers.cache_seconds is None
            or not judge.policy.takes_cached
            or judge.is_forced(path)
            or self.stop.why
        ):
            return None
        is_prefix, again = judge.policy.reuse is ReuseMode.PREFIX and bool(self.again.paths), {*self.again.paths}
        return await self.cache.find(
            step,
            path,
            self.resumption.history.results,
            lambda other: other not in again and (other in self.seen or not is_prefix),
        )

    async def execute(self, replay: Replay, command: Execute) -> Answer | None:
        """Plan a step without a recorded result; return its earlier answer, if that is known."""
        self.seen.add(command.path)
        if command.step.modifiers.is_ephemeral:
            self.again.has_ephemeral = True
            return make_placeholder(command.step, command.path), None
        if command.step.action.is_patch:
            self.steps.append(
                PlannedStep(command.path, Decision.NEW, assumes=self.list_assumed(), location=command.location)
            )
            return True, None
        result = await self._plan_execution(command, replay, self._judge_state(command))
        with contextlib.suppress(DecodingError):  # its recorded output is not known under the present code
            return None if result is None else read_answer(command.step, result)
        return None

    def _judge_state(self, command: Execute) -> tuple[Reason, ...]:
        """Return why a step would not get its saved state, which may stop the resume."""
        judge, path = self.resumption.judge, command.path
        partial = keep_partial(self.resumption.latest.partial, judge.policy).get(path)
        reasons = () if partial is None or self.again.paths else partial_reasons(command.step, partial, judge.secrets)
        if reasons and judge.policy.decide(reasons) is OnStale.FAIL:
            self.stop_at(path, "; ".join(map(str, reasons)))
        return reasons

    async def judge_result(self, command: Restore, *more: Reason) -> tuple[Decision, tuple[Reason, ...]]:
        """Decide about a recorded result as the resume would.

        Args:
            command: the step and its result.
            *more: further reasons against it.
        """
        result, judge = command.result, self.resumption.judge
        is_after_rerun = command.is_spare and judge.policy.reuse is ReuseMode.INPUTS
        is_first = not (self.again.paths or self.again.has_ephemeral or command.is_spare)
        reasons = judge.reasons(
            command.step,
            result,
            is_after_rerun=is_after_rerun,
            is_first=is_first,
            rewritten=self.again.rewritten,
            more=more,
        )
        if self.again.paths and judge.policy.reuse is ReuseMode.PREFIX:
            reasons += (Reason(ReasonKind.UPSTREAM, f"{self.again.paths[0]} runs again before it"),)
            answer = OnStale.RERUN
        else:
            answer = judge.decide(command.step, result, reasons)
        if answer is OnStale.FAIL:
            is_effect = repeats_effect(command.step, result)
            self.stop_at(result.path, "; ".join(map(str, reasons)), is_effect=is_effect)
        if answer is OnStale.REUSE:
            return Decision.REUSE, reasons
        if answer is OnStale.FAIL or command.step.action.is_composite:  # its members are judged one by one
            return Decision.RERUN, reasons
        moved = moved_reasons(command.step, result, judge.secrets)
        question = open_question(command.step, result.path, result, judge.policy, is_moved=bool(moved))
        return await self._judge_done(question, command.step, result, reasons)

    def stop_at(self, path: str, why: str, *, is_effect: bool = False) -> None:
        """Note why and where the resume would stop, unless it stops earlier."""
        if not self.stop.why:
            self.stop = PlanEnd(f"{path}: {why}", path, is_effect)

    async def _judge_done(
        self, question: Question, step: Step[Any], result: StepResult, reasons: tuple[Reason, ...]
    ) -> tuple[Decision, tuple[Reason, ...]]:
        """Decide about a step that was done and would run again."""
        judge = self.resumption.judge
        if question is Question.SETTLED:
            decision, reason = self._judge_settled(step, result.path, result)
            return decision, (*reasons, reason)
        if question is Question.STARTED:
            return Decision.IN_DOUBT, (*reasons, *await self._judge_started(step, result.path, has_failed=True))
        if question is Question.DONE:
            return await self._judge_same_call(step, result, reasons)
        if question is Question.MOVED:
            moved = moved_reasons(step, result, judge.secrets)
            reasons += tuple(each for each in moved if each not in reasons)
            answer = judge.policy.decide(moved, is_done=True)
            if answer is OnStale.REUSE:
                return Decision.REUSE, reasons
            if answer is OnStale.FAIL:
                self.stop_at(result.path, "; ".join(map(str, reasons)), is_effect=True)
        return Decision.RERUN, reasons

    async def _judge_same_call(
        self, step: Step[Any], result: StepResult, reasons: tuple[Reason, ...]
    ) -> tuple[Decision, tuple[Reason, ...]]:
        """Decide about a step that was done by the same call and would run again."""
        report = self.doubts.get(result.path)
        if is_open(report):
            report = await self.claims.verify_again(step, result)
        settlement = settle_done(step, report, self.resumption.judge.policy)
        if settlement is Settlement.REUSE:
            return Decision.REUSE, (*reasons, Reason(ReasonKind.STARTED, "it was done, as its evidence shows"))
        if settlement is Settlement.LEAVE:
            return Decision.REUSE, (*reasons, LEFT_DONE)
        if settlement is not Settlement.ASK:
            return Decision.RERUN, reasons
        if not step.modifiers.is_at_most_once:
            self.stop_at(result.path, str(LEFT_DONE), is_effect=True)
            return Decision.RERUN, (*reasons, LEFT_DONE)
        why = "it was done, and its evidence cannot tell whether its effect still holds"
        self.stop_at(result.path, why, is_effect=True)
        return Decision.IN_DOUBT, (*reasons, Reason(ReasonKind.STARTED, "it is an at-most-once step, and was done"))

    async def _plan_execution(
        self, command: Execute, replay: Replay, of_state: tuple[Reason, ...]
    ) -> StepResult | None:
        """Plan a step that would run; return the output to continue with, if it had one."""
        path, step, resumption = command.path, command.step, self.resumption
        is_saved = not self.again.paths and path in keep_partial(resumption.latest.partial, resumption.judge.policy)
        of_state = of_state or ((CONTINUES,) if is_saved else ())
        old, reason = resumption.find_earlier(path, step, replay.aside.dropped)
        # registers the secrets that it passes, so that they are not shown
        identify(step.action, resumption.judge.secrets)
        done = None if resumption.is_undone(path) else old
        moved = () if done is None else moved_reasons(step, done, resumption.judge.secrets)
        is_in_doubt, policy = path in resumption.in_doubt, resumption.judge.policy
        question = open_question(step, path, done, policy, is_moved=bool(moved), is_in_doubt=is_in_doubt)
        reasons: tuple[Reason, ...] = () if reason is None else (reason,)
        is_new_once = done is None and question is Question.NONE and step.modifiers.is_at_most_once
        if is_new_once and self.stops_at_other(step, path):
            return None
        is_settled = question is Question.SETTLED and (done is None or not done.success)
        if is_settled or question is Question.STARTED:
            if is_settled:
                reasons = (self._judge_settled(step, path, done)[1],)
            else:
                reasons = await self._judge_started(step, path, has_failed=not is_in_doubt)
            self.steps.append(
                PlannedStep(path, Decision.IN_DOUBT, reasons, self.list_assumed(), location=command.location)
            )
            return None
        if question is not Question.NONE and old is not None:
            self.add(old, *await self._judge_done(question, step, old, reasons))
            return old
        wait = wait_in(resumption.latest.metadata, path) if step.action.is_waiting or step.modifiers.retry else None
        if wait is None and (cached := await self._find_cached(step, path)) is not None:
            reasons += (Reason(ReasonKind.CACHED, cached.sentence),)
            self.steps.append(
                PlannedStep(path, Decision.CACHED, reasons, self.list_assumed(), location=command.location)
            )
            self.again.paths.append(path)
            return cached.result
        if old is not None:
            if wait is not None and wait.is_newer_than(old):
                of_state = (*of_state, await self._explain_wait(wait))
            self.add(old, Decision.RERUN, (*reasons, *of_state))
            ended_it = reason is not None and reason.kind is ReasonKind.FAILED
            return old if path in resumption.cut and not ended_it else None
        if wait is not None:
            reasons = (await self._explain_wait(wait),)
            self.steps.append(PlannedStep(path, Decision.NEW, reasons, location=command.location))
        elif path in resumption.in_doubt or path in resumption.interrupted:
            end = "its process died" if resumption.latest.status is Status.RUNNING else "the run stopped"
            reason = Reason(ReasonKind.STARTED, f"it was running when {end}; it runs again")
            decision = Decision.RERUN if of_state not in ((), (CONTINUES,)) else Decision.INTERRUPTED
            self.steps.append(PlannedStep(path, decision, (reason, *of_state), location=command.location))
        else:
            self.steps.append(PlannedStep(path, Decision.NEW, of_state, self.list_assumed(), location=command.location))
        self.again.paths.append(path)
        self.expect_writes(step)
        return None

    async def _explain_wait(self, wait: Wait) -> Reason:
        """Return what a resume does with a waiting step; its message is consumed, so that no other step gets it."""
        message = wait.find_message(self.messages)
        moved: tuple[str, ...] = ()
        if wait.claims:
            report = await self.claims.verifier.verify_evidence_pack(EvidencePack.from_document(wait.claims))
            if message is not None or any(each.is_against and each.can_tell for each in report.verdicts):
                moved = tuple(reason.detail for reason in evidence_reasons(report))
        if message is not None:
            self.messages.remove(message)
        return wait_reason(wait, message, tuple(map(self.resumption.judge.secrets.redact, moved)))

    def expect_writes(self, step: Step[Any]) -> None:
        """Note that a step without a result will write its files, perhaps as later steps have read them."""
        with contextlib.suppress(Exception):  # a user's function: its error is reported when the step runs
            stated = step.modifiers.evidence
            claims = () if stated is None else stated.claims
            claimed = (
                claim.expected["path"] for claim in claims if isinstance(claim, Evidence) and "path" in claim.expected
            )
            files = (*list_declared_files(step, WRITES), *claimed)
            self.again.rewritten.update(dict.fromkeys(map(os.path.normpath, files)))

    def stops_at_other(self, step: Step[Any], path: str) -> bool:
        """Plan that the resume stops before a new at-most-once step, if it may be one in doubt under another name."""
        if path in self.resumption.superseded.recorded_once:
            return False
        missed = find_missed(self.resumption.list_undecided(), self.replays, path, step.action.function_name)
        for each in missed:
            self.stop_at_doubt(each, path)
        return bool(missed)

    def stop_at_doubt(self, path: str, instead: str = "") -> None:
        """Plan that the resume stops because the code no longer yields a step that may have been done."""
        detail = describe_missed(instead, has_failed=path not in self.resumption.in_doubt)
        self.stop_at(path, detail)
        self.seen.add(path)
        reason = Reason(ReasonKind.STARTED, detail)
        self.steps.append(PlannedStep(path, Decision.IN_DOUBT, (reason,), self.list_assumed()))

    async def _judge_started(self, step: Step[Any], path: str, *, has_failed: bool) -> tuple[Reason, ...]:
        """Decide, by its evidence, about a started step that must not be done twice."""
        policy = self.resumption.judge.policy
        report, settlement, runner = await check_started(self.claims, policy, self.workflow_id, step, path)
        ended = f"{describe_start(has_failed=has_failed)}{runner}"
        if settlement is Settlement.ASK:
            self.stop_at(path, f"{ended}, and its evidence cannot tell whether it was done")
        return (Reason(ReasonKind.STARTED, f"{ended}; {_OF_STARTED[settlement]}"), *evidence_reasons(report))

    def _judge_settled(self, step: Step[Any], path: str, old: StepResult | None) -> tuple[Decision, Reason]:
        """Follow the user's decision about a step."""
        settled = self.resumption.judge.policy.settled[path]
        if settled.make is not None:
            settled.make(output_annotation(step.action))  # refuses an output that does not fit
        is_reused = settle_by_user(settled, old) is Settlement.REUSE
        detail = f"{settled.sentence}: it is {'adopted' if settled.is_done else 'run'}"
        return Decision.REUSE if is_reused else Decision.IN_DOUBT, Reason(ReasonKind.STARTED, detail)

    def list_assumed(self) -> tuple[str, ...]:
        """Return steps that run again before the next one: only the first if it causes all others, else a few."""
        if self.resumption.judge.policy.reuse is ReuseMode.PREFIX:
            return tuple(self.again.paths[:1])
        return tuple(dict.fromkeys((*self.unknown, *self.again.paths)))[:MOST_ASSUMED]

    def add(self, result: StepResult, decision: Decision, reasons: tuple[Reason, ...], *, is_seen: bool = True) -> None:
        """Add a planned step with a recorded result.

        Args:
            result: the result.
            decision: what would be done with the step.
            reasons: why.
            is_seen: whether the generator has yielded it.
        """
        assumes = self.list_assumed()
        may_stop = (bool(assumes) or not is_seen) and self._stops_if_moved(result, is_seen=is_seen)
        self.steps.append(
            PlannedStep(result.path, decision, reasons, assumes, result.duration_ms, result.location, may_stop)
        )
        if decision is not Decision.REUSE:
            if result.evidence is not None:
                self.again.rewritten.update(file_digests(result))
            self.again.paths.append(result.path)
            self.again.returned.add(result.path)

    def _stops_if_moved(self, result: StepResult, *, is_seen: bool) -> bool:
        """Return whether the resume would stop at a recorded result if its arguments have changed by then."""
        judge = self.resumption.judge
        is_guarded = result.success and not GUARDED.isdisjoint(result.marks)
        if judge.is_forced(result.path) or not (is_guarded or judge.policy.reuse is ReuseMode.INPUTS):
            return False
        kinds = [ReasonKind.ARGUMENTS] if is_seen else [ReasonKind.ARGUMENTS, ReasonKind.CODE]
        if judge.handled_after(result.path):
            kinds.append(ReasonKind.HANDLED)
        return judge.policy.decide([Reason(kind, "") for kind in kinds], is_done=is_guarded) is OnStale.FAIL
