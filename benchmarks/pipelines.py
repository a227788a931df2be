"""The pipelines that are measured most: trivial functions, so that only flowckpt's own time shows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
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
    """Like `durable`, but raises behind the last step, so that the run can be resumed."""
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
