"""The floor: the least code that gives the same guarantee.

A generator and a journal with one synced line per step: the step, its output, and a digest over all previous lines.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any


def run(make: Callable[[], Generator[Callable[[], Any], Any, Any]], path: Path) -> None:
    """Drive a generator of callables, journaling each result before requesting the next one."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    generator, digest, value, count = make(), bytes(32), None, 0
    try:
        while True:
            value = generator.send(value)()
            body = json.dumps({"step": f"work[{count}]", "output": value}).encode()
            count += 1
            digest = sha256(digest + body).digest()
            os.write(file, body + b"\t" + digest.hex().encode() + b"\n")
            os.fdatasync(file)
    except StopIteration:
        os.close(file)


def resume(
    make: Callable[[], Generator[Callable[[], Any], Any, Any]], path: Path, build: Callable[[Any], Any] | None = None
) -> int:
    """Replay a journal into a fresh generator: read, verify and parse each line, build its value, and send it."""
    generator, digest, count = make(), bytes(32), 0
    next(generator)
    with path.open("rb") as journal:
        for line in journal:
            body, _, mark = line.rstrip(b"\n").partition(b"\t")
            digest = sha256(digest + body).digest()
            if digest.hex().encode() != mark:
                raise ValueError(f"line {count} is damaged")
            recorded = json.loads(body)
            if recorded["step"] != f"work[{count}]":
                raise ValueError(f"line {count} is of another step")
            count += 1
            output = recorded["output"]
            try:
                generator.send(output if build is None else build(output))
            except StopIteration:
                break
    return count


def appends(path: Path, count: int) -> None:
    """Append 300 bytes and sync, `count` times: the cost of the disk itself."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    line = b"x" * 299 + b"\n"
    for _ in range(count):
        os.write(file, line)
        os.fdatasync(file)
    os.close(file)


def time_appends(path: Path, count: int) -> float:
    """Return the seconds of one append of `appends`."""
    began = time.perf_counter()
    appends(path, count)
    return (time.perf_counter() - began) / count


def time_tasks(count: int) -> float:
    """Return the seconds of one awaited task, the cost of asyncio itself."""

    async def work(number: int) -> int:
        return number

    async def run() -> float:
        began = time.perf_counter()
        for number in range(count):
            await asyncio.create_task(work(number))
        return (time.perf_counter() - began) / count

    return asyncio.run(run())


def fan_out(function: Callable[[int], Any], path: Path, count: int, width: int) -> None:
    """Run a function for each number in parallel; lines that arrive during a sync share the next one."""
    asyncio.run(_fan_out(function, path, count, width))


async def _fan_out(function: Callable[[int], Any], path: Path, count: int, width: int) -> None:
    loop, numbers = asyncio.get_running_loop(), iter(range(count))
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    group: list[tuple[bytes, asyncio.Future[None]]] = []
    syncing: asyncio.Future[None] | None = None
    digest = bytes(32)

    async def sync() -> None:
        nonlocal digest
        while group:
            taken = group[:]
            group.clear()
            lines = []
            for body, _ in taken:
                digest = sha256(digest + body).digest()
                lines.append(body + b"\t" + digest.hex().encode() + b"\n")
            os.write(file, b"".join(lines))
            await loop.run_in_executor(None, os.fdatasync, file)
            for _, done in taken:
                done.set_result(None)

    async def work() -> None:
        nonlocal syncing
        for number in numbers:
            if inspect.iscoroutinefunction(function):
                value = await function(number)
            else:
                value = await loop.run_in_executor(pool, function, number)
            done: asyncio.Future[None] = loop.create_future()
            group.append((json.dumps({"step": f"work/[{number}]", "output": value}).encode(), done))
            if syncing is None or syncing.done():
                syncing = asyncio.ensure_future(sync())
            await done

    with ThreadPoolExecutor(width) as pool:
        await asyncio.gather(*(work() for _ in range(width)))
    os.close(file)
