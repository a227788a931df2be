"""What a store can do so that it does not grow without bound: small protocols, as those of `flowckpt.stores.base`.

None of them decides what goes; that is said by whoever calls. What each promises over a crash: what was to stay is there,
what went does not come back, and doing it again finishes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import attrs

if TYPE_CHECKING:
    from flowckpt.checkpoint.reference import RunInfo


@runtime_checkable
class EvictsCheckpoints(Protocol):
    """A store that can remove checkpoints of a run by their sequences. Their results stay: later ones need them."""

    def evict_with_next_save(self, workflow_id: str, sequences: Sequence[int]) -> None:
        """Remove checkpoints with the next save, in the same write: with it they go, and without it they stay.

        It does no I/O, cannot fail, and costs nothing that grows with the run.

        Args:
            workflow_id: a run that the caller owns; nothing happens where it does not.
            sequences: which; the checkpoint that is saved next is never among them.
        """
        ...

    async def delete_sequences(self, workflow_id: str, sequences: Sequence[int]) -> int:
        """Remove checkpoints now; return how many there were.

        Args:
            workflow_id: the run.
            sequences: which.

        Raises:
            RunLockedError: another process owns the run.
            FencedError: another process has taken it over; see `DeletesCheckpoints`.
        """
        ...


@runtime_checkable
class PinsCheckpoints(Protocol):
    """A store in which a checkpoint can be pinned: retention never removes it, nor its run."""

    async def pin(self, workflow_id: str, sequence: int) -> None:
        """Pin a checkpoint, durably. A live run can be pinned, too; pinning twice is no error.

        Args:
            workflow_id: the run.
            sequence: the checkpoint.

        Raises:
            CheckpointNotFoundError: there is no such checkpoint.
        """
        ...

    async def unpin(self, workflow_id: str, sequence: int) -> None:
        """Take a pin away, durably; no error where there is none.

        Args:
            workflow_id: the run.
            sequence: the checkpoint.
        """
        ...

    async def pinned(self, workflow_id: str) -> frozenset[int]:
        """Return the sequences that are pinned.

        Args:
            workflow_id: the run.
        """
        ...


@attrs.frozen
class Compacted:
    """What a compaction came to.

    Attributes:
        is_changed: whether anything was removed.
        bytes_freed: how much less the run takes.
    """

    is_changed: bool = False
    bytes_freed: int = 0


@runtime_checkable
class CompactsRuns(Protocol):
    """A store that can write a run anew without what nobody needs: removed checkpoints, values that only they had."""

    async def compactable(self, after: str, limit: int) -> Sequence[str]:
        """Return runs that a compaction may make smaller, in an order that stays.

        Args:
            after: go on behind this run; an empty string to begin.
            limit: the most to return.
        """
        ...

    async def compact(self, workflow_id: str, *, is_forced: bool = False) -> Compacted:
        """Drop what nobody needs. What any attempt recorded stays, but for checkpoints that were removed.

        Args:
            workflow_id: the run; one that does not exist is no error.
            is_forced: do it also where little is gained.

        Raises:
            RunLockedError: another process owns the run.
            CheckpointCorruptedError: its record is damaged; nothing was changed.
        """
        ...


@runtime_checkable
class SweepsLeftovers(Protocol):
    """A store that can sweep what belongs to no run, beside whoever is at work."""

    async def tidy(self) -> None:
        """Finish the removals that a crash cut short, and give free space back where that is cheap."""
        ...


@runtime_checkable
class PrunesRuns(Protocol):
    """A store that can go through very many runs, and remove them, in bounded batches."""

    async def page_runs(self, before: RunInfo | None, limit: int) -> Sequence[RunInfo]:
        """Return runs, the one started last first, without loading them.

        Args:
            before: go on behind this one; None to begin.
            limit: the most to return.
        """
        ...

    async def stored_bytes(self, workflow_ids: Sequence[str]) -> Sequence[int]:
        """Return about how many bytes each run takes; 0 for one that does not exist.

        Args:
            workflow_ids: the runs.
        """
        ...

    async def clear_unchanged(self, runs: Sequence[RunInfo]) -> Sequence[str]:
        """Remove those of the runs that nobody owns, that have no pin, and that still stand as described.

        Args:
            runs: as they were listed.

        Returns:
            The ids of those that were removed.
        """
        ...

    async def tidy(self) -> None:
        """Finish the removals that a crash cut short, and give free space back to the system where that is cheap."""
        ...
