"""The cost of parallel steps: durable, in memory, and whether they really run in parallel."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

from benchmarks import floor, language_pipelines, pipelines
from benchmarks.figure import Figure, interleaved
from flowckpt import FileCheckpointStore, MemoryCheckpointStore, WorkflowEngine
from flowckpt.core.dsl import Workflow

WIDTH = 32
_fresh = iter(range(10**9))


def _new(directory: Path) -> Path:
    return directory / f"fan-out-{next(_fresh):06d}"


def _timed(engine: WorkflowEngine, workflow: Workflow[..., int], count: int) -> float:
    began = time.perf_counter()
    engine.run_sync(workflow, count=count).unwrap()
    return (time.perf_counter() - began) / count


def durable(directory: Path, count: int, rounds: int) -> list[Figure]:
    """Measure durable members of a map against appended lines that share their syncs."""
    figures = []
    for name, workflow, function in (
        ("sync", language_pipelines.fan_out, pipelines.trivial),
        ("async", language_pipelines.async_fan_out, language_pipelines.trivial_async),
    ):

        def ours(workflow: Workflow[..., int] = workflow) -> float:
            return _timed(WorkflowEngine(FileCheckpointStore(_new(directory))), workflow, count)

        def theirs(function: object = function) -> float:
            began = time.perf_counter()
            floor.fan_out(function, _new(directory), count, WIDTH)  # type: ignore[arg-type]
            return (time.perf_counter() - began) / count

        mine, base, ratio = interleaved(ours, theirs, rounds)
        detail = f"{mine * count * 1e3:.0f} ms for {count}; floor {base * count * 1e3:.0f} ms"
        figures.append(Figure(f"durable {name} members / group-committed appends", ratio, 4.0, detail=detail))
    return figures


def in_memory(count: int, rounds: int) -> list[Figure]:
    """Measure members of a map without a disk against plain tasks."""

    async def tasks() -> float:
        began = time.perf_counter()
        for number in range(count):
            await asyncio.create_task(language_pipelines.trivial_async(number))
        return (time.perf_counter() - began) / count

    def theirs() -> float:
        return asyncio.run(tasks())

    def ours() -> float:
        return _timed(WorkflowEngine(MemoryCheckpointStore()), language_pipelines.async_fan_out_unsaved, count)

    mine, base, ratio = interleaved(ours, theirs, rounds)
    detail = f"{mine * 1e6:.1f} µs; a task {base * 1e6:.1f} µs"
    return [Figure("member of a map in memory / await create_task", ratio, 7.0, detail=detail)]


def sleeps(directory: Path, rounds: int) -> list[Figure]:
    """Measure a hundred members that wait for 50 ms, fifty in parallel: ideally 0.1 s."""
    figures = []
    for name, workflow in (("sync", language_pipelines.sleepers), ("async", language_pipelines.async_sleepers)):
        taken = [
            _timed(WorkflowEngine(FileCheckpointStore(_new(directory))), workflow, 100) * 100 for _ in range(rounds)
        ]
        median = statistics.median(taken)
        detail = f"{median * 1e3:.0f} ms; 100 sleeps of 50 ms, 50 beside each other"
        figures.append(Figure(f"sleeping {name} members / ideal", median / 0.1, 2.5, detail=detail))
    return figures
