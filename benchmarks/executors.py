"""The cost of a member of a map in a worker process, against a bare call in one."""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from benchmarks import language_pipelines
from benchmarks.figure import Figure, time_in_turn
from flowckpt import MemoryCheckpointStore, ProcessExecutor, WorkflowEngine


def members(count: int, rounds: int) -> list[Figure]:
    with (
        ProcessExecutor(2) as ours,
        ProcessPoolExecutor(2, mp_context=get_context("forkserver")) as theirs,
    ):
        engine = WorkflowEngine(MemoryCheckpointStore(), executors={"process": ours})
        for pool in (ours, theirs):
            list(pool.map(language_pipelines.nothing, range(100)))  # the processes are up

        def in_map() -> float:
            began = time.perf_counter()
            engine.run_sync(language_pipelines.far, count=count).unwrap()
            return (time.perf_counter() - began) / count

        def bare() -> float:
            began = time.perf_counter()
            for future in [theirs.submit(language_pipelines.nothing, number) for number in range(count)]:
                future.result()
            return (time.perf_counter() - began) / count

        mine, raw, ratio = time_in_turn(in_map, bare, rounds)
        detail = f"{mine * 1e6:.0f} µs a member; ProcessPoolExecutor.submit {raw * 1e6:.0f} µs"
        return [Figure("member of a map on process / bare submit", ratio, 8.0, detail=detail)]
