"""A sliding window over many items: at most N are in flight, and the results come in the order of the items.

flowckpt run examples/sliding_window.py --id window -i items=9 -i width=3

The items come from a generator that is read only as the window moves. A crash keeps every finished item, and no item is
sent twice: each is sent under its idempotency key.
"""

import asyncio
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

from flowckpt import current_step, step, workflow

in_flight: set[int] = set()


def sent() -> sqlite3.Connection:
    return sqlite3.connect("window.db", timeout=60, isolation_level=None)


def open_window(width: int) -> int:
    with closing(sent()) as database:
        database.execute("CREATE TABLE IF NOT EXISTS sent (key TEXT PRIMARY KEY, item INTEGER, in_flight INTEGER)")
    return width


async def send(item: int, width: int) -> int:
    in_flight.add(item)
    try:
        if len(in_flight) > width:
            raise RuntimeError(f"{len(in_flight)} items are in flight, and the window is {width} wide")
        await asyncio.sleep(0)  # stands for the network; other items are sent meanwhile
        with closing(sent()) as database:
            row = (current_step().idempotency_key, item, len(in_flight))
            database.execute("INSERT OR IGNORE INTO sent VALUES (?, ?, ?)", row)
        return item * item
    finally:
        in_flight.discard(item)


def numbers(items: int) -> Iterator[int]:
    yield from range(items)


@workflow("sliding_window")
def sliding_window(items: int = 9, width: int = 3) -> Generator[Any, Any, list[int]]:
    size = yield from step("open").python(open_window, width).checkpoint()
    results = yield from step("send").map(send, numbers(items), concurrency=size, width=size).checkpoint()
    return results
