"""Races: as soon as enough members have succeeded, the others are stopped, and every replay agrees on who won."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import attrs
import pytest
from crashing import SimulatedCrash, pass_on
from hypothesis import example, given, settings
from hypothesis import strategies as st
from outside import MortalStore, Saves

from flowckpt import MemoryCheckpointStore, RunOptions, WorkflowEngine, in_sync, parallel, step, workflow
from flowckpt.errors import CheckpointStorageError, RunUndoneError, StepFailedError, StepInDoubtError, StepStoppedError
from flowckpt.events import RollbackCompleted
from flowckpt.testing import FakeClock

calls: list[Any] = []
ended: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()
    ended.clear()


async def forever(what: str) -> str:
    calls.append(what)
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(what)
    return what


def quick(what: Any) -> Any:
    calls.append(what)
    return what


def fails(what: str) -> str:
    calls.append(what)
    raise OSError(what)


def names(values: Any) -> list[Any]:
    return [
        "stopped" if isinstance(each, StepFailedError) and each.failed_with(StepStoppedError) else each
        for each in values
    ]


@workflow
def first_of_signals() -> Generator[Any, Any, Any]:
    answers = yield parallel(
        step("yes").wait("yes"), step("no").wait("no"), step("late").sleep(3600), name="first", min_success=1
    ).checkpoint()
    yield step("after").wait("go")
    return names(answers)


@pytest.mark.parametrize("winner", ["yes", "no", None])
def test_the_first_of_several_signals_or_a_time(winner: str | None, reopen: Callable[[], Any]) -> None:
    clock = FakeClock()
    run = WorkflowEngine(reopen(), clock=clock).run_sync(first_of_signals, workflow_id="run")
    assert len(run.waits) == 3
    engine = WorkflowEngine(reopen(), clock=clock)
    if winner is None:
        clock.advance(3600)
    else:
        in_sync(engine).signal("run", winner, "data")
    suspended = engine.resume_sync(first_of_signals, workflow_id="run")
    assert [wait.name for wait in suspended.waits] == ["go"], "the other waits are withdrawn"
    engine = WorkflowEngine(reopen(), clock=clock)
    for late in ("yes", "no", "go"):
        in_sync(engine).signal("run", late, "too late")
    plan = in_sync(engine).plan(first_of_signals, workflow_id="run")
    assert plan.stale == 0 and [str(each.decision) for each in plan.steps].count("reuse") == 4
    expected = {
        "yes": ["data", "stopped", "stopped"],
        "no": ["stopped", "data", "stopped"],
        None: ["stopped", "stopped", None],
    }
    result = engine.resume_sync(first_of_signals, workflow_id="run")
    assert result.output == expected[winner]
    assert (
        WorkflowEngine(reopen(), clock=clock).resume_sync(first_of_signals, workflow_id="run").output == result.output
    )
    latest = asyncio.run(reopen().load_latest("run"))
    (race,) = [each for each in latest.step_results if each.path == "first"]
    assert race.output == {"members": 3, "failed": 0, "stopped": 2, "winners": [["yes", "no", None].index(winner)]}


@workflow
def racing(version: str = "1") -> Generator[Any, Any, Any]:
    made = parallel(step("slow").python(forever, "slow"), step("quick").python(quick, "quick"), min_success=1)
    found = yield made
    yield step("end").wait("go")
    return names(found)


async def test_a_running_step_is_cancelled() -> None:
    result = await WorkflowEngine(MemoryCheckpointStore()).run(racing)
    assert result.status == "suspended" and result.steps.failed == 0
    assert calls == ["slow", "quick"] and ended == ["slow"]


async def test_an_at_most_once_step_that_is_stopped_leaves_its_race_decided() -> None:
    @workflow
    def flow() -> Generator[Any, Any, Any]:
        slow = step("slow").python(forever, "slow").at_most_once()
        found = yield parallel(slow, step("quick").python(quick, "quick"), min_success=1)
        yield step("end").wait("go")
        return names(found)

    engine = WorkflowEngine(MemoryCheckpointStore())
    await engine.run(flow, workflow_id="run")
    await engine.signal("run", "go")
    plan = await engine.plan(flow, workflow_id="run")
    assert not plan.stops and plan.stale == 0
    assert (await engine.resume_run(flow, workflow_id="run")).output == ["stopped", "quick"]
    assert calls.count("slow") <= 1 and calls.count("quick") == 1, "it is not repeated"


async def test_a_stopped_at_most_once_step_is_asked_about_before_its_race_is_run_again() -> None:
    def flow_of(*members: Any) -> Any:
        @workflow("asking")
        def flow() -> Generator[Any, Any, Any]:
            yield parallel(*members, name="race", min_success=1)
            yield step("end").wait("go")

        return flow

    async def win() -> str:
        while "slow" not in calls:
            await asyncio.sleep(0)
        return str(quick("quick"))

    engine = WorkflowEngine(MemoryCheckpointStore())
    slow, other = step("slow").python(forever, "slow").at_most_once(), step("other").python(quick, "other")
    await engine.run(flow_of(slow, step("quick").python(win)), workflow_id="run")
    before = await engine.store.load_latest("run")
    assert calls == ["slow", "quick"]
    assert (await engine.plan(flow_of(other, slow), workflow_id="run")).stopped_by == "race/[slow]"
    with pytest.raises(StepInDoubtError):
        await engine.resume_run(flow_of(other, slow), workflow_id="run")
    assert calls == ["slow", "quick"] and await engine.store.load_latest("run") == before, "nothing was run or saved"


async def test_a_failure_does_not_decide_and_too_many_do() -> None:
    one: Any = {"min_success": 1, "name": "one", "concurrency": 1}

    @workflow
    def flow() -> Generator[Any, Any, Any]:
        won = yield parallel(step("a").python(fails, "a"), step("b").python(quick, "b"), **one)
        assert isinstance(won[0], StepFailedError) and won[0].failed_with(OSError)
        yield parallel(step("c").python(fails, "c"), step("d").python(fails, "d"), min_success=1, name="none")

    result = await WorkflowEngine(MemoryCheckpointStore()).run(flow)
    assert isinstance(result.error, StepFailedError) and result.error.path == "none"


@pytest.mark.parametrize("wanted", [3, 0.3])
def test_a_map_stops_when_enough_have_succeeded(wanted: float) -> None:
    @workflow
    def flow() -> Generator[Any, Any, Any]:
        return names((yield step("m").map(quick, range(10), concurrency=1, min_success=wanted)))

    engine = WorkflowEngine(MemoryCheckpointStore())
    result = engine.run_sync(flow, workflow_id="run")
    assert result.output == [0, 1, 2, *["stopped"] * 7] and calls == [0, 1, 2]
    assert engine.resume_sync(flow, workflow_id="run").output == result.output and len(calls) == 3


@pytest.mark.parametrize("how", [{"min_success": 2, "tolerate": 3}, {"min_success": 0}, {"tolerate": 0.9}], ids=str)
def test_with_a_tolerance_all_run(how: dict[str, Any]) -> None:
    @workflow
    def flow() -> Generator[Any, Any, Any]:
        return (yield step("m").map(quick, range(5), concurrency=1, **how))

    assert WorkflowEngine(MemoryCheckpointStore()).run_sync(flow).output == [0, 1, 2, 3, 4]


def test_if_the_winner_no_longer_counts_the_race_is_run_again(reopen: Callable[[], Any]) -> None:
    def flow_of(version: str, loser: Any) -> Any:
        @workflow("versions")
        def flow() -> Generator[Any, Any, Any]:
            quickly = step("quick").python(quick, "quick").version(version)
            found = yield parallel(quickly, step("ask").wait("answer").version(loser), min_success=1)
            yield step("end").wait("go")
            return names(found)

        return flow

    WorkflowEngine(reopen()).run_sync(flow_of("1", "1"), workflow_id="run")
    engine = WorkflowEngine(reopen())
    same = in_sync(engine).plan(flow_of("1", "2"), workflow_id="run")
    assert same.stale == 0, "what a loser would be now is nothing to the race"
    how = RunOptions(on_stale="rerun")
    plan = in_sync(engine).plan(flow_of("2", "1"), workflow_id="run", options=how)
    assert {each.path: str(each.decision) for each in plan.steps}["parallel/[ask]"] == "rerun"
    engine.resume_sync(flow_of("2", "1"), workflow_id="run", options=how)
    assert calls == ["quick", "quick"]
    in_sync(engine).signal("run", "go")
    assert engine.resume_sync(flow_of("2", "1"), workflow_id="run").output == ["quick", "stopped"]


EDITED = {  # the members and how many must succeed, before and after: `x` fails, and one runs at a time
    "the winner is removed": ("abc", 1, "bc", 1),
    "the winner and all but one are removed": ("abc", 1, "b", 1),
    "one that fails takes the place of the winner": ("abc", 1, "xbc", 1),
    "one of two winners is removed": ("abcd", 2, "bcd", 2),
    "the winner is removed, and all must succeed": ("abc", 1, "bc", None),
    "a loser is removed, and all must succeed": ("abc", 1, "ab", None),
    "a loser is removed, and more must succeed": ("abcd", 1, "abc", 2),
    "a loser is removed": ("abc", 1, "ab", 1),
    "a member is added": ("abc", 1, "abcd", 1),
}


@pytest.mark.parametrize("form", ["group", "map", "in a child"])
@pytest.mark.parametrize("reuse", ["prefix", "inputs"])
@pytest.mark.parametrize("edit", EDITED)
def test_a_race_whose_members_were_edited_ends_like_a_clean_run(edit: str, reuse: Any, form: str) -> None:
    def flow_of(members: str, wanted: int | None) -> Any:
        @workflow
        def race() -> Generator[Any, Any, Any]:
            how: Any = {"min_success": wanted, "concurrency": 1}
            made = parallel(*[step(each).python(turn, each) for each in members], name="race", **how)
            mapped = step("race").map(turn, list(members), key=str, **how)
            return names((yield (mapped if form == "map" else made).checkpoint()))

        @workflow("outer")
        def outer() -> Generator[Any, Any, Any]:
            return (yield step("race").workflow(race))

        return outer if form == "in a child" else race

    def turn(what: str) -> str:
        return fails(what) if what == "x" else quick(what)

    before, many, after, fewer = EDITED[edit]
    engine, edited = WorkflowEngine(MemoryCheckpointStore()), flow_of(after, fewer)
    first = engine.run_sync(flow_of(before, many), workflow_id="run")
    options = RunOptions(reuse=reuse, on_stale="rerun")
    plan = in_sync(engine).plan(edited, workflow_id="run", options=options)
    calls.clear()
    resumed = engine.resume_sync(edited, workflow_id="run", options=options)
    planned = {each.path for each in plan.steps if each.decision in ("rerun", "new")}
    ran, calls[:] = [*calls], []
    clean = WorkflowEngine(MemoryCheckpointStore()).run_sync(edited)
    assert resumed.output == clean.output != first.output, "a member that was stopped does not stand for a winner"
    assert set(ran) <= set(after) - {each for each in first.output if each != "stopped"}, "what succeeded is reused"
    assert bool(ran) == any(f"[{each}]" in str(planned) for each in after), "and the plan names the members that run"
    assert all(f"[{each}]" in str(planned) for each in ran)
    assert not in_sync(engine).plan(edited, workflow_id="run").stale


def test_a_booking_that_its_race_undid_is_made_again_when_the_winner_is_removed() -> None:
    def flow_of(*hotels: str) -> Any:
        @workflow("hotels")
        def flow() -> Generator[Any, Any, Any]:
            members = [step(each).workflow(booking, hotel=each) for each in hotels]
            found = yield parallel(*members, min_success=1, name="hotel").checkpoint()
            yield step("end").wait("end")
            return names(found)

        return flow

    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(flow_of("A", "B"), workflow_id="run")
    in_sync(engine).signal("run", "confirm A", "ok")
    engine.resume_sync(flow_of("A", "B"), workflow_id="run")
    assert ended == ["hold B"]
    waiting = engine.resume_sync(flow_of("B"), workflow_id="run")
    assert [each.name for each in waiting.waits] == ["confirm B"] and calls.count("hold B") == 2
    for name in ("confirm B", "end"):
        in_sync(engine).signal("run", name, "ok")
    assert engine.resume_sync(flow_of("B"), workflow_id="run").output == ["ok"]
    assert ended == ["hold B"], "the second booking stands"


@workflow
def booking(hotel: str) -> Generator[Any, Any, str]:
    yield step("hold").python(quick, f"hold {hotel}").rollback(ended.append).checkpoint()
    return (yield step("confirm").wait(f"confirm {hotel}"))


@workflow
def trip() -> Generator[Any, Any, Any]:
    found = yield parallel(
        step("a").workflow(booking, hotel="A"), step("b").workflow(booking, hotel="B"), min_success=1, name="hotel"
    ).checkpoint()
    yield step("pay").wait("pay")
    raise ValueError(names(found))


def test_what_a_stopped_child_did_is_undone_at_once_and_only_once(reopen: Callable[[], Any]) -> None:
    WorkflowEngine(reopen()).run_sync(trip, workflow_id="run")
    engine = WorkflowEngine(reopen())
    in_sync(engine).signal("run", "confirm B", "ok")
    waiting = engine.resume_sync(trip, workflow_id="run")
    assert waiting.status == "suspended" and ended == ["hold A"], "while the run continues"
    plan = in_sync(WorkflowEngine(reopen())).plan(trip, workflow_id="run")
    assert plan.stale == 0 and {str(each.decision) for each in plan.steps} == {"reuse", "new"}
    engine = WorkflowEngine(reopen())
    in_sync(engine).signal("run", "pay")
    result = engine.resume_sync(trip, workflow_id="run")
    assert str(result.error) == "['stopped', 'ok']" and not result.rollback_failures
    assert ended == ["hold A", "hold B"] and sorted(calls) == ["hold A", "hold B"]
    again = WorkflowEngine(reopen()).resume_sync(trip, workflow_id="run")
    assert again.status == "suspended", "the race is run again: what had won was undone"
    assert sorted(calls) == ["hold A", "hold A", "hold B", "hold B"] and len(ended) == 2


@pytest.mark.parametrize("wins", [True, False])
def test_a_booking_that_was_made_as_its_member_was_stopped_is_undone(wins: bool) -> None:
    """The ledger decides: a booking either returns, and is undone, or cleans up after itself."""
    ledger: list[str] = []

    def book(at: int) -> int:
        try:
            ledger.append("booked")
        except BaseException:
            ledger.append("undone")
            raise
        return at

    def undo(at: int) -> None:
        ledger.append("undone")

    def decide(seconds: float) -> None:
        time.sleep(seconds)
        assert wins

    @workflow
    def hotel() -> Generator[Any, Any, Any]:
        yield step("book").python(book, 1).rollback(undo)
        yield step("confirmed").wait("never")

    for number in range(120):
        seconds, wanted = number % 12 / 20_000, 1 if wins else None

        @workflow("trip")
        def trip(seconds: float = seconds, wanted: int | None = wanted) -> Generator[Any, Any, Any]:
            booking = step("hotel").workflow(hotel)
            yield parallel(step("decide").python(decide, seconds), booking, min_success=wanted)

        ledger.clear()
        result = WorkflowEngine(MemoryCheckpointStore()).run_sync(trip)
        assert result.status == ("completed" if wins else "failed")
        assert ledger.count("booked") == ledger.count("undone"), (number, ledger)


def test_a_rollback_to_a_checkpoint_after_a_race_keeps_what_it_undid(reopen: Callable[[], Any]) -> None:
    WorkflowEngine(reopen()).run_sync(trip, workflow_id="run")
    engine = WorkflowEngine(reopen())
    in_sync(engine).signal("run", "confirm B", "ok")
    engine.resume_sync(trip, workflow_id="run")
    in_sync(engine).rollback("run", "hotel")
    assert WorkflowEngine(reopen()).resume_sync(trip, workflow_id="run").status == "suspended"
    assert ended == ["hold A"] and sorted(calls) == ["hold A", "hold B"], "nothing is done or undone again"


@pytest.mark.parametrize("is_connected", [False, True], ids=["", "after an ephemeral step"])
async def test_what_cannot_be_undone_is_told_and_tried_again_when_the_run_fails(is_connected: bool) -> None:
    broken = [True]

    def give_back(what: str) -> None:
        if broken:
            raise OSError("no connection")
        ended.append(what)

    @workflow
    def holding() -> Generator[Any, Any, Any]:
        if is_connected:
            yield step("connect").python(object).ephemeral()
        yield step("hold").python(quick, "hold").rollback(give_back)
        yield step("never").wait("never")

    @workflow
    def flow() -> Generator[Any, Any, Any]:
        held = step("held").workflow(holding)
        yield parallel(held, step("won").wait("won"), name="race", min_success=1)
        yield step("end").wait("end")
        raise ValueError("the end")

    engine = WorkflowEngine(MemoryCheckpointStore())
    await engine.run(flow, workflow_id="run")
    await engine.signal("run", "won")
    told = [event async for event in engine.resume(flow, workflow_id="run")]
    (failed,) = [each for each in told if isinstance(each, RollbackCompleted)]
    assert (failed.path, failed.error_message) == ("race/[held]/hold", "no connection")
    await engine.signal("run", "end")
    broken.clear()
    result = await engine.resume_run(flow, workflow_id="run")
    assert result.undone == ("race/[held]/hold",) and ended == ["hold"] and not result.rollback_failures


def test_a_race_that_is_reused_by_its_inputs_keeps_what_it_undid(reopen: Callable[[], Any]) -> None:
    def flow_of(version: str) -> Any:
        @workflow("reused")
        def flow() -> Generator[Any, Any, Any]:
            yield step("first").python(quick, "first").version(version)
            members = [step("a").workflow(booking, hotel="A"), step("b").workflow(booking, hotel="B")]
            found = yield parallel(*members, min_success=1, name="hotel").checkpoint()
            yield step("end").wait("end")
            return names(found)

        return flow

    WorkflowEngine(reopen()).run_sync(flow_of("1"), workflow_id="run")
    engine = WorkflowEngine(reopen())
    in_sync(engine).signal("run", "confirm B", "ok")
    engine.resume_sync(flow_of("1"), workflow_id="run")
    how = RunOptions(on_stale="rerun", reuse="inputs")
    for options in (how, RunOptions(reuse="inputs")):
        engine = WorkflowEngine(reopen())
        assert engine.resume_sync(flow_of("2"), workflow_id="run", options=options).status == "suspended"
    assert calls.count("first") == 2 and sorted(calls)[2:] == ["hold A", "hold B"] and ended == ["hold A"]
    in_sync(engine).signal("run", "end")
    assert WorkflowEngine(reopen()).resume_sync(flow_of("2"), workflow_id="run").output == ["stopped", "ok"]
    assert ended == ["hold A"]


# --- the law: races in random programs, whose processes die --------------------------------------------------------------


@attrs.define
class Ledger:
    """The effects that stand, and how often each was undone.

    Attributes:
        is_broken: whether the last step of the program fails.
    """

    standing: list[str] = attrs.field(factory=list)
    undone: Counter[str] = attrs.field(factory=Counter)
    is_broken: bool = False
    connection: Any = attrs.field(factory=threading.Lock)  # so that the world is never compared as an argument

    def do(self, name: str) -> str:
        if name not in self.standing:
            self.standing.append(name)
        return name

    def undo(self, name: str) -> None:
        self.undone[name] += 1
        if name in self.standing:
            self.standing.remove(name)

    def end(self) -> None:
        if self.is_broken:
            raise OSError("broken")

    def flow(self, program: Any) -> Any:
        def work(name: str, *, keeps: bool, saves: bool) -> Any:
            made = step(name.rpartition(".")[2]).python(self.do, name)
            made = made if keeps else made.rollback(self.undo)
            return made.checkpoint() if saves else made

        def body(name: str, block: Any, last: Any, *, waited: bool = False) -> Generator[Any, Any, Any]:
            for place, (kind, *more) in enumerate(block):
                at = f"{name}.{place}"
                if kind == "do":  # whether a loser comes to a step after a wait is open, so its effect must not stay
                    yield work(at, keeps=more[0] and place == 0 and not waited, saves=more[1])
                elif kind == "map":
                    yield step("map").map(self.do, [f"{at}.{item}" for item in range(more[0])]).rollback(self.undo)
                elif kind == "child":
                    yield step("child").workflow(child, name=at, block=more[0], waited=waited)
                else:
                    yield race(at, more[0], more[1], waited=waited)
                    waited = True
            return None if last is None else (yield last)

        @workflow("child")
        def child(name: str, block: Any, waited: bool) -> Generator[Any, Any, Any]:
            yield from body(name, block, None, waited=waited)

        @workflow("member")
        def member(name: str, block: Any, wins: bool, waited: bool) -> Generator[Any, Any, Any]:
            last = step("go").wait(f"go {name}") if wins else step("late").sleep(10**9)
            yield from body(name, block, last, waited=waited)

        def race(name: str, members: Any, winner: int, *, waited: bool) -> Any:
            wins = winner % len(members)
            steps = [
                step(f"m{place}").workflow(
                    member, name=f"{name}.m{place}", block=block, wins=place == wins, waited=waited
                )
                for place, block in enumerate(members)
            ]
            return parallel(*steps, name="race", min_success=1)

        @workflow("races")
        def races() -> Generator[Any, Any, Any]:
            yield from body("p", program, None)
            yield step("end").python(self.end)
            return "end"

        return races


_saves = st.booleans()
_blocks = st.recursive(
    st.lists(st.tuples(st.just("do"), st.booleans(), _saves), max_size=3),
    lambda inner: st.lists(
        st.one_of(
            st.tuples(st.just("do"), st.just(False), _saves),
            st.tuples(st.just("map"), st.integers(1, 3)),
            st.tuples(st.just("child"), inner),
            st.tuples(st.just("race"), st.lists(inner, min_size=2, max_size=3), st.integers(0, 2)),
        ),
        min_size=1,
        max_size=3,
    ),
    max_leaves=6,
)
_races = st.lists(
    st.tuples(st.just("race"), st.lists(_blocks, min_size=2, max_size=3), st.integers(0, 2)), min_size=1, max_size=2
)


def led(ledger: Ledger, program: Any, saves: Saves) -> tuple[Any, Any]:
    """Lead a run of a program to its end; return the result and the history."""
    store, clock = MemoryCheckpointStore(), FakeClock()
    flow, how = ledger.flow(program), RunOptions(max_crashes=0)
    for _ in range(200):
        store.runs.owned.clear()  # type: ignore[attr-defined]
        engine, planned = WorkflowEngine(MortalStore(store, saves), clock=clock), ()
        try:
            if asyncio.run(store.load_latest("run")) is None:
                result = engine.run_sync(flow, workflow_id="run", options=how)
            else:
                plan = in_sync(WorkflowEngine(store, clock=clock)).plan(flow, workflow_id="run", options=how)
                planned = tuple(each.path for each in plan.steps if each.decision == "undo")
                result = engine.resume_sync(flow, workflow_id="run", options=how)
        except SimulatedCrash:
            continue
        assert set(planned) <= set(result.undone), "the plan says what is undone"
        assert not result.rollback_failures
        if result.status == "failed":
            assert "broken" in str(result.error) or isinstance(result.error, RunUndoneError), result.error
            ledger.is_broken = False
        elif result.status == "suspended":
            for wait in result.waits:
                if wait.kind == "signal":
                    in_sync(engine).signal("run", wait.name)
        else:
            return result, asyncio.run(store.load_latest("run")).step_results
    raise AssertionError("the run does not come to its end")


@settings(max_examples=30, deadline=None)
@given(
    program=_races,
    crashes=st.sets(st.integers(1, 40), max_size=5),
    is_after=st.booleans(),
    is_broken=st.booleans(),
)
@example([("race", [[("do", False, True)] * 2, []], 1)], {1, 2, 3, 4, 5, 6, 7}, True, False)
@example([("race", [[("do", False, True)] * 2, []], 1)], {2, 4, 5, 6}, False, True)
@example(
    [("race", [[("do", False, False)], [("race", [[], []], 0), ("child", [("do", True, False)])]], 0)],
    set(),
    False,
    True,
)
@example([("race", [[], [("race", [[], []], 0)]], 0)], {1, 7}, False, False)
def test_what_races_undo_is_undone_once_however_often_the_process_dies(
    program: Any, crashes: set[int], is_after: bool, is_broken: bool
) -> None:
    clean, mortal = Ledger(), Ledger(is_broken=is_broken)
    _, wanted = led(clean, program, Saves())
    result, found = led(mortal, program, Saves(*crashes, is_after=is_after))
    assert result.output == "end"
    assert sorted(mortal.standing) == sorted(clean.standing)

    def without_losers(results: Any) -> list[tuple[str, bool]]:
        lost = tuple(f"{each.path}/" for each in results if each.error is not None)
        return sorted((each.path, each.success) for each in results if not each.path.startswith(lost))

    assert without_losers(found) == without_losers(wanted)
    if is_after and not is_broken and repr(program).count("race") == 1:  # in several, one dies while another undoes
        assert all(times == 1 for times in mortal.undone.values()), mortal.undone


class FullDisk:
    """A store whose n-th save fails."""

    def __init__(self, inner: Any, at: int) -> None:
        self._inner, self._at, self._saves = inner, at, 0
        pass_on(self, inner)

    async def save(self, workflow_id: str, data: Any) -> None:
        self._saves += 1
        if self._saves == self._at:
            raise CheckpointStorageError("no space", workflow_id=workflow_id, operation="save", remedy="Free space.")
        await self._inner.save(workflow_id, data)


@pytest.mark.parametrize("at", range(3, 11))
def test_no_run_is_completed_whose_save_failed_in_a_loser_that_was_being_stopped(at: int) -> None:
    flow = Ledger().flow([("race", [[], [("race", [[], []], 0)]], 0)])
    store = MemoryCheckpointStore()
    engine = WorkflowEngine(FullDisk(store, at), clock=FakeClock())
    result, statuses = engine.run_sync(flow, workflow_id="run"), []
    while result.status != "completed":
        statuses.append(result.status)
        for wait in result.waits:
            if wait.kind == "signal":
                in_sync(engine).signal("run", wait.name)
        result = engine.resume_sync(flow, workflow_id="run")
    assert result.is_saved and asyncio.run(store.load_latest("run")).status == "completed"
    assert ("failed" in statuses) == (at < 9)  # a run that continues has eight saves


def test_a_race_that_is_stopped_while_it_is_decided_leaves_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(5):
        led(Ledger(), [("race", [[], [("race", [[], []], 0)]], 0)], Saves())
        gc.collect()
    assert "never retrieved" not in caplog.text
