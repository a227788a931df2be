"""Where in the user's program a step was written, for errors."""

from __future__ import annotations

import sys


def caller() -> str:
    """Return `file:line` of the nearest frame outside this package's language."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_globals.get("__name__", "").startswith("flowckpt.dsl") or frame.f_code.co_filename.startswith("<attrs")
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
