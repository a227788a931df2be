"""What a step may hand in while it runs, wherever it runs: the same is refused in the engine and in a worker."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from flowckpt.errors import FlowckptError, InputError
from flowckpt.finite import is_finite_number
from flowckpt.lazy import LazyModule

if TYPE_CHECKING:
    import asyncio
else:  # workers go without, as long as they can
    asyncio = LazyModule("asyncio")

Progress = tuple[float, float | None, str]
"""How much is done, how much there is, and what the step is at."""


def checked_progress(done: Any, total: Any, note: Any) -> Progress:
    """Return what a step tells of itself, as JSON can say it.

    Args:
        done: how much is done.
        total: how much there is, or None.
        note: what the step is at.

    Raises:
        InputError: a number is none, or negative; or the note is no text.
    """
    done, total = _number("done", done), None if total is None else _number("total", total)
    if not isinstance(note, str):
        raise InputError(f"the note of progress() is {note!r:.80} ({type(note).__name__}), no text", parameter="note")
    return done, total, note


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that this code runs in; None where it runs in none."""
    if "asyncio" not in sys.modules:
        return None
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def saved_in_loop(path: str) -> FlowckptError:
    """Return the error of a step that saves from code that runs in a loop, and would make it stand still.

    Args:
        path: the step.
    """
    return FlowckptError(
        f"current_step().save() was called in {path!r} by code that runs in the event loop",
        remedy="Write 'await current_step().save_async(state)'.",
    )


def has_ended(path: str, tries: int) -> FlowckptError:
    """Return the error of a step that saves when it has ended: from a thread that it has left behind.

    Args:
        path: the step.
        tries: which try of it.
    """
    return FlowckptError(
        f"try {tries} of step {path!r} has ended, and can save nothing any more",
        remedy="Save before the function returns, and wait for the threads that it has made.",
    )


def _number(name: str, value: Any) -> float:
    """Return a number as JSON can say it; numbers of other libraries, too."""
    found: float | None = None
    if not isinstance(value, bool | str | bytes):
        try:
            found = value.__index__() if hasattr(type(value), "__index__") else float(value)
        except (TypeError, ValueError, OverflowError):
            found = None
    if not is_finite_number(found) or found < 0:
        raise InputError(
            f"{name} of progress() is {value!r:.80} ({type(value).__name__}), no number from 0 on",
            parameter=name,
            remedy="Give how much is done, and how much there is in all.",
        )
    return found
