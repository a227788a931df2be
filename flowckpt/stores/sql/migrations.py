"""The versions of the schema, and how one becomes the next. All of them stand here, and none is ever changed.

A database is brought to the newest version when it is opened to be used, in one transaction that nobody else is in.
One of a newer version than this program knows is refused: when it is opened, and when a run in it is claimed, as another
program may have brought it forward since.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence

from flowckpt._version import __version__
from flowckpt.errors import CheckpointStorageError, UnsupportedSchemaError
from flowckpt.stores.sql.database import Session
from flowckpt.stores.sql.rows import add_missing_tags, sql_time, stop_the_clock
from flowckpt.stores.sql.schema import VERSION_1, VERSION_2, VERSION_3, VERSION_4, VERSION_TABLE, Dialect

Step = str | Callable[[Session], None]
"""A statement, or work on the rows that are there."""

MIGRATIONS: Sequence[Sequence[Step]] = (VERSION_1, VERSION_2, (*VERSION_3, add_missing_tags), VERSION_4)
"""The steps that lead from version n to n + 1, at index n."""

NEWEST_APPLIED = f"SELECT max(version) FROM {VERSION_TABLE}"  # noqa: S608 - a constant
"""The version of a database, as a statement or within one."""

_TABLE = f"""
CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (
  version {{int}} NOT NULL PRIMARY KEY,
  applied_at {{time}} NOT NULL,
  program TEXT NOT NULL
){{strict}}
"""


def migrate(session: Session, dialect: Dialect, migrations: Sequence[Sequence[Step]] = MIGRATIONS) -> None:
    """Bring a database to the newest version, within a transaction that keeps everybody else out.

    It may take longer than a lease, which its owner cannot renew meanwhile; so that time counts for no lease.

    Args:
        session: the open transaction.
        dialect: the database's.
        migrations: the steps of each version.

    Raises:
        UnsupportedSchemaError: the database is of a newer version.
    """
    session.execute(dialect.written(_TABLE))
    found = version_of(session)
    check_version(found, len(migrations))
    began = session.now()
    for number, steps in enumerate(migrations[found:], found + 1):
        for step in steps:
            if isinstance(step, str):
                session.execute(dialect.written(step))
            else:
                step(session)
        session.execute(
            f"INSERT INTO {VERSION_TABLE} (version, applied_at, program) VALUES (?, ?, ?)",  # noqa: S608 - a constant
            (number, sql_time(session.now()), __version__),
        )
    if 0 < found < len(migrations):
        stop_the_clock(session, began)


def version_of(session: Session) -> int:
    """Return the version of a database that has the table of versions; 0 where nothing was applied yet."""
    return int(session.execute(NEWEST_APPLIED)[0][0] or 0)


def check_version(found: int, newest: int | None = None) -> None:
    """Refuse a database of a newer version than this program's.

    Args:
        found: the version of the database.
        newest: the newest one that is known.

    Raises:
        UnsupportedSchemaError: it is newer.
    """
    known = len(MIGRATIONS) if newest is None else newest
    if found > known:
        raise UnsupportedSchemaError(found=found, supported=known, what="database")


def check_version_since_opened(found: int | None) -> None:
    """Refuse a database that a newer program has brought forward since this one has opened it.

    Args:
        found: the version of the database now.

    Raises:
        UnsupportedSchemaError: it is newer than what this program knows.
    """
    if found is not None and found > len(MIGRATIONS):
        raise UnsupportedSchemaError(
            found=found,
            supported=len(MIGRATIONS),
            what="database",
            detail="a newer flowckpt has brought it forward while this program had it open",
            remedy="Upgrade flowckpt where this program runs, and start the program again. Nothing was changed.",
        )


# Waiting for another process that brings the tables of a database forward, which may take minutes.


_log = logging.getLogger("flowckpt")

NOTICE_SECONDS = 2.0
"""How long to wait without a word."""

PATIENCE_SECONDS = 600.0
"""How long to wait at all."""

_LONGEST_PAUSE = 0.5


class MigrationWait:
    """One wait, pause by pause, with one notice in the log.

    Args:
        store: where the tables are, as it may be shown.
        began: when the wait began, in seconds of `time.monotonic`; now where not given.
    """

    def __init__(self, store: str, *, began: float | None = None) -> None:
        self._store = store
        self._began = time.monotonic() if began is None else began
        self._pause = 0.02
        self._has_told = False

    def pause(self) -> None:
        """Wait for a moment.

        Raises:
            CheckpointStorageError: it has taken too long.
        """
        waited = time.monotonic() - self._began
        if waited > PATIENCE_SECONDS:
            raise CheckpointStorageError(
                f"another process has been bringing the tables of {self._store} forward for more than "
                f"{PATIENCE_SECONDS:g} s, and nothing can be done with them until it has ended",
                operation="wait for a migration",
                remedy="See whether that process goes on, and try again when it has ended. Nothing was changed here.",
            )
        if waited > NOTICE_SECONDS and not self._has_told:
            _log.warning(
                "another process is bringing the tables of %s forward to its version; this one waits for it, %g s at most",
                self._store,
                PATIENCE_SECONDS,
            )
            self._has_told = True
        time.sleep(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 - so that many do not come back at once
        self._pause = min(self._pause * 1.5, _LONGEST_PAUSE)
