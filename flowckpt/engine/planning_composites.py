"""The plan of steps that are made of steps: what a resume would do with each of them, and so with the whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flowckpt import codec
from flowckpt.checkpoint import StepError, StepResult
from flowckpt.codec.results import plain_tree
from flowckpt.dsl.composites import FanOutAction, ItemsError, Member, WorkflowAction, place_under
from flowckpt.engine.child_inputs import begun_child
from flowckpt.engine.failures import fan_out_failure, step_failure
from flowckpt.engine.looking_back import Answer, other_members
from flowckpt.engine.not_run import not_run
from flowckpt.errors import EncodingError, StepFailedError
from flowckpt.plan.behind import below, is_within
from flowckpt.plan.model import Decision, PlannedStep
from flowckpt.plan.policy import ReuseMode
from flowckpt.plan.reason import Reason, ReasonKind
from flowckpt.replay import Enter, Execute, Finish, Replay, Restore
from flowckpt.replay.record import all_of, split_record

if TYPE_CHECKING:
    from flowckpt.engine.planning import Planning


FEW = 8
"""How many steps that run again before a member are handed on to it; to know of the first ones is enough."""


async def entered(planning: Planning, enter: Enter, replay: Replay) -> Answer | None:
    """Add a composite and its members to a plan; return what to go on with, if that can be told.

    Args:
        planning: the plan.
        enter: the composite and its record.
        replay: what yielded it.
    """
    answer, is_reused = await _member(planning, enter, replay)
    if not is_reused and enter.result is not None:
        replay.begin_anew(keeps_rest=True)
    elif answer is None:
        replay.begin(enter)
    return answer


async def _member(planning: Planning, enter: Enter, replay: Replay) -> tuple[Answer | None, bool]:
    """Add a step and what is nested in it; return its answer, and whether its recorded result is reused."""
    step, path, result = enter.step, enter.path, enter.result
    if step.action.is_composite:
        planning.seen.add(path)
        if (
            result is None
            and not enter.nested
            and path not in planning.cut_below
            and path not in planning.doubt_below
            and path not in planning.resumption.cut
        ):
            planning.steps.append(PlannedStep(path, Decision.NEW, assumes=planning.assumed(), location=enter.location))
            planning.reruns.append(path)
            return None, False
        if isinstance(step.action, FanOutAction):
            return await _fan_out(planning, enter, replay)
        assert isinstance(step.action, WorkflowAction)
        return await _child(planning, enter, step.action)
    if step.modifiers.is_ephemeral:
        planning.seen.add(path)
        return (not_run(Execute(path, step, enter.location)), None), True
    if result is None:
        return await planning.executed(Execute(path, step, enter.location), replay), False
    before = len(planning.reruns)
    answer = await planning.restored(Restore(path, step, result, enter.is_spare), None)
    return answer, len(planning.reruns) == before


async def _fan_out(planning: Planning, enter: Enter, replay: Replay) -> tuple[Answer | None, bool]:
    path, result, action = enter.path, enter.result, enter.step.action
    assert isinstance(action, FanOutAction)
    own, nested = split_record(enter.nested, f"{path}/")
    decision, reasons = await _judged(planning, enter)
    is_all_again = decision is Decision.RERUN
    before = list(planning.reruns)
    doubts = {*planning.doubt_below.get(path, ())}
    few = before[:FEW]  # for each of a hundred thousand members
    reruns: list[str] = []
    answers: list[Answer | None] = []
    stale, new = "", 0
    never_run: list[Enter] = []
    gone: list[str] = []

    async def plan_member(made: Enter) -> bool:
        planning.reruns = [*few, path] if is_all_again else [*few]  # its siblings are nothing to it
        had = len(planning.reruns)
        answer, is_reused = await _member(planning, made, replay)
        reruns.extend(planning.reruns[had:])
        answers.append(answer)
        return is_reused

    for place, step in _made(action, enter):
        at = place_under(path, place)
        is_known = at in own
        made = Enter(at, step, enter.location, own.pop(at, None), nested.pop(at, []), enter.is_spare, enter.is_bound)
        is_ephemeral = step.modifiers.is_ephemeral
        if not (is_known or is_ephemeral) and result is not None and not result.success:
            never_run.append(made)  # too many had failed before its turn came
        elif not await plan_member(made):
            stale, new = (stale or at, new) if is_known else (stale, new + 1)
        doubts.discard(at)
        if not own and not doubts and result is None and action.size is None:
            answers.append(None)  # how many more there are is seen when they are made
            break
    else:
        without = [each for each in planning.cut_below.get(path, ()) if each not in planning.seen]
        gone = [each for each in (*without, *below(planning.cut_below, without)) if each in planning.resumption.cut]
    gone += [each.path for each in all_of(own, nested)]
    is_moved = is_all_again or bool(stale or new or gone)
    if is_moved:
        new += len(never_run)
        for made in never_run:
            await plan_member(made)
    planning.reruns = before + reruns
    planning.seen.update(gone)
    planning.steps += [PlannedStep(each, Decision.ORPHANED) for each in gone]
    if result is None:
        old = _unended(planning, enter, tuple(reruns[:1]))
        is_known_whole = old is not None and all(each is not None for each in answers)
        return (_recorded(enter, old, answers) if old is not None and is_known_whole else None), False
    if not is_moved:
        planning.add(result, decision, reasons)
        return _recorded(enter, result, answers), True
    if stale and not is_all_again:
        reasons = (*reasons, Reason(ReasonKind.UPSTREAM, f"{stale} runs again"))
    elif not is_all_again:
        planning.reruns = before
        restore = Restore(path, enter.step, result, enter.is_spare)
        _, reasons = await planning.judged(restore, other_members(new, len(gone)))
        planning.reruns = before + reruns
    planning.add(result, Decision.RERUN, reasons)
    is_known_whole = all(each is not None for each in answers)
    return (_recorded(enter, result, answers) if is_known_whole else None), False


def _made(action: FanOutAction, enter: Enter) -> Iterator[Member]:
    """Make the members, as far as they can be made."""
    with contextlib.suppress(ItemsError):
        yield from action.members(enter.step)


def _unended(planning: Planning, enter: Enter, assumes: tuple[str, ...]) -> StepResult | None:
    """Add a composite that is to be run to its end; return how it ended before, where that is what to go on with."""
    assumes = tuple(each for each in assumes if each in planning.returned)  # a member that waits has returned nothing
    old, reason = planning.resumption.cut.get(enter.path, (None, None))
    if old is None or reason is None:
        planning.steps.append(PlannedStep(enter.path, Decision.NEW, assumes=assumes, location=enter.location))
        planning.reruns.append(enter.path)
        return None
    planning.add(old, Decision.RERUN, (reason,))
    cut = planning.resumption.cut.items()
    has_ended_the_run = any(why.kind is ReasonKind.FAILED for each, (_, why) in cut if is_within(each, enter.path))
    return None if has_ended_the_run else old


def _recorded(enter: Enter, result: StepResult, answers: list[Answer | None]) -> Answer:
    known = [each for each in answers if each is not None]
    if result.success:
        assert isinstance(enter.step.action, FanOutAction)
        gathered: list[Any] = [value if failure is None else failure for value, failure in known]
        return enter.step.action.gathered(gathered), None
    error = result.error or StepError("", "")
    failures: dict[str, StepFailedError] = {each.path: each for _, each in known if each is not None}
    return None, fan_out_failure(enter.path, error, [failures[each] for each in error.causes if each in failures])


async def _child(planning: Planning, enter: Enter, action: WorkflowAction) -> tuple[Answer | None, bool]:
    path, result, nested = enter.path, enter.result, enter.nested
    aside = planning.aside
    decision, reasons = await _judged(planning, enter)
    judge, before = planning.resumption.judge, list(planning.reruns)
    if decision is Decision.RERUN:
        if judge.policy.reuse is ReuseMode.INPUTS and not judge.is_forced(path):
            aside.spare.update({each.path: each for each in nested})
            nested = ()
        planning.reruns = [*before, path]
    had = len(planning.reruns)
    is_refused = decision is Decision.REUSE and result is not None and not result.success and not nested
    replay = Replay(
        begun_child(action, path) if is_refused else action.workflow(**action.inputs),
        nested,
        action.workflow.name,
        prefix=f"{path}/",
        drops_what_changed=not enter.is_bound or decision is Decision.RERUN,
        aside=aside,
        is_muted=True,
    )
    try:
        end = await planning.driven(replay)
    finally:
        replay.close()
    again = planning.reruns[had:]
    planning.reruns = before + again
    is_reused = decision is Decision.REUSE and not again and not isinstance(end, str)
    if result is None:
        _unended(planning, enter, planning.assumed())
    elif is_reused:
        planning.add(result, Decision.REUSE, reasons)
    else:
        if decision is Decision.REUSE:
            detail = f"{again[0]} runs again" if again else "it goes on with another step"
            reasons = (*reasons, Reason(ReasonKind.UPSTREAM, detail))
        planning.add(result, Decision.RERUN, reasons)
    if isinstance(end, str):
        return None, False
    if isinstance(end, Finish):
        try:
            tree = codec.encode(end.output, action.workflow.output_type, place=f"{path}: output")
        except EncodingError:  # it holds what a plan does not have: the output of a step that is not recorded
            if result is None or not result.success:
                return None, False
            tree = plain_tree(result.held_output, "output")
        return (codec.decode(tree, action.workflow.output_type), None), is_reused
    if result is not None and result.error is not None:
        return (None, step_failure(path, result.error)), is_reused
    return None, False


async def _judged(planning: Planning, enter: Enter) -> tuple[Decision, tuple[Reason, ...]]:
    """Decide about the recorded end of a composite by itself."""
    if enter.result is None:
        return Decision.REUSE, ()
    return await planning.judged(Restore(enter.path, enter.step, enter.result, enter.is_spare))
