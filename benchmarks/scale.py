"""The cost of operations in a store of 1,000 runs and in a large one."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import itertools
import os
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure
from benchmarks.filling import fill_postgres, fill_sqlite, run_id, save_template
from benchmarks.sql import postgres_server
from flowckpt.core.records.listing import RunFilter
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.core.system.clock import SystemClock
from flowckpt.maintenance.recovery import find_due_runs
from flowckpt.stores import SqliteCheckpointStore
from flowckpt.testing.store_under_test import checkpoint, results

SMALL = 1_000
BAR = 1.5
_LIMIT = 50
_BATCH = 10
_WARM, _MOST, _SECONDS = 3, 8, 2.0

FILTERS = {
    "list": RunFilter(limit=_LIMIT),
    "list --status failed": RunFilter(statuses={"failed"}, limit=_LIMIT),
    "list --status failed --status cancelled": RunFilter(statuses={"failed", "cancelled"}, limit=_LIMIT),
    "list --status crashed, few": RunFilter(statuses={"crashed"}, limit=_LIMIT),
    "list --workflow": RunFilter(workflow="workflow-1", limit=_LIMIT),
    "list --workflow, few": RunFilter(workflow="rare", limit=_LIMIT),
    "list --workflow --status": RunFilter(workflow="workflow-1", statuses={"failed"}, limit=_LIMIT),
    "list --tag K=V": RunFilter(tags=[("team", "data")], limit=_LIMIT),
    "list --tag K=V, few": RunFilter(tags=[("ticket", "7")], limit=_LIMIT),
    "list --tag K": RunFilter(tags=[("team", None)], limit=_LIMIT),
}


def sqlite_scale(directory: Path, large: int, rounds: int) -> list[Figure]:
    """Compare SQLite files of 1,000 and of many runs."""
    stores = []
    place = Path(tempfile.mkdtemp(dir=directory))
    for count in (SMALL, large):
        file = place / f"{count}.db"
        store = SqliteCheckpointStore(file)
        save_template(store)
        store.close()
        with (
            _report_time(f"{count:,} runs into SQLite"),
            contextlib.closing(sqlite3.connect(file, isolation_level=None)) as to,
        ):
            fill_sqlite(to, count)
            os.sync()
        stores.append((SqliteCheckpointStore(file), count))
    try:
        return _measure("SQLite", stores, rounds)
    finally:
        for opened, _ in stores:
            opened.close()
        shutil.rmtree(place)


def postgres_scale(large: int, rounds: int) -> list[Figure]:
    """Compare schemas of 1,000 and of many runs on the same PostgreSQL server."""
    with postgres_server() as url:
        return _postgres_scale(url, large, rounds)


def _postgres_scale(url: str, large: int, rounds: int) -> list[Figure]:
    psycopg: Any = importlib.import_module("psycopg")
    postgres: Any = importlib.import_module("flowckpt.stores.postgres")
    stores, schemas = [], []
    try:
        for count in (SMALL, large):
            schemas.append(f"scale_{os.getpid()}_{count}")
            store = postgres.PostgresCheckpointStore(url, schema=schemas[-1])
            stores.append((store, count))
            save_template(store)
            with _report_time(f"{count:,} runs into PostgreSQL"), psycopg.connect(url, autocommit=True) as to:
                to.execute(f"SET search_path = {schemas[-1]}")
                fill_postgres(to, count)
        return _measure("PostgreSQL", stores, rounds)
    finally:
        for opened, _ in stores:
            opened.close()
        with psycopg.connect(url, autocommit=True) as connection:
            for schema in schemas:
                connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@contextlib.contextmanager
def _report_time(what: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    print(f"  {what}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)


def _measure(name: str, stores: list[tuple[Any, int]], rounds: int) -> list[Figure]:
    figures = []
    with blocking_allowed(True), asyncio.Runner() as runner:
        operations = [_make_operations(store, count, runner) for store, count in stores]
        for question in operations[0]:
            small, large = (questions[question] for questions in operations)
            # A store of 1,000 runs has only few old runs to prune.
            mine, base = _time_in_turn(large, small, rounds, seconds=0 if "prune" in question else _SECONDS)
            detail = f"{mine * 1e3:.2f} ms with {stores[1][1]:,} runs; {base * 1e3:.2f} ms with {SMALL:,}"
            figures.append(Figure(f"{question}, {name}", mine / base, BAR, detail=detail))
            print(f"  {figures[-1].name}: {figures[-1].value:.2f}, {detail}", file=sys.stderr, flush=True)
    return figures


def _time_in_turn(
    ours: Callable[[], object], theirs: Callable[[], object], rounds: int, *, seconds: float
) -> tuple[float, float]:
    """Measure two stores in turn, fast operations more often; return the lower quartile of each.

    The server and the disk of a database that was just filled have pending work, which can only add to the times.
    """
    times: tuple[list[float], list[float]] = ([], [])
    began_at = time.perf_counter()
    for number in range(_MOST * rounds):
        if number >= rounds + _WARM and time.perf_counter() - began_at > seconds:
            break
        for side, taken in [(ours, times[0]), (theirs, times[1])][:: 1 if number % 2 else -1]:
            gc.collect(0)
            began = time.perf_counter()
            side()
            if number >= _WARM:  # the first ones read pages from the disk, and prepare the statements
                taken.append(time.perf_counter() - began)
    return statistics.quantiles(times[0], n=4)[0], statistics.quantiles(times[1], n=4)[0]


def _make_operations(store: Any, count: int, runner: asyncio.Runner) -> dict[str, Callable[[], object]]:
    chance, runs = random.Random(7), store.runs

    def some_run() -> str:
        return run_id(chance.randrange(count // 2, count))

    def make_list(wanted: RunFilter) -> Callable[[], object]:
        def ask() -> None:
            found = runs.find_runs(wanted)
            assert len(found) == _LIMIT, f"{wanted} finds {len(found)}"

        return ask

    numbers, steps = itertools.count(1), results("a")
    attempt = runs.acquire("saved", take_over=False).attempt

    def save() -> None:
        runs.save("saved", checkpoint(next(numbers), steps, attempt=attempt))

    pages = itertools.count()

    def prune() -> None:
        """Remove one batch of the oldest runs, after finding them and their size."""
        last = runs.describe_run(run_id(count // 2 - next(pages) * (_BATCH + 1)))
        batch = runs.page_runs(last, _BATCH)
        runs.stored_bytes([info.workflow_id for info in batch])
        assert len(runs.clear_unchanged(batch)) == _BATCH

    return {
        **{name: make_list(wanted) for name, wanted in FILTERS.items()},
        "load_latest": lambda: runs.load_latest(some_run()).step_results[0].output,
        "describe": lambda: runs.describe_run(some_run()).status,
        "save": save,
        f"prune of {_BATCH} runs": prune,
        "recover's look": lambda: runner.run(find_due_runs(store, SystemClock())),
    }
