"""A system that allows no more threads: a run is refused or fails, no other waits for it, and each can be resumed afterwards."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from flowckpt import FlowckptError, MirroredStore, WorkflowEngine, step, workflow
from flowckpt.core.system import blocking
from flowckpt.errors import CheckpointStorageError
from flowckpt.execution.executors.processes import ProcessExecutor
from flowckpt.stores import open_store
from flowckpt.stores.sql import database
from flowckpt.stores.sql.database import GroupCommit, Separate, Work

RUNS = ("a", "b", "c")
calls: Counter[tuple[str, int]] = Counter()


def count(run: str, number: int) -> int:
    calls[run, number] += 1
    return number


@workflow("counted")
def counted(run: str):
    for number in range(2):
        yield step(f"step {number}").python(count, run, number).checkpoint()
    return run


class Limit:
    """From the start of a thread on that has this number, no thread can be started."""

    def __init__(self, monkeypatch):
        self.started, self.first_refused = 0, 1 << 30
        start = threading.Thread.start

        def refuse(thread):
            self.started += 1
            if self.started >= self.first_refused:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)

    def after(self, number):
        self.started, self.first_refused = 0, number + 1

    def lift(self):
        self.first_refused = 1 << 30


@pytest.fixture
def limit(monkeypatch):
    return Limit(monkeypatch)


@pytest.fixture(params=["memory", "file", "sqlite", "postgresql", "sqlite and a mirror", "file and a mirror"])
def made(request, tmp_path):
    """Return a function that makes a new store of a kind."""
    if request.param == "postgresql":
        name = request.getfixturevalue("postgres_database")
        url = request.getfixturevalue("postgres").url(name)
        return lambda number: open_store(f"{url}?allow_unsafe=true&schema=store_{number}")
    kind, _, mirror = request.param.partition(" and a ")

    def make(number):
        place = {"memory": "memory:", "file": f"file:{tmp_path / 'files'}{number}"}
        store = open_store(place.get(kind, f"sqlite:{tmp_path / 'store'}{number}.db"))
        return MirroredStore(store, open_store(f"file:{tmp_path / 'mirror'}{number}"), "continue") if mirror else store

    return make


@pytest.mark.parametrize("number", range(5))
async def test_runs_end_or_are_refused_and_can_be_resumed_once_threads_can_be_started_again(
    monkeypatch, limit, made, number
):
    for module in (blocking, database):
        monkeypatch.setattr(module, "_IDLE_SECONDS", 0.001)
    calls.clear()
    store = made(number)
    engine = WorkflowEngine(store)
    limit.after(number)
    outcomes = await asyncio.wait_for(
        asyncio.gather(*(engine.run(counted, run=run, workflow_id=run) for run in RUNS), return_exceptions=True), 120
    )
    limit.lift()
    assert not [each for each in outcomes if isinstance(each, BaseException) and not isinstance(each, FlowckptError)]
    for run in RUNS:
        resumed = await asyncio.wait_for(engine.run(counted, run=run, workflow_id=run, if_exists="resume"), 120)
        assert resumed.status == "completed"
    assert {calls[run, number] for run in RUNS for number in range(2)} <= {1, 2}  # 2 if the save after it was refused
    store.close()


def read(name):
    return Work(name, "read", lambda session: name, ())


async def test_a_group_is_written_by_its_thread_where_no_other_can_be_started(limit):
    def write(items):
        if len(items) == 1:
            return [items[0].workflow_id]
        return [Separate(each) for each in items]

    group = GroupCommit(write)
    with group._turn:
        answers = [group.write_later(read(name), database.unwrap_outcome) for name in RUNS]
        limit.after(0)
    assert await asyncio.wait_for(asyncio.gather(*answers), 60) == [*RUNS]


async def test_an_item_is_refused_where_no_thread_can_write_it_and_a_later_one_is_written(limit):
    group = GroupCommit(lambda items: [each.workflow_id for each in items])
    limit.after(0)
    with pytest.raises(CheckpointStorageError, match="new thread"):
        group.write_later(read("refused"), database.unwrap_outcome)
    limit.lift()
    assert await asyncio.wait_for(group.write_later(read("written"), database.unwrap_outcome), 60) == "written"


def test_processes_are_shut_down_after_a_thread_of_theirs_could_not_be_started(limit):
    executor = ProcessExecutor(2)
    limit.after(0)
    with pytest.raises(RuntimeError, match="new thread"):
        executor.submit(abs, -1)
    limit.lift()
    assert executor.submit(abs, -2).result(60) == 2
    executor.shutdown()
