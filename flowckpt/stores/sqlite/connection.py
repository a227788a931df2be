"""A connection that keeps what it commits: the file, the journal, and whose database it is.

The journal
-----------
Python's default (DELETE with FULL) loses acknowledged commits at a power cut, because the directory is not synced. WAL
with FULL and TRUNCATE with EXTRA lose none. WAL is the quicker one, and corrupts databases up to SQLite 3.51.2 where
two connections are open, so it is used from 3.51.3 on: by Python's own SQLite, or by that of `flowckpt[sqlite]` (`library`).
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

from flowckpt.core.system.filesystem import UNSOUND_FILESYSTEMS, FileSystem, PosixFileSystem, Reserve
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointStorageError,
    DiskFullError,
    ForeignRecordError,
    ReadOnlyStoreError,
    UnsupportedFilesystemError,
)
from flowckpt.stores.file.directory import take_lock
from flowckpt.stores.sql.layout import Dialect
from flowckpt.stores.sqlite.library import WAL_IS_SAFE, Version, library

APPLICATION_ID = 0x666C6F77
"""The application id in the header of our files: `flow`."""

_POLL_SECONDS = 0.02
"""How long SQLite itself waits for another process, each time."""

_making = threading.Lock()
_HAS_STRICT = (3, 37, 0)
_OLDEST = (3, 24, 0)


def sqlite_dialect(version: Version | None = None) -> Dialect:
    """Return how a version of SQLite writes statements.

    Args:
        version: the version of the library; None for the one that is used.
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
    """Return the journal mode and the level of syncing that lose nothing in a version of SQLite.

    Args:
        version: the version of the library; None for the one that is used.
    """
    return ("wal", "FULL") if (version or library().version) >= WAL_IS_SAFE else ("truncate", "EXTRA")


def connect(path: Path, *, allowed: Sequence[str] = (), filesystem: FileSystem | None = None) -> sqlite3.Connection:
    """Return a connection to a database file, which is made where it is missing.

    Args:
        path: the file, absolute.
        allowed: types of file systems that are accepted although their locks are unsound.
        filesystem: the operating-system calls.

    Raises:
        UnsupportedFilesystemError: the file lies where locks cannot be trusted.
        ForeignRecordError: the database is not of flowckpt, or cannot be brought into a safe journal mode.
        OSError: the directory or the file cannot be made.
        sqlite3.Error: the file is not a database.
    """
    calls = filesystem or PosixFileSystem()
    calls.make_root(str(path.parent))
    check_filesystem(path, allowed, calls)
    # SQLite would make it readable for everybody, and its journal after it. Never opened here if it is there already:
    # closing any descriptor of a file drops the locks that this process has on it.
    with _making, contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    _let_write_beside(path)
    connection = library().open(str(path), timeout=_POLL_SECONDS)
    add_functions(connection)
    try:
        check_ours(connection, path)
        if not connection.execute("PRAGMA page_count").fetchone()[0]:  # any other keeps what it has; this would write
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        mode, level = journal_mode()
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute(f"PRAGMA synchronous = {level}")
        found = connection.execute(f"PRAGMA journal_mode = {mode}").fetchone()[0]
        if found != mode:
            raise foreign_journal(path, found)
    except BaseException:
        connection.close()
        raise
    return connection


def _let_write_beside(path: Path) -> None:
    """Give the WAL and its shared memory the mode of the database: they keep that of a moment when it could not be written."""
    path = path.resolve()
    for beside in (wal_of(path), path.with_name(f"{path.name}-shm")):
        with contextlib.suppress(OSError):  # there is none, or it is another user's: SQLite says so
            mode, found = stat.S_IMODE(path.stat().st_mode), beside.lstat()
            if stat.S_ISREG(found.st_mode) and mode & stat.S_IWUSR and not found.st_mode & stat.S_IWUSR:
                beside.chmod(mode)


def foreign_journal(path: Path, found: str) -> ForeignRecordError:
    """Return the error for a database in a journal mode that is not safe with the library that is used here."""
    return ForeignRecordError(
        f"{path} is in journal mode {found!r}, and this program's {library()} needs {journal_mode()[0]!r}",
        workflow_id="",
        found=found,
        remedy="Close the other programs that have it open, then try again. Programs that use one store at the same time need "
        "SQLite on the same side of version 3.51.3: install 'flowckpt[sqlite]' for all of them.",
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
    """Give a connection the functions that `sqlite_dialect` names."""
    connection.create_aggregate("flowckpt_median", 1, _Median)  # type: ignore[arg-type]  # typeshed knows only integers


def check_filesystem(path: Path, allowed: Sequence[str], calls: FileSystem) -> None:
    """Refuse a database on a file system whose locks are unsound.

    Args:
        path: the file.
        allowed: types that are accepted anyway.
        calls: the operating-system calls.

    Raises:
        UnsupportedFilesystemError: it lies on one.
    """
    kind = calls.type_of(str(path.parent))
    if kind not in allowed and kind.startswith(UNSOUND_FILESYSTEMS):
        error = UnsupportedFilesystemError(str(path.parent), filesystem=kind)
        error.remedy = f"Use a local directory, or say that you accept it: SqliteCheckpointStore(…, allow_filesystems=({kind!r},))."
        raise error


def check_ours(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse the database of another program before anything is written to it.

    Args:
        connection: an open connection.
        path: the file.

    Raises:
        ForeignRecordError: it is one.
    """
    connection.execute("BEGIN")  # of one moment: another process may be making the tables just now
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
            remedy="Give a file of its own to flowckpt, as sqlite:runs.db.",
        )


def wal_of(path: Path) -> Path:
    """Return the file of the WAL of a database: beside the file itself, wherever a symbolic link to it is."""
    path = path.resolve()
    return path.with_name(f"{path.name}-wal")


Identity = tuple[int, int]


def identity_of(path: Path | str) -> Identity | None:
    """Return what tells a file from another one of the same name; None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - five times at each save
    except OSError:
        return None
    return status.st_dev, status.st_ino


def check_library(version: Version | None = None) -> str:
    """Return what is wrong with a version of SQLite, or an empty string."""
    version = version or library().version
    if version >= _OLDEST:
        return ""
    return f"SQLite {'.'.join(map(str, version))} is too old: 3.24 or newer is needed"


# A database that can be read here and not written: on a medium, in a directory or of an owner that takes no change.
#
# SQLite itself writes when it only reads: it makes a file of shared memory beside a database in WAL mode, and it rolls back
# what a crash has cut short. Where neither can be done, what is in the file is still whole in these cases:
#
# - in a journal mode other than WAL, with no transaction to be rolled back: a plain read, under SQLite's own locks;
# - in WAL mode, with the WAL and its shared memory beside it: likewise;
# - in WAL mode, with no WAL beside it, or an empty one: everything is in the file. It is read as one that does not change,
#   and it is looked at before and after each read whether that was so.
#
# In all others the newest checkpoints could not be read here, so nothing is read.


NOT_ALLOWED = (errno.EROFS, errno.EACCES, errno.EPERM)
"""The system's errors for a file that may not be written."""

_MODE_AT = 18
_WAL_MODE = b"\x02"
_COPY = "Copy {0} and all files beside it whose names begin so to where they can be written, and read them there."

Stamp = tuple[int, int, int, int, int]


@attrs.frozen
class ReadConnection:
    """A connection that cannot write.

    Attributes:
        connection: the connection.
        stamp: how the file looked, where it is read without locks, as one that does not change.
    """

    connection: sqlite3.Connection
    stamp: Stamp | None = None


def cannot_be_written(error: Exception) -> bool:
    """Return whether an error of opening a database leaves it possible that it can be read.

    Args:
        error: of the system or of SQLite.
    """
    if isinstance(error, OSError):
        return error.errno in NOT_ALLOWED
    return _name_of(error).startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")) or is_full(error)


def connect_to_read(path: Path, *, allowed: Sequence[str] = ()) -> ReadConnection:
    """Return a connection to a database that is there and cannot be written. Nothing is made or changed.

    Args:
        path: the file, absolute.
        allowed: types of file systems that are accepted although their locks are unsound.

    Raises:
        ReadOnlyStoreError: its newest checkpoints cannot be read without writing.
        UnsupportedFilesystemError: the file lies where locks cannot be trusted.
        ForeignRecordError: the database is not of flowckpt.
        OSError: the file cannot be read either.
        sqlite3.Error: the file is not a database.
    """
    check_filesystem(path, allowed, PosixFileSystem())
    with path.open("rb") as file:  # where not even this is allowed, the system's own words are the clearest
        file.seek(_MODE_AT)
        is_wal = file.read(1) == _WAL_MODE
    try:
        return ReadConnection(_connected(path, "mode=ro"))
    except sqlite3.Error as error:
        if _name_of(error).startswith("SQLITE_READONLY") and not is_wal:
            raise _refused(path, "a crash has cut a transaction short, and it cannot be rolled back here") from error
        if not cannot_be_written(error) or not is_wal:
            raise
        stamp = stamp_of(path)
        if stamp is None or _size_of(wal_of(path)):
            raise _refused(
                path, f"its newest checkpoints are in {wal_of(path)}, which cannot be read without writing beside it"
            ) from error
        return ReadConnection(_connected(path, "immutable=1"), stamp)


def stamp_of(path: Path) -> Stamp | None:
    """Return what changes when a database is written that is not locked; None if there is none.

    Args:
        path: the file.
    """
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, _size_of(wal_of(path))
    return None


def _connected(path: Path, how: str) -> sqlite3.Connection:
    connection = library().open(f"{path.as_uri()}?{how}", timeout=_POLL_SECONDS, is_uri=True)
    try:
        add_functions(connection)
        check_ours(connection, path)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _refused(path: Path, reason: str) -> ReadOnlyStoreError:
    return ReadOnlyStoreError(str(path), reason=reason, operation="read", remedy=_COPY.format(path))


def _size_of(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


# Word of a migration in progress: a lock on a small file beside the database, for those who find it busy.
#
# SQLite tells them no more than that the database is locked, and not even its version can be read then. So the process that brings
# the tables forward holds `runs.db-migrating`, and who meets a locked database may look whether that is why, and be more
# patient. Nothing else depends on the file: the lock of a process that died is gone, and what it left means nothing.


def _name_beside(database: Path) -> str:
    return f"{database.name}-migrating"


@contextlib.contextmanager
def migration_announced(database: Path, filesystem: FileSystem | None = None) -> Iterator[None]:
    """Let others know for the block that the tables are being brought forward, as far as a file can be made.

    Args:
        database: the database's file.
        filesystem: the operating-system calls.
    """
    calls, name = filesystem or PosixFileSystem(), _name_beside(database)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # it is a hint: where it cannot be given, others have the usual patience
            parent = calls.open_root(str(database.parent))
            stack.callback(calls.close, parent)
            file = calls.open_lock(parent, name)
            stack.callback(calls.close, file)
            if take_lock(calls, file):
                stack.callback(_removed, calls, parent, name)
        yield


def is_migrating(database: Path, filesystem: FileSystem | None = None) -> bool:
    """Return whether a process is bringing the tables forward just now.

    Args:
        database: the database's file.
        filesystem: the operating-system calls.
    """
    calls = filesystem or PosixFileSystem()
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        parent = calls.open_root(str(database.parent))
        stack.callback(calls.close, parent)
        file = calls.open_read(parent, _name_beside(database))
        stack.callback(calls.close, file)
        return not calls.lock(file)
    return False


def _removed(calls: FileSystem, parent: int, name: str) -> None:
    with contextlib.suppress(OSError):
        calls.unlink(parent, name)


def reserve_of(database: Path) -> Reserve:
    """Return the reserve of a database.

    To remove a run, SQLite first writes what it changes to its journal: about half of the bytes of a run.
    """
    database = database.resolve()
    return Reserve(database.with_name(f"{database.name}-reserve"))


# What SQLite and the system say when something fails, as errors of the store.

BUSY_SECONDS = 60.0
"""How long to wait for other processes that are writing."""

_REMEDY = "Mend the file or the disk; nothing that was acknowledged is lost."
_NO_FILE = "Name the file of a store: --store sqlite:FILE."
_NO_DATABASE = "SQLITE_NOTADB"
_DAMAGED = "SQLITE_CORRUPT"
_AS_WHO_WRITES = os.access in os.supports_effective_ids


def error_of(
    error: sqlite3.Error | UnicodeDecodeError,
    path: Path,
    workflow_id: str,
    operation: str,
    *,
    is_outcome_unknown: bool = False,
) -> CheckpointCorruptedError | CheckpointStorageError:
    """Return the error of the store for one of SQLite.

    Args:
        error: what SQLite raised; a `UnicodeDecodeError` where it names a table or column that is damaged.
        path: the file.
        workflow_id: the run, or an empty text.
        operation: what was being done.
        is_outcome_unknown: whether it may have been done anyway.
    """
    if isinstance(error, UnicodeDecodeError):
        return CheckpointCorruptedError(
            workflow_id,
            location=str(path),
            detail=f"its schema, or a message about it, has bytes that are not text: {error.object[:80]!r}",
            remedy="Nothing was changed. Restore the file from a backup.",
        )
    name = _name_of(error)
    if (reason := _why_read_only(name, path)) and not is_outcome_unknown:
        return ReadOnlyStoreError(str(path), reason=reason, workflow_id=workflow_id, operation=operation)
    if name.startswith(_NO_DATABASE):
        return CheckpointCorruptedError(
            "",
            location=str(path),
            detail="it is not a database of SQLite, or its beginning is damaged",
            remedy="Nothing was changed. Name another file; where it was a store, restore it from a backup.",
        )
    if name.startswith(_DAMAGED):
        if (failed := failed_read(path, workflow_id, operation, str(error))) is not None:
            failed.is_outcome_unknown = is_outcome_unknown
            return failed
        return CheckpointCorruptedError(
            workflow_id,
            location=str(path),
            detail=str(error),
            remedy="Nothing was changed. 'flowckpt store check' says more; restore the file from a backup.",
        )
    if is_busy(error):
        what = f"another process has kept it locked for more than {BUSY_SECONDS:g} s"
        remedy = "See which program has the file open, and end it."
    else:
        what, remedy = f"{error} ({name})" if name else str(error), _REMEDY
    said = f"the SQLite store {path} could not {operation}{_of(workflow_id)}: {what}"
    said += "; whether it was saved is unknown" if is_outcome_unknown else ""
    if is_full(error):
        return DiskFullError(said, workflow_id=workflow_id, operation=operation, is_outcome_unknown=is_outcome_unknown)
    return CheckpointStorageError(
        said, workflow_id=workflow_id, operation=operation, is_outcome_unknown=is_outcome_unknown, remedy=remedy
    )


_LACKS = re.compile("no such (table|column)|has no column named")


def names_what_is_lacking(error: BaseException) -> bool:
    """Return whether SQLite says that a table, a view or a column is not there.

    Args:
        error: what was raised.
    """
    return isinstance(error, sqlite3.Error) and _LACKS.search(str(error)) is not None


_LOOKS = 3

_examined: dict[Identity, int] = {}
"""Open databases, never closed: closing any descriptor of a file gives up all locks that this process has on it."""


def failed_read(path: Path, workflow_id: str, operation: str, said: str) -> CheckpointStorageError | None:
    """Return the error for a database that is not damaged: a page of it could not be read. None if it is damaged.

    SQLite calls both damage. An error of the disk may pass, so everything is read again, past the pages in memory.

    Args:
        path: the file.
        workflow_id: the run, or an empty text.
        operation: what was being done.
        said: what SQLite said.
    """
    for file in (path, wal_of(path)):
        if (error := _unreadable(file)) is not None:
            return os_error_of(error, path, workflow_id, operation, is_write=False)
    if not _is_sound(path):
        return None
    return CheckpointStorageError(
        f"the SQLite store {path} could not {operation}{_of(workflow_id)}: {said}; "
        "all of it was read again without an error, so a read had failed and the file is not damaged",
        workflow_id=workflow_id,
        operation=operation,
        remedy="Try again. If it happens again, look for errors of the disk in the system's log.",
    )


def _unreadable(path: Path) -> OSError | None:
    """Read a whole file, and return what the system refuses it with."""
    try:
        identity = identity_of(path)
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
    """Let SQLite look through a whole database, by connections that have read nothing yet: a disk may fail more than once."""
    found: list[tuple[str]] = []
    for _ in range(_LOOKS):
        before = found
        try:
            with contextlib.closing(
                library().open(f"{path.as_uri()}?mode=ro", timeout=_POLL_SECONDS, is_uri=True)
            ) as second:
                second.execute("PRAGMA cell_size_check = ON")
                found = second.execute("PRAGMA integrity_check").fetchall()
        except (sqlite3.Error, UnicodeDecodeError):
            found = []
        if found == [("ok",)]:
            return True
        if found and found == before:
            break
    return False


def os_error_of(
    error: OSError, path: Path, workflow_id: str, operation: str, *, is_write: bool = True
) -> CheckpointStorageError:
    """Return the error of the store for one of the system.

    Args:
        error: what the system said.
        path: the file.
        workflow_id: the run, or an empty text.
        operation: what was being done.
        is_write: whether that was to write.
    """
    said = error.strerror or str(error)
    if is_write and error.errno in NOT_ALLOWED:
        return ReadOnlyStoreError(str(path), reason=said, workflow_id=workflow_id, operation=operation)
    return CheckpointStorageError(
        f"the SQLite store {path} could not {operation}{_of(workflow_id)}: {said}",
        workflow_id=workflow_id,
        operation=operation,
        remedy=_NO_FILE if error.errno in (errno.EISDIR, errno.ENOTDIR) else _REMEDY,
    )


def is_sync(error: sqlite3.Error) -> bool:
    """Return whether a sync failed: from then on it is unknown what of the file is on the disk, whatever a read shows.

    Args:
        error: what SQLite raised.
    """
    return _name_of(error) in ("SQLITE_IOERR_FSYNC", "SQLITE_IOERR_DIR_FSYNC", "SQLITE_IOERR_CLOSE")


def is_full(error: Exception) -> bool:
    """Return whether the disk may have had no room, for the database or for what must lie beside it."""
    return _name_of(error).startswith(("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHM"))


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another process kept the file locked.

    Args:
        error: what SQLite raised.
    """
    return _name_of(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _why_read_only(name: str, path: Path) -> str:
    """Return why SQLite could not write, by the name of its error; nothing if that is not why."""
    if name.startswith("SQLITE_READONLY") and not name.endswith("DBMOVED"):
        return "SQLite may not change the file, or what must lie beside it"
    if name.startswith("SQLITE_CANTOPEN") and not os.access(path.parent, os.W_OK, effective_ids=_AS_WHO_WRITES):
        return f"the directory {path.parent} takes no new file"
    return ""


def _name_of(error: Exception) -> str:
    name: str = getattr(error, "sqlite_errorname", "")
    return name


def _of(workflow_id: str) -> str:
    return f" run {workflow_id!r}" if workflow_id else ""
