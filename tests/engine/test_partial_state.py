"""What a step saves of itself: crashed at every save, it continues inside, and ends as one that never crashed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import attrs
import inside_corpus as corpus
import pytest
from crashing import CrashingStore, SimulatedCrash

from flowckpt import (
    FileCheckpointStore,
    MemoryCheckpointStore,
    RunOptions,
    WorkflowEngine,
    current_step,
    in_sync,
    step,
    workflow,
)
from flowckpt.core.dsl import Workflow
from flowckpt.core.records import CheckpointData, Reason
from flowckpt.errors import CheckpointStorageError, EncodingError, FlowckptError, StaleStepError
from flowckpt.events import CheckpointSaved, StepCompleted, StepStateDropped
from flowckpt.execution.interrupts import RunInterrupted
from flowckpt.maintenance import export_run, import_run

world: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    world.clear()
    corpus.effects.clear()


def latest_of(store: Any, run: str = "run") -> CheckpointData:
    found = asyncio.run(store.load_latest(run))
    assert found is not None
    return found


# --- the law ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", ["own loop", "guest"])
@pytest.mark.parametrize("flow", corpus.CORPUS, ids=lambda flow: flow.name)
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_run_that_crashed_at_any_save_of_a_step_goes_on_inside_it_and_ends_the_same(
    reopen: Callable[[], Any], flow: Workflow[..., Any], is_after: bool, door: str
) -> None:
    def run(store: Any, run: str, *, resumes: bool = False) -> Any:
        engine = WorkflowEngine(store)
        if door == "own loop":
            go = engine.resume_sync if resumes else engine.run_sync
            return go(flow, workflow_id=run)
        return asyncio.run((engine.resume_run if resumes else engine.run)(flow, workflow_id=run))

    whole = CrashingStore(reopen(), 10**9, is_after=False)
    output = run(whole, "whole").unwrap()
    everything = Counter(corpus.effects)
    assert set(everything.values()) == {1}
    for crash in range(1, whole.saves + 1):
        corpus.effects.clear()
        store = CrashingStore(reopen(), crash, is_after=is_after)
        name = f"crash-{crash}"
        with contextlib.suppress(SimulatedCrash):
            assert run(store, name).unwrap() == output
            assert flow in corpus.BESIDE  # it made fewer saves this time
            continue
        if not is_after and crash == 1:
            continue  # nothing was ever saved: there is no run
        saved = latest_of(reopen(), name)
        resumed = run(reopen(), name, resumes=True)
        assert resumed.unwrap() == output
        assert latest_of(reopen(), name).partial == {}
        done = Counter(corpus.effects)
        assert set(done) == set(everything)
        lost = done.total() - everything.total()  # done, and not known to be: one for each step that was running
        assert lost <= (2 if flow in corpus.BESIDE else 1)
        assert set(saved.partial) <= {*saved.in_flight}


# --- what it costs, and where it lies --------------------------------------------------------------------------------


def test_a_state_is_durable_when_save_returns_and_gone_when_its_step_has_ended(reopen: Callable[[], Any]) -> None:
    def work() -> str:
        assert current_step().load() is None
        current_step().save({"at": (1, 2)})
        world["found"] = (latest := latest_of_here(world["store"])).partial["work"].state
        world["reason"], world["in_flight"] = latest.reason, latest.in_flight
        current_step().save(b"second")
        world["second"] = current_step().load()
        return "done"

    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield step("work").python(work)
        yield step("after").python(int, 1).checkpoint()

    store = world["store"] = reopen()
    assert WorkflowEngine(store).run_sync(flow, workflow_id="run").status == "completed"
    assert world["found"] == {"at": (1, 2)}
    assert (world["reason"], world["in_flight"], world["second"]) == (Reason.MANUAL, ("work",), b"second")
    partial = [data.partial for data in asyncio.run(reopen().read_attempt("run", 1))]
    assert [[*each] for each in partial] == [[], ["work"], ["work"], [], []]


def latest_of_here(store: Any) -> CheckpointData:
    """Read a store from inside a step, where a loop runs in this thread."""
    found: list[CheckpointData] = []
    thread = threading.Thread(target=lambda: found.append(latest_of(store)))
    thread.start()
    thread.join()
    return found[0]


def test_a_save_costs_what_the_state_costs_however_long_the_run_is(tmp_path: Path) -> None:
    sizes: list[int] = []

    def saves() -> None:
        for _ in range(2):
            before = size_of(tmp_path)
            current_step().save("x" * 1000)
            sizes.append(size_of(tmp_path) - before)

    @workflow
    def flow(steps: int) -> Generator[Any, Any, None]:
        for number in range(steps):
            yield step("one").python(str, number)
        yield step("saves").python(saves)

    engine = WorkflowEngine(FileCheckpointStore(tmp_path / "store"))
    engine.run_sync(flow, steps=500)
    assert sizes[0] > 50_000  # the results before it, which no checkpoint held yet
    assert sizes[1] < 1600


def size_of(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*.jsonl"))


def test_large_states_lie_beside_the_record_and_travel_with_the_run(tmp_path: Path) -> None:
    def work() -> str:
        if (found := current_step().load()) is not None:
            return str(found)
        current_step().save("large " * 50_000)
        raise OSError("down")

    @workflow
    def flow() -> Generator[Any, Any, Any]:
        return (yield step("work").python(work))

    store = FileCheckpointStore(tmp_path / "store")
    assert WorkflowEngine(store).run_sync(flow, workflow_id="run").status == "failed"
    assert all(each.severity == "ok" for each in asyncio.run(store.check()))
    file = tmp_path / "run.jsonl"
    asyncio.run(export_run(store, "run", file))
    for place in (MemoryCheckpointStore(), FileCheckpointStore(tmp_path / "other")):
        asyncio.run(import_run(place, file))
        assert WorkflowEngine(place).resume_sync(flow, workflow_id="run").output == "large " * 50_000


# --- what is the same step -------------------------------------------------------------------------------------------


def flow_of(function: Callable[..., Any], *arguments: Any) -> Workflow[..., Any]:
    @workflow("flow")
    def flow() -> Generator[Any, Any, Any]:
        return (yield step("work").python(function, *arguments).version(world.get("version", "1")).checkpoint())

    return flow


def fails_behind_a_save(limit: int) -> int:
    found: int = current_step().load(0)
    if found:
        return found + limit
    current_step().save(1)
    raise OSError("down")


def edited(limit: int) -> int:
    found: int = current_step().load(0)
    return found * 1000 + limit


edited.__qualname__ = "fails_behind_a_save"


def failed_run() -> tuple[MemoryCheckpointStore, WorkflowEngine]:
    store = MemoryCheckpointStore()
    engine = WorkflowEngine(store)
    assert engine.run_sync(flow_of(fails_behind_a_save, 1), workflow_id="run").status == "failed"
    assert [*latest_of(store).partial] == ["work"]
    return store, engine


def test_a_step_that_failed_goes_on_from_what_it_saved_when_the_run_is_resumed() -> None:
    _, engine = failed_run()
    assert engine.resume_sync(flow_of(fails_behind_a_save, 1), workflow_id="run").output == 2


def test_a_plan_says_that_a_step_goes_on_from_what_it_saved_and_not_where_it_is_asked_for_again() -> None:
    _, engine = failed_run()

    def said(**options: Any) -> list[str]:
        plan = in_sync(engine).plan(flow_of(fails_behind_a_save, 1), workflow_id="run", options=RunOptions(**options))
        found = plan.step("work")
        assert found is not None
        return [reason.detail for reason in found.reasons]

    assert "it continues from its saved state" in said()
    assert "it continues from its saved state" not in said(from_step="work")


def test_a_state_of_other_arguments_is_dropped_and_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    _, engine = failed_run()
    told: list[Any] = []
    session = engine.prepare_resume(flow_of(edited, 5), "run", RunOptions(on_code_change="rerun"), {})
    with caplog.at_level(logging.WARNING, "flowckpt"):
        assert engine.drive_sync(session, on_event=told.append).output == 5
    (dropped,) = [each for each in told if isinstance(each, StepStateDropped)]
    assert (dropped.path, "limit: 1 → 5" in dropped.reason) == ("work", True)
    assert "dropped" in caplog.text


def test_a_state_of_edited_code_stops_the_resume_until_somebody_says_what_to_do() -> None:
    store, engine = failed_run()
    before = latest_of(store)
    with pytest.raises(StaleStepError, match="since it saved its state"):
        engine.resume_sync(flow_of(edited, 1), workflow_id="run")
    assert latest_of(store) == before
    plan = in_sync(engine).plan(flow_of(edited, 1), workflow_id="run")
    assert "since it saved its state" in plan.stops
    reuse = RunOptions(on_code_change="reuse")
    assert engine.resume_sync(flow_of(edited, 1), workflow_id="run", options=reuse).output == 1001


def test_edited_code_begins_anew_where_the_resume_says_so() -> None:
    _, engine = failed_run()
    rerun = RunOptions(on_code_change="rerun")
    assert engine.resume_sync(flow_of(edited, 1), workflow_id="run", options=rerun).output == 1


def test_another_version_drops_the_state() -> None:
    _, engine = failed_run()
    world["version"] = "2"
    assert engine.resume_sync(flow_of(fails_behind_a_save, 1), workflow_id="run").status == "failed"


def test_who_asks_for_a_step_again_gets_it_from_its_start() -> None:
    store, engine = failed_run()
    again = RunOptions(from_step="work")
    assert engine.resume_sync(flow_of(fails_behind_a_save, 1), workflow_id="run", options=again).status == "failed"
    del store


# --- where it is called from -----------------------------------------------------------------------------------------


def outcome_of(function: Callable[..., Any], *, store: Any = None, is_guest: bool = False, **modifiers: Any) -> Any:
    @workflow
    def flow() -> Generator[Any, Any, Any]:
        made = step("work").python(function)
        if "timeout" in modifiers:
            made = made.timeout(modifiers["timeout"])
        if "ephemeral" in modifiers:
            made = made.ephemeral()
        return (yield made)

    engine = WorkflowEngine(MemoryCheckpointStore() if store is None else store)
    return asyncio.run(engine.run(flow)) if is_guest else engine.run_sync(flow)


@pytest.mark.parametrize("is_guest", [False, True], ids=["own loop", "guest"])
def test_a_steps_own_threads_may_save_too(is_guest: bool) -> None:
    def work() -> list[int]:
        now = current_step()
        threads = [threading.Thread(target=now.save, args=([number],)) for number in range(5)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        found: list[int] = now.load()
        return found

    assert outcome_of(work, is_guest=is_guest).unwrap()[0] in range(5)


def test_a_thread_that_its_step_has_left_behind_saves_nothing_any_more() -> None:
    go, tried = threading.Event(), threading.Event()

    def work() -> None:
        now = current_step()

        def late() -> None:
            go.wait(120)
            try:
                now.save(1)
            except FlowckptError as error:
                world["late"] = error.message
            tried.set()

        threading.Thread(target=late).start()

    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield step("work").python(work)
        go.set()
        tried.wait(120)
        yield step("after").python(int).checkpoint()

    store = MemoryCheckpointStore()
    assert WorkflowEngine(store).run_sync(flow, workflow_id="run").status == "completed"
    assert "has ended" in world["late"]
    assert latest_of(store).partial == {}


def test_async_code_that_forgets_to_await_is_told_so_and_saves_nothing() -> None:
    async def work() -> None:
        current_step().save(1)

    result = outcome_of(work)
    assert "await current_step().save_async(state)" in str(result.error.__cause__ or result.error.traceback)


def test_an_ephemeral_step_cannot_save() -> None:
    def work() -> None:
        current_step().save(1)

    assert "ephemeral" in str(outcome_of(work, ephemeral=True).error)


def test_what_cannot_be_recorded_is_refused_and_the_step_goes_on() -> None:
    def work() -> str:
        current_step().save("good")
        with pytest.raises(EncodingError, match="work: saved state"):
            current_step().save({"conn": object()})
        return str(current_step().load())

    assert outcome_of(work).output == "good"


@attrs.frozen
class Place:
    page: int
    seen: frozenset[str]


def test_a_state_of_a_class_of_ones_own_comes_back_as_it() -> None:
    def work() -> bool:
        current_step().save(Place(3, frozenset({"a"})), as_type=Place)
        return current_step().load(Place(0, frozenset()), as_type=Place) == Place(3, frozenset({"a"}))

    assert outcome_of(work).output is True


def test_what_the_step_does_to_the_state_afterwards_changes_nothing() -> None:
    def work() -> Any:
        state = [1]
        current_step().save(state)
        state.append(2)
        current_step().load().append(3)
        return current_step().load()

    assert outcome_of(work).output == [1]


class FailingStore(MemoryCheckpointStore):
    """Fails to save what steps save of themselves."""

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        if data.partial:
            raise CheckpointStorageError(
                "disk full", workflow_id=workflow_id, operation="save", is_outcome_unknown=True
            )
        await super().save(workflow_id, data)


def saves_and_hides_the_error() -> None:
    with contextlib.suppress(Exception):
        current_step().save(1)


@pytest.mark.parametrize("modifiers", [{}, {"timeout": 60}], ids=["in place", "on a thread"])
def test_a_store_that_fails_ends_the_run_whatever_the_step_makes_of_it(modifiers: dict[str, Any]) -> None:
    result = outcome_of(saves_and_hides_the_error, store=FailingStore(), **modifiers)
    assert isinstance(result.error, CheckpointStorageError)
    assert not result.is_saved


def test_a_saved_state_is_told_before_the_end_of_its_step_also_to_who_iterates_over_events() -> None:
    async def told() -> list[str]:
        engine = WorkflowEngine(MemoryCheckpointStore())
        return [
            type(event).__name__
            async for event in engine.execute(corpus.on_a_thread)
            if isinstance(event, CheckpointSaved | StepCompleted)
        ]

    assert asyncio.run(told()) == ["CheckpointSaved"] * 4 + ["StepCompleted", "CheckpointSaved"]


def test_a_listener_that_goes_away_in_the_middle_of_a_save_hangs_nothing() -> None:
    async def listen() -> None:
        engine = WorkflowEngine(MemoryCheckpointStore())
        events = engine.execute(corpus.on_a_thread)
        async for event in events:
            if isinstance(event, CheckpointSaved) and event.reason == "manual":
                break
        await events.aclose()

    asyncio.run(asyncio.wait_for(listen(), 120))


def test_a_signal_in_the_middle_of_a_save_waits_until_it_is_durable(tmp_path: Path) -> None:
    store = FileCheckpointStore(tmp_path)
    save = store.save

    async def signalled(workflow_id: str, data: CheckpointData) -> None:
        if data.partial and not world:
            world["sent"] = True
            os.kill(os.getpid(), signal.SIGINT)
        await save(workflow_id, data)

    store.save = signalled  # type: ignore[method-assign]
    with pytest.raises(RunInterrupted) as stopped:
        WorkflowEngine(store).run_sync(corpus.in_place, workflow_id="run")
    assert (stopped.value.result.status, stopped.value.result.is_saved) == ("suspended", True)
    assert corpus.effects == ["here 0"]
    assert latest_of(store).partial["here"].state == [0]
    assert WorkflowEngine(FileCheckpointStore(tmp_path)).resume_sync(corpus.in_place, workflow_id="run").output == [
        0,
        1,
        2,
    ]
    assert corpus.effects == ["here 0", "here 1", "here 2", "plain 0"]


# --- a real process --------------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys, time
from flowckpt import FileCheckpointStore, WorkflowEngine, current_step, step, workflow

def crunch(until):
    done = current_step().load(0)
    for number in range(done, until):
        with open(sys.argv[2], "a") as log:
            log.write(f"{number}\\n")
        current_step().save(number + 1)
        time.sleep(0.002)
    return done

@workflow
def flow():
    return (yield step("crunch").python(crunch, 400).checkpoint())

engine = WorkflowEngine(FileCheckpointStore(sys.argv[1]))
go = engine.resume_sync if sys.argv[3] == "resume" else engine.run_sync
print(go(flow, workflow_id="run").output)
"""


def test_killed_in_the_middle_of_a_step_it_goes_on_inside(tmp_path: Path) -> None:
    script, store, log = tmp_path / "crunch.py", tmp_path / "store", tmp_path / "log"
    script.write_text(PROGRAM)
    for door in ("run", "resume", "resume"):
        lines = len(log.read_text().splitlines()) if log.exists() else 0
        child = subprocess.Popen([sys.executable, script, store, log, door], stdout=subprocess.PIPE)
        while not log.exists() or len(log.read_text().splitlines()) < lines + 20:
            assert child.poll() is None
        child.kill()
        child.communicate()
        assert child.returncode == -signal.SIGKILL
    ended = subprocess.run([sys.executable, script, store, log, "resume"], capture_output=True, text=True, check=True)
    found = log.read_text().splitlines()
    assert int(ended.stdout) >= 57  # it continued from there
    assert sorted({*map(int, found)}) == [*range(400)]
    assert len(found) <= 403  # of each death at most the one thing that was done and not saved yet
