"""How many retries a run may make, all its steps and all its attempts together.

What was used is written into the metadata of the run, and so becomes durable with the next checkpoint. A process that
dies takes with it the count of the retries since its last save.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

import attrs

from flowckpt.engine.options import RETRIES_USED
from flowckpt.plan.limits import LIMITS


class HasMetadata(Protocol):
    """What holds the metadata that the next checkpoint gets."""

    metadata: Mapping[str, Any]


@attrs.define(eq=False, repr=False)
class RetryBudget:
    """Counts the retries of one run.

    Attributes:
        limit: how many there may be; None for any number, and then they are not counted.
    """

    limit: int | None = None
    _record: HasMetadata | None = None

    def kept_in(self, record: HasMetadata) -> Self:
        """Keep the count in the metadata of a run.

        Args:
            record: holds them.
        """
        self._record = record
        return self

    def take(self) -> bool:
        """Take one; tell whether there was one left."""
        if self.limit is None:
            return True
        assert self._record is not None
        metadata = self._record.metadata
        limits = metadata.get(LIMITS, {})
        used = limits.get(RETRIES_USED, 0)
        if used >= self.limit:
            return False
        self._record.metadata = {**metadata, LIMITS: {**limits, RETRIES_USED: used + 1}}
        return True
