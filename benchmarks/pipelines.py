"""The pipelines that are measured most: trivial functions, so that only flowckpt's own time shows."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowckpt import step, workflow


def trivial(number: int) -> int:
    return number


def megabyte(number: int) -> str:
    """Return a megabyte of plain text in lines, a different one each time."""
    line = f"{number:06d} the quick brown fox jumps over the lazy dog and runs away from it all\n"
    return line * (1_000_000 // len(line))


@workflow("durable")
def durable(count: int) -> Generator[Any, Any, int]:
    for number in range(count):
        yield step("work").python(trivial, number).checkpoint()
    return count


@workflow("unsaved")
def unsaved(count: int) -> Generator[Any, Any, int]:
    for number in range(count):
        yield step("work").python(trivial, number)
    return count


@workflow("texts")
def texts(count: int) -> Generator[Any, Any, int]:
    for number in range(count):
        yield step("text").python(megabyte, number).checkpoint()
    return count


@workflow("stops")
def stops(count: int, at: int = -1) -> Generator[Any, Any, int]:
    """Like `durable`, but raises after the last step, so that the run can be resumed."""
    for number in range(count):
        yield step("work").python(trivial, number)
    yield step("saved").python(trivial, count).checkpoint()
    yield step("next").python(reached)
    return count


def reached() -> None:
    raise SystemExit("the next step was reached")


def floor_of(function: Callable[[int], Any], count: int) -> Callable[[], Generator[Callable[[], Any], Any, None]]:
    """Return the floor's pipeline of the same function."""

    def make() -> Generator[Callable[[], Any], Any, None]:
        for number in range(count):
            yield functools.partial(function, number)

    return make


# Typical values. Each run stops before its last step, as after a `kill -9`.


def record(number: int) -> dict[str, Any]:
    return {"i": number, "ok": True}


@dataclass(frozen=True)
class Page:
    number: int
    title: str
    is_read: bool


def page(number: int) -> Page:
    return Page(number, f"page {number}", is_read=True)


def rows(number: int) -> list[int]:
    return list(range(number, number + 100))


def text(number: int) -> str:
    return f"{number:04d}" * 500


REACHED: list[float] = []
"""The processor times at which resumes in this process reached their next step."""


def leave() -> None:
    """End the process like a kill; first note its peak memory, if requested."""
    if "FLOWCKPT_BENCHMARK_STAYS" in os.environ:
        REACHED.append(time.process_time())
        raise SystemExit("the next step was reached")
    if file := os.environ.get("FLOWCKPT_BENCHMARK_PEAK"):
        # Not getrusage: there a child starts with the peak of its parent.
        status = Path("/proc/self/status").read_text().splitlines()
        Path(file).write_text(next(line for line in status if line.startswith("VmHWM")).split()[1])
    os._exit(0)


VALUES: dict[str, Callable[[int], Any]] = {"dict": record, "dataclass": page, "list of 100": rows, "2 kB of text": text}


@workflow("realistic")
def realistic(count: int, value: str = "dict") -> Generator[Any, Any, int]:
    function = VALUES[value]
    for number in range(count):
        yield step("fetch").python(function, number).checkpoint()
    yield step("next").python(leave)
    return count
