"""Checkpoints in a PostgreSQL database, for any number of processes on any number of machines."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

from flowckpt.stores.postgres.address import parsed_address
from flowckpt.stores.postgres.announcements import listening
from flowckpt.stores.postgres.database import PostgresDatabase
from flowckpt.stores.sql.retaining import RetainedRuns
from flowckpt.stores.sql.store import SqlCheckpointStore


class PostgresCheckpointStore(SqlCheckpointStore):
    """Checkpoints in the tables of a PostgreSQL database. A password never appears in what it shows.

    Args:
        url: `postgresql://user@host:5432/database`, with the options of libpq; besides them `schema=NAME` and
            `allow_unsafe=true`.
        schema: the schema that holds the tables; made where it is missing.
        lease_seconds: how long a run stays owned without a sign of life of an owner on another machine.
        patience_seconds: how long to try again while the server cannot be reached.
        allow_unsafe: accept a server that does not keep what it commits, for tests.

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
        address = parsed_address(url, allow_unsafe=allow_unsafe, schema=schema)
        database = PostgresDatabase(address, patience_seconds=patience_seconds)
        super().__init__(RetainedRuns(database, lease_seconds=lease_seconds))
        self._address = address

    def announcements(self, workflow_id: str | None = None) -> AbstractAsyncContextManager[asyncio.Event]:
        """Listen for messages while the block lasts; see `AnnouncesSignals`."""
        return listening(self._address, workflow_id)

    def __repr__(self) -> str:
        return f"PostgresCheckpointStore({self._address.shown!r})"
