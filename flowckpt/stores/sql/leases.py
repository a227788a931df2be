"""Who owns a run, as the tables say it."""

from __future__ import annotations

from datetime import datetime

from flowckpt.checkpoint.reference import Owner
from flowckpt.stores.leases import LeaseHolder
from flowckpt.stores.sql.database import Row, Session
from flowckpt.stores.sql.texts import moment_of, sql_time

OWNER_COLUMNS = "a.host, a.boot_id, a.pid, a.start_time, a.acquired_at, a.lease_expires_at"


def holder_of(columns: Row) -> LeaseHolder | None:
    """Return the holder in the values of `OWNER_COLUMNS`; None where they are empty, as nobody owns the run."""
    host, boot_id, pid, start_time, acquired_at, expires_at = columns
    if host is None:
        return None
    return LeaseHolder(Owner(host, boot_id, pid, start_time, moment_of(acquired_at)), moment_of(expires_at))


def live_owner(session: Session, run: int) -> Owner | None:
    """Return who owns a run and is alive, as far as can be known from here.

    Args:
        session: the transaction.
        run: the run's key.
    """
    found = session.execute(
        f"SELECT {OWNER_COLUMNS} FROM runs r JOIN attempts a ON a.writer = r.writer WHERE r.run = ?",  # noqa: S608
        (run,),
    )
    holder = holder_of(found[0]) if found else None
    return holder.owner if holder is not None and holder.holds(session.now()) else None


def stop_the_clock(session: Session, since: datetime) -> None:
    """Let a time in which nobody could renew a lease count for none of those that were running when it began.

    Args:
        session: the transaction.
        since: when it began, by the store's clock.
    """
    running = session.execute(
        "SELECT run, attempt, lease_expires_at FROM attempts WHERE released_at IS NULL AND lease_expires_at >= ?",
        (sql_time(since),),
    )
    passed = session.now() - since
    for run, attempt, expires_at in running:
        session.change(
            "UPDATE attempts SET lease_expires_at = ? WHERE run = ? AND attempt = ?",
            (sql_time(moment_of(expires_at) + passed), run, attempt),
        )
