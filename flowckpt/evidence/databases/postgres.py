"""Rows of a PostgreSQL database, read in a transaction that can do nothing else.

- `postgres_url` checks the URL: which servers may be queried, and with which options.
- One read-only transaction with one snapshot; identifiers come from the catalogue, values are bound.
- The server ends the query at its time limit; if it does not answer at all, the connection is closed from here.
- Only the server can forbid effects of a view's functions other than writes to tables: use a role that may only read.

A value is bound as text and cast to the column's own type, so that the server neither rounds nor guesses: a value that
does not fit a column exactly is in none of its rows. Numbers are compared in decimal notation: 0.1 is 0.1, whether
numeric or float. Types without a counterpart in Python (enums, networks, ranges …) are compared as the text that the
server shows.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import attrs
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from flowckpt.evidence.checks import http
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
from flowckpt.evidence.claims import scrub
from flowckpt.evidence.databases.postgres_url import PostgresUrl, check_allowed
from flowckpt.evidence.documents import is_digest, matches_digest
from flowckpt.evidence.network import resolve_name
from flowckpt.evidence.report import Moment

_INTEGERS = {"int2": 2**15, "int4": 2**31, "int8": 2**63}
_FLOATS = frozenset({"float4", "float8"})
_JSON = frozenset({"json", "jsonb"})
_NUMBER_TYPES = (int, float, Decimal)
_FITTING: dict[str, tuple[type, ...]] = {
    **dict.fromkeys((*_INTEGERS, *_FLOATS, "numeric"), _NUMBER_TYPES),
    **dict.fromkeys(_JSON, (dict, list, str, int, float, bool)),
    "bool": (bool,),
    "text": (str,),
    "varchar": (str,),
    "bytea": (bytes,),
    "uuid": (UUID,),
    "date": (date,),
    "time": (time,),
    "timetz": (time,),
    "timestamp": (datetime,),
    "timestamptz": (datetime,),
    "interval": (timedelta,),
}
_AWARE = {"time": False, "timestamp": False, "timetz": True, "timestamptz": True}
_UNBOUNDED = frozenset({"text", "varchar", "bytea", *_JSON})
_KNOWN = (type(None), *{each for fitting in _FITTING.values() for each in fitting})


@attrs.frozen(repr=False)
class JsonDocument:
    """A JSON value of a column; JSON null differs from the database's NULL."""

    document: Any

    def __repr__(self) -> str:
        return "JSON null" if self.document is None else repr(self.document)


@attrs.frozen
class Column:
    """A column, as the catalogue describes it.

    Attributes:
        name: its name.
        type_name: its type, below any domain; empty for a type that is not PostgreSQL's own.
        is_array: whether it contains arrays of that type.
    """

    name: str
    type_name: str
    is_array: bool

    @property
    def is_known(self) -> bool:
        """Whether Python has values of the type."""
        return self.type_name in _FITTING

    def selected(self, identifier: str) -> str:
        """Return the expression that reads the column."""
        is_plain = self.is_known and (self.is_array or self.type_name not in _JSON)
        return identifier if is_plain else f"{identifier}::pg_catalog.text"

    def size(self, identifier: str) -> str:
        """Return the expression of a value's size; empty for types without large values."""
        if self.is_known and not self.is_array and self.type_name not in _UNBOUNDED:
            return ""
        is_bytes = self.type_name == "bytea" and not self.is_array
        return f"pg_catalog.octet_length({identifier}{'' if is_bytes else '::pg_catalog.text'})"

    def condition(self, identifier: str, value: Any) -> str:
        """Return the condition that the column has a value, which is bound unless it is None.

        Not `IS NOT DISTINCT FROM`, which means the same for a bound value but does not use an index.
        """
        if value is None:
            return f"{identifier} IS NULL"
        if self.type_name in _FLOATS:
            left, compared = f"{identifier}::pg_catalog.text::pg_catalog.numeric", "numeric"
        elif self.type_name in _JSON:
            left, compared = f"{identifier}::pg_catalog.jsonb", "jsonb"
        elif self.is_known:
            left, compared = identifier, self.type_name
        else:
            left, compared = f"{identifier}::pg_catalog.text", "text"
        return f"{left} OPERATOR(pg_catalog.=) %s::pg_catalog.{compared}"

    def bound(self, value: Any) -> str:
        """Return the text to bind for a value.

        Args:
            value: the value; not None.

        Raises:
            MalformedClaimError: rows cannot be selected by such a value.
            NoSuchThingError: no row of a column of this type can have it.
        """
        check_value(self.name, value)
        if self.is_array:
            raise MalformedClaimError(f"{self.name!r:.80} contains arrays, and rows cannot be selected by an array")
        fitting = _FITTING.get(self.type_name, (str,))
        is_aware = _AWARE.get(self.type_name)
        if type(value) not in fitting or (is_aware is not None and (value.utcoffset() is not None) != is_aware):
            raise self._unlike(value)
        if self.type_name in _JSON:
            return _encode_json(self.name, value)
        if isinstance(value, _NUMBER_TYPES) and self.type_name != "bool":
            return self._number_text(value)
        if isinstance(value, str) and "\0" in value:
            raise self._unlike(value)
        return _encode_text(value)

    def loaded(self, value: Any) -> Any:
        """Return the Python value for a value of the driver."""
        if value is not None and self.type_name in _JSON and not self.is_array:
            return JsonDocument(json.loads(value))
        return value

    def _number_text(self, value: float | Decimal) -> str:
        number, bound = _to_decimal(value), _INTEGERS.get(self.type_name)
        if bound is None:
            return str(number)
        if not number.is_finite() or number != number.to_integral_value() or not -bound <= number < bound:
            raise self._unlike(value)
        return str(int(number))

    def _unlike(self, value: Any) -> NoSuchThingError:
        return NoSuchThingError(
            f"no row matches: {self.name!r:.80} is a column of {self.type_name or 'a type of its own'}, "
            f"which cannot contain this {type(value).__name__}"
        )


def check_value(name: str, value: Any) -> None:
    """Check that rows can be selected by a claim's value.

    Raises:
        MalformedClaimError: they cannot.
    """
    if type(value) not in _KNOWN:
        raise MalformedClaimError(
            f"the value of {name!r:.80} is a {type(value).__name__} that PostgreSQL cannot hold",
            remedy="Write None, a bool, a number, a text, bytes, a date or time, a UUID, or JSON.",
        )
    if isinstance(value, float | Decimal) and _to_decimal(value).is_nan():
        raise MalformedClaimError(f"the value of {name!r:.80} is not a number")
    if isinstance(value, str):
        check_encodable(value)


def is_same(wanted: Any, found: Any) -> bool:
    """Return whether a row's value is the claimed one."""
    if is_digest(wanted):
        return any(matches_digest(wanted, form) for form in _written_forms(found))
    if isinstance(found, JsonDocument):
        return wanted is not None and http.is_same(wanted, found.document)
    if type(wanted) in _NUMBER_TYPES and type(found) in _NUMBER_TYPES:
        one, other = _to_decimal(wanted), _to_decimal(found)
        return not one.is_nan() and not other.is_nan() and one == other
    if type(wanted) in (list, tuple) and type(found) is list:
        return len(wanted) == len(found) and all(map(is_same, wanted, found))
    return type(wanted) is type(found) and bool(wanted == found)


def _to_decimal(number: float | Decimal) -> Decimal:
    return Decimal(repr(number)) if isinstance(number, float) else Decimal(number)


def _written_forms(found: Any) -> Iterator[Any]:
    """Yield the forms in which a program may have written a value."""
    if isinstance(found, JsonDocument):
        found = found.document
    yield found
    if isinstance(found, Decimal) and found.is_finite():
        yield int(found) if found == found.to_integral_value() else float(found)


def _encode_json(name: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise MalformedClaimError(f"the value of {name!r:.80} is not JSON") from None


def _encode_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, timedelta):
        return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"
    return value.isoformat() if isinstance(value, date | time) else str(value)


_Connection = psycopg.Connection[tuple[Any, ...]]

_SETTINGS = {
    "default_transaction_read_only": "on",
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
}
_SET = f"SELECT {', '.join(['pg_catalog.set_config(%s, %s, true)'] * (len(_SETTINGS) + 1))}".encode()

_TABLES = """
SELECT c.oid, n.nspname, c.relname, c.relkind::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
  AND ((c.relname = %(table)s::text AND pg_catalog.pg_table_is_visible(c.oid)) OR n.nspname || '.' || c.relname = %(table)s::text)
"""

_COLUMNS = """
WITH RECURSIVE base (name, type) AS (
  SELECT attname, atttypid FROM pg_catalog.pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
  UNION ALL
  SELECT base.name, t.typbasetype FROM base JOIN pg_catalog.pg_type t ON t.oid = base.type WHERE t.typtype = 'd'
)
SELECT base.name, CASE WHEN o.typnamespace = 'pg_catalog'::pg_catalog.regnamespace THEN o.typname ELSE '' END,
  e.oid IS NOT NULL
FROM base JOIN pg_catalog.pg_type t ON t.oid = base.type AND t.typtype <> 'd'
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
JOIN pg_catalog.pg_type o ON o.oid = coalesce(e.oid, t.oid)
"""

_SPEAK_OF_ROWS = ("22", "23", "P0")  # classes of errors whose messages quote values


class Postgres:
    """Reads PostgreSQL databases."""

    @contextmanager
    def rows(self, database: str, query: Query, context: CheckContext) -> Iterator[Iterator[tuple[Any, ...]]]:
        """Return all matching rows of a table or view."""
        for name, value in query.where.items():
            check_value(name, value)
        url = check_allowed(database, context.settings.allowed_hosts)
        deadline = context.deadline_after(context.settings.limits.query_seconds)
        try:
            with closing(_connect(url, context, deadline)) as connection, _closed_at(deadline, connection):
                is_written = context.settings.moment is Moment.IN_DOUBT and _is_written(connection, query.table)
                columns, statement, values = _make_statement(connection, query, context, deadline)
                with connection.cursor() as cursor, closing(_read_rows(cursor, statement, values, columns)) as rows:
                    yield _refuse_none(rows, query.table) if is_written else rows
        except psycopg.Error as error:
            if deadline.is_over() or isinstance(error, psycopg.errors.QueryCanceled):
                raise CheckTimeoutError(f"the query took longer than the limit of {deadline.seconds:g} s") from error
            raise _translate_error(error) from error
        except UnicodeDecodeError:
            raise UncheckableClaimError("a text of the database is not UTF-8") from None

    is_same = staticmethod(is_same)
    """Compares strictly: values of different types differ, except numbers."""


# --- the connection -------------------------------------------------------------------------------------------------


def _connect(url: PostgresUrl, context: CheckContext, query_deadline: Deadline) -> _Connection:
    deadline = context.deadline_after(min(context.settings.limits.network_seconds, query_deadline.seconds))
    _check_certificates(url)
    places: list[dict[str, str]] = [{}]
    if url.host is not None and url.port is not None and not url.is_socket:
        places = [{"hostaddr": where[0]} for _, where in resolve_name(url.host, url.port, deadline)]
    trouble: psycopg.Error | None = None
    for place in places:
        seconds = math.ceil(deadline.left())  # the driver counts in whole seconds
        try:
            conninfo = make_conninfo("", **url.parameters(), **place, connect_timeout=seconds, client_encoding="utf8")
            connection = psycopg.connect(conninfo, prepare_threshold=None)
        except psycopg.Error as error:
            trouble = error
            continue
        try:
            connection.read_only = True
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        except BaseException:
            connection.close()
            raise
        return connection
    if isinstance(trouble, psycopg.errors.ConnectionTimeout) or deadline.is_over():
        raise CheckTimeoutError(f"the server did not answer within {deadline.seconds:g} s") from trouble
    raise _connection_error(trouble, url) from trouble


def _check_certificates(url: PostgresUrl) -> None:
    if url.sslrootcert in (None, "system"):
        return
    if not Path(url.sslrootcert or "").is_file():  # opening a pipe might block forever
        raise RefusedClaimError("the sslrootcert of the claim's URL is not a file")


@contextmanager
def _closed_at(deadline: Deadline, connection: _Connection) -> Iterator[None]:
    """Close the connection at the deadline: the server may be stuck or unreachable."""
    with socket.socket(fileno=os.dup(connection.fileno())) as line:

        def cut() -> None:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

        # the server's own time limit comes first, and gives a reason
        timer = threading.Timer(deadline.left() + 0.5, cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


# --- the query ------------------------------------------------------------------------------------------------------


def _make_statement(
    connection: _Connection, query: Query, context: CheckContext, deadline: Deadline
) -> tuple[list[Column], bytes, list[str]]:
    """Build the query from names in the catalogue."""
    settings = {**_SETTINGS, "statement_timeout": f"{max(1, int(deadline.left() * 1000))}ms"}
    connection.execute(_SET, [each for pair in settings.items() for each in pair])
    oid, schema, table = _find_table(connection, query.table)
    known = {
        name: Column(name, type_name, is_array) for name, type_name, is_array in connection.execute(_COLUMNS, [oid])
    }
    for name in (*query.columns, *query.where):
        if name not in known:
            raise NoSuchThingError(f"the table {query.table!r:.80} has no column {name!r:.80}")
    quoted = {name: _quote(connection, name) for name in known}
    limit = context.settings.limits.value_bytes
    columns = [known[name] for name in query.columns]
    parts, too_large = list[str](), list[str]()
    for column in columns:
        value, size = column.selected(quoted[column.name]), column.size(quoted[column.name])
        parts.append(f"CASE WHEN {size} > {limit} THEN NULL ELSE {value} END" if size else value)
        if size:
            too_large.append(f"{size} > {limit}")
    parts.append(f"({' OR '.join(too_large) or 'false'}) IS TRUE")
    conditions = [known[name].condition(quoted[name], value) for name, value in query.where.items()]
    text = f"SELECT {', '.join(parts)} FROM {_quote(connection, schema, table)}"  # noqa: S608 - of the catalogue
    text += f" WHERE {' AND '.join(conditions)}" if conditions else ""
    text += "" if columns else " LIMIT 1"  # the claim only needs one row to exist
    return (
        columns,
        text.encode(),
        [known[name].bound(value) for name, value in query.where.items() if value is not None],
    )


def _find_table(connection: _Connection, name: str) -> tuple[int, str, str]:
    check_encodable(name)
    found = [] if "\0" in name else connection.execute(_TABLES, {"table": name}).fetchall()
    if not found:
        raise NoSuchThingError(f"the database has no table {name!r:.80}")
    if len(found) > 1:
        raise UncheckableClaimError(f"several tables are called {name!r:.80}", remedy="Write schema.table.")
    oid, schema, table, kind = found[0]
    if kind == "f":
        raise RefusedClaimError(f"{name!r:.80} is a foreign table: reading it would reach another server")
    return oid, schema, table


_WRITERS = """
SELECT FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_database d ON d.oid = l.database
WHERE d.datname = current_database() AND l.relation = %s AND l.mode = 'RowExclusiveLock' AND l.granted LIMIT 1
"""


def _is_written(connection: _Connection, name: str) -> bool:
    """Return whether another session writes to a table: the server may still execute the statement of a dead client."""
    oid, *_ = _find_table(connection, name)
    is_written = connection.execute(_WRITERS, [oid]).fetchone() is not None
    connection.rollback()  # the rows are read in a later snapshot, which has what is committed meanwhile
    return is_written


def _refuse_none(rows: Iterator[tuple[Any, ...]], table: str) -> Iterator[tuple[Any, ...]]:
    """Yield rows; without any, refuse to say that there are none."""
    is_empty = True
    for row in rows:
        is_empty = False
        yield row
    if is_empty:
        raise UncheckableClaimError(
            f"no row matches, but another session is writing to {table!r:.80}, perhaps for a client that has died"
        )


def _quote(connection: _Connection, *names: str) -> str:
    return sql.Identifier(*names).as_string(connection).replace("%", "%%")  # the driver reads % as a placeholder


def _read_rows(
    cursor: psycopg.Cursor[tuple[Any, ...]], statement: bytes, values: list[str], columns: list[Column]
) -> Generator[tuple[Any, ...]]:
    """Yield row by row, so that only one is in memory."""
    # Closing the stream at once also ends the query on the server.
    with closing(cast("Generator[tuple[Any, ...]]", cursor.stream(statement, values))) as stream:
        for *row, is_too_large in stream:
            if is_too_large:
                raise RefusedClaimError("a value is larger than the limit", remedy="Raise Limits.value_bytes.")
            yield tuple(column.loaded(value) for column, value in zip(columns, row, strict=True))


# --- what went wrong ------------------------------------------------------------------------------------------------


def _connection_error(error: psycopg.Error | None, url: PostgresUrl) -> Exception:
    text = str(error).strip()
    if text.endswith(f'FATAL:  database "{url.dbname}" does not exist'):
        return NoSuchThingError(f"the database {url.dbname!r:.80} does not exist")
    remedy = "Set PGPASSWORD, or write a password file (~/.pgpass)." if "no password supplied" in text else ""
    return UncheckableClaimError(f"the server cannot be asked: {_format_message(text)}", remedy=remedy)


def _translate_error(error: psycopg.Error) -> Exception:
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return RefusedClaimError(f"reading that would do more than read: {_format_message(str(error))}")
    state, name = error.sqlstate or "", type(error).__name__
    if isinstance(error, psycopg.DataError) and not state:
        return UncheckableClaimError("a value of the rows has no counterpart in Python, such as a date at infinity")
    if state.startswith(_SPEAK_OF_ROWS):
        return UncheckableClaimError(f"the rows cannot be read: {name} {state}")
    return UncheckableClaimError(f"the rows cannot be read: {_format_message(str(error)) or name}")


def _format_message(text: str) -> str:
    password = os.environ.get("PGPASSWORD", "")
    hidden = frozenset({password}) if password else frozenset[str]()
    return scrub(re.sub(r"\s+", " ", text.partition("\n")[0]), hidden)[:200]
