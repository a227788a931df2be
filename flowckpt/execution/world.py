"""The actions that ask the engine's own clock, and its sources of ids and of random numbers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs

from flowckpt.core import dsl
from flowckpt.core.system.clock import Clock

if TYPE_CHECKING:
    from uuid import UUID


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

    def answer(self, action: dsl.world.WorldAction) -> datetime | UUID | float | bool:
        """Return what an action asks for; the time is aware, and in UTC."""
        if action.is_patch:
            return True  # no recorded result waits, or replay would have answered
        if isinstance(action, dsl.world.NowAction):
            return self.clock.now().astimezone(UTC)
        return self.new_uuid() if isinstance(action, dsl.world.UuidAction) else self.random()
