"""The cost of parallel steps: durable, in memory, and whether they really run in parallel."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from benchmarks import floor, language_pipelines, pipelines
from benchmarks.figure import Figure, new_path, time_in_turn
from flowckpt import FileCheckpointStore, MemoryCheckpointStore, WorkflowEngine
from flowckpt.core.dsl import Workflow

WIDTH = 32


def _time_run(engine: WorkflowEngine, workflow: Workflow[..., int], count: int) -> float:
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
            return _time_run(WorkflowEngine(FileCheckpointStore(new_path(directory))), workflow, count)

        def theirs(function: object = function) -> float:
            began = time.perf_counter()
            floor.fan_out(function, new_path(directory), count, WIDTH)  # type: ignore[arg-type]
            return (time.perf_counter() - began) / count

        mine, base, ratio = time_in_turn(ours, theirs, rounds)
        detail = f"{mine * count * 1e3:.0f} ms for {count}; floor {base * count * 1e3:.0f} ms"
        figures.append(Figure(f"durable {name} members / group-committed appends", ratio, 4.0, detail=detail))
    return figures


def in_memory(count: int, rounds: int) -> list[Figure]:
    """Measure members of a map without a disk against plain tasks."""

    def ours() -> float:
        return _time_run(WorkflowEngine(MemoryCheckpointStore()), language_pipelines.async_fan_out_unsaved, count)

    mine, base, ratio = time_in_turn(ours, lambda: floor.time_tasks(count), rounds)
    detail = f"{mine * 1e6:.1f} µs; a task {base * 1e6:.1f} µs"
    return [Figure("member of a map in memory / await create_task", ratio, 7.0, detail=detail)]


def sleeps(directory: Path, rounds: int) -> list[Figure]:
    """Measure a hundred members that wait for 50 ms, fifty in parallel: ideally 0.1 s."""
    figures = []
    for name, workflow in (("sync", language_pipelines.sleepers), ("async", language_pipelines.async_sleepers)):
        times = [
            _time_run(WorkflowEngine(FileCheckpointStore(new_path(directory))), workflow, 100) * 100
            for _ in range(rounds)
        ]
        median = statistics.median(times)
        detail = f"{median * 1e3:.0f} ms; 100 sleeps of 50 ms, 50 in parallel"
        figures.append(Figure(f"sleeping {name} members / ideal", median / 0.1, 2.5, detail=detail))
    return figures
