"""The cost of a process: the import, a resume up to its next step, the memory of a long run."""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks import floor, pipelines
from benchmarks.figure import Figure, time_in_turn
from flowckpt import FileCheckpointStore, WorkflowEngine
from flowckpt.core.identity import fingerprint
from flowckpt.core.system.blocking import blocking_allowed

_NAMES = (
    "workflow, step, WorkflowEngine, WorkflowResult, run_sync, CheckpointData, StepResult, CheckpointStore, "
    "FileCheckpointStore, MemoryCheckpointStore, open_store"
)


def run_python(*arguments: str, **environment: str) -> str:
    """Return the output of a process, with compiled modules already cached."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**kept, **environment}).stdout


def time_python(*arguments: str, **environment: str) -> float:
    """Return the processor time of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_python(*arguments, **environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def imports(rounds: int) -> list[Figure]:
    time_python("-c", f"import attrs, cattrs, asyncio, click; from flowckpt import {_NAMES}")  # compile once
    mine, base, ratio = time_in_turn(
        lambda: time_python("-c", f"from flowckpt import {_NAMES}"),
        lambda: time_python("-c", "import attrs, cattrs, asyncio"),
        rounds,
    )
    detail = f"{mine * 1e3:.0f} ms; attrs, cattrs and asyncio {base * 1e3:.0f} ms"
    return [Figure("import and touch the main names / import attrs, cattrs, asyncio", ratio, 1.2, detail=detail)]


_HELPER = """
def helper_{module}_{number}(rows, limit=10):
    total = 0
    for index, row in enumerate(rows):
        if row.get("kind") == "x" and index < limit:
            total += row["value"] * CONFIG_{module}["factor"]
        else:
            total -= 1
    return total
"""


def code_of_a_step(directory: Path, rounds: int) -> list[Figure]:
    """Compare the fingerprint of a step that reaches a project of 20 modules with Python's parser on the same files."""
    files = [directory / f"bench_module_{module}.py" for module in range(20)]
    for module, file in enumerate(files):
        before = f"import bench_module_{module - 1}\n" if module else ""
        helpers = "".join(_HELPER.format(module=module, number=number) for number in range(10))
        calls = ", ".join(f"helper_{module}_{number}([])" for number in range(10))
        calls += f", bench_module_{module - 1}.entry()" if module else ""
        file.write_text(f"{before}CONFIG_{module} = {{'factor': 1}}\n{helpers}\ndef entry():\n    return [{calls}]\n")
    texts = [file.read_text() for file in files]
    lines = sum(text.count("\n") for text in texts)
    sys.path.insert(0, str(directory))

    def ours() -> float:
        for file in files:
            sys.modules.pop(file.stem, None)
        function = importlib.import_module(files[-1].stem).entry
        began = time.process_time()
        assert fingerprint.code_of(function).fingerprint
        return time.process_time() - began

    def parser() -> float:
        began = time.process_time()
        for text in texts:
            ast.parse(text)
        return time.process_time() - began

    mine, base, ratio = time_in_turn(ours, parser, rounds)
    sys.path.remove(str(directory))
    detail = f"{mine / lines * 1e6:.0f} µs a line of {lines}; Python's parser {base / lines * 1e6:.0f} µs"
    return [Figure("fingerprint of a step's code / parsing it", ratio, 4, detail=detail)]


def _create_stopped_run(path: Path, count: int) -> None:
    """Create a run of `count` finished steps that stopped before its next one."""
    WorkflowEngine(FileCheckpointStore(path)).run_sync(pipelines.stops, workflow_id="run", count=count)


def resume_start(directory: Path, count: int, rounds: int) -> list[Figure]:
    paths = [directory / f"resume-{number}" for number in range(rounds)]
    for path in paths:
        _create_stopped_run(path, count)
    left = iter(paths)
    time_python(
        "-c", "import click; from benchmarks.pipelines import stops; from flowckpt import WorkflowEngine, run_sync"
    )

    def ours() -> float:
        return time_python(
            "-c",
            "from benchmarks.pipelines import stops; from flowckpt import FileCheckpointStore, WorkflowEngine\n"
            f"WorkflowEngine(FileCheckpointStore({str(next(left))!r})).resume_sync(stops, workflow_id='run')",
        )

    mine, base, ratio = time_in_turn(ours, lambda: time_python("-c", "import attrs, cattrs, asyncio, click"), rounds)
    detail = f"{mine * 1e3:.0f} ms; Python and its imports {base * 1e3:.0f} ms"
    return [Figure(f"process start to the next step after {count} / Python and imports", ratio, 1.6, detail=detail)]


def resume_growth(directory: Path, counts: tuple[int, int]) -> list[Figure]:
    """Compare the cost of one further finished step with the floor's: the slope between a short and a long resume."""
    ours, bare = [], []
    for count in counts:
        path, journal = directory / f"growth-{count}", directory / f"journal-{count}"
        _create_stopped_run(path, count)
        make = pipelines.floor_of(pipelines.trivial, count)
        write_journal(journal, count, pipelines.trivial)
        mine, base = [], []
        for _ in range(3):
            gc.collect()
            began = time.perf_counter()
            floor.resume(make, journal)
            base.append(time.perf_counter() - began)
            engine = WorkflowEngine(FileCheckpointStore(path))
            gc.collect()
            began = time.perf_counter()
            with blocking_allowed(True):
                engine.resume_sync(pipelines.stops, workflow_id="run")
            mine.append(time.perf_counter() - began)
        ours.append(sorted(mine)[1])
        bare.append(sorted(base)[1])
    more = counts[1] - counts[0]
    mine_us, base_us = (ours[1] - ours[0]) / more * 1e6, (bare[1] - bare[0]) / more * 1e6
    detail = f"{mine_us:.1f} µs a finished step up to {counts[1]}; floor {base_us:.1f} µs"
    return [Figure("growth of a resume / floor", mine_us / base_us, 4, detail=detail)]


def write_journal(path: Path, count: int, value: Callable[[int], Any]) -> None:
    """Write the floor's journal without syncs, which do not affect reading."""
    digest = bytes(32)
    with path.open("wb") as journal:
        for number in range(count):
            body = json.dumps({"step": f"work[{number}]", "output": value(number)}).encode()
            digest = sha256(digest + body).digest()
            journal.write(body + b"\t" + digest.hex().encode() + b"\n")


def peak_memory(directory: Path, counts: tuple[int, int]) -> list[Figure]:
    peaks = []
    for count in counts:
        code = (
            "from benchmarks.pipelines import durable\n"
            "from flowckpt import FileCheckpointStore, WorkflowEngine\n"
            f"path = {str(directory / f'memory-{count}')!r}\n"
            f"WorkflowEngine(FileCheckpointStore(path)).run_sync(durable, count={count}).unwrap()\n"
            # Not getrusage: there a child starts with the peak of its parent.
            "print([line for line in open('/proc/self/status') if line.startswith('VmHWM')][0].split()[1])"
        )
        peaks.append(int(run_python("-c", code)))
    detail = f"{peaks[1] / 1024:.0f} MB at {counts[1]} steps, {peaks[0] / 1024:.0f} MB at {counts[0]}"
    return [Figure("peak memory, long run / short run", peaks[1] / peaks[0], 1.5, detail=detail)]
