"""The cost of a durable step in a database, against one committed insert of 300 bytes in the same database."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from typing import Any

from benchmarks import pipelines
from benchmarks.figure import Figure, interleaved
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
        store = SqliteCheckpointStore(directory / f"{next(_fresh):06d}.db")
        try:
            return _timed_run(store, count)
        finally:
            store.close()

    def bare() -> float:
        mode, level = journal_mode()
        connection = library().open(str(directory / f"{next(_fresh):06d}.db"), timeout=1)
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
    given = os.environ.get(SERVER_VARIABLE)
    if given:
        return _postgres_step(given, count, rounds)
    server: Any = importlib.import_module("tests.postgres").PostgresServer(is_durable=True)
    try:
        server.start()
        return _postgres_step(f"postgresql://tests@/postgres?host={server.directory}&port={server.port}", count, rounds)
    finally:
        server.close()


def _postgres_step(url: str, count: int, rounds: int) -> list[Figure]:
    psycopg: Any = importlib.import_module("psycopg")
    postgres: Any = importlib.import_module("flowckpt.stores.postgres")
    made: list[str] = []

    def ours() -> float:
        made.append(f"bench_{os.getpid()}_{next(_fresh)}")
        store = postgres.PostgresCheckpointStore(url, schema=made[-1])
        try:
            return _timed_run(store, count)
        finally:
            store.close()

    def bare() -> float:
        made.append(f"bench_{os.getpid()}_{next(_fresh)}")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {made[-1]}")
            connection.execute(f"CREATE TABLE {made[-1]}.lines (number bigint PRIMARY KEY, line text)")
            began = time.perf_counter()
            for number in range(count):
                connection.execute(f"INSERT INTO {made[-1]}.lines VALUES (%s, %s)", (number, _TEXT))
            return (time.perf_counter() - began) / count

    try:
        return [_figure("durable step in PostgreSQL / its own commit", ours, bare, rounds, 2.0)]
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            for schema in made:
                connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def _timed_run(store: Any, count: int) -> float:
    engine = WorkflowEngine(store)
    engine.run_sync(pipelines.durable, count=10).unwrap()  # creates the tables, and prepares the statements
    began = time.perf_counter()
    engine.run_sync(pipelines.durable, count=count).unwrap()
    return (time.perf_counter() - began) / count


def _figure(name: str, ours: Any, bare: Any, rounds: int, bar: float) -> Figure:
    mine, base, ratio = interleaved(ours, bare, rounds)
    return Figure(name, ratio, bar, detail=f"{mine * 1e6:.0f} µs a step; a commit {base * 1e6:.0f} µs")
