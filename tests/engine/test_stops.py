"""A run that is asked to stop again and again, wherever that meets it, ends as one that was left alone."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Generator
from typing import Any

import attrs
import pytest
from composite_program import LIVES, RUNS, WAITS, Node, breakable, programs
from composite_world import World
from crashing import SimulatedCrash
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from outside import Saves
from test_everything_resumes import (
    LAST,
    Life,
    a_world,
    counting,
    fan_outs_that_failed,
    history,
    in_a_row,
    of_others,
)

from flowckpt import MemoryCheckpointStore, RunOptions, WorkflowEngine, parallel, step, workflow
from flowckpt.core.records import StepResult
from flowckpt.errors import StepFailedError
from flowckpt.execution import python
from flowckpt.execution.interrupts import RunInterrupted


@attrs.define(eq=False)
class StoppedLife(Life):
    """A life in which the process gets SIGTERM: at an event, in a step, or around a save.

    Attributes:
        where: which of these are counted.
        stops: at which of them it is asked to stop.
        met: how many there were.
    """

    where: str = "event"
    stops: frozenset[int] = frozenset()
    met: int = 0
    error: Any = None

    def meet(self) -> None:
        self.met += 1
        if (
            self.met in self.stops and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        ):  # a thread may outlive its run
            signal.raise_signal(signal.SIGTERM)

    def _process(self, *, is_forced: bool) -> Any:
        self.store.runs.owned.clear()
        python._abandoned.clear()
        listeners = [lambda _: self.meet()] if self.where == "event" else []
        engine = WorkflowEngine(self.store, clock=self.clock, listeners=listeners)
        program = self.world.workflow(*self.blocks)
        try:
            if self._latest() is None:
                result = engine.run_sync(program, workflow_id="run")
            else:
                result = engine.resume_sync(program, workflow_id="run", options=RunOptions(force=is_forced))
        except RunInterrupted as stop:
            event("stopped")
            result = stop.result
            if result is None or result.status == "suspended":
                raise SimulatedCrash from None  # the next process continues
        self.error = result.error
        return result

    def _check_undoing(self) -> None:
        """Nothing is undone while somebody is asked."""
        if isinstance(self.error, StepFailedError):
            super()._check_undoing()


def a_life(world: World, blocks: tuple[tuple[Node, ...], ...], where: str, stops: frozenset[int]) -> StoppedLife:
    life = StoppedLife(world, blocks, Saves(), where=where, stops=stops)
    act, save = world.act, life.store.save

    def acting(*told: Any) -> str:
        life.meet()
        try:
            return act(*told)
        finally:
            life.meet()

    async def saving(*told: Any) -> None:
        life.meet()
        await save(*told)
        life.meet()

    if where == "step":
        world.act = acting  # type: ignore[method-assign]
    if where == "save":
        life.store.save = saving  # type: ignore[method-assign]
    return life


def law(block: tuple[Node, ...], stops: list[int], where: str, broken: int | None, cut: int) -> None:
    """Compare a run that is stopped with one that is not.

    Args:
        block: the program.
        stops: after how many events, steps or saves each process is stopped, counted round by those of the whole run.
        where: what is counted.
        broken: which of the nodes that can end the run does so, counted from the last, until it is mended.
        cut: how many of its nodes the first of two generations has; all in one generation for 0.
    """
    block = (*block, LAST)
    blocks = (block[:cut], block[cut:]) if 0 < cut < len(block) else (block,)
    with a_world() as world, a_world() as clean:
        whole = a_life(clean, blocks, where, frozenset())
        wanted = whole.lead()
        if broken is not None:
            world.broken = breakable(block)[-1 - broken % len(breakable(block))]
        at = frozenset(itertools.accumulate(1 + each % max(1, whole.met) for each in stops))
        life = a_life(world, blocks, where, at)
        latest = life.lead()
        life.stops = frozenset()  # what is left are the runs that it has started
        assert latest.output == wanted.output
        assert world.state() == clean.state()
        assert world.standing >= clean.standing
        assert world.twice == [], "a step that must not be done twice was"
        was, now = history(wanted.step_results), history(latest.step_results)
        assert (now, in_a_row(now)) == (was, in_a_row(was))
        lost = fan_outs_that_failed(latest.step_results)
        assert [each for each in latest.in_flight if not each.startswith(lost)] == []
        assert counting(life.published(), lost) == counting(whole.published(), lost)
        assert of_others(life.started(), lost) == of_others(whole.started(), lost)


# A stop that another thread has raised may meet a callback of the garbage collector, from which Python drops exceptions.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
UNHURRIED: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
ANY: Callable[[Any], Any] = given(
    programs(*WAITS, *RUNS, *LIVES, most=5),
    st.lists(st.integers(0, 80), min_size=1, max_size=4),
    st.sampled_from(["event", "step", "save"]),
    st.one_of(st.none(), st.integers(0, 9)),
    st.one_of(st.just(0), st.integers(0, 4)),
)


@settings(max_examples=60, **UNHURRIED)
@ANY
def test_a_run_of_all_constructs_that_is_stopped_again_and_again_ends_as_one_that_was_not(
    block: Any, stops: list[int], where: str, broken: int | None, cut: int
) -> None:
    law(block, stops, where, broken, cut)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@settings(max_examples=10_000, **UNHURRIED)
@ANY
def test_so_do_ten_thousand_of_them(block: Any, stops: list[int], where: str, broken: int | None, cut: int) -> None:
    law(block, stops, where, broken, cut)


# --- examples --------------------------------------------------------------------------------------------------------


def results_of(store: MemoryCheckpointStore) -> list[StepResult]:
    return [*asyncio.run(store.load_latest("run")).step_results]  # type: ignore[union-attr]


@workflow
def printing(in_group: bool) -> Generator[Any, Any, str]:
    made = step("print").command(["sh", "-c", "printf hello"]).checkpoint()
    yield parallel(made, step("other").python(abs, -1)) if in_group else made
    return "printed"


@pytest.mark.parametrize("in_group", [False, True])
def test_a_stop_when_a_command_is_about_to_start_is_no_failure_of_the_command(in_group: bool) -> None:
    def hear(told: Any) -> None:
        if told.kind == "StepStarted" and told.path.endswith(("print", "[print]")):
            signal.raise_signal(signal.SIGTERM)

    store = MemoryCheckpointStore()
    with pytest.raises(RunInterrupted) as stop:
        WorkflowEngine(store, listeners=[hear]).run_sync(printing, workflow_id="run", in_group=in_group)
    assert stop.value.result.status == "suspended"
    assert not [each for each in results_of(store) if not each.success]
    assert WorkflowEngine(store).resume_sync(printing, workflow_id="run").output == "printed"


converted: list[int] = []


def convert(number: int) -> int:
    """Fail as one does whose program Ctrl-C has reached as well, and first."""
    if number and not converted:
        converted.append(number)
        os.kill(os.getpid(), signal.SIGINT)
        raise OSError("the program was killed by SIGINT")
    return number


@workflow
def converting(in_map: bool) -> Generator[Any, Any, Any]:
    if in_map:
        found = yield step("convert").map(convert, [0, 1], tolerate=2)
        return [each if isinstance(each, int) else "failed" for each in found]
    try:
        yield step("zero").python(convert, 0)
        return [0, (yield step("one").python(convert, 1).on("thread"))]
    except StepFailedError:
        return "failed"


@pytest.mark.parametrize("in_map", [False, True])
def test_a_failure_that_the_stop_itself_has_brought_about_is_not_recorded(in_map: bool) -> None:
    converted.clear()
    engine = WorkflowEngine(MemoryCheckpointStore())
    with pytest.raises(RunInterrupted):
        engine.run_sync(converting, workflow_id="run", in_map=in_map)
    assert converted == [1]
    assert engine.resume_sync(converting, workflow_id="run").output == [0, 1]


async def cancel_booking(number: int) -> None:
    convert(number)
    undone.append(number)


undone: list[int] = []


@workflow
def booking() -> Generator[Any, Any, None]:
    for number in range(2):
        yield step("book").python(abs, number).rollback(cancel_booking).checkpoint()
    yield step("pay").python(int, "no number")


def test_a_compensation_that_the_stop_has_ended_is_called_again() -> None:
    converted.clear()
    undone.clear()
    engine = WorkflowEngine(MemoryCheckpointStore())
    with pytest.raises(RunInterrupted):
        engine.run_sync(booking, workflow_id="run")
    assert (converted, undone) == ([1], [])
    result = engine.resume_sync(booking, workflow_id="run")
    assert (result.status, result.rollback_failures, undone) == ("failed", (), [1, 0])
