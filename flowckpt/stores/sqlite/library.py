"""The SQLite library: Python's own, or the newer one of the extra `flowckpt[sqlite]` if Python's is unsafe in WAL mode.

apsw bundles a current SQLite. A wrapper gives its connection the required methods and errors of `sqlite3`.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import sqlite3
import struct
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import attrs

WAL_IS_SAFE = (3, 51, 3)
"""In older versions, WAL mode can corrupt a database with two open connections."""

Version = tuple[int, ...]


@attrs.frozen
class Library:
    """A SQLite library.

    Attributes:
        name: the Python package.
        version: its version of SQLite.
        open: opens a connection to a path or URI, with a busy timeout in seconds.
    """

    name: str
    version: Version
    open: Callable[..., sqlite3.Connection]

    def __str__(self) -> str:
        return f"SQLite {'.'.join(map(str, self.version))} ({self.name})"


def _open_own(path: str, *, timeout: float, is_uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(path, uri=is_uri, timeout=timeout, isolation_level=None, check_same_thread=False)


OWN = Library("sqlite3", sqlite3.sqlite_version_info, _open_own)


@functools.cache
def library() -> Library:
    """Return the library to use: Python's own if safe in WAL mode, otherwise apsw if installed and newer."""
    if OWN.version >= WAL_IS_SAFE:
        return OWN
    try:
        bundled = load_bundled_library()
    except ImportError:
        return OWN
    return max(OWN, bundled, key=lambda each: each.version)


def load_bundled_library() -> Library:
    """Return the library of the extra.

    Raises:
        ImportError: the extra is not installed.
    """
    import apsw  # noqa: PLC0415 - an extra

    def open_bundled(path: str, *, timeout: float, is_uri: bool = False) -> sqlite3.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | (apsw.SQLITE_OPEN_URI if is_uri else 0)
        connection = ApswConnection(apsw, path, flags)
        connection.set_busy_timeout(timeout)
        return cast("sqlite3.Connection", connection)

    version = tuple(map(int, apsw.sqlite_lib_version().split(".")))
    return Library("apsw", version, open_bundled)


class ApswConnection:
    """A connection of apsw with the required methods and errors of `sqlite3`.

    Args:
        apsw: the module.
        path: the file, or its URI.
        flags: the flags for opening it.
    """

    def __init__(self, apsw: Any, path: str, flags: int) -> None:
        self._apsw = apsw
        self._inner: Any = self._call(apsw.Connection, path, flags)
        self._execute = self._inner.cursor().execute
        self._no_rows = Rows((), self._inner)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return bool(self._call(getattr, self._inner, "in_transaction"))

    def set_busy_timeout(self, seconds: float) -> None:
        """Set the maximum wait for a lock."""
        self._inner.set_busy_timeout(round(seconds * 1000))

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Rows:
        """Run a statement to its end."""
        try:
            rows: list[tuple[Any, ...]] = self._execute(statement, parameters).fetchall()
        except self._apsw.Error as error:
            raise self._translate(error) from error
        return Rows(rows, self._inner) if rows else self._no_rows

    def create_aggregate(self, name: str, count: int, factory: Callable[[], Any]) -> None:
        """Add an aggregate function."""

        def make() -> tuple[Any, Callable[..., None], Callable[[Any], Any]]:
            return factory(), lambda state, *values: state.step(*values), lambda state: state.finalize()

        self._inner.create_aggregate_function(name, make, count)

    def close(self) -> None:
        """Close it."""
        self._call(self._inner.close)

    def _call(self, act: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return act(*arguments)
        except self._apsw.Error as error:
            raise self._translate(error) from error

    def _translate(self, error: Any) -> sqlite3.Error:
        apsw = self._apsw
        code, extended = getattr(error, "result", 0), getattr(error, "extendedresult", 0)
        name = apsw.mapping_extended_result_codes.get(extended) or apsw.mapping_result_codes.get(code) or ""
        translated: sqlite3.Error = sqlite3.OperationalError(str(error))
        if isinstance(error, apsw.ConstraintError):
            translated = sqlite3.IntegrityError(str(error))
        elif isinstance(error, (apsw.ConnectionClosedError, apsw.CursorClosedError)):
            translated = sqlite3.ProgrammingError(str(error))
        translated.sqlite_errorcode, translated.sqlite_errorname = extended or code, name
        return translated


class Rows:
    """The rows that a statement returned."""

    __slots__ = ("_connection", "_rows")

    def __init__(self, rows: Sequence[tuple[Any, ...]], connection: Any) -> None:
        self._rows = rows
        self._connection = connection

    @property
    def rowcount(self) -> int:
        """The number of rows that the statement changed; read it before the next statement."""
        return int(self._connection.changes())

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._rows)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows."""
        return [*self._rows]

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the first row."""
        return self._rows[0] if self._rows else None


# Two copies of SQLite in one process: ours, and Python's own, which a step may use to read the same file.
#
# SQLite's locks belong to the process. So they do not separate the two copies, and a copy that closes a descriptor of
# the file drops the locks of the other one: it would assume to be the last user of the file, and remove the WAL under
# ours. Locks of open file descriptions have neither problem. We hold one for each lock that SQLite holds while a
# connection is open, and one around each transaction, so that two programs never write at the same time.

_SHARED = 0x40000002, 510
_MEMORY_IS_USED = 128, 1
_WRITER = 0x40001000, 1
"""Byte ranges: of the file, of the shared memory, and one that SQLite does not lock."""

_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


class Guard:
    """Locks on a database in WAL mode that another copy of SQLite in this process respects and cannot drop.

    Args:
        path: the file.

    Raises:
        sqlite3.OperationalError: another program is closing the file.
    """

    def __init__(self, path: Path) -> None:
        self._files: list[int] = []
        try:
            self._hold(path, _SHARED)
            self._hold(path.with_name(f"{path.name}-shm"), _MEMORY_IS_USED)
        except BaseException:
            self.close()
            raise
        _guards.add(self)

    def __enter__(self) -> None:
        """Prevent other programs from writing during the block.

        Raises:
            sqlite3.OperationalError: one of them is writing.
        """
        _lock(self._files[0], _WRITING)

    def __exit__(self, *raised: object) -> None:
        _lock(self._files[0], _WRITTEN)

    def close(self) -> None:
        """Release the locks."""
        while self._files:
            os.close(self._files.pop())

    def _hold(self, path: Path, place: tuple[int, int]) -> None:
        self._files.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        _lock(self._files[-1], _pack_lock(fcntl.F_RDLCK, place))


def _pack_lock(kind: int, place: tuple[int, int]) -> bytes:
    start, length = place
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)


_WRITING, _WRITTEN = _pack_lock(fcntl.F_WRLCK, _WRITER), _pack_lock(fcntl.F_UNLCK, _WRITER)


def _lock(file: int, lock: bytes) -> None:
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        busy = sqlite3.OperationalError("database is locked")
        busy.sqlite_errorcode, busy.sqlite_errorname = sqlite3.SQLITE_BUSY, "SQLITE_BUSY"
        raise busy from error


def needs_guard() -> bool:
    """Return whether another copy of SQLite may be in this process, and the system has locks that work with it."""
    return library() is not OWN and library().version >= WAL_IS_SAFE and hasattr(fcntl, "F_OFD_SETLK")


def _close_inherited_guards() -> None:
    """Close the descriptors inherited by a forked child, which would keep the locks of a dead parent."""
    for guard in _guards:
        guard.close()


os.register_at_fork(after_in_child=_close_inherited_guards)
