"""Errors with their remedies, warnings and log messages, on standard error."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowckpt.cli.groups import add_store_option, find_near_words
from flowckpt.cli.render.terminal import escape, escape_lines, say
from flowckpt.core.system.lazy import LazyModule
from flowckpt.errors import FlowckptError, SettingError, StepNotFoundError, UntrustedStoreError

if TYPE_CHECKING:
    from flowckpt.cli import settings
else:  # they know the engine, and the help of a command needs none
    settings = LazyModule("flowckpt.cli.settings")

shown: list[dict[str, str]] = []
"""The errors that the command has shown, as documents; `--json` prints the last one if there is no result."""


def show_error(error: FlowckptError, remedies: Sequence[str] | None = None) -> None:
    """Show an error and its remedy on standard error, and flowckpt's own traceback if the settings ask for it.

    Args:
        error: the error.
        remedies: what to do about it, safe to show; by default, the remedy of the error.
    """
    if _is_traceback_shown():
        with contextlib.suppress(Exception):  # a traceback that cannot be written must not hide the error
            say(escape_lines("".join(traceback.format_exception(error)).rstrip()))
    shown.append({"type": type(error).__name__, "message": error.message, "remedy": error.remedy})
    say(f"flowckpt: {escape(error.message)}")
    if isinstance(error, StepNotFoundError) and (near := find_near_words(error.step, error.known)):
        say(f"Did you mean {escape(repr(near[0]))}?")
    if remedies is None:
        remedies = [escape(error.remedy)] if error.remedy else []
    for remedy in remedies:
        say(add_store_option(remedy))


def _is_traceback_shown() -> bool:
    try:
        return bool(settings.command_settings()["traceback"])
    except (SettingError, UntrustedStoreError, OSError):
        return False  # most likely it is the error that is shown; or the directory is gone


_HANDLER = "flowckpt: standard error of the command"


def show_messages(level: str) -> None:
    """Start showing log messages of the package; further calls have no effect.

    Args:
        level: the lowest level, such as `warning`.
    """
    import logging  # noqa: PLC0415 - the help of a command needs none

    class ToStandardError(logging.Handler):
        hears_events = False  # the progress shows them

        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "flowckpt.events":  # the progress shows them
                return
            say(f"flowckpt: {record.levelname.lower()}: {add_store_option(escape_lines(record.getMessage().rstrip()))}")

    logger = logging.getLogger("flowckpt")
    if any(each.name == _HANDLER for each in logger.handlers):
        return
    least = logging.getLevelNamesMapping()[level.upper()]
    handler = ToStandardError(least)
    handler.name = _HANDLER
    logger.addHandler(handler)
    if least < logging.WARNING:  # the root logger's level, which stands for it else
        logger.setLevel(least)


def warn(message: str) -> None:
    """Show a warning."""
    say(f"flowckpt: warning: {add_store_option(escape(message))}")
