"""Durable connections to a database file: its location, its journal mode, and checks that it is flowckpt's.

The journal
-----------
Python's default (DELETE with FULL) loses acknowledged commits at a power cut, because the directory is not synced. WAL
with FULL and TRUNCATE with EXTRA lose none. WAL is faster, but up to SQLite 3.51.2 it can corrupt a database with two
open connections. So it is used from 3.51.3 on, with Python's own SQLite or that of `flowckpt[sqlite]` (`library`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
import stat
import threading
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from flowckpt.core.system.filesystem import (
    NOT_ALLOWED,
    UNSOUND_FILESYSTEMS,
    Directory,
    FileSystem,
    PosixFileSystem,
    Reserve,
    held_open,
)
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointStorageError,
    DiskFullError,
    ForeignRecordError,
    ReadOnlyStoreError,
    UnsupportedFilesystemError,
)
from flowckpt.stores.file.directory import take_lock
from flowckpt.stores.sql.database import closed_on_error, storage_error
from flowckpt.stores.sql.layout import Dialect
from flowckpt.stores.sqlite.library import WAL_IS_SAFE, Version, library

APPLICATION_ID = 0x666C6F77
"""The application id in the header of flowckpt's files: `flow`."""

_POLL_SECONDS = 0.02
"""Seconds of each wait of SQLite itself for another process."""

_making = threading.Lock()
_HAS_STRICT = (3, 37, 0)
_OLDEST = (3, 24, 0)


def sqlite_dialect(version: Version | None = None) -> Dialect:
    """Return the dialect of a version of SQLite.

    Args:
        version: the version of the library; None for the one in use.
    """
    has_strict = (version or library().version) >= _HAS_STRICT
    return Dialect(
        "sqlite",
        {
            "key": "INTEGER PRIMARY KEY",
            "int": "INTEGER",
            "real": "REAL",
            "bool": "INTEGER",
            "time": "TEXT",
            "json": "TEXT",
            "bytes": "BLOB",
            "strict": " STRICT" if has_strict else "",
            "rowless": " WITHOUT ROWID, STRICT" if has_strict else " WITHOUT ROWID",
            "often": "",
            "now": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
            "day": "substr(saved_at, 1, 10)",
            "figures": "json_extract(t.document, '$.figures')",
            "median": "flowckpt_median(duration_ms)",
            "tables": "sqlite_master WHERE type = 'table'",
            "columns": "(SELECT m.name, p.name AS of_it FROM sqlite_master m JOIN pragma_table_info(m.name) p "
            "WHERE m.type = 'table' UNION ALL SELECT name, '' FROM sqlite_master WHERE type = 'view')",
            "drop_contents": """
CREATE TRIGGER drop_contents AFTER DELETE ON blobs BEGIN
  DELETE FROM blob_contents WHERE name = OLD.name AND NOT EXISTS (SELECT 1 FROM blobs WHERE name = OLD.name);
END
""",
        },
    )


def journal_mode(version: Version | None = None) -> tuple[str, str]:
    """Return the journal mode and the level of syncing that are durable in a version of SQLite.

    Args:
        version: the version of the library; None for the one in use.
    """
    return ("wal", "FULL") if (version or library().version) >= WAL_IS_SAFE else ("truncate", "EXTRA")


def connect(path: Path, *, allowed: Sequence[str] = (), filesystem: FileSystem | None = None) -> sqlite3.Connection:
    """Return a connection to a database file, created if it is missing.

    Args:
        path: the file, absolute.
        allowed: types of file systems to accept despite unsound locks.
        filesystem: the operating-system calls.

    Raises:
        UnsupportedFilesystemError: the file is on a file system with unsound locks.
        ForeignRecordError: the database is not flowckpt's, or cannot be set to a safe journal mode.
        OSError: the directory or the file cannot be created.
        sqlite3.Error: the file is not a database.
    """
    calls = filesystem or PosixFileSystem()
    calls.make_root(str(path.parent))
    check_filesystem(path, allowed, calls)
    # SQLite would make it readable by all users, and so its journal. An existing file must not be opened here: closing
    # any descriptor of a file drops the locks that this process has on it.
    with _making, contextlib.suppress(FileExistsError):
        os.close(os.open(path.resolve(), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    _copy_mode_to_wal(path)
    connection = _open(path)
    with closed_on_error(connection):
        if not connection.execute("PRAGMA page_count").fetchone()[0]:  # new: this writes
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        mode, level = journal_mode()
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA synchronous = {level}")
        connection.execute("PRAGMA wal_autocheckpoint = 300")  # pages; a sync takes longer while the WAL still grows
        actual_mode = connection.execute(f"PRAGMA journal_mode = {mode}").fetchone()[0]
        if actual_mode != mode:
            raise foreign_journal_error(path, actual_mode)
    return connection


def _open(path: Path, options: str = "") -> sqlite3.Connection:
    """Return a connection to a file, if it is flowckpt's, with the settings that reading needs."""
    # A URI, because apsw takes no path that is not UTF-8.
    connection = library().open(f"{path.as_uri()}{options}", timeout=_POLL_SECONDS, is_uri=True)
    with closed_on_error(connection):
        add_functions(connection)
        check_ownership(connection, path)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _copy_mode_to_wal(path: Path) -> None:
    """Give the WAL and its shared memory the mode of the database, which may have been read-only before."""
    path = path.resolve()
    for beside in (wal_path(path), path.with_name(f"{path.name}-shm")):
        with contextlib.suppress(OSError):  # missing, or another user's: SQLite reports it
            mode, status = stat.S_IMODE(path.stat().st_mode), beside.lstat()
            if stat.S_ISREG(status.st_mode) and mode & stat.S_IWUSR and not status.st_mode & stat.S_IWUSR:
                beside.chmod(mode)


def foreign_journal_error(path: Path, mode: str) -> ForeignRecordError:
    """Return the error for a database in a journal mode that is unsafe with the library in use."""
    return ForeignRecordError(
        f"{path} is in journal mode {mode!r}, and this program's {library()} needs {journal_mode()[0]!r}",
        workflow_id="",
        found=mode,
        remedy="Close the other programs that have it open, then try again. Concurrent programs of one store must all "
        "have SQLite 3.51.3 or newer, or all an older one: install 'flowckpt[sqlite]' for all of them.",
    )


class _Median:
    """The median of a group, for SQLite: sorting all rows of all groups in SQL takes eight times as long."""

    def __init__(self) -> None:
        self._values = array("d")

    def step(self, value: float) -> None:
        """Add a value."""
        self._values.append(value)

    def finalize(self) -> float | None:
        """Return the median."""
        ordered, count = sorted(self._values), len(self._values)
        return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2 if count else None


def add_functions(connection: sqlite3.Connection) -> None:
    """Add the functions that `sqlite_dialect` uses to a connection."""
    connection.create_aggregate("flowckpt_median", 1, _Median)  # type: ignore[arg-type]  # typeshed allows only integers


def check_filesystem(path: Path, allowed: Sequence[str], calls: FileSystem) -> None:
    """Refuse a database on a file system whose locks are unsound.

    Args:
        path: the file.
        allowed: types to accept anyway.
        calls: the operating-system calls.

    Raises:
        UnsupportedFilesystemError: the file is on such a file system.
    """
    kind = calls.type_of(str(path.parent))
    if kind not in allowed and kind.startswith(UNSOUND_FILESYSTEMS):
        error = UnsupportedFilesystemError(str(path.parent), filesystem=kind)
        error.remedy = (
            f"Use a local directory, or accept the risk: SqliteCheckpointStore(…, allow_filesystems=({kind!r},))."
        )
        raise error


def check_ownership(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse the database of another program before anything is written to it.

    Args:
        connection: an open connection.
        path: the file.

    Raises:
        ForeignRecordError: the database belongs to another program.
    """
    connection.execute("BEGIN")  # one snapshot: another process may be creating the tables
    number = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master ORDER BY name LIMIT 5")]
    connection.execute("COMMIT")
    if number == APPLICATION_ID:
        return
    if number or tables:
        what = f"tables {', '.join(tables)}" if tables else f"the application id {number:#x}"
        raise ForeignRecordError(
            f"{path} is a database of another program: it has {what}",
            workflow_id="",
            found=what,
            remedy="Use a separate file for flowckpt, such as sqlite:runs.db.",
        )


def wal_path(path: Path) -> Path:
    """Return the path of a database's WAL: next to the file itself, not next to a symbolic link to it."""
    path = path.resolve()
    return path.with_name(f"{path.name}-wal")


Identity = tuple[int, int]


def identify_file(path: Path | str) -> Identity | None:
    """Return the identity of a file, which differs from others of the same name; None if it is missing."""
    try:
        status = os.stat(path)  # noqa: PTH116 - five times at each save
    except OSError:
        return None
    return status.st_dev, status.st_ino


def find_library_problem(version: Version | None = None) -> str:
    """Return why a version of SQLite cannot be used, or an empty string."""
    version = version or library().version
    if version >= _OLDEST:
        return ""
    return f"SQLite {'.'.join(map(str, version))} is too old: 3.24 or newer is needed"


# Databases that can be read but not written: on a read-only medium or directory, or another user's.
#
# SQLite writes even when it reads: it creates a file of shared memory next to a database in WAL mode, and rolls back
# transactions that a crash interrupted. If neither is possible, the file is still complete in these cases:
#
# - in a journal mode other than WAL, without a transaction to roll back: a normal read, under SQLite's own locks;
# - in WAL mode, with an existing WAL and shared memory: the same;
# - in WAL mode, without a WAL, or with an empty one: everything is in the file. It is read as an immutable file, and
#   checked for changes before and after each read.
#
# In all other cases the newest checkpoints could not be read, so nothing is read.


_MODE_AT = 18
_WAL_MODE = b"\x02"
_COPY = "Copy {0} and all files next to it whose names start with its name to a writable place, and read them there."

Stamp = tuple[int, int, int, int, int]


@attrs.frozen
class ReadConnection:
    """A connection that cannot write.

    Attributes:
        connection: the connection.
        stamp: the state of the file if it is read without locks, as an immutable file; otherwise None.
    """

    connection: sqlite3.Connection
    stamp: Stamp | None = None


def is_write_refused(error: Exception) -> bool:
    """Return whether a database may be readable despite an error of opening it.

    Args:
        error: an error of the operating system or of SQLite.
    """
    if isinstance(error, OSError):
        return error.errno in NOT_ALLOWED
    return _error_name(error).startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")) or is_full(error)


def connect_to_read(path: Path, *, allowed: Sequence[str] = ()) -> ReadConnection:
    """Return a connection to an existing database that cannot be written. Nothing is created or changed.

    Args:
        path: the file, absolute.
        allowed: types of file systems to accept despite unsound locks.

    Raises:
        ReadOnlyStoreError: its newest checkpoints cannot be read without writing.
        UnsupportedFilesystemError: the file is on a file system with unsound locks.
        ForeignRecordError: the database is not flowckpt's.
        OSError: the file cannot be read either.
        sqlite3.Error: the file is not a database.
    """
    check_filesystem(path, allowed, PosixFileSystem())
    with path.open("rb") as file:  # if this fails, too, the system's own message is the clearest
        file.seek(_MODE_AT)
        is_wal = file.read(1) == _WAL_MODE
    try:
        return ReadConnection(_open(path, "?mode=ro"))
    except sqlite3.Error as error:
        if _error_name(error).startswith("SQLITE_READONLY") and not is_wal:
            raise _read_error(path, "a crash interrupted a transaction, which cannot be rolled back here") from error
        if not is_write_refused(error) or not is_wal:
            raise
        stamp = read_stamp(path)
        if stamp is None or _read_size(wal_path(path)):
            raise _read_error(
                path, f"its newest checkpoints are in {wal_path(path)}, which cannot be read without writing next to it"
            ) from error
        return ReadConnection(_open(path, "?immutable=1"), stamp)


def read_stamp(path: Path) -> Stamp | None:
    """Return a state that changes when an unlocked database is written; None if the file is missing.

    Args:
        path: the file.
    """
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, _read_size(wal_path(path))
    return None


def _read_error(path: Path, reason: str) -> ReadOnlyStoreError:
    return ReadOnlyStoreError(str(path), reason=reason, operation="read", remedy=_COPY.format(path))


def _read_size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


# A sign of a migration in progress: a lock on a small file next to the database, for processes that find it busy.
#
# SQLite reports only that the database is locked, and not even its version can be read then. So a process that migrates
# the tables locks `runs.db-migrating`, and a process that meets a locked database checks that lock, and waits longer if
# it is held. Nothing else depends on the file: the lock of a dead process is gone, and a remaining file has no meaning.


def _marker_name(database: Path) -> str:
    return f"{database.name}-migrating"


@contextlib.contextmanager
def announce_migration(database: Path, filesystem: FileSystem | None = None) -> Iterator[None]:
    """Announce a migration for the block, if the file can be created.

    Args:
        database: the database's file.
        filesystem: the operating-system calls.
    """
    calls, name = filesystem or PosixFileSystem(), _marker_name(database)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # only a hint: without it, others wait for the usual time
            parent = stack.enter_context(Directory.at(calls, str(database.parent)))
            file = stack.enter_context(held_open(calls, parent.open_lock(name)))
            if take_lock(calls, file):
                stack.callback(parent.discard, name, OSError)
        yield


def is_migrating(database: Path, filesystem: FileSystem | None = None) -> bool:
    """Return whether a process is migrating the tables.

    Args:
        database: the database's file.
        filesystem: the operating-system calls.
    """
    calls = filesystem or PosixFileSystem()
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        parent = stack.enter_context(Directory.at(calls, str(database.parent)))
        file = stack.enter_context(parent.reading(_marker_name(database)))
        return not calls.lock(file)
    return False


def reserve_of(database: Path) -> Reserve:
    """Return the reserve of a database.

    To remove a run, SQLite first writes the changes to its journal: about half of the run's size.
    """
    database = database.resolve()
    return Reserve(database.with_name(f"{database.name}-reserve"))


# The errors of SQLite and the operating system, as errors of the store.

BUSY_SECONDS = 60.0
"""Maximum seconds to wait for other processes that are writing."""

_REMEDY = "Repair the file or the disk; no acknowledged checkpoint is lost."
_NO_FILE = "Pass the file of a store: --store sqlite:FILE."
_NO_DATABASE = "SQLITE_NOTADB"
_DAMAGED = "SQLITE_CORRUPT"
_AS_WHO_WRITES = os.access in os.supports_effective_ids


def translate_error(
    error: sqlite3.Error | UnicodeDecodeError,
    path: Path,
    workflow_id: str,
    operation: str,
    *,
    is_outcome_unknown: bool = False,
) -> CheckpointCorruptedError | CheckpointStorageError:
    """Return the store's error for an error of SQLite.

    Args:
        error: SQLite's error; a `UnicodeDecodeError` if its message contains a damaged name of a table or column.
        path: the file.
        workflow_id: the run; may be empty.
        operation: the verb for the failed operation.
        is_outcome_unknown: whether the operation may have succeeded anyway.
    """
    if isinstance(error, UnicodeDecodeError):
        return CheckpointCorruptedError(
            workflow_id,
            location=str(path),
            detail=f"its schema, or a message about it, contains bytes that are not text: {error.object[:80]!r}",
            remedy="Nothing was changed. Restore the file from a backup.",
        )
    name = _error_name(error)
    if (reason := _find_read_only_reason(name, path)) and not is_outcome_unknown:
        return ReadOnlyStoreError(str(path), reason=reason, workflow_id=workflow_id, operation=operation)
    if name.startswith(_NO_DATABASE):
        return CheckpointCorruptedError(
            "",
            location=str(path),
            detail="it is not a SQLite database, or its beginning is damaged",
            remedy="Nothing was changed. Use another file, or restore this one from a backup.",
        )
    if name.startswith(_DAMAGED):
        if (failed := diagnose_failed_read(path, workflow_id, operation, str(error))) is not None:
            failed.is_outcome_unknown = is_outcome_unknown
            return failed
        return CheckpointCorruptedError(
            workflow_id,
            location=str(path),
            detail=str(error),
            remedy="Nothing was changed. 'flowckpt store check' shows details; restore the file from a backup.",
        )
    if is_busy(error):
        reason = f"another process has kept it locked for more than {BUSY_SECONDS:g} s"
        remedy = "Find the program that has the file open, and end it."
    else:
        reason, remedy = f"{error} ({name})" if name else str(error), _REMEDY
    if is_outcome_unknown:
        reason += "; whether it was saved is unknown"
    failure = storage_error(
        f"the SQLite store {path}", workflow_id, operation, reason, remedy=remedy, is_outcome_unknown=is_outcome_unknown
    )
    if is_full(error):
        return DiskFullError(
            failure.message, workflow_id=workflow_id, operation=operation, is_outcome_unknown=is_outcome_unknown
        )
    return failure


_MISSING = re.compile("no such (table|column)|has no column named")


def reports_missing_schema(error: BaseException) -> bool:
    """Return whether SQLite reports a missing table, view or column.

    Args:
        error: the error.
    """
    return isinstance(error, sqlite3.Error) and _MISSING.search(str(error)) is not None


_MOST_TRIES = 3

_examined: dict[Identity, int] = {}
"""Open databases, never closed: closing any descriptor of a file drops all locks that this process has on it."""


def diagnose_failed_read(path: Path, workflow_id: str, operation: str, message: str) -> CheckpointStorageError | None:
    """Return the error if a page could not be read but the database is intact; None if it is damaged.

    SQLite reports both as damage. A disk error may be temporary, so the whole file is read again, bypassing cached
    pages.

    Args:
        path: the file.
        workflow_id: the run; may be empty.
        operation: the verb for the failed operation.
        message: SQLite's message.
    """
    for file in (path, wal_path(path)):
        if (error := _try_to_read(file)) is not None:
            return translate_os_error(error, path, workflow_id, operation, is_write=False)
    if not _is_sound(path):
        return None
    return storage_error(
        f"the SQLite store {path}",
        workflow_id,
        operation,
        f"{message}; all of it was then read without an error, so the file is not damaged",
        remedy="Try again. If it happens again, look for disk errors in the system log.",
    )


def _try_to_read(path: Path) -> OSError | None:
    """Read a whole file, and return what the system refuses it with."""
    try:
        identity = identify_file(path)
        if identity is not None:
            if identity not in _examined:
                _examined[identity] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            offset = 0
            while content := os.pread(_examined[identity], 1 << 20, offset):
                offset += len(content)
    except OSError as error:
        return error
    return None


def _is_sound(path: Path) -> bool:
    """Check a whole database by new connections, more than once, because a disk may fail repeatedly."""
    report: list[tuple[str]] = []
    for _ in range(_MOST_TRIES):
        previous = report
        try:
            with contextlib.closing(
                library().open(f"{path.as_uri()}?mode=ro", timeout=_POLL_SECONDS, is_uri=True)
            ) as connection:
                connection.execute("PRAGMA cell_size_check = ON")
                report = connection.execute("PRAGMA integrity_check").fetchall()
        except (sqlite3.Error, UnicodeDecodeError):
            report = []
        if report == [("ok",)]:
            return True
        if report and report == previous:
            break
    return False


def translate_os_error(
    error: OSError, path: Path, workflow_id: str, operation: str, *, is_write: bool = True
) -> CheckpointStorageError:
    """Return the store's error for an operating-system error.

    Args:
        error: the operating-system error.
        path: the file.
        workflow_id: the run; may be empty.
        operation: the verb for the failed operation.
        is_write: whether the operation writes.
    """
    message = error.strerror or str(error)
    if is_write and error.errno in NOT_ALLOWED:
        return ReadOnlyStoreError(str(path), reason=message, workflow_id=workflow_id, operation=operation)
    remedy = _NO_FILE if error.errno in (errno.EISDIR, errno.ENOTDIR) else _REMEDY
    return storage_error(f"the SQLite store {path}", workflow_id, operation, message, remedy=remedy)


def is_failed_sync(error: sqlite3.Error) -> bool:
    """Return whether a sync failed, after which the state of the file on the disk is unknown, whatever reads return.

    Args:
        error: SQLite's error.
    """
    return _error_name(error) in ("SQLITE_IOERR_FSYNC", "SQLITE_IOERR_DIR_FSYNC", "SQLITE_IOERR_CLOSE")


def is_full(error: Exception) -> bool:
    """Return whether the disk may have been full, for the database or the files next to it."""
    return _error_name(error).startswith(("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHM"))


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another process kept the file locked.

    Args:
        error: SQLite's error.
    """
    return _error_name(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _find_read_only_reason(name: str, path: Path) -> str:
    """Return why SQLite could not write, by the name of its error; empty for other errors."""
    if name.startswith("SQLITE_READONLY") and not name.endswith("DBMOVED"):
        return "SQLite has no permission to change the file, or the files next to it"
    if name.startswith("SQLITE_CANTOPEN") and not os.access(path.parent, os.W_OK, effective_ids=_AS_WHO_WRITES):
        return f"no file can be created in the directory {path.parent}"
    return ""


def _error_name(error: Exception) -> str:
    name: str = getattr(error, "sqlite_errorname", "")
    return name
