"""What the package logs, for whoever sits before the command: warnings on standard error, one line each."""

from __future__ import annotations

import logging

from flowckpt.cli.output import say
from flowckpt.cli.terminal_text import escaped


class _ToStandardError(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(f"flowckpt: {record.levelname.lower()}: {escaped(record.getMessage())}")


def show_warnings() -> None:
    """Show the warnings of the package from here on; once, however often it is asked for."""
    logger = logging.getLogger("flowckpt")
    if not any(isinstance(handler, _ToStandardError) for handler in logger.handlers):
        logger.addHandler(_ToStandardError(logging.WARNING))


def warn(message: str) -> None:
    """Show a warning.

    Args:
        message: what to warn of.
    """
    say(f"flowckpt: warning: {escaped(message)}")
