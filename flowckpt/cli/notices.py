"""The log messages of the package on standard error, for the person at the command."""

from __future__ import annotations

import logging

from flowckpt.cli.groups import with_store
from flowckpt.cli.render.terminal import escaped, escaped_lines, say


class _ToStandardError(logging.Handler):
    hears_events = False  # the progress shows them

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "flowckpt.events":  # the progress shows them
            return
        say(f"flowckpt: {record.levelname.lower()}: {with_store(escaped_lines(record.getMessage().rstrip()))}")


def show_messages(level: str) -> None:
    """Show the messages of the package from here on; once, however often it is asked for.

    Args:
        level: the least level, as `warning`.
    """
    logger = logging.getLogger("flowckpt")
    for handler in logger.handlers:
        if isinstance(handler, _ToStandardError):
            return
    least = logging.getLevelNamesMapping()[level.upper()]
    logger.addHandler(_ToStandardError(least))
    if least < logging.WARNING:  # the root logger's level, which stands for it else
        logger.setLevel(least)


def show_warnings() -> None:
    """Show the warnings of the package from here on, where nothing else was asked for."""
    show_messages("warning")


def warn(message: str) -> None:
    """Show a warning."""
    say(f"flowckpt: warning: {with_store(escaped(message))}")
