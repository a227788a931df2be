"""An engine that is told which checkpoints stay, and what becomes of a run that has completed."""

from __future__ import annotations

import asyncio
import errno
from datetime import timedelta

import pytest

from flowckpt import (
    FileCheckpointStore,
    MemoryCheckpointStore,
    Retention,
    RunOptions,
    WorkflowEngine,
    in_sync,
    step,
    workflow,
)
from flowckpt.core.system.filesystem import PosixFileSystem
from flowckpt.errors import SettingError
from flowckpt.testing import FakeClock

world = {"fails": False}


def square(number):
    return number * number


def fail_or(total):
    if world["fails"]:
        raise ValueError("no paper")
    return total


@workflow
def squares(count: int = 30):
    total = 0
    for number in range(count):
        total += yield step("square").python(square, number).checkpoint()
    return (yield step("report").python(fail_or, total))


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    world["fails"] = False
    monkeypatch.chdir(tmp_path)


def listed(store, run="run"):
    return [each.sequence for each in asyncio.run(store.list_checkpoints(run))]


def run(store, retention, **options):
    return WorkflowEngine(store, retention=retention, **options).run_sync(squares, workflow_id="run")


def test_at_the_end_of_a_run_as_many_are_there_as_were_asked_for(reopen):
    assert run(reopen(), Retention(keep_last=3)).output == sum(n * n for n in range(30))
    assert listed(reopen()) == [32, 31, 30]
    latest = asyncio.run(reopen().load_latest("run"))
    assert len(latest.step_results) == 31


def test_while_it_goes_on_there_are_never_many_more(reopen):
    store, most = reopen(), 0
    plain = store.save

    async def save(workflow_id, data):
        nonlocal most
        await plain(workflow_id, data)
        most = max(most, len(await store.list_checkpoints(workflow_id)))

    store.save = save
    run(store, Retention(keep_last=3))
    del store.save
    assert 3 < most <= 3 + 1 + 8


def test_a_failed_run_is_resumed_as_if_nothing_had_been_removed(reopen):
    world["fails"] = True
    failed = run(reopen(), Retention(keep_last=1))
    assert failed.error is not None
    assert len(listed(reopen())) == 1
    world["fails"] = False
    engine = WorkflowEngine(reopen(), retention=Retention(keep_last=2))
    result = engine.resume_sync(squares, workflow_id="run")
    assert (result.output, result.steps.restored) == (sum(n * n for n in range(30)), 30)
    assert len(listed(reopen())) == 2


def test_a_resumed_attempt_removes_what_earlier_ones_left(reopen):
    world["fails"] = True
    run(reopen(), None)
    assert len(listed(reopen())) == 32
    world["fails"] = False
    WorkflowEngine(reopen(), retention=Retention(keep_last=4)).resume_sync(squares, workflow_id="run")
    assert len(listed(reopen())) == 4


def test_what_is_too_old_goes(reopen):
    clock = FakeClock()

    @workflow
    def slow():
        for number in range(20):
            yield step("square").python(square, number).checkpoint()
            clock.advance(3600)

    store = reopen()
    WorkflowEngine(store, clock=clock, retention=Retention(max_age=timedelta(hours=5.5))).run_sync(
        slow, workflow_id="run"
    )
    assert len(listed(reopen())) == 6


def test_pinned_checkpoints_stay_by_id_and_by_pin(reopen):
    store = reopen()
    plain = store.save

    async def save(workflow_id, data):
        await plain(workflow_id, data)
        if data.sequence == 5:
            await store.pin(workflow_id, 4)

    store.save = save
    run(store, Retention(keep_last=2, pinned=["square[9]"]))
    del store.save
    assert listed(reopen()) == [32, 31, 11, 4]


def test_of_a_completed_run_the_last_checkpoint_stays(reopen):
    run(reopen(), Retention(on_success="keep_last"))
    assert listed(reopen()) == [32]
    assert WorkflowEngine(reopen()).resume_sync(squares, workflow_id="run").output == sum(n * n for n in range(30))


def test_on_success_says_nothing_about_a_run_that_failed(reopen):
    world["fails"] = True
    run(reopen(), Retention(on_success="clear"))
    assert len(listed(reopen())) == 32
    world["fails"] = False
    WorkflowEngine(reopen(), retention=Retention(on_success="clear")).resume_sync(squares, workflow_id="run")
    assert listed(reopen()) == []
    assert asyncio.run(reopen().list_runs()) == []


def test_a_completed_run_is_cleared_after_it_was_told(reopen):
    async def kinds():
        store = reopen()
        engine = WorkflowEngine(store, retention=Retention(on_success="clear"))
        told = []
        async for event in engine.execute(squares, workflow_id="run", count=2):
            told.append((event.kind, bool(await store.list_checkpoints("run"))))
        return told

    told = asyncio.run(kinds())
    assert told[-1] == ("WorkflowCompleted", True)
    assert listed(reopen()) == []


def test_a_crash_between_the_end_and_the_clear_leaves_a_completed_run_that_a_resume_clears(reopen):
    run(reopen(), None)  # as if the process had died there
    engine = WorkflowEngine(reopen(), retention=Retention(on_success="clear"))
    assert engine.resume_sync(squares, workflow_id="run").steps.executed == 0
    assert listed(reopen()) == []


def test_a_run_with_a_pin_is_not_cleared(reopen):
    run(reopen(), Retention(on_success="clear", pinned=["square[3]"]))
    assert len(listed(reopen())) == 32
    asyncio.run(reopen().pin("run", 5))
    WorkflowEngine(reopen(), retention=Retention(on_success="clear")).resume_sync(squares, workflow_id="run")
    assert len(listed(reopen())) == 32


class FailingAtClear(PosixFileSystem):
    def unlink(self, parent, name):
        if name.endswith(".jsonl"):
            raise OSError(errno.EIO, "input/output error")
        super().unlink(parent, name)


@pytest.mark.parametrize("what", ["clear", "keep_last"])
def test_a_retention_that_fails_does_not_fail_the_run(tmp_path, what, caplog):
    store = FileCheckpointStore(tmp_path / "store", filesystem=FailingAtClear())
    result = run(store, Retention(on_success=what))
    assert (result.output, result.is_saved) == (sum(n * n for n in range(30)), True)
    assert what == "keep_last" or "its retention could not be applied" in caplog.text


def test_a_store_that_cannot_say_what_it_holds_keeps_it_and_the_run_goes_on(reopen, caplog):
    world["fails"] = True
    run(reopen(), None)
    world["fails"] = False
    store = reopen()

    async def broken(workflow_id):
        raise RuntimeError("no list today")

    store.list_checkpoints = broken
    result = WorkflowEngine(store, retention=Retention(keep_last=1)).resume_sync(squares, workflow_id="run")
    del store.list_checkpoints
    assert result.error is None
    assert "keeps its old checkpoints: no list today" in caplog.text
    assert len(listed(reopen())) == 32 + 1


class OnlyFive:
    """A third party's store with the five methods alone."""

    def __init__(self):
        inner = MemoryCheckpointStore()
        for name in ("save", "load", "load_latest", "clear", "list_checkpoints"):
            setattr(self, name, getattr(inner, name))


def test_what_a_store_cannot_do_is_refused_at_once():
    for retention in (Retention(keep_last=1), Retention(on_success="keep_last")):
        with pytest.raises(SettingError, match="cannot remove the checkpoints"):
            WorkflowEngine(OnlyFive(), retention=retention)
    store = OnlyFive()
    assert WorkflowEngine(store, retention=Retention(on_success="clear")).run_sync(squares, workflow_id="run").output
    assert listed(store) == []


@pytest.mark.parametrize("value", [5, "keep", {"keep_last": 3}])
def test_what_is_no_retention_is_refused(value):
    with pytest.raises(SettingError, match="is not a Retention"):
        WorkflowEngine(MemoryCheckpointStore(), retention=value)


def test_a_run_with_a_retention_can_be_gone_back_in_and_rerun(reopen):
    run(reopen(), Retention(keep_last=2, pinned=["square[9]"]))
    engine = WorkflowEngine(reopen(), retention=Retention(keep_last=2))
    assert in_sync(engine).rollback("run", "square[9]").steps == 10
    result = engine.resume_sync(squares, workflow_id="run", options=RunOptions(from_step="square[5]"))
    assert (result.output, result.steps.restored) == (sum(n * n for n in range(30)), 5)


class Counting(PosixFileSystem):
    def __init__(self):
        self.read_bytes = self.calls = 0

    def read(self, file, size, offset):
        found = super().read(file, size, offset)
        self.read_bytes += len(found)
        return found

    def sync_data(self, file):
        self.calls += 1
        super().sync_data(file)


def test_evictions_add_no_sync_and_read_nothing(tmp_path):
    """An eviction costs nothing that grows with the run: it is part of the line of a save."""
    figures = []
    for name, retention in (("without", None), ("with", Retention(keep_last=2))):
        calls = Counting()
        store = FileCheckpointStore(tmp_path / name, filesystem=calls)
        WorkflowEngine(store, retention=retention).run_sync(squares, workflow_id="run", count=200)
        figures.append((calls.calls, calls.read_bytes))
    assert figures[0] == figures[1]
