"""A run of a random program out of all constructs, that dies again and again, ends as one that was never interrupted.

Functions, async and on threads, commands, retries, answers that are recorded, maps, groups, child workflows, sleeps, signals
and approvals; other runs that are started, signals to a run, and replies; published values, recorded arguments, races, and
generations; steps at most once; failures that are handled, and one that ends the run, which is undone and then mended.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import pytest
from composite_program import LIVES, RECORDED, RUNS, SENT, WAITS, Node, all_nodes, breakable, programs
from composite_world import World, started
from crashing import SimulatedCrash
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from outside import MortalStore, Saves

from flowckpt import MemoryCheckpointStore, MirroredStore, RunOptions, WorkflowEngine, in_sync
from flowckpt.core.records import StepResult, WaitKind, generation
from flowckpt.engine.undo.compensate import read_unfinished
from flowckpt.errors import RunUndoneError, StepInDoubtError
from flowckpt.execution import python
from flowckpt.maintenance.export import read_whole_run
from flowckpt.maintenance.recovery import find_due_runs
from flowckpt.testing import FakeClock


@attrs.define(eq=False)
class Life:
    """A run, over all processes that it takes to bring it to its end.

    Attributes:
        world: what it acts upon.
        blocks: its program, a block for each of its generations.
        saves: at which of them a process dies.
        store: its record.
        mirror: the second store, if there is one: a process dies at its saves, too.
        durable: what was durable when a process died, by path, as long as nothing of it was undone.
    """

    world: World
    blocks: tuple[tuple[Node, ...], ...]
    saves: Saves
    store: MemoryCheckpointStore = attrs.field(factory=MemoryCheckpointStore)
    mirror: MemoryCheckpointStore | None = None
    clock: FakeClock = attrs.field(factory=FakeClock)
    durable: dict[str, StepResult] = attrs.field(factory=dict)
    is_mended: bool = False
    generation: int = 1

    def lead(self) -> Any:
        """Lead it to its end; return its newest checkpoint."""
        is_asked = False
        for _ in range(100):
            is_forced, is_asked = is_asked, False
            try:
                result = self._process(is_forced=is_forced)
            except SimulatedCrash:
                event("a process died")
                self._note_what_is_durable()
                continue
            except StepInDoubtError as doubt:
                result, error = None, doubt
            else:
                error = result.error
            if isinstance(error, StepInDoubtError):
                event("somebody was asked")
                is_asked = True
                self._somebody_says_that_all_in_doubt_are_done_again()
                if result is not None:  # it was met on the way
                    self._check_undoing()
            elif result.status == "suspended":
                self._answer(result)
            elif result.status == "failed":
                assert "OSError: broken" in str(error) or isinstance(error, RunUndoneError), error
                event(f"{min(3, len(result.undone))} undone, and mended")
                self._check_undoing()
                self.world.broken = -1
            else:
                assert result.status == "completed", error
                return self._latest()
        raise AssertionError("the run does not come to its end")

    def _somebody_says_that_all_in_doubt_are_done_again(self) -> None:
        latest = self._latest()
        self.world.asked_for.update(latest.in_flight)
        self.world.asked_for.update(each["path"] for each in latest.metadata.get("superseded", ()))

    def _process(self, *, is_forced: bool) -> Any:
        self.store.runs.owned.clear()  # the process before it is gone
        python._abandoned.clear()
        store: Any = MortalStore(self.store, self.saves)
        if self.mirror is not None:
            self.mirror.runs.owned.clear()
            store = MirroredStore(store, MortalStore(self.mirror, self.saves, store))
        engine = WorkflowEngine(store, clock=self.clock)
        program = self.world.workflow(*self.blocks)
        if self._latest() is None:
            return engine.run_sync(program, workflow_id="run")
        options = RunOptions(force=is_forced)
        planned = None
        if read_unfinished(self._latest().metadata) is not None:
            plan = in_sync(WorkflowEngine(self.store, clock=self.clock)).plan(
                program, workflow_id="run", options=options
            )
            planned = tuple(each.path for each in plan.steps if each.decision == "undo")
        result = engine.resume_sync(program, workflow_id="run", options=options)
        if planned is not None:
            event("the undoing was planned")
            assert (result.undone, result.rollback_failures) == (planned, ())
        return result

    def _answer(self, result: Any) -> None:
        """Let the time pass, or people answer, each wait once."""
        event("suspended")
        outside = WorkflowEngine(self.store, clock=self.clock)
        passing = (WaitKind.SLEEP, WaitKind.RETRY)
        asked = [wait for wait in result.waits if wait.kind not in passing and wait.name != "never"]
        assert not any(wait.name.startswith("mail") for wait in asked), "it was sent, and is lost"
        for wait in asked:
            if wait.kind is WaitKind.SIGNAL:
                in_sync(outside).signal("run", wait.name, f"data of {wait.name}")
            else:
                in_sync(outside).approve("run", wait.path, by="ann")
        self.saves.sent += len(asked)
        if not asked:
            self.clock.advance((result.due_at - self.clock.now()).total_seconds())

    def started(self) -> dict[str, Any]:
        """Lead the runs that were started to their ends; return the output of each, by the step that started it."""
        self.store.runs.owned.clear()
        engine, outputs = WorkflowEngine(self.store, clock=self.clock), {}
        for due in asyncio.run(find_due_runs(self.store, self.clock)):
            assert engine.resume_sync(started, workflow_id=due.workflow_id).status == "completed"
        for info in asyncio.run(self.store.list_runs()):
            if info.workflow_id != "run":
                output = repr(asyncio.run(self.store.load_latest(info.workflow_id)).output)
                path = f"{info.metadata['started_by']['path']} {output}"  # each generation has its own
                assert path not in outputs, "it was started twice"
                outputs[path] = output
        return outputs

    def check_the_mirror(self) -> None:
        """Check that the mirror has the whole run: what a crash kept from it came with the next resume."""
        if self.mirror is not None:
            self.mirror.runs.owned.clear()
            assert in_mirror(self.mirror) == in_mirror(self.store)

    def _latest(self) -> Any:
        latest = asyncio.run(self.store.load_latest("run"))
        if latest is not None and (now := generation.number_of(latest.metadata)) != self.generation:
            event("another generation")
            self.generation, self.durable = now, {}
            self.world.undoable.clear()
        return latest

    def published(self) -> dict[str, tuple[Any, str]]:
        """Return the published values, each with the step that published it."""
        found = asyncio.run(WorkflowEngine(self.store).published("run"))
        return {name: (each.value, each.step) for name, each in found.items()}

    def _note_what_is_durable(self) -> None:
        latest = self._latest()
        if latest is None:
            return
        if self.world.broken == -1 and not self.is_mended:
            self.check_what_was_durable(latest)
            self.durable = {each.path: each for each in latest.step_results}

    def check_what_was_durable(self, latest: Any) -> None:
        """Check that what was durable when a process died has stayed, and was not done again."""
        results = {each.path: each for each in latest.step_results}
        for path, was in self.durable.items():
            assert path in results, f"{path} was durable, and is gone"
            assert of_record(results[path]) == of_record(was), "what is durable is not done again"

    def _check_undoing(self) -> None:
        """Check that all that says how it is undone was undone, newest first."""
        self.is_mended = True
        self.durable = {}
        results = self._latest().step_results
        done = {each.path: place for place, each in enumerate(results) if each.success and each.step_type != "rollback"}
        undone = [each.path.removesuffix("@rollback") for each in results if each.step_type == "rollback"]
        places = [done[path] for path in undone]
        assert places == sorted(places, reverse=True), "the newest first"
        assert self.world.undoable & done.keys() <= set(undone), "and all of them"


def of_record(result: StepResult) -> tuple[Any, ...]:
    return result.success, repr(result.output), result.started_at, result.attempt


def history(results: Any) -> dict[str, tuple[Any, ...]]:
    """Return what must be in a history however it came about, by path; not what lies in a fan-out that failed."""
    lost = fan_outs_that_failed(results)
    told = {}
    for each in results:
        output = each.output
        if each.step_type in (*RECORDED, "start"):
            output = each.step_type
        elif isinstance(output, dict) and "by" in output:
            output = output["by"]
        if not f"{each.path}/".startswith(lost):
            told[each.path] = each.step_type, each.success, repr(output), repr(each.argument_values)
    return told


def fan_outs_that_failed(results: Any) -> tuple[str, ...]:
    """Return what the paths begin with that lie in one: which of its members ran depends on who was first."""
    return tuple(f"{each.path}/" for each in results if each.step_type in ("map", "parallel") and not each.success)


def in_a_row(paths: Any) -> dict[str, list[str]]:
    """Return the steps of each generator in the order of their results: those that do not stand in brackets."""
    rows: dict[str, list[str]] = {}
    for path in paths:
        scope, _, last = path.rpartition("/")
        if not last.startswith("["):
            rows.setdefault(scope, []).append(last)
    return rows


@contextlib.contextmanager
def a_world() -> Iterator[World]:
    with TemporaryDirectory() as folder:
        root = Path(folder) / "artifacts"
        root.mkdir()
        yield World(root)


LAST = Node(1000, "pure", "end")
"""Where it fails, all that was done is undone."""


def in_mirror(store: MemoryCheckpointStore) -> list[Any]:
    """The checkpoints of the run in a store, but for their attempts, which a mirror numbers and notes itself."""
    found = asyncio.run(read_whole_run(store, "run")).checkpoints
    return [
        attrs.evolve(each, attempt=1, metadata={key: each.metadata[key] for key in each.metadata if key != "mirrored"})
        for each in found
    ]


def law(
    block: tuple[Node, ...], deaths: list[int], is_after: bool, broken: int | None, cut: int, has_mirror: bool = False
) -> None:
    """Compare a run that dies with one that does not.

    Args:
        block: the program.
        cut: how many of its nodes the first of two generations has, as far as there are more; all in one generation for 0.
        deaths: how many saves each process lives, counted round by those that the whole run takes.
        is_after: whether they die behind those saves, and not before.
        broken: which of the nodes that can end the run does so, counted from the last, until it is mended.
        has_mirror: whether each save goes to a second store, too.
    """
    block = (*block, LAST)
    blocks = (block[:cut], block[cut:]) if 0 < cut < len(block) else (block,)
    with a_world() as world, a_world() as clean:
        whole = Life(clean, blocks, Saves(), mirror=MemoryCheckpointStore() if has_mirror else None)
        wanted = whole.lead()
        lived = [1 + each % whole.saves.count for each in deaths]
        can_break = breakable(block)
        if broken is not None:
            world.broken = can_break[-1 - broken % len(can_break)]
        mirror = MemoryCheckpointStore() if has_mirror else None
        life = Life(world, blocks, Saves(*itertools.accumulate(lived), is_after=is_after), mirror=mirror)
        latest = life.lead()
        life.check_the_mirror()
        assert latest.output == wanted.output
        assert world.state() == clean.state()
        assert world.standing >= clean.standing
        assert world.twice == [], "a step that must not be done twice was"
        was, now = history(wanted.step_results), history(latest.step_results)
        assert now == was
        assert in_a_row(now) == in_a_row(was), "in the same order"
        assert "waits" not in latest.metadata
        once = {node.number for node in all_nodes(block) if "once" in (node.kind, node.works)}
        assert not latest.in_flight or once, "only a step that must not be done twice is in doubt at the end"
        assert [
            each for each in latest.in_flight if not each.startswith(fan_outs_that_failed(latest.step_results))
        ] == []
        assert asyncio.run(life.store.signals("run")) == []
        life.check_what_was_durable(latest)
        took = {each.path: each.signal for each in latest.step_results}
        for each in latest.step_results:
            if each.step_type == "reply" and each.success:
                assert each.signal == took[each.path.replace("/answer", "/ask")] != "", "the sender finds its reply"
        lost = fan_outs_that_failed(latest.step_results)
        assert counting(life.published(), lost) == counting(whole.published(), lost)
        assert of_others(life.started(), lost) == of_others(whole.started(), lost)


def of_others(outputs: dict[str, Any], lost: tuple[str, ...]) -> dict[str, Any]:
    return {path: output for path, output in outputs.items() if not f"{path}/".startswith(lost)}


def counting(published: dict[str, tuple[Any, str]], lost: tuple[str, ...]) -> dict[str, tuple[Any, str]]:
    return {name: found for name, found in published.items() if not f"{found[1]}/".startswith(lost)}


def any_of(*more: str) -> Any:
    """Draw a program, and how it is interrupted."""
    deaths = st.lists(st.integers(0, 60), min_size=1, max_size=4)
    return given(
        programs(*WAITS, *RUNS, *LIVES, *more, most=5),
        deaths,
        st.booleans(),
        st.one_of(st.none(), st.integers(0, 3), st.integers(0, 9)),
        st.one_of(st.just(0), st.integers(0, 4)),
        st.booleans(),
    )


UNHURRIED: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=90, **UNHURRIED)
@any_of()
def test_a_run_of_all_constructs_that_dies_again_and_again_ends_as_an_uninterrupted_one(
    block: Any, deaths: Any, is_after: bool, broken: int | None, cut: int, has_mirror: bool
) -> None:
    law(block, deaths, is_after, broken, cut, has_mirror)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@settings(max_examples=20_000, **UNHURRIED)
@any_of(SENT)
def test_so_do_twenty_thousand_of_them(
    block: Any, deaths: Any, is_after: bool, broken: int | None, cut: int, has_mirror: bool
) -> None:
    law(block, deaths, is_after, broken, cut, has_mirror)
