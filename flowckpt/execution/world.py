"""The actions that ask the engine's own clock, and its sources of ids and of random numbers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import attrs

from flowckpt.clock import Clock
from flowckpt.lazy import LazyModule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from uuid import UUID

    from flowckpt.dsl import recorded
else:
    recorded = LazyModule("flowckpt.dsl.recorded")


@attrs.frozen(eq=False, repr=False)
class World:
    """What the steps of a run may ask; injected, so that tests decide what there is.

    Attributes:
        clock: the time.
        random: returns numbers in [0, 1).
        new_uuid: makes UUIDs.
    """

    clock: Clock
    random: Callable[[], float]
    new_uuid: Callable[[], UUID]

    def answer(self, action: recorded.WorldAction) -> datetime | UUID | float:
        """Return what an action asks for; the time is aware, and in UTC.

        Args:
            action: the action.
        """
        if isinstance(action, recorded.NowAction):
            return self.clock.now().astimezone(UTC)
        return self.new_uuid() if isinstance(action, recorded.UuidAction) else self.random()
