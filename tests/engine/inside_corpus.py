"""Workflows whose steps save what they are at; each step notes every single thing that it does."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from flowckpt import current_step, parallel, step, workflow

effects: list[str] = []
"""What the steps did, in order; a test clears it."""


def counted(what: str, until: int) -> list[int]:
    """Do one thing after the other and save after each; who comes later continues after what was saved."""
    done: list[int] = current_step().load([])
    for number in range(len(done), until):
        effects.append(f"{what} {number}")
        current_step().progress(number, until)
        done.append(number)
        current_step().save(done)
    return done


async def counted_async(what: str, until: int) -> list[int]:
    done: list[int] = current_step().load([])
    for number in range(len(done), until):
        effects.append(f"{what} {number}")
        current_step().progress(number, until)
        done.append(number)
        await current_step().save_async(done)
    return done


def fails_once_a_try(until: int) -> int:
    """Fail after each thing; the next try continues after it."""
    done: int = current_step().load(0)
    if done < until:
        effects.append(f"try {done}")
        current_step().save(done + 1)
        raise OSError("once more")
    return done


def large(until: int) -> int:
    found: tuple[int, str] = current_step().load((0, ""))
    for number in range(found[0], until):
        effects.append(f"large {number}")
        current_step().save((number + 1, f"{number} " * 50_000))
    return until


@workflow
def in_place() -> Generator[Any, Any, list[int]]:
    found = yield step("here").python(counted, "here", 3).checkpoint()
    yield step("plain").python(counted, "plain", 1)
    return found


@workflow
def on_a_thread() -> Generator[Any, Any, list[int]]:
    return (yield step("beside").python(counted, "beside", 3).timeout(60))


@workflow
def in_the_loop() -> Generator[Any, Any, list[int]]:
    return (yield step("within").python(counted_async, "within", 3).checkpoint())


@workflow
def with_tries() -> Generator[Any, Any, int]:
    return (yield step("tried").python(fails_once_a_try, 3).retry(9).checkpoint())


@workflow
def with_large_states() -> Generator[Any, Any, int]:
    return (yield step("large").python(large, 2).checkpoint())


@workflow
def in_a_map() -> Generator[Any, Any, list[Any]]:
    return (yield step("each").map(counted_each, [1, 2, 3], concurrency=2).checkpoint())


def counted_each(until: int) -> list[int]:
    return counted(f"each of {until}", until)


@workflow
def in_a_group() -> Generator[Any, Any, list[Any]]:
    a, b = yield parallel(
        step("a").python(counted, "a", 2), step("b").python(counted_async, "b", 2).checkpoint(), name="both"
    )
    return [a, b]


CORPUS = [in_place, on_a_thread, in_the_loop, with_tries, with_large_states, in_a_map, in_a_group]
BESIDE = [in_a_map, in_a_group]
"""Those whose steps run beside each other: how many saves they make is not the same each time."""
