"""The SQLite store: all runs in one database file."""

from flowckpt.stores.sqlite.store import SqliteCheckpointStore

__all__ = ["SqliteCheckpointStore"]
