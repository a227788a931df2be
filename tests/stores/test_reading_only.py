"""Readers read what cannot be written, and make nothing; the first write is refused by name."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

from flowckpt import FileCheckpointStore
from flowckpt.core.records import Status
from flowckpt.errors import CheckpointStorageError, ReadOnlyStoreError
from flowckpt.stores.base import Ability
from flowckpt.stores.sql import layout
from flowckpt.stores.sqlite import SqliteCheckpointStore
from flowckpt.stores.sqlite import database as database_module
from flowckpt.testing.abilities import signal
from flowckpt.testing.contract import checkpoint, results
from tests.read_only import HOWS, MOUNT, PERMISSION, made_place, names_in

pytestmark = pytest.mark.usefixtures("in_place")

RUN = "run-1"
STORES = {"sqlite": SqliteCheckpointStore, "file": FileCheckpointStore}
LARGE = "x" * 100_000


@pytest.fixture(params=HOWS)
def place(request):
    with made_place(request.param) as made:
        yield made


@pytest.fixture
def mounted():
    with made_place(MOUNT) as made:
        yield made


@pytest.fixture(params=[*STORES])
def kind(request):
    return request.param


@pytest.fixture
def opened():
    """Open stores that are closed when the test ends."""
    made = []

    def open_one(kind, directory):
        made.append(STORES[kind](directory / "store"))
        return made[-1]

    yield open_one
    for store in made:
        store.close()


def fill(store, *, count=2):
    steps = results(LARGE, "b")
    for sequence in range(1, count + 1):
        store.runs.save(RUN, checkpoint(sequence, steps[:sequence]))
    store.runs.send_signal(RUN, signal("s1"))
    store.runs.release(RUN)


async def seen(store):
    """All that readers ask."""
    latest = await store.load_latest(RUN)
    return (
        await store.list_runs(),
        await store.describe_run(RUN),
        [result.output for result in latest.step_results],
        (await store.load(RUN, "c1")).sequence,
        await store.list_checkpoints(RUN),
        await store.attempts(RUN),
        await store.signals(RUN),
        await store.owner(RUN),
        await store.started_steps(RUN) if store.has(Ability.HINTS) else None,
        await store.pinned(RUN),
        (await store.figures()).runs,
        [finding.severity for finding in await store.check()],
        await store.load_latest("no such run"),
    )


WRITES = {
    "acquire": lambda store: store.acquire(RUN),
    "begin": lambda store: store.acquire("new"),
    "save": lambda store: store.save(RUN, checkpoint(9, attempt=2)),
    "clear": lambda store: store.clear(RUN),
    "delete": lambda store: store.delete_checkpoint(RUN, "c1"),
    "signal": lambda store: store.send_signal(RUN, signal("s2")),
    "pin": lambda store: store.pin(RUN, 1),
    "receive": lambda store: store.receive_run("new", lambda: iter([checkpoint()])),
}


async def test_everything_can_be_read_and_nothing_is_made_or_changed(kind, place, opened):
    writer = opened(kind, place.original)
    fill(writer)
    before = await seen(writer)
    writer.close()
    names = names_in(place.original)
    with place.shut():
        reader = opened(kind, place.path)
        assert await seen(reader) == before
        for name, write in WRITES.items():
            with pytest.raises(ReadOnlyStoreError, match="read-only here") as refused:
                await write(reader)
            assert str(place.path) in refused.value.store, name
            assert refused.value.remedy
        assert await seen(reader) == before
        reader.close()
    assert names_in(place.original) == names


async def test_the_same_store_writes_once_it_may(kind, place, opened):
    fill(opened(kind, place.original))
    store = opened(kind, place.path if place.how != MOUNT else place.original)
    with place.shut():
        if place.how != MOUNT:
            with pytest.raises(ReadOnlyStoreError):
                await store.acquire(RUN)
        assert len(await store.list_runs()) == 1
    lease = await store.acquire(RUN)
    await store.save(RUN, checkpoint(3, [*lease.latest.step_results], attempt=lease.attempt))
    assert (await store.load_latest(RUN)).sequence == 3


async def test_a_run_that_is_going_on_shows_its_owner(kind, mounted, opened):
    writer = opened(kind, mounted.original)
    writer.runs.save(RUN, checkpoint())
    with mounted.shut():
        reader = opened(kind, mounted.path)
        (info,) = await reader.list_runs()
        assert info.status is Status.RUNNING
        assert await reader.owner(RUN) == await writer.owner(RUN)
        await writer.save(RUN, checkpoint(2))
        assert (await reader.load_latest(RUN)).sequence == 2
        reader.close()


async def test_a_reader_of_a_store_that_is_not_there_makes_none(kind, place, opened):
    with place.shut():
        reader = opened(kind, place.path)
        assert await reader.list_runs() == []
        assert await reader.load_latest(RUN) is None
    assert names_in(place.original) == []


# --- what only SQLite has -----------------------------------------------------------------------------------------------


def statement(path, *statements):
    """Do something with the file as another program, and close it in good order."""
    connection = sqlite3.connect(path, isolation_level=None)
    for each in statements:
        connection.execute(each)
    connection.close()


@pytest.fixture
def wal(mounted, opened):
    """A database that SQLite left in WAL mode."""
    writer = opened("sqlite", mounted.original)
    fill(writer)
    writer.close()
    path = mounted.original / "store"
    statement(path, "PRAGMA journal_mode = wal")
    assert not path.with_name("store-wal").exists()
    return path


async def test_a_database_in_wal_mode_is_read_where_all_is_in_the_file(wal, mounted, opened):
    names = names_in(mounted.original)
    with mounted.shut():
        reader = opened("sqlite", mounted.path)
        assert (await reader.load_latest(RUN)).step_results[0].output == LARGE
        with pytest.raises(ReadOnlyStoreError):
            await reader.acquire(RUN)
        reader.close()
    assert names_in(mounted.original) == names


async def test_what_is_written_between_two_reads_of_such_a_file_is_seen(wal, mounted, opened):
    with mounted.shut():
        reader = opened("sqlite", mounted.path)
        assert (await reader.describe_run(RUN)).workflow_name == "etl"
        statement(wal, "UPDATE runs SET workflow_name = 'other'")
        assert (await reader.describe_run(RUN)).workflow_name == "other"
        reader.close()


def test_a_read_during_which_such_a_file_was_written_is_made_again(wal, mounted, opened):
    names = []

    def work(session):
        names.append(session.execute("SELECT workflow_name FROM runs")[0][0])
        if len(names) == 1:
            statement(wal, "UPDATE runs SET workflow_name = 'other'")
        return names[-1]

    with mounted.shut():
        reader = opened("sqlite", mounted.path)
        assert reader.runs.database.read(RUN, "read", work) == "other"
        reader.close()
    assert names[-1] == "other"


@pytest.mark.parametrize("has_shared_memory", [False, True])
async def test_a_wal_with_checkpoints_is_read_with_its_shared_memory_and_refused_without(
    has_shared_memory, wal, mounted, opened
):
    holder = sqlite3.connect(wal, isolation_level=None)
    holder.execute("UPDATE runs SET workflow_name = 'in the wal'")
    for suffix in ("", "-wal", "-shm")[: 2 + has_shared_memory]:
        shutil.copy(f"{wal}{suffix}", f"{mounted.original}/copy{suffix}")
    holder.close()
    for suffix in ("", "-wal", "-shm")[: 2 + has_shared_memory]:
        (mounted.original / f"copy{suffix}").rename(f"{wal}{suffix}")
    names = names_in(mounted.original)
    with mounted.shut():
        reader = opened("sqlite", mounted.path)
        if has_shared_memory:
            assert (await reader.describe_run(RUN)).workflow_name == "in the wal"
        else:
            for _ in range(2):
                with pytest.raises(ReadOnlyStoreError, match="store-wal") as refused:
                    await reader.list_runs()
            assert "Copy" in refused.value.remedy
        reader.close()
    assert names_in(mounted.original) == names


@pytest.mark.usefixtures("own_sqlite")
async def test_a_transaction_that_a_crash_cut_short_is_not_read_half(mounted, opened):
    writer = opened("sqlite", mounted.original)
    fill(writer)
    writer.close()
    path = mounted.original / "store"
    cut = sqlite3.connect(path, isolation_level=None)
    cut.execute("PRAGMA cache_size = 1")
    cut.execute("BEGIN")
    cut.execute("UPDATE blob_contents SET content = randomblob(1000000)")
    for suffix in ("", "-journal"):
        shutil.copy(f"{path}{suffix}", mounted.original / f"copy{suffix}")
    cut.execute("ROLLBACK")
    cut.close()
    for suffix in ("", "-journal"):
        (mounted.original / f"copy{suffix}").rename(f"{path}{suffix}")
    with mounted.shut():
        reader = opened("sqlite", mounted.path)
        with pytest.raises(ReadOnlyStoreError, match="interrupted a transaction"):
            await reader.list_runs()
        reader.close()
    assert len(await opened("sqlite", mounted.original).list_runs()) == 1


async def test_an_older_database_that_cannot_be_brought_forward_is_refused(place, opened, monkeypatch):
    writer = opened("sqlite", place.original)
    fill(writer)
    writer.close()
    newer = (*layout.MIGRATIONS, ("ALTER TABLE runs ADD COLUMN colour TEXT",))
    with place.shut():
        monkeypatch.setattr(database_module, "MIGRATIONS", newer)
        reader = opened("sqlite", place.path)
        with pytest.raises(ReadOnlyStoreError, match=f"migrated to version {len(newer)}"):
            await reader.list_runs()
        monkeypatch.setattr(database_module, "MIGRATIONS", layout.MIGRATIONS)
        assert len(await reader.list_runs()) == 1
        reader.close()


async def test_a_file_that_may_not_even_be_read_is_told_in_the_systems_words(opened):
    with made_place(PERMISSION) as place:
        writer = opened("sqlite", place.original)
        fill(writer)
        writer.close()
        with place.shut(is_hidden=True):
            with pytest.raises(CheckpointStorageError, match="Permission denied") as refused:
                await opened("sqlite", place.path).list_runs()
            assert type(refused.value) is CheckpointStorageError
