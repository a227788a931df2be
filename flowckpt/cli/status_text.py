"""The status of a run, in its colour where there may be colours."""

from __future__ import annotations

import click

from flowckpt.cli.output import is_terminal
from flowckpt.cli.settings import color_allowed

STATUS_COLORS = {
    "completed": "green",
    "failed": "red",
    "crashed": "red",
    "cancelled": "yellow",
    "suspended": "cyan",
    "running": "blue",
}


def status_text(status: str, *, no_color: bool) -> str:
    """Write a status for standard output.

    Args:
        status: the status.
        no_color: whether the command line forbids colours.
    """
    if no_color or not is_terminal() or not color_allowed():
        return status
    return click.style(status, fg=STATUS_COLORS.get(status))
