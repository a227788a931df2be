"""`flowckpt store stats`."""

from __future__ import annotations

import click

from flowckpt.cli.options import Command, RunName, color_option, json_option, store_option
from flowckpt.cli.render.statistics import figures_document, figures_lines, figures_tables
from flowckpt.cli.render.tables import show_table
from flowckpt.cli.render.terminal import escaped, json_text, write
from flowckpt.cli.runs import chosen_run, opened_store, tell_unreadable, waited
from flowckpt.stores.queries import store_statistics

_EXAMPLE = """\b
Examples:
  flowckpt store stats
  flowckpt store stats nightly
  flowckpt store stats --limit 30 --json"""


@click.command("stats", cls=Command, epilog=_EXAMPLE)
@click.argument("run", type=RunName(), required=False)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="How many of the newest days, the largest and the slowest.",
)
@json_option
@store_option
@color_option
def command(run: str | None, limit: int, as_json: bool, store: str | None, no_color: bool) -> int:
    """Show figures of the store, or of one run: checkpoints over time, sizes, evidence, failures, slowest steps.

    The figures include results that no longer count. Sizes exclude large values. A run whose record cannot be read is
    left out and named, and the exit code is 11.
    """
    checkpoints = opened_store(store, runs_nothing=True)
    run = None if run is None else chosen_run(checkpoints, run)
    figures = waited(store_statistics(checkpoints, run, limit=limit))
    if as_json:
        write(f"{json_text(figures_document(figures), indent=2)}\n")
        return tell_unreadable(figures.unreadable)
    write("".join(f"{escaped(line)}\n" for line in figures_lines(figures, run)))
    for header, rows, wrapped in figures_tables(figures, limit):
        write("\n")
        show_table(header, rows, wrapped=wrapped, no_color=no_color)
    return tell_unreadable(figures.unreadable)
