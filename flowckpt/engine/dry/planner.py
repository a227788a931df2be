"""The resume plan: the generator driven against its record with all effects off.

It compares exactly like a resume: the same replay, the same judge, the same policy. The output of a step that would run
is not known. After a recorded step that would run again, the plan continues with the recorded output, and notes that in
`assumes`. It ends at the first step whose output is not known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core import codec
from flowckpt.core.codec.blob import plain_tree
from flowckpt.core.dsl import NextGeneration, Workflow
from flowckpt.core.dsl.composites import FanOutAction, ItemsError, WorkflowAction
from flowckpt.core.identity.sources import refresh
from flowckpt.core.records import Status, StepResult
from flowckpt.core.replay import (
    Answer,
    Crash,
    DroppedResults,
    Enter,
    Execute,
    Expansion,
    Finish,
    Replay,
    Restore,
    drive,
    expand,
)
from flowckpt.core.system.clock import Clock
from flowckpt.engine.dry.planned_steps import PlanEnd, PlannedSteps
from flowckpt.engine.rules.in_doubt import find_missed
from flowckpt.engine.rules.paths import (
    ROLLBACK,
    UNDOABLE,
    HandledFailure,
    find_handled_end,
    find_left_to_undo,
    group_nested,
    is_stopped,
    is_within,
    list_below,
    split_stopped_member,
)
from flowckpt.engine.rules.plan import NEXT_GENERATION, Decision, PlannedStep, ResumePlan, redact_steps
from flowckpt.engine.rules.reasons import OnStale, Reason, ReasonKind, ReuseMode
from flowckpt.engine.run.result_cache import ResultCache
from flowckpt.engine.run.resumption import Resumption, find_moved_versions
from flowckpt.engine.steps.child import start_child
from flowckpt.engine.steps.run_step import OTHER_END, changed_members_reason, has_other_end
from flowckpt.engine.values.failures import read_answer, read_fan_out, step_failure, stopped_error
from flowckpt.engine.values.placeholders import PlanStopped, SecretNeeded, use_missing_secret
from flowckpt.engine.values.superseded import AT_MOST_ONCE, GUARDED
from flowckpt.errors import EncodingError, WorkflowChangedError
from flowckpt.execution.claims import ClaimChecker

if TYPE_CHECKING:
    from flowckpt.stores.base import StoreBase


FEW = 8
"""How many earlier rerun steps are passed to a member; the first ones are enough."""


@attrs.define(eq=False)
class Planning(PlannedSteps):
    """Makes the plan of one resume.

    Attributes:
        aside: recorded results that would be dropped or may be reused.
        cut_below: the steps that contain steps whose results do not count from the start, each with those steps.
        unended_below: the same for steps that have begun without a known end.
    """

    aside: DroppedResults = attrs.field(init=False, factory=DroppedResults)
    cut_below: Mapping[str, list[str]] = attrs.field(init=False)
    unended_below: Mapping[str, list[str]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.cut_below = group_nested(self.resumption.cut)
        self.unended_below = group_nested(self.resumption.list_begun())

    async def plan(self) -> ResumePlan:
        """Drive the generator and return what a resume would do."""
        resumption = self.resumption
        policy, secrets = resumption.judge.policy, resumption.judge.secrets
        history = resumption.history
        self.aside.spare.update(resumption.spare)
        self.aside.waiting.update(resumption.list_begun())
        replay = Replay(
            self.workflow.make_generator(resumption.bound.values(self.workflow, use_missing=use_missing_secret)),
            history.results,
            self.workflow.name,
            drops_what_changed=policy.is_forced,
            aside=self.aside,
            is_muted=True,
        )
        ends_at = ends_otherwise = ""
        handled: HandledFailure | None = None
        try:
            end = await self.drive_generator(replay)
            ends_otherwise = secrets.redact(self._describe_other_end(end))
            handled = self._find_handled_failure(end)
            ends_at = secrets.redact(end if isinstance(end, str) else _describe_end(end))
        except SecretNeeded as stop:
            name = stop.args[0]
            ends_at = f"the workflow itself uses the secret input {name!r}, which is not recorded: add -i {name}=…"
        except PlanStopped as stop:
            ends_at = f"the workflow uses the output of {stop.args[0]!r}, which runs at each resume but not in a plan"
        except WorkflowChangedError as error:
            self.stop = PlanEnd(secrets.redact(error.message), secrets.redact(error.yielded))
            ends_at = "the workflow does not follow the record"
        finally:
            replay.close()
        self._add_unseen(replay, is_finished=ends_at in ("", NEXT_GENERATION))
        if resumption.final is not None:
            self.stop = PlanEnd(secrets.redact(resumption.final.message))
        return ResumePlan(
            self.workflow_id,
            self.workflow.name,
            redact_steps(self.steps, secrets),
            ends_at,
            self.stop.why,
            self.stop.at,
            is_final=resumption.final is not None,
            ends_otherwise=ends_otherwise,
            handled=handled,
            repeats_effect=self.stop.repeats_effect,
        )

    def _find_handled_failure(self, end: Finish | Crash | str) -> HandledFailure | None:
        """Return the handled failure with which a failed run would end again, if everything is restored."""
        latest = self.resumption.latest
        is_restored = isinstance(end, Crash) and all(each.decision is Decision.REUSE for each in self.steps)
        if latest.status is not Status.FAILED or latest.error is None or not is_restored:
            return None
        return find_handled_end(latest.step_results, latest.error.path)

    def _describe_other_end(self, end: Finish | Crash | str) -> str:
        """Return how a finished run would end now, if it restores everything but ends differently."""
        latest = self.resumption.latest
        if latest.status is not Status.COMPLETED or isinstance(end, str) or any(map(_is_work, self.steps)):
            return ""
        if isinstance(end, Crash):
            return _describe_crash(end)
        recorded = plain_tree(latest.held_output, "output")
        if type(end.output) is NextGeneration:
            return "the workflow continues as another generation, but the finished run returned"
        try:
            returned = codec.encode(end.output, self.workflow.output_type, place="output")
        except EncodingError as error:
            return f"the workflow returns a value that cannot be recorded: {error.message}"[:300]
        return (
            ""
            if returned == recorded
            else f"the workflow returns {codec.dumps(returned)[:120]}, but the finished run returned {codec.dumps(recorded)[:120]}"
        )

    async def drive_generator(self, replay: Replay) -> Finish | Crash | str:
        """Drive a generator as far as its outputs are known; return its end, or why the plan ends.

        Args:
            replay: the generator and its record.
        """
        self.replays.append(replay)
        end = await drive(replay, self)
        missed = (
            find_missed(self.resumption.list_undecided(), self.replays, replay.prefix)
            if isinstance(end, Finish)
            else ()
        )
        for each in missed:
            self.stop_at_doubt(each)
        if missed:
            return f"{missed[0]!r} may have been done"
        if isinstance(end, Crash) and isinstance(end.error, PlanStopped):
            raise end.error
        if isinstance(end, Finish | Crash):
            return end
        self.unknown = (end.path,)
        return f"the output of {end.path!r} is not known yet"

    def _add_unseen(self, replay: Replay, *, is_finished: bool) -> None:
        """Add the recorded results that the generator has not reached."""
        resumption, judge = self.resumption, self.resumption.judge
        recorded = [*resumption.history.results, *(result for result, _ in resumption.cut.values())]
        recorded += () if is_finished else resumption.spare.values()
        is_changed = bool(self.stop.why) and self.stop.at not in self.seen
        dropped = {result.path for result in replay.aside.dropped}
        if not (is_finished or is_changed):  # results that have waited for their step since an earlier resume
            known = {result.path for result in recorded}
            earlier = [result for result in resumption.superseded.values() if not GUARDED.isdisjoint(result.marks)]
            recorded += (result for result in earlier if result.path not in known)
        for result in recorded:
            if result.path in self.seen or result.step_type == ROLLBACK:
                continue
            if is_finished or is_changed:
                self.steps.append(PlannedStep(result.path, Decision.ORPHANED, duration_ms=result.duration_ms))
                continue
            reason = self._find_drop_reason(result, dropped)
            if reason is None:
                reasons = judge.evidence_reasons(result, rewritten=self.again.rewritten)
                is_reused = judge.policy.decide(reasons) is OnStale.REUSE
                self.add(result, Decision.REUSE if is_reused else Decision.RERUN, reasons, is_seen=False)
            elif AT_MOST_ONCE in result.marks and not resumption.is_undone(result.path):
                detail = "it is an at-most-once step that was started before; the resume decides when it reaches it"
                self.add(result, Decision.IN_DOUBT, (Reason(ReasonKind.STARTED, detail),), is_seen=False)
            else:
                self.add(result, Decision.RERUN, (reason,), is_seen=False)

    def _find_drop_reason(self, result: StepResult, dropped: set[str]) -> Reason | None:
        """Return why a result that the generator has not reached no longer counts; None if it may be reused."""
        path, resumption = result.path, self.resumption
        if path in dropped:
            return Reason(ReasonKind.UPSTREAM, "the workflow yields another step before it")
        if path in resumption.cut:
            return resumption.cut[path][1]
        if path in resumption.superseded and not resumption.is_undone(path):
            detail = "an earlier resume set its result aside; this resume decides when it reaches the step"
            return Reason(ReasonKind.UPSTREAM, detail)
        if self.again.paths and resumption.judge.policy.reuse is ReuseMode.PREFIX:
            return Reason(ReasonKind.UPSTREAM, f"{self.again.paths[0]} runs again before it")
        return None

    # --- composites: what a resume would do with each of their steps, and so with the whole ---------------------------

    async def enter(self, replay: Replay, command: Enter) -> Answer | None:
        """Plan a composite and its steps; return its recorded answer, if that is known."""
        answer, is_reused = await self.plan_member(replay, command)
        if not is_reused and command.result is not None:
            replay.begin_again(keeps_rest=True)
        elif answer is None:
            replay.begin(command)
        return answer

    async def plan_member(self, replay: Replay, enter: Enter) -> tuple[Answer | None, bool]:
        """Plan a member and everything nested in it; return its answer, and whether its recorded result is reused."""
        step, path, result = enter.step, enter.path, enter.result
        if step.action.is_composite:
            self.seen.add(path)
            is_begun = path in self.cut_below or path in self.unended_below or path in self.resumption.cut
            if result is None and not enter.nested and not is_begun:
                self.steps.append(PlannedStep(path, Decision.NEW, assumes=self.list_assumed(), location=enter.location))
                self.again.paths.append(path)
                if isinstance(step.action, FanOutAction) and step.action.size is not None:
                    for made in _create_members(expand(enter)):
                        if made.step.modifiers.is_at_most_once and self.stops_at_other(made.step, made.path):
                            break
                        self.expect_writes(made.step)
                return None, False
            if isinstance(step.action, WorkflowAction):
                return await self._plan_child(enter, step.action)
            return await self._plan_fan_out(replay, enter)
        if result is None or step.modifiers.is_ephemeral:
            answer = await self.execute(replay, Execute(path, step, enter.location))
            return answer, step.modifiers.is_ephemeral
        before = len(self.again.paths)
        _, answer = await self.plan_recorded(Restore(path, step, result, enter.is_spare))
        return answer, answer is not None and len(self.again.paths) == before

    def plan_stopped_members(
        self, stopped: list[tuple[int, Enter]], *, is_again: bool, has_ended: bool
    ) -> list[tuple[int, Enter]]:
        """Plan the members that a race stopped; return those that run because the race is no longer decided."""
        again: list[tuple[int, Enter]] = []
        for index, made in stopped:
            assert made.result is not None
            if is_again:
                kept, gone = split_stopped_member(made.nested)
                self.aside.dropped += [*gone, made.result]
                again.append((index, attrs.evolve(made, result=None, nested=kept)))
                continue
            steps = [each for each in made.nested if each.step_type != ROLLBACK]
            self.seen.update(each.path for each in (*steps, made.result))
            marked = () if has_ended else {each.path for each in steps if UNDOABLE in each.marks}
            left = {each.path for each in find_left_to_undo(made.nested, marked)}
            for each in (*steps, made.result):
                if each.path in left:
                    why = (Reason(ReasonKind.UNDOING, "a race stopped the member that contains it"),)
                    self.steps.append(
                        PlannedStep(each.path, Decision.UNDO, why, duration_ms=each.duration_ms, location=each.location)
                    )
                else:
                    self.add(each, Decision.REUSE, ())
        return again

    async def _plan_fan_out(self, replay: Replay, enter: Enter) -> tuple[Answer | None, bool]:
        path, result, before = enter.path, enter.result, [*self.again.paths]
        decision, reasons = await self._judge_composite(enter)
        fan_out = _PlannedFanOut(self, replay, enter, decision is Decision.RERUN, before[:FEW])
        gone = await fan_out.plan_members()
        is_moved = fan_out.is_all_again or bool(fan_out.stale or fan_out.new or gone)
        has_other_end = result is not None and not is_moved and fan_out.has_other_end(result)
        if result is not None and has_other_end:
            self.again.paths = before
            decision, reasons = await self.judge_result(Restore(path, enter.step, result, enter.is_spare), OTHER_END)
            is_moved = decision is Decision.RERUN
        await fan_out.plan_remaining(is_moved=is_moved)
        reruns = fan_out.reruns
        self.again.paths = before + reruns
        self.seen.update(gone)
        self.steps += [PlannedStep(each, Decision.ORPHANED) for each in gone]
        if result is None:
            return fan_out.find_answer(self._plan_unended(enter, tuple(reruns[:1]))), False
        if not is_moved:
            self.add(result, decision, reasons)
            return read_fan_out(enter, result, fan_out.known_answers), True
        if fan_out.stale and not fan_out.is_all_again:
            reasons = (*reasons, Reason(ReasonKind.UPSTREAM, f"{fan_out.stale} runs again"))
        elif not (fan_out.is_all_again or has_other_end):
            self.again.paths = before
            restore = Restore(path, enter.step, result, enter.is_spare)
            _, reasons = await self.judge_result(restore, changed_members_reason(fan_out.new, len(gone)))
            self.again.paths = before + reruns
        self.add(result, Decision.RERUN, reasons)
        return fan_out.find_answer(result), False

    def _plan_unended(self, enter: Enter, assumes: tuple[str, ...]) -> StepResult | None:
        """Plan a composite that runs to its end; return its earlier answer, if the plan continues with that."""
        assumes = tuple(each for each in assumes if each in self.again.returned)  # a waiting step has returned nothing
        old, reason = self.resumption.cut.get(enter.path, (None, None))
        if old is None or reason is None:
            self.steps.append(PlannedStep(enter.path, Decision.NEW, assumes=assumes, location=enter.location))
            self.again.paths.append(enter.path)
            return None
        self.add(old, Decision.RERUN, (reason,))
        cut = self.resumption.cut.items()
        has_ended_the_run = any(why.kind is ReasonKind.FAILED for each, (_, why) in cut if is_within(each, enter.path))
        return None if has_ended_the_run else old

    async def _plan_child(self, enter: Enter, action: WorkflowAction) -> tuple[Answer | None, bool]:
        path, result, nested = enter.path, enter.result, enter.nested
        aside = self.aside
        decision, reasons = await self._judge_composite(enter)
        judge, before = self.resumption.judge, list(self.again.paths)
        is_again = decision is Decision.RERUN
        if enter.is_spare or (is_again and judge.policy.reuse is ReuseMode.INPUTS and not judge.is_forced(path)):
            aside.spare.update({each.path: each for each in nested})
            nested = ()
        if is_again:
            self.again.paths = [*before, path]
        had = len(self.again.paths)
        is_refused = decision is Decision.REUSE and result is not None and not result.success and not nested
        replay = Replay(
            start_child(action, path) if is_refused else action.workflow.make_generator(action.inputs),
            nested,
            action.workflow.name,
            prefix=f"{path}/",
            drops_what_changed=not enter.is_bound or is_again,
            aside=aside,
            is_muted=True,
        )
        with contextlib.closing(replay):
            end = await self.drive_generator(replay)
        again = self.again.paths[had:]
        self.again.paths = before + again
        recorded = (plain_tree(result.held_output, "output"),) if result is not None and result.success else ()
        returned: tuple[Any, ...] = ()
        if isinstance(end, Finish):
            try:
                returned = (codec.encode(end.output, action.workflow.output_type, place=f"{path}: output"),)
            except EncodingError:  # it contains the output of a step that is not recorded
                returned = recorded
        is_same_end = returned == recorded and (isinstance(end, Crash) or bool(returned))
        is_reused = decision is Decision.REUSE and not again and is_same_end
        if result is None:
            self._plan_unended(enter, self.list_assumed())
        elif is_reused:
            self.add(result, Decision.REUSE, reasons)
        else:
            if decision is Decision.REUSE:
                detail = "it continues with another step" if isinstance(end, str) else "its code now ends it otherwise"
                detail = f"{again[0]} runs again" if again else detail
                reasons = (*reasons, Reason(ReasonKind.UPSTREAM, detail))
            self.add(result, Decision.RERUN, reasons)
        if isinstance(end, str):
            return None, False
        if returned:
            return (codec.decode(returned[0], action.workflow.output_type), None), is_reused
        if isinstance(end, Finish):
            return None, False
        if result is not None and result.error is not None:
            return (None, step_failure(path, result.error)), is_reused
        return None, False

    async def _judge_composite(self, enter: Enter) -> tuple[Decision, tuple[Reason, ...]]:
        """Decide about the recorded end of a composite, apart from its steps."""
        if enter.result is None:
            return Decision.REUSE, ()
        return await self.judge_result(Restore(enter.path, enter.step, enter.result, enter.is_spare))


@attrs.define(eq=False)
class _PlannedFanOut:
    """Plans the members of a fan-out, each independently of the others.

    Attributes:
        is_all_again: whether the fan-out itself is stale, so that all of its members run again.
        few: the first of the earlier steps that run again.
        reruns: the members that run again, and the steps nested in them.
        answers: the answer of each member; None if it is not known.
        stale: the first recorded member that runs again.
        new: how many members have no record.
    """

    planning: Planning
    replay: Replay
    enter: Enter
    is_all_again: bool
    few: list[str]
    reruns: list[str] = attrs.field(init=False, factory=list)
    answers: list[Answer | None] = attrs.field(init=False, factory=list)
    stale: str = attrs.field(init=False, default="")
    new: int = attrs.field(init=False, default=0)
    _succeeded: int = attrs.field(init=False, default=0)
    _never_run: list[tuple[int, Enter]] = attrs.field(init=False, factory=list)
    _stopped: list[tuple[int, Enter]] = attrs.field(init=False, factory=list)

    async def plan_members(self) -> list[str]:
        """Plan the members that are known; return the paths of the removed ones."""
        planning, enter, action = self.planning, self.enter, self._action
        expansion = expand(enter)
        doubts = {*planning.unended_below.get(enter.path, ())}
        gone: list[str] = []
        for made in _create_members(expansion):
            await self._consider(made)
            doubts.discard(made.path)
            if not expansion.own and not doubts and enter.result is None and action.size is None:
                self.answers.append(None)  # the number of further members is not known yet
                break
        else:
            without = [each for each in planning.cut_below.get(enter.path, ()) if each not in planning.seen]
            undecided = planning.resumption.list_undecided() if doubts else ()
            for doubt in (each for each in undecided for top in doubts if is_within(each, top)):
                planning.stop_at_doubt(doubt)
            gone = [
                each for each in (*without, *list_below(planning.cut_below, without)) if each in planning.resumption.cut
            ]
        return gone + [each.path for each in expansion.take_rest()]

    def has_other_end(self, result: StepResult) -> bool:
        """Return whether the unchanged members would end the fan-out otherwise than recorded."""
        stopped, unended = len(self._stopped), len(self._never_run)
        return has_other_end(self.enter.step, result, self.answers, stopped=stopped, unended=unended)

    async def _consider(self, made: Enter) -> None:
        end, is_known = self.enter.result, made.result is not None or bool(made.nested)
        is_race = self._action.completion.min_success is not None
        if made.result is not None and is_stopped(made.result):
            self._stopped.append((len(self.answers), made))
            self.answers.append(read_answer(made.step, made.result))
        elif not (is_known or made.step.modifiers.is_ephemeral) and end is not None and (is_race or not end.success):
            self._never_run.append((len(self.answers), made))  # too many others had failed before, or it is new
            self.answers.append(None)
            self.new += end.success
        elif not await self._plan(made):
            if is_known:
                self.stale = self.stale or made.path
            else:
                self.new += 1

    async def _plan(self, made: Enter) -> bool:
        again = self.planning.again
        again.paths = [*self.few, self.enter.path] if self.is_all_again else [*self.few]
        had = len(again.paths)
        answer, is_reused = await self.planning.plan_member(self.replay, made)
        self.reruns += again.paths[had:]
        self.answers.append(answer)
        self._succeeded += is_reused and answer is not None and answer[1] is None
        return is_reused

    async def plan_remaining(self, *, is_moved: bool) -> None:
        """Plan the members that a race stopped and those that never started: they run if the race has no winner."""
        has_ended = self.enter.result is not None and not is_moved
        is_won = self._action.completion.is_enough(self._succeeded, self._action.size)
        is_again = not (has_ended or is_won)
        again = self.planning.plan_stopped_members(self._stopped, is_again=is_again, has_ended=has_ended)
        if is_moved:
            self.new = self.new or len(self._never_run)
            again += self._never_run
        for index, made in again:
            if is_won:
                self.answers[index] = None, step_failure(made.path, stopped_error(made.path))
                continue
            await self._plan(made)
            self.answers[index] = self.answers.pop()

    @property
    def _action(self) -> FanOutAction:
        action = self.enter.step.action
        assert isinstance(action, FanOutAction)
        return action

    @property
    def known_answers(self) -> list[Answer]:
        """The answers that are known."""
        return [each for each in self.answers if each is not None]

    def find_answer(self, end: StepResult | None) -> Answer | None:
        """Return the answer of the fan-out, if the plan continues with its end and knows each member."""
        is_known_whole = end is not None and all(each is not None for each in self.answers)
        return read_fan_out(self.enter, end, self.known_answers) if end is not None and is_known_whole else None


async def make_plan(
    workflow: Workflow[Any, Any],
    workflow_id: str,
    resumption: Resumption,
    claims: ClaimChecker,
    store: StoreBase,
    clock: Clock,
) -> ResumePlan:
    """Return what a resume would do.

    Args:
        workflow: the workflow.
        workflow_id: the run.
        resumption: the start of the resume.
        claims: checks the recorded claims.
        store: the store of the runs whose results a step may take.
        clock: the time.
    """
    refresh()
    resumption.judge.packages.update(find_moved_versions(resumption.latest.metadata))
    doubts = await claims.verify_results(_find_guarded(resumption))
    cache = ResultCache(store, workflow_id, claims, clock, resumption.judge.secrets, is_plan=True)
    return await Planning(workflow, workflow_id, resumption, claims, cache, doubts).plan()


def _find_guarded(resumption: Resumption) -> list[StepResult]:
    """Return the results of steps that must not be done twice, but would be if an earlier step were stale."""
    results = [*resumption.history.results, *resumption.superseded.values()]
    return [result for result in results if result.success and not GUARDED.isdisjoint(result.marks)]


def _describe_end(end: Finish | Crash) -> str:
    if isinstance(end, Finish):
        return NEXT_GENERATION if type(end.output) is NextGeneration else ""
    return _describe_crash(end)


def _describe_crash(end: Crash) -> str:
    return f"the workflow raises {type(end.error).__name__}: {end.error}"[:300]


def _is_work(step: PlannedStep) -> bool:
    return step.decision in (Decision.RERUN, Decision.IN_DOUBT, Decision.INTERRUPTED, Decision.CACHED)


def _create_members(expansion: Expansion) -> Iterator[Enter]:
    """Create the members, as far as possible."""
    with contextlib.suppress(ItemsError):
        yield from expansion
