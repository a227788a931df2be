"""Lines on their way from a thread into a loop, as fast as they are taken, in bounded memory."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable

OnLine = Callable[[str, str], None]

MOST_PENDING = 1_000_000
"""How many characters wait for the loop, at the most."""

PATIENCE_SECONDS = 1.0
"""How long a program waits for a loop that is busy, before lines are dropped instead."""

_COST = 100  # of a line, beside its characters


class LineFeed:
    """Hands lines over to a function in the loop, in the context in which this was made.

    Args:
        loop: the loop.
        on_line: told the stream and the line.
        on_error: called in the loop when `on_line` raises; it is told nothing more then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_line: OnLine, on_error: Callable[[], None]) -> None:
        self._loop = loop
        self._on_line = on_line
        self._on_error = on_error
        self._context = contextvars.copy_context()
        self._changed = threading.Condition()
        self._pending: list[tuple[str, str]] = []
        self._size = 0
        self._dropped = 0
        self._dropped_of = ""
        self._is_stalled = False
        self._is_closed = False
        self.error: BaseException | None = None
        """What `on_line` raised."""

    def put(self, stream: str, lines: list[str]) -> None:
        """Queue lines; called in the thread.

        Args:
            stream: where they were written.
            lines: the lines.
        """
        with self._changed:
            for line in lines:
                self._put(stream, line)

    def finish(self) -> None:
        """Say what was dropped last; called in the thread, when no line comes any more."""
        with self._changed:
            self._tell_dropped()

    def close(self) -> None:
        """Hand nothing over any more."""
        with self._changed:
            self._is_closed = True
            self._pending.clear()
            self._changed.notify_all()

    def _put(self, stream: str, line: str) -> None:
        if not self._has_room() and not self._is_stalled:
            self._is_stalled = not self._changed.wait_for(self._has_room, PATIENCE_SECONDS)
        if self._is_closed:
            return
        if not self._has_room():
            self._dropped += 1
            self._dropped_of = stream
            return
        self._tell_dropped()
        self._append(stream, line)

    def _tell_dropped(self) -> None:
        if self._dropped and not self._is_closed:
            self._append(self._dropped_of, f"… {self._dropped:,} lines are not shown: they came too fast …")
        self._dropped = 0

    def _has_room(self) -> bool:
        return self._size < MOST_PENDING or self._is_closed

    def _append(self, stream: str, line: str) -> None:
        self._pending.append((stream, line))
        self._size += len(line) + _COST
        if len(self._pending) == 1:
            try:
                self._loop.call_soon_threadsafe(self._hand_over, context=self._context)
            except RuntimeError:  # the loop is closed: nobody listens
                self._is_closed = True

    def _hand_over(self) -> None:
        with self._changed:
            lines, self._pending = self._pending, []
            self._size = 0
            self._is_stalled = False
            self._changed.notify_all()
        for stream, line in lines:
            if self._is_closed:
                return
            try:
                self._on_line(stream, line)
            except BaseException as error:
                self.error = error
                self.close()
                self._on_error()
