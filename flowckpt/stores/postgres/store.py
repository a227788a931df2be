"""Checkpoints in a PostgreSQL database, for any number of processes on any number of machines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager

import psycopg

from flowckpt.stores.postgres.connection import PostgresAddress, format_first_line, parse_address
from flowckpt.stores.postgres.database import PostgresDatabase
from flowckpt.stores.sql.runs import SqlRuns
from flowckpt.stores.sql.signals import run_digest
from flowckpt.stores.sql.store import SqlCheckpointStore

# Announcements of messages: a separate connection that listens.


_AGAIN_SECONDS = 5.0
"""Seconds before a lost connection is replaced."""

# A digest, because the schema's name may be too long for a channel. `signals.send` notifies this channel.
_CHANNEL = "SELECT 'flowckpt_' || md5(%s)"

_log = logging.getLogger("flowckpt")


@contextlib.asynccontextmanager
async def listen(address: PostgresAddress, workflow_id: str | None) -> AsyncIterator[asyncio.Event]:
    """Listen during the block; the event is set when a message may have arrived.

    Args:
        address: the address of the store.
        workflow_id: the run, or None for all.
    """
    arrival = asyncio.Event()
    listener = asyncio.create_task(_listen(address, None if workflow_id is None else run_digest(workflow_id), arrival))
    try:
        yield arrival
    finally:
        listener.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listener


async def _listen(address: PostgresAddress, digest: str | None, arrival: asyncio.Event) -> None:
    while True:
        try:
            async with await psycopg.AsyncConnection.connect(address.conninfo, autocommit=True) as connection:
                row = await (await connection.execute(_CHANNEL, (address.schema,))).fetchone()
                assert row is not None, "a SELECT of a constant has a row"
                await connection.execute(f'LISTEN "{row[0]}"'.encode())
                arrival.set()  # messages may have arrived before we listened
                async for note in connection.notifies():
                    if digest is None or note.payload == digest:
                        arrival.set()
        except psycopg.Error as error:
            reason = format_first_line(error, address)
            _log.info("%s: no announcements of new messages, polling instead: %s", address.shown, reason)
        await asyncio.sleep(_AGAIN_SECONDS)


class PostgresCheckpointStore(SqlCheckpointStore):
    """Stores checkpoints in a PostgreSQL database; needs `flowckpt[postgres]`. It never shows passwords.

    Args:
        url: `postgresql://user@host:5432/database`, with libpq's options, `schema=NAME` and `allow_unsafe=true`.
        schema: the schema of the tables, created if missing; `flowckpt` by default.
        lease_seconds: how long a run stays owned without a heartbeat of an owner on another machine.
        patience_seconds: how long to retry while the server is unreachable.
        allow_unsafe: accept a server that may lose commits, for tests.

    Raises:
        StoreSpecError: the URL is malformed.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        lease_seconds: float = 30.0,
        patience_seconds: float = 30.0,
        allow_unsafe: bool = False,
    ) -> None:
        address = parse_address(url, allow_unsafe=allow_unsafe, schema=schema)
        database = PostgresDatabase(address, patience_seconds=patience_seconds)
        super().__init__(SqlRuns(database, lease_seconds=lease_seconds))
        self._address = address

    def announcements(self, workflow_id: str | None = None) -> AbstractAsyncContextManager[asyncio.Event]:
        """Listen for messages during the block."""
        return listen(self._address, workflow_id)

    def __repr__(self) -> str:
        return f"PostgresCheckpointStore({self._address.shown!r})"

    def note_live_all(self, notes: Mapping[str, bytes]) -> None:
        """Replace the live notes of several runs in one transaction; see `StoreBase.note_live_all`."""
        self.runs.note_live_all(notes)
