"""Who owns a run, and who may take it: the rules of leases."""

from __future__ import annotations

from datetime import datetime

import attrs

from flowckpt.checkpoint.reference import Owner
from flowckpt.process import ProcessIdentity, is_alive
from flowckpt.stores.sql.database import Row, Session
from flowckpt.stores.sql.texts import moment_of

OWNER_COLUMNS = "a.host, a.boot_id, a.pid, a.start_time, a.acquired_at, a.lease_expires_at"


@attrs.frozen
class LeaseTimes:
    """How long a lease lasts without a sign of life.

    Attributes:
        seconds: from one sign of life on; its owner gives one each third of that.
    """

    seconds: float = 30.0

    @property
    def interval(self) -> float:
        """Seconds between two signs of life."""
        return self.seconds / 3


@attrs.frozen
class LeaseHolder:
    """Whom the table names as the owner of a run.

    Attributes:
        owner: the process.
        expires_at: when its lease ends, by the database's clock.
    """

    owner: Owner
    expires_at: datetime

    def holds(self, now: datetime) -> bool:
        """Tell whether it owns the run still.

        On this machine the process itself is asked: a dead one owns nothing, and one that sleeps is not robbed just
        because it could not renew its lease. Elsewhere only the lease can tell.

        Args:
            now: the time by the database's clock.
        """
        owner = self.owner
        lives = is_alive(ProcessIdentity(owner.host, owner.boot_id, owner.pid, owner.start_time))
        return now < self.expires_at if lives is None else lives


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
