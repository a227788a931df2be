"""Where checkpoints live."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flowckpt.stores.base import (
    CheckpointStore,
    ChecksIntegrity,
    DeletesCheckpoints,
    Finding,
    KeepsAttempts,
    Lease,
    ListsAttempts,
    ListsRuns,
    NotesBeginnings,
    OwnsRuns,
    SharesValues,
)

if TYPE_CHECKING:
    from flowckpt.stores.file import FileCheckpointStore
    from flowckpt.stores.memory import MemoryCheckpointStore
    from flowckpt.stores.opening import open_store
    from flowckpt.stores.postgres import PostgresCheckpointStore
    from flowckpt.stores.sqlite import SqliteCheckpointStore

_ROOMS = {
    "FileCheckpointStore": "file",
    "MemoryCheckpointStore": "memory",
    "PostgresCheckpointStore": "postgres",
    "SqliteCheckpointStore": "sqlite",
    "open_store": "opening",
}

__all__ = [
    "CheckpointStore",
    "ChecksIntegrity",
    "DeletesCheckpoints",
    "FileCheckpointStore",
    "Finding",
    "KeepsAttempts",
    "Lease",
    "ListsAttempts",
    "ListsRuns",
    "MemoryCheckpointStore",
    "NotesBeginnings",
    "OwnsRuns",
    "PostgresCheckpointStore",
    "SharesValues",
    "SqliteCheckpointStore",
    "open_store",
]


def __getattr__(name: str) -> Any:
    """Load a store when it is asked for (PEP 562): a run uses one of them."""
    if name not in _ROOMS:
        raise AttributeError(f"module 'flowckpt.stores' has no attribute {name!r}")
    return getattr(importlib.import_module(f"flowckpt.stores.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
