"""`current_step()` of a step that runs elsewhere: the same as in the engine, wherever there is a way back."""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import far_steps
import pytest
from far_processes import seen

from flowckpt import DaskExecutor, FileCheckpointStore, MemoryCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.core.system.secret import Secret
from flowckpt.errors import CheckpointStorageError, EncodingError, ExecutorError, FlowckptError
from flowckpt.events import StepCompleted, StepProgress, StepRetrying

PLACES = ["engine", "thread", "pool", "process", "dask"]

pytestmark = pytest.mark.filterwarnings("ignore")  # of packages that are not ours


@pytest.fixture
def executors(request):
    """All places; the cluster only where it is asked for."""
    made: dict[str, Any] = {"pool": lambda: ThreadPoolExecutor(2), "process": "process:2"}
    if "dask" in getattr(getattr(request.node, "callspec", None), "params", {}).values():
        made["dask"] = request.getfixturevalue("cluster")
    return made


@pytest.fixture
def engine(executors):
    return WorkflowEngine(MemoryCheckpointStore(), executors=executors)


@pytest.fixture
def foreign():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


@workflow("one")
def one(place: str, function: str, args: tuple[Any, ...] = (), tries: int = 1):
    made = step("a").python(getattr(far_steps, function), *args).on(place)
    return (yield made.retry(tries) if tries > 1 else made)


@workflow("copying")
def copying(place: str, log: str, deadly: int, how: str = "die"):
    return (yield step("copy").python(far_steps.copy, log, 5, deadly, how).on(place).retry(3))


async def told(engine: WorkflowEngine, gate: Path, **inputs: Any) -> list[Any]:
    """The events of a run; the gate is opened at the first progress."""
    events = []
    async for event in engine.execute(one, **inputs):
        events.append(event)
        if isinstance(event, StepProgress):
            gate.touch()
    return events


@pytest.mark.parametrize("place", PLACES[1:])
async def test_progress_is_told_while_the_step_runs_a_few_times_a_second_and_the_last_one_always(
    engine, place, tmp_path
):
    gate = tmp_path / "gate"
    events = await told(engine, gate, place=place, function="show", args=(str(gate), 3))
    progress = [each for each in events if isinstance(each, StepProgress)]
    assert (progress[0].total, progress[0].note) == (3, "on the way")
    assert (progress[-1].done, progress[-1].total, progress[-1].note) == (1000, 1000, "there")
    assert len(progress) < 20
    ends = [type(each) for each in events if isinstance(each, StepProgress | StepCompleted)]
    assert ends[-1] is StepCompleted


PUBLISHED = {"draft": ("hello", "a"), "parts": ({"words": (1, 2)}, "a")}


async def published(engine: WorkflowEngine) -> dict[str, Any]:
    return {name: (each.value, each.step) for name, each in (await engine.published("run")).items()}


@pytest.mark.parametrize("place", [*PLACES, "foreign"])
async def test_a_step_publishes_wherever_it_runs_and_its_arguments_are_recorded(request, executors, place):
    if place == "foreign":
        executors = {"foreign": request.getfixturevalue("foreign")}

    @workflow("publishing")
    def publishing():
        return (yield step("a").python(far_steps.publishes, "hello", number=2).on(place).record_arguments())

    engine = WorkflowEngine(MemoryCheckpointStore(), executors=executors)
    result = await engine.run(publishing, workflow_id="run")
    assert (result.unwrap(), await published(engine)) == ("hello", PUBLISHED)
    (recorded,) = (await engine.store.load_latest("run")).step_results
    assert recorded.argument_values == {"text": "hello", "number": 2}


@pytest.mark.parametrize("place", PLACES)
def test_a_step_knows_which_try_it_is_and_how_many_there_are(engine, place, tmp_path):
    result = engine.run_sync(one, place=place, function="tries", args=(str(tmp_path / "log"),), tries=3)
    assert result.output == [3, 3]
    assert (tmp_path / "log").read_text().splitlines() == ["1 of 3", "2 of 3", "3 of 3"]


@pytest.mark.parametrize("place", PLACES)
def test_the_next_try_goes_on_from_what_was_saved(engine, place, tmp_path):
    log = tmp_path / "log"
    assert engine.run_sync(copying, place=place, log=str(log), deadly=3, how="fail").output == 5
    assert log.read_text().split() == ["0", "1", "2", "3", "3", "4"]


@pytest.mark.parametrize("place", ["process", "dask"])
async def test_a_worker_that_is_killed_between_two_saves_loses_nothing_that_was_saved(engine, place, tmp_path):
    log = tmp_path / "log"
    events = [each async for each in engine.execute(copying, place=place, log=str(log), deadly=3)]
    assert events[-1].output == 5
    assert [each.error_type.rpartition(".")[2] for each in events if isinstance(each, StepRetrying)] == [
        "WorkerDiedError"
    ]
    assert log.read_text().split() == ["0", "1", "2", "3", "3", "4"]


def test_a_cluster_that_runs_a_step_again_by_itself_has_the_newest_state(tmp_path):
    distributed = pytest.importorskip("distributed")
    log = tmp_path / "log"

    @workflow("untold")
    def untold():
        return (yield step("copy").python(far_steps.copy, str(log), 5, 3).on("dask"))

    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, silence_logs=50) as made,
        distributed.Client(made, set_as_default=False) as client,
    ):
        executors = {"dask": lambda: DaskExecutor(client)}
        result = WorkflowEngine(MemoryCheckpointStore(), executors=executors).run_sync(untold)
        assert (result.output, result.error) == (5, None)
        assert log.read_text().split() == ["0", "1", "2", "3", "3", "4"]
        assert not [each for each in client.get_events() if each.startswith("flowckpt-")]


@pytest.mark.parametrize("place", PLACES)
def test_an_async_step_saves_a_class_of_its_own_and_loads_it(engine, place):
    assert engine.run_sync(one, place=place, function="bookmark").output == [0, 1, ["a"]]


@pytest.mark.parametrize("place", ["engine", "process"])
def test_code_in_a_loop_is_told_to_await(engine, place):
    error = engine.run_sync(one, place=place, function="save_in_loop").error
    assert "current_step().save() was called in 'a' by code that runs in the event loop" in error.error_message


@pytest.mark.parametrize("place", ["engine", "process", "dask"])
def test_what_cannot_be_recorded_is_refused_and_the_step_goes_on(engine, place):
    assert engine.run_sync(one, place=place, function="save_object").output == EncodingError.__name__


@pytest.mark.parametrize("place", ["engine", "process", "dask"])
def test_a_secret_is_not_saved(engine, place):
    @workflow("secret")
    def secret(token: Secret[str]):
        yield step("a").python(far_steps.save_token, token).on(place)

    error = engine.run_sync(secret, token=Secret("Zvv-1900")).error
    assert error.failed_with(EncodingError)
    assert "Zvv-1900" not in str(error)


class FullStore(MemoryCheckpointStore):
    """A store that is full once it holds the beginning of a run."""

    async def save(self, workflow_id, data):
        if data.sequence > 1 and data.reason == "manual":
            raise CheckpointStorageError("no room", operation="save")
        return await super().save(workflow_id, data)


@pytest.mark.parametrize("place", ["engine", "process"])
def test_a_save_that_fails_is_raised_in_the_step_and_ends_the_run_whatever_the_step_makes_of_it(executors, place):
    engine = WorkflowEngine(FullStore(), executors=executors)
    result = engine.run_sync(one, place=place, function="save_and_swallow")
    assert isinstance(result.error, CheckpointStorageError)


@pytest.mark.parametrize("place", ["process"])
async def test_a_step_that_is_stopped_saves_in_its_finally_and_a_resume_loads_it(executors, place, tmp_path):
    store = FileCheckpointStore(tmp_path / "runs")
    engine = WorkflowEngine(store, executors=executors)
    began = tmp_path / "began"
    inputs = {"place": place, "function": "save_at_the_end", "args": (str(began),)}
    running = asyncio.ensure_future(engine.run(one, workflow_id="r", **inputs))
    await asyncio.to_thread(seen, began)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    latest = await store.load_latest("r")
    assert latest is not None
    assert latest.partial["a"].state == "stopped"


@pytest.mark.parametrize("place", ["engine", "process"])
def test_a_thread_that_its_step_has_left_behind_can_save_nothing(engine, place, tmp_path):
    log = tmp_path / "log"

    @workflow("left")
    def left():
        yield step("a").python(far_steps.leave_a_thread, str(log)).on(place)
        yield step("wait").python(far_steps.spin, str(tmp_path / "began"), "", 0.6).on(place)

    assert engine.run_sync(left).status == "completed"
    assert seen(log).startswith("try 1 of step 'a' has ended: it can neither save nor record")


def test_a_process_that_the_step_has_forked_is_told_where_to_save(engine):
    output = engine.run_sync(one, place="process", function="save_in_a_child").output
    assert "in a process that step 'a' has started itself" in output


def test_threads_of_a_step_save_beside_each_other(engine):
    assert engine.run_sync(one, place="process", function="save_from_threads", args=(8,)).output in range(8)


@pytest.mark.parametrize("after", [0.0, 0.004, 0.02])
async def test_a_worker_killed_in_the_middle_of_a_save_leaves_one_whole_state(executors, after, tmp_path):
    store = FileCheckpointStore(tmp_path / "runs")
    size = 2_000_000
    with blocking_allowed(True):
        await WorkflowEngine(store, executors=executors).run(
            one, workflow_id="r", place="process", function="die_while_saving", args=(size, after)
        )
        latest = await store.load_latest("r")
        assert latest is not None
        assert latest.partial["a"].state in ("a" * size, "b" * size)


# --- executors without a way back ----------------------------------------------------------------------------------


def test_where_there_is_no_way_back_a_save_is_refused_by_name_with_what_to_do(foreign):
    engine = WorkflowEngine(MemoryCheckpointStore(), executors={"theirs": foreign})
    error = engine.run_sync(one, place="theirs", function="save_what", args=(1,)).error
    assert error.failed_with(ExecutorError)
    assert "step 'a' cannot save: it runs on executor 'theirs'" in error.error_message
    assert "undone" not in error.error_message
    assert "run it on 'process', 'thread' or a Dask cluster" in error.error_message


async def test_where_there_is_no_way_back_progress_is_dropped_with_one_warning(foreign, caplog, tmp_path):
    (tmp_path / "gate").touch()
    engine = WorkflowEngine(MemoryCheckpointStore(), executors={"theirs": foreign})

    @workflow("shows")
    def shows():
        yield step("a").python(far_steps.show, str(tmp_path / "gate"), 2).on("theirs")
        return (yield step("b").python(far_steps.show, str(tmp_path / "gate"), 2).on("theirs"))

    with caplog.at_level(logging.WARNING, "flowckpt"):
        events = [each async for each in engine.execute(shows)]
    assert events[-1].output[0] != os.getpid()
    assert not [each for each in events if isinstance(each, StepProgress)]
    assert sum("executor 'theirs' cannot send messages" in each.message for each in caplog.records) == 1


def test_where_there_is_no_way_back_the_state_and_the_tries_are_known_all_the_same(foreign, tmp_path):
    engine = WorkflowEngine(MemoryCheckpointStore(), executors={"place": foreign})

    @workflow("moved")
    def moved():
        return (yield step("copy").python(far_steps.copy, str(tmp_path / "log"), 3, 2, "fail"))

    @workflow("tried")
    def tried():
        return (yield step("a").python(far_steps.tries, str(tmp_path / "tries")).on("place").retry(3))

    assert engine.run_sync(tried).output == [3, 3]
    store = MemoryCheckpointStore()
    assert WorkflowEngine(store).run_sync(moved, workflow_id="r").status == "failed"
    there = WorkflowEngine(store, executors={"default": foreign})
    error = there.resume_sync(moved, workflow_id="r").error
    assert "cannot save" in str(error)
    assert (tmp_path / "log").read_text().split() == ["0", "1", "2", "2"]


# --- undoing -----------------------------------------------------------------------------------------------------


def test_where_a_step_is_undone_the_refusal_says_so(engine):
    said = []

    def undo(_: Any) -> None:
        try:
            far_steps.save_what(1)
        except FlowckptError as error:
            said.append(str(error))

    @workflow("undone")
    def undone():
        yield step("a").python(far_steps.double, 1).rollback(undo).on("process")
        raise LookupError("no")

    engine.run_sync(undone)
    assert said == [
        "current_step().save() was called in 'a', where a step is undone or adopted. Call save() in the function of the step itself."
    ]
