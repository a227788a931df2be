"""Runs that are claimed and saved at the same time in files: written one after another, synced together, each for itself."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
from collections import Counter
from random import Random

import pytest

from flowckpt import WorkflowEngine
from flowckpt.core.system import blocking
from flowckpt.core.system.filesystem import PosixFileSystem
from flowckpt.errors import CheckpointCorruptedError, CheckpointNotFoundError, CheckpointStorageError, FencedError
from flowckpt.stores import FileCheckpointStore
from flowckpt.stores.file.run_writer import SegmentWriter
from flowckpt.stores.file.runs import FileRuns
from flowckpt.testing.contract import checkpoint, results
from tests.crash.simulation import CHANGES, Disk, SimulatedFileSystem
from tests.crash.workload import done, patched
from tests.open_files import open_below
from tests.stores.peers import RUNS, durable, error_of, in_fork

STEPS = results(*range(100))


class Watched(PosixFileSystem):
    """Counts the syncs by the kind of their file, and holds the first call until the others wait."""

    def __init__(self):
        self.syncs = Counter()
        self.may_begin = threading.Event()
        self.may_begin.set()
        self.failing = ""

    def make_root(self, path):
        assert self.may_begin.wait(120)
        super().make_root(path)

    def synced(self, file):
        name = os.path.basename(os.readlink(f"/proc/self/fd/{file}"))
        kind = "runs" if name == "runs" else "run" if name in RUNS else "file" if "." in name else "root"
        self.syncs[kind] += 1
        if self.failing and self.failing in os.readlink(f"/proc/self/fd/{file}"):
            raise OSError(errno.EIO, "Input/output error")

    def sync(self, file):
        self.synced(file)
        super().sync(file)

    def sync_data(self, file):
        self.synced(file)
        super().sync_data(file)


@pytest.fixture
def files():
    return Watched()


@pytest.fixture
def store(tmp_path, files):
    made = FileCheckpointStore(tmp_path / "store", filesystem=files)
    yield made
    made.close()


async def together(store, files, runs=RUNS):
    """Claim runs, all but the first in one group."""
    files.may_begin.clear()
    claims = [asyncio.ensure_future(store.acquire(run)) for run in runs]
    await asyncio.sleep(0)
    files.may_begin.set()
    return await asyncio.gather(*claims, return_exceptions=True)


def latest(path, run):
    return done(FileCheckpointStore(path).load_latest(run))


async def test_forty_runs_at_once_end_and_are_whole(tmp_path):
    store = FileCheckpointStore(tmp_path / "store")
    engine = WorkflowEngine(store)
    found = await asyncio.gather(*(engine.run(durable, workflow_id=f"r{n}", count=3) for n in range(40)))
    assert [each.output for each in found] == [3] * 40
    store.close()
    other = FileCheckpointStore(tmp_path / "store")
    assert {finding.severity for finding in await other.check()} == {"ok"}
    assert {len(await other.list_checkpoints(f"r{n}")) for n in range(40)} == {5}
    assert open_below(tmp_path) == []


async def test_claims_at_the_same_time_sync_the_directories_above_them_once(store, files):
    leases = await together(store, files)
    assert [lease.attempt for lease in leases] == [1] * len(RUNS)
    assert files.syncs["runs"] <= 2  # that of the first, and that of all others
    assert files.syncs["root"] <= 4
    assert files.syncs["run"] == files.syncs["file"] == len(RUNS)


async def test_a_sync_that_fails_fails_its_own_run_only(tmp_path, store, files):
    await together(store, files)
    files.failing = "run-3/"
    outcomes = await asyncio.gather(
        *(store.save(run, checkpoint(1, STEPS[:1])) for run in RUNS), return_exceptions=True
    )
    failed = {run: outcome for run, outcome in zip(RUNS, outcomes, strict=True) if outcome is not None}
    assert [*failed] == ["run-3"]
    assert isinstance(failed["run-3"], CheckpointStorageError)
    assert failed["run-3"].is_outcome_unknown
    files.failing = ""
    with pytest.raises(CheckpointStorageError, match="an earlier save"):
        await store.save("run-3", checkpoint(2, STEPS[:2]))
    for run in set(RUNS) - {"run-3"}:
        assert latest(tmp_path / "store", run).sequence == 1


async def test_a_sync_for_all_that_fails_fails_all_who_wait_for_it_and_leaves_nothing_open(tmp_path, store, files):
    files.failing = "/runs"
    outcomes = await together(store, files)
    assert {type(outcome) for outcome in outcomes} == {CheckpointStorageError}
    assert store.runs.owned == {}
    assert open_below(tmp_path) == []
    files.failing = ""
    assert [lease.attempt for lease in await together(store, files)] == [1] * len(RUNS)


async def test_saves_of_one_run_are_made_in_their_order(tmp_path, store):
    await store.acquire("run-1")
    await asyncio.gather(*(store.save("run-1", checkpoint(n, STEPS[:n])) for n in range(1, 21)))
    found = latest(tmp_path / "store", "run-1")
    assert (found.sequence, len(found.step_results)) == (20, 20)


async def test_a_save_is_made_to_its_end_although_its_caller_is_cancelled(tmp_path, store, files):
    await store.acquire("run-1")
    saving = asyncio.ensure_future(store.save("run-1", checkpoint(1, STEPS[:1])))
    await asyncio.sleep(0)
    saving.cancel()
    await asyncio.wait({saving})
    await store.release("run-1")
    assert latest(tmp_path / "store", "run-1").sequence == 1
    assert open_below(tmp_path) == []


async def test_an_owner_that_lost_its_run_during_the_sync_is_not_acknowledged(tmp_path, store, files):
    await together(store, files)
    await store.save("run-1", checkpoint(1, STEPS[:1]))
    thief = FileCheckpointStore(tmp_path / "store")
    sync = files.sync_data

    def sync_and_lose(file):
        sync(file)
        if "run-1/" in os.readlink(f"/proc/self/fd/{file}") and "run-1" not in thief.runs.owned:
            thief.runs.acquire("run-1", take_over=True)

    files.sync_data = sync_and_lose
    saves = [store.save(run, checkpoint(1 + (run == "run-1"), STEPS[:2])) for run in RUNS]
    outcomes = dict(zip(RUNS, await asyncio.gather(*saves, return_exceptions=True), strict=True))
    assert isinstance(outcomes.pop("run-1"), FencedError)
    assert {*outcomes.values()} == {None}
    thief.close()


def test_a_forked_child_saves_in_groups_of_its_own(store):
    async def use(run):
        await store.acquire(run)
        await store.save(run, checkpoint(1, STEPS[:1]))
        await store.release(run)

    asyncio.run(use("run-1"))
    assert in_fork(lambda: error_of(lambda: asyncio.run(use("run-2")))) == "nothing"
    assert latest(store.path, "run-2").sequence == 1


# --- over a power cut ------------------------------------------------------------------------------------------------


class OneThread:
    """The workers of a group, in the thread of the test."""

    def __init__(self):
        self.begun = []

    def start(self, work):
        self.begun.append(work)

    def each(self, calls):
        outcomes = []
        for call in calls:
            try:
                outcomes.append((call(), None))
            except BaseException as error:
                outcomes.append((None, error))
        return outcomes

    def work(self):
        while self.begun:
            self.begun.pop(0)()


class Acknowledged:
    """The answers of a group: what was acknowledged of each run, and what was asked for."""

    def __init__(self):
        self.asked, self.saved, self.of = dict.fromkeys(RUNS, 0), dict.fromkeys(RUNS, 0), {}

    def give(self, future, result, failure):
        assert failure is None, failure
        if future in self.of:
            run, sequence = self.of[future]
            self.saved[run] = sequence
        future.set_result(result)


def explored(monkeypatch, kind=None):
    """Save runs in groups on a simulated disk, cut off from power at each change; return the states and broken promises."""
    patched(monkeypatch).begin()
    threads, answers, disk, random = OneThread(), Acknowledged(), Disk(), Random(1)
    monkeypatch.setattr(blocking, "workers", threads)
    monkeypatch.setattr(blocking, "answers", answers)
    later = FileRuns.save_later

    def save_later(runs, workflow_id, data):
        future = later(runs, workflow_id, data)
        assert future is not None
        answers.of[future] = workflow_id, data.sequence
        answers.asked[workflow_id] = data.sequence
        return future

    monkeypatch.setattr(FileRuns, "save_later", save_later)
    states, broken = set(), []

    def look(name, role):
        assert name in CHANGES
        for choice in ("nothing", "some", "some", "everything"):
            left = disk.after_power_cut(random, choice)
            seen = (left.digest(), *answers.saved.values())
            if seen in states:
                continue
            states.add(seen)
            reader = FileCheckpointStore("/store", filesystem=left.mount())
            for run in RUNS:
                try:
                    found = done(reader.load_latest(run))
                except CheckpointNotFoundError:
                    found = None
                except CheckpointCorruptedError as error:
                    broken.append((run, error))
                    continue
                sequence = 0 if found is None else found.sequence
                steps = 0 if found is None else len(found.step_results)
                if not answers.saved[run] <= sequence <= answers.asked[run] or steps != sequence:
                    broken.append((run, sequence, steps, name, role))

    disk.before_change = look
    store = FileCheckpointStore("/store", filesystem=disk.mount(kind))

    async def live(run):
        await store.acquire(run)
        for sequence in range(1, 4):
            await store.save(run, checkpoint(sequence, STEPS[:sequence]))
        await store.release(run)

    async def main():
        lives = [asyncio.ensure_future(live(run)) for run in RUNS[:4]]
        while not all(each.done() for each in lives):
            await asyncio.sleep(0)
            threads.work()
        await asyncio.gather(*lives)

    asyncio.run(main())
    look("sync", "the end")
    assert [answers.saved[run] for run in RUNS[:4]] == [3] * 4
    return states, broken


def test_whatever_a_power_cut_leaves_of_a_group_all_that_was_acknowledged_is_there(monkeypatch):
    states, broken = explored(monkeypatch)
    assert len(states) > 100
    assert broken == []


class NamesLost(SimulatedFileSystem):
    """A broken one: it does not sync the directory that holds those of the runs."""

    def sync(self, file):
        if self.inode(file).role != "runs":
            super().sync(file)


@pytest.mark.parametrize("mutant", ["no sync of the lines", "no sync of the names"])
def test_a_group_that_acknowledges_what_is_not_synced_is_caught(monkeypatch, mutant):
    if mutant == "no sync of the lines":
        monkeypatch.setattr(SegmentWriter, "sync", lambda self: None)
    assert explored(monkeypatch, NamesLost if mutant == "no sync of the names" else None)[1]


async def test_a_large_output_that_is_written_slowly_delays_no_other_run(tmp_path):
    class SlowValues(Watched):
        def __init__(self):
            super().__init__()
            self.has_begun, self.may_end = threading.Event(), threading.Event()

        def synced(self, file):
            if "/blobs/" in os.readlink(f"/proc/self/fd/{file}"):
                self.has_begun.set()
                assert self.may_end.wait(120)

    files = SlowValues()
    store = FileCheckpointStore(tmp_path / "store", filesystem=files)
    for run in ("large", "small"):
        await store.acquire(run)
        await store.save(run, checkpoint(1, STEPS[:1]))
    large = asyncio.ensure_future(
        store.save("large", checkpoint(2, STEPS[:2], status="completed", output="x" * 200_000))
    )
    assert await asyncio.to_thread(files.has_begun.wait, 60)
    await asyncio.wait_for(store.save("small", checkpoint(2, STEPS[:2])), 120)
    assert not large.done()
    files.may_end.set()
    await large
    store.close()
    assert latest(tmp_path / "store", "large").output == "x" * 200_000


async def test_a_forked_child_closes_the_store_while_its_parent_saves(tmp_path):
    files = Watched()
    store = FileCheckpointStore(tmp_path / "store", filesystem=files)
    await store.acquire("run")
    has_begun, may_end, sync = threading.Event(), threading.Event(), files.sync_data

    def wait(file):
        has_begun.set()
        assert may_end.wait(120)
        sync(file)

    files.sync_data = wait
    saved = asyncio.ensure_future(store.save("run", checkpoint(1, STEPS[:1])))
    assert await asyncio.to_thread(has_begun.wait, 60)
    assert in_fork(lambda: (signal.alarm(60), error_of(store.close))[1]) == "nothing"
    may_end.set()
    await saved
    store.close()
    assert latest(tmp_path / "store", "run").sequence == 1
