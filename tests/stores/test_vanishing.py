"""A store that is removed while a run continues in it: a failed save of a store that is gone, and no other owner's run."""

from __future__ import annotations

import contextlib
import errno
import shutil
import sqlite3

import pytest

from flowckpt import FileCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.cli.exit_codes import ExitCode, code_of_error, code_of_result
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    CheckpointStorageError,
    FencedError,
    VanishedError,
)
from flowckpt.stores import open_store
from flowckpt.stores.file.directory import clear_folder
from flowckpt.stores.file.layout import BLOBS
from flowckpt.stores.postgres import PostgresCheckpointStore
from flowckpt.stores.sqlite import SqliteCheckpointStore
from flowckpt.testing.contract import checkpoint, results

KINDS = (
    "file",
    "file, its runs",
    "file, replaced",
    "file, a link",
    "file, a run replaced",
    "sqlite",
    "sqlite, replaced",
    "s3, the bucket",
    "s3, its objects",
    "postgres",
)
RUN = "run"


def removed_directory(directory):
    def remove():
        shutil.rmtree(directory)

    return remove


def replaced(directory, *, is_linked):
    def remove():
        shutil.copytree(directory, f"{directory}-copy")
        directory.rename(f"{directory}-moved")
        if is_linked:
            directory.symlink_to(f"{directory}-copy")
        else:
            directory.with_name(f"{directory.name}-copy").rename(directory)

    return remove


def replaced_database(path):
    def remove():
        shutil.rmtree(path.parent)
        path.parent.mkdir()
        other = SqliteCheckpointStore(path)
        with blocking_allowed(True):
            other.runs.save("another", checkpoint())
        other.close()

    return remove


def emptied(server, bucket, *, is_removed):
    def remove():
        for key in server.keys(bucket):
            server.client.delete_object(Bucket=bucket, Key=key)
        if is_removed:
            server.client.delete_bucket(Bucket=bucket)

    return remove


def dropped_schema(server, name):
    def remove():
        server.execute("DROP SCHEMA flowckpt CASCADE", name)

    return remove


@pytest.fixture(params=KINDS)
def removable(request, tmp_path):
    """A store, and what removes it."""
    kind, place = request.param, tmp_path / "place"
    if kind in ("file, replaced", "file, a link", "file, a run replaced"):
        made = (
            FileCheckpointStore(place),
            replaced(place / "runs" / RUN if "run" in kind else place, is_linked="link" in kind),
        )
    elif kind.startswith("file"):
        made = FileCheckpointStore(place), removed_directory(place if kind == "file" else place / "runs")
    elif kind.startswith("sqlite"):
        place.mkdir()
        path = place / "runs.db"
        made = SqliteCheckpointStore(path), removed_directory(place) if kind == "sqlite" else replaced_database(path)
    elif kind.startswith("s3"):
        server = request.getfixturevalue("s3")
        bucket = server.make_bucket()
        made = open_store(server.spec(bucket)), emptied(server, bucket, is_removed=kind == "s3, the bucket")
    else:
        server, name = request.getfixturevalue("postgres"), request.getfixturevalue("postgres_database")
        url = f"{server.url(name)}?allow_unsafe=true"
        made = PostgresCheckpointStore(url, patience_seconds=2), dropped_schema(server, name)
    yield made
    with blocking_allowed(True):
        made[0].runs.owned.clear()
        made[0].close()


@pytest.mark.parametrize("is_looked_after", [False, True], ids=["at once", "after a sign of life"])
def test_the_next_save_says_that_the_store_is_gone(is_looked_after, removable):
    store, remove = removable
    lost = []
    with blocking_allowed(True):
        store.runs.save(RUN, checkpoint())
        store.call_when_lost(RUN, lost.append)
        remove()
        if is_looked_after:
            look = store.runs.renew_leases
            try:
                look()
            except CheckpointStorageError:
                pass
            assert lost == []
        for sequence in (2, 3):
            with pytest.raises(CheckpointStorageError) as failed:
                store.runs.save(RUN, checkpoint(sequence, status="completed"))
            assert code_of_error(failed.value) == ExitCode.STORE_FAILED
            if sequence == 2:
                assert "gone" in failed.value.message or "NoSuchBucket" in failed.value.message, failed.value


def flow_with(remove):
    @workflow
    def flow():
        yield step("first").python(len, "x").checkpoint()
        yield step("removes").python(remove).checkpoint()
        yield step("last").python(len, "xxx").checkpoint()
        return 5

    return flow


def test_a_run_ends_failed_with_a_storage_error(removable):
    store, remove = removable

    with pytest.raises(CheckpointStorageError) as failed:
        WorkflowEngine(store).run_sync(flow_with(remove), workflow_id=RUN).unwrap()
    assert not isinstance(failed.value, FencedError)


@pytest.mark.parametrize("table", ["checkpoints", "runs", "attempts"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_database_that_loses_one_table_during_a_run_is_damaged(request, tmp_path, kind, table):
    if kind == "sqlite":
        spec = f"sqlite:{tmp_path / 'runs.db'}"

        def drop():
            with contextlib.closing(sqlite3.connect(tmp_path / "runs.db")) as connection:
                connection.execute(f"DROP TABLE {table}")

    else:
        server, name = request.getfixturevalue("postgres"), request.getfixturevalue("postgres_database")
        spec = f"{server.url(name)}?allow_unsafe=true"

        def drop():
            server.execute(f"DROP TABLE flowckpt.{table} CASCADE", name)

    @workflow
    def flow():
        yield step("first").python(len, "x").checkpoint()
        yield step("drops").python(drop).checkpoint()
        yield step("last").python(len, "xxx").checkpoint()

    with contextlib.closing(open_store(spec)) as store:
        try:
            code = code_of_result(WorkflowEngine(store).run_sync(flow, workflow_id=RUN))
        except CheckpointCorruptedError as error:
            code = code_of_error(error)
        assert code == ExitCode.CORRUPT
        with pytest.raises(CheckpointCorruptedError, match=f"lacks table {table}"):
            WorkflowEngine(store).resume_sync(flow, workflow_id=RUN)


def test_a_run_that_may_goes_on_to_its_end_unsaved(removable):
    store, remove = removable

    result = WorkflowEngine(store, on_save_error="continue").run_sync(flow_with(remove), workflow_id=RUN)
    assert (result.status, result.output, result.is_saved) == ("completed", 5, False)


@pytest.mark.parametrize("what", ["place", "place/runs/run"])
def test_a_directory_that_is_moved_is_written_where_it_is_and_a_warning_says_so(tmp_path, caplog, what):
    store = FileCheckpointStore(tmp_path / "place")
    with blocking_allowed(True):
        store.runs.save(RUN, checkpoint())
        (tmp_path / what).rename(tmp_path / "elsewhere")
        store.runs.save(RUN, checkpoint(2, status="completed"))
    (said,) = (each.getMessage() for each in caplog.records)
    assert said.startswith(f"run 'run' is no longer in {tmp_path / 'place'}: its directory was moved or unmounted")
    (tmp_path / "elsewhere").rename(tmp_path / what)
    store.close()
    with blocking_allowed(True):
        assert [each.sequence for each in FileCheckpointStore(tmp_path / "place").runs.references(RUN)] == [2, 1]


def test_a_store_that_is_replaced_is_noticed_by_the_next_save_while_the_run_continues(tmp_path):
    store = FileCheckpointStore(tmp_path / "place")
    with blocking_allowed(True):
        store.runs.save(RUN, checkpoint())
        store.runs.save(RUN, checkpoint(2))
        replaced(tmp_path / "place", is_linked=False)()
        with pytest.raises(VanishedError):
            store.runs.save(RUN, checkpoint(3))
    store.close()


def test_a_run_that_is_cleared_by_name_is_no_store_that_is_gone(tmp_path):
    store = FileCheckpointStore(tmp_path / "place")
    with blocking_allowed(True):
        store.runs.save(RUN, checkpoint())
        shutil.rmtree(tmp_path / "place" / "runs" / RUN)
        with pytest.raises(FencedError, match="cleared"):
            store.runs.save(RUN, checkpoint(2))
    store.close()


def test_a_bucket_that_was_emptied_takes_the_run_anew_once_that_is_cleared(s3):
    bucket = s3.make_bucket()
    store = open_store(s3.spec(bucket))
    with blocking_allowed(True):
        store.runs.save(RUN, checkpoint())
        emptied(s3, bucket, is_removed=False)()
        store.runs.save(RUN, checkpoint(2))  # a create finds nothing amiss
        with pytest.raises(VanishedError):
            store.runs.save(RUN, checkpoint(3, status="completed"))
        store.runs.owned.clear()
        store.runs.clear(RUN)
        store.runs.save(RUN, checkpoint())
        assert [ref.sequence for ref in store.runs.references(RUN)] == [1]
    store.close()


def test_a_large_value_that_is_asked_for_in_the_middle_of_a_clear_is_said_to_be_cleared(tmp_path, monkeypatch):
    """The tombstone comes first, then the values go: one that is missing below it was not damaged."""
    store = FileCheckpointStore(tmp_path)
    read = []

    def look_and_die(directory, name):
        if name == BLOBS:
            clear_folder(directory, name)
            return
        with pytest.raises(CheckpointNotFoundError, match="it was cleared"):
            read.append(loaded.step_results[0].output)
        raise OSError(errno.EIO, "the medium failed")

    with blocking_allowed(True):
        store.runs.save(RUN, checkpoint(1, results("x" * 100_000)))
        loaded = FileCheckpointStore(tmp_path).runs.load(RUN, "c1")
        monkeypatch.setattr("flowckpt.stores.file.claim.clear_folder", look_and_die)
        with pytest.raises(CheckpointStorageError, match="the medium failed"):
            store.runs.clear(RUN)
        assert read == []


def test_a_large_value_that_is_missing_under_a_run_that_is_there_is_damage(tmp_path):
    store = FileCheckpointStore(tmp_path)
    with blocking_allowed(True):
        store.runs.save(RUN, checkpoint(1, results("x" * 100_000)))
        loaded = FileCheckpointStore(tmp_path).runs.load(RUN, "c1")
        (blob,) = (tmp_path / "runs" / RUN / "blobs").iterdir()
        blob.unlink()
        with pytest.raises(CheckpointCorruptedError, match="a large value cannot be read"):
            loaded.step_results[0].output  # noqa: B018 - it is read here
