"""More runs in one process than its limit of open files allows at a time: they wait for each other, and none is lost."""

from __future__ import annotations

import subprocess
import sys

MANY = """
import asyncio, resource, sys
from flowckpt import FileCheckpointStore, WorkflowEngine, step, workflow

resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))

@workflow
def flow(n: int):
    text = yield step("large").python(str.__mul__, "x", 100_000).checkpoint()
    return (yield step("adds").python(int.__add__, n, len(text)).checkpoint())

async def main():
    engine = WorkflowEngine(FileCheckpointStore(sys.argv[1]))
    found = await asyncio.gather(*(engine.run(flow, workflow_id=f"run-{n}", n=n) for n in range(60)))
    assert [each.unwrap() for each in found] == [n + 100_000 for n in range(60)]

asyncio.run(main())
"""
NESTED = """
import asyncio, resource, sys
from flowckpt import FileCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.stores import leases

resource.setrlimit(resource.RLIMIT_NOFILE, (72, 72))
leases.PATIENCE_SECONDS = 1.0
engine = WorkflowEngine(FileCheckpointStore(sys.argv[1]))

@workflow
def inner():
    return (yield step("one").python(int, 1).checkpoint())

async def runs_another(n):
    await asyncio.sleep(0.1)  # until all the others own their run
    return (await engine.run(inner, workflow_id=f"inner-{n}")).unwrap()

@workflow
def outer(n: int):
    return (yield step("two").python(runs_another, n).checkpoint())

async def main():
    every = (engine.run(outer, workflow_id=f"outer-{n}", n=n) for n in range(11))
    found = await asyncio.gather(*every)
    assert {each.failure.type for each in found if each.failure} == {"flowckpt.errors.CheckpointStorageError"}, found
    assert "its limit of open files allows no more" in str(next(each.error for each in found if each.error))

asyncio.run(main())
"""

CANCELLED = """
import asyncio, resource, sys
from flowckpt import FileCheckpointStore, WorkflowEngine, step, workflow

resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
engine = WorkflowEngine(FileCheckpointStore(sys.argv[1]))

async def rests(seconds):
    await asyncio.sleep(seconds)

@workflow
def flow(seconds: float):
    yield step("rests").python(rests, seconds).checkpoint()
    return 1

async def main():
    resting = [asyncio.ensure_future(engine.run(flow, workflow_id=f"run-{n}", seconds=3600.0)) for n in range(7)]
    while len(engine.store.runs.owned) < 7:
        await asyncio.sleep(0.01)
    late = asyncio.ensure_future(engine.run(flow, workflow_id="late", seconds=0.0))
    try:
        async with asyncio.timeout(0.5):
            await engine.run(flow, workflow_id="later", seconds=0.0)
    except TimeoutError:
        print("timed out", flush=True)
    assert not late.done()
    for each in resting:
        each.cancel()
    await asyncio.gather(*resting, return_exceptions=True)
    assert (await late).unwrap() == 1
    found = await engine.store.load_latest("later")
    assert found is None, found
    while engine.store.runs.owned:
        await asyncio.sleep(0.01)

asyncio.run(main())
"""


def in_own_process(program, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "store"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_all_of_many_runs_at_once_complete(tmp_path):
    in_own_process(MANY, tmp_path)


def test_runs_that_wait_for_runs_for_which_there_is_no_room_are_told_so(tmp_path):
    in_own_process(NESTED, tmp_path)


def test_a_run_that_waits_for_room_ends_with_its_cancel_and_the_others_take_their_turn(tmp_path):
    in_own_process(CANCELLED, tmp_path)
