"""What a record says of steps that were running when a process died."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest
from crashing import CrashingStore, SimulatedCrash

from flowckpt import MemoryCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.errors import StepFailedError


async def work(item: str) -> str:
    if item == "bad":
        raise ValueError(item)
    if item == "slow":
        await asyncio.sleep(60)
    return item


@workflow
def one(item: str) -> Generator[Any, Any, str]:
    return (yield step("work").python(work, item).checkpoint())


@workflow
def of_workflows() -> Generator[Any, Any, str]:
    return (yield from handled(step("all").map(one, ["slow", "ok", "bad"], concurrency=2)))


@workflow
def of_functions() -> Generator[Any, Any, str]:
    return (yield from handled(step("all").map(work, ["slow", "ok", "bad"], concurrency=2).checkpoint()))


def handled(fan_out: Any) -> Generator[Any, Any, str]:
    try:
        yield fan_out
    except StepFailedError:
        return "handled"
    return "done"


@pytest.mark.parametrize(
    ("flow", "slow"), [(of_functions, "all/[0]"), (of_workflows, "all/[0]/work")], ids=["plain", "child"]
)
def test_a_completed_run_has_nothing_in_flight_although_a_process_had_died_in_a_fan_out_that_failed(
    flow: Any, slow: str
) -> None:
    store = MemoryCheckpointStore()
    with pytest.raises(SimulatedCrash):
        WorkflowEngine(CrashingStore(store, 2, is_after=True)).run_sync(flow, workflow_id="run")
    store.runs.owned.clear()
    before = asyncio.run(store.load_latest("run"))
    assert before is not None and slow in before.in_flight
    assert WorkflowEngine(store).resume_sync(flow, workflow_id="run").output == "handled"
    latest = asyncio.run(store.load_latest("run"))
    assert latest is not None and latest.in_flight == ()
