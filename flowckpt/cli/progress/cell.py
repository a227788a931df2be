"""Progress in the cell of a notebook: the same lines and bars as on a terminal, in one output that is drawn again."""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group
from rich.text import Text

_MOST_LINES = 500
_WIDTH = 110
_FRAME = "<pre style=\"line-height:normal;font-family:Menlo,'DejaVu Sans Mono',consolas,'Courier New',monospace\">{code}</pre>"


class CellScreen:
    """Draws in the output of the running cell; takes the place of `Screen`, which draws on a terminal.

    Args:
        frame: returns what runs now.
        refreshes: how often a second it is drawn.
        no_color: whether colors are forbidden.
    """

    def __init__(self, frame: Callable[[], Group], refreshes: float, *, no_color: bool) -> None:
        self._frame = frame
        self._every_seconds = 1.0 / refreshes
        self._no_color = no_color
        self._above: deque[Text] = deque(maxlen=_MOST_LINES)
        self._left_out = 0
        self._output: Any = None
        self._drawn = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._redraw, name="flowckpt-cell", daemon=True)

    def start(self) -> None:
        """Draw from now on."""
        from IPython.display import HTML, display  # noqa: PLC0415 - only a notebook has it

        self._drawn = self._html()
        self._output = display(HTML(self._drawn), display_id=True)  # type: ignore[no-untyped-call]
        self._thread.start()

    def show_above(self, line: Text) -> None:
        """Show a line above what runs, with the next refresh."""
        self._left_out += len(self._above) == _MOST_LINES
        self._above.append(line)

    def finish_line(self) -> None:
        """Do nothing: what steps print has an output of its own."""

    def stop(self) -> None:
        """Draw for the last time."""
        self._over.set()
        self._thread.join()
        self._draw()

    def restore(self) -> None:
        """Draw nothing more."""
        self._over.set()

    def _redraw(self) -> None:
        while not self._over.wait(self._every_seconds):
            self._draw()

    def _draw(self) -> None:
        from IPython.display import HTML  # noqa: PLC0415 - only a notebook has it

        html = self._html()
        if html != self._drawn and self._output is not None:
            self._drawn = html
            self._output.update(HTML(html))  # type: ignore[no-untyped-call]

    def _html(self) -> str:
        console = Console(
            file=io.StringIO(),
            record=True,
            width=_WIDTH,
            highlight=False,
            markup=False,
            emoji=False,
            force_terminal=True,
            force_jupyter=False,
            no_color=self._no_color or None,
        )
        if self._left_out:
            console.print(Text(f"{self._left_out} lines left out", style="dim"))
        for line in [*self._above]:
            console.print(line, soft_wrap=True)
        console.print(self._frame())
        return console.export_html(inline_styles=True, code_format=_FRAME)
