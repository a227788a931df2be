"""The PostgreSQL store: all runs in one schema of a database. It needs the extra `flowckpt[postgres]`."""

from flowckpt.stores.postgres.store import PostgresCheckpointStore

__all__ = ["PostgresCheckpointStore"]
