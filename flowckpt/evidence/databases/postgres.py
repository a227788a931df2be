"""Rows of a PostgreSQL database, read in a transaction that can do nothing else.

- The URL is looked at by `postgres_url`: who may be asked, and by which options.
- One read-only transaction of one moment; identifiers come from the catalogue, values are bound.
- The server ends the query when its time is over; where it does not answer at all, the connection is cut from here.
- What a view's functions do besides writing to tables is the server's to forbid: use a role that may only read.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from flowckpt.evidence.checks.base import (
    CheckContext,
    CheckTimeoutError,
    Deadline,
    RefusedClaimError,
    UncheckableClaimError,
)
from flowckpt.evidence.claims import scrubbed
from flowckpt.evidence.databases import postgres_values
from flowckpt.evidence.databases.base import NoSuchThingError, Query
from flowckpt.evidence.databases.postgres_url import PostgresUrl, check_allowed
from flowckpt.evidence.databases.postgres_values import Column
from flowckpt.evidence.network import _resolve

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
            postgres_values.check_value(name, value)
        url = check_allowed(database, context.settings.allowed_hosts)
        deadline = context.deadline_after(context.settings.limits.query_seconds)
        try:
            with closing(_connected(url, context, deadline)) as connection, _cut_at(deadline, connection):
                columns, statement, values = _statement(connection, query, context, deadline)
                with connection.cursor() as cursor, closing(_rows(cursor, statement, values, columns)) as rows:
                    yield rows
        except psycopg.Error as error:
            if deadline.is_over() or isinstance(error, psycopg.errors.QueryCanceled):
                raise CheckTimeoutError(f"the query took longer than the limit of {deadline.seconds:g} s") from error
            raise _explained(error) from error
        except UnicodeDecodeError:
            raise UncheckableClaimError("a text of the database is not UTF-8") from None

    def is_same(self, wanted: Any, found: Any) -> bool:
        """Compare strictly: no type is taken for another, but numbers for numbers."""
        return postgres_values.is_same(wanted, found)


# --- the connection -------------------------------------------------------------------------------------------------


def _connected(url: PostgresUrl, context: CheckContext, query_deadline: Deadline) -> _Connection:
    deadline = context.deadline_after(min(context.settings.limits.network_seconds, query_deadline.seconds))
    _check_certificates(url)
    places: list[dict[str, str]] = [{}]
    if url.host is not None and url.port is not None and not url.is_socket:
        places = [{"hostaddr": where[0]} for _, where in _resolve(url.host, url.port, deadline)]
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
    raise _unconnected(trouble, url) from trouble


def _check_certificates(url: PostgresUrl) -> None:
    if url.sslrootcert in (None, "system"):
        return
    if not Path(url.sslrootcert or "").is_file():  # to open a pipe might never end
        raise RefusedClaimError("the sslrootcert of the claim's URL is not a file")


@contextmanager
def _cut_at(deadline: Deadline, connection: _Connection) -> Iterator[None]:
    """Cut the connection when the time is over: the server may be stuck, or its machine gone."""
    with socket.socket(fileno=os.dup(connection.fileno())) as line:

        def cut() -> None:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(deadline.left() + 0.5, cut)  # the server goes first, and says why
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


# --- the query ------------------------------------------------------------------------------------------------------


def _statement(
    connection: _Connection, query: Query, context: CheckContext, deadline: Deadline
) -> tuple[list[Column], bytes, list[str]]:
    """Build the query out of names that the catalogue knows."""
    settings = {**_SETTINGS, "statement_timeout": f"{max(1, int(deadline.left() * 1000))}ms"}
    connection.execute(_SET, [each for pair in settings.items() for each in pair])
    oid, schema, table = _table(connection, query.table)
    known = {
        name: Column(name, type_name, is_array) for name, type_name, is_array in connection.execute(_COLUMNS, [oid])
    }
    for name in (*query.columns, *query.where):
        if name not in known:
            raise NoSuchThingError(f"the table {query.table!r:.80} has no column {name!r:.80}")
    quoted = {name: _quoted(connection, name) for name in known}
    limit = context.settings.limits.value_bytes
    columns = [known[name] for name in query.columns]
    parts, too_large = list[str](), list[str]()
    for column in columns:
        value, size = column.selected(quoted[column.name]), column.size(quoted[column.name])
        parts.append(f"CASE WHEN {size} > {limit} THEN NULL ELSE {value} END" if size else value)
        too_large += [f"{size} > {limit}"] * bool(size)
    parts.append(f"({' OR '.join(too_large) or 'false'}) IS TRUE")
    conditions = [known[name].condition(quoted[name], value) for name, value in query.where.items()]
    text = f"SELECT {', '.join(parts)} FROM {_quoted(connection, schema, table)}"  # noqa: S608 - of the catalogue
    text += f" WHERE {' AND '.join(conditions)}" if conditions else ""
    text += "" if columns else " LIMIT 1"  # that there is one is all that was claimed
    return (
        columns,
        text.encode(),
        [known[name].bound(value) for name, value in query.where.items() if value is not None],
    )


def _table(connection: _Connection, name: str) -> tuple[int, str, str]:
    postgres_values.encodable(name)
    found = [] if "\0" in name else connection.execute(_TABLES, {"table": name}).fetchall()
    if not found:
        raise NoSuchThingError(f"the database has no table {name!r:.80}")
    if len(found) > 1:
        raise UncheckableClaimError(f"several tables are called {name!r:.80}", remedy="Write schema.table.")
    oid, schema, table, kind = found[0]
    if kind == "f":
        raise RefusedClaimError(f"{name!r:.80} is a foreign table: reading it would reach another server")
    return oid, schema, table


def _quoted(connection: _Connection, *names: str) -> str:
    return sql.Identifier(*names).as_string(connection).replace("%", "%%")  # the driver reads % as a placeholder


def _rows(
    cursor: psycopg.Cursor[tuple[Any, ...]], statement: bytes, values: list[str], columns: list[Column]
) -> Generator[tuple[Any, ...]]:
    """Yield row by row, so that no more than one is in memory."""
    # Closed at once, it ends the query on the server, too.
    with closing(cast("Generator[tuple[Any, ...]]", cursor.stream(statement, values))) as stream:
        for *row, is_too_large in stream:
            if is_too_large:
                raise RefusedClaimError("a value is larger than the limit", remedy="Raise Limits.value_bytes.")
            yield tuple(column.loaded(value) for column, value in zip(columns, row, strict=True))


# --- what went wrong ------------------------------------------------------------------------------------------------


def _unconnected(error: psycopg.Error | None, url: PostgresUrl) -> Exception:
    text = str(error).strip()
    if text.endswith(f'FATAL:  database "{url.dbname}" does not exist'):
        return NoSuchThingError(f"the database {url.dbname!r:.80} does not exist")
    remedy = "Set PGPASSWORD, or write a password file (~/.pgpass)." if "no password supplied" in text else ""
    return UncheckableClaimError(f"the server cannot be asked: {_shown(text)}", remedy=remedy)


def _explained(error: psycopg.Error) -> Exception:
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return RefusedClaimError(f"reading that would do more than read: {_shown(str(error))}")
    state, name = error.sqlstate or "", type(error).__name__
    if isinstance(error, psycopg.DataError) and not state:
        return UncheckableClaimError("a value of the rows has no counterpart in Python, as a date at infinity has none")
    if state.startswith(_SPEAK_OF_ROWS):
        return UncheckableClaimError(f"the rows cannot be read: {name} {state}")
    return UncheckableClaimError(f"the rows cannot be read: {_shown(str(error)) or name}")


def _shown(text: str) -> str:
    password = os.environ.get("PGPASSWORD", "")
    hidden = frozenset({password}) if password else frozenset[str]()
    return scrubbed(re.sub(r"\s+", " ", text.partition("\n")[0]), hidden)[:200]
