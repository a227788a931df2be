"""The cost of a step: durable, not saved, in memory, large; and whether it stays constant as the run grows."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from benchmarks import floor, pipelines
from benchmarks.figure import Figure, new_path, time_in_turn
from flowckpt import FileCheckpointStore, MemoryCheckpointStore, WorkflowEngine
from flowckpt.core.dsl import Workflow
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.core.system.filesystem import PosixFileSystem


class CountingFileSystem(PosixFileSystem):
    """Counts the syncs of data."""

    def __init__(self) -> None:
        self.syncs = 0

    def sync_data(self, file: int) -> None:
        self.syncs += 1
        super().sync_data(file)


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def _time_run(engine: WorkflowEngine, workflow: Workflow[..., int], count: int) -> float:
    began = time.perf_counter()
    engine.run_sync(workflow, count=count).unwrap()
    return time.perf_counter() - began


def durable_step(directory: Path, count: int, rounds: int) -> list[Figure]:
    def ours() -> float:
        return _time_run(WorkflowEngine(FileCheckpointStore(new_path(directory))), pipelines.durable, count) / count

    mine, raw, ratio = time_in_turn(ours, lambda: floor.time_appends(new_path(directory), count), rounds)
    counting = CountingFileSystem()
    _time_run(WorkflowEngine(FileCheckpointStore(new_path(directory), filesystem=counting)), pipelines.durable, count)
    detail = f"{mine * 1e6:.0f} µs a step; append + fdatasync {raw * 1e6:.0f} µs"
    checkpoints = count + 2  # the start and the end are checkpoints too
    return [
        Figure("durable step / append of 300 B + fdatasync", ratio, 1.6, detail=detail),
        Figure("syncs a checkpoint", counting.syncs / checkpoints, 1.0, "syncs", f"{counting.syncs} in {checkpoints}"),
    ]


def growth(directory: Path, count: int, rounds: int) -> list[Figure]:
    ratios = []
    size = 0
    for _ in range(rounds):
        path = new_path(directory)
        engine = WorkflowEngine(FileCheckpointStore(path))
        marks: list[float] = []

        async def run(engine: WorkflowEngine = engine, marks: list[float] = marks) -> None:
            with blocking_allowed(True):
                events = engine.execute(pipelines.durable, count=count)
                marks.extend([time.perf_counter() async for event in events if event.kind == "StepCompleted"])

        asyncio.run(run())
        tenth = count // 10
        ratios.append((marks[-1] - marks[-1 - tenth]) / (marks[tenth] - marks[0]))
        size = _size(path / "runs")  # a store has a reserve of half a megabyte besides
    ratios.sort()
    return [
        Figure("last tenth of the steps / first tenth", ratios[len(ratios) // 2], 1.2, detail=f"{count} steps"),
        Figure("bytes on disk a trivial step", size / count, 400, "bytes", f"{size} bytes for {count} steps"),
    ]


def light_step(directory: Path, count: int, rounds: int) -> list[Figure]:
    def unsaved() -> float:
        return _time_run(WorkflowEngine(FileCheckpointStore(new_path(directory))), pipelines.unsaved, count) / count

    def memory() -> float:
        return _time_run(WorkflowEngine(MemoryCheckpointStore()), pipelines.durable, count) / count

    def memory_unsaved() -> float:
        return _time_run(WorkflowEngine(MemoryCheckpointStore()), pipelines.unsaved, count) / count

    figures = []
    for name, side in (
        ("step without checkpoint (file store)", unsaved),
        ("step without checkpoint (memory store)", memory_unsaved),
        ("step with checkpoint (memory store)", memory),
    ):
        mine, base, ratio = time_in_turn(side, lambda: floor.time_tasks(count), rounds)
        detail = f"{mine * 1e6:.1f} µs; a task {base * 1e6:.1f} µs"
        figures.append(Figure(f"{name} / await create_task", ratio, 3, detail=detail))
    return figures


def large_outputs(directory: Path, count: int, rounds: int) -> list[Figure]:
    data = sum(len(pipelines.megabyte(number)) for number in range(count))
    last = directory

    def ours() -> float:
        nonlocal last
        last = new_path(directory)
        return _time_run(WorkflowEngine(FileCheckpointStore(last)), pipelines.texts, count)

    def bare() -> float:
        path = new_path(directory)
        began = time.perf_counter()
        floor.run(pipelines.floor_of(pipelines.megabyte, count), path)
        taken = time.perf_counter() - began
        os.unlink(path)
        return taken

    mine, base, ratio = time_in_turn(ours, bare, rounds)
    detail = f"{mine * 1e3 / count:.1f} ms a step; floor {base * 1e3 / count:.1f} ms"
    return [
        Figure("steps returning 1 MB / floor", ratio, 1.5, detail=detail),
        Figure("bytes on disk / data, 1 MB outputs", _size(last) / data, 1.05),
    ]
