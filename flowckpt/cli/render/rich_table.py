"""A table as rich draws it; loaded only for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flowckpt.cli.render.tables import STATUS_COLORS


def drawn(header: Sequence[str], rows: Sequence[Sequence[str]], wrapped: Collection[str]) -> str:
    """Return the table as text with colours, as wide as the terminal, without its empty columns.

    Args:
        header: the names of the columns.
        rows: the cells; they are safe to show.
        wrapped: the columns that may take several lines where the terminal is narrow.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    shown = [index for index in range(len(header)) if any(row[index] for row in rows)]
    for name in (header[index] for index in shown):
        table.add_column(name, overflow="fold", no_wrap=name not in wrapped, min_width=len(name))
    for row in rows:
        cells = [row[index] for index in shown]
        table.add_row(*[Text(cell, style=STATUS_COLORS.get(cell, "")) for cell in cells])
    with console.capture() as captured:
        console.print(table)
    return captured.get()
