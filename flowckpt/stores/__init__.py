"""Where checkpoints live."""

from flowckpt.stores.base import (
    CheckpointStore,
    ChecksIntegrity,
    DeletesCheckpoints,
    Finding,
    Lease,
    ListsRuns,
    OwnsRuns,
)
from flowckpt.stores.file import FileCheckpointStore
from flowckpt.stores.memory import MemoryCheckpointStore
from flowckpt.stores.opening import open_store

__all__ = [
    "CheckpointStore",
    "ChecksIntegrity",
    "DeletesCheckpoints",
    "FileCheckpointStore",
    "Finding",
    "Lease",
    "ListsRuns",
    "MemoryCheckpointStore",
    "OwnsRuns",
    "open_store",
]
