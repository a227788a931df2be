"""Where checkpoints live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import front_door
from flowckpt.stores.base import (
    CheckpointStore,
    DeletesCheckpoints,
    FiltersCheckpoints,
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
    filters_checkpoints,
)

if TYPE_CHECKING:
    from flowckpt.stores.base import ChecksIntegrity, Finding
    from flowckpt.stores.file import FileCheckpointStore
    from flowckpt.stores.memory import MemoryCheckpointStore
    from flowckpt.stores.objects import ObjectCheckpointStore
    from flowckpt.stores.open import open_store
    from flowckpt.stores.postgres import PostgresCheckpointStore
    from flowckpt.stores.queries import FindsRuns, find_runs, runs_of_status, store_figures
    from flowckpt.stores.sqlite import SqliteCheckpointStore


_ROOMS = {
    "ChecksIntegrity": "flowckpt.stores.base",
    "FileCheckpointStore": "flowckpt.stores.file",
    "Finding": "flowckpt.stores.base",
    "FindsRuns": "flowckpt.stores.queries",
    "MemoryCheckpointStore": "flowckpt.stores.memory",
    "ObjectCheckpointStore": "flowckpt.stores.objects",
    "PostgresCheckpointStore": "flowckpt.stores.postgres",
    "SqliteCheckpointStore": "flowckpt.stores.sqlite",
    "find_runs": "flowckpt.stores.queries",
    "open_store": "flowckpt.stores.open",
    "runs_of_status": "flowckpt.stores.queries",
    "store_figures": "flowckpt.stores.queries",
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
