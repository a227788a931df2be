"""The SQLite side of the port: one connection a process, one transaction at a time."""

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
from typing import Any, TypeVar, cast

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
    StopWaiting,
    Work,
)
from flowckpt.stores.sql.layout import (
    MIGRATIONS,
    NOTICE_SECONDS,
    VERSION_TABLE,
    Dialect,
    MigrationWait,
    check_version,
    damage_of,
    lacking,
    migrate,
    version_of,
)
from flowckpt.stores.sqlite.connection import (
    APPLICATION_ID,
    BUSY_SECONDS,
    Identity,
    ReadConnection,
    add_functions,
    cannot_be_written,
    connect,
    connect_to_read,
    error_of,
    failed_read,
    foreign_journal,
    identity_of,
    is_busy,
    is_full,
    is_migrating,
    is_sync,
    journal_mode,
    migration_announced,
    names_what_is_lacking,
    os_error_of,
    reserve_of,
    sqlite_dialect,
    stamp_of,
    wal_of,
)
from flowckpt.stores.sqlite.library import Guard, has_guard, library

# A transaction, and its COMMIT: the one statement that is made again by itself.
#
# Before the journal is a WAL, a COMMIT waits for the readers that are in the file, and SQLite keeps new ones out of it
# meanwhile. Who finds it busy still has the transaction open. To roll it back would let new readers in, and have all of
# its work done again: among readers who come all the time, a large migration again and again.


T = TypeVar("T")

_PAUSE_SECONDS = 0.001
_NO_GUARD: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def in_transaction(
    connection: sqlite3.Connection,
    act: Callable[[], T],
    begin: Callable[[sqlite3.Connection], None] | None = None,
    before_commit: Callable[[], None] | None = None,
    guard: contextlib.AbstractContextManager[None] = _NO_GUARD,
) -> T:
    """Return what a function returns in a transaction, which is rolled back if the function or the COMMIT fails.

    Args:
        connection: the connection.
        act: what is done in the transaction.
        begin: what begins it; None for a plain BEGIN.
        before_commit: called before the COMMIT.
        guard: held around all of it.

    Raises:
        sqlite3.Error: what SQLite says.
    """
    with guard:
        if begin is None:
            connection.execute("BEGIN")
        else:
            begin(connection)
        try:
            done = act()
            if before_commit is not None:
                before_commit()
            commit(connection)
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return done


def commit(connection: sqlite3.Connection) -> None:
    """Commit, and wait for the readers who are in the file; nothing is rolled back here.

    Args:
        connection: the connection, with an open transaction.

    Raises:
        sqlite3.Error: what SQLite says; that it is busy, where the readers stay for too long.
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


# How long something is tried again that a file did not take, because another process keeps it locked.


class Retry:
    """The patience with one file, and the room that it may use on a full disk.

    SQLite's own waiting sleeps up to 100 ms at a time, so among many writers it waits far too long.

    Args:
        path: the file.

    Attributes:
        hurry: says whether somebody has stopped a wait, so that the next one is short.
        reserve: the room that the file keeps for a full disk.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.hurry = StopWaiting()
        self.reserve = reserve_of(path)

    def until_done(self, act: Callable[[], T], workflow_id: str, operation: str) -> T:
        """Do something again while another process keeps the file locked; for longer while it brings the tables forward.

        Args:
            act: does it once.
            workflow_id: the run, for errors.
            operation: what is done to it, for errors.

        Raises:
            sqlite3.Error: it failed, or the file was locked for too long.
            CheckpointStorageError: it was locked, and somebody is in a hurry.
        """
        began = time.monotonic()
        look_at, end = began + NOTICE_SECONDS, began + BUSY_SECONDS
        migration: MigrationWait | None = None
        try:
            while True:
                try:
                    done = act()
                except sqlite3.Error as error:
                    if not is_busy(error):
                        raise
                    now = time.monotonic()
                    if self.hurry.is_on and now > began + HURRIED_SECONDS:
                        raise self.hurry.error(f"the SQLite store {self._path}", workflow_id, operation) from error
                    is_migrated = now > min(look_at, end) and is_migrating(self._path)
                    if now > end and not is_migrated:
                        raise
                else:
                    self.hurry.is_on = False
                    return done
                if is_migrated:
                    migration = migration or MigrationWait(f"the SQLite store {self._path}", began=began)
                    migration.pause()
                    end = time.monotonic() + BUSY_SECONDS
                    continue
                if now > look_at:
                    look_at = now + NOTICE_SECONDS
                time.sleep(random.uniform(0.0002, 0.004))  # noqa: S311 - so that two do not meet again and again
        except KeyboardInterrupt:
            self.hurry.is_on = True
            raise


_log = logging.getLogger("flowckpt")

_abandoned: list[sqlite3.Connection] = []
"""Connections that a forked child has inherited: closing one there would touch the files of its parent."""

_MAKES_THE_FILE = ("acquire", "receive")
"""The operations that create a missing file; all others treat it as an empty database."""

_MAKES_ROOM = ("clear", "prune", "delete", "compact")
"""The operations that may use the reserve of a full disk."""

_PAGES_AT_ONCE = 1000
_PAGES_ON_A_FULL_DISK = 20


class _FencedError(Exception):
    """The fence of a save does not hold: its transaction is rolled back."""


class _WalLostError(Exception):
    """A transaction was committed to a WAL that is not the database's any more."""


class SqliteSession:
    """An open transaction."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return its rows."""
        return self._connection.execute(statement, parameters).fetchall()

    def change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        return self._connection.execute(statement, parameters).rowcount

    def now(self) -> datetime:
        """Return the machine's time: all users of the file are on one machine, as far as locks can be trusted."""
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
        self._identity: tuple[Identity | None, Identity | None] = None, None  # of the file, and of its WAL
        self._names = str(path), ""  # of the file, and of its WAL, where there is one
        self._guard: Guard | None = None
        self._read_only: ReadConnection | None = None
        self._is_committing = False
        self._is_distrusted = False
        self._has_told_empty = False
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
        """How statements are written."""
        return sqlite_dialect()

    def close(self) -> None:
        """Close the connection of this process, and keep room for a full disk again."""
        with self._alone:
            self._disconnect()
            if self.path.exists():
                self._tries.reserve.restore()

    def _disconnect(self) -> None:
        with self._alone:
            if self._guard is not None:
                self._guard.close()
            if self._connection is not None:
                self._connection.close()
            self._connection = self._read_only = self._guard = None

    def use_reserve(self) -> bool:
        """Give up the room that is kept for a full disk; return whether there is any."""
        with self._alone:
            return self._tries.reserve.use()

    def mark(self) -> object:
        """Return what tells this file from another one of the same name; None if there is none."""
        return identity_of(self._names[0])

    # --- the port --------------------------------------------------------------------------------------------------

    def read(self, workflow_id: str, operation: str, work: Callable[[SqliteSession], T]) -> T:
        """Do work that reads, in one transaction of one moment; a file that is not there is an empty database."""

        def read_once() -> T:
            while True:
                size = self._size()
                if size is None:
                    return self._on_missing_database(work)
                if not size:
                    self._tell_empty()
                    return self._on_missing_database(work)
                connection = self._opened_to_read()
                if connection.in_transaction:
                    return work(SqliteSession(connection, self._clock))
                session = SqliteSession(connection, self._clock)
                done = in_transaction(connection, partial(work, session))
                if self._is_as_it_was():
                    return done

        with self._alone, self._translated(workflow_id, operation, is_write=False):
            return self._tries.until_done(read_once, workflow_id, operation)

    def _size(self) -> int | None:
        """Return the size of the file; None if there is none. A file in the place of its directory is an error."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return None

    def write(self, workflow_id: str, operation: str, work: Callable[[SqliteSession], T]) -> T:
        """Do work that writes, in one transaction, and commit it durably."""
        done: T = self.now(Work(workflow_id, operation, cast("Callable[[Session], T]", work)))
        return done

    def _write_group(self, items: Sequence[Item]) -> list[Outcome]:
        """Write items in one transaction, or each in its own if that fails."""
        is_unknown = False
        if len(items) > 1:
            with self._alone:
                try:
                    if self._is_in_place():
                        return self._tries.until_done(lambda: self._write_all(items), "", "save")
                except sqlite3.Error as error:
                    is_unknown = self._is_unknown(error)
                    if is_busy(error) or (is_unknown and self._is_distrusted):
                        return [self._error_of(error, each, is_outcome_unknown=is_unknown) for each in items]
                except _WalLostError:
                    is_unknown = True
                except CheckpointStorageError:
                    if self._tries.hurry.is_on:  # somebody has stopped a wait for a locked file
                        busy = f"the SQLite store {self.path}"
                        return [self._tries.hurry.error(busy, each.workflow_id, each.operation) for each in items]
                except Exception as error:  # of one of them; nothing was committed
                    _log.debug("a group of %d saves is written one by one: %r", len(items), error)
        return [self._outcome(each, is_unknown=is_unknown) for each in items]

    def _is_in_place(self) -> bool:
        there = identity_of(self._names[0])
        return there is not None and (self._connection is None or there == self._identity[0])

    def _write_all(self, items: Sequence[Item]) -> list[Outcome]:
        """Write items in one transaction; an item that fails is undone, and its error is its outcome."""
        connection = self._opened()
        session = SqliteSession(connection, self._clock)
        outcomes: list[Outcome] = []

        def write_each() -> None:
            for item in items:
                connection.execute("SAVEPOINT item")
                try:
                    outcomes.append(
                        self._add_rows(connection, item) if isinstance(item, Addition) else item.do(session)
                    )
                except Exception as error:
                    if not connection.in_transaction:
                        raise
                    connection.execute("ROLLBACK TO item")
                    is_ours = not isinstance(error, (sqlite3.Error, UnicodeDecodeError))
                    outcomes.append(error if is_ours else self._error_of(error, item))
                connection.execute("RELEASE item")

        self._is_committing = False
        self._write_in(connection, write_each)
        if self._is_wal_lost():
            self._disconnect()
            raise _WalLostError
        if identity_of(self._names[0]) != self._identity[0]:
            for index, item in enumerate(items):
                if isinstance(item, Addition):
                    outcomes[index] = VanishedError(str(self), workflow_id=item.workflow_id)
        return outcomes

    def _note_commit(self) -> None:
        self._is_committing = True

    def _outcome(self, item: Item, *, is_unknown: bool) -> Outcome:
        """Write one item in a transaction of its own, unless it is there already."""
        try:
            if isinstance(item, Work):
                return self._write_one(item)
            if is_unknown:
                return self._add(item, lambda: self._is_there(item) or self._add_once(item))
            return self._add(item, lambda: self._add_once(item))
        except CheckpointStorageError as error:
            error.is_outcome_unknown = error.is_outcome_unknown or is_unknown
            return error
        except Exception as error:
            return error

    def _write_one(self, work: Work) -> Any:
        def write_once() -> Any:
            if work.operation not in _MAKES_THE_FILE and not self.path.exists():
                return self._on_missing_database(work.do)
            connection = self._opened()
            done = self._write_in(connection, partial(work.do, SqliteSession(connection, self._clock)))
            return write_once() if self._is_wal_lost() else done

        with self._alone, self._translated(work.workflow_id, work.operation):
            if work.operation not in _MAKES_ROOM:
                return self._tries.until_done(write_once, work.workflow_id, work.operation)
            done = self._with_reserve(write_once, work.workflow_id, work.operation)
            if self._tries.reserve.is_used:
                with contextlib.suppress(DiskFullError):  # what was asked for is done
                    self._give_back_space()
            return done

    def _with_reserve(self, act: Callable[[], T], workflow_id: str, operation: str) -> T:
        """Do what makes room; on a full disk, with the room of the reserve, which is made again afterwards."""
        if self._tries.reserve.is_used:
            self._empty_wal()  # while it is small: what is copied may make the database larger
        try:
            return self._tries.until_done(act, workflow_id, operation)
        except sqlite3.Error as error:
            if not is_full(error) or not self._tries.reserve.use():
                raise
        self._empty_wal()
        return self._tries.until_done(act, workflow_id, operation)

    def _empty_wal(self) -> None:
        """Copy what is in the WAL to the database, and give the room of the WAL back."""
        if self._connection is not None and self._read_only is None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def settle(self, addition: Addition) -> bool:
        """Write the rows of a save whose outcome is unknown, unless they are there; return whether the fence holds.

        Not after a failed sync: what a read shows then, and what a later sync says, is worth nothing.
        """
        if self._is_distrusted:
            raise CheckpointStorageError(
                f"a sync of the SQLite store {self.path} has failed, so nothing that it shows is sure to be on the disk",
                workflow_id=addition.workflow_id,
                operation="save",
                is_outcome_unknown=True,
                remedy="Check the disk. The run continues unsaved to its end; a resume continues from what is there then.",
            )
        return self._add(addition, lambda: self._is_there(addition) or self._add_once(addition))

    def _add(self, addition: Addition, act: Callable[[], bool]) -> bool:
        with self._alone:
            if not self._is_in_place():
                raise VanishedError(str(self), workflow_id=addition.workflow_id)
            self._is_committing = False
            try:
                is_fence_held = self._tries.until_done(act, addition.workflow_id, "save")
            except sqlite3.Error as error:
                raise self._error_of(error, addition, is_outcome_unknown=self._is_unknown(error)) from error
            except UnicodeDecodeError as error:
                raise self._error_of(error, addition) from error
            except OSError as error:
                raise os_error_of(error, self.path, addition.workflow_id, "save") from error
            if identity_of(self._names[0]) != self._identity[0]:
                raise VanishedError(str(self), workflow_id=addition.workflow_id)
        return is_fence_held

    def _is_unknown(self, error: sqlite3.Error) -> bool:
        """Return whether a commit may have been done; its connection is closed then."""
        # One that is merely busy has committed nothing: the transaction was rolled back.
        is_unknown = self._is_committing and not is_busy(error)
        if is_unknown:
            self._is_distrusted = self._is_distrusted or is_sync(error)
            self._disconnect()
        return is_unknown

    def _error_of(self, error: Any, item: Item, *, is_outcome_unknown: bool = False) -> FlowckptError:
        found = self._explained(error, item.workflow_id, item.operation, is_outcome_unknown=is_outcome_unknown)
        found.__cause__ = error
        return found

    def _explained(
        self, error: Any, workflow_id: str, operation: str, *, is_outcome_unknown: bool = False
    ) -> FlowckptError:
        """Return the error of the store for one of SQLite."""
        if names_what_is_lacking(error) and self._connection is not None:
            with contextlib.suppress(sqlite3.Error, UnicodeDecodeError):
                lost = lacking(SqliteSession(self._connection, self._clock), self.dialect)
                if lost:
                    return damage_of(lost, str(self.path))
        return error_of(error, self.path, workflow_id, operation, is_outcome_unknown=is_outcome_unknown)

    def _is_there(self, addition: Addition) -> bool:
        connection = self._opened()
        found = partial(connection.execute, rows.IS_THERE, addition.identity)
        return bool(in_transaction(connection, lambda: found().fetchall()))

    def _add_once(self, addition: Addition) -> bool:
        connection = self._opened(is_in_place=True)
        self._is_committing = False
        try:
            self._write_in(connection, partial(self._add_fenced, connection, addition))
        except _FencedError:
            return False
        if self._is_wal_lost():
            self._disconnect()
            return self._is_there(addition) or self._add_once(addition)
        return True

    def _add_fenced(self, connection: sqlite3.Connection, addition: Addition) -> None:
        if not self._add_rows(connection, addition):
            raise _FencedError

    @staticmethod
    def _add_rows(connection: sqlite3.Connection, addition: Addition) -> bool:
        execute = connection.execute
        given = addition.advance
        if not execute(rows.ADVANCE_ALONE, given).rowcount and not execute(rows.ADVANCE, given).rowcount:
            return False
        for row in addition.results:
            execute(rows.ADD_RESULT, row)
        execute(rows.ADD_CHECKPOINT, addition.checkpoint)
        for statement, others in addition.others:
            connection.executemany(statement, others)
        return True

    def damages(self) -> list[str]:
        """Return what SQLite itself finds damaged."""

        def read(session: SqliteSession) -> tuple[list[str], list[str]]:
            found = [text for (text,) in session.execute("PRAGMA integrity_check") if text != "ok"]
            return found, [
                f"a row of {table} belongs to no {parent}"
                for table, _, parent, _ in session.execute("PRAGMA foreign_key_check")
            ]

        try:
            found, lost = self.read("", "check", read)
        except CheckpointCorruptedError as error:
            return [error.message]
        if found and (failed := failed_read(self.path, "", "check", found[0].rpartition("\n")[2])) is not None:
            raise failed
        return found + lost

    def total_bytes(self) -> int:
        """Return the sizes of the file and of those beside it, such as the WAL."""
        total = 0
        with contextlib.suppress(FileNotFoundError):
            for each in self.path.parent.iterdir():
                if f"{each.name}-".startswith(f"{self.path.name}-") and each.is_file():
                    total += each.stat().st_size
        return total

    def journal_mode(self) -> str:
        """Return the journal mode of the file; of a missing one the mode that it will have."""
        if not self._size():
            return journal_mode()[0]
        found = self.read("", "check", lambda session: session.execute("PRAGMA journal_mode"))
        return str(found[0][0])

    def give_back_space(self) -> None:
        """Give free pages at the end of the file back to the system, and keep room for a full disk again."""
        with self._alone:
            try:
                self._give_back_space()
            finally:
                if self._tries.reserve.is_used:
                    self._empty_wal()
                    self._tries.reserve.restore()

    def _give_back_space(self) -> None:
        """Give the pages back some at a time, so that no reader waits for long."""

        def give_back_some() -> bool:
            if not self.path.exists():
                return False
            connection = self._opened()
            free = _number(connection, "PRAGMA freelist_count")
            if free:
                pages = _PAGES_AT_ONCE
                if self._tries.reserve.is_used:
                    pages = _PAGES_ON_A_FULL_DISK
                    self._empty_wal()
                with self._guard or _NO_GUARD:
                    connection.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
            return _number(connection, "PRAGMA freelist_count") < free

        with self._alone, self._translated("", "vacuum"):
            while self._with_reserve(give_back_some, "", "vacuum"):
                pass

    # --- how -------------------------------------------------------------------------------------------------------

    @property
    def _alone(self) -> contextlib.AbstractContextManager[object]:
        """The lock that keeps the other threads out."""
        if (
            self._pid != os.getpid()
        ):  # a forked child: its parent's lock may be held forever, its connection is not ours
            if self._connection is not None:
                _abandoned.append(self._connection)
            self._pid, self._lock = os.getpid(), threading.RLock()
            self._connection = self._read_only = self._guard = None
        return self._lock

    def _opened(self, *, is_in_place: bool = False) -> sqlite3.Connection:
        """Return the connection, made again if the file was replaced.

        Args:
            is_in_place: whether the file was just found to be the same.
        """
        if self._read_only is not None or (
            self._connection is not None
            and ((not is_in_place and identity_of(self._names[0]) != self._identity[0]) or self._is_wal_lost())
        ):
            self._disconnect()  # it may be writable by now; or the file was replaced: what there is now counts
        if self._connection is None:
            connection = connect(self.path, allowed=self._allowed)
            try:
                if has_guard():
                    connection.execute("SELECT count(*) FROM sqlite_master")  # makes the WAL and its shared memory
                    self._guard = Guard(self.path.resolve())
                self._bring_up_to_date(connection)
                wal = str(wal_of(self.path)) if journal_mode()[0] == "wal" else ""
                self._names = self._names[0], wal
                self._identity = identity_of(self._names[0]), identity_of(wal)
            except BaseException:
                if self._guard is not None:
                    self._guard.close()
                    self._guard = None
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _is_wal_lost(self) -> bool:
        """Return whether the WAL was removed under the connection: by another copy of SQLite in this very process.

        Locks of the system do not keep two copies in one process apart: the one that closes its connection takes itself for
        the last user of the file. It has copied all that was committed by then.
        """
        name, wal = self._names[1], self._identity[1]
        return name != "" and (wal is None or identity_of(name) != wal)

    def _write_in(self, connection: sqlite3.Connection, act: Callable[[], T]) -> T:
        """Return what a function returns in a transaction that writes, while no other program does."""
        return in_transaction(connection, act, self._begin, self._note_commit, self._guard or _NO_GUARD)

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Begin to write, unless another program has changed the journal mode to one that is not safe here."""
        connection.execute("BEGIN IMMEDIATE")
        if not self._names[1] and journal_mode()[0] != "wal":
            found = connection.execute("PRAGMA journal_mode").fetchone()[0]
            if found == "wal":
                connection.execute("ROLLBACK")
                raise foreign_journal(self.path, found)

    def _opened_to_read(self) -> sqlite3.Connection:
        if self._read_only is None:
            try:
                return self._opened()
            except (sqlite3.Error, OSError) as error:
                if not cannot_be_written(error):
                    raise
        elif identity_of(self._names[0]) == self._identity[0] and self._is_as_it_was():
            return self._read_only.connection
        self._disconnect()
        found = connect_to_read(self.path, allowed=self._allowed)
        try:
            self._check_up_to_date(found.connection)
        except BaseException:
            found.connection.close()
            raise
        self._connection, self._read_only = found.connection, found
        self._identity = identity_of(self._names[0]), None
        return found.connection

    def _is_as_it_was(self) -> bool:
        """Return whether the file has not changed, where it is read as one that does not."""
        found = self._read_only
        return found is None or found.stamp is None or found.stamp == stamp_of(self.path)

    def _check_up_to_date(self, connection: sqlite3.Connection) -> None:
        """Refuse a database that would have to be brought to the newest version before it can be read."""
        version = 0
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (VERSION_TABLE,)).fetchall():
            version = version_of(SqliteSession(connection, self._clock))
            check_version(version)
        if version < len(MIGRATIONS):
            raise ReadOnlyStoreError(
                str(self.path),
                reason=f"its tables are of version {version}, and have to be brought to version {len(MIGRATIONS)} first",
                operation="read",
                remedy="Read it once where it may be written, or read a copy that may.",
            )

    def _bring_up_to_date(self, connection: sqlite3.Connection) -> None:
        session = SqliteSession(connection, self._clock)
        version = 0
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (VERSION_TABLE,)).fetchall():
            version = version_of(session)
            check_version(version)
            if version == len(MIGRATIONS):
                return
        with contextlib.ExitStack() as until_committed:

            def bring() -> None:
                if version:
                    until_committed.enter_context(migration_announced(self.path))
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                migrate(session, self.dialect, str(self.path))

            self._write_in(connection, bring)
        self._tries.reserve.make()

    def _tell_empty(self) -> None:
        """Say once that the file has 0 bytes: a new one has, and one that was a store and was truncated."""
        if not self._has_told_empty:
            _log.warning(
                "the SQLite store %s is an empty file (0 bytes), read as a store without runs; if it held runs, it was "
                "truncated: restore it from a backup",
                self.path,
            )
            self._has_told_empty = True

    def _on_missing_database(self, work: Callable[[SqliteSession], T]) -> T:
        """Do work on an empty database in memory."""
        with contextlib.closing(library().open(":memory:", timeout=0)) as connection:
            add_functions(connection)
            session = SqliteSession(connection, self._clock)
            migrate(session, self.dialect, str(self.path))
            return work(session)

    @contextlib.contextmanager
    def _translated(self, workflow_id: str, operation: str, *, is_write: bool = True) -> Iterator[None]:
        """Let no error of the driver or of the system out: each becomes an error of the store."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._explained(error, workflow_id, operation) from error
        except OSError as error:
            raise os_error_of(error, self.path, workflow_id, operation, is_write=is_write) from error


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(pragma).fetchone()[0])
