"""The ability of a store to tell an owner that its run is another's now, while a step still works for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowckpt.errors import FencedError


@runtime_checkable
class TellsOfLostRuns(Protocol):
    """A store that looks, with each sign of life, whether the runs that it owns are still its own.

    It is a matter of time only: a save by a former owner is refused whether or not anybody was told before.
    """

    def tell_when_lost(self, workflow_id: str, tell: Callable[[FencedError], None]) -> None:
        """Have somebody told once a run is lost, until it is given up.

        Args:
            workflow_id: a run that this store owns; for another one nothing happens.
            tell: called with what a save would raise now, from a thread of the store, again with each look. It must
                return at once.
        """
        ...
