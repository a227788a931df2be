"""Errors for people: what happened, and what to do about it. A traceback only of the user's own code."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowckpt.cli.groups import near_words, with_store
from flowckpt.cli.render.terminal import escaped, escaped_lines, say
from flowckpt.core.system.lazy import LazyModule
from flowckpt.errors import FlowckptError, SettingError, StepNotFoundError, UntrustedStoreError

if TYPE_CHECKING:
    from flowckpt.cli import settings
else:  # they know the engine, and the help of a command needs none
    settings = LazyModule("flowckpt.cli.settings")

shown: list[dict[str, str]] = []
"""The errors that the command has shown, as documents; `--json` prints the last one if there is no result."""


def show_error(error: FlowckptError, remedies: Sequence[str] | None = None) -> None:
    """Show an error and its remedy on standard error, and its traceback where the settings ask for it.

    Args:
        error: the error.
        remedies: what to do about it, safe to show, where that is better known here; else what the error says.
    """
    if _is_traceback_shown():
        with contextlib.suppress(Exception):  # a traceback that cannot be written must not hide the error
            say(escaped_lines("".join(traceback.format_exception(error)).rstrip()))
    shown.append({"type": type(error).__name__, "message": error.message, "remedy": error.remedy})
    say(f"flowckpt: {escaped(error.message)}")
    if isinstance(error, StepNotFoundError) and (near := near_words(error.step, error.known)):
        say(f"Did you mean {escaped(repr(near[0]))}?")
    for remedy in [escaped(error.remedy)] * bool(error.remedy) if remedies is None else remedies:
        say(with_store(remedy))


def _is_traceback_shown() -> bool:
    try:
        return bool(settings.command_settings()["traceback"])
    except (
        SettingError,
        UntrustedStoreError,
        OSError,
    ):  # most likely the very error that is shown; or the directory is gone
        return False
