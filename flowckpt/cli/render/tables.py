"""Tables for people: drawn by rich on a terminal, plain aligned columns everywhere else."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from flowckpt.cli.render.terminal import escaped, is_terminal, write
from flowckpt.cli.settings import color_allowed
from flowckpt.core.system.numbers import counted

if TYPE_CHECKING:
    from flowckpt.maintenance import CopiedRun, ExportedRun, ImportedRun


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
        write(_drawn(header, safe, wrapped))
    else:
        write(_aligned([list(header), *safe]))


def _drawn(header: Sequence[str], rows: Sequence[Sequence[str]], wrapped: Collection[str]) -> str:
    """Return the table as rich draws it, with colours, as wide as the terminal, without its empty columns."""
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs rich
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

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


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows
    )


# The status of a run, in its colour where there may be colours.


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


# Times for people.


def duration_text(milliseconds: float) -> str:
    """Write how long something took: `12 ms`, `5.32 s`, `3 min 05 s`, `2 h 05 min`."""
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def ago_text(moment: datetime, now: datetime | None = None) -> str:
    """Write how long ago something was: `just now`, `5 min ago`, `3 h ago`, `12 days ago`.

    Args:
        moment: when it was, aware.
        now: the time to count from; the machine's where not given.
    """
    seconds = int(((now or datetime.now(UTC)) - moment).total_seconds())
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length or (length < 86_400 and seconds >= length):
            return f"{seconds // length} {unit} ago"
    return "just now" if seconds < 5 else f"{seconds} s ago"


def moment_text(moment: datetime, *, is_short: bool = False) -> str:
    """Write a moment in the reader's own time zone: `2026-11-20 15:30:00`, or short, `11-20 15:30`.

    Args:
        moment: when, aware.
        is_short: leave the year and the seconds out.
    """
    here = moment.astimezone()
    return f"{here:%m-%d %H:%M}" if is_short else f"{here:%Y-%m-%d %H:%M:%S}"


# Sizes for people.


def size_text(count: float) -> str:
    """Write a number of bytes: `512 B`, `4.2 kB`, `1.0 GB`, by thousands."""
    if count < 1000:
        return f"{count:.0f} B"
    units = ["TB", "GB", "MB", "kB"]
    while (count := count / 1000) >= 999.95 and len(units) > 1:
        units.pop()
    return f"{count:.1f} {units[-1]}"


def number_text(value: float) -> str:
    """Write a number for people: `10,000`, `0.02`, `1.5e-09`."""
    if isinstance(value, int):
        return f"{value:,}"
    if value and not 1e-6 <= abs(value) < 1e15:
        return f"{value:.6g}"
    return f"{value:,.6f}".rstrip("0").rstrip(".")


def figures_text(figures: Mapping[str, int | float]) -> str:
    """Write figures on one line, by name: `cost_usd=0.02 tokens=1,200`."""
    return escaped(" ".join(f"{name}={number_text(value)}" for name, value in sorted(figures.items())))


# How much of a run was moved, for people.


def size_of_run(done: ExportedRun | ImportedRun | CopiedRun) -> str:
    """Write what a file or a copy holds, in brackets: checkpoints that no longer count go with a run."""
    behind = f", {done.left_behind} of them left behind" if done.left_behind else ""
    attempts, results = counted(done.attempts, "attempt"), counted(done.steps, "result")
    return f"({attempts}, {counted(done.checkpoints, 'checkpoint')}{behind}, {results})"
