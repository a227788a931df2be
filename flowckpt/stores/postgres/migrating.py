"""The lock of those who bring the tables forward, and the word of it for those who find the tables locked."""

from __future__ import annotations

from typing import Any

import psycopg

from flowckpt.stores.postgres.address import PostgresAddress
from flowckpt.stores.sql.database import Session
from flowckpt.stores.sql.migration_wait import MigrationWait

_LOCK = 0x666C6F77636B7074
"""`flowckpt`: the advisory lock. It is one for all schemas of a database."""

# A step of a migration may take as long as it takes, also one that asks nothing of the server meanwhile. That a client
# vanished, and holds the lock, shows by TCP then, within two minutes.
_PATIENCE = {
    "lock_timeout": "60s",
    "idle_in_transaction_session_timeout": "0",
    "tcp_keepalives_idle": "60",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "6",
}

_IS_GOING_ON = b"""
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


def become_migrator(session: Session, address: PostgresAddress) -> None:
    """Become the one who brings the tables forward, until the transaction ends; wait for another one who does it.

    Args:
        session: the open transaction.
        address: where the store is.

    Raises:
        CheckpointStorageError: the other one takes too long.
    """
    for name, value in _PATIENCE.items():
        session.execute("SELECT set_config(?, ?, true)", (name, value))
    waiting = MigrationWait(f"the PostgreSQL store {address.shown}")
    while not session.execute("SELECT pg_try_advisory_xact_lock(?)", (_LOCK,))[0][0]:
        waiting.pause()


def is_going_on(connection: psycopg.Connection[Any], address: PostgresAddress) -> bool:
    """Tell whether another process is bringing the tables forward just now.

    Args:
        connection: a connection that is in no transaction.
        address: where the store is.
    """
    asked = (_LOCK >> 32, _LOCK & 0xFFFFFFFF, address.schema)
    row = connection.execute(_IS_GOING_ON, asked).fetchone()
    return row is not None and bool(row[0])
