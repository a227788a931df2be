"""Hearing of messages when they are sent: a connection that listens, beside those that are used for work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import psycopg

from flowckpt.stores.postgres.address import PostgresAddress
from flowckpt.stores.sql.signals import run_digest

_AGAIN_SECONDS = 5.0
"""How long to wait before a lost connection is replaced."""

# The name of the schema may be too long for that of a channel. It is the one that `signals.send` tells.
_CHANNEL = "SELECT 'flowckpt_' || md5(%s)"

_log = logging.getLogger("flowckpt")


@contextlib.asynccontextmanager
async def listening(address: PostgresAddress, workflow_id: str | None) -> AsyncIterator[asyncio.Event]:
    """Listen while the block lasts; the event is set when a message may have come.

    Args:
        address: where the store is.
        workflow_id: the run, or None for all.
    """
    heard = asyncio.Event()
    listener = asyncio.create_task(_listen(address, None if workflow_id is None else run_digest(workflow_id), heard))
    try:
        yield heard
    finally:
        listener.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listener


async def _listen(address: PostgresAddress, digest: str | None, heard: asyncio.Event) -> None:
    while True:
        try:
            async with await psycopg.AsyncConnection.connect(address.conninfo, autocommit=True) as connection:
                row = await (await connection.execute(_CHANNEL, (address.schema,))).fetchone()
                assert row is not None, "a SELECT of a constant has a row"
                await connection.execute(f'LISTEN "{row[0]}"'.encode())
                heard.set()  # what came before somebody listened is there to be looked for
                async for note in connection.notifies():
                    if digest is None or note.payload == digest:
                        heard.set()
        except psycopg.Error as error:
            said = address.scrubbed(str(error).strip().partition("\n")[0])
            _log.info("%s: nothing is heard of new messages, they are looked for: %s", address.shown, said)
        await asyncio.sleep(_AGAIN_SECONDS)
