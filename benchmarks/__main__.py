"""`python -m benchmarks`: measure, print a table, and with `--json` the figures."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import attrs

from benchmarks import (
    chart,
    evidence,
    executors,
    fan_out,
    language,
    many_runs,
    objects,
    peers,
    processes,
    scale,
    sql,
    steps,
    throughput,
    users,
)
from benchmarks.figure import Figure


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--smoke", action="store_true", help="run a few steps of each, to check that they work")
    parser.add_argument(
        "--full", action="store_true", help="a million runs in the group scale, which takes minutes and 8 GB"
    )
    parser.add_argument(
        "--peers", action="store_true", help="compare with Burr, LangGraph and DBOS, each installed in an environment"
    )
    parser.add_argument("--only", default="", help="run only groups whose name contains this text")
    parser.add_argument("--chart", metavar="FILE", help="draw the figures (with --peers: the times) as SVG")
    parser.add_argument("--directory", help="the directory to write to, on the disk to measure")
    arguments = parser.parse_args()
    figures: list[Figure] = []
    times: dict[str, float] = {}

    def measure_peers(directory: Path, count: int, rounds: int) -> list[Figure]:
        times.update(peers.durable_steps(directory, count, rounds))
        return peers.compare(times)

    with tempfile.TemporaryDirectory(prefix="flowckpt-bench-", dir=arguments.directory or Path.cwd()) as name:
        groups = _make_groups(Path(name), is_smoke=arguments.smoke, is_full=arguments.full)
        if arguments.peers:
            count, rounds = (20, 1) if arguments.smoke else (300, 7)
            groups = {"peers": lambda: measure_peers(Path(name), count, rounds), **groups}
        chosen = [group for group in groups if arguments.only in group]
        if not chosen:
            parser.error(f"no group's name holds {arguments.only!r}; there are {', '.join(groups)}")
        for group in chosen:
            print(f"… {group}", file=sys.stderr, flush=True)
            figures += groups[group]()
    if arguments.chart:
        Path(arguments.chart).write_text(
            chart.draw_times("A durable step", times) if times else chart.draw_figures(figures)
        )
    if arguments.json:
        print(json.dumps([{**attrs.asdict(figure), "reached": figure.is_reached} for figure in figures], indent=2))
    else:
        print(_format_table(figures))
    return 0


def _make_groups(directory: Path, *, is_smoke: bool, is_full: bool) -> dict[str, Callable[[], list[Figure]]]:
    few, many = (20, 200) if is_smoke else (1_000, 10_000)
    rounds = 1 if is_smoke else 7
    runs = 1_000_000 if is_full else 2_000 if is_smoke else 100_000
    lengths = (100, 1_000) if is_smoke else (1_000, 100_000)
    return {
        "durable step": lambda: steps.durable_step(directory, few, rounds),
        "sql": lambda: [*sql.sqlite_step(directory, few, rounds), *sql.postgres_step(few, rounds)],
        "object": lambda: objects.object_step(few // 5, min(rounds, 5)),
        "throughput": lambda: throughput.runs_in_parallel(
            directory, 0.2 if is_smoke else 3.0, min(rounds, 3), (1, 4) if is_smoke else (1, 2, 4)
        ),
        "slow cores": lambda: throughput.on_slow_cores(0.2 if is_smoke else 5.0, min(rounds, 5)),
        "many runs": lambda: many_runs.concurrent_runs(directory, 20 if is_smoke else 200, min(rounds, 5)),
        "growth": lambda: steps.growth(directory, many, min(rounds, 3)),
        "light step": lambda: steps.light_step(directory, many // 2, rounds),
        "fan-out": lambda: fan_out.durable(directory, few, rounds),
        "map in memory": lambda: fan_out.in_memory(many // 2, rounds),
        "fan-out sleeps": lambda: fan_out.sleeps(directory, min(rounds, 5)),
        "large outputs": lambda: steps.large_outputs(directory, few // 10, min(rounds, 5)),
        "evidence": lambda: [
            *evidence.large_file(directory, (1 if is_smoke else 256) << 20, min(rounds, 5)),
            *evidence.unchanged_files(directory, many, min(rounds, 5)),
        ],
        "scale": lambda: [*scale.sqlite_scale(directory, runs, rounds * 3), *scale.postgres_scale(runs, rounds * 3)],
        "executors": lambda: executors.members(few, min(rounds, 5)),
        "language": lambda: [
            *language.waits(directory, 3 if is_smoke else 50, min(rounds, 5)),
            *language.against_tasks(few, rounds),
            *language.against_appends(directory, few, min(rounds, 5)),
            *language.large_map(directory, 500 if is_smoke else 100_000),
        ],
        "import": lambda: processes.imports(1 if is_smoke else 15),
        "fingerprint": lambda: processes.code_of_a_step(directory, rounds),
        "resume start": lambda: processes.resume_start(directory, few, 1 if is_smoke else 11),
        "resume growth": lambda: processes.resume_growth(directory, lengths),
        "users": lambda: [
            *users.resumes(directory, {few: (1.8, 1.5), many: (3.0, 2.5)}, 1 if is_smoke else 11),
            *users.growth(directory, (few, many), min(rounds, 5)),
            *users.long_history(directory, many * 10, min(rounds, 5)),
        ],
        "peak memory": lambda: processes.peak_memory(directory, (100, many)),
    }


def _format_table(figures: list[Figure]) -> str:
    width = max((len(figure.name) for figure in figures), default=0)
    lines = [f"{platform.python_implementation()} {platform.python_version()} on {platform.machine()}"]
    for figure in figures:
        mark = "  " if figure.is_reached else " !"
        lines.append(f"{figure.name:<{width}}  {figure.value:8.2f} ≤ {figure.bar:<6g}{mark} {figure.detail}")
    return "\n".join(lines)


sys.exit(main())
