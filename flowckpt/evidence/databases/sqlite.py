"""Rows of an SQLite database, read by a connection that can do nothing else.

- The path goes through the sandbox, and is percent-encoded in the URI, so that it cannot add options.
- `mode=ro` creates nothing. A database in WAL mode that no process has open is opened `immutable`, because SQLite would
  create a `-wal` and a `-shm` file even for reading; one that a process has open is opened with `readonly_shm`.
- A killed writer may leave a journal that SQLite has to roll back before it reads anything (a *hot* journal), or a WAL
  without its index. SQLite does that in a private copy.
- Identifiers come from the catalogue, values are bound, and an authorizer denies all but SELECT and READ: no functions,
  no pragmas, no ATTACH, no recursion.
- The time is limited by a progress handler and the size of a value by SQLite itself.
"""

from __future__ import annotations

import math
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flowckpt.evidence.checks.base import (
    CheckContext,
    CheckTimeoutError,
    Deadline,
    MalformedClaimError,
    NoSuchThingError,
    Query,
    RefusedClaimError,
    UncheckableClaimError,
    check_encodable,
)
from flowckpt.evidence.documents import is_digest, matches_digest
from flowckpt.evidence.sandbox import format_path

_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ})
_STEPS = 1_000  # instructions of SQLite's machine between two checks of the clock
_CHUNK = 1 << 20
_WAL = 2  # the file format's version in bytes 18 and 19 of the header (sqlite.org/fileformat.html)


class Sqlite:
    """Reads SQLite files."""

    @contextmanager
    def rows(self, database: str, query: Query, context: CheckContext) -> Iterator[Iterator[tuple[Any, ...]]]:
        """Return all matching rows of a table or view."""
        for name, value in query.where.items():
            _check_value(name, value)
        deadline = context.deadline_after(context.settings.limits.query_seconds)
        try:
            with _open(database, context, deadline) as connection:
                sql = _make_query(connection, database, query)
                connection.set_authorizer(_authorize)
                with closing(connection.execute(sql, list(query.where.values()))) as cursor:
                    yield iter(cursor)
        except sqlite3.Error as error:
            if deadline.is_over():
                raise CheckTimeoutError(f"the query took longer than the limit of {deadline.seconds:g} s") from error
            raise _translate_error(error, database) from error

    def is_same(self, wanted: Any, found: Any) -> bool:
        """Compare strictly, but numbers by value: SQLite has no booleans, and stores 1.0 as 1 among integers."""
        if is_digest(wanted):
            return matches_digest(wanted, found)
        _check_value("values", wanted)
        if isinstance(wanted, int | float) and isinstance(found, int | float):
            return wanted == found
        return type(wanted) is type(found) and bool(wanted == found)


@contextmanager
def _open(database: str, context: CheckContext, deadline: Deadline) -> Iterator[sqlite3.Connection]:
    try:
        path, status = context.sandbox.real_path(database)
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchThingError(f"the database {format_path(database)} does not exist") from None
    if status.st_size == 0:
        raise NoSuchThingError(f"the database {format_path(database)} is empty")
    options = "mode=ro&immutable=1" if _is_wal_at_rest(database, path, context) else "mode=ro&readonly_shm=1"
    with ExitStack() as opened:
        try:
            connection = _connect(path, options, context, deadline)
        except sqlite3.Error as error:
            if not _is_refused(error):
                raise
            copy = _copy_with_journals(database, path, opened, context, deadline)
            if copy is None:
                raise
            connection = _connect(copy, "mode=rw", context, deadline)
        except ValueError as error:  # an embedded NUL, and the like
            raise RefusedClaimError(f"{format_path(database)} is not the path of a database") from error
        opened.enter_context(closing(connection))
        now = Path(path).lstat()
        if (now.st_dev, now.st_ino) != (status.st_dev, status.st_ino):
            raise RefusedClaimError(f"{format_path(database)} was replaced while it was being opened")
        yield connection


def _connect(path: str, options: str, context: CheckContext, deadline: Deadline) -> sqlite3.Connection:
    uri = f"file:{quote(os.fsencode(path), safe='/')}?{options}"
    connection = sqlite3.connect(uri, uri=True, timeout=min(deadline.left(), 5.0), isolation_level=None)
    try:
        connection.set_progress_handler(deadline.is_over, _STEPS)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, context.settings.limits.value_bytes)
        connection.text_factory = _decode_text
        for pragma in ("query_only = 1", "trusted_schema = 0", "cell_size_check = 1", "mmap_size = 0"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("BEGIN")  # the catalogue and the rows come from one snapshot
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # this opens the file
    except BaseException:
        connection.close()
        raise
    return connection


def _copy_with_journals(
    database: str, path: str, opened: ExitStack, context: CheckContext, deadline: Deadline
) -> str | None:
    """Copy a database with what a killed writer left beside it; return the copy's path, None if it left nothing.

    Raises:
        UncheckableClaimError: another process writes the database, or it cannot be copied.
    """
    found, where = _list_files(path), format_path(database)
    if len(found) == 1:
        return None
    try:
        copy = f"{opened.enter_context(tempfile.TemporaryDirectory(prefix='flowckpt-'))}/database"
        for suffix in found:
            file = context.sandbox.open_file(database + suffix)
            with os.fdopen(file, "rb") as source, Path(copy + suffix).open("xb") as target:
                while data := source.read(_CHUNK):
                    deadline.left()
                    target.write(data)
    except OSError as error:
        raise UncheckableClaimError(
            f"{where} cannot be read without being changed: a crash left a journal, and a copy failed: {error.strerror}",
            remedy=_format_opening(where),
        ) from error
    if _list_files(path) != found:
        raise UncheckableClaimError(f"the database {where} is being written")
    return copy


def _list_files(path: str) -> dict[str, tuple[int, int, int]]:
    """Return the files of a database by suffix, with what changes when one is written."""
    found = {}
    for suffix in ("", "-journal", "-wal"):
        with suppress(FileNotFoundError):
            status = os.lstat(path + suffix)
            found[suffix] = status.st_ino, status.st_size, status.st_mtime_ns
    return found


def _is_refused(error: sqlite3.Error) -> bool:
    """Return whether SQLite could only read the database by writing to it."""
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN"))


def _is_wal_at_rest(database: str, path: str, context: CheckContext) -> bool:
    file = context.sandbox.open_file(database)
    try:
        header = os.pread(file, 20, 0)
    finally:
        os.close(file)
    return len(header) == 20 and header[18] == _WAL and not os.path.lexists(f"{path}-wal")


def _make_query(connection: sqlite3.Connection, database: str, query: Query) -> str:
    """Build the query out of names that the catalogue knows."""
    found = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view') AND name = ? COLLATE NOCASE",
        [check_encodable(query.table)],
    ).fetchone()
    if found is None:
        raise NoSuchThingError(f"{format_path(database)} has no table {query.table!r:.80}")
    table, definition = found
    if isinstance(definition, str) and definition[:22].upper().split()[:2] == ["CREATE", "VIRTUAL"]:
        raise RefusedClaimError(f"{table!r:.80} is a virtual table: reading it would run the code of its module")
    columns = {row[1].lower(): row[1] for row in connection.execute(f"PRAGMA table_xinfo({_quote(table)})")}
    for name in (*query.columns, *query.where):
        if name.lower() not in columns:
            raise NoSuchThingError(f"the table {table!r:.80} has no column {name!r:.80}")
    wanted = ", ".join(_quote(columns[name.lower()]) for name in query.columns) or "1"
    conditions = " AND ".join(f"{_quote(columns[name.lower()])} IS ?" for name in query.where) or "1"
    return f"SELECT {wanted} FROM main.{_quote(table)} WHERE {conditions}"  # noqa: S608 - names of the catalogue


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _decode_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _authorize(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _check_value(name: str, value: object) -> None:
    if value is None or (isinstance(value, bool | str | bytes) and type(value) in (bool, str, bytes)):
        if isinstance(value, str):
            check_encodable(value)
        return
    if type(value) is int and -(2**63) <= value < 2**63:
        return
    if type(value) is float and not math.isnan(value):
        return
    raise MalformedClaimError(
        f"the value of {name!r:.80} is a {type(value).__name__} that SQLite cannot hold",
        remedy="Write None, a bool, an int of 64 bits, a float, a text or bytes, as the table stores it.",
    )


def _format_opening(where: str) -> str:
    return f"Open it once by a command that may write it, such as: sqlite3 {where} .tables"


def _translate_error(error: sqlite3.Error, database: str) -> Exception:
    name = getattr(error, "sqlite_errorname", "")
    where = format_path(database)
    if name in ("SQLITE_BUSY", "SQLITE_LOCKED") or name.startswith("SQLITE_BUSY_"):
        return UncheckableClaimError(f"the database {where} is locked by a writer")
    if name == "SQLITE_NOTADB":
        return UncheckableClaimError(f"{where} is not an SQLite database")
    if name.startswith("SQLITE_AUTH") or "prohibited" in str(error) or "not authorized" in str(error):
        return RefusedClaimError(f"reading that of {where} would do more than read: {error!s:.120}")
    if _is_refused(error):
        return UncheckableClaimError(
            f"{where} cannot be read without being changed, or its directory is not accessible",
            remedy=_format_opening(where),
        )
    if name == "SQLITE_TOOBIG":
        return RefusedClaimError(f"a value in {where} is larger than the limit", remedy="Raise Limits.value_bytes.")
    return UncheckableClaimError(f"the database {where} cannot be read: {error!s:.120}")
