"""Tables for people: drawn by rich on a terminal, plain aligned columns everywhere else."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Sequence

from flowckpt.cli.output import is_terminal, write
from flowckpt.cli.settings import color_allowed
from flowckpt.cli.terminal_text import escaped


def show_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, wrapped: Collection[str], no_color: bool
) -> None:
    """Write a table to standard output.

    Args:
        header: the names of the columns.
        rows: the cells, as users' text: it is made safe here.
        wrapped: the columns that may take several lines on a narrow terminal.
        no_color: whether the command line forbids colours.
    """
    safe = [[escaped(cell) for cell in row] for row in rows]
    if is_terminal() and not no_color and color_allowed():
        write(importlib.import_module("flowckpt.cli.drawn_table").drawn(header, safe, wrapped))
    else:
        write(_aligned([list(header), *safe]))


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows
    )
