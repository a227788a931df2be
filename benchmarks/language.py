"""The cost of further constructs: waits, children, undoing, retries, partial state, recorded values, large maps."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import floor, language_pipelines
from benchmarks.figure import Figure, new_path, time_in_turn
from flowckpt import CheckpointStore, FileCheckpointStore, MemoryCheckpointStore, WorkflowEngine
from flowckpt.core.dsl import Workflow


def _time_run(store: CheckpointStore, workflow: Workflow[..., int], count: int, *, fails: bool = False) -> float:
    began = time.perf_counter()
    result = WorkflowEngine(store).run_sync(workflow, count=count)
    taken = (time.perf_counter() - began) / count
    assert (result.error is not None) is fails, result.error
    return taken


def _time_signals(store: CheckpointStore, count: int) -> float:
    """Time a run that is repeatedly suspended at a wait, sent a signal and resumed."""
    engine = WorkflowEngine(store)
    began = time.perf_counter()
    result = engine.run_sync(language_pipelines.rounds, workflow_id="run", count=count)
    for number in range(count):
        asyncio.run(engine.signal("run", f"go-{number}", number))
        result = engine.resume_sync(language_pipelines.rounds, workflow_id="run")
    assert result.unwrap() == count
    return (time.perf_counter() - began) / count


def waits(directory: Path, count: int, rounds: int) -> list[Figure]:
    figures = []
    for name, make, bar in (
        ("memory", MemoryCheckpointStore, 6.0),
        ("file", lambda: FileCheckpointStore(new_path(directory)), 45.0),
    ):

        def ours(make: Callable[[], CheckpointStore] = make) -> float:
            return _time_signals(make(), count)

        mine, base, ratio = time_in_turn(ours, lambda: floor.time_appends(new_path(directory), count), rounds)
        detail = f"{mine * 1e3:.2f} ms; append + fdatasync {base * 1e6:.0f} µs"
        figures.append(Figure(f"wait, suspend, signal, resume ({name} store) / append", ratio, bar, detail=detail))
    return figures


def against_tasks(count: int, rounds: int) -> list[Figure]:
    """Compare constructs without a save with an awaited task, in the memory store."""
    figures = []
    for name, workflow, bar in (
        ("child workflow of one step", language_pipelines.children, 15.0),
        ("step that is tried twice", language_pipelines.retried, 10.0),
        ("recorded now() or uuid()", language_pipelines.answers, 5.0),
    ):

        def ours(workflow: Workflow[..., int] = workflow) -> float:
            return _time_run(MemoryCheckpointStore(), workflow, count)

        mine, base, ratio = time_in_turn(ours, lambda: floor.time_tasks(count), rounds)
        detail = f"{mine * 1e6:.0f} µs; a task {base * 1e6:.1f} µs"
        figures.append(Figure(f"{name} / await create_task", ratio, bar, detail=detail))
    return figures


def against_appends(directory: Path, count: int, rounds: int) -> list[Figure]:
    """Compare constructs that are saved each time with a synced append, in the file store."""
    figures = []
    for name, workflow, bar, fails in (
        (f"rollback of {count} steps, a step", language_pipelines.undone, 2.5, True),
        ("partial save inside a step", language_pipelines.partial, 2.5, False),
    ):

        def ours(workflow: Workflow[..., int] = workflow, fails: bool = fails) -> float:
            return _time_run(FileCheckpointStore(new_path(directory)), workflow, count, fails=fails)

        mine, base, ratio = time_in_turn(ours, lambda: floor.time_appends(new_path(directory), count), rounds)
        detail = f"{mine * 1e6:.0f} µs; append + fdatasync {base * 1e6:.0f} µs"
        figures.append(Figure(f"{name} / append", ratio, bar, detail=detail))
    return figures


def large_map(directory: Path, count: int) -> list[Figure]:
    """Measure one map with very many members, each store in a process of its own."""
    figures = []
    for name, store, bar in (
        ("memory", "MemoryCheckpointStore()", 2_000.0),
        ("file", f"FileCheckpointStore({str(new_path(directory))!r})", 2_500.0),
    ):
        code = (
            "import time\n"
            "from benchmarks.language_pipelines import async_fan_out_unsaved\n"
            "from flowckpt import FileCheckpointStore, MemoryCheckpointStore, WorkflowEngine\n"
            "peak = lambda: [line for line in open('/proc/self/status') if line.startswith('VmHWM')][0].split()[1]\n"
            f"WorkflowEngine(MemoryCheckpointStore()).run_sync(async_fan_out_unsaved, count=10).unwrap()\n"
            "before, began = peak(), time.perf_counter()\n"
            f"WorkflowEngine({store}).run_sync(async_fan_out_unsaved, count={count}).unwrap()\n"
            "print(before, peak(), time.perf_counter() - began)"
        )
        out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        before, peak, seconds = out.split()
        more = (int(peak) - int(before)) * 1024 / count
        detail = f"{count} members: {int(peak) / 1024:.0f} MB, {float(seconds):.1f} s"
        figures.append(Figure(f"memory a member of one map ({name} store)", more, bar, "bytes", detail))
    return figures
