"""Copies of a store that is written to meanwhile: what is a backup, and what is none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import time

import attrs
import psycopg
import pytest

from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.errors import CheckpointCorruptedError
from flowckpt.maintenance import copy_run
from flowckpt.stores import open_store
from flowckpt.stores.base import Ability
from flowckpt.testing.contract import checkpoint, results
from tests.forked import processes

RUN = "run-1"


def output(number):
    """What a step returns; every third of them is a large value, in a file, a row or an object of its own."""
    return f"{number} " * (40_000 if number % 3 == 0 else 1)


def add(store, lease, steps, count):
    sequence = lease.last_sequence
    for number in range(len(steps) + 1, len(steps) + 1 + count):
        sequence += 1
        steps = [*steps, *results(output(number), first=number)]
        store.runs.save(RUN, checkpoint(sequence, steps, attempt=lease.attempt))
    return steps


def write_for_ever(spec, is_begun):
    """Save, begin attempt after attempt, and compact the run now and then."""
    with blocking_allowed(True):
        store = open_store(spec)
        while True:
            lease = store.runs.acquire(RUN, take_over=False)
            steps = list(lease.latest.step_results) if lease.latest else []
            add(store, lease, steps, 3)
            store.runs.release(RUN)
            if lease.attempt % 3 == 0 and store.has(Ability.COMPACT):
                store.runs.compact(RUN, is_forced=True)
            is_begun.set()
            time.sleep(0.03)


@contextlib.contextmanager
def written_to(spec):
    """Have a process write to a store for the block; it is killed then."""
    is_begun = processes.Event()
    process = processes.Process(target=write_for_ever, args=(spec, is_begun))
    process.start()
    try:
        assert is_begun.wait(120)
        yield is_begun
    finally:
        is_alive = process.is_alive()
        os.kill(process.pid, signal.SIGKILL)
        process.join(120)
        assert is_alive, "it has written all the time"


def wait_for_more(has_written):
    """Wait until a round of the writer has begun and ended since."""
    for _ in range(2):  # the first one may have saved before
        has_written.clear()
        assert has_written.wait(120)


def steps_in(spec):
    """Prove a copy whole, and return how many steps it holds."""
    with contextlib.closing(open_store(spec)) as store, blocking_allowed(True):
        findings = store.runs.check(None)
        assert {finding.severity for finding in findings} <= {"ok", "notice"}, findings
        found = [result.output for result in asyncio.run(store.load_latest(RUN)).step_results]
        assert found == [output(number) for number in range(1, len(found) + 1)]
        lease = store.runs.acquire(RUN, take_over=True)  # and a resume can continue from it
        store.runs.save(RUN, checkpoint(lease.last_sequence + 1, lease.latest.step_results, attempt=lease.attempt))
    return len(found)


def grows(counts):
    assert counts == sorted(counts), "a later copy holds no less"
    assert counts[0] < counts[-1], "it was written to meanwhile"


SPECS = {
    "file": "file:{0}/store",
    "sqlite": "sqlite:{0}/runs.db",
    "objects": "objects+file://{0}/objects?allow_unsafe=true",
}


@pytest.mark.parametrize("kind", SPECS)
def test_runs_that_are_copied_while_they_go_on_are_whole_and_as_of_one_moment(kind, tmp_path):
    spec, counts = SPECS[kind].format(tmp_path), []
    with written_to(spec) as has_written, contextlib.closing(open_store(spec)) as store:
        for number in range(3):
            to = f"file:{tmp_path}/backup-{number}"
            with contextlib.closing(open_store(to)) as backup:
                asyncio.run(copy_run(store, backup, RUN))
            counts.append(steps_in(to))
            wait_for_more(has_written)
    grows(counts)


@pytest.mark.parametrize("how", ["backup", "VACUUM INTO"])
def test_an_sqlite_database_is_copied_by_its_own_means_while_runs_go_on(how, tmp_path):
    counts = []
    with written_to(f"sqlite:{tmp_path}/runs.db") as has_written:
        for number in range(2):
            copy = tmp_path / f"backup-{number}.db"
            with contextlib.closing(sqlite3.connect(tmp_path / "runs.db", timeout=30, isolation_level=None)) as source:
                if how == "backup":
                    with contextlib.closing(sqlite3.connect(copy)) as target:
                        source.backup(target)
                else:
                    source.execute("VACUUM INTO ?", (str(copy),))
            counts.append(steps_in(f"sqlite:{copy}"))
            wait_for_more(has_written)
    grows(counts)


def test_a_dump_of_a_postgresql_database_is_of_one_moment_and_can_be_restored(postgres, postgres_database, tmp_path):
    if not hasattr(postgres, "_run"):
        pytest.skip("the programs of this server are not at hand")
    counts = []
    with written_to(f"{postgres.url(postgres_database)}?allow_unsafe=true") as has_written:
        for number in range(2):
            file = postgres.directory / f"{postgres_database}-{number}.dump"
            postgres._run(
                "pg_dump", "--format", "custom", "--schema", "flowckpt", "--file", file, "--dbname",
                postgres.dsn(postgres_database),
            )  # fmt: skip
            restored = postgres.make_database()
            try:
                postgres._run("pg_restore", "--exit-on-error", "--dbname", postgres.dsn(restored), file)
                with psycopg.connect(postgres.dsn(restored)) as connection:
                    assert connection.execute("SELECT count(*) FROM flowckpt.flowckpt_schema").fetchone()[0] >= 4
                counts.append(steps_in(f"{postgres.url(restored)}?allow_unsafe=true"))
            finally:
                postgres.drop_database(restored)
            wait_for_more(has_written)
    grows(counts)


# --- the directory of a file store, copied by cp ----------------------------------------------------------------------


@pytest.fixture
def live(tmp_path):
    """A file store with an owned run of three steps, and the directory of that run."""
    store = open_store(f"file:{tmp_path}/store")
    with blocking_allowed(True):
        lease = store.runs.acquire(RUN, take_over=False)
        steps = add(store, lease, [], 3)
        (directory,) = (tmp_path / "store" / "runs").iterdir()
        yield store, lease, steps, directory
        store.close()


def corrupt_in(spec):
    with contextlib.closing(open_store(spec)) as store, blocking_allowed(True):
        findings = store.runs.check(None)
        return [finding.workflow_id for finding in findings if finding.severity == "corrupt"]


def test_a_directory_that_is_copied_while_nothing_is_written_is_a_backup(live, tmp_path):
    store, lease, *_ = live
    store.runs.release(RUN)
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    assert steps_in(f"file:{tmp_path}/backup") == 3
    assert lease.attempt == 1


def test_a_copy_of_a_segment_in_the_middle_of_a_line_goes_back_to_the_line_before(live, tmp_path):
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    segment = max((tmp_path / "backup" / "runs" / live[3].name).glob("*.jsonl"))
    segment.write_bytes(segment.read_bytes()[:-20])
    assert steps_in(f"file:{tmp_path}/backup") == 2


def test_a_plain_copy_that_took_the_large_values_first_lacks_one_and_says_so(live, tmp_path):
    store, lease, steps, directory = live
    backup = tmp_path / "backup"
    shutil.copytree(tmp_path / "store", backup)  # what cp had done when the run continued
    add(store, _since(lease, store), steps, 3)
    for segment in directory.glob("*.jsonl"):
        shutil.copy(segment, backup / "runs" / directory.name)
    assert corrupt_in(f"file:{backup}") == [RUN]
    with contextlib.closing(open_store(f"file:{backup}")) as copy, pytest.raises(CheckpointCorruptedError):
        [result.output for result in asyncio.run(copy.load_latest(RUN)).step_results]


def test_a_plain_copy_in_which_a_resume_came_between_two_segments_is_corrupt_and_says_so(live, tmp_path):
    store, lease, steps, directory = live
    backup = tmp_path / "backup"
    shutil.copytree(tmp_path / "store", backup)
    add(store, _since(lease, store), steps, 2)
    store.runs.release(RUN)
    again = store.runs.acquire(RUN, take_over=False)
    add(store, again, list(again.latest.step_results), 1)
    for file in directory.glob("*.jsonl"):
        if not (backup / "runs" / directory.name / file.name).exists():
            shutil.copy(file, backup / "runs" / directory.name)
    assert corrupt_in(f"file:{backup}") == [RUN]


def _since(lease, store):
    """The lease, as it would stand after what was saved since."""
    return attrs.evolve(lease, last_sequence=asyncio.run(store.load_latest(RUN)).sequence)
