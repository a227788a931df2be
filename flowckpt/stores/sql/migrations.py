"""The versions of the schema, and how one becomes the next. All of them stand here, and none is ever changed.

A database is brought to the newest version when it is opened to be used, in one transaction that nobody else is in.
One of a newer version than this program knows is refused: when it is opened, and when a run in it is claimed, as another
program may have brought it forward since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowckpt._version import __version__
from flowckpt.errors import UnsupportedSchemaError
from flowckpt.stores.sql.database import Session
from flowckpt.stores.sql.leases import stop_the_clock
from flowckpt.stores.sql.schema import VERSION_1, VERSION_2, VERSION_3, VERSION_4, VERSION_TABLE, Dialect
from flowckpt.stores.sql.tags import add_missing_tags
from flowckpt.stores.sql.texts import sql_time

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
