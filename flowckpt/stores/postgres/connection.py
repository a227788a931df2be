"""The connections of a store: pooled, and never used by another process.

`psycopg_pool` maintains its connections in threads, which a forked child does not have and a sequential run does not
need. This pool is a list.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import attrs
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from flowckpt.core.system import external
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointStorageError,
    FlowckptError,
    ReadOnlyStoreError,
    StoreSpecError,
)
from flowckpt.stores.sql.database import HURRIED_SECONDS, Session, storage_error
from flowckpt.stores.sql.layout import NOTICE_SECONDS, MigrationWait


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection with one cursor for all its saves, because creating a cursor takes 13 µs."""

    @functools.cached_property
    def saver(self) -> psycopg.Cursor[tuple[Any, ...]]:
        """The cursor."""
        return self.cursor()


_inherited: list[Connection] = []
"""Connections of a parent process: a child must not close them, because that would end the parent's sessions."""


_MOST_IDLE = 4
"""Maximum idle connections kept open."""


class ConnectionPool:
    """Open connections; the last one returned is used first.

    Args:
        connect: opens a connection.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[Connection] = []

    def take(self) -> Connection:
        """Return an open connection, which belongs to the caller until `give_back`."""
        self._reset_in_child()
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def give_back(self, connection: Connection) -> None:
        """Take a connection back; close it if it is broken, in a transaction or surplus."""
        self._reset_in_child()
        is_usable = not connection.closed and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        with self._lock:
            if is_usable and len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def drop(self, connection: Connection) -> None:
        """Close a failed connection, and all idle ones to the same server."""
        connection.close()
        self.close()

    def close(self) -> None:
        """Close the idle connections."""
        self._reset_in_child()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be ending
            self.close()

    def _reset_in_child(self) -> None:
        if self._pid != os.getpid():
            _inherited.extend(self._idle)
            self._pid, self._lock, self._idle = os.getpid(), threading.Lock(), []


# The lock that migrations of the tables hold, and how others recognise a running migration.


_LOCK = 0x666C6F77636B7074
"""The number of the advisory lock (`flowckpt`), shared by all schemas of a database."""

# A step of a migration has no time limit, even if it sends nothing to the server meanwhile. If the client
# vanishes while it holds the lock, TCP keepalives detect that within two minutes.
_PATIENCE = {
    "lock_timeout": "60s",
    "idle_in_transaction_session_timeout": "0",
    "tcp_keepalives_idle": "60",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "6",
}

_IS_MIGRATING = b"""
SELECT EXISTS (
  SELECT 1 FROM pg_locks AS held
  JOIN pg_locks AS wanted ON wanted.pid = held.pid AND wanted.database = held.database
  JOIN pg_class ON pg_class.oid = wanted.relation
  JOIN pg_namespace ON pg_namespace.oid = relnamespace
  WHERE held.locktype = 'advisory' AND held.granted AND held.objsubid = 1
    AND held.classid = %s::bigint::oid AND held.objid = %s::bigint::oid
    AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND nspname = %s AND relname = 'runs'
)
"""


def lock_migrations(session: Session, address: PostgresAddress) -> None:
    """Take the migration lock until the transaction ends; wait for another process that holds it.

    Args:
        session: the open transaction.
        address: the address of the store.

    Raises:
        CheckpointStorageError: the other process takes too long.
    """
    for name, value in _PATIENCE.items():
        session.execute("SELECT set_config(?, ?, true)", (name, value))
    wait = MigrationWait(f"the PostgreSQL store {address.shown}")
    while not session.execute("SELECT pg_try_advisory_xact_lock(?)", (_LOCK,))[0][0]:
        wait.pause()


def is_migrating(connection: psycopg.Connection[Any], address: PostgresAddress) -> bool:
    """Return whether another process is migrating the tables now.

    Args:
        connection: a connection outside of a transaction.
        address: the address of the store.
    """
    parameters = (_LOCK >> 32, _LOCK & 0xFFFFFFFF, address.schema)
    row = connection.execute(_IS_MIGRATING, parameters).fetchone()
    return row is not None and bool(row[0])


# Retries of operations that the server could not do.


_log = logging.getLogger("flowckpt")

_AGAIN = ("40001", "40P01", "57P", "53300", "25P03", "25P04", "08")
"""Prefixes of SQLSTATE codes after which a retry may succeed: the server ended the transaction or the session, for
a deadlock, a shutdown, a time limit on idle sessions and transactions, or too many connections."""

_LONGEST_PAUSE = 1.0


class OutageNotice:
    """One warning per outage of a server, however many operations wait for it.

    Args:
        address: the address of the store.
    """

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._has_warned = False

    def warn(self, error: psycopg.Error, seconds: float) -> None:
        """Warn that the server is unavailable, unless that was already reported.

        Args:
            error: the driver's error.
            seconds: how long to retry.
        """
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "the PostgreSQL store %s cannot be used now, retrying for %.0f s: %s",
                self._address.shown,
                seconds,
                format_first_line(error, self._address),
            )

    def is_over(self) -> None:
        """End the outage: the next failure is reported again."""
        self._has_warned = False


class Retry:
    """Retries one operation within time limits.

    Args:
        address: the address of the store.
        patience_seconds: how long to retry while the server is unreachable.
        outage: reports that it is unreachable.
        is_hurried: whether to retry only briefly.
    """

    def __init__(
        self, address: PostgresAddress, patience_seconds: float, outage: OutageNotice, *, is_hurried: bool = False
    ) -> None:
        self._address = address
        self._outage = outage
        self._start = time.monotonic()
        self._is_hurried = is_hurried
        self._end = self._start + (min(patience_seconds, HURRIED_SECONDS) if is_hurried else patience_seconds)
        self._locked_end: float | None = self._start + (HURRIED_SECONDS if is_hurried else LOCKED_SECONDS)
        self._migration: MigrationWait | None = None
        self._is_migrated = False
        self._pause = 0.02

    def check_migration(self, error: psycopg.Error, connection: Connection) -> None:
        """Determine whether a migration locks a table or row, because the wait for a migration is longer.

        Args:
            error: the driver's error.
            connection: its connection, which is still usable.
        """
        self._is_migrated = False
        if error.sqlstate == LOCKED and not self._is_hurried:
            with contextlib.suppress(psycopg.Error):  # the connection broke: the next try uses another one
                self._is_migrated = is_migrating(connection, self._address)

    def is_over(self, error: psycopg.Error, *, is_lost: bool) -> bool:
        """Wait for the next try, and return False; return True if there is none.

        Args:
            error: the driver's error.
            is_lost: whether the connection is lost or could not be opened.

        Raises:
            CheckpointStorageError: another process has been migrating the tables for too long.
        """
        if self._is_migrated:
            self._migration = self._migration or MigrationWait(
                f"the PostgreSQL store {self._address.shown}", start=self._start
            )
            self._migration.pause()
            self._locked_end = None  # the limit counts from the first try that fails after the migration
            self._is_migrated = False
            return False
        now = time.monotonic()
        if error.sqlstate == LOCKED:
            self._locked_end = self._locked_end or now + LOCKED_SECONDS
            if now > self._locked_end:
                return True
        else:
            if now > self._end or not _may_retry(error, is_lost=is_lost):
                self._outage.is_over()
                return True
            if now - self._start > NOTICE_SECONDS:
                self._outage.warn(error, self._end - now)
        time.sleep(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads concurrent retries
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        return False


def _may_retry(error: psycopg.Error, *, is_lost: bool) -> bool:
    state = error.sqlstate
    if state is None:  # not from the server; a `ProgrammingError` means a wrong address
        return is_lost and not isinstance(error, psycopg.ProgrammingError | psycopg.NotSupportedError)
    return state.startswith(_AGAIN)


# Whether a server's commits are durable, and whether it accepts writes.


_SETTINGS: tuple[str, ...] = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "server_encoding",
    "transaction_read_only",
)
_UNSAFE = {
    "fsync": "a crash of the machine can destroy the whole database",
    "synchronous_commit": "a crash of the server loses what it has just acknowledged",
    "full_page_writes": "a power cut can tear pages that cannot be repaired",
}
OLDEST = 120000


def check_server(connection: psycopg.Connection[Any], address: PostgresAddress) -> str:
    """Refuse a server whose commits may be lost, or that cannot hold the records.

    A read-only server cannot lose our commits, so reading from it is allowed.

    Args:
        connection: an open connection.
        address: its address.

    Returns:
        Why nothing can be written there; empty if writing is possible.

    Raises:
        CheckpointStorageError: the server is refused; the error names the setting.
    """
    columns = ", ".join(f"current_setting('{name}')" for name in _SETTINGS)
    row = connection.execute(f"SELECT {columns}, pg_is_in_recovery()".encode()).fetchone()
    assert row is not None, "a SELECT of constants has a row"
    settings = dict(zip(_SETTINGS, row, strict=False))
    if connection.info.server_version < OLDEST:
        version = connection.info.server_version // 10000
        raise unusable_error(address, f"the server is PostgreSQL {version}", "PostgreSQL 12 or newer is needed.")
    if settings["server_encoding"] != "UTF8":
        raise unusable_error(
            address, f"the database has the encoding {settings['server_encoding']}", "Make one with ENCODING 'UTF8'."
        )
    if row[-1]:
        return "the server is a standby"
    if settings["transaction_read_only"] == "on":
        return "default_transaction_read_only is on"
    for name, danger in _UNSAFE.items():
        if settings[name] == "off" and not address.allow_unsafe:
            raise unusable_error(
                address,
                f"{name} is off, so {danger}",
                f"Set {name} = on. For tests: PostgresCheckpointStore(…, allow_unsafe=True), or ?allow_unsafe=true.",
            )
    return ""


def unusable_error(address: PostgresAddress, reason: str, remedy: str) -> CheckpointStorageError:
    """Return the error for a refused server."""
    return CheckpointStorageError(
        f"the PostgreSQL store {address.shown} cannot be used: {reason}", operation="open", remedy=remedy
    )


# The address of a PostgreSQL store: a URL whose secrets are never shown.

SCHEMA = "flowckpt"
_SECRETS = ("password", "passfile", "sslpassword", "sslkey", "service", "oauth_client_secret")
_OURS = ("allow_unsafe", "schema")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


@attrs.frozen(repr=False)
class PostgresAddress:
    """The address of a store.

    Attributes:
        conninfo: the connection string for libpq; it may contain a password.
        shown: the same for people, without secrets.
        schema: the schema that holds the tables.
        allow_unsafe: whether to accept a server whose commits may be lost.
        secrets: the texts that must not appear in messages.
    """

    conninfo: str
    shown: str
    schema: str
    allow_unsafe: bool
    secrets: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<{self.shown}>"

    def scrub(self, text: str) -> str:
        """Return text without the secrets of this address."""
        for secret in self.secrets:
            text = text.replace(secret, "***").replace(quote(secret, safe=""), "***")
        return text


def parse_address(url: str, *, allow_unsafe: bool = False, schema: str | None = None) -> PostgresAddress:
    """Return the address of a URL.

    Args:
        url: `postgresql://user@host:port/database?option=value`; besides those of libpq the options `schema` and
            `allow_unsafe=true`.
        allow_unsafe: as the option.
        schema: as the option.

    Raises:
        StoreSpecError: the URL is invalid; the error shows no part that could be secret.
    """
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
        own_options = {name: value for name, value in options if name in _OURS}
        libpq_options = [(name, value) for name, value in options if name not in _OURS]
        query = urlencode(libpq_options, quote_via=quote)
        if "@" not in url.partition("?")[2] and not any(name in _SECRETS for name, _ in options):
            _check_names(options)  # none of them can be the rest of a password with a special character
        parameters = conninfo_to_dict(urlunsplit(("postgresql", parts.netloc, parts.path, query, "")))
        if not all(0 < int(port or 5432) < 65536 for port in str(parameters.get("port", "")).split(",")):
            raise ValueError("an impossible port")  # libpq finds it only when it connects
    except (ValueError, psycopg.Error):
        raise StoreSpecError(
            "the description of the PostgreSQL store is not a valid URL (it is not shown, as it may hold a password)",
            spec="postgresql:…",
            remedy="Write postgresql://user@host:5432/database, with a port from 1 to 65535; percent-encode what is "
            "special in it.",
        ) from None
    if parts.scheme not in ("postgresql", "postgres") or not url.partition(":")[2].startswith("//"):
        raise StoreSpecError(
            "the description of the PostgreSQL store is not a URL",
            spec="postgresql:…",
            remedy="Write postgresql://user@host:5432/database.",
        )
    name = schema or own_options.get("schema") or SCHEMA
    if not _NAME.fullmatch(name) or name.startswith("pg_"):
        raise StoreSpecError(
            f"invalid schema name {name!r}",
            spec="postgresql:…",
            remedy="Use at most 63 lower-case letters, digits and underscores.",
        )
    is_unsafe = allow_unsafe or own_options.get("allow_unsafe", "").lower() in ("true", "1", "yes", "on")
    secrets = tuple(str(parameters[key]) for key in _SECRETS if parameters.get(key))
    user = f"{parameters['user']}@" if parameters.get("user") else ""
    port = f":{parameters['port']}" if parameters.get("port") else ""
    shown = f"postgresql://{user}{parameters.get('host', '')}{port}/{parameters.get('dbname', '')}"
    return PostgresAddress(
        make_conninfo("", **{"connect_timeout": 10, "application_name": "flowckpt", **parameters}),
        shown,
        name,
        is_unsafe,
        secrets,
    )


def _check_names(options: Iterable[tuple[str, str]]) -> None:
    """Refuse a URL with an unknown option; the error names it."""
    known = {*_OURS, "ssl", *(option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults())}
    for name, _ in options:
        if name not in known:
            near = external.difflib.get_close_matches(name, known, 1)
            raise StoreSpecError(
                f"the URL of the PostgreSQL store has an unknown option {name!r}",
                spec="postgresql:…",
                remedy=f"Did you mean {near[0]!r}?" if near else "Use an option of libpq, schema or allow_unsafe.",
            )


# The errors of the server, as errors of the store.

WRITABLE = (
    "Use it once by a role that may write, at the primary: of several hosts, target_session_attrs=read-write finds it."
)
_DAMAGED = ("XX001", "XX002")
_GONE = ("42P01", "3F000", "3D000")
"""No such table, schema or database."""
_PREPARED_ELSEWHERE = ("42P05", "26000")

LACKING = ("42P01", "42703")
"""No such table or column."""

_READ_ONLY, _DENIED = "25006", "42501"

LOCKED = "55P03"
"""Another session held a lock for longer than `lock_timeout`."""

LOCKED_SECONDS = 60.0
"""Maximum seconds to wait for a lock."""


def translate_error(
    error: psycopg.Error, address: PostgresAddress, workflow_id: str, operation: str, *, is_write: bool
) -> FlowckptError:
    """Return the store's error for an error of the driver.

    Args:
        error: the driver's error.
        address: the address of the store.
        workflow_id: the run, or an empty text.
        operation: the operation.
        is_write: whether it writes.
    """
    text = format_first_line(error, address)
    if is_write and is_read_only(error):
        return ReadOnlyStoreError(
            address.shown,
            reason=text,
            workflow_id=workflow_id,
            operation=operation,
            remedy="Name the primary (of several hosts, target_session_attrs=read-write finds it), and a role that may "
            "write. Reading still works: 'flowckpt list'.",
        )
    if error.sqlstate in _GONE and is_write:
        text += "; the store is gone: its tables were removed while it was in use"
    if error.sqlstate in _DAMAGED:
        return CheckpointCorruptedError(
            workflow_id,
            location=address.shown,
            detail=text,
            remedy="Nothing was changed. Restore the database from a backup.",
        )
    remedy = "Check that the server runs and accepts your role; no acknowledged checkpoint is lost."
    if error.sqlstate == _DENIED:
        remedy = describe_grants(address)
    elif error.sqlstate == LOCKED:
        text = f"another session has kept it locked for more than {LOCKED_SECONDS:g} s ({text})"
        remedy = "Find that session in pg_stat_activity and pg_locks, and end it. Nothing was changed here."
    elif error.sqlstate in _PREPARED_ELSEWHERE:
        text += "; it seems that a pooler changes the session between two transactions"
        remedy = "Connect to the server directly, or through a pooler in session mode."
    return storage_error(f"the PostgreSQL store {address.shown}", workflow_id, operation, text, remedy=remedy)


def describe_grants(address: PostgresAddress) -> str:
    """Return the statements that let a role read.

    Args:
        address: the address of the store.
    """
    schema = address.schema
    return f"Let the role read: GRANT USAGE ON SCHEMA {schema}, and GRANT SELECT ON ALL TABLES IN SCHEMA {schema}."


def select_cause(error: psycopg.Error, address: PostgresAddress) -> psycopg.Error | None:
    """Return the driver's error if it contains no secret.

    Args:
        error: the driver's error.
        address: the address of the store.
    """
    return error if address.scrub(str(error)) == str(error) else None


def is_read_only(error: psycopg.Error) -> bool:
    """Return whether the server refuses writes, in general or from this role.

    Args:
        error: the driver's error.
    """
    return error.sqlstate in (_READ_ONLY, _DENIED)


def format_first_line(error: psycopg.Error, address: PostgresAddress) -> str:
    """Return the first line of the driver's message, without secrets.

    Args:
        error: the driver's error.
        address: the address of the store.
    """
    return address.scrub(str(error).strip().partition("\n")[0])
