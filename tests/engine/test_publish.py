"""Named values that a run publishes: read while it runs, after its end, and after a crash; the last one counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from crashing import CrashingStore, SimulatedCrash

from flowckpt import (
    MemoryCheckpointStore,
    Secret,
    WorkflowEngine,
    continue_as,
    current_step,
    in_sync,
    open_store,
    publish,
    step,
    workflow,
)
from flowckpt.engine.run import live
from flowckpt.errors import CheckpointNotFoundError, StepDefinitionError, StepFailedError
from flowckpt.maintenance import copy_run, export_run, import_run
from flowckpt.testing import FakeClock
from tests.reopening import spec_of

seen: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    seen.clear()


def published(store: Any, run: str = "one") -> dict[str, Any]:
    """What another process reads, in a thread: the caller may run in a loop."""
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(asyncio.run, WorkflowEngine(store).published(run)).result()
    return {name: (each.value, each.step) for name, each in found.items()}


def write(text: str) -> str:
    publish("draft", f"{text} 1")
    current_step().publish("draft", text)
    publish("parts", {"words": (1, 2)})
    return text


async def write_async(text: str) -> str:
    return write(text)


@workflow
def letter() -> Generator[Any, Any, None]:
    yield publish("draft", "outline")
    yield step("write").python(write, "hello").checkpoint()
    yield publish("state", "checked")


PLACES: dict[str, Any] = {
    "in place": step("write").python(write, "hello"),
    "on a thread": step("write").python(write, "hello").timeout(600),
    "in the loop": step("write").python(write_async, "hello"),
    "in a process": step("write").python(write, "hello").on("process"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_step_publishes_wherever_it_runs(reopen: Callable[[], Any], place: str) -> None:
    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield PLACES[place]

    WorkflowEngine(reopen()).run_sync(flow, workflow_id="one").unwrap()
    assert published(reopen()) == {"draft": ("hello", "write"), "parts": ({"words": (1, 2)}, "write")}


def test_a_workflow_publishes_and_the_last_value_of_a_name_counts(reopen: Callable[[], Any]) -> None:
    clock = FakeClock(datetime(2026, 11, 20, 12, 0, tzinfo=UTC))
    store = reopen()
    WorkflowEngine(store, clock=clock).run_sync(letter, workflow_id="one").unwrap()
    assert published(store) == {
        "draft": ("hello", "write"),
        "parts": ({"words": (1, 2)}, "write"),
        "state": ("checked", "publish state"),
    }
    assert asyncio.run(WorkflowEngine(store).published("one"))["draft"].at == clock.now()
    with pytest.raises(CheckpointNotFoundError):
        published(store, "nope")


def test_a_result_of_another_run_publishes_again_beside_steps_that_publish() -> None:
    @workflow
    def cached() -> Generator[Any, Any, None]:
        yield publish("state", "begun")
        yield step("write").python(write, "hello").cache().checkpoint()

    store = MemoryCheckpointStore()
    for run in ("one", "two"):
        WorkflowEngine(store).run_sync(cached, workflow_id=run).unwrap()
    assert asyncio.run(store.load_latest("two")).step_results[1].source["workflow_id"] == "one"
    assert published(store, "two") == published(store, "one")


@pytest.mark.parametrize("at", range(1, 5))
@pytest.mark.parametrize("is_after", [True, False])
def test_a_run_that_crashed_publishes_in_the_end_what_an_uninterrupted_one_does(at: int, is_after: bool) -> None:
    clean, store = MemoryCheckpointStore(), MemoryCheckpointStore()
    WorkflowEngine(clean).run_sync(letter, workflow_id="one").unwrap()
    try:
        WorkflowEngine(CrashingStore(store, at, is_after=is_after)).run_sync(letter, workflow_id="one")
    except SimulatedCrash:
        pass
    store.runs.owned.clear()
    engine = WorkflowEngine(store)
    if "one" in store.runs.stored and asyncio.run(store.load_latest("one")) is not None:
        engine.resume_sync(letter, workflow_id="one").unwrap()
    else:
        engine.run_sync(letter, workflow_id="one").unwrap()
    assert published(store) == published(clean)


def test_a_value_can_be_read_before_anything_is_saved(reopen: Callable[[], Any]) -> None:
    store = reopen()

    def work() -> None:
        publish("draft", "half")
        live.WATCH.poll(is_due=True)
        seen.append(published(store))

    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield publish("title", "T")
        yield step("work").python(work)

    WorkflowEngine(store).run_sync(flow, workflow_id="one").unwrap()
    assert seen == [{"title": ("T", "publish title"), "draft": ("half", "work")}]


def test_a_failed_step_keeps_what_it_published_and_a_handler_continues() -> None:
    def fails() -> None:
        publish("draft", "until here")
        raise ValueError("no")

    @workflow
    def flow() -> Generator[Any, Any, None]:
        try:
            yield step("fails").python(fails).retry(2)
        except StepFailedError:
            yield publish("state", "gave up")

    store = MemoryCheckpointStore()
    WorkflowEngine(store).run_sync(flow, workflow_id="one").unwrap()
    assert published(store) == {"draft": ("until here", "fails"), "state": ("gave up", "publish state")}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("draft", object(), ": published 'draft' is a"),
        ("draft", "x" * 70_000, "70,002 bytes of JSON; the limit for a published value is 65,536"),
        ("", 1, "a published name must not be blank"),
        (3, 1, "a published name must be text"),
        ("x" * 201, 1, "a published name may have 200 characters, got 201"),
    ],
)
def test_what_cannot_be_published_is_refused_with_the_reason(name: Any, value: Any, said: str) -> None:
    def publishes() -> None:
        publish(name, value)

    @workflow
    def in_a_step() -> Generator[Any, Any, None]:
        yield step("publishes").python(publishes)

    @workflow
    def in_the_body() -> Generator[Any, Any, None]:
        yield publish(name, value)

    for flow in (in_a_step, in_the_body):
        result = WorkflowEngine(MemoryCheckpointStore()).run_sync(flow)
        assert result.status == "failed"
        assert said in str(result.error)
        if isinstance(result.error, StepDefinitionError) and flow is in_the_body:
            assert result.error.where.startswith(__file__)


def test_no_secret_is_published() -> None:
    def tells(token: Secret[str]) -> None:
        publish("draft", f"with {token.reveal()}")

    @workflow
    def flow(token: Secret[str]) -> Generator[Any, Any, None]:
        yield step("tells").python(tells, token)

    store = MemoryCheckpointStore()
    result = WorkflowEngine(store).run_sync(flow, workflow_id="one", token="tok-123456789")
    assert result.status == "failed"
    assert "holds a secret of the run" in str(result.error)
    assert published(store) == {}


def test_a_workflow_that_a_step_runs_publishes_as_itself() -> None:
    inner_store = MemoryCheckpointStore()

    def runs() -> None:
        WorkflowEngine(inner_store).run_sync(letter, workflow_id="inner").unwrap()
        publish("draft", "outer")

    @workflow
    def outer() -> Generator[Any, Any, None]:
        yield step("runs").python(runs)

    store = MemoryCheckpointStore()
    WorkflowEngine(store).run_sync(outer, workflow_id="one").unwrap()
    assert published(store) == {"draft": ("outer", "runs")}
    assert published(inner_store, "inner")["state"] == ("checked", "publish state")


def test_a_publication_that_is_not_yielded_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    def forgets() -> Generator[Any, Any, None]:
        publish("draft", 1)
        yield step("one").python(int)

    WorkflowEngine(MemoryCheckpointStore()).run_sync(forgets).unwrap()
    assert "publish draft" in caplog.text


@workflow("editions")
def editions(number: int = 1) -> Generator[Any, Any, Any]:
    """Publish in each of three generations."""
    yield publish("edition", {"number": number, "parts": (1, 2)})
    yield step("write").python(write, f"edition {number}").record_arguments().checkpoint()
    if number == 3:
        yield step("more").wait("more")
        return number
    return continue_as(number=number + 1)


@pytest.mark.parametrize("kind", ["memory", "file", "sqlite", "postgresql", "objects"])
def test_published_values_and_arguments_of_a_generation_move_with_the_run(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = MemoryCheckpointStore()
    assert WorkflowEngine(source).run_sync(editions, workflow_id="one").status == "suspended"
    here = published(source)
    assert here["edition"] == ({"number": 3, "parts": (1, 2)}, "publish edition") and here["draft"] == (
        "edition 3",
        "write",
    )
    file, back = tmp_path / "run.jsonl", MemoryCheckpointStore()
    asyncio.run(export_run(source, "one", file))
    with closing(open_store(spec_of(kind, request, tmp_path))) as there:
        asyncio.run(import_run(there, file))
        assert published(there) == here
        asyncio.run(copy_run(there, back, "one"))
        engine = WorkflowEngine(there)
        in_sync(engine).signal("one", "more")
        assert engine.resume_sync(editions, workflow_id="one").output == 3
        assert published(there) == here
    assert published(back) == here
    for store in (source, back):
        written = asyncio.run(store.load_latest("one")).step_results[1]
        assert (written.path, written.argument_values) == ("write", {"text": "edition 3"})
