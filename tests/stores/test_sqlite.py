"""The SQLite store beyond the contract: its file, its journal, its transactions, damage, and what people may query."""

from __future__ import annotations

import contextlib
import gc
import json
import sqlite3
import threading
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import attrs
import pytest

from flowckpt import WorkflowEngine, step, workflow
from flowckpt.core.records import StepError, StepResult
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.core.system.clock import SystemClock
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointStorageError,
    EncodingError,
    FencedError,
    FlowckptError,
    ForeignRecordError,
    StoreSpecError,
    UnsupportedFilesystemError,
)
from flowckpt.evidence import file_sha256
from flowckpt.stores import SqliteCheckpointStore, open_store
from flowckpt.stores.sql import layout
from flowckpt.stores.sqlite import connection as sqlite_connection
from flowckpt.stores.sqlite import database as sqlite_database
from flowckpt.stores.sqlite import library
from flowckpt.stores.sqlite.database import SqliteDatabase
from flowckpt.testing.contract import checkpoint, results
from tests.forked import processes
from tests.stores.many_at_once import fill_by_processes, fill_by_threads

pytestmark = pytest.mark.usefixtures("in_place")

RUN = "run-1"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


@pytest.fixture
def store(path):
    made = SqliteCheckpointStore(path)
    yield made
    made.close()


@pytest.fixture
def query(path):
    """Ask the file as a person would, through a connection of one's own."""

    def ask(statement, *parameters):
        connection = sqlite3.connect(path)
        try:
            found = connection.execute(statement, parameters).fetchall()
            connection.commit()
            return found
        finally:
            connection.close()

    return ask


# --- the file --------------------------------------------------------------------------------------------------------


def test_it_opens_from_its_description(tmp_path):
    store = open_store(f"sqlite:{tmp_path / 'x.db'}")
    assert isinstance(store, SqliteCheckpointStore)
    assert store.path == tmp_path / "x.db"
    assert repr(store) == f"SqliteCheckpointStore('{tmp_path / 'x.db'}')"


def test_the_path_does_not_move_with_the_directory_of_the_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = SqliteCheckpointStore("runs.db")
    monkeypatch.chdir("/")
    store.runs.save(RUN, checkpoint())
    assert (tmp_path / "runs.db").exists()
    store.close()


def test_looking_into_a_file_that_is_not_there_makes_none(store, path):
    assert store.runs.list_runs() == []
    assert store.runs.references(RUN) == []
    assert store.runs.owner(RUN) is None
    assert store.runs.check(None) == []
    assert not path.exists()


@pytest.mark.parametrize("is_link", [False, True])
def test_files_are_for_their_owner_alone(tmp_path, is_link):
    path = tmp_path / "deep" / "er" / "runs.db"
    if is_link:
        path.parent.mkdir(parents=True, mode=0o700)
        path.parent.parent.chmod(0o700)
        path.symlink_to(path.with_name("real.db"))
    store = SqliteCheckpointStore(path)
    store.runs.save(RUN, checkpoint())
    assert store.path.stat().st_mode & 0o777 == 0o600
    assert store.path.parent.stat().st_mode & 0o777 == 0o700
    for beside in store.path.parent.iterdir():
        assert beside.stat().st_mode & 0o077 == 0
    store.note_started(RUN, "step")
    assert not (path.parent / "runs.db-begun").exists() or not is_link, "notes are beside the file itself"
    store.close()


@pytest.mark.usefixtures("sqlite_library")
def test_the_journal_is_one_that_loses_nothing(store):
    assert sqlite_connection.journal_mode((3, 40, 1)) == ("truncate", "EXTRA")
    assert sqlite_connection.journal_mode((3, 51, 2)) == ("truncate", "EXTRA")
    assert sqlite_connection.journal_mode((3, 51, 3)) == ("wal", "FULL")
    store.runs.save(RUN, checkpoint())
    connection = store.runs.database._connection
    mode, level = sqlite_connection.journal_mode()
    assert connection.execute("PRAGMA journal_mode").fetchone() == (mode,)
    assert connection.execute("PRAGMA synchronous").fetchone() == ({"FULL": 2, "EXTRA": 3}[level],)
    assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)


@pytest.mark.usefixtures("own_sqlite")
def test_a_file_left_in_wal_mode_is_taken_out_of_it_where_wal_is_unsafe(store, path, query, monkeypatch):
    monkeypatch.setattr(sqlite_database, "BUSY_SECONDS", 0.1)
    store.runs.save(RUN, checkpoint())
    store.close()
    other = sqlite3.connect(path)
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("SELECT * FROM runs").fetchall()
    with pytest.raises((ForeignRecordError, CheckpointStorageError)) as refused:
        SqliteCheckpointStore(path).runs.save(RUN, checkpoint(2))
    assert refused.value.remedy
    other.close()
    assert SqliteCheckpointStore(path).runs.load(RUN, "c1").sequence == 1
    assert query("PRAGMA journal_mode")[0][0] != "wal"


def read_with_own(path):
    """Read with Python's own SQLite, in this process, as a step may."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT count(*) FROM checkpoints").fetchone()[0]


@pytest.mark.usefixtures("sqlite_library")
@pytest.mark.parametrize("when", ["between saves", "before the commit", "after the commit"])
def test_another_copy_of_sqlite_in_the_process_costs_no_save(store, path, monkeypatch, when):
    """The locks of the system do not keep two copies in one process apart, and the one that closes removes the WAL."""
    store.runs.acquire(RUN)
    commit, steps = sqlite_database.commit, results(*range(6))

    def disturbed(connection):
        read_with_own(path) if when == "before the commit" else None
        commit(connection)
        read_with_own(path) if when == "after the commit" else None

    if when == "before the commit" and library.library() is library.OWN:
        pytest.skip("one copy: its reader would wait for the writer")
    monkeypatch.setattr(sqlite_database, "commit", disturbed)
    for sequence in range(1, 7):
        store.runs.save(RUN, checkpoint(sequence, steps[:sequence]))
        if when == "between saves":
            assert read_with_own(path) == sequence
        other = SqliteCheckpointStore(path)
        assert [each.sequence for each in other.runs.references(RUN)] == [*range(sequence, 0, -1)]
        other.close()
    assert [finding.severity for finding in store.runs.check(None)] == ["ok"]
    assert len(store.runs.load_latest(RUN).step_results) == 6


@pytest.mark.usefixtures("own_sqlite")
def test_a_file_that_another_program_takes_into_wal_mode_gets_no_save_of_an_unsafe_library(store, path):
    store.runs.save(RUN, checkpoint(1))
    other = sqlite3.connect(path)
    other.execute("PRAGMA journal_mode = WAL")
    for act in (lambda: store.runs.save(RUN, checkpoint(2)), store.close):
        with pytest.raises(ForeignRecordError, match="journal mode 'wal'") as refused:
            act()
        assert "flowckpt[sqlite]" in refused.value.remedy
    assert other.execute("SELECT max(sequence) FROM checkpoints").fetchone() == (1,)
    other.close()


def test_the_newer_library_is_used_where_pythons_own_is_unsafe_in_wal_mode(monkeypatch):
    old, new = (library.Library(name, version, None) for name, version in (("a", (3, 40, 1)), ("b", (3, 54, 1))))
    for own, bundled, chosen in ((old, new, new), (new, old, new), (old, None, old)):
        monkeypatch.setattr(library, "OWN", own)
        monkeypatch.setattr(library, "load_bundled_library", (lambda found=bundled: found) if bundled else missing)
        assert library.library.__wrapped__() is chosen
    assert str(new) == "SQLite 3.54.1 (b)"


def missing():
    raise ImportError


@pytest.mark.usefixtures("sqlite_library")
def test_a_store_says_which_sqlite_it_uses(store):
    store.runs.save(RUN, checkpoint(1))
    assert store.medium() == f"{library.library()}, journal mode {sqlite_connection.journal_mode()[0]}"


def test_tables_are_strict_where_sqlite_has_it():
    assert "STRICT" in sqlite_connection.sqlite_dialect((3, 40, 0)).words["strict"]
    assert "STRICT" not in sqlite_connection.sqlite_dialect((3, 36, 0)).words["rowless"]

    class OldSession(sqlite_database.SqliteSession):
        dialect = sqlite_connection.sqlite_dialect((3, 36, 0))

    connection = sqlite3.connect(":memory:", isolation_level=None)
    layout.migrate(OldSession(connection, SystemClock()), ":memory:")
    assert connection.execute("SELECT * FROM run_list").fetchall() == []
    connection.close()


def test_the_empty_database_that_stands_for_a_missing_file_is_closed(store, path, monkeypatch):
    made = []
    monkeypatch.setattr(sqlite_database, "add_functions", lambda connection: made.append(connection))
    assert store.runs.list_runs() == []
    store.runs.clear(RUN)
    assert made and not path.exists()
    for connection in made:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_an_sqlite_that_is_too_old_is_refused(monkeypatch, tmp_path):
    assert "3.24" in sqlite_connection.find_library_problem((3, 8, 0))
    monkeypatch.setattr("flowckpt.stores.sqlite.store.find_library_problem", lambda: "SQLite 3.8.0 is too old")
    with pytest.raises(StoreSpecError, match="too old"):
        SqliteCheckpointStore(tmp_path / "x.db")


def test_a_database_of_another_program_is_refused_untouched(store, path, query):
    query("CREATE TABLE orders (id INTEGER)")
    before = path.read_bytes()
    with pytest.raises(ForeignRecordError, match="orders"):
        store.runs.save(RUN, checkpoint())
    with pytest.raises(ForeignRecordError):
        store.runs.list_runs()
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused_untouched(store, path):
    path.write_bytes(b"just text, and long enough to be a header of something\n" * 20)
    before = path.read_bytes()
    with pytest.raises(CheckpointCorruptedError, match="not a SQLite database"):
        store.runs.save(RUN, checkpoint())
    assert path.read_bytes() == before


def test_a_directory_in_its_place_is_an_error_of_the_store(tmp_path):
    with pytest.raises(CheckpointStorageError) as refused:
        SqliteCheckpointStore(tmp_path).runs.save(RUN, checkpoint())
    assert not refused.value.is_outcome_unknown


def test_network_file_systems_are_refused_unless_allowed(path, monkeypatch):
    monkeypatch.setattr("flowckpt.stores.sqlite.connection.PosixFileSystem.type_of", lambda self, path: "nfs4")
    with pytest.raises(UnsupportedFilesystemError) as refused:
        SqliteCheckpointStore(path).runs.save(RUN, checkpoint())
    assert "SqliteCheckpointStore" in refused.value.remedy
    store = SqliteCheckpointStore(path, allow_filesystems=("nfs4",))
    store.runs.save(RUN, checkpoint())
    store.close()


@pytest.mark.usefixtures("sqlite_library")
def test_a_file_that_is_removed_under_an_open_store_takes_no_save_for_saved(store, path):
    store.runs.save(RUN, checkpoint())
    path.unlink()
    with pytest.raises(CheckpointStorageError, match="removed or replaced") as refused:
        store.runs.save(RUN, checkpoint(2))
    assert refused.value.is_outcome_unknown
    with pytest.raises(CheckpointStorageError):
        store.runs.save(RUN, checkpoint(2))


# --- versions --------------------------------------------------------------------------------------------------------

NEWEST = len(layout.MIGRATIONS)


def test_a_migration_that_fails_leaves_the_database_as_it_was(store, path, query, monkeypatch):
    store.runs.save(RUN, checkpoint())
    store.close()
    broken = (*layout.MIGRATIONS, ("CREATE TABLE half (x {int})", "CREATE NONSENSE"))
    monkeypatch.setattr(layout, "MIGRATIONS", broken)
    monkeypatch.setattr(sqlite_database, "MIGRATIONS", broken)
    with pytest.raises(CheckpointStorageError, match="NONSENSE"):
        SqliteCheckpointStore(path).runs.list_runs()
    assert query("SELECT max(version) FROM flowckpt_schema") == [(NEWEST,)]
    assert query("SELECT name FROM sqlite_master WHERE name = 'half'") == []


# --- many at once ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sqlite_library")
def test_eight_processes_on_one_new_file_never_see_it_locked(path):
    fill_by_processes(f"sqlite:{path}", count=8, saves=30)


@pytest.mark.usefixtures("sqlite_library")
def test_threads_share_a_store(store):
    fill_by_threads(store)


def save_for_ever(path, pipe):
    with blocking_allowed(True):
        store = SqliteCheckpointStore(path)
        lease = store.runs.acquire(RUN, take_over=False)
        steps = list(lease.latest.step_results) if lease.latest else []
        sequence = lease.last_sequence
        pipe.send((lease.attempt, sequence))
        while True:
            sequence += 1
            steps = [*steps, *results("x" * 300, first=len(steps) + 1)]
            store.runs.save(RUN, checkpoint(sequence, steps, attempt=lease.attempt))
            pipe.send(sequence)


def received(pipe):
    """What was sent before the other end was gone."""
    with contextlib.suppress(EOFError, OSError):  # in the middle of a message
        while True:
            yield pipe.recv()


@pytest.mark.usefixtures("sqlite_library")
@pytest.mark.timeout(600)
def test_what_was_acknowledged_outlives_every_kill(path):
    acknowledged = 0
    for number in range(50):
        reading, writing = processes.Pipe(duplex=False)
        saver = processes.Process(target=save_for_ever, args=(path, writing), daemon=True)
        saver.start()
        writing.close()
        with reading:
            attempt, last = reading.recv()
            assert attempt == number + 1
            assert last >= acknowledged
            time.sleep(0.002 + number * 0.0017)
            saver.kill()
            acknowledged = max([acknowledged, *received(reading)])
        saver.join()
    store = SqliteCheckpointStore(path)
    latest = store.runs.load_latest(RUN)
    assert latest.sequence >= acknowledged > 50
    assert [result.name for result in latest.step_results] == [
        f"step-{n}" for n in range(1, len(latest.step_results) + 1)
    ]
    assert [finding.severity for finding in store.runs.check(None)] == ["ok"]
    store.close()


# --- transactions ----------------------------------------------------------------------------------------------------


def traced(store, act):
    """Return the statements that SQLite ran meanwhile."""
    statements = []
    connection = store.runs.database._connection
    if isinstance(connection, sqlite3.Connection):
        connection.set_trace_callback(statements.append)
    else:
        connection._inner.set_exec_trace(lambda cursor, statement, values: statements.append(statement) or True)
    act()
    if isinstance(connection, sqlite3.Connection):
        connection.set_trace_callback(None)
    else:
        connection._inner.set_exec_trace(None)
    return statements


@pytest.mark.usefixtures("sqlite_library")
def test_a_save_is_one_transaction_and_writes_only_what_is_new(store):
    steps = results(*range(400))
    store.runs.save(RUN, checkpoint(1, steps[:1]))
    seen = []
    for sequence in (2, 400):
        store.runs.save(RUN, checkpoint(sequence - 1, steps[: sequence - 1])) if sequence > 2 else None
        seen.append(traced(store, lambda n=sequence: store.runs.save(RUN, checkpoint(n, steps[:n]))))
    early, late = ([statement.split()[0] for statement in statements] for statements in seen)
    assert early == late
    assert early.count("BEGIN") == early.count("COMMIT") == 1
    assert sum(statement.startswith("INSERT") for statement in seen[1]) == 2


@pytest.mark.usefixtures("sqlite_library")
def test_a_full_disk_is_an_error_that_can_be_mended(store):
    store.runs.save(RUN, checkpoint(1, results("a")))
    connection = store.runs.database._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    steps = results("a", "x" * 60_000)
    with pytest.raises(CheckpointStorageError, match="full") as refused:
        store.runs.save(RUN, checkpoint(2, steps))
    assert not refused.value.is_outcome_unknown
    assert [ref.sequence for ref in store.runs.references(RUN)] == [1]
    connection.execute("PRAGMA max_page_count = 1000000")
    store.runs.save(RUN, checkpoint(2, steps))
    assert [ref.sequence for ref in store.runs.references(RUN)] == [2, 1]


class Failing:
    """A connection on which a statement fails."""

    def __init__(self, connection, text, error, *, does_it=False):
        self._connection, self._text, self._error, self._does_it = connection, text, error, does_it

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, statement, parameters=()):
        if statement.startswith(self._text):
            if self._does_it:
                self._connection.execute(statement, parameters)
            raise self._error
        return self._connection.execute(statement, parameters)


@pytest.mark.usefixtures("sqlite_library")
def test_after_a_failed_commit_nothing_more_is_saved_until_the_run_is_taken_over(store, path):
    store.runs.save(RUN, checkpoint(1))
    database = store.runs.database
    database._connection = Failing(database._connection, "COMMIT", sqlite3.OperationalError("disk I/O error"))
    with pytest.raises(CheckpointStorageError, match="disk I/O error") as failed:
        store.runs.save(RUN, checkpoint(2))
    assert failed.value.is_outcome_unknown
    assert failed.value.__cause__ is not None
    with pytest.raises(CheckpointStorageError, match="an earlier save"):
        store.runs.save(RUN, checkpoint(3))
    lease = store.runs.acquire(RUN, take_over=True)
    assert lease.last_sequence == 1
    store.runs.save(RUN, checkpoint(2, attempt=2))


@pytest.mark.usefixtures("sqlite_library")
def test_an_interrupt_in_the_middle_rolls_back_and_saves_nothing_more(store):
    store.runs.save(RUN, checkpoint(1))
    database = store.runs.database
    real = database._connection
    database._connection = Failing(real, "INSERT INTO checkpoints", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        store.runs.save(RUN, checkpoint(2))
    database._connection = real
    assert not real.in_transaction
    with pytest.raises(CheckpointStorageError):
        store.runs.save(RUN, checkpoint(2))
    assert [ref.sequence for ref in store.runs.references(RUN)] == [1]


@pytest.mark.usefixtures("sqlite_library")
@pytest.mark.parametrize("is_save", [True, False], ids=["save", "deletion"])
def test_an_interrupt_right_after_the_beginning_leaves_no_transaction_open(store, is_save):
    store.runs.save(RUN, checkpoint(1))
    store.runs.save(RUN, checkpoint(2))
    database = store.runs.database
    real = database._connection
    database._connection = Failing(real, "BEGIN IMMEDIATE", KeyboardInterrupt(), does_it=True)
    with pytest.raises(KeyboardInterrupt):
        store.runs.save(RUN, checkpoint(3)) if is_save else store.runs.delete_sequences(RUN, [1])
    database._connection = real
    assert not real.in_transaction
    assert [ref.sequence for ref in store.runs.references(RUN)] == [2, 1]
    store.runs.release(RUN)
    assert store.runs.owner(RUN) is None


@pytest.mark.usefixtures("sqlite_library")
def test_a_connection_stays_usable_after_a_failed_statement_and_keeps_the_rows_it_has_returned():
    with contextlib.closing(library.library().open(":memory:", timeout=0)) as connection:
        connection.execute("CREATE TABLE t (number INTEGER PRIMARY KEY)")
        assert connection.execute("INSERT INTO t VALUES (1)").rowcount == 1
        found = connection.execute("SELECT number FROM t")
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(sqlite3.OperationalError):
            connection.execute("no statement")
        for broken in (2**70, "\ud800"):
            with pytest.raises((OverflowError, UnicodeEncodeError)):
                connection.execute("INSERT INTO t VALUES (?)", (broken,))
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (?), (?)", (2, 3))
        assert connection.execute("UPDATE t SET number = number + 10").rowcount == 3
        connection.execute("ROLLBACK")
        assert found.fetchall() == connection.execute("SELECT number FROM t").fetchall() == [(1,)]
        nothing = connection.execute("SELECT number FROM t WHERE number > 1")
        nothing.fetchall().append((5,))
        assert connection.execute("SELECT number FROM t WHERE number > 1").fetchall() == []
    with pytest.raises(sqlite3.ProgrammingError):
        connection.execute("SELECT 1")
    with pytest.raises(sqlite3.ProgrammingError):
        print(connection.in_transaction)


@pytest.mark.usefixtures("sqlite_library")
def test_a_commit_that_finds_the_file_busy_has_saved_nothing_and_may_be_tried_again(store, monkeypatch):
    monkeypatch.setattr(sqlite_database, "BUSY_SECONDS", 0.1)
    monkeypatch.setattr(sqlite_database, "BUSY_SECONDS", 0.1)
    store.runs.save(RUN, checkpoint(1))
    database = store.runs.database
    real = database._connection
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorname = "SQLITE_BUSY"
    database._connection = Failing(real, "COMMIT", busy)
    with pytest.raises(CheckpointStorageError, match="kept it locked") as failed:
        store.runs.save(RUN, checkpoint(2))
    assert not failed.value.is_outcome_unknown
    database._connection = real
    store.runs.save(RUN, checkpoint(2))


@contextlib.contextmanager
def read_for(path, seconds):
    """A reader who is in the file for a while."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM runs").fetchall()
        end = threading.Timer(seconds, reader.execute, ("COMMIT",))
        end.start()
        try:
            yield
        finally:
            end.join()


@pytest.mark.usefixtures("sqlite_library")
def test_work_is_not_done_again_because_a_reader_is_in_the_file_when_it_is_to_be_committed(store, path):
    store.runs.save(RUN, checkpoint(1))
    done = []

    def work(session):
        done.append(session.change("UPDATE runs SET workflow_name = 'other'"))

    with read_for(path, 0.4):
        store.runs.database.write(RUN, "work", work)
    assert done == [1]
    with read_for(path, 0.4):
        executed = traced(store, lambda: store.runs.save(RUN, checkpoint(2)))
    assert sum(each.startswith("BEGIN") for each in executed) == 1
    assert not [each for each in executed if each.startswith("ROLLBACK")]
    assert store.runs.load_latest(RUN).sequence == 2


@pytest.mark.usefixtures("own_sqlite")
def test_readers_who_stay_for_too_long_fail_the_commit_and_nothing_of_it_is_left(store, path, monkeypatch):
    store.runs.save(RUN, checkpoint(1))
    monkeypatch.setattr(sqlite_database, "BUSY_SECONDS", 0.1)
    with read_for(path, 1.0), pytest.raises(CheckpointStorageError, match="kept it locked") as failed:
        store.runs.save(RUN, checkpoint(2))
    assert not failed.value.is_outcome_unknown
    assert store.runs.load_latest(RUN).sequence == 1
    store.runs.save(RUN, checkpoint(2))


def test_a_store_that_is_let_go_of_ends_its_thread(path):
    store = SqliteCheckpointStore(path, lease_seconds=0.03)
    store.runs.acquire(RUN, take_over=False)
    thread = store.runs._heartbeat._thread
    assert thread.is_alive()
    store.runs.owned.clear()
    del store
    gc.collect()
    thread.join(120)
    assert not thread.is_alive()


def test_the_heart_beats_while_a_run_is_owned_and_then_stops(path, query):
    store = SqliteCheckpointStore(path, lease_seconds=0.09)
    store.runs.acquire(RUN, take_over=False)
    (first,) = query("SELECT lease_expires_at FROM attempts")
    until = time.monotonic() + 120
    while query("SELECT lease_expires_at FROM attempts") <= [first]:
        assert time.monotonic() < until
        time.sleep(0.01)
    thread = store.runs._heartbeat._thread
    store.runs.release(RUN)
    thread.join(120)
    assert not thread.is_alive()
    store.runs.acquire(RUN, take_over=False)
    assert store.runs._heartbeat._thread.is_alive()
    store.close()


# --- damage ----------------------------------------------------------------------------------------------------------


def filled(store):
    large = "ä" * 70_000
    steps = [*results(1, large), StepResult("bad", success=False, error=StepError("ValueError", "no \x00 good"))]
    for sequence in (1, 2, 3):
        store.runs.save(RUN, checkpoint(sequence, steps[:sequence], snapshot={"n": sequence}, metadata={"a": 1}))
    store.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE step_results SET document = replace(document, '\"output\":1', '\"output\":2')",
        "UPDATE step_results SET document = '{}' WHERE position = 2",
        "UPDATE step_results SET document = 'no json' WHERE position = 2",
        "UPDATE step_results SET document = document || ',' || document WHERE position = 1",
        "DELETE FROM step_results WHERE position = 2",
        "DELETE FROM step_results WHERE position = 3",
        "UPDATE checkpoints SET document = replace(document, '3', '4')",
        "UPDATE checkpoints SET checkpoint_id = 'other'",
        "UPDATE checkpoints SET status = 'completed'",
        "UPDATE checkpoints SET saved_at = '2020-01-01T00:00:00.000000Z'",
        "UPDATE checkpoints SET steps = 2",
        "UPDATE attempts SET head = replace(head, 'etl', 'lte')",
        "UPDATE attempts SET head = NULL",
        "UPDATE runs SET head_attempt = 7",
        "UPDATE attempts SET continues_attempt = 1",
    ],
)
def test_damage_to_a_record_is_noticed_when_it_is_loaded(store, path, query, change):
    filled(store)
    query(change)
    door = SqliteCheckpointStore(path)
    with pytest.raises(CheckpointCorruptedError) as refused:
        door.runs.load_latest(RUN)
    assert refused.value.workflow_id == RUN
    assert "backup" in refused.value.remedy
    assert "corrupt" in [finding.severity for finding in door.runs.check(None)]
    with pytest.raises(CheckpointCorruptedError):
        door.runs.acquire(RUN, take_over=False)
    door.runs.list_runs()
    door.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE step_results SET duration_ms = 5",
        "UPDATE step_results SET name = 'x'",
        "UPDATE step_results SET success = 1",
        "UPDATE blob_contents SET content = x'00'",
        "DELETE FROM blobs",
    ],
)
def test_damage_beside_the_records_is_found_by_the_check(store, path, query, change):
    filled(store)
    query(change)
    door = SqliteCheckpointStore(path)
    assert [finding.severity for finding in door.runs.check(RUN)] == ["corrupt"]
    door.close()


def test_a_large_value_that_is_damaged_is_noticed_when_it_is_looked_at(store, path, query):
    filled(store)
    query("UPDATE blob_contents SET content = zeroblob(length(content))")
    latest = SqliteCheckpointStore(path).runs.load_latest(RUN)
    with pytest.raises(CheckpointCorruptedError, match="digest"):
        _ = latest.step_results[1].output


@pytest.mark.usefixtures("sqlite_library")
def test_damaged_pages_are_told_as_damage(store, path):
    for number in range(30):
        store.runs.save(f"run-{number}", checkpoint(1, results("x" * 3000)))
    store.close()
    data = bytearray(path.read_bytes())
    for page in range(4096 * 5, len(data), 4096):
        data[page : page + 64] = b"\xff" * 64
    path.write_bytes(data)
    door = SqliteCheckpointStore(path)
    findings = door.runs.check(None)
    assert {finding.severity for finding in findings} == {"corrupt"}
    with pytest.raises(CheckpointCorruptedError):
        for number in range(30):
            door.runs.load_latest(f"run-{number}")


def test_a_run_that_was_damaged_in_the_list_hides_no_other(store, path, query, caplog):
    store.runs.save("one", checkpoint())
    store.runs.save("two", checkpoint())
    store.close()
    query("UPDATE runs SET metadata = 'x' WHERE workflow_id = 'one'")
    door = SqliteCheckpointStore(path)
    assert [info.workflow_id for info in door.runs.list_runs()] == ["two"]
    assert "one" in caplog.text


# --- what people query ------------------------------------------------------------------------------------------------


@workflow("report")
def report(target: Path, fails: bool):
    yield step("write").python(write, target).evidence(file_sha256(str(target))).checkpoint()
    try:
        yield step("try").python(stumble, fails).checkpoint()
    except Exception:
        yield step("mend").python(len, "mended").checkpoint()
    return 1


def write(target):
    return Path(target).write_text("report")


def stumble(fails):
    if fails:
        raise ValueError("it failed")


def test_a_run_can_be_queried(store, tmp_path, query, path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    engine = WorkflowEngine(store)
    engine.run_sync(report, target=Path("out.txt"), fails=True, workflow_id="first").unwrap()
    assert query("SELECT workflow_id, workflow_name, status, steps FROM run_list") == [
        ("first", "report", "completed", 3)
    ]
    assert query("SELECT path, success, error_type FROM run_results ORDER BY position") == [
        ("write", 1, None),
        ("try", 0, "ValueError"),
        ("mend", 1, None),
    ]
    assert query("SELECT name, error_type, failures FROM failures_by_step") == [("try", "ValueError", 1)]
    assert query("SELECT evidence_type, status, error FROM evidence") == [("file_sha256", "verified", None)]
    assert query("SELECT workflow_name, status, runs FROM status_of_runs") == [("report", "completed", 1)]
    assert [name for _, name, *_ in query("SELECT * FROM slowest_steps")] != []
    assert sum(count for _, count, _ in query("SELECT * FROM checkpoints_per_day")) == len(
        store.runs.references("first")
    )
    document = json.loads(query("SELECT document FROM step_results WHERE path = 'mend'")[0][0])
    assert document["output"] == 6


@pytest.mark.usefixtures("sqlite_library")
def test_a_run_goes_on_after_a_crash_in_its_first_part(store, path):
    steps = results("a", "b")
    store.runs.save(RUN, checkpoint(1, steps[:1]))
    store.runs.release(RUN)
    lease = store.runs.acquire(RUN, take_over=False)
    store.runs.save(RUN, checkpoint(2, steps, attempt=lease.attempt))
    rows = store.runs.database.read(
        "", "test", lambda session: session.execute("SELECT attempt, position FROM step_results")
    )
    assert rows == [(1, 1), (2, 2)]


async def test_the_loop_stays_live_while_a_save_waits(store):
    with blocking_allowed(False):
        await store.save(RUN, checkpoint(1, results(1)))
        assert (await store.load_latest(RUN)).sequence == 1


@pytest.mark.usefixtures("sqlite_library")
def test_no_error_of_the_driver_comes_out(path):
    store = SqliteCheckpointStore(path)
    store.runs.save(RUN, checkpoint())
    broken = sqlite3.ProgrammingError("nonsense")
    database: SqliteDatabase = store.runs.database
    database._connection = Failing(database._connection, "", broken)
    for act in (
        lambda: store.runs.load_latest(RUN),
        lambda: store.runs.save(RUN, checkpoint(2)),
        lambda: store.runs.list_runs(),
        lambda: store.runs.acquire("other", take_over=False),
        lambda: store.runs.check(None),
    ):
        database._connection = database._connection or Failing(sqlite_connection.connect(path), "", broken)
        try:
            act()
        except FlowckptError as error:
            assert "nonsense" in str(error)


@pytest.mark.usefixtures("sqlite_library")
@pytest.mark.parametrize("broken", [{"tries": 2**70}, {"duration_ms": 10**400}])
def test_a_number_that_no_column_holds_is_refused_before_anything_is_written(store, broken):
    store.runs.save(RUN, checkpoint(1))
    with pytest.raises(EncodingError):
        store.runs.save(RUN, checkpoint(2, [StepResult("step-1", **broken)]))
    store.runs.save(RUN, checkpoint(2, results(1)))


def test_evidence_of_any_form_is_kept(store):
    for sequence, evidence in enumerate(
        [{}, {"pack": 1}, {"pack": {"evidence": [1, {}]}, "verdicts": [{"verified_at": "soon"}, 7]}], 1
    ):
        steps = [StepResult("step-1", evidence=evidence)]
        store.runs.save(f"run-{sequence}", checkpoint(1, steps))
        assert list(store.runs.load_latest(f"run-{sequence}").step_results) == steps


def test_a_save_waits_for_another_copy_of_sqlite_that_writes(store, path, monkeypatch):
    if not library.needs_guard():
        pytest.skip("no other copy of SQLite, or no WAL")
    monkeypatch.setattr(sqlite_database, "BUSY_SECONDS", 0.1)
    store.runs.save(RUN, checkpoint(1))
    other = library.Guard(path)
    with other, pytest.raises(CheckpointStorageError, match="kept it locked"):
        store.runs.save(RUN, checkpoint(2))
    other.close()
    store.runs.save(RUN, checkpoint(2))


@pytest.mark.parametrize("zone", [None, UTC, timezone(timedelta()), timezone(timedelta(hours=2))], ids=str)
def test_the_time_of_a_later_checkpoint_keeps_its_zone(store, zone):
    given = datetime(2026, 11, 20, 15, 30, tzinfo=zone)
    for sequence in (1, 2):
        store.runs.save(RUN, attrs.evolve(checkpoint(sequence), saved_at=given))
    assert store.runs.load_latest(RUN).saved_at.isoformat() == given.isoformat()


def test_a_fenced_writer_says_so_for_good(store, path):
    store.runs.save(RUN, checkpoint(1))
    thief = SqliteCheckpointStore(path)
    thief.runs.acquire(RUN, take_over=True)
    for sequence in (2, 3):
        with pytest.raises(FencedError):
            store.runs.save(RUN, checkpoint(sequence))
        assert not store.runs.database._connection.in_transaction  # others could not write
    thief.runs.save(RUN, checkpoint(2, attempt=2))
    thief.close()


# --- an empty file ----------------------------------------------------------------------------------------------------


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "flowckpt"]


def test_a_store_that_was_truncated_to_nothing_is_read_as_empty_and_that_is_said_once(store, path, caplog):
    store.runs.save(RUN, checkpoint())
    store.close()
    path.write_bytes(b"")
    assert store.runs.list_runs() == []
    assert store.runs.load_latest(RUN) is None
    (said,) = warnings_in(caplog)
    assert str(path) in said
    assert "0 bytes" in said
    assert "restore it from a backup" in said
    assert path.stat().st_size == 0, "and nothing was made of it"


def test_a_run_may_begin_in_an_empty_file_as_mktemp_makes_one_without_a_word(store, path, caplog):
    path.touch()
    store.runs.save(RUN, checkpoint())
    assert [info.workflow_id for info in store.runs.list_runs()] == [RUN]
    assert warnings_in(caplog) == []


def test_a_file_that_is_not_there_is_no_store_yet_and_nothing_is_said(store, caplog):
    assert store.runs.list_runs() == []
    assert warnings_in(caplog) == []


def test_a_row_without_its_run_is_damage_and_not_a_read_that_failed(tmp_path):
    spec = f"sqlite:{tmp_path / 'store.db'}"
    with contextlib.closing(open_store(spec)) as store:
        store.runs.save("run", checkpoint(1))
    with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        connection.execute("DELETE FROM runs")
        connection.commit()
    with contextlib.closing(open_store(spec)) as store:
        assert [(each.severity, each.detail) for each in store.runs.check()] == [
            ("corrupt", "a row of attempts belongs to no runs")
        ]
