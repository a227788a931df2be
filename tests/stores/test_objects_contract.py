"""The store in object storage keeps the promises of the port: over S3's real language, in memory, and in a directory."""

from __future__ import annotations

import itertools

import pytest
from obstore.store import MemoryStore

from flowckpt.stores import ObjectCheckpointStore, open_store
from flowckpt.testing.contract import CheckpointStoreContract
from flowckpt.testing.store_under_test import RUN
from tests.stores.damage import damaged


def damage_in(store, sequence):
    bucket = store.runs.bucket
    for each in bucket.list_objects(f"runs/{RUN}", RUN):
        body = bucket.get(each.key, RUN)
        if damaged(body, sequence) != body:
            bucket.overwrite(each.key, damaged(body, sequence), RUN, "damage")


class TestObjectCheckpointStoreInMemory(CheckpointStoreContract):
    def make_store(self):
        self.driver = MemoryStore()
        return ObjectCheckpointStore(self.driver)

    def reopen(self, store):
        return ObjectCheckpointStore(self.driver)

    def damage(self, sequence):
        damage_in(ObjectCheckpointStore(self.driver), sequence)


class TestObjectCheckpointStoreInADirectory(CheckpointStoreContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.spec = f"objects+file://{tmp_path / 'store'}?allow_unsafe=true"

    def make_store(self):
        return open_store(self.spec)

    def reopen(self, store):
        return open_store(self.spec)

    def damage(self, sequence):
        damage_in(open_store(self.spec), sequence)


class TestObjectCheckpointStoreInS3(CheckpointStoreContract):
    def _list_selections(self):
        """Each value, and each two of them together: what is picked of what was read is the same code as above."""
        return itertools.islice(super()._list_selections(), 0, None, 7)

    def _list_filters(self, run):
        """Each kind of them: all runs are read, and what is found among them is the same code as above."""
        return itertools.islice(super()._list_filters(run), 0, None, 4)

    @pytest.fixture(autouse=True)
    def place(self, s3):
        self.spec = s3.spec(s3.make_bucket())

    def make_store(self):
        return open_store(self.spec)

    def reopen(self, store):
        return open_store(self.spec)

    def damage(self, sequence):
        damage_in(open_store(self.spec), sequence)
