"""The PostgreSQL store keeps the promises of the port."""

from __future__ import annotations

import pytest

from flowckpt.stores import PostgresCheckpointStore
from flowckpt.stores.sql.layout import VERSION_TABLE
from flowckpt.testing.contract import CheckpointStoreContract
from flowckpt.testing.retention import RetentionContract

SCHEMA = "contract"


def emptied(postgres):
    """Remove every row, which takes a tenth as long as to make the tables anew."""
    tables = [
        f'"{SCHEMA}"."{name}"'
        for (name,) in postgres.execute(
            f"SELECT tablename FROM pg_tables WHERE schemaname = '{SCHEMA}' AND tablename <> '{VERSION_TABLE}'"
        )
    ]
    deleting = "; ".join(f"DELETE FROM {table}" for table in tables)
    postgres.execute(f"SET session_replication_role = replica; {deleting}")  # in any order, whatever refers to whom


class TestPostgresCheckpointStore(RetentionContract, CheckpointStoreContract):
    @pytest.fixture(autouse=True)
    def place(self, postgres):
        self.postgres, self.url = postgres, postgres.url()
        self.made = []
        yield
        for store in self.made:
            store.close()
        emptied(postgres)

    def make_store(self):
        self.made.append(PostgresCheckpointStore(self.url, schema=SCHEMA, allow_unsafe=True))
        return self.made[-1]

    def reopen(self, store):
        return self.make_store()

    def damage(self, sequence):
        self.postgres.execute(
            f"UPDATE {SCHEMA}.checkpoints SET document = (document::text || ' ')::json WHERE sequence = {sequence}"
        )
