"""Who owns a run, and for how long: the rules of leases, for every store that has no lock to ask."""

from __future__ import annotations

from datetime import datetime

import attrs

from flowckpt.process import ProcessIdentity, is_alive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flowckpt.checkpoint.reference import Owner


@attrs.frozen(eq=False, repr=False)
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


@attrs.frozen(eq=False, repr=False)
class LeaseHolder:
    """Whom a store names as the owner of a run.

    Attributes:
        owner: the process.
        expires_at: when its lease ends, by the store's clock.
    """

    owner: Owner
    expires_at: datetime

    def holds(self, now: datetime) -> bool:
        """Tell whether it owns the run still.

        On this machine the process itself is asked: a dead one owns nothing, and one that sleeps is not robbed just
        because it could not renew its lease. Elsewhere only the lease can tell.

        Args:
            now: the time by the store's clock.
        """
        owner = self.owner
        lives = is_alive(ProcessIdentity(owner.host, owner.boot_id, owner.pid, owner.start_time))
        return now < self.expires_at if lives is None else lives
