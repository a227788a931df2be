"""References, selections, deletions, shared values and words of begun steps, as far as stores differ there."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys

import attrs
import pytest

from flowckpt.core.system.filesystem import PosixFileSystem
from flowckpt.errors import CheckpointStorageError, SaveConflictError
from flowckpt.stores import (
    FileCheckpointStore,
    PostgresCheckpointStore,
    SqliteCheckpointStore,
)
from flowckpt.stores.sql.image import RunImage
from flowckpt.testing.contract import RUN, checkpoint, results
from flowckpt.testing.store_under_test import claimed

# --- deleting --------------------------------------------------------------------------------------------------------


class Counting(PosixFileSystem):
    def __init__(self):
        self.reads = self.bytes = 0

    def read(self, file, size, offset):
        self.reads += 1
        found = super().read(file, size, offset)
        self.bytes += len(found)
        return found


async def test_an_owner_that_deletes_again_and_again_reads_its_run_once(tmp_path):
    filesystem = Counting()
    store = FileCheckpointStore(tmp_path, filesystem=filesystem)
    await store.acquire(RUN)
    await store.save(RUN, checkpoint(1))
    assert not await store.delete_checkpoint(RUN, "none")
    filesystem.reads = 0
    for sequence in range(2, 30):
        await store.save(RUN, checkpoint(sequence))
        assert await store.delete_checkpoint(RUN, f"c{sequence - 1}")
        assert not await store.delete_checkpoint(RUN, "none")
    assert filesystem.reads == 0
    assert [each.sequence for each in await store.list_checkpoints(RUN)] == [29]


# --- what the database says ------------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path):
    return tmp_path / "runs.db"


@pytest.fixture
def query(database):
    def ask(statement):
        connection = sqlite3.connect(database)
        connection.execute("PRAGMA foreign_keys = ON")
        with connection:
            rows = connection.execute(statement).fetchall()
        connection.close()
        return rows

    return ask


@pytest.mark.parametrize("wrong", ["1", "NULL"])
async def test_the_check_finds_a_column_that_says_else_of_the_evidence_than_the_results(database, query, wrong):
    store = SqliteCheckpointStore(database)
    await store.save(RUN, checkpoint(1, [claimed("failed", "a")]))
    query(f"UPDATE checkpoints SET verified = {wrong}")
    (finding,) = await store.check(RUN)
    assert finding.severity == "corrupt"
    assert "verified" in finding.detail
    store.close()


async def test_picking_checkpoints_of_an_attempt_uses_the_primary_key(database, query):
    store = SqliteCheckpointStore(database)
    await store.save(RUN, checkpoint(1))
    store.close()
    (row,) = query(
        "EXPLAIN QUERY PLAN SELECT sequence FROM checkpoints WHERE run = 1 AND attempt = 1 AND sequence > 0 AND sequence <= 9 "
        "AND deleted_at IS NULL AND reason = 'step' AND verified = 1 ORDER BY sequence DESC LIMIT 3"
    )
    assert "USING PRIMARY KEY (run=? AND sequence>? AND sequence<?)" in row[-1]


async def share_in(store):
    """Save a run with a large value, and another one that shares it."""
    await store.save("source", checkpoint(1, results("x" * 100_000)))
    source = await store.load_latest("source")
    blob = source.step_results[0].held_output
    await store.acquire("target")
    await store.share_values("source", "target", {blob.digest: blob.size})
    await store.save("target", source)
    for run in ("source", "target"):
        await store.release(run)


async def test_a_shared_value_is_one_row_which_goes_with_the_last_run_that_names_it(database, query):
    store = SqliteCheckpointStore(database)
    await share_in(store)
    assert query("SELECT count(*) FROM blob_contents") == [(1,)]
    await store.clear("source")
    assert query("SELECT count(*) FROM blob_contents") == [(1,)]
    await store.clear("target")
    assert query("SELECT count(*) FROM blob_contents") == [(0,)]
    store.close()


async def test_a_shared_value_in_postgresql_is_one_row_too(postgres):
    store = PostgresCheckpointStore(postgres.url(), schema="sharing", allow_unsafe=True)
    try:
        await share_in(store)
        count = "SELECT count(*) FROM sharing.blob_contents"
        assert postgres.execute(count) == [(1,)]
        await store.clear("target")
        assert postgres.execute(count) == [(1,)]
        await store.clear("source")
        assert postgres.execute(count) == [(0,)]
    finally:
        store.close()
        postgres.execute("DROP SCHEMA sharing CASCADE")


# --- word of begun steps in the file store -----------------------------------------------------------------------------


async def test_to_read_what_was_begun_does_not_read_the_whole_run(tmp_path):
    filesystem = Counting()
    store = FileCheckpointStore(tmp_path, filesystem=filesystem)
    await store.acquire(RUN)
    await store.save(RUN, checkpoint(1, results(*map(str, range(2_000)))))
    store.note_started(RUN, "train")
    (segment,) = tmp_path.glob("runs/*/*.jsonl")
    assert segment.stat().st_size > 100_000
    filesystem.bytes = 0
    assert await store.started_steps(RUN) == (1, ("train",))
    assert 0 < filesystem.bytes < 20_000


# --- word of begun steps beside a database -----------------------------------------------------------------------------


async def test_a_run_that_came_to_its_end_leaves_no_file_beside_the_database(tmp_path, database):
    store = SqliteCheckpointStore(database)
    await store.acquire(RUN)
    store.note_started(RUN, "a")
    (file,) = (tmp_path / "runs.db-begun").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    await store.save(RUN, checkpoint(1, results("a")))
    await store.release(RUN)
    assert list((tmp_path / "runs.db-begun").iterdir()) == []
    await store.acquire(RUN)
    store.note_started(RUN, "b")
    await store.release(RUN)
    assert await SqliteCheckpointStore(database).started_steps(RUN) == (2, ("b",))
    await store.clear(RUN)
    assert list((tmp_path / "runs.db-begun").iterdir()) == []


async def test_pruned_runs_leave_no_notes_beside_the_database(tmp_path, database):
    store = SqliteCheckpointStore(database)
    for run in ("kept", "pruned"):
        await store.acquire(run)
        await store.save(run, checkpoint(1))
        store.note_started(run, "a")
        store.note_live(run, b"[]")
        await store.release(run)
    pruned = await store.describe_run("pruned")
    assert await store.clear_unchanged([pruned]) == ["pruned"]
    assert await store.started_steps("pruned") == (0, ())
    assert await store.live_note("pruned") is None
    assert len(list((tmp_path / "runs.db-begun").iterdir())) == 2
    assert await store.started_steps("kept") == (1, ("a",))
    store.close()


class BrokenCommit:
    """A connection whose COMMIT fails, once it is done."""

    def __init__(self, connection):
        self._connection = connection

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, statement, parameters=()):
        done = self._connection.execute(statement, parameters)
        if statement == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return done


async def test_a_note_holds_until_the_next_step_begins_after_a_save_that_is_known_to_be_done(database):
    store = SqliteCheckpointStore(database)

    async def begun(path):
        store.note_started(RUN, path)
        return (await store.started_steps(RUN))[1]

    await store.acquire(RUN)
    assert await begun("a") == ("a",)
    await store.save(RUN, checkpoint(1))
    assert await begun("b") == ("b",)
    with pytest.raises(SaveConflictError):
        await store.save(RUN, checkpoint(1))
    assert await begun("c") == ("b", "c")
    store.runs.save(RUN, checkpoint(2))
    assert await begun("d") == ("d",)
    assert await store.delete_checkpoint(RUN, checkpoint(1).checkpoint_id)
    assert await begun("e") == ("d", "e")
    opened = store.runs.database._connection
    store.runs.database._connection = BrokenCommit(opened)
    with pytest.raises(CheckpointStorageError) as failed:
        await store.save(RUN, checkpoint(3))
    assert failed.value.is_outcome_unknown
    assert await begun("f") == ("d", "e", "f")
    await store.make_savable(RUN, checkpoint(3).step_results)
    assert await begun("g") == ("g",)
    lease = await store.acquire(RUN, take_over=True)
    assert await begun("h") == ("h",)
    assert (await store.started_steps(RUN))[0] == lease.attempt == 2
    store.close()
    assert await SqliteCheckpointStore(database).started_steps(RUN) == (2, ("h",))


async def test_a_step_that_begins_right_after_a_commit_is_noted_before_the_saver_knows_of_it(database):
    store = SqliteCheckpointStore(database)
    lease = await store.acquire(RUN)
    store.note_started(RUN, "a")
    saving = asyncio.ensure_future(store.save(RUN, checkpoint(1)))
    await asyncio.sleep(0)  # it has handed the save in
    with store.runs.owned[RUN]._one_at_a_time:  # which another thread has done once this is free
        store.note_started(RUN, "b")
    await saving
    store.note_started(RUN, "c")
    assert await store.started_steps(RUN) == (lease.attempt, ("b", "c"))
    store.close()


async def test_notes_never_raise_where_the_directory_cannot_be_had(tmp_path, database):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs.db-begun").symlink_to(tmp_path / "elsewhere")
    store = SqliteCheckpointStore(database)
    await store.acquire(RUN)
    store.note_started(RUN, "a")
    assert await store.started_steps(RUN) == (0, ())
    assert list((tmp_path / "elsewhere").iterdir()) == []
    await store.save(RUN, checkpoint(1))
    store.close()


KILLED = """
import asyncio, os, signal, sys
from flowckpt.stores import SqliteCheckpointStore
from flowckpt.stores.sql.image import RunImage
from flowckpt.testing.contract import checkpoint

async def main():
    store = SqliteCheckpointStore(sys.argv[1])
    await store.acquire("run-1")
    await store.save("run-1", checkpoint(1))
    store.note_started("run-1", "train")
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_killed_process_leaves_word_beside_the_database(database):
    done = subprocess.run([sys.executable, "-c", KILLED, database], check=False, env={**os.environ})
    assert done.returncode == -signal.SIGKILL
    store = SqliteCheckpointStore(database)
    assert await store.started_steps(RUN) == (1, ("train",))
    assert (await store.acquire(RUN)).attempt == 2
    store.close()


async def test_a_check_does_not_verify_a_checkpoint_again_for_each_later_attempt(database, monkeypatch):
    store = SqliteCheckpointStore(database)
    count = 12
    for attempt in range(1, count + 1):
        await store.acquire(RUN)
        await store.save(RUN, attrs.evolve(checkpoint(attempt), attempt=attempt))
        await store.release(RUN)
    verified: list[int] = []
    head = RunImage.verify_head
    monkeypatch.setattr(
        RunImage, "verify_head", lambda self, session, row: (verified.append(row[0]), head(self, session, row))[1]
    )
    (finding,) = await store.check(RUN)
    assert finding.detail == f"{count} checkpoints, 0 results"
    assert set(verified) == set(range(1, count + 1))
    assert len(verified) <= 3 * count + 1  # in three ways, and the newest once more
    store.close()
