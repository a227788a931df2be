"""The file store: one directory a run, one append-only segment an attempt."""

from flowckpt.stores.file.store import FileCheckpointStore

__all__ = ["FileCheckpointStore"]
