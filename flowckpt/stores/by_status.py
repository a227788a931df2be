"""The runs of some statuses: asked of the stores that find them quickly, picked from the whole list of the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from flowckpt.errors import SettingError
from flowckpt.stores.base import CheckpointStore, ListsRuns

if TYPE_CHECKING:
    from flowckpt.checkpoint import Status
    from flowckpt.checkpoint.reference import RunInfo


@runtime_checkable
class ListsRunsByStatus(Protocol):
    """A store that finds the runs of some statuses without looking at all of them."""

    async def list_runs_of(self, statuses: Collection[Status]) -> Sequence[RunInfo]:
        """Return the runs that stand so, the one started last first; ask with `runs_of_status`.

        Args:
            statuses: which; `crashed` and `running` are told apart by whether there is a live owner.

        Raises:
            CheckpointStorageError: the medium failed.
        """
        ...


async def runs_of_status(store: CheckpointStore, statuses: Collection[Status]) -> Sequence[RunInfo]:
    """Return the runs that stand so, the one started last first.

    Args:
        store: the store.
        statuses: which.

    Raises:
        SettingError: the store cannot list its runs.
        CheckpointStorageError: the medium failed.
    """
    if isinstance(store, ListsRunsByStatus):
        return await store.list_runs_of(statuses)
    if not isinstance(store, ListsRuns):
        raise SettingError(
            f"{store!r} cannot list its runs",
            setting="store",
            remedy="Use a store that can (flowckpt.stores.base.ListsRuns).",
        )
    return [info for info in await store.list_runs() if info.status in statuses]
