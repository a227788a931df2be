"""Steps and maps on executors: what comes back, what is recorded, what goes wrong, and what is left running."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any

import far_steps
import pytest
from far_processes import gone, seen

from flowckpt import MemoryCheckpointStore, RunOptions, Secret, WorkflowEngine, current_step, in_sync, step, workflow
from flowckpt.engine.session.session import choose_executors
from flowckpt.errors import (
    ExecutorError,
    NoAsyncioError,
    NotSendableError,
    SettingError,
    StepTimeoutError,
    UnknownExecutorError,
    WorkerDiedError,
)
from flowckpt.events import StepRetrying
from flowckpt.testing import FakeClock


def ran(made: Any, *, workflow_id: str = "run", options: RunOptions | None = None, **engine: Any) -> Any:
    """Run a workflow of one step and return how it ended."""

    @workflow("one")
    def one():
        return (yield made)

    engine.setdefault("checkpoint_store", MemoryCheckpointStore())
    return WorkflowEngine(**engine).run_sync(one, workflow_id=workflow_id, options=options)


def failed_with(result: Any, error: type[BaseException]) -> bool:
    return result.status == "failed" and result.error.failed_with(error)


def spawned() -> Executor:
    return ProcessPoolExecutor(2, mp_context=get_context("forkserver"))


# --- what comes back -------------------------------------------------------------------------------------------------


def test_a_step_runs_in_another_process_and_its_result_is_built_again():
    @workflow("sums")
    def sums():
        found = yield step("sum").python(far_steps.summed, (1, 2)).on("process")
        return [type(found) is far_steps.Sum, found.parts, found.total]

    assert WorkflowEngine(MemoryCheckpointStore()).run_sync(sums).output == [True, (1, 2), 3]
    assert ran(step("pid").python(far_steps.pid).on("process")).output != os.getpid()


def test_the_order_of_modifiers_means_nothing():
    assert step("a").on("process").python(far_steps.pid) == step("a").python(far_steps.pid).on("process")


def test_a_step_knows_itself_in_its_worker_as_it_would_here():
    far = ran(step("me").python(far_steps.told).on("process")).output
    here = ran(step("me").python(far_steps.told)).output
    assert far[1:] == here[1:] == ["run", "me", 1, 1, here[5]]
    assert far[0] != here[0]


def test_async_functions_get_a_loop_of_their_own_in_the_worker():
    assert ran(step("a").python(far_steps.awaited, "said").on("process")).output == "said"


def test_a_map_gets_the_outputs_of_its_members_in_their_order():
    @workflow("doubled")
    def doubled():
        return (yield step("pages").map(far_steps.double, range(20), concurrency=4).on("process"))

    assert WorkflowEngine(MemoryCheckpointStore()).run_sync(doubled).output == [2 * number for number in range(20)]


def test_an_exception_comes_back_as_it_would_be_recorded_here():
    far = ran(step("a").python(far_steps.stubborn).on("process")).error
    here = ran(step("a").python(far_steps.stubborn)).error
    assert (far.error_type, far.error_message, far.error_bases) == (
        here.error_type,
        here.error_message,
        here.error_bases,
    )
    assert "raise StubbornError" in far.traceback
    assert "flowckpt" not in far.traceback.replace(os.path.dirname(far_steps.__file__), "")


def test_what_cannot_be_recorded_is_refused_in_the_worker_as_it_is_here():
    far = ran(step("a").python(far_steps.unrecordable).on("process")).error
    here = ran(step("a").python(far_steps.unrecordable)).error
    assert (far.error_type, far.error_message) == (here.error_type, here.error_message)


def test_sys_exit_in_a_worker_fails_the_step():
    assert failed_with(ran(step("a").python(far_steps.leave, 3).on("process")), SystemExit)


def test_a_result_made_elsewhere_is_reused_wherever_the_step_runs_later():
    placed = {"on": "process"}

    @workflow("moved")
    def moved():
        first = yield step("pid").python(far_steps.pid).on(placed["on"]).checkpoint()
        yield step("then").python(far_steps.leave, 0)
        return first

    store = MemoryCheckpointStore()
    first = WorkflowEngine(store).run_sync(moved, workflow_id="run")
    assert first.status == "failed"
    placed["on"] = "engine"
    plan = in_sync(WorkflowEngine(store)).plan(moved, workflow_id="run")
    assert [each.decision.value for each in plan.steps][0] == "reuse"


@workflow("secretive")
def secretive(how: str, token: Secret[str]):
    return (yield step("a").python(getattr(far_steps, how), token).on("process"))


def test_a_secret_argument_is_sent_and_does_not_come_back():
    engine = WorkflowEngine(MemoryCheckpointStore())
    token = "correct-horse-battery"
    assert engine.run_sync(secretive, how="use_token", token=Secret(token)).output == len(token)
    for how in ("tell_token", "fail_with_token"):
        error = engine.run_sync(secretive, how=how, token=Secret(token)).error
        assert error.path == "a"
        assert token not in str(error) + error.traceback


# --- threads and other executors -------------------------------------------------------------------------------------


def test_a_thread_of_its_own_is_built_in():
    assert ran(step("a").python(far_steps.thread_name).on("thread")).output == "flowckpt-step"
    assert ran(step("a").python(far_steps.thread_name)).output == "MainThread"


def test_a_thread_pool_gets_the_very_objects_and_the_step_knows_itself():
    lock = threading.Lock()

    def use(given: Any) -> list[Any]:
        return [given is lock, current_step().path, threading.current_thread().name.startswith("mine")]

    with ThreadPoolExecutor(1, thread_name_prefix="mine") as pool:
        result = ran(step("a").python(use, lock).on("mine"), executors={"mine": pool})
        assert result.output == [True, "a", True]
        assert pool.submit(int, "4").result() == 4  # it is the caller's, and continues


def test_any_executor_that_calls_what_it_is_given_will_do():
    class Immediate(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_result(fn(*args, **kwargs))
            return future

    assert ran(step("a").python(far_steps.double, 2).on("now"), executors={"now": Immediate()}).output == 4


def test_an_executor_that_returns_something_else_is_told():
    class Wrong(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_result("something")
            return future

    assert failed_with(ran(step("a").python(far_steps.double, 2).on("bad"), executors={"bad": Wrong()}), ExecutorError)


def test_an_answer_of_a_worker_cannot_make_objects_here():
    class Evil(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_result(b"cos\nsystem\n(S'touch hacked'\ntR.")
            return future

    result = ran(step("a").python(far_steps.double, 2).on("bad"), executors={"bad": Evil()})
    assert failed_with(result, ExecutorError)
    assert "os.system" in result.error.error_message or "posix.system" in result.error.error_message


@pytest.mark.parametrize(
    "given", [1, None, "processes", "process:0", "dask://", "dask://host:x", "dask:local:0", "gpu"]
)
def test_what_is_no_executor_is_refused_when_the_engine_is_made(given):
    with pytest.raises((SettingError, ExecutorError)):
        WorkflowEngine(MemoryCheckpointStore(), executors={"a": given})


@pytest.mark.parametrize("name", ["", "a b", "engine", "thread", "dask://a", 1])
def test_names_that_no_step_could_mean_are_refused(name):
    with pytest.raises(SettingError):
        WorkflowEngine(MemoryCheckpointStore(), executors={name: "process"})


# --- the default -----------------------------------------------------------------------------------------------------


def test_the_default_executor_takes_the_steps_that_name_none():
    @workflow("two")
    def two():
        opened = yield step("open").python(threading.Lock).ephemeral()
        far = yield step("far").python(far_steps.pid)
        here = yield step("here").python(far_steps.pid).on("engine")
        return [far == os.getpid(), here == os.getpid(), opened is not None]

    for given in ({"executors": {"default": "process:1"}}, {}):
        options = None if given else RunOptions(executors={"default": "process:1"})
        result = WorkflowEngine(MemoryCheckpointStore(), **given).run_sync(two, options=options)
        assert result.output == [False, True, True], result.error


def test_a_resume_uses_what_the_run_was_started_with_again():
    store = MemoryCheckpointStore()

    @workflow("again")
    def again():
        yield step("a").python(far_steps.double, 1).checkpoint()
        if store.is_broken:
            raise RuntimeError("stop here")
        return (yield step("b").python(far_steps.pid))

    store.is_broken = True
    WorkflowEngine(store).run_sync(again, workflow_id="r", options=RunOptions(executors={"default": "process:1"}))
    store.is_broken = False
    resumed = WorkflowEngine(store).resume_sync(again, workflow_id="r")
    assert resumed.output != os.getpid()


def test_an_address_of_a_record_is_never_connected_to(monkeypatch):
    store = MemoryCheckpointStore()
    data = {}

    @workflow("far")
    def far():
        yield step("a").python(far_steps.double, 1)
        if data["stop"]:
            raise RuntimeError("stop here")
        return "done"

    data["stop"] = True
    options = RunOptions(executors={"gpu": "dask://somewhere:8786"})
    assert WorkflowEngine(store).run_sync(far, workflow_id="r", options=options).status == "failed"
    data["stop"] = False
    with pytest.raises(UnknownExecutorError, match="somewhere"):
        WorkflowEngine(store).resume_sync(far, workflow_id="r")
    chosen = RunOptions(executors={"gpu": "process"})
    assert WorkflowEngine(store).resume_sync(far, workflow_id="r", options=chosen).output == "done"


@pytest.mark.parametrize("harmless", ["engine", "thread", "process", "process:8", "dask:local", "dask:local:2"])
def test_what_stays_on_this_machine_is_taken_from_a_record(harmless):
    assert choose_executors({"executors": {"gpu": harmless}}, {}, {}) == {"gpu": harmless}


@pytest.mark.parametrize("address", ["dask://local:8786", "dask:localhost", "dask:localhost:2", "dask", "ray:local"])
def test_what_may_be_an_address_is_not(address):
    with pytest.raises(UnknownExecutorError, match="is not used unless given again"):
        choose_executors({"executors": {"gpu": address}}, {}, {})


# --- refusals --------------------------------------------------------------------------------------------------------


def test_an_unknown_executor_ends_the_run_before_the_step_and_a_resume_that_has_it_goes_on():
    @workflow("gpu")
    def gpu():
        yield step("first").python(far_steps.double, 1)
        try:
            return (yield step("train").python(far_steps.double, 2).on("gpu").at_most_once())
        except Exception:
            return "handled as if the step had failed"

    store = MemoryCheckpointStore()
    result = WorkflowEngine(store).run_sync(gpu, workflow_id="r")
    assert isinstance(result.error, UnknownExecutorError)
    assert (result.error.executor, result.error.path) == ("gpu", "train")
    with pytest.raises(UnknownExecutorError):
        WorkflowEngine(store).resume_sync(gpu, workflow_id="r")
    assert WorkflowEngine(store, executors={"gpu": "process:1"}).resume_sync(gpu, workflow_id="r").output == 4


@pytest.mark.parametrize(
    ("made", "place"),
    [
        (lambda: step("a").python(far_steps.double, threading.Lock()), "argument 'number'"),
        (lambda: step("a").python(far_steps.double, number=threading.Lock()), "argument 'number'"),
    ],
    ids=["positional", "keyword"],
)
def test_what_cannot_be_sent_is_told_with_its_name_and_is_not_tried_again(made, place):
    result = ran(made().on("process").retry(3))
    assert failed_with(result, NotSendableError)
    assert place in result.error.error_message
    assert result.error.tries == 1


def test_a_function_inside_a_function_cannot_be_sent():
    def inner() -> int:
        return 1

    result = ran(step("a").python(inner).on("process"))
    assert failed_with(result, NotSendableError)
    assert "the function (function)" in result.error.error_message


def test_resources_are_refused_where_the_executor_knows_none():
    result = ran(step("a").python(far_steps.pid).on("process", resources={"GPU": 1}))
    assert isinstance(result.error, UnknownExecutorError)
    result = ran(step("a").python(far_steps.pid).on("thread", resources={"GPU": 1}))
    assert isinstance(result.error, UnknownExecutorError)


def test_the_engine_says_that_it_works_under_asyncio_only():
    @workflow("one")
    def one():
        yield step("a").python(far_steps.double, 1)

    running = WorkflowEngine(MemoryCheckpointStore()).run(one)
    with pytest.raises(NoAsyncioError, match="asyncio"):
        running.send(None)


# --- workers that die ------------------------------------------------------------------------------------------------


def test_a_worker_that_dies_fails_the_step_with_a_typed_error():
    result = ran(step("a").python(far_steps.die).on("process"))
    assert failed_with(result, WorkerDiedError)
    assert "SIGKILL" in result.error.error_message


def test_with_retries_a_step_whose_worker_died_is_tried_on_a_new_one(tmp_path):
    result = ran(step("a").python(far_steps.die_once, str(tmp_path / "log")).on("process").retry(2))
    assert result.output == 0


def test_retries_for_other_errors_do_not_apply_to_a_dead_worker():
    assert ran(step("a").python(far_steps.die).on("process").retry(3, on=KeyError)).error.tries == 1
    assert ran(step("a").python(far_steps.die).on("process").retry(2, on=WorkerDiedError)).error.tries == 2


def test_retries_apply_to_what_a_worker_raised_by_its_classes():
    assert ran(step("a").python(far_steps.stubborn).on("process").retry(2, on=far_steps.StubbornError)).error.tries == 2
    assert ran(step("a").python(far_steps.stubborn).on("process").retry(2)).error.tries == 2
    assert ran(step("a").python(far_steps.stubborn).on("process").retry(2, on=KeyError)).error.tries == 1
    assert ran(step("a").python(far_steps.leave, 1).on("process").retry(2)).error.tries == 1


def test_one_worker_that_dies_in_a_map_costs_its_own_member_and_no_other(tmp_path):
    log = tmp_path / "log"

    @workflow("pages")
    def pages():
        items = [(str(log), number) for number in range(8)]
        found = yield step("pages").map(far_steps.die_once_of, items, concurrency=4, tolerate=1).on("process")
        return [each if isinstance(each, int) else each.failed_with(WorkerDiedError) for each in found]

    found = WorkflowEngine(MemoryCheckpointStore(), executors={"process": "process:2"}).run_sync(pages).output
    assert found == [True, *range(1, 8)]
    assert sorted(log.read_text().split()) == [str(number) for number in range(8)]


def test_a_pool_of_the_standard_library_is_made_anew_once_one_of_its_processes_died(tmp_path):
    @workflow("pages")
    def pages():
        died = yield step("a").python(far_steps.die_once, str(tmp_path / "log")).on("pool").retry(2)
        return [died, (yield step("b").python(far_steps.double, 2).on("pool"))]

    result = WorkflowEngine(MemoryCheckpointStore(), executors={"pool": spawned}).run_sync(pages)
    assert result.output == [0, 4]


def test_a_pool_that_was_given_whole_and_is_broken_is_told_with_the_remedy(tmp_path):
    with spawned() as pool:
        result = ran(step("a").python(far_steps.die).on("pool").retry(2), executors={"pool": pool})
    assert failed_with(result, WorkerDiedError)
    assert result.error.tries == 2


# --- time limits and stops -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "on"),
    [
        (503, far_steps.is_overload),
        (404, far_steps.is_overload),
        (0, far_steps.is_refused),
        (503, (KeyError, far_steps.is_refused, far_steps.is_overload)),
        (503, far_steps.has_no_answer),
    ],
)
def test_a_function_decides_about_a_retry_in_every_place_alike(tmp_path, status, on):
    ends = {}
    for place in ("engine", "thread", "process"):
        log = tmp_path / place
        result = ran(step("get").python(far_steps.get_page, str(log), status).retry(5, on=on).on(place))
        notes = "" if result.failure is None else result.failure.traceback
        ends[place] = result.status, result.output, log.stat().st_size, "has_no_answer of .retry(on=…) raised" in notes
    assert ends["process"] == ends["thread"] == ends["engine"]
    assert ends["engine"][2] == (1 if status == 404 or on is far_steps.has_no_answer else 3)


def test_a_function_that_no_worker_can_import_is_asked_about_the_text_of_the_exception(tmp_path):
    made = step("get").python(far_steps.get_page, str(tmp_path / "log"), 503).on("process")
    assert ran(made.retry(5, on=lambda error: "503" in str(error))).output == "page"
    (tmp_path / "log").unlink()
    failed = ran(made.retry(5, on=lambda error: isinstance(error, far_steps.HttpError)))
    assert "got only its text: the worker cannot import them" in failed.failure.traceback


def test_a_step_out_of_time_is_ended_with_its_process(tmp_path, late):
    @workflow("spinning")
    def spinning():
        made = step("a").python(far_steps.spin, str(tmp_path / "began"), str(tmp_path / "ended"))
        yield made.on("process").timeout(600)

    late.advance_after(tmp_path / "began")
    engine = WorkflowEngine(MemoryCheckpointStore(), executors={"process": "process:1"})
    assert failed_with(engine.run_sync(spinning), StepTimeoutError)
    assert gone(int(seen(tmp_path / "began")))
    assert seen(tmp_path / "ended") == "cleaned up"


def test_the_time_in_the_queue_does_not_count_for_the_limit(tmp_path, late):
    @workflow("pages")
    def pages():
        yield (
            step("pages")
            .map(far_steps.begin_and_wait, [str(tmp_path / str(n)) for n in range(3)])
            .on("process")
            .timeout(600)
        )

    def let_time_pass():
        for number in range(3):
            seen(tmp_path / str(number))
            late.advance(400)
            (tmp_path / f"{number}-go").touch()

    engine = WorkflowEngine(MemoryCheckpointStore(), executors={"process": "process:1"})
    with ThreadPoolExecutor(1) as pool:
        letting = pool.submit(let_time_pass)
        assert engine.run_sync(pages).unwrap() is None
        letting.result()


def test_a_step_at_most_once_may_be_tried_again_after_its_process_was_ended(tmp_path, late):
    log = tmp_path / "log"

    @workflow("once")
    def once():
        yield step("a").python(far_steps.spin, str(log)).on("process").timeout(600).at_most_once().retry(2)

    late.advance_after(log)
    engine = WorkflowEngine(MemoryCheckpointStore(), executors={"process": "process:1"})
    error = engine.run_sync(once).error
    assert error.tries == 1
    assert "left running" not in error.traceback  # its evidence cannot tell; but nothing of it continues
    assert gone(int(seen(log)))


async def test_a_cancelled_run_leaves_no_process_and_is_saved(tmp_path):
    store = MemoryCheckpointStore()

    @workflow("long")
    def long():
        yield step("a").python(far_steps.double, 1).on("process")
        yield step("b").python(far_steps.spin, str(tmp_path / "began"), str(tmp_path / "ended")).on("process")

    running = asyncio.ensure_future(WorkflowEngine(store).run(long, workflow_id="r"))
    process = int(await asyncio.to_thread(seen, tmp_path / "began"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert gone(process)
    assert seen(tmp_path / "ended") == "cleaned up"
    latest = await store.load_latest("r")
    assert (latest.status, [each.path for each in latest.step_results]) == ("suspended", ["a"])


def test_the_first_failure_in_a_map_ends_the_others(tmp_path):
    @workflow("pages")
    def pages():
        yield step("pages").map(far_steps.fail_or_spin, [str(tmp_path / "began"), ""]).on("process")

    began = time.monotonic()
    result = WorkflowEngine(MemoryCheckpointStore(), executors={"process": "process:2"}).run_sync(pages)
    assert result.status == "failed"
    assert time.monotonic() - began < 20


def test_a_retry_tells_of_the_dead_worker(tmp_path):
    events = []

    @workflow("one")
    def one():
        return (yield step("a").python(far_steps.die_once, str(tmp_path / "log")).on("process").retry(2, backoff=5))

    async def follow() -> None:
        engine = WorkflowEngine(MemoryCheckpointStore(), clock=FakeClock())
        events.extend([each async for each in engine.execute(one)])

    asyncio.run(follow())
    retrying = [each for each in events if isinstance(each, StepRetrying)]
    assert [(each.path, each.error_type.rpartition(".")[2]) for each in retrying] == [("a", "WorkerDiedError")]
