"""The stores of this package keep the promises of the port."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from flowckpt.stores import FileCheckpointStore, MemoryCheckpointStore, SqliteCheckpointStore
from flowckpt.testing.contract import CheckpointStoreContract
from flowckpt.testing.retention import RetentionContract
from flowckpt.testing.store_under_test import RUN
from tests.stores.damage import damaged


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

    def damage(self, sequence):
        for file in (self.path / "runs" / RUN).glob("*.jsonl"):
            file.write_bytes(damaged(file.read_bytes(), sequence))


class TestSqliteCheckpointStore(RetentionContract, CheckpointStoreContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.path = tmp_path / "store.db"

    def make_store(self):
        return SqliteCheckpointStore(self.path)

    def reopen(self, store):
        return SqliteCheckpointStore(self.path)

    def damage(self, sequence):
        with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("UPDATE checkpoints SET document = document || ' ' WHERE sequence = ?", (sequence,))
