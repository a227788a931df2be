"""Fake time: a limit expires exactly when the test advances the clock, however busy the machine is."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path

import pytest


class Late:
    """The clock of the event loops of the main thread, and of a module that calls `time.monotonic()`."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self._seconds = 0.0
        self._loops: set[asyncio.AbstractEventLoop] = set()

    def monotonic(self) -> float:
        return time.monotonic() + self._seconds

    def time_of(self, loop: asyncio.AbstractEventLoop) -> float:
        if getattr(loop, "_thread_id", None) != threading.main_thread().ident:  # of a cluster, which has limits itself
            return time.monotonic()
        self._loops.add(loop)
        return self.monotonic()

    def advance(self, seconds: float = 1000.0) -> None:
        """Advance the clock, from any thread."""
        self._seconds += seconds
        for loop in self._loops.copy():
            with contextlib.suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(lambda: None)

    def advance_after(self, file: Path) -> None:
        """Advance the clock repeatedly, once another process or thread has written into a file."""

        def wait() -> None:
            while not self.is_over.wait(0.01):
                if file.exists() and file.stat().st_size:  # a file just created may be empty for a moment
                    self.advance()

        threading.Thread(target=wait, daemon=True).start()


@pytest.fixture
def late(monkeypatch):
    """The clock of event loops, which the test advances."""
    made = Late()
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda loop: made.time_of(loop))
    yield made
    made.is_over.set()
