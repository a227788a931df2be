"""Steps per second of 200 parallel runs in one process, against the memory store and against bare PostgreSQL commits.

Every run has ten async steps, each with a checkpoint and an output of one dict; or a dict, a dataclass, a list of a
hundred numbers and 2 kB of text in turn. The memory store shows the cost of the engine alone; sixteen connections that
commit one row each show the cost of a PostgreSQL server.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import statistics
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from benchmarks import pipelines
from benchmarks.figure import Figure, new_path, time_in_turn
from benchmarks.sql import postgres_server
from flowckpt import WorkflowEngine, open_store, step, workflow

STEPS = 10
_CONNECTIONS = 16


async def record(number: int) -> dict[str, Any]:
    return {"i": number, "ok": True}


def record_in_place(number: int) -> dict[str, Any]:
    return {"i": number, "ok": True}


@workflow("many")
def many(count: int) -> Generator[Any, Any, None]:
    for number in range(count):
        yield step("work").python(record, number).checkpoint()


@workflow("many_sync")
def many_sync(count: int) -> Generator[Any, Any, None]:
    for number in range(count):
        yield step("work").python(record_in_place, number).checkpoint()


def _make_async(function: Callable[[int], Any]) -> Callable[[int], Any]:
    @functools.wraps(function)
    async def later(number: int) -> Any:
        return function(number)

    return later


_REALISTIC = [_make_async(function) for function in pipelines.VALUES.values()]


@workflow("many_values")
def many_values(count: int) -> Generator[Any, Any, None]:
    """Return a dict, a dataclass, a list of 100 and 2 kB of text, in turn."""
    for number in range(count):
        yield step("work").python(_REALISTIC[number % len(_REALISTIC)], number).checkpoint()


def concurrent_runs(directory: Path, runs: int, rounds: int) -> list[Figure]:
    """Measure every store in one process.

    Args:
        directory: the directory for files.
        runs: the number of parallel runs.
        rounds: how often each store is measured.
    """

    def time_memory(pipeline: Any) -> float:
        return _time_runs("memory:", runs, pipeline)

    def time_file(pipeline: Any) -> float:
        return _time_runs(f"file:{new_path(directory)}", runs, pipeline)

    def time_sqlite(pipeline: Any) -> float:
        return _time_runs(f"sqlite:{new_path(directory, '.db')}", runs, pipeline)

    def time_sync_steps() -> float:
        return time_file(many_sync)

    figures = []
    for pipeline, what in ((many, ""), (many_values, " with values of four kinds")):
        for name, time_store, bar in (("file", time_file, 1 / 0.4), ("sqlite", time_sqlite, 1 / 0.35)):
            ours, base = functools.partial(time_store, pipeline), functools.partial(time_memory, pipeline)
            title = f"{name}: {runs} runs at once{what} / memory store"
            figures.append(_figure(title, ours, base, runs, rounds, bar))
    taken = statistics.median(time_sync_steps() for _ in range(rounds))
    each = taken / runs / STEPS
    name = f"file: µs a sync step, {runs} runs at once"
    figures.append(Figure(name, each * 1e6, 1e6 / 1500, "µs", detail=f"{1 / each:.0f} steps/s"))
    with postgres_server() as url:
        figures.append(
            _figure(
                f"postgresql: {runs} runs at once / one-row commits of {_CONNECTIONS} connections",
                lambda: _time_runs(url, runs),
                lambda: asyncio.run(_time_commits(url, runs)),
                runs,
                rounds,
                2.0,
            )
        )
    return figures


def _figure(
    name: str, ours: Callable[[], float], theirs: Callable[[], float], runs: int, rounds: int, bar: float
) -> Figure:
    mine, base, ratio = time_in_turn(ours, theirs, rounds)
    count = runs * STEPS
    return Figure(name, ratio, bar, detail=f"{count / mine:.0f} steps/s; {count / base:.0f}")


def _time_runs(spec: str, runs: int, pipeline: Any = many) -> float:
    async def main() -> float:
        store: Any = open_store(spec)
        engine = WorkflowEngine(store)
        (await engine.run(pipeline, count=1)).unwrap()  # creates the tables, and prepares the statements
        began = time.perf_counter()
        results = await asyncio.gather(*(engine.run(pipeline, count=STEPS) for _ in range(runs)))
        taken = time.perf_counter() - began
        for result in results:
            result.unwrap()
        store.close()
        return taken

    return asyncio.run(main())


async def _time_commits(url: str, tasks: int) -> float:
    psycopg: Any = importlib.import_module("psycopg")
    free: asyncio.Queue[Any] = asyncio.Queue()
    for _ in range(_CONNECTIONS):
        free.put_nowait(await psycopg.AsyncConnection.connect(url, autocommit=True))
    connection = await free.get()
    await connection.execute("CREATE TABLE IF NOT EXISTS bare_lines (number bigserial PRIMARY KEY, line text)")
    free.put_nowait(connection)

    async def commit() -> None:
        for _ in range(STEPS):
            connection = await free.get()
            try:
                await connection.execute("INSERT INTO bare_lines (line) VALUES (%s)", ("x" * 300,))
            finally:
                free.put_nowait(connection)

    began = time.perf_counter()
    await asyncio.gather(*(commit() for _ in range(tasks)))
    taken = time.perf_counter() - began
    while not free.empty():
        await free.get_nowait().close()
    return taken
