"""Signs of life from a thread of their own, so that a step that takes long does not cost its run."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable

from flowckpt.errors import FlowckptError


class Heartbeat:
    """Calls a method again and again while there is something to keep alive.

    Args:
        renew: a bound method that renews all leases and tells whether any are left; its object is not kept alive.
        interval: seconds between two calls.
    """

    def __init__(self, renew: Callable[[], bool], interval: float) -> None:
        self._renew = weakref.WeakMethod(renew)
        self._interval = interval
        self._pid = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, where it is not going on already in this process."""
        if self._pid == os.getpid() and self._thread is not None and self._thread.is_alive():
            return
        self._pid, self._stop = (
            os.getpid(),
            threading.Event(),
        )  # a forked child has no thread, and an event of unknown state
        self._thread = threading.Thread(target=self._beat, args=(self._stop,), name="flowckpt-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it; the thread is not waited for, as it may be waiting for the store."""
        self._stop.set()
        self._thread = None

    def _beat(self, stop: threading.Event) -> None:
        while not stop.wait(self._interval):
            renew = self._renew()
            if renew is None:
                return
            # A lease that could not be renewed is no failure yet: each save asks the store whether it still holds.
            with contextlib.suppress(FlowckptError):
                if not renew():
                    return
            del renew
