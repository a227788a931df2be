"""The timeline of a run: its attempts, and one lane for each step.

A lane is the latest execution of a step. Lanes are in the order of their starts; the lanes nested in a step follow it,
one level deeper. A result that no longer counts keeps a lane of its own, because its time was spent anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

import attrs

from flowckpt.core.records import Status, StepResult
from flowckpt.core.records.result import FAN_OUTS
from flowckpt.core.records.wait import Wait, waits_in
from flowckpt.engine.rules.crash_loop import KEY as DEATHS
from flowckpt.engine.rules.paths import ROLLBACK, group_nested, is_stopped, step_of
from flowckpt.maintenance.attempts import Attempt, Standing

_ROUNDING = 0.002
"""Seconds by which a start may seem to lie before the end that it waited for: times are recorded in milliseconds."""


class Outcome(StrEnum):
    """How an attempt ended.

    Attributes:
        RUNNING: it has not ended.
        CRASHED: its process died.
        COMPLETED: the run completed.
        FAILED: the run failed.
        SUSPENDED: the run waits, or was stopped to be resumed.
        CANCELLED: the run was cancelled.
        ROLLED_BACK: it only returned to an earlier checkpoint.
    """

    RUNNING = "running"
    CRASHED = "crashed"
    COMPLETED = "completed"
    FAILED = "failed"
    SUSPENDED = "suspended"
    CANCELLED = "cancelled"
    ROLLED_BACK = "rolled back"


class LaneState(StrEnum):
    """The state of a step in the latest attempt.

    Attributes:
        EXECUTED: the latest attempt executed it.
        RESTORED: an earlier attempt executed it, and the latest one used its result.
        FAILED: it failed.
        STOPPED: it was stopped, because enough other members of its group had succeeded.
        LEFT_BEHIND: its result no longer counts.
        INTERRUPTED: it had started when its process died or was stopped; a later attempt executes it again.
        UNSAVED: it had ended, and its process died before its result was saved; a later attempt executes it again.
        RUNNING: it is running now.
        WAITING: it waits for a time, a signal or an approval.
        UNDONE: it was executed, and later undone.
        UNDO: it undid another step.
    """

    EXECUTED = "executed"
    RESTORED = "restored"
    FAILED = "failed"
    STOPPED = "stopped"
    LEFT_BEHIND = "left behind"
    INTERRUPTED = "interrupted"
    UNSAVED = "unsaved"
    RUNNING = "running"
    WAITING = "waiting"
    UNDONE = "undone"
    UNDO = "undo"


@attrs.frozen
class AttemptSpan:
    """The time of an attempt.

    Attributes:
        number: the number of the attempt.
        started_at: when its first checkpoint was saved.
        ended_at: when it ended; the last heartbeat of one that crashed or is running.
        last_path: the step that ended last in it; empty if none did.
        in_flight: the steps that are recorded as started and have no result, in the order of their starts.
        running: those of them that had not ended: the newest one, and those that a fan-out can run in parallel with it.
    """

    number: int
    started_at: datetime
    ended_at: datetime
    outcome: Outcome
    last_path: str = ""
    in_flight: tuple[str, ...] = ()
    running: tuple[str, ...] = ()

    @property
    def duration(self) -> timedelta:
        """How long the attempt ran."""
        return self.ended_at - self.started_at


@attrs.define
class Lane:
    """One row of the waterfall.

    Attributes:
        path: the step.
        depth: its level of nesting.
        state: its state.
        kind: the type of the step; empty if it has not ended.
        started_at: when it started, if known.
        duration_ms: the time of all its tries; of an interrupted step, the time since the previous result.
        attempt: the attempt that executed it; 0 if a fork copied it.
        tries: the number of tries.
        is_critical: whether a shorter duration of this step would have ended its group, or the run, sooner.
        result: its result, if it has ended.
    """

    path: str
    depth: int
    state: LaneState
    kind: str = ""
    started_at: datetime | None = None
    duration_ms: float = 0.0
    attempt: int = 0
    tries: int = 1
    is_critical: bool = False
    result: StepResult | None = None

    @property
    def ended_at(self) -> datetime | None:
        """When it ended, if known."""
        return None if self.started_at is None else self.started_at + timedelta(milliseconds=self.duration_ms)


@attrs.frozen
class Timeline:
    """The attempts of a run and the lanes of its steps.

    Attributes:
        attempts: the attempts, oldest first.
        lanes: the lanes, each followed by its nested lanes.
    """

    attempts: Sequence[AttemptSpan]
    lanes: Sequence[Lane]

    @property
    def worked_ms(self) -> float:
        """The time of all attempts together."""
        return sum(each.duration.total_seconds() for each in self.attempts) * 1000

    @property
    def elapsed_ms(self) -> float:
        """The time from the first start to the last end."""
        if not self.attempts:
            return 0.0
        start = min(each.started_at for each in self.attempts)
        return (max(each.ended_at for each in self.attempts) - start).total_seconds() * 1000

    def counted(self, state: LaneState, *, succeeded: bool = False) -> int:
        """Return how many recorded steps are in a state; an undoing is not a step.

        Args:
            state: the state.
            succeeded: whether to count only steps that succeeded.
        """
        return sum(
            each.state is state
            and each.result is not None
            and each.kind != ROLLBACK
            and (each.result.success or not succeeded)
            for each in self.lanes
        )


def make_timeline(
    attempts: Sequence[Attempt],
    status: Status,
    waits: Iterable[Wait] = (),
    *,
    begun: Iterable[str] = (),
    seen: datetime | None = None,
    now: datetime | None = None,
) -> Timeline:
    """Return the timeline of a run.

    Args:
        attempts: the records of the attempts.
        status: the status of the run.
        waits: the waits of the run.
        begun: the steps that the last attempt started since its last checkpoint, if the store knows them.
        seen: the last heartbeat of the last attempt, if its process died.
        now: the end of running steps and waits in the drawing; the last checkpoint by default.
    """
    noted = [*map(_read_death, attempts[1:]), (begun, seen)]
    spans = [
        _make_span(each, *death, is_last=each is attempts[-1], status=status)
        for each, death in zip(attempts, noted, strict=False)
    ]
    if spans and spans[-1].outcome is Outcome.RUNNING and now is not None:
        spans[-1] = attrs.evolve(spans[-1], ended_at=max(now, spans[-1].ended_at))
    undone = _find_undone(attempts)
    # A rollback saves a checkpoint and executes nothing, so it does not make earlier results restored.
    newest = next((each.number for each in reversed(spans) if each.outcome is not Outcome.ROLLED_BACK), 0)
    lanes: list[Lane] = []
    for attempt, span in zip(attempts, spans, strict=True):
        lanes += _make_ended_lanes(attempt, newest, undone)
        lanes += _make_open_lanes(attempt, span)
    if spans:
        end, number = spans[-1].ended_at, spans[-1].number
        lanes += [_make_waiting_lane(wait, end, number) for wait in waits]
    ordered = [*_nest_lanes(lanes)]
    _mark_critical(ordered)
    return Timeline(spans, ordered)


def _read_death(attempt: Attempt) -> tuple[Sequence[str], datetime | None]:
    """Return the steps at which the previous attempt died, and its last heartbeat, as recorded by this attempt."""
    death = attempt.last.metadata.get(DEATHS, {})
    seen = death.get("seen")
    return death.get("paths", ()), datetime.fromisoformat(seen) if seen else None


def _make_span(
    attempt: Attempt, begun: Iterable[str], seen: datetime | None, *, is_last: bool, status: Status
) -> AttemptSpan:
    saved = [reference.saved_at for reference, _ in attempt.checkpoints] or [attempt.last.saved_at]
    ends = [each for result, _ in attempt.results if (each := _find_end(result)) is not None]
    starts = [result.started_at for result, _ in attempt.results if result.started_at and result.attempt]
    if attempt.rolled_back_to is not None:
        outcome = Outcome.ROLLED_BACK
    elif attempt.last.status is not Status.RUNNING:
        outcome = Outcome(attempt.last.status.value)
    else:
        outcome = Outcome.RUNNING if is_last and status is Status.RUNNING else Outcome.CRASHED
    is_silent = outcome in (Outcome.CRASHED, Outcome.RUNNING)
    ended = {result.path for result in attempt.last.step_results}
    begun = begun if is_silent else ()
    in_flight = [path for path in dict.fromkeys([*attempt.last.in_flight, *begun]) if path not in ended]
    running = [path for path in in_flight if not is_silent or _is_parallel(path, in_flight[-1])]
    signs = [seen] if seen is not None and outcome is Outcome.CRASHED else []
    return AttemptSpan(
        attempt.number,
        min(saved + starts),
        max(saved + ends + signs),
        outcome,
        next((result.path for result, _ in reversed(attempt.results)), ""),
        tuple(in_flight),
        tuple(running),
    )


def _find_end(result: StepResult) -> datetime | None:
    if result.started_at is None or not result.attempt:
        return None
    return result.started_at + timedelta(milliseconds=result.duration_ms)


def _is_parallel(path: str, newest: str) -> bool:
    """Return whether a step can still be running when a newer step has started."""
    for one, other in zip(path.split("/"), newest.split("/"), strict=False):
        if one != other:
            return one.startswith("[") and other.startswith("[")
    return True


def _find_undone(attempts: Iterable[Attempt]) -> dict[str, datetime]:
    """Return when steps were undone, by path."""
    results = [result for attempt in attempts for result, _ in attempt.results]
    undoing = [each for each in results if each.step_type == ROLLBACK and each.success]
    return {step_of(each.path): each.started_at for each in undoing if each.started_at is not None}


def _make_ended_lanes(attempt: Attempt, newest: int, undone: Mapping[str, datetime]) -> Iterator[Lane]:
    for result, standing in attempt.results:
        if result.step_type == ROLLBACK:
            state = LaneState.UNDO if result.success else LaneState.FAILED
        elif standing is Standing.LEFT_BEHIND:
            state = LaneState.LEFT_BEHIND
        elif not result.success:
            state = LaneState.STOPPED if is_stopped(result) else LaneState.FAILED
        elif result.path in undone and result.started_at is not None and result.started_at <= undone[result.path]:
            state = LaneState.UNDONE
        else:
            state = LaneState.EXECUTED if result.attempt == newest else LaneState.RESTORED
        yield Lane(
            step_of(result.path) if result.step_type == ROLLBACK else result.path,
            0,
            state,
            result.step_type,
            result.started_at if result.attempt else None,
            result.duration_ms,
            result.attempt,
            result.tries,
            result=result,
        )


def _make_waiting_lane(wait: Wait, end: datetime, attempt: int) -> Lane:
    duration = max(0.0, (end - wait.since).total_seconds() * 1000)
    return Lane(wait.path, 0, LaneState.WAITING, str(wait.kind), wait.since, duration, attempt)


def _make_open_lanes(attempt: Attempt, span: AttemptSpan) -> Iterator[Lane]:
    """Yield the steps that an attempt started but did not end.

    Their starts are not recorded, so they are drawn from the last result of that attempt to its end or last heartbeat.
    """
    waiting = {wait.path for wait in waits_in(attempt.last.metadata)}
    state = LaneState.RUNNING if span.outcome is Outcome.RUNNING else LaneState.INTERRUPTED
    since = max([span.started_at, *(end for result, _ in attempt.results if (end := _find_end(result)) is not None)])
    lasted = (span.ended_at - since).total_seconds() * 1000
    running = {*span.running}
    for path in span.in_flight:
        if path in running and path not in waiting:
            yield Lane(path, 0, state, "", since, lasted, attempt.number)
        elif path not in waiting:
            yield Lane(path, 0, LaneState.UNSAVED, "", since, 0.0, attempt.number)


def _nest_lanes(lanes: Sequence[Lane]) -> Iterator[Lane]:
    """Yield the lanes as a tree, in the order of their starts; a missing outer step gets a lane of its own."""
    by_path: dict[str, list[Lane]] = {}
    for lane in lanes:
        by_path.setdefault(lane.path, []).append(lane)
    inner = group_nested(by_path)
    for outer in inner:
        if outer not in by_path:
            by_path[outer] = [Lane(outer, 0, _infer_state(_walk_below(inner, by_path, outer)), "group")]
    starts: dict[str, float] = {}

    def find_start(path: str) -> float:
        if path not in starts:
            own = [each.started_at.timestamp() for each in by_path[path] if each.started_at is not None]
            # A result that a fork took over has no time in this run: it comes first.
            is_taken_over = any(each.state is LaneState.RESTORED for each in by_path[path])
            unknown = float("-inf") if is_taken_over else float("inf")
            starts[path] = min([*own, *(find_start(each) for each in inner.get(path, ()))], default=unknown)
        return starts[path]

    def sort_by_start(paths: Iterable[str]) -> list[str]:
        return sorted(paths, key=find_start)

    unseen = [(path, 0) for path in reversed(sort_by_start(path for path in by_path if "/" not in path))]
    while unseen:
        path, depth = unseen.pop()
        for lane in by_path[path]:
            lane.depth = depth
            yield lane
        unseen += [(each, depth + 1) for each in reversed(sort_by_start(inner.get(path, ())))]


def _walk_below(inner: Mapping[str, list[str]], by_path: Mapping[str, list[Lane]], path: str) -> Iterator[Lane]:
    for each in inner.get(path, ()):
        yield from by_path.get(each, ())
        yield from _walk_below(inner, by_path, each)


def _infer_state(lanes: Iterable[Lane]) -> LaneState:
    """Return the state of a step without a result from the states of its nested steps."""
    states = {each.state for each in lanes}
    if states & {LaneState.RUNNING, LaneState.WAITING}:
        return LaneState.RUNNING
    open_states = (each for each in (LaneState.INTERRUPTED, LaneState.UNSAVED) if each in states)
    return next(open_states, LaneState.EXECUTED)


def _mark_critical(lanes: Sequence[Lane]) -> None:
    """Mark the critical path.

    The steps of a generator follow each other, so each of them is critical. The members of a map or a group run in
    parallel: there the path goes back from the member that ended last to the latest one that had ended before it started.
    """
    children: dict[int, list[Lane]] = {}
    outer: list[int] = []  # indices of the lanes that enclose the current one
    for index, lane in enumerate(lanes):
        del outer[lane.depth :]
        children.setdefault(outer[-1] if outer else -1, []).append(lane)
        outer.append(index)
    for each in children.get(-1, ()):
        each.is_critical = each.ended_at is not None and each.state is not LaneState.LEFT_BEHIND
    for index, lane in enumerate(lanes):
        if not lane.is_critical:
            continue
        inner = [each for each in children.get(index, ()) if each.ended_at and each.state is not LaneState.LEFT_BEHIND]
        if lane.kind in FAN_OUTS:
            _mark_chain(inner)
        else:
            for each in inner:
                each.is_critical = True


def _mark_chain(members: list[Lane]) -> None:
    """Mark the members that ran one after another up to the last one that ended."""
    members.sort(key=lambda lane: _to_seconds(lane.ended_at))
    limit = float("inf")
    for lane in reversed(members):
        if _to_seconds(lane.ended_at) <= limit + _ROUNDING:
            lane.is_critical = True
            limit = _to_seconds(lane.started_at)


def _to_seconds(moment: datetime | None) -> float:
    return moment.timestamp() if moment else 0.0
