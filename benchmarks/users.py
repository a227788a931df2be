"""A resume from the start of the process, with a checkpoint after each step and typical values, by command and program.

All times are processor times, so other programs on a busy machine do not count. Each whole resume is a process of its own;
the cost of a further finished step is measured within one process, in turn with its floor.
"""

from __future__ import annotations

import contextlib
import gc
import math
import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count as numbers
from pathlib import Path
from typing import Any

from benchmarks import floor, pipelines
from benchmarks.figure import Figure, time_in_turn
from benchmarks.processes import run_python, time_python, write_journal
from flowckpt import FileCheckpointStore, WorkflowEngine
from flowckpt.core.system.filesystem import PosixFileSystem

BASE = "import attrs, cattrs, asyncio, click"
_fresh = numbers()


class WithoutSyncs(PosixFileSystem):
    """A file system without syncs, to create a long run in seconds."""

    def sync_data(self, file: int) -> None:
        del file


def record_run(directory: Path, count: int, value: str = "dict") -> Path:
    """Return a store with a run of `count` finished steps, whose process ended before the next one."""
    path = directory / f"recorded-{count}-{value.replace(' ', '-')}"
    if not path.exists():
        time_python(
            "-c",
            "from benchmarks import pipelines, users; from flowckpt import FileCheckpointStore, WorkflowEngine\n"
            f"store = FileCheckpointStore({str(path)!r}, filesystem=users.WithoutSyncs())\n"
            f"WorkflowEngine(store).run_sync(pipelines.realistic, workflow_id='run', count={count}, value={value!r})",
        )
    return path


def _copy(path: Path) -> Path:
    copy = path.with_name(f"{path.name}-{next(_fresh)}")
    shutil.copytree(path, copy)
    return copy


def resume_by_command(path: Path) -> float:
    """Resume a copy of a run by the command, up to its next step."""
    copy = _copy(path)
    taken = time_python("-m", "flowckpt", "--store", str(copy), "resume", "run")
    shutil.rmtree(copy)
    return taken


def resume_in_program(path: Path, **environment: str) -> float:
    """Resume a copy of a run in a program, up to its next step."""
    copy = _copy(path)
    taken = time_python(
        "-c",
        "from benchmarks.pipelines import realistic; from flowckpt import FileCheckpointStore, WorkflowEngine\n"
        f"WorkflowEngine(FileCheckpointStore({str(copy)!r})).resume_sync(realistic, workflow_id='run')",
        **environment,
    )
    shutil.rmtree(copy)
    return taken


def start_python() -> float:
    """Start Python and import the dependencies of flowckpt."""
    return time_python("-c", BASE)


def resumes(directory: Path, bars: Mapping[int, tuple[float, float]], rounds: int) -> list[Figure]:
    """Compare resumes with a bare start; `bars` has by number of steps the targets of the command and of `resume_sync`."""
    figures = []
    for count, (command_bar, program_bar) in bars.items():
        path = record_run(directory, count)
        for name, side, bar in (
            ("flowckpt resume", resume_by_command, command_bar),
            ("resume_sync", resume_in_program, program_bar),
        ):
            side(path)  # compile once
            mine, base, ratio = time_in_turn(lambda side=side, path=path: side(path), start_python, rounds)  # type: ignore[misc]
            detail = f"{mine * 1e3:.0f} ms; Python and its imports {base * 1e3:.0f} ms"
            figures.append(Figure(f"{name} after {count:,} steps / bare start", ratio, bar, detail=detail))
    return figures


def growth(directory: Path, counts: tuple[int, int], rounds: int) -> list[Figure]:
    """Compare the cost of one further finished step with a line of the floor, with the same values."""
    figures = []
    for value in pipelines.VALUES:
        for count in counts:
            record_run(directory, count, value)
        program = f"from benchmarks import users; print(*users.measure_slopes({str(directory)!r}, {value!r}, {counts}, {rounds}))"
        mine, base = map(float, run_python("-c", program, FLOWCKPT_BENCHMARK_STAYS="1").split())
        detail = f"{mine * 1e6:.1f} µs; a line of the floor {base * 1e6:.1f} µs"
        figures.append(Figure(f"a further finished step ({value}) / floor", mine / base, 5, detail=detail))
    return figures


def measure_slopes(directory: str, value: str, counts: tuple[int, int], rounds: int) -> tuple[float, float]:
    """Return the cost of a further finished step and of a line of the floor, from the least times of a short and a long run.

    Both are measured in turn in this process, and both read the same values.
    """
    function: Callable[[int], Any] = pipelines.VALUES[value]
    build: Callable[[Any], Any] | None = None
    if value == "dataclass":
        function, build = _page_fields, _page
    least: dict[tuple[str, int], float] = {}
    for count in (*counts, *counts * rounds):  # a first round compiles, and fills caches
        path, journal = record_run(Path(directory), count, value), Path(directory, f"journal-{count}-{value}")
        if not journal.exists():
            write_journal(journal, count, function)
        sides: dict[str, Callable[[], float]] = {
            "ours": partial(_resume_here, path),
            "floor": partial(_time_floor, journal, count, build),
        }
        for side, time_of in sides.items():
            gc.collect()
            least[side, count] = min(time_of(), least.get((side, count), math.inf))
    short, long = counts
    mine, base = ((least[side, long] - least[side, short]) / (long - short) for side in ("ours", "floor"))
    return mine, base


def _page_fields(number: int) -> dict[str, Any]:
    return vars(pipelines.page(number))


def _page(fields: dict[str, Any]) -> pipelines.Page:
    return pipelines.Page(**fields)


def _resume_here(path: Path) -> float:
    copy = _copy(path)
    engine = WorkflowEngine(FileCheckpointStore(copy))
    began = time.process_time()
    with contextlib.suppress(SystemExit):
        engine.resume_sync(pipelines.realistic, workflow_id="run")
    shutil.rmtree(copy)
    return pipelines.REACHED.pop() - began


def _time_floor(journal: Path, count: int, build: Callable[[Any], Any] | None) -> float:
    began = time.process_time()
    floor.resume(pipelines.floor_of(pipelines.trivial, count), journal, build)
    return time.process_time() - began


def long_history(directory: Path, count: int, rounds: int) -> list[Figure]:
    """Compare the resume of a long run with ten bare starts, and measure its peak memory."""
    path, peak = record_run(directory, count), directory / "peak"
    mine, base, ratio = time_in_turn(lambda: resume_in_program(path), start_python, rounds)
    resume_in_program(path, FLOWCKPT_BENCHMARK_PEAK=str(peak))
    detail = f"{mine:.2f} s; ten bare starts {base * 10:.2f} s"
    megabytes = int(peak.read_text()) / 1024
    return [
        Figure(f"resume after {count:,} steps / ten bare starts", ratio / 10, 1, detail=detail),
        Figure(f"peak memory of a resume after {count:,} steps", megabytes, 250, "MB", f"{megabytes:.0f} MB"),
    ]
