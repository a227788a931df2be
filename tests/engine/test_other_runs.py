"""A run starts other runs and sends them signals: each exactly once, wherever it dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from crashing import CrashingStore, SimulatedCrash

from flowckpt import (
    MemoryCheckpointStore,
    RunOptions,
    Secret,
    WorkflowEngine,
    in_sync,
    open_store,
    parallel,
    step,
    workflow,
)
from flowckpt.core.records import Status
from flowckpt.errors import InputError, NoReplyError, SignalRefusedError, StepDefinitionError
from flowckpt.maintenance.recovery import find_due_runs
from flowckpt.testing import FakeClock
from tests.forked import processes
from tests.reopening import reopened_files, reopened_memory, spec_of


async def noted(item: Any) -> Any:
    return item


@workflow
def child(item: Any) -> Generator[Any, Any, Any]:
    return (yield step("take").python(noted, item).checkpoint())


@workflow
def sink() -> Generator[Any, Any, Any]:
    first = yield step("first").wait("first")
    second = yield step("second").wait("second")
    return [first, second]


@workflow
def parent(sink: str = "sink") -> Generator[Any, Any, Any]:
    runs = []
    for item in range(2):
        runs.append((yield step("begin").start(child, item=item)))
    yield step("tell").signal(sink, "first", {"of": 1})
    yield step("middle").python(noted, 1).checkpoint()
    yield step("tell").signal(sink, "second", [2])
    yield step("last").python(noted, 2).checkpoint()
    return runs


def outputs(store: Any) -> dict[str, Any]:
    """Return the output of each run that was started, by the step that started it."""
    found: dict[str, Any] = {}
    for info in asyncio.run(store.list_runs()):
        if "started_by" in info.metadata:
            latest = asyncio.run(store.load_latest(info.workflow_id))
            assert latest.status is Status.COMPLETED
            assert info.metadata["started_by"]["path"] not in found
            found[info.metadata["started_by"]["path"]] = latest.output
    return found


@pytest.mark.parametrize(("kind", "is_after"), [("memory", False), ("memory", True), ("files", True)])
def test_whichever_save_it_dies_at_each_run_is_started_once_and_each_signal_arrives_once(
    kind: str, is_after: bool, tmp_path: Path
) -> None:
    reopened = reopened_memory() if kind == "memory" else reopened_files(tmp_path)
    for at in range(1, 30):
        store = reopened()
        for info in asyncio.run(store.list_runs()):
            asyncio.run(store.clear(info.workflow_id))
        assert WorkflowEngine(store).run_sync(sink, workflow_id="sink").status == "suspended"
        crashing = CrashingStore(store, at, is_after=is_after)
        has_died = False
        try:
            WorkflowEngine(crashing).run_sync(parent, workflow_id="run")
        except SimulatedCrash:
            has_died = True
        store = reopened()
        engine = WorkflowEngine(store)
        if asyncio.run(store.load_latest("run")) is None:
            engine.run_sync(parent, workflow_id="run")
        else:
            assert engine.resume_sync(parent, workflow_id="run").status == "completed"
        for due in asyncio.run(find_due_runs(engine.store, FakeClock())):
            if due.workflow_id != "sink":
                engine.resume_sync(child, workflow_id=due.workflow_id)
        assert outputs(store) == {"begin": 0, "begin[1]": 1}
        assert engine.resume_sync(sink, workflow_id="sink").output == [{"of": 1}, [2]]
        assert asyncio.run(store.signals("sink")) == []
        if not has_died:
            break
    else:
        raise AssertionError("it never came to the end")
    assert at > 6


def run_and_die(spec: str, environ: dict[str, str], number: int, at: int, is_after: bool) -> None:
    """Run the parent, and kill this process at one of its saves."""
    os.environ.update(environ)
    store = CrashingStore(open_store(spec), at, is_after=is_after)
    with contextlib.suppress(SimulatedCrash):
        WorkflowEngine(store).run_sync(parent, workflow_id=f"run{number}", sink=f"sink{number}")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(params=["sqlite", "postgresql", "objects", "s3"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return spec_of(request.param, request, tmp_path)


def test_on_databases_and_buckets_a_killed_run_starts_each_run_once_and_sends_each_signal_once(spec: str) -> None:
    engine = WorkflowEngine(open_store(spec))
    for number, (at, is_after) in enumerate([(3, True), (6, False)]):
        run, taker = f"run{number}", f"sink{number}"
        assert engine.run_sync(sink, workflow_id=taker).status == "suspended"
        process = processes.Process(target=run_and_die, args=(spec, dict(os.environ), number, at, is_after))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        result = engine.resume_sync(parent, workflow_id=run)
        assert result.status == "completed"
        for due in asyncio.run(find_due_runs(engine.store, FakeClock())):
            if due.workflow_id != taker:
                engine.resume_sync(child, workflow_id=due.workflow_id)
        started = [info for info in asyncio.run(engine.store.list_runs()) if info.metadata.get("started_by")]
        of_run = {each.workflow_id: each for each in started if each.metadata["started_by"]["workflow_id"] == run}
        assert sorted(of_run) == sorted(result.output) and len(of_run) == 2
        assert {each.status for each in of_run.values()} == {Status.COMPLETED}
        assert engine.resume_sync(sink, workflow_id=taker).output == [{"of": 1}, [2]]
        assert asyncio.run(engine.store.signals(taker)) == []


def test_a_signal_that_the_run_has_taken_is_not_sent_again() -> None:
    """It was sent, taken and removed, the run ended; then the sender, which had not recorded it, is resumed."""
    store = MemoryCheckpointStore()
    engine = WorkflowEngine(store)

    @workflow
    def taker() -> Generator[Any, Any, Any]:
        return (yield step("first").wait("first"))

    @workflow
    def sender() -> Generator[Any, Any, None]:
        yield step("tell").signal("taker", "first", 1).checkpoint()

    engine.run_sync(taker, workflow_id="taker")
    with pytest.raises(SimulatedCrash):
        WorkflowEngine(CrashingStore(store, 2, is_after=False)).run_sync(sender, workflow_id="sender")
    assert engine.resume_sync(taker, workflow_id="taker").output == 1
    store.runs.owned.clear()
    assert engine.resume_sync(sender, workflow_id="sender").status == "completed"
    assert asyncio.run(store.signals("taker")) == []


def test_a_signal_to_a_run_that_has_completed_or_is_missing_fails_the_step() -> None:
    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(child, workflow_id="done", item=1)

    @workflow
    def tells(run: str) -> Generator[Any, Any, None]:
        yield step("tell").signal(run, "go")

    failed = engine.run_sync(tells, run="done")
    assert "SignalRefusedError" in str(failed.error) and "the run is complete" in str(failed.error)
    failed = engine.run_sync(tells, run="missing")
    assert "CheckpointNotFoundError" in str(failed.error)


def test_a_run_stays_for_the_signals_of_those_that_it_started_and_they_for_its_own() -> None:
    @workflow
    def answers(me: str) -> Generator[Any, Any, None]:
        asked = yield step("asked").wait("question")
        yield step("answer").signal(me, "answer", asked * 2)

    @workflow
    def asks() -> Generator[Any, Any, Any]:
        run = yield step("begin").start(answers, me="asks")
        yield step("ask").signal(run, "question", 21)
        return (yield step("answer").wait("answer"))

    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(asks, workflow_id="asks")
    assert (result.status, result.output) == ("completed", 42)


def test_runs_of_which_each_waits_for_another_are_suspended() -> None:
    @workflow
    def waits() -> Generator[Any, Any, None]:
        yield step("wait").wait("never")

    @workflow
    def all_wait() -> Generator[Any, Any, None]:
        yield step("begin").start(waits)
        yield step("begin").start(waits)
        yield step("wait").wait("never")

    store = MemoryCheckpointStore()
    assert WorkflowEngine(store).run_sync(all_wait).status == "suspended"
    infos = asyncio.run(store.list_runs())
    assert [(info.status, len(info.waits), info.owner) for info in infos] == [("suspended", 1, None)] * 3


def test_from_async_code_the_run_ends_first_and_join_waits_for_the_others() -> None:
    free: list[asyncio.Event] = []

    async def held() -> int:
        await free[-1].wait()
        return 1

    @workflow
    def slow() -> Generator[Any, Any, Any]:
        return (yield step("held").python(held).checkpoint())

    @workflow
    def starts() -> Generator[Any, Any, str]:
        return (yield step("begin").start(slow))

    store = MemoryCheckpointStore()
    engine = WorkflowEngine(store)

    async def program() -> str:
        free.append(asyncio.Event())
        result = await engine.run(starts)
        assert result.status == "completed"
        free[-1].set()
        await engine.join()
        return result.output

    assert asyncio.run(store.load_latest(asyncio.run(program()))).output == 1

    async def ends_first() -> str:
        free.append(asyncio.Event())
        return (await engine.run(starts)).output

    run = asyncio.run(ends_first())
    assert asyncio.run(store.load_latest(run)).status is Status.SUSPENDED
    assert [due.workflow_id for due in asyncio.run(find_due_runs(engine.store, FakeClock()))] == [run]


def test_other_inputs_start_another_run_and_the_same_ones_the_same() -> None:
    store, item = MemoryCheckpointStore(), 1
    engine = WorkflowEngine(store)

    @workflow
    def starts() -> Generator[Any, Any, str]:
        return (yield step("begin").start(child, item=item).checkpoint())

    first = engine.run_sync(starts, workflow_id="run").output
    again = engine.resume_sync(starts, workflow_id="run", options=_from("begin")).output
    assert again == first
    item = 2
    other = engine.resume_sync(starts, workflow_id="run", options=_from("begin")).output
    assert other != first
    assert len(asyncio.run(store.list_runs())) == 3


def _from(name: str) -> Any:
    return RunOptions(from_step=name)


@workflow
def replies() -> Generator[Any, Any, Any]:
    while (item := (yield step("price").wait("price", timeout=3600, default="closed"))) != "closed":
        yield step("answer").reply("price", {"item": item, "price": len(item)})
    return (yield step("nothing").reply("price", "nobody asked"))


def test_a_signal_gets_its_reply_and_the_same_signal_the_same_one() -> None:
    engine = WorkflowEngine(MemoryCheckpointStore())

    async def program() -> list[Any]:
        running = asyncio.create_task(engine.run(replies, workflow_id="run", options=RunOptions(stay=600)))
        while await engine.store.load_latest("run") is None:
            await asyncio.sleep(0)
        tea = await engine.signal("run", "price", "tea", wait=600)
        first = await engine.signal("run", "price", "coffee", signal_id="X", wait=600)
        await engine.signal("run", "price", "milk")
        again = await engine.signal("run", "price", "ignored", signal_id="X", wait=600)
        await engine.signal("run", "price", "closed")
        result = await running
        late = await engine.signal("run", "price", signal_id="X", wait=0)
        assert (first.is_new, again.is_new) == (True, False)
        return [tea.reply, first.reply, again.reply, late.reply, result.output]

    coffee = {"item": "coffee", "price": 6}
    assert asyncio.run(program()) == [{"item": "tea", "price": 3}, coffee, coffee, coffee, "nobody asked"]


def test_a_signal_without_a_reply_says_so_and_can_be_sent_again_under_its_id() -> None:
    clock = FakeClock()
    engine = WorkflowEngine(MemoryCheckpointStore(), clock=clock)
    engine.run_sync(replies, workflow_id="run")
    with pytest.raises(NoReplyError, match="the run has not replied after 60 s") as raised:
        in_sync(engine).signal("run", "price", "tea", wait=60)
    assert engine.resume_sync(replies, workflow_id="run").status == "suspended"
    sent = in_sync(engine).signal("run", "price", signal_id=raised.value.signal_id, wait=0)
    assert (sent.reply, sent.is_new) == ({"item": "tea", "price": 3}, False)
    in_sync(engine).signal("run", "price", "closed")
    engine.resume_sync(replies, workflow_id="run")
    with pytest.raises(SignalRefusedError, match="the run is complete"):
        in_sync(engine).signal("run", "price", wait=60)


def test_a_reply_to_a_run_that_completed_without_one_is_not_waited_for() -> None:
    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(sink, workflow_id="run")
    in_sync(engine).signal("run", "first", 1, signal_id="X")
    in_sync(engine).signal("run", "second", 2)
    engine.resume_sync(sink, workflow_id="run")
    with pytest.raises(NoReplyError, match="the run has completed without a reply"):
        in_sync(engine).signal("run", "first", signal_id="X", wait=600)


def test_a_reply_names_a_wait_of_its_scope_or_a_path() -> None:
    @workflow
    def first_of_two() -> Generator[Any, Any, Any]:
        yield parallel(step("yes").wait("yes"), step("no").wait("no"), name="both")
        return (yield step("answer").reply("both/[no]", "sorry"))

    store = MemoryCheckpointStore()
    engine = WorkflowEngine(store)
    engine.run_sync(first_of_two, workflow_id="run")
    in_sync(engine).signal("run", "yes", signal_id="Y")
    in_sync(engine).signal("run", "no", signal_id="N")
    assert engine.resume_sync(first_of_two, workflow_id="run").output == "sorry"
    assert in_sync(engine).signal("run", "no", signal_id="N", wait=0).reply == "sorry"

    @workflow
    def unknown() -> Generator[Any, Any, Any]:
        yield step("answer").reply("yes", "sorry")

    assert "replies to 'yes', but no .wait() with this name or path has ended" in str(engine.run_sync(unknown).error)


def test_what_a_start_and_a_signal_do_not_take_is_refused_where_it_is_written() -> None:
    @workflow
    def secret(key: Secret[str]) -> Generator[Any, Any, None]:
        yield step("use").python(noted, 1)

    with pytest.raises(StepDefinitionError, match="the input 'key' of workflow 'secret' is secret"):
        step("begin").start(secret, key="s3cret")
    with pytest.raises(StepDefinitionError, match=r"\.start\(\) needs a workflow"):
        step("begin").start(noted, 1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="has no input 'many'"):
        step("begin").start(child, many=1)  # type: ignore[call-arg]
    with pytest.raises(StepDefinitionError, match=r"\.signal\(\) needs the id of a run, got 3"):
        step("tell").signal(3, "go")  # type: ignore[arg-type]
    with pytest.raises(StepDefinitionError, match="a signal's name must not be blank"):
        step("tell").signal("run", " ")

    @workflow
    def once() -> Generator[Any, Any, None]:
        yield step("begin").start(child, item=1).at_most_once()

    assert ".at_most_once()" in str(WorkflowEngine(MemoryCheckpointStore()).run_sync(once).error)


def test_a_secret_of_the_run_reaches_no_other_run() -> None:
    @workflow
    def leaks(key: Secret[str]) -> Generator[Any, Any, None]:
        yield step("begin").start(child, item=key.reveal())

    @workflow
    def tells(key: Secret[str]) -> Generator[Any, Any, None]:
        yield step("tell").signal("sink", "first", key.reveal())

    store = MemoryCheckpointStore()
    engine = WorkflowEngine(store)
    engine.run_sync(sink, workflow_id="sink")
    for each in (leaks, tells):
        assert engine.run_sync(each, key="s3cret-text").status == "failed"
    assert len(asyncio.run(store.list_runs())) == 3
    assert asyncio.run(store.signals("sink")) == []


def test_the_run_is_in_the_directory_of_the_one_that_started_it(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    store = MemoryCheckpointStore()
    result = WorkflowEngine(store).run_sync(parent_of_one)
    latest = asyncio.run(store.load_latest(result.output))
    assert latest.metadata["base_path"] == str(tmp_path)
    assert latest.metadata["target"]["name"] == "child"


@workflow
def parent_of_one() -> Generator[Any, Any, str]:
    return (yield step("begin").start(child, item=1))
