"""The terminal below which progress is drawn: everything that others write or read goes through undisturbed.

Whole lines of the user's code appear above what is drawn. The drawing steps aside while a line is unfinished (a question,
a bar of tqdm), while something else moves the cursor (another progress display), while somebody is asked (`input`,
`getpass`), and while a debugger has the terminal.
"""

from __future__ import annotations

import builtins
import contextlib
import getpass
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO, cast

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

termios: Any = None
with contextlib.suppress(ImportError):  # not on this system
    import termios

# Each print would draw everything again, in half a millisecond; so a burst of them is gathered and written with the next
# refresh, while a single one appears at once.
_BURST_SECONDS = 0.05
_QUIET_SECONDS = 0.5
"""How long the drawing stays away after another display, or an answer of a person."""
_MOVES = re.compile(r"\r(?!\n)|\x08|\x1b\[[0-9;?]*[A-HJKSTfhlsu]|\x1b[78]")


class PrintsAbove:
    """Stands in for `sys.stdout` or `sys.stderr`.

    Args:
        screen: what is drawn; its lock orders what is written.
        original: the stream that it stands for.
    """

    def __init__(self, screen: Screen, original: TextIO) -> None:
        self._screen = screen
        self._original = original
        self._pieces: list[str] = []
        self._last = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def write(self, text: str) -> int:
        """Take text; show it now, or with the next refresh if much is written."""
        screen = self._screen
        with screen._lock:
            if screen.is_away or _MOVES.search(text):
                self._write_through(text)
                return len(text)
            self._pieces.append(text)
            if "\n" in text and time.monotonic() - self._last > _BURST_SECONDS:
                self.drain()
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Take several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Show an unfinished line, as a question is; whole lines come with the next refresh."""
        with self._screen._lock:
            if self._pieces and not self._pieces[-1].endswith("\n"):
                self._write_through("")
            if self._screen.is_away:
                self._original.flush()

    def drain(self) -> None:
        """Show the whole lines that were taken, above what is drawn."""
        pieces, self._pieces = self._pieces, []
        whole, found, rest = "".join(pieces).rpartition("\n")
        if rest:
            self._pieces.append(rest)
        if found and self._screen._above and not self._screen.is_away:
            self._screen._drain_above()
        if found:
            self._screen.console.print(Text.from_ansi(whole), soft_wrap=True)
        self._last = time.monotonic()

    def show_rest(self) -> None:
        """Show what was taken, also an unfinished line."""
        self.drain()
        if self._pieces:
            self._write_through("")

    def _write_through(self, text: str) -> None:
        """Write to the terminal itself, which nothing is drawn on meanwhile."""
        self.drain()
        text = "".join(self._pieces) + text
        self._pieces.clear()
        self._screen.step_aside(moves=bool(_MOVES.search(text)), is_unfinished=bool(text) and not text.endswith("\n"))
        self._original.write(text)
        if not text.endswith("\n"):
            self._original.flush()


class Screen(Live):
    """Draws below what others write.

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
        self._prints: list[PrintsAbove] = []
        self._above: list[Text] = []
        self._restore = contextlib.ExitStack()
        self._is_unfinished = False
        self._readers = 0
        self._quiet_until = 0.0
        self._modes: Any = None
        self.is_away = False
        """Whether the terminal belongs to somebody else, and nothing is drawn."""
        self.is_debugged = False
        """Whether a debugger has asked; until the next step ends."""

    def start(self, refresh: bool = False) -> None:
        """Draw from now on, in front of the streams and questions that go to this terminal."""
        super().start(refresh)
        self._modes = self._terminal_modes()
        for name in ("stdout", "stderr"):
            self._replace(sys, name, self._standing_in)
        self._replace(builtins, "input", self._asking)
        self._replace(click.termui, "visible_prompt_func", self._asking)
        self._replace(getpass, "_raw_input", self._asking)

    def show_above(self, line: Text) -> None:
        """Show a line above what is drawn, with the next refresh."""
        self._above.append(line)

    def finish_line(self) -> None:
        """End a line that a finished step left unfinished."""
        with self._lock:
            self.is_debugged = False
            if self._is_unfinished and not self._readers:
                self.console.file.write("\n")
                self._is_unfinished = False

    def step_aside(self, *, moves: bool = False, is_unfinished: bool = False) -> None:
        """Leave the terminal to somebody else; the lock is held."""
        if self._above and not (self.is_away and self._is_unfinished):
            self.is_away = False
            self._drain_above()
        self._is_unfinished = is_unfinished
        if moves:
            self._quiet_until = time.monotonic() + _QUIET_SECONDS
        if not self.is_away:
            self.is_away = True
            self.console.control(self._live_render.position_cursor())
            self._live_render._shape = None
            self.console.show_cursor(True)

    def refresh(self) -> None:
        """Write what was printed, then draw, unless the terminal belongs to somebody else."""
        with self._lock:
            if self._started and self._is_taken():
                return
            if self.is_away:
                self.is_away = False
                self.console.show_cursor(False)
            if self._above:
                self._drain_above()
            for prints in self._prints:
                if prints._pieces:
                    prints.show_rest()
            if not self.is_away:
                super().refresh()

    def stop(self) -> None:
        """Draw for the last time, and give the terminal back."""
        with self._lock:
            self.restore()
            for prints in self._prints:
                prints.show_rest()
            self.finish_line()
            self._quiet_until, self._readers, self._modes = 0.0, 0, None
            self.refresh()
        super().stop()

    def restore(self) -> None:
        """Give streams and questions back, where nothing else has replaced them since."""
        self._restore.close()

    def _is_taken(self) -> bool:
        """Return whether somebody else has the terminal."""
        if self._modes is not None and not self.is_away and self._terminal_modes() != self._modes:
            self.is_away = True  # its question stands where the drawing is: leave both
            self._live_render._shape = None
        is_quiet = time.monotonic() < self._quiet_until and not self._above
        is_raw = self.is_away and self._modes is not None and self._terminal_modes() != self._modes
        return self._is_unfinished or self._readers > 0 or is_quiet or is_raw or (self.is_debugged and self.is_away)

    def _drain_above(self) -> None:
        lines, self._above = self._above, []
        if lines:
            self.console.print(Text("\n").join(lines), soft_wrap=True)

    def _standing_in(self, stream: TextIO) -> TextIO:
        if stream is None or not stream.isatty():
            return stream
        prints = PrintsAbove(self, stream)
        self._prints.append(prints)
        return cast("TextIO", prints)

    def _asking(self, original: Callable[..., str]) -> Callable[..., str]:
        def ask(*args: Any, **kwargs: Any) -> str:
            with self._reading():
                self.is_debugged = self.is_debugged or _is_debugger_asking()
                return original(*args, **kwargs)

        return ask

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock:
            self._show_all()
            self._readers += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1
                self._is_unfinished = False
                self._quiet_until = time.monotonic() + _QUIET_SECONDS

    def _show_all(self) -> None:
        for prints in self._prints:
            prints.show_rest()
        self.step_aside(is_unfinished=self._is_unfinished)

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return
        ours = make(original)
        setattr(owner, name, ours)

        def restore() -> None:
            if getattr(owner, name) is ours:
                setattr(owner, name, original)

        self._restore.callback(restore)

    def _terminal_modes(self) -> Any:
        """Return how the terminal is set: a question without echo, or an editor of lines, sets it otherwise."""
        try:
            return termios.tcgetattr(self.console.file.fileno())[3]
        except Exception:  # not a terminal, or not on this system
            return None


def _is_debugger_asking() -> bool:
    frame: Any = sys._getframe() if "bdb" in sys.modules else None
    while frame is not None and frame.f_globals.get("__name__") != "bdb":
        frame = frame.f_back
    return frame is not None
