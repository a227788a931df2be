"""Finding runs: asked of the stores that have an index for it, picked from the whole list of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from flowckpt.errors import SettingError
from flowckpt.stores.base import CheckpointStore, ListsRuns

if TYPE_CHECKING:
    from flowckpt.checkpoint.reference import RunInfo
    from flowckpt.checkpoint.run_filter import RunFilter


@runtime_checkable
class FindsRuns(Protocol):
    """A store that finds some of its runs without looking at all of them."""

    async def find_runs(self, wanted: RunFilter) -> Sequence[RunInfo]:
        """Return the runs that are wanted, the one started last first; ask with `find_runs`.

        Args:
            wanted: which.

        Raises:
            CheckpointStorageError: the medium failed.
        """
        ...


async def find_runs(store: CheckpointStore, wanted: RunFilter) -> Sequence[RunInfo]:
    """Return the runs of a store that are wanted, the one started last first.

    Args:
        store: the store.
        wanted: which.

    Raises:
        SettingError: the store cannot list its runs.
        CheckpointStorageError: the medium failed.
    """
    if isinstance(store, FindsRuns):
        return await store.find_runs(wanted)
    return wanted.of(await listing(store).list_runs())


def listing(store: CheckpointStore) -> ListsRuns:
    """Return a store as one that lists its runs.

    Args:
        store: the store.

    Raises:
        SettingError: it cannot.
    """
    if not isinstance(store, ListsRuns):
        raise SettingError(
            f"{store!r} cannot list its runs",
            setting="store",
            remedy="Use a store that can (flowckpt.stores.base.ListsRuns).",
        )
    return store
