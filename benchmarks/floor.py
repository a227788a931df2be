"""The floor: the least code that gives the same guarantee. A generator, an appended journal, a sync a step."""

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
    generator, digest, value = make(), bytes(32), None
    try:
        while True:
            value = generator.send(value)()
            body = json.dumps(value).encode()
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
            count += 1
            try:
                generator.send(json.loads(body))
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
