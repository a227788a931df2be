"""The figures of steps: recorded wherever the step runs, kept with its result, and added up for the run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from decimal import Decimal
from typing import Any

import pytest

from flowckpt import MemoryCheckpointStore, WorkflowEngine, current_step, parallel, step, workflow
from flowckpt.errors import FlowckptError, InputError, StepFailedError
from flowckpt.events import StepCompleted, StepFailed
from flowckpt.execution.executors.processes import ProcessExecutor

failures = 0


def ask(tokens: int) -> int:
    this = current_step()
    this.record(tokens=tokens, cost_usd=0.1)
    this.record(tokens=1, rows=Decimal("2.5"))
    return tokens


async def ask_async(tokens: int) -> int:
    await asyncio.sleep(0)
    return await asyncio.to_thread(ask, tokens)


def fail_once() -> None:
    global failures
    current_step().record(tokens=5)
    failures += 1
    if failures == 1:
        raise ValueError("the first try spent its tokens, too")


def fail() -> None:
    current_step().record(tokens=7)
    raise ValueError("no")


def record_in_threads(count: int) -> None:
    this = current_step()
    threads = [threading.Thread(target=this.record, kwargs={"calls": 1}) for _ in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


ASKED = {"tokens": 11, "cost_usd": 0.1, "rows": 2.5}


@pytest.fixture(scope="module")
def processes() -> Generator[ProcessExecutor, None, None]:
    executor = ProcessExecutor(max_workers=1)
    executor.submit(abs, 1).result()  # its worker is there before the first test, and after it
    yield executor
    executor.kill()


PLACES = {
    "in place": step("a").python(ask, 10),
    "on a thread": step("a").python(ask, 10).timeout(60),
    "in the loop": step("a").python(ask_async, 10),
    "on an executor of threads": step("a").python(ask, 10).on("thread"),
    "in a worker process": step("a").python(ask, 10).on("workers"),
    "in a worker process, asynchronously": step("a").python(ask_async, 10).on("workers"),
    "ephemerally, so only in the event": step("a").python(ask, 10).ephemeral(),
}


@pytest.mark.parametrize("made", PLACES.values(), ids=PLACES)
def test_the_calls_of_a_step_add_up_wherever_it_runs(processes: ProcessExecutor, made: Any) -> None:
    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield made

    engine = WorkflowEngine(MemoryCheckpointStore(), executors={"workers": processes})
    events: list[Any] = []
    result = engine.drive_sync(engine.prepare(flow, "run", None, {}), on_event=events.append)
    assert [each.figures for each in events if isinstance(each, StepCompleted)] == [ASKED]
    assert result.figures == ({} if made.modifiers.is_ephemeral else ASKED)
    assert engine.resume_sync(flow, workflow_id="run").figures == result.figures


def test_a_run_adds_up_its_steps_and_a_failure_keeps_what_its_tries_recorded() -> None:
    global failures
    failures = 0

    @workflow
    def child(tokens: int) -> Generator[Any, Any, None]:
        yield step("ask").python(ask, tokens)

    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield step("each").map(ask, [1, 2, 3])
        yield step("retried").python(fail_once).retry(3)
        yield parallel(step("left").python(ask, 100), step("right").workflow(child, tokens=200))
        yield step("threads").python(record_in_threads, 20)
        try:
            yield step("fails").python(fail)
        except StepFailedError:
            yield step("plain").python(int)

    store = MemoryCheckpointStore()
    engine = WorkflowEngine(store)
    events: list[Any] = []
    result = engine.drive_sync(engine.prepare(flow, "run", None, {}), on_event=events.append)
    result.unwrap()
    tokens = (1 + 2 + 3 + 3) + 2 * 5 + (100 + 1) + (200 + 1) + 7
    assert result.figures == {"tokens": tokens, "cost_usd": 0.5, "rows": 12.5, "calls": 20}
    assert [each.figures for each in events if isinstance(each, StepFailed)] == [{"tokens": 7}]
    latest = asyncio.run(store.load_latest("run"))
    assert latest is not None
    by_path = {each.path: dict(each.figures) for each in latest.step_results if each.figures}
    assert by_path["each/[1]"] == {"tokens": 3, "cost_usd": 0.1, "rows": 2.5}
    assert by_path["retried"] == {"tokens": 10}
    assert "each" not in by_path


@pytest.mark.parametrize("place", ["engine", "workers"])
@pytest.mark.parametrize("value", [True, "12", None, float("nan"), float("inf"), 1e301, 10**400, [1]])
def test_a_figure_is_a_finite_number_and_a_wrong_one_adds_nothing(processes: Any, place: str, value: Any) -> None:
    @workflow
    def flow() -> Generator[Any, Any, str]:
        return (yield step("a").python(record_wrongly, value).on(place))

    engine = WorkflowEngine(MemoryCheckpointStore(), executors={"workers": processes})
    result = engine.run_sync(flow)
    assert result.output.startswith("record(wrong=…) got ")
    assert result.figures == {"right": 1}


def record_wrongly(value: Any) -> str:
    current_step().record(right=1)
    try:
        current_step().record(right=1, wrong=value)
    except InputError as error:
        return error.message
    return ""


def test_a_thread_that_outlives_its_step_can_record_nothing() -> None:
    late: list[Any] = []
    go = threading.Event()

    def record_late(this: Any) -> None:
        go.wait(120)
        try:
            this.record(tokens=1)
        except FlowckptError as error:
            late.append(error.message)

    def leave() -> None:
        late.append(threading.Thread(target=record_late, args=(current_step(),)))
        late[0].start()

    def release() -> None:
        go.set()
        late[0].join()

    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield step("a").python(leave)
        yield step("b").python(release)

    assert WorkflowEngine(MemoryCheckpointStore()).run_sync(flow).figures == {}
    assert late[1] == "try 1 of step 'a' has ended: it can neither save nor record"
