"""Which way of showing progress fits."""

from __future__ import annotations

import importlib
from typing import Any

from flowckpt.cli.progress.plain import PlainLines
from flowckpt.cli.progress.state import HeldBack, Progress
from flowckpt.cli.render.documents import event_document
from flowckpt.cli.render.terminal import OutputFailedError, is_error_terminal, json_text, write_if_read
from flowckpt.cli.settings import color_allowed
from flowckpt.events import Event

# Progress for programs: every event as a line of JSON on standard output.


class JsonLines:
    """Writes events as JSON lines.

    Args:
        output_type: what the workflow says that it returns.
    """

    def __init__(self, output_type: Any) -> None:
        self._output_type = output_type
        self.failure = ""  # why the last event that could not be written was lost

    def start(self) -> None:
        """Do nothing."""

    def tell(self, event: Event) -> None:
        """Write the event."""
        try:
            write_if_read(f"{json_text(event_document(event, self._output_type))}\n")
        except OutputFailedError as error:  # the run is not worse for it
            self.failure = str(error)

    def stop(self) -> None:
        """Do nothing."""


def choose_progress(*, as_events: bool, no_color: bool, output_type: Any, restored_attempt: int) -> Progress:
    """Return what shows the progress of a run.

    Args:
        as_events: the events themselves are asked for.
        no_color: nothing shall be drawn.
        output_type: what the workflow says that it returns.
        restored_attempt: the attempt that a resume goes on from; 0 for a new run.
    """
    if as_events:
        return JsonLines(output_type)
    shown: Progress
    if no_color or not is_error_terminal() or not color_allowed():
        shown = PlainLines()
    else:
        shown = importlib.import_module("flowckpt.cli.progress.live").LiveProgress(restored_attempt)
    return HeldBack(shown) if restored_attempt else shown
