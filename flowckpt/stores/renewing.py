"""Going on saving after a save that failed: what a store can do beyond the five methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from flowckpt.checkpoint import HistoryView
    from flowckpt.stores.base import Lease


@runtime_checkable
class RenewsAttempts(Protocol):
    """A store that can begin another attempt for an owner whose last save failed."""

    async def renew(self, workflow_id: str, history: HistoryView) -> Lease | None:
        """Begin the next attempt of a run that this process owns, without giving the run up in between.

        Nothing is written again where a write failed: what is missing goes to a new place, with the next save.

        Args:
            workflow_id: the run.
            history: the results that the next save holds; nothing of them is written yet.

        Returns:
            The new attempt; None where the old one can be saved to, or where another would not help.

        Raises:
            FencedError: another owner has the run, or it was removed.
            CheckpointStorageError: the medium still fails; the old attempt stays as it is.
        """
        ...
