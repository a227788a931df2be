"""The progress of a run: drawn, as lines, or as JSON."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from flowckpt.cli.groups import command_meta
from flowckpt.cli.options import PROGRESS
from flowckpt.cli.progress.lines import JsonLines, PlainLines
from flowckpt.cli.progress.state import DelayedProgress, Progress
from flowckpt.cli.render.terminal import is_error_terminal
from flowckpt.cli.settings import command_settings, is_color_allowed

__all__ = ["DelayedProgress", "JsonLines", "Progress", "choose_progress"]


def _is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which shows HTML."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def choose_progress(*, as_events: bool, output_type: Any, restored_attempt: int) -> Progress:
    """Return the display of the progress of a run.

    Args:
        as_events: whether to write the events as JSON lines.
        output_type: the return annotation of the workflow.
        restored_attempt: the attempt that a resume continues from; 0 for a new run.
    """
    if as_events:
        return JsonLines(output_type)
    in_cell = _is_notebook()
    can_draw = in_cell or (is_error_terminal() and os.environ.get("TERM") != "dumb")
    form = command_meta().get(PROGRESS) or command_settings()["progress"] or ("rich" if can_draw else "plain")
    if form == "none":
        return Progress()
    if form == "plain":
        display: Progress = PlainLines()
    else:
        live = importlib.import_module("flowckpt.cli.progress.live")
        display = live.LiveProgress(restored_attempt, no_color=not is_color_allowed(), in_cell=in_cell)
    return DelayedProgress(display) if restored_attempt else display
