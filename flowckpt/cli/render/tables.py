"""Tables (drawn by rich on a terminal, aligned columns elsewhere), times and sizes as text, and the tree of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import attrs
import click

from flowckpt.cli.render.terminal import escape, is_terminal, write
from flowckpt.cli.settings import is_color_allowed
from flowckpt.core.records import StepResult
from flowckpt.core.system.numbers import number_text, pluralize
from flowckpt.engine.rules.paths import group_nested

if TYPE_CHECKING:
    from flowckpt.maintenance import CopiedRun, ExportedRun, ImportedRun


def draws_colors() -> bool:
    """Return whether standard output is a terminal and colors are allowed."""
    return is_terminal() and is_color_allowed()


def show_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, wrapped: Collection[str]) -> None:
    """Write a table to standard output.

    Args:
        header: the names of the columns.
        rows: the cells; users' text is escaped here.
        wrapped: the columns that may take several lines on a narrow terminal.
    """
    safe = [[escape(cell) for cell in row] for row in rows]
    if draws_colors():
        write(_draw_table(header, safe, wrapped))
    else:
        write(_align_table([list(header), *safe]))


def _draw_table(header: Sequence[str], rows: Sequence[Sequence[str]], wrapped: Collection[str]) -> str:
    """Return the table drawn by rich, with colours, as wide as the terminal, without empty columns."""
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs rich
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(highlight=False, markup=False, emoji=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    columns = [index for index in range(len(header)) if any(row[index] for row in rows)]
    for name in (header[index] for index in columns):
        table.add_column(name, overflow="fold", no_wrap=name not in wrapped, min_width=len(name))
    for row in rows:
        cells = [row[index] for index in columns]
        table.add_row(*[Text(cell, style=STATUS_COLORS.get(cell, "")) for cell in cells])
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def _align_table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows
    )


STATUS_COLORS = {
    "completed": "green",
    "failed": "red",
    "crashed": "red",
    "cancelled": "yellow",
    "suspended": "cyan",
    "running": "blue",
}


def status_text(status: str) -> str:
    """Return a status for standard output, in its colour if colours are allowed."""
    return click.style(status, fg=STATUS_COLORS.get(status)) if draws_colors() else status


def duration_text(milliseconds: float) -> str:
    """Return a duration as text: `12 ms`, `5.32 s`, `3 min 05 s`, `2 h 05 min`."""
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
    """Return a past time relative to now: `just now`, `5 min ago`, `3 h ago`, `12 days ago`.

    Args:
        moment: the time, aware.
        now: the current time; that of the machine by default.
    """
    seconds = int(((now or datetime.now(UTC)) - moment).total_seconds())
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length or (length < 86_400 and seconds >= length):
            return f"{seconds // length} {unit} ago"
    return "just now" if seconds < 5 else f"{seconds} s ago"


def moment_text(moment: datetime, *, is_short: bool = False) -> str:
    """Return a time in the local time zone: `2026-11-20 15:30:00`, or short, `11-20 15:30`.

    Args:
        moment: the time, aware.
        is_short: whether to omit the year and the seconds.
    """
    here = moment.astimezone()
    return f"{here:%m-%d %H:%M}" if is_short else f"{here:%Y-%m-%d %H:%M:%S}"


def bytes_text(size: float) -> str:
    """Return a number of bytes as text: `512 B`, `1.5 kB`, `23 MB`."""
    number, units = float(max(size, 0)), ["B", "kB", "MB", "GB", "TB"]
    while number >= 999.5 and len(units) > 1:
        number /= 1000
        units.pop(0)
    return f"{number:.0f} {units[0]}" if number >= 10 or units[0] == "B" else f"{number:.1f} {units[0]}"


def figures_text(figures: Mapping[str, int | float]) -> str:
    """Return figures on one line, by name: `cost_usd=0.02 tokens=1,200`."""
    return escape(" ".join(f"{name}={number_text(value)}" for name, value in sorted(figures.items())))


def size_text(done: ExportedRun | ImportedRun | CopiedRun) -> str:
    """Return the numbers of attempts, checkpoints and results of a moved run, in brackets."""
    behind = f", {done.left_behind} of them left behind" if done.left_behind else ""
    attempts, results = pluralize(done.attempts, "attempt"), pluralize(done.steps, "result")
    return f"({attempts}, {pluralize(done.checkpoints, 'checkpoint')}{behind}, {results})"


_MOST_SHOWN = 20
_MOST_OF_A_KIND = 5
T = TypeVar("T")


@attrs.frozen
class FoldedMembers:
    """Members of a large map or group that are counted on one line.

    Attributes:
        path: the map or group.
        kind: their kind.
        count: their number.
        is_rest: whether others of the kind are shown before them.
    """

    path: str
    kind: str
    count: int
    is_rest: bool


def fold_members(
    items: Sequence[T], path_of: Callable[[T], str], kind_of: Callable[[T], str], counted: str = ""
) -> Iterator[T | FoldedMembers]:
    """Yield items, with the members of large maps and groups counted by kind after the first few of each kind.

    Args:
        items: the items.
        path_of: returns the step of an item.
        kind_of: returns the kind of an item.
        counted: a kind of which no member is shown.
    """
    sizes = Counter(_find_map(path_of(each)) for each in items)
    totals = Counter((_find_map(path_of(each)), kind_of(each)) for each in items)
    seen: Counter[tuple[str, str]] = Counter()
    for each in items:
        path, kind = key = _find_map(path_of(each)), kind_of(each)
        seen[key] += 1
        most = 0 if kind == counted else _MOST_OF_A_KIND
        if not path or sizes[path] <= _MOST_SHOWN or seen[key] <= most:
            yield each
        elif seen[key] == most + 1:
            yield FoldedMembers(path, kind, totals[key] - most, bool(most))


def _find_map(path: str) -> str:
    """Return the outermost map or group that a step is a member of; empty if there is none."""
    return path.partition("/[")[0] if "/[" in path else ""


@attrs.frozen
class Branch:
    """A row of the tree.

    Attributes:
        path: the step; for counted members, their map or group.
        depth: its level of nesting.
        result: its result; None if it has not ended, and for counted members.
        members: how many members are counted instead of shown.
        outcome: how these members ended.
    """

    path: str
    depth: int
    result: StepResult | None = None
    members: int = 0
    outcome: str = "ok"


def step_tree(results: Sequence[StepResult], *, is_unfolded: bool) -> Iterator[Branch]:
    """Yield the rows of a tree, in the order of the steps.

    Args:
        results: the history.
        is_unfolded: whether to show each member of large maps and groups; otherwise only failed ones.
    """
    by_path = {result.path: result for result in results}
    nested = group_nested(by_path)
    tops = dict.fromkeys(path.partition("/")[0] for path in by_path)
    unseen = [(path, 0) for path in reversed(tops)]
    while unseen:
        path, depth = unseen.pop()
        yield Branch(path, depth, by_path.get(path))
        inner = nested.get(path, [])
        members = [each for each in inner if each[len(path) + 1 :].startswith("[")]
        if len(members) > _MOST_SHOWN and not is_unfolded:
            shown = [each for each in members if (found := by_path.get(each)) is None or not found.success]
            yield Branch(path, depth + 1, members=len(members) - len(shown))
            if len(shown) > _MOST_OF_A_KIND:
                yield Branch(path, depth + 1, members=len(shown) - _MOST_OF_A_KIND, outcome="more failed or not ended")
            inner = shown[:_MOST_OF_A_KIND]
        elif members:
            inner = sorted(inner, key=_member_key)
        unseen += [(each, depth + 1) for each in reversed(inner)]


def _member_key(path: str) -> tuple[int, str]:
    """Return a sort key that orders numbered members by their numbers."""
    place = path[path.rfind("/") + 1 :].strip("[]")
    return (int(place), "") if place.isdecimal() else (0, "")
