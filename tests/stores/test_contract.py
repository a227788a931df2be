"""The stores of this package keep the promises of the port."""

from __future__ import annotations

import pytest

from flowckpt.stores import FileCheckpointStore, MemoryCheckpointStore, SqliteCheckpointStore
from flowckpt.testing.contract import CheckpointStoreContract
from flowckpt.testing.retention import RetentionContract


class TestMemoryCheckpointStore(RetentionContract, CheckpointStoreContract):
    def make_store(self):
        return MemoryCheckpointStore()


class TestFileCheckpointStore(RetentionContract, CheckpointStoreContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.path = tmp_path / "store"

    def make_store(self):
        return FileCheckpointStore(self.path)

    def reopen(self, store):
        return FileCheckpointStore(self.path)


class TestSqliteCheckpointStore(RetentionContract, CheckpointStoreContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.path = tmp_path / "store.db"

    def make_store(self):
        return SqliteCheckpointStore(self.path)

    def reopen(self, store):
        return SqliteCheckpointStore(self.path)
