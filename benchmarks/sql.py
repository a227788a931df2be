"""The cost of a durable step in a database, against one committed insert of 300 bytes in the same database."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import pipelines
from benchmarks.figure import Figure, new_path, time_in_turn
from flowckpt import WorkflowEngine
from flowckpt.stores import SqliteCheckpointStore
from flowckpt.stores.sqlite.connection import journal_mode
from flowckpt.stores.sqlite.library import library

SERVER_VARIABLE = "FLOWCKPT_BENCH_PG"
"""The environment variable with the URL of a server to measure; by default, one is started."""

_fresh = iter(range(10**9))
_TEXT = "x" * 300


def sqlite_step(directory: Path, count: int, rounds: int) -> list[Figure]:
    """Compare a durable step with a commit of SQLite in the same journal mode."""

    def ours() -> float:
        store = SqliteCheckpointStore(new_path(directory, ".db"))
        try:
            return _time_run(store, count)
        finally:
            store.close()

    def bare() -> float:
        mode, level = journal_mode()
        connection = library().open(str(new_path(directory, ".db")), timeout=1)
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute(f"PRAGMA synchronous = {level}")
        connection.execute("CREATE TABLE lines (number INTEGER PRIMARY KEY, line TEXT)")
        began = time.perf_counter()
        for number in range(count):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO lines VALUES (?, ?)", (number, _TEXT))
            connection.execute("COMMIT")
        taken = time.perf_counter() - began
        connection.close()
        return taken / count

    return [_figure("durable step in SQLite / its own commit", ours, bare, rounds, 1.6)]


def postgres_step(count: int, rounds: int) -> list[Figure]:
    """Compare a durable step with a commit of PostgreSQL on the same server."""
    with postgres_server() as url:
        return _postgres_step(url, count, rounds)


@contextmanager
def postgres_server() -> Iterator[str]:
    """Yield the URL of a durable PostgreSQL server; one is started unless the environment names one."""
    if url := os.environ.get(SERVER_VARIABLE):
        yield url
        return
    server: Any = importlib.import_module("tests.postgres").PostgresServer(is_durable=True)
    try:
        server.start()
        yield f"postgresql://tests@/postgres?host={server.directory}&port={server.port}"
    finally:
        server.close()


def _postgres_step(url: str, count: int, rounds: int) -> list[Figure]:
    psycopg: Any = importlib.import_module("psycopg")
    postgres: Any = importlib.import_module("flowckpt.stores.postgres")
    schemas: list[str] = []

    def ours() -> float:
        schemas.append(f"bench_{os.getpid()}_{next(_fresh)}")
        store = postgres.PostgresCheckpointStore(url, schema=schemas[-1])
        try:
            return _time_run(store, count)
        finally:
            store.close()

    def bare() -> float:
        schemas.append(f"bench_{os.getpid()}_{next(_fresh)}")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schemas[-1]}")
            connection.execute(f"CREATE TABLE {schemas[-1]}.lines (number bigint PRIMARY KEY, line text)")
            began = time.perf_counter()
            for number in range(count):
                connection.execute(f"INSERT INTO {schemas[-1]}.lines VALUES (%s, %s)", (number, _TEXT))
            return (time.perf_counter() - began) / count

    try:
        return [_figure("durable step in PostgreSQL / its own commit", ours, bare, rounds, 2.0)]
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            for schema in schemas:
                connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def _time_run(store: Any, count: int) -> float:
    engine = WorkflowEngine(store)
    engine.run_sync(pipelines.durable, count=10).unwrap()  # creates the tables, and prepares the statements
    began = time.perf_counter()
    engine.run_sync(pipelines.durable, count=count).unwrap()
    return (time.perf_counter() - began) / count


def _figure(name: str, ours: Any, bare: Any, rounds: int, bar: float) -> Figure:
    mine, base, ratio = time_in_turn(ours, bare, rounds)
    return Figure(name, ratio, bar, detail=f"{mine * 1e6:.0f} µs a step; a commit {base * 1e6:.0f} µs")
