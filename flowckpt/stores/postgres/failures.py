"""What the server says when something fails, as errors of the store."""

from __future__ import annotations

import psycopg

from flowckpt.errors import CheckpointCorruptedError, CheckpointStorageError, FlowckptError, ReadOnlyStoreError
from flowckpt.stores.postgres.address import PostgresAddress

WRITABLE = (
    "Use it once by a role that may write, at the primary: of several hosts, target_session_attrs=read-write finds it."
)
_DAMAGED = ("XX001", "XX002")
_GONE = ("42P01", "3F000", "3D000")
"""No such table, schema or database."""

_READ_ONLY, _DENIED = "25006", "42501"

LOCKED = "55P03"
"""Another session had what was asked for locked, for longer than `lock_timeout`."""

LOCKED_SECONDS = 60.0
"""How long to wait for a lock, all tries together."""


def error_of(
    error: psycopg.Error, address: PostgresAddress, workflow_id: str, operation: str, *, is_write: bool
) -> FlowckptError:
    """Return the error of the store for one of the driver.

    Args:
        error: what the driver raised.
        address: where the store is.
        workflow_id: the run, or an empty text.
        operation: what was being done.
        is_write: whether that was to write.
    """
    text = said_of(error, address)
    if is_write and is_read_only(error):
        return ReadOnlyStoreError(
            address.shown,
            reason=text,
            workflow_id=workflow_id,
            operation=operation,
            remedy="Name the primary (of several hosts, target_session_attrs=read-write finds it), and a role that may "
            "write. Reading goes on: 'flowckpt list'.",
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
    remedy = "See whether the server runs and lets you in; nothing that was acknowledged is lost."
    if error.sqlstate == _DENIED:
        remedy = grants(address)
    elif error.sqlstate == LOCKED:
        text = f"another session has kept it locked for more than {LOCKED_SECONDS:g} s ({text})"
        remedy = "See in pg_stat_activity and pg_locks which session that is, and end it. Nothing was changed here."
    run = f" run {workflow_id!r}" if workflow_id else ""
    return CheckpointStorageError(
        f"the PostgreSQL store {address.shown} could not {operation}{run}: {text}",
        workflow_id=workflow_id,
        operation=operation,
        remedy=remedy,
    )


def grants(address: PostgresAddress) -> str:
    """Return what lets a role read.

    Args:
        address: where the store is.
    """
    schema = address.schema
    return f"Let the role read: GRANT USAGE ON SCHEMA {schema}, and GRANT SELECT ON ALL TABLES IN SCHEMA {schema}."


def cause_of(error: psycopg.Error, address: PostgresAddress) -> psycopg.Error | None:
    """Return the driver's error where it says nothing secret.

    Args:
        error: what the driver raised.
        address: where the store is.
    """
    return error if address.scrubbed(str(error)) == str(error) else None


def is_read_only(error: psycopg.Error) -> bool:
    """Tell whether the server takes no write, from anybody or from this role.

    Args:
        error: what the driver raised.
    """
    return error.sqlstate in (_READ_ONLY, _DENIED)


def said_of(error: psycopg.Error, address: PostgresAddress) -> str:
    """Return the first line of what the driver says, without anything secret.

    Args:
        error: what the driver raised.
        address: where the store is.
    """
    return address.scrubbed(str(error).strip().partition("\n")[0])
