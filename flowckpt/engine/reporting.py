"""How far the steps are, told a few times a second: of each step the newest counts."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

from flowckpt.engine.in_place import driven
from flowckpt.lazy import LazyModule

if TYPE_CHECKING:
    from flowckpt import events
    from flowckpt.engine.attempt import Attempt
else:
    events = LazyModule("flowckpt.events")

EVERY_NS = 100_000_000
"""How often at most the progress of a step is told."""


class Reporting:
    """Tells the progress of the steps of one attempt.

    Args:
        attempt: the attempt.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._lock = threading.Lock()
        self._waiting: dict[str, events.StepProgress] = {}
        self._told_ns: dict[str, int] = {}
        self._is_due = False
        self._flushing: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    def report(self, path: str, done: float, total: float | None, note: str) -> None:
        """Take note of how far a step is, and tell it where it was not told a moment ago.

        Args:
            path: the step.
            done: how much is done.
            total: how much there is, or None.
            note: what it is at.
        """
        attempt = self._attempt
        if path not in attempt.in_flight:
            return  # a thread that its step has left behind
        event = events.StepProgress(attempt.workflow_id, path, done, total, note)
        if attempt.interrupts.is_in_place:
            self._report_in_place(event)
            return
        with self._lock:
            self._waiting[path] = event
            is_due, self._is_due = self._is_due, True
        if not is_due:
            loop = attempt.loop
            if loop is None:
                return
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(self._begin)

    def _report_in_place(self, event: events.StepProgress) -> None:
        attempt, path = self._attempt, event.path
        with self._lock:
            now = attempt.clock.elapsed_ns()
            since = self._told_ns.get(path)
            is_last = event.total is not None and event.done >= event.total
            if since is not None and now - since < EVERY_NS and not is_last:
                self._waiting[path] = event
                return
            self._waiting.pop(path, None)
            self._told_ns[path] = now
            if attempt.tell is not None:
                with attempt.interrupts.held_back():
                    driven(attempt.tell(event))

    def _begin(self) -> None:
        wait = EVERY_NS - self._attempt.clock.elapsed_ns() + self._told_ns.get("", -EVERY_NS)
        asyncio.get_running_loop().call_later(max(0.0, wait / 1e9), self._flush)

    def _flush(self) -> None:
        with self._lock:
            self._is_due = False
            events, self._waiting = self._waiting, {}
            self._told_ns[""] = self._attempt.clock.elapsed_ns()
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.ensure_future(self._tell(events))
        elif events:  # whoever listens is slower than we are: once more, later
            with self._lock:
                self._waiting = {**events, **self._waiting}
                is_due, self._is_due = self._is_due, True
            if not is_due:
                self._begin()

    async def _tell(self, events: dict[str, events.StepProgress]) -> None:
        try:
            for path, event in events.items():
                if self._attempt.tell is not None and path in self._attempt.in_flight:
                    await self._attempt.tell(event)
        except Exception as failure:  # whoever listens has failed: that is raised where the step ends
            self._failure = failure

    async def settle(self, path: str) -> None:
        """Tell what a step said last, before its end is told.

        Args:
            path: the step.
        """
        with self._lock:
            event = self._waiting.pop(path, None)
            self._told_ns.pop(path, None)
        if self._flushing is not None and not self._flushing.done():
            await asyncio.wait({self._flushing})  # what it is about to tell may be of this step
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if event is not None and self._attempt.tell is not None:
            await self._attempt.tell(event)

    async def close(self) -> None:
        """Forget what was not told."""
        with self._lock:
            self._waiting.clear()
            self._is_due = True  # nothing is begun any more
        if self._flushing is not None and not self._flushing.done():
            self._flushing.cancel()
            await asyncio.wait({self._flushing})
