"""Where checkpoints live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.lazy import front_door
from flowckpt.stores.base import (
    CheckpointStore,
    DeletesCheckpoints,
    KeepsAttempts,
    Lease,
    ListsAttempts,
    ListsRuns,
    NotesBeginnings,
    OwnsRuns,
    ReadsAttempts,
    ReceivesRuns,
    SharesValues,
    TellsFigures,
)
from flowckpt.stores.picking import FiltersCheckpoints, filters_checkpoints

if TYPE_CHECKING:
    from flowckpt.stores.by_status import runs_of_status
    from flowckpt.stores.figures import store_figures
    from flowckpt.stores.file import FileCheckpointStore
    from flowckpt.stores.finding import FindsRuns, find_runs
    from flowckpt.stores.integrity import ChecksIntegrity, Finding
    from flowckpt.stores.memory import MemoryCheckpointStore
    from flowckpt.stores.objects import ObjectCheckpointStore
    from flowckpt.stores.opening import open_store
    from flowckpt.stores.postgres import PostgresCheckpointStore
    from flowckpt.stores.sqlite import SqliteCheckpointStore

_ROOMS = {
    "ChecksIntegrity": "flowckpt.stores.integrity",
    "FileCheckpointStore": "flowckpt.stores.file",
    "Finding": "flowckpt.stores.integrity",
    "FindsRuns": "flowckpt.stores.finding",
    "MemoryCheckpointStore": "flowckpt.stores.memory",
    "ObjectCheckpointStore": "flowckpt.stores.objects",
    "PostgresCheckpointStore": "flowckpt.stores.postgres",
    "SqliteCheckpointStore": "flowckpt.stores.sqlite",
    "find_runs": "flowckpt.stores.finding",
    "open_store": "flowckpt.stores.opening",
    "runs_of_status": "flowckpt.stores.by_status",
    "store_figures": "flowckpt.stores.figures",
}

__all__ = [
    "CheckpointStore",
    "ChecksIntegrity",
    "DeletesCheckpoints",
    "FileCheckpointStore",
    "FiltersCheckpoints",
    "Finding",
    "FindsRuns",
    "KeepsAttempts",
    "Lease",
    "ListsAttempts",
    "ListsRuns",
    "MemoryCheckpointStore",
    "NotesBeginnings",
    "ObjectCheckpointStore",
    "OwnsRuns",
    "PostgresCheckpointStore",
    "ReadsAttempts",
    "ReceivesRuns",
    "SharesValues",
    "SqliteCheckpointStore",
    "TellsFigures",
    "filters_checkpoints",
    "find_runs",
    "open_store",
    "runs_of_status",
    "store_figures",
]

__getattr__, __dir__ = front_door(__name__, _ROOMS, __all__, globals())
