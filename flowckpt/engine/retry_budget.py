"""How many retries an attempt of a run may make, all its steps together."""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class RetryBudget:
    """Counts the retries of one attempt.

    Attributes:
        limit: how many there may be; None for any number.
        spent: how many there were.
    """

    limit: int | None = None
    spent: int = 0

    def take(self) -> bool:
        """Take one; tell whether there was one left."""
        if self.limit is not None and self.spent >= self.limit:
            return False
        self.spent += 1
        return True
