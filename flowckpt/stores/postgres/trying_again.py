"""How often, and for how long, something is tried again that the server could not do."""

from __future__ import annotations

import contextlib
import logging
import random
import time

import psycopg

from flowckpt.stores.postgres.address import PostgresAddress
from flowckpt.stores.postgres.failures import LOCKED, LOCKED_SECONDS, said_of
from flowckpt.stores.postgres.migrating import is_going_on
from flowckpt.stores.postgres.pool import Connection
from flowckpt.stores.sql.hurry import HURRIED_SECONDS
from flowckpt.stores.sql.migration_wait import NOTICE_SECONDS, MigrationWait

_log = logging.getLogger("flowckpt")

_AGAIN = ("40001", "40P01", "57P01", "57P02", "57P03", "53300", "25P03", "08")
"""Beginnings of SQLSTATE codes after which another try may succeed."""

_LONGEST_PAUSE = 1.0


class OutageNotice:
    """One warning for each time that a server is away, however many wait for it.

    Args:
        address: where it is.
    """

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._has_told = False

    def tell(self, error: psycopg.Error, seconds: float) -> None:
        """Say that the server is away, and how long it is waited for, unless that was said.

        Args:
            error: what the driver says.
            seconds: how long it is tried again.
        """
        if not self._has_told:
            self._has_told = True
            _log.warning(
                "the PostgreSQL store %s cannot be used just now, and is tried again for %.0f s more: %s",
                self._address.shown,
                seconds,
                said_of(error, self._address),
            )

    def is_over(self) -> None:
        """Take the next time as another one."""
        self._has_told = False


class TryingAgain:
    """The tries of one operation.

    Args:
        address: where the store is.
        patience_seconds: how long to try again while the server cannot be reached.
        outage: where it is told that it cannot.
        is_hurried: whether to try again for a moment only.
    """

    def __init__(
        self, address: PostgresAddress, patience_seconds: float, outage: OutageNotice, *, is_hurried: bool = False
    ) -> None:
        self._address = address
        self._outage = outage
        self._began = time.monotonic()
        self._is_hurried = is_hurried
        self._end = self._began + (min(patience_seconds, HURRIED_SECONDS) if is_hurried else patience_seconds)
        self._locked_end = self._began + (HURRIED_SECONDS if is_hurried else LOCKED_SECONDS)
        self._migration: MigrationWait | None = None
        self._is_migrated = False
        self._pause = 0.02

    def look(self, error: psycopg.Error, connection: Connection) -> None:
        """Look why a table or a row is locked: bringing the tables forward may take long, and is waited for.

        Args:
            error: what the driver raised.
            connection: where it did; it can still be used.
        """
        self._is_migrated = False
        if error.sqlstate == LOCKED and not self._is_hurried:
            with contextlib.suppress(psycopg.Error):  # the connection broke: the next try has another one
                self._is_migrated = is_going_on(connection, self._address)

    def is_over(self, error: psycopg.Error, *, is_lost: bool) -> bool:
        """Wait for the moment of the next try, or tell that there is none.

        Args:
            error: what the driver raised.
            is_lost: whether the connection is lost, or there was none.

        Raises:
            CheckpointStorageError: another process has been bringing the tables forward for too long.
        """
        if self._is_migrated:
            self._migration = self._migration or MigrationWait(
                f"the PostgreSQL store {self._address.shown}", began=self._began
            )
            self._migration.pause()
            self._locked_end = time.monotonic() + LOCKED_SECONDS
            self._is_migrated = False
            return False
        now = time.monotonic()
        if error.sqlstate == LOCKED:
            if now > self._locked_end:
                return True
        else:
            if now > self._end or not _may_succeed(error, is_lost=is_lost):
                self._outage.is_over()
                return True
            if now - self._began > NOTICE_SECONDS:
                self._outage.tell(error, self._end - now)
        time.sleep(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 - so that many do not come back at once
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        return False


def _may_succeed(error: psycopg.Error, *, is_lost: bool) -> bool:
    state = error.sqlstate
    if state is None:
        return is_lost and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith(_AGAIN)
