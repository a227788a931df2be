"""The floor: the least code that gives the same guarantee.

A generator, a journal with a line a step (which step, what it returned, a digest over all before), a sync a line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator
from hashlib import sha256
from pathlib import Path
from typing import Any


def run(make: Callable[[], Generator[Callable[[], Any], Any, Any]], path: Path) -> None:
    """Drive a generator of callables, journaling each result before the next one is asked for."""
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


def resume(make: Callable[[], Generator[Callable[[], Any], Any, Any]], path: Path) -> int:
    """Feed a journal to a fresh generator: read a line, check its digest, parse it, send it."""
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
            try:
                generator.send(recorded["output"])
            except StopIteration:
                break
    return count


def appends(path: Path, count: int) -> None:
    """Append 300 bytes and sync, that often: what the disk itself costs."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    line = b"x" * 299 + b"\n"
    for _ in range(count):
        os.write(file, line)
        os.fdatasync(file)
    os.close(file)
