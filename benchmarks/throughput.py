"""Runs per second of several processes on one store, against bare commits of as many processes.

Each process executes runs of ten steps, each step with a checkpoint, for some seconds: twelve commits per run, including
its start and end. The bare side makes as many commits of 300 bytes. As a script, this module is one of the processes.
"""

from __future__ import annotations

import importlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import pipelines, slow_cores
from benchmarks.figure import Figure
from benchmarks.sql import postgres_server
from flowckpt import WorkflowEngine, open_store
from flowckpt.stores.sqlite.connection import journal_mode
from flowckpt.stores.sqlite.library import library

STEPS = 10
COMMITS = STEPS + 2
_TEXT = "x" * 300


def runs_in_parallel(directory: Path, seconds: float, rounds: int, counts: tuple[int, ...]) -> list[Figure]:
    """Measure the file store, SQLite and PostgreSQL with several numbers of processes.

    Args:
        directory: the directory for files.
        seconds: how long each process works.
        rounds: how often each is measured.
        counts: the numbers of processes, smallest first.
    """
    figures = []
    with postgres_server() as url:
        for name, spec in (
            ("file", f"file:{directory / 'runs'}"),
            ("sqlite", f"sqlite:{directory / 'runs.db'}"),
            ("postgresql", url),
        ):
            figures += _measure_store(name, spec, seconds, rounds, counts)
    return figures


def _measure_store(name: str, spec: str, seconds: float, rounds: int, counts: tuple[int, ...]) -> list[Figure]:
    ours: dict[int, list[tuple[float, float]]] = {count: [] for count in counts}
    bare: dict[int, list[tuple[float, float]]] = {count: [] for count in counts}
    _run_processes("ours", spec, 1, 0.1)  # creates the tables and directories
    _run_processes("bare", spec, 1, 0.1)
    for _ in range(rounds):
        for count in counts:
            bare[count].append(_run_processes("bare", spec, count, seconds))
            ours[count].append(_run_processes("ours", spec, count, seconds))
    rate = {count: statistics.median(each for each, _ in rates) for count, rates in ours.items()}
    limit = {count: statistics.median(each for each, _ in rates) for count, rates in bare.items()}
    detail = "; ".join(f"{count}: {rate[count]:.0f} runs/s, bare {limit[count]:.0f}" for count in counts)
    least, most = counts[0], counts[-1]
    grown = rate[least] / rate[most]
    cpu, floor = (statistics.median(each for _, each in rates[most]) * 1e3 for rates in (ours, bare))
    return [
        Figure(f"{name}: bare runs/s of {most} processes / ours", limit[most] / rate[most], 3.0, detail=detail),
        Figure(
            f"{name}: runs/s of {least} process / of {most}",
            grown,
            1.0,
            detail=f"bare {limit[least] / limit[most]:.2f}; processor time of a client: {cpu:.1f} ms a run, bare {floor:.1f}",
        ),
        Figure(
            f"{name}: growth of bare commits from {least} to {most} / growth of runs",
            limit[most] / limit[least] * grown,
            1.25,
            detail=f"{limit[most] / limit[least]:.2f} times; runs {1 / grown:.2f} times",
        ),
    ]


def on_slow_cores(seconds: float, rounds: int, share: float = 0.25) -> list[Figure]:
    """Measure the growth from one process to four on one PostgreSQL, on an emulated machine with enough slow cores.

    Args:
        seconds: how long each process works.
        rounds: how often each is measured.
        share: the share of a core that each client and each session of the server gets.
    """
    if not slow_cores.is_possible():
        print("slow cores: skipped, this needs root and control groups of Linux", file=sys.stderr)
        return []
    rates: dict[tuple[str, int], list[float]] = {}
    with postgres_server() as url, slow_cores.shares(share) as shares:
        for side in ("bare", "ours"):
            _run_processes(side, url, 1, 0.1)  # creates the tables

        def limit(clients: list[int]) -> None:
            shares.limit([*clients, *_sessions(url)])

        for _ in range(rounds):
            for count in (1, 4):
                for side in ("bare", "ours"):
                    rates.setdefault((side, count), []).append(_run_processes(side, url, count, seconds, limit)[0])
    rate = {key: statistics.median(each) for key, each in rates.items()}
    bare, ours = (rate[side, 4] / rate[side, 1] for side in ("bare", "ours"))
    detail = (
        f"1: {rate['ours', 1]:.1f} runs/s, 4: {rate['ours', 4]:.1f}, {ours:.2f} times; bare commits {bare:.2f} times"
    )
    return [
        Figure(f"postgresql, cores of {share:.0%} speed: runs/s of 1 process / of 4", 1 / ours, 1 / 3, detail=detail)
    ]


def _sessions(url: str) -> list[int]:
    """Return the processes of a server on this machine: one for each connection, and those that write in the background."""
    psycopg: Any = importlib.import_module("psycopg")
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()").fetchall()
    return [pid for (pid,) in found]


def _run_processes(
    side: str, spec: str, count: int, seconds: float, prepare: Callable[[list[int]], None] | None = None
) -> tuple[float, float]:
    """Return the total runs per second of some processes, and the processor seconds of each run.

    Args:
        side: `ours` or `bare`.
        spec: the store.
        count: the number of processes.
        seconds: how long each works.
        prepare: called with the ids of the processes when all of them are connected.
    """
    command = [sys.executable, "-m", "benchmarks.throughput", side, spec, str(seconds)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    if prepare is not None:
        prepare([process.pid for process in processes])
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    reports = [[float(each) for each in process.communicate()[0].split()] for process in processes]
    busy, runs = sum(cpu for _, _, cpu in reports), sum(done for done, _, _ in reports)
    return sum(done / seconds for done, seconds, _ in reports), busy / runs


# --- one of the processes ----------------------------------------------------------------------------------------------


def _worker(side: str, spec: str, seconds: float) -> None:
    once = (_ours if side == "ours" else _bare)(spec)
    once()
    print("ready", flush=True)
    sys.stdin.readline()
    began, busy, done = time.perf_counter(), time.process_time(), 0
    while (taken := time.perf_counter() - began) < seconds or not done:
        once()
        done += 1
    print(done, taken, time.process_time() - busy)


def _ours(spec: str) -> Callable[[], Any]:
    engine = WorkflowEngine(open_store(spec))
    return lambda: engine.run_sync(pipelines.durable, count=STEPS).unwrap()


def _bare(spec: str) -> Callable[[], Any]:
    kind, _, place = spec.partition(":")
    commit = {"file": _file, "sqlite": _sqlite, "postgresql": _postgres}[kind](place, spec)

    def once() -> None:
        for _ in range(COMMITS):
            commit()

    return once


def _file(place: str, spec: str) -> Callable[[], Any]:
    del spec
    number = os.open(f"{place}.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def commit() -> None:
        os.write(number, _TEXT.encode())
        os.fdatasync(number)

    return commit


def _sqlite(place: str, spec: str) -> Callable[[], Any]:
    del spec
    mode, level = journal_mode()
    connection = library().open(f"{place}.bare", timeout=60)
    connection.execute(f"PRAGMA journal_mode = {mode}")
    connection.execute(f"PRAGMA synchronous = {level}")
    connection.execute("CREATE TABLE IF NOT EXISTS lines (number INTEGER PRIMARY KEY, line TEXT)")

    def commit() -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO lines (line) VALUES (?)", (_TEXT,))
        connection.execute("COMMIT")

    return commit


def _postgres(place: str, spec: str) -> Callable[[], Any]:
    del place
    psycopg: Any = importlib.import_module("psycopg")
    connection = psycopg.connect(spec, autocommit=True)
    connection.execute("CREATE TABLE IF NOT EXISTS bare_lines (number bigserial PRIMARY KEY, line text)")
    return lambda: connection.execute("INSERT INTO bare_lines (line) VALUES (%s)", (_TEXT,))


if __name__ == "__main__":
    _worker(sys.argv[1], sys.argv[2], float(sys.argv[3]))
