"""The actions that ask the engine's own clock, and its sources of ids and of random numbers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs

from flowckpt.core.system.clock import Clock
from flowckpt.core.system.lazy import LazyModule

if TYPE_CHECKING:
    from uuid import UUID

    from flowckpt.core.dsl import world
else:
    world = LazyModule("flowckpt.core.dsl.world")


@attrs.frozen(eq=False, repr=False)
class Nondeterminism:
    """The clock and the sources of ids and numbers of a run; injected, so that tests control them.

    Attributes:
        clock: the time.
        random: returns numbers in [0, 1).
        new_uuid: makes UUIDs.
    """

    clock: Clock
    random: Callable[[], float]
    new_uuid: Callable[[], UUID]

    def answer(self, action: world.WorldAction) -> datetime | UUID | float | bool:
        """Return what an action asks for; the time is aware, and in UTC."""
        if action.is_patch:
            return True  # no recorded result waits, or replay would have answered
        if isinstance(action, world.NowAction):
            return self.clock.now().astimezone(UTC)
        return self.new_uuid() if isinstance(action, world.UuidAction) else self.random()
