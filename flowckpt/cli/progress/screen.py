"""A drawing at the bottom of the terminal that does not disturb the program's own input and output.

Whole lines printed by the user's code appear above the drawing. The drawing is removed while a line is unfinished (a
prompt, a bar of tqdm), while other code moves the cursor (another progress display), while the user is prompted (`input`,
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

# Each print would redraw everything, in half a millisecond. So a burst of prints is collected and written with the next
# refresh, while a single print appears at once.
_BURST_SECONDS = 0.05
_QUIET_SECONDS = 0.5
"""How long the drawing stays away after another display moved the cursor, or after a prompt."""
_MOVES = re.compile(r"\r(?!\n)|\x08|\x1b\[[0-9;?]*[A-HJKSTfhlsu]|\x1b[78]")


class PrintsAbove:
    """Replaces `sys.stdout` or `sys.stderr`.

    Args:
        screen: the drawing; its lock orders all writes.
        original: the replaced stream.
    """

    def __init__(self, screen: Screen, original: TextIO) -> None:
        self._screen = screen
        self._original = original
        self._pieces: list[str] = []
        self._last = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def write(self, text: str) -> int:
        """Show text at once, or in a burst of prints with the next refresh."""
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
        """Write several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Show an unfinished line, such as a prompt; whole lines appear with the next refresh."""
        with self._screen._lock:
            if self._pieces and not self._pieces[-1].endswith("\n"):
                self._write_through("")
            if self._screen.is_away:
                self._original.flush()

    def drain(self) -> None:
        """Show the collected whole lines above the drawing."""
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
        """Show all collected text, also an unfinished line."""
        self.drain()
        if self._pieces:
            self._write_through("")

    def _write_through(self, text: str) -> None:
        """Write to the terminal itself, with the drawing removed."""
        self.drain()
        text = "".join(self._pieces) + text
        self._pieces.clear()
        self._screen.step_aside(moves=bool(_MOVES.search(text)), is_unfinished=bool(text) and not text.endswith("\n"))
        self._original.write(text)
        if not text.endswith("\n"):
            self._original.flush()


class Screen(Live):
    """Draws below the output of the program.

    Args:
        console: the console to draw on.
        frame: returns the drawing.
        refreshes: refreshes per second.
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
        """Whether other code has the terminal, and nothing is drawn."""
        self.is_debugged = False
        """Whether a debugger has prompted since the last step ended."""

    def start(self, refresh: bool = False) -> None:
        """Start to draw, and wrap the streams and prompts of this terminal."""
        super().start(refresh)
        self._modes = self._terminal_modes()
        for name in ("stdout", "stderr"):
            self._replace(sys, name, self._wrap_stream)
        self._replace(builtins, "input", self._wrap_prompt)
        self._replace(click.termui, "visible_prompt_func", self._wrap_prompt)
        self._replace(getpass, "_raw_input", self._wrap_prompt)

    def show_above(self, line: Text) -> None:
        """Show a line above the drawing, with the next refresh."""
        self._above.append(line)

    def finish_line(self) -> None:
        """End a line that a finished step left unfinished."""
        with self._lock:
            self.is_debugged = False
            if self._is_unfinished and not self._readers:
                self.console.file.write("\n")
                self._is_unfinished = False

    def step_aside(self, *, moves: bool = False, is_unfinished: bool = False) -> None:
        """Leave the terminal to other code. The caller holds the lock."""
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
        """Write collected prints, then draw, unless other code has the terminal."""
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
        """Draw for the last time, and release the terminal."""
        with self._lock:
            self.restore()
            for prints in self._prints:
                prints.show_rest()
            self.finish_line()
            self._quiet_until, self._readers, self._modes = 0.0, 0, None
            self.refresh()
        super().stop()

    def restore(self) -> None:
        """Restore streams and prompts that nothing else has replaced since."""
        self._restore.close()

    def _is_taken(self) -> bool:
        """Return whether other code has the terminal."""
        if self._modes is not None and not self.is_away and self._terminal_modes() != self._modes:
            self.is_away = True  # a prompt has overwritten the drawing: leave both
            self._live_render._shape = None
        is_quiet = time.monotonic() < self._quiet_until and not self._above
        is_raw = self.is_away and self._modes is not None and self._terminal_modes() != self._modes
        return self._is_unfinished or self._readers > 0 or is_quiet or is_raw or (self.is_debugged and self.is_away)

    def _drain_above(self) -> None:
        lines, self._above = self._above, []
        if lines:
            self.console.print(Text("\n").join(lines), soft_wrap=True)

    def _wrap_stream(self, stream: TextIO) -> TextIO:
        if stream is None or not stream.isatty():
            return stream
        prints = PrintsAbove(self, stream)
        self._prints.append(prints)
        return cast("TextIO", prints)

    def _wrap_prompt(self, original: Callable[..., str]) -> Callable[..., str]:
        def prompt(*args: Any, **kwargs: Any) -> str:
            with self._pause_for_input():
                self.is_debugged = self.is_debugged or _is_debugger_prompting()
                return original(*args, **kwargs)

        return prompt

    @contextlib.contextmanager
    def _pause_for_input(self) -> Iterator[None]:
        with self._lock:
            for prints in self._prints:
                prints.show_rest()
            self.step_aside(is_unfinished=self._is_unfinished)
            self._readers += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1
                self._is_unfinished = False
                self._quiet_until = time.monotonic() + _QUIET_SECONDS

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
        """Return the modes of the terminal, which a prompt without echo or a line editor changes."""
        try:
            return termios.tcgetattr(self.console.file.fileno())[3]
        except Exception:  # not a terminal, or not on this system
            return None


def _is_debugger_prompting() -> bool:
    frame: Any = sys._getframe() if "bdb" in sys.modules else None
    while frame is not None and frame.f_globals.get("__name__") != "bdb":
        frame = frame.f_back
    return frame is not None
