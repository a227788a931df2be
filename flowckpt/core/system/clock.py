"""The injected clock: no other code in the package reads the time from the operating system."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """The engine's clock; tests use one that they control."""

    def now(self) -> datetime:
        """Return the wall-clock time, aware and in UTC. Never used to order records."""
        ...

    def elapsed_ns(self) -> int:
        """Return nanoseconds of a monotonic clock; only differences are meaningful."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait that many seconds without blocking the loop."""
        ...


class SystemClock:
    """The system clock."""

    # No wrappers around these functions: each step calls them five times, and a frame takes 0.1 µs.
    now = staticmethod(partial(datetime.now, UTC))
    """The machine's time, aware and in UTC."""
    elapsed_ns = staticmethod(time.perf_counter_ns)
    """Nanoseconds of the machine's performance counter."""

    async def sleep(self, seconds: float) -> None:
        """Wait in the running asyncio loop."""
        await asyncio.sleep(seconds)
