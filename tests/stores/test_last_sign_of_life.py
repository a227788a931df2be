"""The owner of a run leaves signs of life, also while one step takes long."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from datetime import UTC, datetime, timedelta

import pytest

from flowckpt import FileCheckpointStore
from flowckpt.stores.sqlite import SqliteCheckpointStore
from flowckpt.testing.store_under_test import checkpoint

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["files", "sqlite"])
def store(request, tmp_path):
    made = FileCheckpointStore(tmp_path / "s") if request.param == "files" else SqliteCheckpointStore(tmp_path / "s.db")
    yield made
    made.close()


def age(store, path):
    """Let the last sign have been given long ago."""
    if isinstance(store, FileCheckpointStore):
        (lock,) = path.rglob("lock")
        os.utime(lock, (LONG_AGO.timestamp(), LONG_AGO.timestamp()))
    else:
        with contextlib.closing(sqlite3.connect(path / "s.db")) as database, database:
            database.execute("UPDATE attempts SET heartbeat_at = '2020-01-01T00:00:00.000000Z'")


async def test_a_long_step_is_seen_to_live(store, tmp_path):
    await store.acquire("run")
    await store.save("run", checkpoint(1, []))
    store.note_started("run", "train")
    age(store, tmp_path)
    assert await store.last_seen("run", 1) == LONG_AGO
    assert store.runs.renew_leases()  # as the thread does every ten seconds
    assert await store.last_seen("run", 1) > datetime.now(UTC) - timedelta(days=1)
    assert await store.last_seen("run", 2) is None is await store.last_seen("other", 1)
    assert await store.started_steps("run") == (1, ("train",))


async def test_a_sign_does_not_attribute_the_steps_of_an_earlier_attempt_to_a_new_one(tmp_path):
    store = FileCheckpointStore(tmp_path / "s")
    for _ in range(2):
        lease = await store.acquire("run")
        await store.save("run", checkpoint(lease.attempt, [], attempt=lease.attempt))
        if lease.attempt == 1:
            store.note_started("run", "train")
            await store.release("run")
    store.runs.renew_leases()
    assert await store.started_steps("run") == (1, ("train",)) and await store.last_seen("run", 2) is None
    store.close()
