"""Several suppliers are asked in parallel: the first offer wins, the others are stopped, and one order is placed.

flowckpt run examples/first_of_several.py --id paper

The record names the winner: a resume after a crash orders from the same supplier without asking anybody again.
"""

import asyncio
import sqlite3
from collections.abc import Generator
from contextlib import closing
from typing import Any

from flowckpt import current_step, parallel, step, workflow
from flowckpt.errors import StepFailedError

ANSWERS_AFTER = {"north": 3600.0, "south": 0.0, "west": 3600.0}


async def ask(supplier: str) -> str:
    await asyncio.sleep(ANSWERS_AFTER[supplier])
    return supplier


def order(supplier: str, sheets: int) -> str:
    with closing(sqlite3.connect("orders.db")) as orders, orders:
        orders.execute("CREATE TABLE IF NOT EXISTS orders (key TEXT PRIMARY KEY, supplier TEXT, sheets INTEGER)")
        key = current_step().idempotency_key
        orders.execute("INSERT OR IGNORE INTO orders VALUES (?, ?, ?)", (key, supplier, sheets))
    return f"{sheets} sheets from {supplier}"


@workflow("first_of_several")
def first_of_several(sheets: int = 500) -> Generator[Any, Any, str]:
    asked = [step(supplier).python(ask, supplier) for supplier in ANSWERS_AFTER]
    offers = yield parallel(*asked, min_success=1)
    winner = next(each for each in offers if not isinstance(each, StepFailedError))
    placed = yield from step("order").python(order, winner, sheets).checkpoint()
    return placed
