"""A database that can be read here and not written: on a medium, in a directory or of an owner that takes no change.

SQLite itself writes when it only reads: it makes a file of shared memory beside a database in WAL mode, and it rolls back
what a crash has cut short. Where neither can be done, what is in the file is still whole in these cases:

- in a journal mode other than WAL, with no transaction to be rolled back: a plain read, under SQLite's own locks;
- in WAL mode, with the WAL and its shared memory beside it: likewise;
- in WAL mode, with no WAL beside it, or an empty one: everything is in the file. It is read as one that does not change,
  and it is looked at before and after each read whether that was so.

In all others the newest checkpoints could be read by nobody here, so nothing is read.
"""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import attrs

from flowckpt.errors import ReadOnlyStoreError
from flowckpt.filesystem import FileSystem, PosixFileSystem
from flowckpt.stores.sqlite.opening import BUSY_SECONDS, add_functions, check_filesystem, check_ours

NOT_ALLOWED = (errno.EROFS, errno.EACCES, errno.EPERM)
"""What the system says of a file that may not be written."""

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
    """Tell whether an error of opening a database leaves it possible that it can be read.

    Args:
        error: of the system or of SQLite.
    """
    if isinstance(error, OSError):
        return error.errno in NOT_ALLOWED
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN"))


def connect_to_read(path: Path, *, allowed: Sequence[str] = (), filesystem: FileSystem | None = None) -> ReadConnection:
    """Return a connection to a database that is there and cannot be written. Nothing is made or changed.

    Args:
        path: the file, absolute.
        allowed: types of file systems that are accepted although their locks are unsound.
        filesystem: the operating-system calls.

    Raises:
        ReadOnlyStoreError: its newest checkpoints cannot be read without writing.
        UnsupportedFilesystemError: the file lies where locks cannot be trusted.
        ForeignRecordError: the database is not of flowckpt.
        OSError: the file cannot be read either.
        sqlite3.Error: the file is no database.
    """
    check_filesystem(path, allowed, filesystem or PosixFileSystem())
    with path.open("rb") as file:  # where not even this is allowed, the system's own words are the clearest
        file.seek(_MODE_AT)
        is_wal = file.read(1) == _WAL_MODE
    try:
        return ReadConnection(_connected(path, "mode=ro"))
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith("SQLITE_READONLY"):
            raise _refused(path, "a crash has cut a transaction short, and it cannot be rolled back here") from error
        if not is_wal or not name.startswith("SQLITE_CANTOPEN"):
            raise
        stamp = stamp_of(path)
        if stamp is None or _size_of(_wal_of(path)):
            raise _refused(
                path, f"its newest checkpoints are in {_wal_of(path)}, which cannot be read without writing beside it"
            ) from error
        return ReadConnection(_connected(path, "immutable=1"), stamp)


def stamp_of(path: Path) -> Stamp | None:
    """Return what changes when a database is written that nobody locks; None where there is none.

    Args:
        path: the file.
    """
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, _size_of(_wal_of(path))
    return None


def _connected(path: Path, how: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?{how}", uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
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


def _wal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _size_of(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
