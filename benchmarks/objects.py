"""The cost of a durable step in object storage, against one bare put of 300 bytes through the same library."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from typing import Any

from benchmarks import pipelines
from benchmarks.figure import Figure, time_in_turn
from flowckpt import WorkflowEngine
from flowckpt.stores import open_store

STORE_VARIABLE = "FLOWCKPT_BENCH_S3"
"""The environment variable with the spec of a bucket to measure; by default, a server of the tests is started."""

_fresh = iter(range(10**9))
_BODY = b"x" * 300


def object_step(count: int, rounds: int) -> list[Figure]:
    """Compare a durable step with a put, and a resume of many records with their number."""
    with contextlib.ExitStack() as opened:
        spec = os.environ.get(STORE_VARIABLE)
        if spec is None:
            tests: Any = importlib.import_module("tests.s3")
            os.environ.update(tests.CREDENTIALS)
            server = tests.S3Server(opened.enter_context(tests.moto()))
            spec = server.spec(server.make_bucket())
        return [_step(spec, count, rounds), _resume(spec, count * 2)]


def _step(spec: str, count: int, rounds: int) -> Figure:
    obstore: Any = importlib.import_module("obstore")
    store: Any = open_store(spec)
    engine = WorkflowEngine(store)
    engine.run_sync(pipelines.durable, count=2).unwrap()

    def ours() -> float:
        began = time.perf_counter()
        engine.run_sync(pipelines.durable, count=count).unwrap()
        return (time.perf_counter() - began) / count

    def bare() -> float:
        driver, place = store.runs.bucket._driver, f"bare/{os.getpid()}-{next(_fresh)}"
        began = time.perf_counter()
        for number in range(count):
            obstore.put(driver, f"{place}/{number:06d}", _BODY, mode="create", use_multipart=False)
        return (time.perf_counter() - began) / count

    mine, base, ratio = time_in_turn(ours, bare, rounds)
    return Figure(
        "durable step in object storage / a put",
        ratio,
        1.3,
        detail=f"{mine * 1e6:.0f} µs a step; a put {base * 1e6:.0f} µs",
    )


def _resume(spec: str, count: int) -> Figure:
    store: Any = open_store(spec)
    engine = WorkflowEngine(store)
    engine.run_sync(pipelines.durable, workflow_id=f"long-{os.getpid()}", count=count).unwrap()
    puts = time.perf_counter()
    engine.run_sync(pipelines.durable, count=20).unwrap()
    put = (time.perf_counter() - puts) / 20
    began = time.perf_counter()
    store.runs.load_latest(f"long-{os.getpid()}")
    taken = time.perf_counter() - began
    return Figure(
        f"reading a run of {count} records / writing it", taken / (put * count), 0.2, detail=f"{taken * 1e3:.0f} ms"
    )
