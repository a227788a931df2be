"""A run that stopped in the middle of being undone: what its plan says, what a resume does, and what edited code hinders."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Generator
from typing import Any

import attrs
import pytest
from crashing import CrashingStore, SimulatedCrash

from flowckpt import MemoryCheckpointStore, RunOptions, WorkflowEngine, in_sync, parallel, step, workflow
from flowckpt.engine.undo.plan_resume import plan_resume
from flowckpt.errors import CrashLoopError, NotUndoableError, RunUndoneError, StepInDoubtError
from flowckpt.execution.interrupts import RunInterrupted

world: list[str] = []
"""What stands, in the order in which it was done."""
code: set[str] = set()
"""What was edited, and what is broken."""


@pytest.fixture(autouse=True)
def _fresh() -> None:
    world.clear()
    code.clear()


def do(what: str) -> str:
    if what in code:
        raise ValueError(what)
    world.append(what)
    return what


def do_other(what: str) -> str:
    return do(what)


def undo(what: str) -> None:
    if f"dies undoing {what}" in code:
        raise KeyboardInterrupt  # as by a second Ctrl-C: nothing is saved after it
    world.remove(what)


def connect() -> str:
    if "no server" in code:
        raise ConnectionError("no server")
    if "ctrl-c" in code:
        raise KeyboardInterrupt
    return "connection"


@attrs.frozen
class Place:
    row: int


@workflow
def inner(name: str) -> Generator[Any, Any, str]:
    yield step("x").python(do, f"{name} x").rollback(undo)
    if "a step in the child" in code:
        yield step("new").python(do, "new")
    yield step("y").python(do, f"{name} y").rollback(undo)
    return name


@workflow
def saga() -> Generator[Any, Any, str]:
    yield step("a").python(do, "a").rollback(undo).checkpoint()
    if "a step between" in code:
        new = yield step("new").python(do, "new")
        if "that is used" in code and new:
            world.append(new)
        yield step("newer").python(do, new).rollback(undo)
    if "without b" not in code:
        yield step("b").python(do_other if "another b" in code else do, "b").rollback(undo).checkpoint()
    yield step("pages").map(do, ["p0", "p1"] if "fewer pages" not in code else ["p0"], concurrency=1).rollback(undo)
    yield step("child").workflow(inner, name="c")
    yield parallel(step("g").python(do, "g").rollback(undo), step("plain").python(do, "plain"), concurrency=1)
    if "a step before the end" in code:
        yield step("new").python(do, "new")
    yield step("end").python(do, "end")
    return "done"


ALL = ["a", "b", "pages/[0]", "pages/[1]", "child/x", "child/y", "parallel/[g]"]
NEWEST_FIRST = ALL[::-1]


def given_up(store: MemoryCheckpointStore) -> MemoryCheckpointStore:
    store.runs.owned.clear()
    return store


def half_undone(what: Any = saga, dies: str = "a") -> MemoryCheckpointStore:
    """Return the store of a run whose process ended while it undid a step."""
    store = MemoryCheckpointStore()
    code.update({"end", f"dies undoing {dies}"})
    with pytest.raises(KeyboardInterrupt):
        WorkflowEngine(store).run_sync(what, workflow_id="run")
    code.clear()
    code.add("end")
    return given_up(store)


def plan(store: Any, what: Any = saga, **options: Any) -> Any:
    return in_sync(WorkflowEngine(store)).plan(what, workflow_id="run", options=RunOptions(**options))


def resume(store: Any, what: Any = saga, **options: Any) -> Any:
    return WorkflowEngine(store).resume_sync(what, workflow_id="run", options=RunOptions(**options))


def latest(store: Any) -> Any:
    return asyncio.run(store.load_latest("run"))


def of(plan: Any, decision: str) -> list[str]:
    return [each.path for each in plan.steps if each.decision == decision]


def test_the_plan_names_what_the_resume_undoes_in_its_order() -> None:
    store = half_undone(dies="g")
    made = plan(store)
    assert (of(made, "undo"), made.is_undoing, made.is_nothing_to_do) == (NEWEST_FIRST, True, False)
    assert "stopped during a rollback" in made.stops
    result = resume(store)
    assert (result.undone, type(result.error), world) == (tuple(NEWEST_FIRST), RunUndoneError, ["plain"])


def test_the_plan_of_a_run_that_is_almost_undone_names_only_what_is_left() -> None:
    store = half_undone(dies="b")
    made = plan(store)
    assert of(made, "undo") == ["b", "a"]
    kept = {each.path: each for each in made.steps if each.decision == "keep"}
    assert str(kept["child/y"].reasons[0]) == "undone: it was undone when the run failed"
    assert (kept["end"].reasons, made.stale) == ((), 0)
    assert resume(store).undone == ("b", "a")


def test_a_run_that_died_undoing_and_is_mended_at_its_end_is_undone_and_carried_on() -> None:
    store = half_undone()
    code.add("a step before the end")
    assert resume(store).undone == ("a",)
    code.remove("end")
    world.clear()
    result = resume(store)
    assert (result.status, world[-2:]) == ("completed", ["new", "end"])


@pytest.mark.parametrize(
    "edits",
    [{"a step between"}, {"a step in the child"}, {"a step between", "a step before the end"}],
    ids=lambda edits: " and ".join(sorted(edits)),
)
def test_steps_that_edited_code_yields_behind_new_ones_are_undone_all_the_same(edits: set[str]) -> None:
    store = half_undone(dies="g")
    code.update(edits)
    assert of(plan(store), "undo") == NEWEST_FIRST
    assert (resume(store).undone, world) == (tuple(NEWEST_FIRST), ["plain"])


LOST = [
    ({"without b"}, ["b"], "no longer yields it"),
    ({"another b"}, ["b"], "another step or none in its place"),
    ({"fewer pages"}, ["pages/[1]"], "another step or none in its place"),
    ({"a step between", "that is used"}, ALL[1:], "uses the output of 'new', which was not run"),
]


@pytest.mark.parametrize(("edits", "lost", "why"), LOST, ids=["gone", "another", "fewer members", "used"])
def test_a_step_that_edited_code_does_not_say_how_to_undo_stops_the_undoing_and_is_named(
    edits: set[str], lost: list[str], why: str
) -> None:
    store = half_undone(dies="g")
    code.update(edits)
    before, stood = latest(store), list(world)
    made = plan(store)
    with pytest.raises(NotUndoableError, match="cannot be undone with the code as it is now") as caught:
        resume(store)
    assert (list(caught.value.paths), made.stopped_by, of(made, "orphaned")) == (lost, lost[0], lost[::-1])
    assert all(why in each for each in caught.value.reasons.values()), caught.value.reasons
    assert "flowckpt resume run --force" in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).reasons == caught.value.reasons
    assert (latest(store), world) == (before, stood), "nothing was undone, and nothing saved"


@pytest.mark.parametrize(("edits", "lost", "why"), LOST, ids=["gone", "another", "fewer members", "used"])
def test_forced_it_undoes_the_others_and_tells_these_as_failures(edits: set[str], lost: list[str], why: str) -> None:
    store = half_undone(dies="g")
    code.update(edits)
    made = plan(store, force=True)
    others = [each for each in NEWEST_FIRST if each not in lost]
    assert (of(made, "undo"), made.stopped_by) == (others, "")
    result = resume(store, force=True)
    assert list(result.undone) == others
    assert [each.path for each in result.rollback_failures] == [f"{each}@rollback" for each in lost[::-1]]
    assert why in result.rollback_failures[0].error_message
    assert (result.status, latest(store).status) == ("failed", "failed")


def test_without_rollback_the_undoing_ends_there_whatever_the_code_says() -> None:
    store = half_undone(dies="b")
    code.add("without b")
    made = plan(store, rolls_back=False)
    assert (of(made, "undo"), made.stopped_by) == ([], "")
    result = resume(store, rolls_back=False)
    assert (result.undone, result.status, result.error.is_left) == ((), "failed", True)
    assert not plan(store).is_undoing
    assert world[:2] == ["a", "b"]


def test_a_suspended_run_whose_code_was_edited_is_cancelled_with_the_same_rules() -> None:
    @workflow
    def waiting() -> Generator[Any, Any, None]:
        yield step("a").python(do, "a").rollback(undo).checkpoint()
        if "without b" not in code:
            yield step("b").python(do, "b").rollback(undo).checkpoint()
        yield step("new" if "edited" in code else "go").wait("go")

    store = MemoryCheckpointStore()
    engine = WorkflowEngine(store)
    for run, edits in (("one", "edited"), ("two", "without b")):
        code.clear()
        world.clear()
        assert engine.run_sync(waiting, workflow_id=run).status == "suspended"
        code.add(edits)
        if edits == "edited":
            assert in_sync(engine).cancel(run, workflow=waiting).undone == ("b", "a")
            continue
        with pytest.raises(NotUndoableError, match="flowckpt cancel two --force") as caught:
            in_sync(engine).cancel(run, workflow=waiting)
        assert "--from" not in str(caught.value) and "resume" not in str(caught.value)
        cancelled = in_sync(engine).cancel(run, workflow=waiting, options=RunOptions(force=True))
        assert (cancelled.undone, cancelled.not_undone, world) == (("a",), ("b",), ["b"])


def test_a_step_that_no_longer_says_how_it_is_undone_is_left_as_it_is() -> None:
    def flow(*, is_edited: bool) -> Any:
        @workflow(name="flow")
        def made() -> Generator[Any, Any, None]:
            yield step("a").python(do, "a").rollback(undo).checkpoint()
            made_b = step("b").python(do, "b").checkpoint()
            yield made_b if is_edited else made_b.rollback(undo)
            yield step("end").python(do, "end")

        return made

    store = half_undone(flow(is_edited=False), dies="b")
    result = resume(store, flow(is_edited=True))
    assert (result.undone, result.rollback_failures, world) == (("a",), (), ["b"])


def test_an_output_that_no_longer_fits_its_type_is_named() -> None:
    def flow(*, is_edited: bool) -> Any:
        if is_edited:

            def load() -> Place:
                return Place(1)

        else:

            def load() -> str:  # type: ignore[misc]
                return "text"

        @workflow(name="flow")
        def made() -> Generator[Any, Any, None]:
            yield step("t").python(load).rollback(undo).checkpoint()
            yield step("end").python(do, "end")

        return made

    store = half_undone(flow(is_edited=False), dies="text")
    with pytest.raises(NotUndoableError, match=r"'t': .*output"):
        resume(store, flow(is_edited=True))
    assert [each.path for each in resume(store, flow(is_edited=True), force=True).rollback_failures] == ["t@rollback"]


def test_a_run_that_dies_in_each_undoing_is_in_a_crash_loop_and_its_plan_says_so() -> None:
    store = half_undone(dies="b")
    code.add("dies undoing b")
    with pytest.raises(KeyboardInterrupt):
        resume(store, max_crashes=2)
    given_up(store)
    made = plan(store, max_crashes=2)
    assert (made.is_crash_loop, made.is_undoing) == (True, True)
    with pytest.raises(CrashLoopError):
        resume(store, max_crashes=2)
    code.remove("dies undoing b")
    assert not plan(store, max_crashes=2, force=True).is_crash_loop
    assert resume(given_up(store), max_crashes=2, force=True).undone == ("b", "a")


def test_an_input_may_have_the_name_of_an_argument_of_the_plan() -> None:
    @workflow
    def named(inputs: str, latest: str = "l") -> Generator[Any, Any, None]:
        yield step("a").python(do, inputs).rollback(undo).checkpoint()

    store = MemoryCheckpointStore()
    engine = WorkflowEngine(store)
    engine.drive_sync(engine.prepare(named, "run", None, {"inputs": "i"}))
    found = plan_resume(store, named, "run", latest(store), inputs={"inputs": "i"}, options=RunOptions())
    assert asyncio.run(found).plan.is_nothing_to_do


@workflow
def connected() -> Generator[Any, Any, None]:
    yield step("a").python(do, "a").rollback(undo).checkpoint()
    yield step("server").python(connect).ephemeral()
    yield step("b").python(do, "b").rollback(undo).checkpoint()
    yield step("end").python(do, "end")


@pytest.mark.parametrize("broken", ["no server", "ctrl-c"])
def test_a_resume_that_is_stopped_before_it_has_come_to_all_steps_undoes_none_of_them(broken: str) -> None:
    store = MemoryCheckpointStore()
    with pytest.raises(SimulatedCrash):
        WorkflowEngine(CrashingStore(store, 3, is_after=True)).run_sync(connected, workflow_id="run")
    code.add(broken)
    if broken == "ctrl-c":
        with pytest.raises(RunInterrupted):
            resume(given_up(store), connected)
    else:
        error: Any = resume(given_up(store), connected).error
        assert any("Nothing was undone" in each for each in error.__notes__)
    assert world == ["a", "b"]
    code.clear()
    assert in_sync(WorkflowEngine(store)).cancel("run", workflow=connected).undone == ("b", "a")


@pytest.mark.parametrize("broken", ["no server", "ctrl-c"])
def test_an_undoing_that_is_stopped_before_it_knows_all_steps_undoes_none_of_them_and_stays_begun(broken: str) -> None:
    store = half_undone(connected, dies="b")
    code.add(broken)
    with pytest.raises((NotUndoableError, RunInterrupted)):
        resume(store, connected)
    assert world == ["a", "b"]
    code.clear()
    assert resume(given_up(store), connected).undone == ("b", "a")


def test_a_live_resume_that_is_cancelled_before_it_has_come_to_all_steps_is_undone_by_the_cancel() -> None:
    connecting = asyncio.Event()

    async def dial() -> str:
        if "slow" in code:
            code.remove("slow")
            connecting.set()
            await asyncio.sleep(60)
        return "connection"

    @workflow(name="dialled")
    def dialled() -> Generator[Any, Any, None]:
        yield step("a").python(do, "a").rollback(undo).checkpoint()
        yield step("server").python(dial).ephemeral()
        yield step("b").python(do, "b").rollback(undo).checkpoint()
        yield step("end").python(do, "end")

    async def cancelled() -> Any:
        task = asyncio.ensure_future(WorkflowEngine(store).resume_run(dialled, workflow_id="run"))
        await connecting.wait()
        found = await WorkflowEngine(store).cancel("run", workflow=dialled)
        await asyncio.wait([task])
        return found

    store = MemoryCheckpointStore()
    with pytest.raises(SimulatedCrash):
        WorkflowEngine(CrashingStore(store, 3, is_after=True)).run_sync(dialled, workflow_id="run")
    given_up(store)
    code.add("slow")
    assert asyncio.run(cancelled()).undone == ("b", "a")
    assert (world, latest(store).status) == ([], "cancelled")


@workflow
def doubtful() -> Generator[Any, Any, int]:
    yield step("a").python(do, "a").rollback(undo).version("2" if "a is new" in code else "1").checkpoint()
    yield step("pay").python(do, "pay").at_most_once()
    return len(world)


def in_doubt(reopen: Callable[[], Any]) -> Any:
    """Return what a resume comes to that runs a step again, and then meets one in doubt."""
    with pytest.raises(SimulatedCrash):
        WorkflowEngine(CrashingStore(reopen(), 3, is_after=True)).run_sync(doubtful, workflow_id="run")
    code.add("a is new")
    return resume(reopen(), doubtful, on_stale="rerun")


def test_a_run_that_stops_on_its_way_to_ask_about_a_doubt_undoes_nothing(reopen: Callable[[], Any]) -> None:
    result = in_doubt(reopen)
    assert (result.status, type(result.error), result.undone) == ("failed", StepInDoubtError, ())
    assert world == ["a", "a"], "it was run again, and nothing was undone"
    again = resume(reopen(), doubtful, force=True)
    assert (again.status, again.steps.restored, world) == ("completed", 1, ["a", "a", "pay"])


def test_a_run_that_stopped_to_ask_about_a_doubt_is_undone_by_a_cancel(reopen: Callable[[], Any]) -> None:
    in_doubt(reopen)
    assert in_sync(WorkflowEngine(reopen())).cancel("run", workflow=doubtful).undone == ("a",)
    assert world == ["a"]
