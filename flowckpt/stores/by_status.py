"""The runs of some statuses."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from flowckpt.checkpoint.run_filter import RunFilter
from flowckpt.stores.base import CheckpointStore
from flowckpt.stores.finding import find_runs

if TYPE_CHECKING:
    from flowckpt.checkpoint import Status
    from flowckpt.checkpoint.reference import RunInfo


async def runs_of_status(store: CheckpointStore, statuses: Collection[Status]) -> Sequence[RunInfo]:
    """Return the runs that stand so, the one started last first.

    Args:
        store: the store.
        statuses: which; `crashed` and `running` are told apart by whether there is a live owner.

    Raises:
        SettingError: the store cannot list its runs.
        CheckpointStorageError: the medium failed.
    """
    return await find_runs(store, RunFilter(statuses=frozenset(statuses)))
