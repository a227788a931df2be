"""Readers read a store of which they may only read: by their role, by the server's setting, or from a standby."""

from __future__ import annotations

import secrets
import time

import pytest

from flowckpt.errors import CheckpointStorageError, ReadOnlyStoreError
from flowckpt.stores.postgres import PostgresCheckpointStore
from flowckpt.stores.postgres import database as database_module
from flowckpt.stores.sql import layout
from flowckpt.testing.contract import checkpoint, results
from tests.postgres import PostgresServer
from tests.stores.test_reading_only import RUN, WRITES, fill, seen

pytestmark = pytest.mark.usefixtures("in_place")


@pytest.fixture
def role(postgres, postgres_database):
    """A role that may look and nothing else, as soon as it is granted that."""
    name = f"reader_{secrets.token_hex(4)}"
    postgres.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    postgres.execute(f"DROP OWNED BY {name}", postgres_database)
    postgres.execute(f"DROP ROLE {name}")


@pytest.fixture
def opened():
    made = []

    def open_one(url):
        made.append(PostgresCheckpointStore(url, patience_seconds=5))
        return made[-1]

    yield open_one
    for store in made:
        store.close()


@pytest.fixture
def grant(postgres, postgres_database, role):
    def grant_now():
        postgres.execute(
            f"GRANT USAGE ON SCHEMA flowckpt TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA flowckpt TO {role}",
            postgres_database,
        )

    return grant_now


@pytest.fixture(params=["a role", "a setting"])
def reading(request, url, role, grant, postgres, postgres_database):
    """The URL of a reader, and what grants it the right to read."""
    if request.param == "a role":
        return f"{postgres.url(postgres_database, user=role)}?allow_unsafe=true", grant
    return f"{url}&options=-cdefault_transaction_read_only%3Don", lambda: None


async def test_everything_can_be_read_and_the_first_write_is_refused(url, reading, opened):
    writer = opened(url)
    fill(writer)
    before = await seen(writer)
    reading_url, grant = reading
    grant()
    reader = opened(reading_url)
    assert await seen(reader) == before
    for name, write in WRITES.items():
        with pytest.raises(ReadOnlyStoreError, match="read-only here") as refused:
            await write(reader)
        assert "primary" in refused.value.remedy, name
    assert await seen(writer) == before


async def test_a_database_without_a_store_is_no_empty_store_for_who_cannot_make_one(reading, opened):
    reading_url, _ = reading
    with pytest.raises(ReadOnlyStoreError, match="contains no store yet"):
        await opened(reading_url).list_runs()


async def test_an_older_schema_that_cannot_be_brought_forward_is_refused(url, reading, opened, monkeypatch):
    fill(opened(url))
    reading_url, grant = reading
    grant()
    newer = (*layout.MIGRATIONS, ("ALTER TABLE runs ADD COLUMN colour TEXT",))
    monkeypatch.setattr(database_module, "MIGRATIONS", newer)
    with pytest.raises(ReadOnlyStoreError, match=f"migrated to version {len(newer)}"):
        await opened(reading_url).list_runs()


async def test_who_may_not_even_read_is_told_what_to_grant(url, role, opened, postgres, postgres_database):
    fill(opened(url))
    with pytest.raises(CheckpointStorageError, match="permission denied") as refused:
        await opened(f"{postgres.url(postgres_database, user=role)}?allow_unsafe=true").list_runs()
    assert "GRANT SELECT" in refused.value.remedy
    assert not isinstance(refused.value, ReadOnlyStoreError)


async def test_a_standby_is_read_and_takes_no_write(url, opened, postgres, postgres_database):
    writer = opened(url)
    fill(writer)
    standby = PostgresServer(standby_of=postgres)
    try:
        standby.start()
        reader = opened(standby.url(postgres_database))
        assert await seen(reader) == await seen(writer)
        for write in WRITES.values():
            with pytest.raises(ReadOnlyStoreError, match="read-only"):
                await write(reader)
        lease = await writer.acquire(RUN)
        await writer.save(RUN, checkpoint(3, results("x" * 100_000, "b"), attempt=lease.attempt))
        for _ in range(2_000):  # it follows, on a busy machine late
            if (await reader.load_latest(RUN)).sequence == 3:
                break
            time.sleep(0.02)
        assert (await reader.load_latest(RUN)).sequence == 3
        reader.close()
    finally:
        standby.close()
