"""Steps beside each other: that they are, in which order results come, what a failure does, and who shares a save."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import tracemalloc
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from crashing import CrashingStore, SimulatedCrash

from flowckpt import (
    FileCheckpointStore,
    MemoryCheckpointStore,
    RunOptions,
    WorkflowEngine,
    current_step,
    parallel,
    step,
)
from flowckpt import workflow as as_workflow
from flowckpt.core.dsl import Workflow
from flowckpt.core.records import CheckpointData
from flowckpt.engine.run.recorder import GroupCommit
from flowckpt.errors import CheckpointStorageError, FanOutFailedError, FencedError, StepDefinitionError, StepFailedError
from flowckpt.evidence import file_sha256

world: dict[str, bool] = {}
seen: list[Any] = []
barrier = threading.Barrier(1)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    seen.clear()
    before = set(threading.enumerate())
    yield
    until = time.monotonic() + 120
    while left := [each for each in set(threading.enumerate()) - before if each.name == "flowckpt-step"]:
        assert time.monotonic() < until, left
        time.sleep(0.01)


def flow_of(*steps: Any) -> Workflow[Any, Any]:
    """Make a workflow of some steps, which returns their outputs."""

    @as_workflow("flow")
    def flow() -> Generator[Any, Any, list[Any]]:
        outputs = []
        for each in steps:
            outputs.append((yield each))
        return outputs

    return flow


def run(*steps: Any, store: Any = None, **options: Any) -> Any:
    engine = WorkflowEngine(store or MemoryCheckpointStore())
    return engine.run_sync(flow_of(*steps), workflow_id="run", options=RunOptions(**options))


def plain(item: Any) -> Any:
    seen.append(item)
    return item


def together(item: Any) -> Any:
    barrier.wait(120)
    return item


async def slow_first(item: int) -> int:
    await asyncio.sleep(0.02 if item == 0 else 0)
    seen.append(item)
    return item


async def together_async(item: int) -> int:
    seen.append(item)
    while len(seen) < 5:
        await asyncio.sleep(0)
    return item


def odd_fails(item: int) -> int:
    seen.append(item)
    if item % 2:
        raise ValueError(item)
    return item


async def first_fails(item: int) -> int:
    if item == 0:
        raise ValueError("first")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        seen.append(f"{item} cancelled")
        raise
    return item


# --- beside each other -------------------------------------------------------------------------------------------------


def test_sync_members_really_run_at_the_same_time() -> None:
    global barrier
    barrier = threading.Barrier(4)  # nobody passes it alone
    assert run(step("m").map(together, range(4), concurrency=4)).output == [[0, 1, 2, 3]]


def test_the_steps_of_a_group_run_at_the_same_time_without_being_told_how_many() -> None:
    global barrier
    barrier = threading.Barrier(3)
    assert run(parallel(*[step(name).python(together, name) for name in "abc"])).output == [("a", "b", "c")]


def test_async_members_really_run_at_the_same_time() -> None:
    assert run(step("m").map(together_async, range(5), concurrency=5)).output == [[0, 1, 2, 3, 4]]


def test_no_more_run_beside_each_other_than_was_said() -> None:
    running, most = 0, 0

    async def counted(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return item

    run(step("m").map(counted, range(20), concurrency=3))
    assert most == 3


def test_results_come_in_the_order_of_the_items_whatever_order_they_end_in() -> None:
    assert run(step("m").map(slow_first, range(3))).output == [[0, 1, 2]]
    assert seen == [1, 2, 0]


def test_one_at_a_time_runs_in_place_and_in_order() -> None:
    threads: set[int] = set()

    def where(item: int) -> int:
        threads.add(threading.get_ident())
        return plain(item)

    assert run(step("m").map(where, range(4), concurrency=1)).output == [[0, 1, 2, 3]]
    assert seen == [0, 1, 2, 3]
    assert threads == {threading.get_ident()}


def test_a_group_of_nothing_and_a_map_of_nothing_return_nothing() -> None:
    assert run(parallel(), step("m").map(plain, []), step("g").map(plain, iter(()))).unwrap() == [(), [], []]


def test_fan_outs_nest() -> None:
    @as_workflow("inner")
    def inner(n: int) -> Generator[Any, Any, Any]:
        return (yield parallel(step("x").map(plain, range(n)), step("y").map(plain, [n]), name="both"))

    result = run(parallel(step("w").map(inner, [1, 2]), parallel(step("z").python(plain, 9), name="in")))
    assert result.unwrap() == [([([0], [1]), ([0, 1], [2])], (9,))]


def test_items_are_asked_for_as_there_is_room_for_them() -> None:
    made = 0

    def items() -> Iterator[int]:
        nonlocal made
        for number in range(1, 51):
            made = number
            yield number

    async def ahead(item: int) -> int:
        await asyncio.sleep(0)
        return made - item

    [early] = run(step("m").map(ahead, items(), concurrency=4)).output
    assert max(early) <= 8


def test_each_member_has_its_own_path_tries_and_evidence(tmp_path: Path) -> None:
    tries: dict[str, int] = {}

    def flaky(item: str) -> str:
        path = current_step().path
        tries[path] = tries.get(path, 0) + 1
        if item == "b" and tries[path] == 1:
            raise OSError("once")
        (tmp_path / item).write_text(path)
        return item

    def claim(item: str) -> Any:
        return file_sha256(tmp_path / item)

    store = MemoryCheckpointStore()
    made = step("m").map(flaky, ["a", "b"], key=str).retry(2).timeout(20).evidence(claim).checkpoint()
    assert run(made, store=store).status == "completed"
    results = {each.path: each for each in latest(store).step_results}
    assert tries == {"m/[a]": 1, "m/[b]": 2}
    assert (results["m/[b]"].tries, results["m/[a]"].evidence["outcome"]) == (2, "verified")
    assert results["m"].output == {"members": 2, "failed": 0}


# --- failures ----------------------------------------------------------------------------------------------------------


def test_the_first_failure_cancels_the_async_members_and_is_one_error_with_its_causes() -> None:
    result = run(step("m").map(first_fails, range(4)))
    assert isinstance(result.error, FanOutFailedError)
    assert [(each.path, each.error_type) for each in result.error.causes] == [("m/[0]", "ValueError")]
    assert result.error.failed_with(ValueError)
    assert sorted(seen) == ["1 cancelled", "2 cancelled", "3 cancelled"]


def test_the_first_failure_leaves_sync_members_behind() -> None:
    left = threading.Event()

    def stuck(item: int) -> int:
        if item == 0:
            raise ValueError("first")
        with contextlib.suppress(ZeroDivisionError):
            while not left.wait(0.01):
                pass
        return item

    began = time.monotonic()
    result = run(step("m").map(stuck, range(3), concurrency=3))
    assert isinstance(result.error, FanOutFailedError)
    assert time.monotonic() - began < 20
    left.set()


def test_what_was_stopped_is_not_in_doubt_and_runs_again() -> None:
    store = MemoryCheckpointStore()
    assert run(step("m").map(first_fails, range(3)), store=store).status == "failed"
    assert latest(store).in_flight == ()
    resumed = WorkflowEngine(store).resume_sync(flow_of(step("m").map(first_fails, range(3))), workflow_id="run")
    assert resumed.status == "failed"  # the same again, and no doubt


@pytest.mark.parametrize("concurrency", [1, 4])
def test_failures_that_are_tolerated_stand_among_the_results(concurrency: int) -> None:
    store = MemoryCheckpointStore()

    @as_workflow("flow")
    def flow() -> Generator[Any, Any, list[Any]]:
        found = yield step("m").map(odd_fails, range(4), tolerate=2, concurrency=concurrency).checkpoint()
        return [each.path if isinstance(each, StepFailedError) else each for each in found]

    engine = WorkflowEngine(store)
    assert engine.run_sync(flow, workflow_id="run").output == [0, "m/[1]", 2, "m/[3]"]
    seen.clear()
    assert engine.resume_sync(flow, workflow_id="run").output == [0, "m/[1]", 2, "m/[3]"]
    assert seen == []


def test_one_failure_too_many_stops_the_rest() -> None:
    result = run(step("m").map(odd_fails, range(10), tolerate=1, concurrency=1))
    assert isinstance(result.error, FanOutFailedError)
    assert [each.path for each in result.error.causes] == ["m/[1]", "m/[3]"]
    assert seen == [0, 1, 2, 3]


def test_a_generator_of_items_that_fails_fails_the_map_with_its_own_error() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise LookupError("no more pages")

    result = run(step("m").map(plain, items()))
    assert isinstance(result.error, StepFailedError)
    assert (result.error.path, result.error.error_type) == ("m", "LookupError")


def test_two_items_of_one_key_end_the_run_with_a_definition_error() -> None:
    result = run(step("m").map(plain, [1, 1], key=str))
    assert isinstance(result.error, StepDefinitionError)
    assert "two items have the key '1'" in str(result.error)


def test_a_member_that_must_not_be_done_twice_is_marked_by_itself() -> None:
    store = MemoryCheckpointStore()
    made = step("pay").map(plain, range(3)).at_most_once()
    crashing = CrashingStore(store, 4, is_after=True)
    with contextlib.suppress(SimulatedCrash):
        WorkflowEngine(crashing).run_sync(flow_of(made), workflow_id="run")
    reasons = [str(each.reason) for each in asyncio.run(store.list_checkpoints("run"))]
    assert "in_doubt" in reasons
    assert len(seen) == len(set(seen))


# --- saves -------------------------------------------------------------------------------------------------------------


class SlowStore(MemoryCheckpointStore):
    """Takes a moment for each save, as a disk does."""

    saves = 0
    error: BaseException | None = None
    at = 0

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        self.saves += 1
        await asyncio.sleep(0.001)
        if self.error is not None and self.saves == self.at:
            raise self.error
        await super().save(workflow_id, data)


@pytest.mark.parametrize("function", [plain, slow_first], ids=["sync", "async"])
def test_members_that_end_while_a_save_goes_on_share_the_next_one(function: Any) -> None:
    store = SlowStore()
    assert run(step("m").map(function, range(200)).checkpoint(), store=store).status == "completed"
    assert store.saves < 60
    assert len(latest(store).step_results) == 201


@pytest.mark.parametrize("at", [3, 4, 5])
def test_a_save_that_fails_in_a_member_fails_the_run(at: int) -> None:
    store = SlowStore()
    store.error, store.at = CheckpointStorageError("the disk is full", remedy=""), at
    result = run(step("m").map(slow_first, range(50)).checkpoint(), store=store)
    assert isinstance(result.error, CheckpointStorageError)


def test_a_run_that_was_taken_over_stops_at_once_in_all_members() -> None:
    store = SlowStore()
    store.error, store.at = FencedError("run", attempt=1, newest_attempt=2), 4
    with pytest.raises(FencedError):
        run(step("m").map(slow_first, range(50)).checkpoint(), store=store)


def test_a_trigger_counts_the_members() -> None:
    store = MemoryCheckpointStore()
    assert run(step("m").map(plain, range(20), concurrency=1), store=store, every=5).status == "completed"
    triggered = [each for each in asyncio.run(store.list_checkpoints("run")) if each.reason == "trigger"]
    assert sorted(each.steps for each in triggered) == [5, 10, 15, 20]


async def test_a_leader_that_is_cancelled_leaves_its_group_to_another() -> None:
    group, gate, saves = GroupCommit(), asyncio.Event(), []

    async def save(who: str) -> str:
        saves.append(who)
        await gate.wait()
        return who

    first = asyncio.ensure_future(group.save_once(lambda: save("first")))
    await asyncio.sleep(0)
    leader = asyncio.ensure_future(group.save_once(lambda: save("leader")))
    await asyncio.sleep(0)
    joined = [asyncio.ensure_future(group.save_once(lambda: save("joined"))) for _ in range(3)]
    await asyncio.sleep(0)
    leader.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    gate.set()
    assert await first == "first"
    assert [await each for each in joined] == ["joined", None, None]
    assert saves == ["first", "joined"]
    assert leader.cancelled()
    assert await group.save_once(lambda: save("later")) == "later"


async def test_a_leader_that_is_cancelled_at_its_very_turn_passes_it_on() -> None:
    group, gate = GroupCommit(), asyncio.Event()

    async def save() -> str:
        await gate.wait()
        return "saved"

    first = asyncio.ensure_future(group.save_once(save))
    await asyncio.sleep(0)
    leader = asyncio.ensure_future(group.save_once(save))
    await asyncio.sleep(0)
    gate.set()
    first.add_done_callback(lambda _: leader.cancel())
    await first
    with contextlib.suppress(asyncio.CancelledError):
        await leader
    assert await asyncio.wait_for(group.save_once(save), 120) == "saved"


async def test_who_has_just_saved_does_not_come_before_those_who_wait() -> None:
    group, saves = GroupCommit(), 0

    async def save() -> None:
        nonlocal saves
        saves += 1
        await asyncio.sleep(0)

    async def worker() -> None:
        for _ in range(50):
            await group.save_once(save)

    await asyncio.gather(*(worker() for _ in range(20)))
    assert saves < 200


# --- stops and listeners -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_cancel_stops_all_members_saves_what_ended_and_a_resume_runs_the_rest(kind: str) -> None:
    store, go_on = MemoryCheckpointStore(), threading.Event()
    world["is_stuck"] = True

    async def awaited(item: int) -> int:
        if item >= 5 and world["is_stuck"]:
            await asyncio.sleep(60)
        seen.append(item)
        return item

    def threaded(item: int) -> int:
        while item >= 5 and world["is_stuck"] and not go_on.wait(0.005):
            pass
        seen.append(item)
        return item

    made = step("m").map(awaited if kind == "async" else threaded, range(10), concurrency=4).checkpoint()

    async def cancelled() -> None:
        task = asyncio.ensure_future(WorkflowEngine(store).run(flow_of(made), workflow_id="run"))
        while len(seen) < 5 or len(latest_in(await store.load_latest("run")).step_results) < 5:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert latest(store).status == "suspended"
    assert {each.path for each in latest(store).step_results} == {f"m/[{n}]" for n in range(5)}
    world["is_stuck"] = False
    go_on.set()
    before = [each for each in seen if each < 5]
    result = WorkflowEngine(store).resume_sync(flow_of(made), workflow_id="run")
    assert (result.output, result.steps.restored) == ([list(range(10))], 5)
    assert [each for each in seen if each < 5] == before


async def test_a_slow_listener_holds_the_run_up_and_hears_each_member_in_order() -> None:
    told: dict[str, list[str]] = {}
    events = WorkflowEngine(MemoryCheckpointStore()).execute(flow_of(step("m").map(slow_first, range(6)).checkpoint()))
    async for event in events:
        await asyncio.sleep(0.002)
        if path := getattr(event, "path", ""):
            told.setdefault(path, []).append(event.kind)
    assert told == {path: ["StepStarted", "StepCompleted"] for path in ["m", *(f"m/[{n}]" for n in range(6))]}


async def test_a_listener_that_goes_away_stops_all_members() -> None:
    store = MemoryCheckpointStore()
    events = WorkflowEngine(store).execute(
        flow_of(step("m").map(slow_first, range(50)).checkpoint()), workflow_id="run"
    )
    async for event in events:
        if event.kind == "StepCompleted":
            break
    await events.aclose()
    assert latest_in(await store.load_latest("run")).status == "suspended"


# --- size --------------------------------------------------------------------------------------------------------------


def test_a_file_store_holds_a_fan_out_that_a_new_process_restores_whole(tmp_path: Path) -> None:
    made = step("m").map(plain, range(300)).checkpoint()
    assert run(made, store=FileCheckpointStore(tmp_path)).status == "completed"
    seen.clear()
    engine = WorkflowEngine(FileCheckpointStore(tmp_path))
    assert engine.resume_sync(flow_of(made), workflow_id="run").output == [list(range(300))]
    assert seen == []


@pytest.mark.soak
def test_a_hundred_thousand_members_take_memory_for_their_results_alone() -> None:
    async def number(item: int) -> int:
        return item

    def peak(count: int) -> float:
        tracemalloc.start()
        result = run(step("m").map(number, range(count)))
        assert len(result.output[0]) == count
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most / count

    small, large = peak(5_000), peak(100_000)
    assert large < small * 1.2
    assert large < 4_000


def latest(store: Any) -> CheckpointData:
    return latest_in(asyncio.run(store.load_latest("run")))


def latest_in(data: CheckpointData | None) -> CheckpointData:
    assert data is not None
    return data


# --- what each call of a map gets besides its item ---------------------------------------------------------------------


def put(name: str, folder: str, suffix: str = ".txt") -> str:
    seen.append(name)
    return f"{folder}/{name}{suffix}"


async def put_async(name: str, *, folder: str) -> str:
    return put(name, folder)


@as_workflow("putting")
def putting(name: str, folder: str) -> Generator[Any, Any, str]:
    return (yield step("put").python(put, name, folder))


@pytest.mark.parametrize("function", [put, put_async, putting])
def test_a_map_passes_constants_to_each_call(function):
    assert run(step("put").map(function, ["a", "b"], folder="x")).output == [["x/a.txt", "x/b.txt"]]


def test_a_constant_that_moved_is_an_argument_that_moved():
    store = MemoryCheckpointStore()
    folder = ["x"]

    @as_workflow("flow")
    def flow() -> Generator[Any, Any, Any]:
        made = yield step("put").map(put, ["a", "b"], folder=folder[0], concurrency=1).checkpoint()
        yield step("fails").python(odd_fails, 1)
        return made

    engine = WorkflowEngine(store)
    assert engine.run_sync(flow, workflow_id="run").status == "failed"
    folder[0] = "y"
    plan = asyncio.run(engine.plan(flow, workflow_id="run"))
    reasons = [reason for each in plan.steps for reason in each.reasons if "folder" in reason.detail]
    assert reasons, plan
