"""Prints of the user's code while progress is drawn: they appear above it, whole lines at a time.

Each print would draw everything anew, in half a millisecond; so a burst of them is gathered and written with the next
refresh, while a single one appears at once.
"""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

_BURST_SECONDS = 0.05


class PrintsAbove:
    """Stands in for `sys.stdout` or `sys.stderr`.

    Args:
        console: what is drawn on.
        live: what is drawn; its lock orders what is written.
        original: the stream that it stands for.
    """

    def __init__(self, console: Console, live: Live, original: TextIO) -> None:
        self._console = console
        self._live = live
        self._original = original
        self._pieces: list[str] = []
        self._last = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def write(self, text: str) -> int:
        """Take text; show it now, or with the next refresh where much is written."""
        self._pieces.append(text)
        if "\n" in text and time.monotonic() - self._last > _BURST_SECONDS:
            self.drain()
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Take several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Show a line that is not finished, as a question is; whole ones come with the next refresh."""
        if self._pieces and "\n" not in self._pieces[-1] and "\r" not in "".join(self._pieces):
            self.drain(is_last=True)

    def drain(self, *, is_last: bool = False) -> None:
        """Show what was taken.

        Args:
            is_last: show a line that is not finished too.
        """
        with self._live._lock:
            pieces, self._pieces = self._pieces, []
            text = "".join(pieces)
            whole, _, rest = (text, "", "") if is_last else text.rpartition("\n")
            if rest:
                self._pieces.insert(0, rest)
            if whole or (text and not rest):
                self._console.print(Text.from_ansi(whole), soft_wrap=True)
        self._last = time.monotonic()


class LiveAbovePrints(Live):
    """Draws below what user code prints.

    Args:
        console: where to draw.
        frame: returns what to draw.
        refreshes: how often a second.
    """

    def __init__(self, console: Console, frame: Any, refreshes: float) -> None:
        super().__init__(
            console=console,
            get_renderable=frame,
            refresh_per_second=refreshes,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._streams = (sys.stdout, sys.stderr)
        self._prints: list[PrintsAbove] = []
        self._above: list[Text] = []

    def start(self, refresh: bool = False) -> None:
        """Begin to draw, and stand before the streams that go to this terminal."""
        super().start(refresh)
        self._streams = (sys.stdout, sys.stderr)
        sys.stdout, sys.stderr = self._standing_in(sys.stdout), self._standing_in(sys.stderr)

    def _standing_in(self, stream: TextIO) -> TextIO:
        if stream is None or not stream.isatty():
            return stream
        prints = PrintsAbove(self.console, self, stream)
        self._prints.append(prints)
        return cast("TextIO", prints)

    def show_above(self, line: Text) -> None:
        """Show a line above what is drawn, with the next refresh.

        Args:
            line: the line.
        """
        self._above.append(line)

    def _drain_above(self) -> None:
        with self._lock:
            lines, self._above = self._above, []
            if lines:
                self.console.print(Text("\n").join(lines), soft_wrap=True)

    def refresh(self) -> None:
        """Write what was printed, then draw."""
        if self._above:
            self._drain_above()
        for prints in self._prints:
            if prints._pieces:
                prints.drain()
        super().refresh()

    def stop(self) -> None:
        """Draw for the last time, and give the streams back."""
        self.restore_streams()
        for prints in self._prints:
            prints.drain(is_last=True)
        self._drain_above()
        super().stop()

    def restore_streams(self) -> None:
        """Give the streams back, where nobody else has replaced them since."""
        if isinstance(sys.stdout, PrintsAbove):
            sys.stdout = self._streams[0]
        if isinstance(sys.stderr, PrintsAbove):
            sys.stderr = self._streams[1]
