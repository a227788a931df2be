"""Random programs out of all constructs, changed and crashed between two runs, end as a clean run of what they are then.

Sequential steps, maps, groups, child workflows, maps over workflows, handled and tolerated failures, undoing, evidence,
steps at most once; files and code and items that change; policies, and asking for a step again. What is resumed does what
its plan said, as far as that sees.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from composite_program import Node, all_nodes, breakable, changed, changes, programs
from composite_world import World
from crashing import CrashingStore, SimulatedCrash
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from flowckpt import MemoryCheckpointStore, WorkflowEngine, in_sync
from flowckpt.core.records import Reason
from flowckpt.engine.rules.paths import step_of
from flowckpt.engine.rules.plan import Decision, ResumePlan
from flowckpt.engine.undo.compensate import read_unfinished
from flowckpt.engine.values.options import RunOptions
from flowckpt.errors import NotUndoableError, RunUndoneError, StaleStepError, StepInDoubtError
from flowckpt.events import RollbackCompleted, RollbackStarted, StepAdopted, StepFailed, StepRestored, StepStarted
from flowckpt.execution import python

choices = st.fixed_dictionaries(
    {},
    optional={
        "on_stale": st.sampled_from(["rerun", "rerun", "reuse", "fail"]),
        "on_code_change": st.sampled_from(["rerun", "rerun", "rerun", "reuse", "fail"]),
        "reuse": st.sampled_from(["prefix", "inputs", "inputs"]),
        "from_step": st.integers(0, 12),
        "force": st.just(True),
    },
)
crashes = st.one_of(st.none(), st.tuples(st.integers(1, 14), st.booleans()))


@contextlib.contextmanager
def a_world() -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "artifacts"
        root.mkdir()
        yield World(root)


def reopened(store: MemoryCheckpointStore) -> MemoryCheckpointStore:
    store.runs.owned.clear()  # the process that owned it is gone
    python._abandoned.clear()  # and its threads with it
    return store


def snapshot(store: MemoryCheckpointStore) -> Any:
    return [(each.checkpoint_id, each.sequence, each.attempt) for each in asyncio.run(store.list_checkpoints("run"))]


def latest(store: Any, run: str = "run") -> Any:
    return asyncio.run(store.load_latest(run))


def law(
    block: tuple[Node, ...],
    crash: tuple[int, bool] | None,
    broken: int | None,
    edits: list[tuple[str, int]],
    chosen: dict[str, Any],
    second: tuple[int, bool] | None,
    third: tuple[int, bool] | None,
) -> None:
    store = MemoryCheckpointStore()
    with a_world() as world:
        if broken is not None and (can_break := breakable(block)):
            world.broken = can_break[-1 - broken % len(can_break)]
        first = CrashingStore(store, crash[0] if crash else 10**9, is_after=bool(crash and crash[1]))
        with contextlib.suppress(SimulatedCrash):
            WorkflowEngine(first).run_sync(world.workflow(block), workflow_id="run")
        if latest(store) is None:
            return
        world.broken = -1
        recorded = sorted(each.path for each in latest(store).step_results if each.step_type != "rollback")
        for edit in edits:
            block = changed(block, edit, world, recorded)
        if "from_step" in chosen:
            chosen = dict(chosen)
            which = chosen.pop("from_step")
            if recorded:
                chosen["from_step"] = recorded[which % len(recorded)]
                world.asked_for.update(recorded)
        is_untouched = not edits and not chosen
        if "force" in chosen:
            world.is_all_asked_for = True
        for crash_in_resume in (second, third):
            if crash_in_resume is not None:
                if not resumed(world, reopened(store), block, chosen, crash_in_resume, is_untouched=is_untouched):
                    return
                chosen = {key: value for key, value in chosen.items() if key != "from_step"}
        has_ended = resumed(world, reopened(store), block, chosen, None, is_untouched=is_untouched)
        assert world.twice == [], "a step that must not be done twice was"
        is_kept = any("once" in (node.kind, node.works) and node.edition for node in all_nodes(block))
        if has_ended and not is_kept and "reuse" not in (chosen.get("on_stale"), chosen.get("on_code_change")):
            state, standing, output = world.state(), world.standing, latest(store).output
            with a_world() as clean:
                result = WorkflowEngine(MemoryCheckpointStore()).run_sync(clean.workflow(block), workflow_id="clean")
                assert result.status == "completed", result.error
                assert output == result.output
                wanted = clean.state()
                assert {name: state.get(name) for name in wanted} == wanted
                assert standing >= clean.standing


def resumed(
    world: World,
    store: MemoryCheckpointStore,
    block: tuple[Node, ...],
    chosen: dict[str, Any],
    crash: tuple[int, bool] | None,
    *,
    is_untouched: bool,
) -> bool:
    """Plan and resume, and compare the two; return whether the resume continued."""
    random, options = world.workflow(block), RunOptions(**chosen)
    plan = in_sync(WorkflowEngine(store)).plan(random, workflow_id="run", options=options)
    before, held = snapshot(store), latest(store)
    world.done.clear()
    events: list[Any] = []
    engine = WorkflowEngine(CrashingStore(store, crash[0] if crash else 10**9, is_after=bool(crash and crash[1])))
    session = engine.prepare_resume(random, "run", options, {})
    if plan.is_undoing:
        event("continues undoing")
        go_on_undoing(world, store, block, crash)
        return resumed(world, reopened(store), block, chosen, None, is_untouched=is_untouched)
    stop = plan.step(plan.stopped_by)
    if plan.stops and (stop is None or not stop.assumes):
        event("stops")
        with pytest.raises((StaleStepError, StepInDoubtError)):
            engine.drive_sync(session, on_event=events.append)
        assert snapshot(store) == before
        return False
    try:
        result = engine.drive_sync(session, on_event=events.append)
    except SimulatedCrash:
        event("crashed in the resume")
        check(plan, events, world, is_whole=False)
        reopened(store)
        return True
    except (StaleStepError, StepInDoubtError) as error:
        stopped = plan.step(error.path)
        assert plan.stops or (stopped is not None and stopped.may_stop), plan
        assert snapshot(store) == before
        return False
    if isinstance(result.error, StaleStepError | StepInDoubtError):
        event("stopped on the way")  # what a step returned anew moved the arguments of one behind it
        stopped = plan.step(result.error.path)
        assert (stopped is not None and stopped.may_stop) or (
            plan.stale
            or plan.count(Decision.IN_DOUBT)
            or plan.count(Decision.INTERRUPTED)
            or (plan.ends_at and held.in_flight)
        )
        return False
    if result.status == "failed" and "OSError: broken" in str(result.error):
        event("ends as it would have ended")  # the failure was saved, and then the process died
        return resumed(world, reopened(store), block, {}, None, is_untouched=False)
    assert result.status == "completed", (result.error, plan)
    check(plan, events, world, is_whole=True)
    executed = {each.path for each in events if isinstance(each, StepStarted)}
    plain = {each.path: each for each in held.step_results if each.step_type == "python"}
    assert result.steps.restored <= len(latest(store).step_results)
    undone = any(each.step_type == "rollback" for each in held.step_results)
    if is_untouched and not undone:
        event("untouched")
        done = {path for path, each in plain.items() if each.success}
        assert not done & set(world.done), (done & set(world.done), plan)
        assert not done & executed
    return True


def check_undoing(plan: ResumePlan, events: list[Any], world: World, *, is_whole: bool) -> None:
    """Check that a resume undid what its plan said, in that order, and did nothing else."""
    planned = [each.path for each in plan.steps if each.decision in (Decision.UNDO, Decision.ORPHANED)]
    told = [each.path for each in events if isinstance(each, RollbackStarted)]
    done = [each.path for each in events if isinstance(each, RollbackCompleted) and not each.error_type]
    lost = {each.path for each in plan.steps if each.decision is Decision.ORPHANED}
    assert told == planned[: len(told)]
    assert [each for each in told if each not in lost][: len(world.undone)] == world.undone
    assert world.done == [], "nothing is run but what undoes"
    if is_whole:
        assert (told, done) == (planned, [each for each in planned if each not in lost])


def check(plan: ResumePlan, events: list[Any], world: World, *, is_whole: bool) -> None:
    restored = {each.path for each in events if isinstance(each, StepRestored)}
    started = {each.path for each in events if isinstance(each, StepStarted)}
    adopted = {each.path for each in events if isinstance(each, StepAdopted)}
    failed = {each.path for each in events if isinstance(each, StepFailed)}
    failed |= {each.path for each in events if isinstance(each, StepRestored) and not each.success}
    assert not restored & started, "restored, and executed again"
    assert not restored & set(world.done), "restored, and executed again"
    if plan.is_nothing_to_do and not restored and not started:
        return
    of = {kind: {each.path for each in plan.steps if each.decision is kind} for kind in Decision}
    sure = {each.path for each in plan.steps if each.decision is Decision.REUSE and not each.assumes}
    runs = of[Decision.RERUN] | of[Decision.NEW] | of[Decision.INTERRUPTED] | of[Decision.IN_DOUBT]
    paths = [each.path for each in plan.steps]
    end = next((i for i, path in enumerate(paths) if f"the output of {path!r} " in plan.ends_at), len(paths))
    unseen = {*paths[end + 1 :], *(of[Decision.IN_DOUBT] if plan.ends_at else ())}
    unplanned = adopted - {each.path for each in plan.steps}
    assert not unplanned or plan.ends_at, (plan, unplanned)
    assert adopted - unplanned <= of[Decision.IN_DOUBT], (plan, adopted)
    assert not runs & restored - unseen, (plan, runs & restored - unseen)
    assert not started & sure - unseen, (plan, started & sure)
    assert not of[Decision.ORPHANED] & (restored | started) - unseen, plan
    if is_whole:
        assert sure - unseen <= restored, (plan, sure - restored)
        stopped = {each for each in runs if any(each.startswith(f"{path}/") for path in failed)}
        assert runs - unseen - stopped <= started | adopted, (plan, runs - unseen - stopped - started)


LAW: Callable[[Any], Any] = given(
    programs(), crashes, st.one_of(st.none(), st.integers(0, 9)), changes, choices, crashes, crashes
)
UNHURRIED: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=100, **UNHURRIED)
@LAW
def test_a_resumed_run_of_all_constructs_equals_an_uninterrupted_one(
    block: Any, crash: Any, broken: int | None, edits: Any, chosen: Any, second: Any, third: Any
) -> None:
    law(block, crash, broken, edits, chosen, second, third)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@settings(max_examples=5_000, **UNHURRIED)
@LAW
def test_so_do_thousands_of_them(
    block: Any, crash: Any, broken: int | None, edits: Any, chosen: Any, second: Any, third: Any
) -> None:
    law(block, crash, broken, edits, chosen, second, third)


class StoreThatDiesWhileUndoing(CrashingStore):
    """Dies at the n-th save of the undoing."""

    async def save(self, workflow_id: str, data: Any) -> None:
        if data.reason is Reason.ROLLBACK or self.saves:
            await super().save(workflow_id, data)
        else:
            await self.inner.save(workflow_id, data)


LAST = Node(1000, "pure", "end")
"""Where it fails, all that was done is undone."""


@settings(max_examples=60, **UNHURRIED)
@given(programs(), st.integers(1, 4), st.booleans(), changes, st.integers(1, 4))
def test_what_is_left_to_undo_is_undone_as_planned_whatever_was_edited(
    block: Any, at: int, is_after: bool, edits: Any, again: int
) -> None:
    store = MemoryCheckpointStore()
    with a_world() as world:
        block, world.broken = (*block, LAST), LAST.number
        with contextlib.suppress(SimulatedCrash):
            dying = StoreThatDiesWhileUndoing(store, at, is_after=is_after)
            WorkflowEngine(dying).run_sync(world.workflow(block), workflow_id="run")
        for edit in edits:
            block = changed(block, edit, world, [])
        standing = {each.path for each in latest(store).step_results if "undoable" in each.marks}
        for crash in ((again, is_after), None):
            if read_unfinished(latest(store).metadata) is None:
                event("all is undone")
                break
            go_on_undoing(world, reopened(store), block, crash)
        if read_unfinished(latest(store).metadata) is None and latest(store).status == "failed":
            tried = {step_of(each.path) for each in latest(store).step_results if each.step_type == "rollback"}
            assert standing <= tried, "all were undone, or said why not"


def go_on_undoing(
    world: World, store: MemoryCheckpointStore, block: tuple[Node, ...], crash: tuple[int, bool] | None
) -> None:
    """Plan the undoing and continue with it, and compare the two."""
    program = world.workflow(block)
    plan = in_sync(WorkflowEngine(store)).plan(program, workflow_id="run")
    assert plan.is_undoing
    world.done.clear()
    world.undone.clear()
    before, events = snapshot(store), list[Any]()
    engine = WorkflowEngine(CrashingStore(store, crash[0] if crash else 10**9, is_after=bool(crash and crash[1])))
    try:
        result = engine.drive_sync(engine.prepare_resume(program, "run", None, {}), on_event=events.append)
    except SimulatedCrash:
        event("died again")
        check_undoing(plan, events, world, is_whole=False)
        return
    except NotUndoableError as error:
        event("cannot continue")
        assert (error.paths[0], world.undone, snapshot(store)) == (plan.stopped_by, [], before)
        forced = WorkflowEngine(reopened(store))
        result = forced.resume_sync(program, workflow_id="run", options=RunOptions(force=True))
        assert {step_of(each.path) for each in result.rollback_failures} == {*error.paths}
    else:
        event("continues")
        check_undoing(plan, events, world, is_whole=True)
        assert plan.stopped_by == ""
    assert isinstance(result.error, RunUndoneError)
