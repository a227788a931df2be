"""Errors for people: what happened, and what to do about it. A traceback only of the user's own code."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Sequence

from flowckpt.cli.output import say
from flowckpt.cli.terminal_text import escaped, escaped_lines
from flowckpt.errors import FlowckptError

TRACEBACK_VARIABLE = "FLOWCKPT_TRACEBACK"


def show_error(error: FlowckptError, remedies: Sequence[str] | None = None) -> None:
    """Show an error and its remedy on standard error, and its traceback where `FLOWCKPT_TRACEBACK` asks for it.

    Args:
        error: the error.
        remedies: what to do about it, safe to show, where that is better known here; else what the error says.
    """
    if os.environ.get(TRACEBACK_VARIABLE, "0") not in ("", "0"):
        with contextlib.suppress(Exception):  # a traceback that cannot be written must not hide the error
            say(escaped_lines("".join(traceback.format_exception(error)).rstrip()))
    say(f"flowckpt: {escaped(error.message)}")
    for remedy in [escaped(error.remedy)] * bool(error.remedy) if remedies is None else remedies:
        say(remedy)
