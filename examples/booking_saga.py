"""A booking of several parts: when one part fails, those that succeeded are cancelled, newest first.

flowckpt run examples/booking_saga.py --id trip                      # books a car, a hotel and a flight
flowckpt run examples/booking_saga.py --id late -i seats=0           # no seat left: exit code 1, everything cancelled
"""

import sqlite3
from collections.abc import Generator
from contextlib import closing
from typing import Any

from flowckpt import current_step, step, workflow


def record(action: str, part: str, booking: str) -> None:
    """Write to the agency's books. A booking is written only once, even if the step runs several times."""
    with closing(sqlite3.connect("bookings.db")) as books, books:
        books.execute(
            "CREATE TABLE IF NOT EXISTS books (action TEXT, part TEXT, booking TEXT, UNIQUE (action, booking))"
        )
        books.execute("INSERT OR IGNORE INTO books VALUES (?, ?, ?)", (action, part, booking))


def book(part: str, free: int) -> str:
    if not free:
        raise LookupError(f"no {part} is free")
    booking = current_step().idempotency_key
    record("book", part, booking)
    return booking


def cancel(booking: str, part: str, free: int) -> None:
    record("cancel", part, booking)


@workflow("booking_saga")
def booking_saga(seats: int = 3) -> Generator[Any, Any, int]:
    bookings = []
    for part, free in (("car", 5), ("hotel", 2), ("flight", seats)):
        booked = yield from step(part).python(book, part, free).rollback(cancel).checkpoint()
        bookings.append(booked)
    return len(bookings)
