"""A run whose process dies at the same step again and again is resumed so often, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import attrs
import pytest
from crashing import SimulatedCrash, pass_on

from flowckpt import MemoryCheckpointStore, RunOptions, WorkflowEngine, current_step, in_sync, step, workflow
from flowckpt.engine.run.resumption import crash_loop
from flowckpt.errors import CrashLoopError
from flowckpt.stores.base import Ability

world: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    world.clear()


class Dying:
    """A store whose process dies: what its owner wrote stays, and nobody gives the run up."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        pass_on(self, inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def acquire(self, workflow_id: str, *, take_over: bool = False) -> Any:
        return await self.inner.acquire(workflow_id, take_over=take_over)

    async def owner(self, workflow_id: str) -> Any:
        return await self.inner.owner(workflow_id)

    async def attempts(self, workflow_id: str) -> Any:
        return await self.inner.attempts(workflow_id)

    async def claimed_by(self, workflow_id: str, attempt: int) -> Any:
        found = await self.inner.claimed_by(workflow_id, attempt)
        return found and attrs.evolve(found, pid=attempt)  # each attempt had a process of its own

    async def started_steps(self, workflow_id: str) -> Any:
        return await self.inner.started_steps(workflow_id)

    def note_started(self, workflow_id: str, path: str) -> None:
        self.inner.note_started(workflow_id, path)

    async def release(self, workflow_id: str, *, token: str = "") -> None:
        if not world.pop("dies", False):
            await self.inner.release(workflow_id, token=token)

    async def save(self, workflow_id: str, data: Any) -> None:
        if world.get("dies") or world.pop("dies at next save", False):
            world["dies"] = True
            raise SimulatedCrash
        await self.inner.save(workflow_id, data)


def poison() -> str:
    if (at := world.get("survives at")) is not None and current_step().attempt >= at:
        return "survived"
    if "saves" in world:
        current_step().save(world["saves"](current_step().attempt))
    world["dies"] = True
    raise SimulatedCrash


@workflow
def flow() -> Generator[Any, Any, str]:
    yield step("before").python(str, "fine").checkpoint()
    if world.get("dies in the generator"):
        world["dies"] = True
        raise SimulatedCrash
    return (yield step("poison").python(poison).checkpoint())


def die(reopen: Callable[[], Any], times: int, *, first: bool = True, **engine: Any) -> None:
    for number in range(times):
        used = WorkflowEngine(Dying(reopen()), **engine)
        with pytest.raises(SimulatedCrash):
            if first and not number:
                used.run_sync(flow, workflow_id="run")
            else:
                used.resume_sync(flow, workflow_id="run")


def info_of(store: Any) -> Any:
    return asyncio.run(store.describe_run("run"))


def test_it_is_refused_after_five_deaths_and_the_error_says_all(reopen: Callable[[], Any]) -> None:
    die(reopen, 5)
    store = reopen()
    before = asyncio.run(store.load_latest("run"))
    for _ in range(2):
        with pytest.raises(CrashLoopError) as refused:
            WorkflowEngine(store).resume_sync(flow, workflow_id="run")
        assert (refused.value.path, refused.value.count) == ("poison", 5)
        assert "died 5 times at step 'poison' since 2" in str(refused.value)
        assert "flowckpt resume run --force" in str(refused.value)
    assert asyncio.run(store.load_latest("run")) == before
    assert store.has(Ability.OWNERS)
    assert asyncio.run(store.owner("run")) is None
    plan = in_sync(WorkflowEngine(store)).plan(flow, workflow_id="run")
    assert (plan.is_crash_loop, "is in a crash loop" in plan.stops) == (True, True)


def test_force_goes_on_and_counts_anew(reopen: Callable[[], Any]) -> None:
    die(reopen, 5)
    with pytest.raises(SimulatedCrash):
        WorkflowEngine(Dying(reopen())).resume_sync(flow, workflow_id="run", options=RunOptions(force=True))
    die(reopen, 4, first=False)
    with pytest.raises(CrashLoopError) as refused:
        WorkflowEngine(reopen()).resume_sync(flow, workflow_id="run")
    assert refused.value.count == 5
    world["survives at"] = 0
    result = WorkflowEngine(reopen()).resume_sync(flow, workflow_id="run", options=RunOptions(force=True))
    assert (result.output, result.steps.restored) == ("survived", 1)


def test_a_run_that_survives_in_time_is_never_refused(reopen: Callable[[], Any]) -> None:
    world["survives at"] = 5
    die(reopen, 4)
    assert WorkflowEngine(reopen()).resume_sync(flow, workflow_id="run").output == "survived"


def test_a_step_that_comes_further_each_time_is_not_dying_at_the_same_place(reopen: Callable[[], Any]) -> None:
    world["saves"] = lambda attempt: attempt
    die(reopen, 9)
    world["saves"] = lambda attempt: "stuck"
    die(reopen, 5, first=False)
    with pytest.raises(CrashLoopError):
        WorkflowEngine(reopen()).resume_sync(flow, workflow_id="run")


def test_deaths_before_anything_is_saved_count_too(reopen: Callable[[], Any]) -> None:
    world["dies in the generator"] = True
    die(reopen, 5)
    with pytest.raises(CrashLoopError, match="before its next step") as refused:
        WorkflowEngine(Dying(reopen())).resume_sync(flow, workflow_id="run")
    assert refused.value.count == 5


@pytest.mark.parametrize("how", ["options", "recorded", "engine"])
def test_the_limit_can_be_another_one(reopen: Callable[[], Any], how: str) -> None:
    used: dict[str, Any] = {"max_crashes": 2} if how == "engine" else {}
    options = RunOptions(max_crashes=2)
    with pytest.raises(SimulatedCrash):
        WorkflowEngine(Dying(reopen()), **used).run_sync(
            flow, workflow_id="run", options=options if how == "recorded" else None
        )
    die(reopen, 1, first=False, **used)
    now = options if how == "options" else None
    with pytest.raises(CrashLoopError):
        WorkflowEngine(reopen(), **used).resume_sync(flow, workflow_id="run", options=now)
    if how == "recorded":
        with pytest.raises(SimulatedCrash):
            WorkflowEngine(Dying(reopen())).resume_sync(flow, workflow_id="run", options=RunOptions(max_crashes=0))
        die(reopen, 3, first=False)


def test_whoever_resumes_many_runs_can_ask_which_are_in_a_crash_loop(reopen: Callable[[], Any]) -> None:
    die(reopen, 4)
    store = reopen()
    assert asyncio.run(crash_loop(store, info_of(store))) is None
    assert asyncio.run(crash_loop(store, info_of(store), max_crashes=4)) is not None
    die(lambda: store, 1, first=False)
    for run in getattr(store, "_runs", {}).values():
        run.is_owned = False
    store = reopen()
    found = asyncio.run(crash_loop(store, info_of(store)))
    assert found is not None
    assert (found.count, found.path) == (5, "poison")


def test_a_failure_is_no_death() -> None:
    @workflow
    def fails() -> Generator[Any, Any, None]:
        yield step("fails").python(int, "x")

    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(fails, workflow_id="run")
    for _ in range(8):
        assert engine.resume_sync(fails, workflow_id="run").status == "failed"
