"""The SQLite implementation of the port: one connection per process, one transaction at a time."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import attrs

from flowckpt.core.system.clock import Clock
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointStorageError,
    DiskFullError,
    FlowckptError,
    ReadOnlyStoreError,
    VanishedError,
)
from flowckpt.stores.sql import rows
from flowckpt.stores.sql.database import (
    HURRIED_SECONDS,
    Addition,
    GroupingDatabase,
    Item,
    Outcome,
    Row,
    Session,
    ShortWaits,
    Work,
    closed_on_error,
)
from flowckpt.stores.sql.layout import (
    MIGRATIONS,
    NOTICE_SECONDS,
    VERSION_TABLE,
    Dialect,
    MigrationWait,
    check_version,
    find_missing_parts,
    migrate,
    missing_parts_error,
    read_version,
)
from flowckpt.stores.sqlite.connection import (
    APPLICATION_ID,
    BUSY_SECONDS,
    Identity,
    ReadConnection,
    add_functions,
    announce_migration,
    connect,
    connect_to_read,
    diagnose_failed_read,
    foreign_journal_error,
    identify_file,
    is_busy,
    is_failed_sync,
    is_full,
    is_migrating,
    is_write_refused,
    journal_mode,
    read_stamp,
    reports_missing_schema,
    reserve_of,
    sqlite_dialect,
    translate_error,
    translate_os_error,
    wal_path,
)
from flowckpt.stores.sqlite.library import Guard, library, needs_guard

# Transactions. COMMIT is the only statement that is retried on its own.
#
# Without WAL, a COMMIT waits for current readers, and SQLite blocks new ones meanwhile. If it is busy, the transaction
# stays open. A rollback would admit new readers and discard the work: with constant readers, a large migration would
# never finish.


T = TypeVar("T")

_PAUSE_SECONDS = 0.001
_NO_GUARD: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def run_in_transaction(
    connection: sqlite3.Connection, act: Callable[[], T], begin: Callable[[sqlite3.Connection], object]
) -> T:
    """Return the result of a function in a transaction, which is rolled back if the function or the COMMIT fails.

    Args:
        connection: the connection.
        act: runs in the transaction.
        begin: starts the transaction.

    Raises:
        sqlite3.Error: an error of SQLite.
    """
    try:
        begin(connection)
        result = act()
        commit(connection)
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def begin_reading(connection: sqlite3.Connection) -> None:
    """Start a transaction that reads one snapshot."""
    connection.execute("BEGIN")


def commit(connection: sqlite3.Connection) -> None:
    """Commit, and wait for current readers; nothing is rolled back here.

    Args:
        connection: the connection, with an open transaction.

    Raises:
        sqlite3.Error: an error of SQLite, such as a busy file if the readers take too long.
    """
    end = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if not (is_busy(error) and connection.in_transaction) or time.monotonic() > end:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return


# Retries of operations on a file that another process keeps locked.


class Retry:
    """Retries operations while another process keeps a file locked, and holds the reserve for a full disk.

    SQLite's own busy handler sleeps up to 100 ms at a time, which is far too long with many writers.

    Args:
        path: the file.

    Attributes:
        hurry: whether a wait was interrupted, so that later ones are short.
        reserve: the disk space reserved for a full disk.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.hurry = ShortWaits(f"the SQLite store {path}")
        self.reserve = reserve_of(path)

    def retry(self, act: Callable[[], T], workflow_id: str, operation: str) -> T:
        """Repeat an operation while another process keeps the file locked, for longer during a migration.

        Args:
            act: tries the operation once.
            workflow_id: the run, for errors.
            operation: the verb for errors.

        Raises:
            sqlite3.Error: the operation failed, or the file was locked for too long.
            CheckpointStorageError: the file was locked, and an earlier wait was interrupted.
        """
        start = time.monotonic()
        next_check = start + NOTICE_SECONDS
        end: float | None = start + BUSY_SECONDS
        migration: MigrationWait | None = None
        try:
            while True:
                try:
                    result = act()
                except sqlite3.Error as error:
                    if not is_busy(error):
                        raise
                    now = time.monotonic()
                    if self.hurry.is_on and now > start + HURRIED_SECONDS:
                        raise self.hurry.busy_error(workflow_id, operation) from error
                    end = end or now + BUSY_SECONDS
                    is_migrated = now > min(next_check, end) and is_migrating(self._path)
                    if now > end and not is_migrated:
                        raise
                else:
                    self.hurry.is_on = False
                    return result
                if is_migrated:
                    migration = migration or MigrationWait(f"the SQLite store {self._path}", start=start)
                    migration.pause()
                    end = None  # the limit counts from the first try that fails after the migration
                    continue
                if now > next_check:
                    next_check = now + NOTICE_SECONDS
                time.sleep(random.uniform(0.0002, 0.004))  # noqa: S311 - spreads concurrent retries
        except KeyboardInterrupt:
            self.hurry.is_on = True
            raise


_log = logging.getLogger("flowckpt")

_abandoned: list[sqlite3.Connection] = []
"""Connections inherited by a forked child, never closed: that would affect the files of the parent."""

_MAKES_THE_FILE = ("acquire", "receive")
"""The operations that create a missing file; all others treat it as an empty database."""

_MAKES_ROOM = ("clear", "prune", "delete", "compact")
"""The operations that may use the reserve of a full disk."""

_PAGES_AT_ONCE = 1000
_PAGES_ON_A_FULL_DISK = 20


class _WalLostError(Exception):
    """A transaction was committed to a WAL that no longer belongs to the database."""


class SqliteSession:
    """An open transaction."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock

    @property
    def dialect(self) -> Dialect:
        """The SQL dialect."""
        return sqlite_dialect()

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return its rows."""
        return self._connection.execute(statement, parameters).fetchall()

    def change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement and return the number of changed rows."""
        return self._connection.execute(statement, parameters).rowcount

    def now(self) -> datetime:
        """Return the machine's time: if locks are sound, all users of the file are on one machine."""
        return self._clock.now()


class SqliteDatabase(GroupingDatabase):
    """A database file.

    Args:
        path: the file, absolute.
        clock: the time.
        allowed: types of file systems that are accepted although their locks are unsound.
    """

    def __init__(self, path: Path, *, clock: Clock, allowed: Sequence[str] = ()) -> None:
        super().__init__()
        self.path = path
        self._clock = clock
        self._allowed = tuple(allowed)
        self._pid = 0
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[Identity | None, Identity | None] = None, None  # of the file and its WAL
        self._names = str(path), ""  # of the file and its WAL, if any
        self._guard: Guard | None = None
        self._read_only: ReadConnection | None = None
        self._is_committing = False
        self._is_distrusted = False
        self._has_warned_empty = False
        self._tries = Retry(path)

    def __str__(self) -> str:
        return repr(str(self.path))

    def __del__(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None and self._pid == os.getpid():
            self.close()
        elif connection is not None:
            _abandoned.append(connection)

    @property
    def dialect(self) -> Dialect:
        """The SQL dialect."""
        return sqlite_dialect()

    def close(self) -> None:
        """Close the connection of this process, and restore the reserve."""
        with self._exclusive:
            self._disconnect()
            if self.path.exists():
                self._tries.reserve.restore()

    def _disconnect(self) -> None:
        with self._exclusive:
            if self._guard is not None:
                self._guard.close()
            if self._connection is not None:
                self._connection.close()
            self._connection = self._read_only = self._guard = None

    def use_reserve(self) -> bool:
        """Remove the reserve for a full disk; return whether it is removed."""
        with self._exclusive:
            return self._tries.reserve.use()

    def identify(self) -> object:
        """Return the identity of this file, which differs from others of the same name; None if it is missing."""
        return identify_file(self._names[0])

    # --- the port --------------------------------------------------------------------------------------------------

    def read(self, workflow_id: str, operation: str, work: Callable[[Session], T]) -> T:
        """Read in one transaction, from one snapshot; a missing file is an empty database."""

        def read_once() -> T:
            while True:
                size = self._size()
                if not size:
                    if size is not None:
                        self._warn_empty()
                    return self._run_on_empty_database(work)
                connection = self._open_to_read()
                session = SqliteSession(connection, self._clock)
                if connection.in_transaction:
                    return work(session)
                result = run_in_transaction(connection, partial(work, session), begin_reading)
                if self._is_unchanged():
                    return result

        with self._exclusive, self._translate_errors(workflow_id, operation, is_write=False):
            return self._tries.retry(read_once, workflow_id, operation)

    def _size(self) -> int | None:
        """Return the size of the file; None if it is missing. A file in the place of its directory is an error."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return None

    def write(self, workflow_id: str, operation: str, work: Callable[[Session], T]) -> T:
        """Write in one transaction, and commit it durably."""
        result: T = self.write_now(Work(workflow_id, operation, work))
        return result

    def _write_group(self, items: Sequence[Item]) -> list[Outcome]:
        """Write items in one transaction, or separately if that fails."""
        is_unknown = False
        if len(items) > 1:
            with self._exclusive:
                try:
                    if self._is_same_file():
                        return self._tries.retry(lambda: self._write_all(items), "", "save")
                except sqlite3.Error as error:
                    is_unknown = self._is_unknown(error)
                    if is_busy(error) or (is_unknown and self._is_distrusted):
                        return [
                            self._translate_item_error(error, each, is_outcome_unknown=is_unknown) for each in items
                        ]
                except _WalLostError:
                    is_unknown = True
                except CheckpointStorageError:
                    if self._tries.hurry.is_on:  # a wait for a locked file was interrupted
                        return [self._tries.hurry.busy_error(each.workflow_id, each.operation) for each in items]
                except Exception as error:  # one of them failed; nothing was committed
                    _log.debug("writing a group of %d saves one by one: %r", len(items), error)
        return [self._try_to_write(each, is_uncertain=is_unknown) for each in items]

    def _is_same_file(self) -> bool:
        identity = identify_file(self._names[0])
        return identity is not None and (self._connection is None or identity == self._identity[0])

    def _write_all(self, items: Sequence[Item]) -> list[Outcome]:
        """Write items in one transaction; a failed item is rolled back, and its error is its outcome."""
        connection = self._open()
        outcomes: list[Outcome] = []

        def write_each(session: SqliteSession) -> None:
            for item in items:
                connection.execute("SAVEPOINT item")
                try:
                    outcomes.append(_add_rows(session, item) if isinstance(item, Addition) else item.do(session))
                except Exception as error:
                    if not connection.in_transaction:
                        raise
                    connection.execute("ROLLBACK TO item")
                    is_ours = not isinstance(error, (sqlite3.Error, UnicodeDecodeError))
                    outcomes.append(error if is_ours else self._translate_item_error(error, item))
                connection.execute("RELEASE item")

        self._write_in(connection, write_each)
        if self._is_wal_lost():
            self._disconnect()
            raise _WalLostError
        if identify_file(self._names[0]) != self._identity[0]:
            for index, item in enumerate(items):
                if isinstance(item, Addition):
                    outcomes[index] = VanishedError(str(self), workflow_id=item.workflow_id)
        return outcomes

    def _write_work(self, work: Work) -> Any:
        def write_once() -> Any:
            if work.operation not in _MAKES_THE_FILE and not self.path.exists():
                return self._run_on_empty_database(work.do)
            result = self._write_in(self._open(), work.do)
            return write_once() if self._is_wal_lost() else result

        with self._exclusive, self._translate_errors(work.workflow_id, work.operation):
            if work.operation not in _MAKES_ROOM:
                return self._tries.retry(write_once, work.workflow_id, work.operation)
            result = self._retry_with_reserve(write_once, work.workflow_id, work.operation)
            if self._tries.reserve.is_used:
                with contextlib.suppress(DiskFullError):  # the work is done
                    self._release_space()
            return result

    def _retry_with_reserve(self, act: Callable[[], T], workflow_id: str, operation: str) -> T:
        """Free space; on a full disk, remove the reserve for this and restore it afterwards."""
        if self._tries.reserve.is_used:
            self._empty_wal()  # while it is small: copying may enlarge the database
        try:
            return self._tries.retry(act, workflow_id, operation)
        except sqlite3.Error as error:
            if not is_full(error) or not self._tries.reserve.use():
                raise
        self._empty_wal()
        return self._tries.retry(act, workflow_id, operation)

    def _empty_wal(self) -> None:
        """Copy the WAL to the database and truncate it."""
        if self._connection is not None and self._read_only is None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def write_once(self, addition: Addition) -> bool:
        """Write the rows of a save with an unknown outcome unless they exist; return whether the fence holds.

        Refused after a failed sync, because reads and later syncs are not reliable then.
        """
        if self._is_distrusted:
            raise CheckpointStorageError(
                f"a sync of the SQLite store {self.path} has failed, so the state of the file on the disk is unknown",
                workflow_id=addition.workflow_id,
                operation="save",
                is_outcome_unknown=True,
                remedy="Check the disk. The run continues without saves; a resume starts from the state on the disk.",
            )
        return self._write_addition(attrs.evolve(addition, may_be_saved=True))

    def _write_addition(self, addition: Addition) -> bool:
        def add_once() -> bool:
            return (addition.may_be_saved and self._is_saved(addition)) or self._add_once(addition)

        with self._exclusive:
            if not self._is_same_file():
                raise VanishedError(str(self), workflow_id=addition.workflow_id)
            self._is_committing = False
            try:
                is_fence_held = self._tries.retry(add_once, addition.workflow_id, "save")
            except sqlite3.Error as error:
                raise self._translate_item_error(error, addition, is_outcome_unknown=self._is_unknown(error)) from error
            except UnicodeDecodeError as error:
                raise self._translate_item_error(error, addition) from error
            except OSError as error:
                raise translate_os_error(error, self.path, addition.workflow_id, "save") from error
            if identify_file(self._names[0]) != self._identity[0]:
                raise VanishedError(str(self), workflow_id=addition.workflow_id)
        return is_fence_held

    def _is_unknown(self, error: sqlite3.Error) -> bool:
        """Return whether a commit may have succeeded; if so, close its connection."""
        # A busy file means that nothing was committed: the transaction was rolled back.
        is_unknown = self._is_committing and not is_busy(error)
        if is_unknown:
            self._is_distrusted = self._is_distrusted or is_failed_sync(error)
            self._disconnect()
        return is_unknown

    def _translate_item_error(self, error: Any, item: Item, *, is_outcome_unknown: bool = False) -> FlowckptError:
        translated = self._translate_error(
            error, item.workflow_id, item.operation, is_outcome_unknown=is_outcome_unknown
        )
        translated.__cause__ = error
        return translated

    def _translate_error(
        self, error: Any, workflow_id: str, operation: str, *, is_outcome_unknown: bool = False
    ) -> FlowckptError:
        """Return the store's error for an error of SQLite."""
        if reports_missing_schema(error) and self._connection is not None:
            with contextlib.suppress(sqlite3.Error, UnicodeDecodeError):
                parts = find_missing_parts(SqliteSession(self._connection, self._clock))
                if parts:
                    return missing_parts_error(parts, str(self.path))
        return translate_error(error, self.path, workflow_id, operation, is_outcome_unknown=is_outcome_unknown)

    def _is_saved(self, addition: Addition) -> bool:
        connection = self._open()
        select = partial(SqliteSession(connection, self._clock).execute, rows.IS_SAVED, addition.identity)
        return bool(run_in_transaction(connection, select, begin_reading))

    def _add_once(self, addition: Addition) -> bool:
        connection = self._open(is_in_place=True)
        is_fence_held = self._write_in(connection, lambda session: _add_rows(session, addition))
        if self._is_wal_lost():
            self._disconnect()
            self._is_committing = True  # until it is known whether the rows reached the database
            return self._is_saved(addition) or self._add_once(addition)
        return is_fence_held

    def find_damage(self) -> list[str]:
        """Return the damage that SQLite itself reports."""

        def read(session: Session) -> tuple[list[str], list[str]]:
            problems = [text for (text,) in session.execute("PRAGMA integrity_check") if text != "ok"]
            return problems, [
                f"a row of {table} belongs to no {parent}"
                for table, _, parent, _ in session.execute("PRAGMA foreign_key_check")
            ]

        try:
            problems, orphans = self.read("", "check", read)
        except CheckpointCorruptedError as error:
            return [error.message]
        if problems:
            failed_read = diagnose_failed_read(self.path, "", "check", problems[0].rpartition("\n")[2])
            if failed_read is not None:
                raise failed_read
        return problems + orphans

    def total_bytes(self) -> int:
        """Return the total size of the file and those next to it, such as the WAL."""
        total = 0
        with contextlib.suppress(FileNotFoundError):
            for each in self.path.parent.iterdir():
                if f"{each.name}-".startswith(f"{self.path.name}-") and each.is_file():
                    total += each.stat().st_size
        return total

    def journal_mode(self) -> str:
        """Return the journal mode of the file; empty for a missing or empty file."""
        if not self._size():
            return ""
        ((mode,),) = self.read("", "check", lambda session: session.execute("PRAGMA journal_mode"))
        return str(mode)

    def release_space(self) -> None:
        """Return free pages at the end of the file to the system, and restore the reserve."""
        with self._exclusive:
            try:
                self._release_space()
            finally:
                if self._tries.reserve.is_used:
                    self._empty_wal()
                    self._tries.reserve.restore()

    def _release_space(self) -> None:
        """Return the pages in small groups, so that no reader waits for long."""

        def give_back_some() -> bool:
            if not self.path.exists():
                return False
            connection = self._open()
            free = _read_pragma(connection, "PRAGMA freelist_count")
            if free:
                pages = _PAGES_AT_ONCE
                if self._tries.reserve.is_used:
                    pages = _PAGES_ON_A_FULL_DISK
                    self._empty_wal()
                with self._guard or _NO_GUARD:
                    connection.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
            return _read_pragma(connection, "PRAGMA freelist_count") < free

        with self._exclusive, self._translate_errors("", "vacuum"):
            while self._retry_with_reserve(give_back_some, "", "vacuum"):
                pass

    # --- implementation-----------------------------------------------------------------------------------------------

    @property
    def _exclusive(self) -> contextlib.AbstractContextManager[object]:
        """The lock that excludes other threads."""
        if self._pid != os.getpid():  # a forked child: its lock may stay held, and the connection is the parent's
            if self._connection is not None:
                _abandoned.append(self._connection)
            self._pid, self._lock = os.getpid(), threading.RLock()
            self._connection = self._read_only = self._guard = None
        return self._lock

    def _open(self, *, is_in_place: bool = False) -> sqlite3.Connection:
        """Return the connection, opened again if the file was replaced.

        Args:
            is_in_place: whether the file was just checked to be the same.
        """
        if self._read_only is not None or (
            self._connection is not None
            and ((not is_in_place and identify_file(self._names[0]) != self._identity[0]) or self._is_wal_lost())
        ):
            self._disconnect()  # it may be writable now, or the file was replaced
        if self._connection is None:
            connection = connect(self.path, allowed=self._allowed)
            try:
                if needs_guard():
                    connection.execute("SELECT count(*) FROM sqlite_master")  # creates the WAL and its shared memory
                    self._guard = Guard(self.path.resolve())
                self._migrate_if_needed(connection)
                wal = str(wal_path(self.path)) if journal_mode()[0] == "wal" else ""
                self._names = self._names[0], wal
                self._identity = identify_file(self._names[0]), identify_file(wal)
            except BaseException:
                self._disconnect()
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _is_wal_lost(self) -> bool:
        """Return whether another copy of SQLite in this process removed the WAL under the connection.

        File locks do not separate two copies in one process: when one closes its connection, it assumes to be the last
        user of the file. Everything committed until then has been copied to the database.
        """
        name, wal = self._names[1], self._identity[1]
        return name != "" and (wal is None or identify_file(name) != wal)

    def _write_in(self, connection: sqlite3.Connection, work: Callable[[SqliteSession], T]) -> T:
        """Return the result of work in an exclusive write transaction."""

        def work_before_commit() -> T:
            result = work(SqliteSession(connection, self._clock))
            self._is_committing = True
            return result

        self._is_committing = False
        with self._guard or _NO_GUARD:
            result = run_in_transaction(connection, work_before_commit, self._begin)
        self._is_committing = False
        return result

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Start a write transaction, unless another program has set an unsafe journal mode."""
        connection.execute("BEGIN IMMEDIATE")
        if not self._names[1] and journal_mode()[0] != "wal":
            mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
            if mode == "wal":
                raise foreign_journal_error(self.path, mode)

    def _open_to_read(self) -> sqlite3.Connection:
        if self._read_only is None:
            try:
                return self._open()
            except (sqlite3.Error, OSError) as error:
                if not is_write_refused(error):
                    raise
        elif identify_file(self._names[0]) == self._identity[0] and self._is_unchanged():
            return self._read_only.connection
        self._disconnect()
        opened = connect_to_read(self.path, allowed=self._allowed)
        with closed_on_error(opened.connection):
            self._check_up_to_date(opened.connection)
        self._connection, self._read_only = opened.connection, opened
        self._identity = identify_file(self._names[0]), None
        return opened.connection

    def _is_unchanged(self) -> bool:
        """Return whether a file that is read as immutable is unchanged."""
        stamp = None if self._read_only is None else self._read_only.stamp
        return stamp is None or stamp == read_stamp(self.path)

    def _check_up_to_date(self, connection: sqlite3.Connection) -> None:
        """Refuse a database that must be migrated before it can be read."""
        version = _check_version(SqliteSession(connection, self._clock))
        if version < len(MIGRATIONS):
            raise ReadOnlyStoreError(
                str(self.path),
                reason=f"its tables have version {version} and must first be migrated to version {len(MIGRATIONS)}",
                operation="read",
                remedy="Read it once with write permission, or read a writable copy.",
            )

    def _migrate_if_needed(self, connection: sqlite3.Connection) -> None:
        version = _check_version(SqliteSession(connection, self._clock))
        if version == len(MIGRATIONS):
            return
        with contextlib.ExitStack() as until_committed:

            def migrate_tables(session: SqliteSession) -> None:
                if version:
                    until_committed.enter_context(announce_migration(self.path))
                session.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                migrate(session, str(self.path))

            self._write_in(connection, migrate_tables)
        self._tries.reserve.make()

    def _warn_empty(self) -> None:
        """Warn once about a file of 0 bytes, which is new or was truncated."""
        if not self._has_warned_empty:
            _log.warning(
                "the SQLite store %s is an empty file (0 bytes), read as a store without runs; if it held runs, it was "
                "truncated: restore it from a backup",
                self.path,
            )
            self._has_warned_empty = True

    def _run_on_empty_database(self, work: Callable[[Session], T]) -> T:
        """Run work on an empty database in memory."""
        with contextlib.closing(library().open(":memory:", timeout=0)) as connection:
            add_functions(connection)
            session = SqliteSession(connection, self._clock)
            migrate(session, str(self.path))
            return work(session)

    @contextlib.contextmanager
    def _translate_errors(self, workflow_id: str, operation: str, *, is_write: bool = True) -> Iterator[None]:
        """Translate errors of the driver and the operating system to errors of the store."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._translate_error(error, workflow_id, operation) from error
        except OSError as error:
            raise translate_os_error(error, self.path, workflow_id, operation, is_write=is_write) from error


def _add_rows(session: SqliteSession, addition: Addition) -> bool:
    return rows.add_rows(session, addition, (rows.ADVANCE_ALONE, rows.ADVANCE))


def _check_version(session: SqliteSession) -> int:
    """Return the version of a database, 0 if it is new; refuse a newer one than this program supports."""
    if not session.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (VERSION_TABLE,)):
        return 0
    version = read_version(session)
    check_version(version)
    return version


def _read_pragma(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(pragma).fetchone()[0])
