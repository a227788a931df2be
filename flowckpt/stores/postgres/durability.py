"""Whether a server keeps what it commits, and whether it commits anything."""

from __future__ import annotations

from typing import Any

import psycopg

from flowckpt.errors import CheckpointStorageError
from flowckpt.stores.postgres.address import PostgresAddress

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
    "full_page_writes": "a power cut can tear pages that cannot be mended",
}
OLDEST = 120000


def check_server(connection: psycopg.Connection[Any], address: PostgresAddress) -> str:
    """Refuse a server whose commits may be lost, or that cannot hold the records.

    One that can only be read loses nothing of ours, and is read.

    Args:
        connection: an open connection.
        address: where it leads.

    Returns:
        Why nothing can be written there; an empty text where it can.

    Raises:
        CheckpointStorageError: it is refused; the error names the setting.
    """
    columns = ", ".join(f"current_setting('{name}')" for name in _SETTINGS)
    row = connection.execute(f"SELECT {columns}, pg_is_in_recovery()".encode()).fetchone()
    assert row is not None, "a SELECT of constants has a row"
    found = dict(zip(_SETTINGS, row, strict=False))
    if connection.info.server_version < OLDEST:
        version = connection.info.server_version // 10000
        raise refusal(address, f"the server is PostgreSQL {version}", "PostgreSQL 12 or newer is needed.")
    if found["server_encoding"] != "UTF8":
        raise refusal(
            address, f"the database has the encoding {found['server_encoding']}", "Make one with ENCODING 'UTF8'."
        )
    if row[-1]:
        return "the server is a standby"
    if found["transaction_read_only"] == "on":
        return "default_transaction_read_only is on"
    for name, danger in _UNSAFE.items():
        if found[name] == "off" and not address.allow_unsafe:
            raise refusal(
                address,
                f"{name} is off, so {danger}",
                f"Set {name} = on. For tests: PostgresCheckpointStore(…, allow_unsafe=True), or ?allow_unsafe=true.",
            )
    return ""


def refusal(address: PostgresAddress, what: str, remedy: str) -> CheckpointStorageError:
    """Return the error for a server that is not used."""
    return CheckpointStorageError(
        f"the PostgreSQL store {address.shown} cannot be used: {what}", operation="open", remedy=remedy
    )
