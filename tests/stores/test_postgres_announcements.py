"""Who waits for a message in PostgreSQL hears of it when it is sent, and does not have to ask all the time."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest

from flowckpt import RunOptions, WorkflowEngine, step, workflow
from flowckpt.core.records import Status
from flowckpt.engine.session import suspend
from flowckpt.stores import PostgresCheckpointStore
from flowckpt.stores.base import Ability
from flowckpt.stores.postgres import store as postgres_store


@pytest.fixture
def store(url):
    made = PostgresCheckpointStore(url)
    yield made
    made.close()


@pytest.fixture
def sender(store, url):
    other = PostgresCheckpointStore(url)
    yield WorkflowEngine(other)
    other.close()


@workflow
def asking():
    return (yield step("ask").wait("go"))


async def suspended(store, *runs):
    for run in runs:
        await WorkflowEngine(store).run(asking, workflow_id=run)


async def hears(heard, seconds=120.0):
    try:
        await asyncio.wait_for(heard.wait(), seconds)
    except TimeoutError:
        return False
    heard.clear()
    return True


async def test_a_message_is_heard_of_by_those_who_wait_for_its_run_and_by_those_who_wait_for_any(store, sender):
    await suspended(store, "a", "b")
    assert store.has(Ability.ANNOUNCE)
    async with store.announcements("a") as of_a, store.announcements() as of_any:
        assert await hears(of_a) and await hears(of_any), "what was sent before is to be looked for"
        await sender.signal("b", "go")
        assert await hears(of_any)
        await sender.signal("a", "go")
        assert await hears(of_any) and await hears(of_a)
        assert not of_a.is_set(), "that for b was none of a's"


async def test_a_message_that_is_sent_twice_is_told_once(store, sender):
    await suspended(store, "a")
    async with store.announcements("a") as heard:
        assert await hears(heard)
        for _ in range(2):
            await sender.signal("a", "go", signal_id="one")
        assert await hears(heard)
        assert not await hears(heard, 0.3)


async def test_a_run_that_stays_goes_on_at_once_although_it_looks_seldom(store, sender, monkeypatch):
    for name in ("_FIRST_LOOK", "_LAST_LOOK_HEARING"):
        monkeypatch.setattr(suspend, name, 3600.0)
    running = asyncio.create_task(WorkflowEngine(store).run(asking, workflow_id="r", options=RunOptions(stay=7200)))
    while (info := await store.describe_run("r")) is None or info.status is not Status.SUSPENDED:
        await asyncio.sleep(0.02)
    await sender.signal("r", "go", 5)
    assert (await asyncio.wait_for(running, 120)).output == 5


async def test_where_the_connection_is_lost_another_one_listens_and_nothing_is_missed(
    store, sender, postgres, postgres_database, monkeypatch
):
    monkeypatch.setattr(postgres_store, "_AGAIN_SECONDS", 0.05)
    await suspended(store, "a")
    async with store.announcements("a") as heard:
        assert await hears(heard)
        with psycopg.connect(postgres.dsn(postgres_database), autocommit=True) as connection:
            killed = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE query LIKE 'LISTEN%' AND datname = current_database()"
            ).fetchall()
        assert killed == [(True,)]
        assert await hears(heard), "it may have missed something meanwhile"
        await sender.signal("a", "go")
        assert await hears(heard)


async def test_a_schema_with_the_longest_name_has_a_channel_too(url):
    schema = "s" * 63
    store = PostgresCheckpointStore(url, schema=schema)
    await suspended(store, "a")
    async with store.announcements("a") as heard:
        assert await hears(heard)
        await WorkflowEngine(store).signal("a", "go")
        assert await hears(heard)
    store.close()


async def test_a_server_that_is_not_there_ends_nothing(monkeypatch, caplog):
    monkeypatch.setattr(postgres_store, "_AGAIN_SECONDS", 0.01)
    store = PostgresCheckpointStore("postgresql://me:hunter2@127.0.0.1:1/none?connect_timeout=1")
    caplog.set_level("INFO", "flowckpt")
    async with store.announcements("a") as heard:
        end = time.monotonic() + 120
        while "no announcements of new messages" not in caplog.text and time.monotonic() < end:
            await asyncio.sleep(0.01)
    assert "no announcements of new messages" in caplog.text
    assert "hunter2" not in caplog.text
    assert not heard.is_set()
