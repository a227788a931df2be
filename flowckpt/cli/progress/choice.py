"""Which way of showing progress fits."""

from __future__ import annotations

import importlib
from typing import Any

from flowckpt.cli.progress.documents import JsonLines
from flowckpt.cli.progress.plain import PlainLines
from flowckpt.cli.progress.state import HeldBack, Progress
from flowckpt.cli.render.terminal import is_error_terminal
from flowckpt.cli.settings import color_allowed


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
