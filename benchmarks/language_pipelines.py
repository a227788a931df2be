"""Pipelines with further constructs, also of trivial functions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import Any

from benchmarks.pipelines import trivial
from flowckpt import current_step, now, step, uuid, workflow


async def trivial_async(number: int) -> int:
    return number


def sleeps(number: int) -> int:
    time.sleep(0.05)
    return number


async def sleeps_async(number: int) -> int:
    await asyncio.sleep(0.05)
    return number


@workflow("fan_out")
def fan_out(count: int) -> Generator[Any, Any, int]:
    return len((yield step("work").map(trivial, range(count)).checkpoint()))


@workflow("async_fan_out")
def async_fan_out(count: int) -> Generator[Any, Any, int]:
    return len((yield step("work").map(trivial_async, range(count)).checkpoint()))


@workflow("async_fan_out_unsaved")
def async_fan_out_unsaved(count: int) -> Generator[Any, Any, int]:
    return len((yield step("work").map(trivial_async, range(count))))


@workflow("sleepers")
def sleepers(count: int) -> Generator[Any, Any, int]:
    return len((yield step("work").map(sleeps, range(count), concurrency=50).checkpoint()))


@workflow("async_sleepers")
def async_sleepers(count: int) -> Generator[Any, Any, int]:
    return len((yield step("work").map(sleeps_async, range(count), concurrency=50).checkpoint()))


def nothing(number: int) -> int:
    return number


@workflow("far")
def far(count: int) -> Generator[Any, Any, int]:
    found = yield step("pages").map(nothing, range(count)).on("process")
    return len(found)


def undo(output: int) -> None:
    del output


@workflow("rounds")
def rounds(count: int) -> Generator[Any, Any, int]:
    for number in range(count):
        yield step("go").wait(f"go-{number}")
    return count


@workflow("one_step")
def one_step(number: int) -> Generator[Any, Any, int]:
    return (yield from step("work").python(trivial, number))


@workflow("children")
def children(count: int) -> Generator[Any, Any, int]:
    for number in range(count):
        yield step("child").workflow(one_step, number=number).checkpoint()
    return count


@workflow("undone")
def undone(count: int) -> Generator[Any, Any, int]:
    for number in range(count):
        yield step("work").python(trivial, number).rollback(undo)
    raise RuntimeError("everything is undone")


_failed: set[int] = set()


def fails_once(number: int) -> int:
    if number not in _failed:
        _failed.add(number)
        raise ConnectionError(number)
    return number


@workflow("retried")
def retried(count: int) -> Generator[Any, Any, int]:
    _failed.clear()
    for number in range(count):
        yield step("work").python(fails_once, number).retry(2)
    return count


def saves(count: int) -> int:
    inside = current_step()
    for number in range(count):
        inside.save({"done": number, "rest": "x" * 60})
    return count


@workflow("partial")
def partial(count: int) -> Generator[Any, Any, int]:
    return (yield from step("saves").python(saves, count).checkpoint())


@workflow("answers")
def answers(count: int) -> Generator[Any, Any, int]:
    for _ in range(count // 2):
        yield from now()
        yield from uuid()
    return count
