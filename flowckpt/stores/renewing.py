"""Going on saving after a save that failed: what a store can do beyond the five methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from flowckpt.checkpoint import HistoryView
    from flowckpt.stores.base import Lease


@runtime_checkable
class RenewsAttempts(Protocol):
    """A store that can let an owner save again whose last save failed, once the medium is well again."""

    async def renew(self, workflow_id: str, history: HistoryView) -> Lease | None:
        """Make a run that this process owns savable again, without giving it up in between.

        There are two ways. Where the very same save can be done again without harm, whether it was done or not, the store
        does it, and the attempt goes on. Where a failed write must never be made again, as in files, the store begins the
        next attempt, and what is missing goes there with the next save.

        It is asked before each save behind one that failed, so it must not wait long for a medium that is away.

        Args:
            workflow_id: the run.
            history: the results that the next save holds; nothing of them is written yet.

        Returns:
            The new attempt; None where the old one can be saved to, or another would not help.

        Raises:
            FencedError: another owner has the run, or it was removed.
            CheckpointStorageError: the medium still fails; the old attempt stays as it is.
        """
        ...
