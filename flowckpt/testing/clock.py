"""A clock that a test moves."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

_START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """A clock that stands still until it is moved; sleeping moves it and takes next to no time.

    Use it as `WorkflowEngine(clock=…)` or `FileCheckpointStore(clock=…)`.

    Args:
        start: the initial time, aware.

    Attributes:
        slept: the seconds of each sleep, in order.
    """

    def __init__(self, start: datetime = _START) -> None:
        self.slept: list[float] = []
        self._now = start.astimezone(UTC)
        self._elapsed_ns = 0

    def __repr__(self) -> str:
        return f"<FakeClock at {self._now.isoformat()}>"

    def now(self) -> datetime:
        """Return the time of the wall clock."""
        return self._now

    def elapsed_ns(self) -> int:
        """Return how far the clock was moved forward, in nanoseconds; setting the wall clock back does not change it."""
        return self._elapsed_ns

    async def sleep(self, seconds: float) -> None:
        """Move forward at once, and let other tasks and threads run."""
        self.slept.append(seconds)
        self.advance(seconds)
        # Not 0: a task that looks every 0.2 s would move the clock by an hour while a thread writes one file.
        await asyncio.sleep(0.0005)

    def advance(self, seconds: float) -> None:
        """Move both the wall clock and the monotonic clock forward.

        Args:
            seconds: how far; not negative.
        """
        if seconds < 0:
            raise ValueError("a monotonic clock never goes back; use set() for the wall clock")
        self._now += timedelta(seconds=seconds)
        self._elapsed_ns += round(seconds * 1e9)

    def set(self, now: datetime) -> None:
        """Set only the wall clock, as an administrator or NTP does; it may go back.

        Args:
            now: the new time, aware.
        """
        self._now = now.astimezone(UTC)
