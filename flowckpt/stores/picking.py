"""Stores that pick checkpoints themselves."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeGuard

from flowckpt.stores.base import CheckpointStore

if TYPE_CHECKING:
    from flowckpt.checkpoint import CheckpointData, Reason
    from flowckpt.checkpoint.reference import CheckpointRef


class FiltersCheckpoints(CheckpointStore, Protocol):
    """A store that picks checkpoints itself: two of the five methods, with keywords. Ask with `filters_checkpoints`.

    What is picked is part of what the run is now. What an attempt left behind, `ListsAttempts` and `KeepsAttempts` tell.
    """

    async def load_latest(self, workflow_id: str, *, attempt: int | None = None) -> CheckpointData | None:
        """Return the checkpoint with the highest sequence, or None where there is none.

        Args:
            workflow_id: the run.
            attempt: only of those that this attempt saved.

        Raises:
            CheckpointCorruptedError: the record is damaged.
            SettingError: the attempt is no number from 1 on.
        """
        ...

    async def list_checkpoints(
        self,
        workflow_id: str,
        *,
        attempt: int | None = None,
        reason: Reason | str | None = None,
        verified: bool | None = None,
        limit: int | None = None,
    ) -> Sequence[CheckpointRef]:
        """Return the run's checkpoints that are wanted, the newest first.

        Args:
            workflow_id: the run.
            attempt: only those that this attempt saved.
            reason: only those that were taken for this reason.
            verified: only those whose evidence was found to hold (True), or was not (False).
            limit: at most so many.

        Raises:
            CheckpointCorruptedError: the record is damaged.
            SettingError: something is asked for that cannot be.
        """
        ...


def filters_checkpoints(store: object) -> TypeGuard[FiltersCheckpoints]:
    """Tell whether a store takes the keywords of `FiltersCheckpoints`: `isinstance` sees only the methods' names.

    Args:
        store: the store.
    """
    asked = {"load_latest": ("attempt",), "list_checkpoints": ("attempt", "reason", "verified", "limit")}
    return all(
        callable(method := getattr(store, name, None))
        and (taken := inspect.signature(method).parameters).keys() >= {*keywords}
        and all(taken[keyword].kind is not inspect.Parameter.POSITIONAL_ONLY for keyword in keywords)
        for name, keywords in asked.items()
    )
