"""The PostgreSQL store keeps the promises of the port."""

from __future__ import annotations

import pytest

from flowckpt.stores import PostgresCheckpointStore
from flowckpt.testing.contract import CheckpointStoreContract
from flowckpt.testing.retention_contract import RetentionContract

_numbers = iter(range(10**9))


class TestPostgresCheckpointStore(RetentionContract, CheckpointStoreContract):
    @pytest.fixture(autouse=True)
    def place(self, postgres):
        self.url = postgres.url()
        self.schema = f"contract_{next(_numbers)}"
        self.made = []
        yield
        for store in self.made:
            store.close()
        postgres.execute(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")

    def make_store(self):
        self.made.append(PostgresCheckpointStore(self.url, schema=self.schema, allow_unsafe=True))
        return self.made[-1]

    def reopen(self, store):
        return self.make_store()
