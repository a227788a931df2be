"""`flowckpt diff`."""

from __future__ import annotations

import click

from flowckpt.cli.options import Command, RunName, color_option, json_option, store_option
from flowckpt.cli.render.diff import diff_document, diff_text
from flowckpt.cli.render.terminal import is_terminal, json_text, write
from flowckpt.cli.runs import opened_store
from flowckpt.cli.settings import color_allowed
from flowckpt.cli.stored_run import named_checkpoint
from flowckpt.maintenance.diff import compare

_EXAMPLE = """\b
Examples:
  flowckpt diff monday tuesday
  flowckpt diff nightly@clean nightly
  flowckpt diff nightly what-if --exit-code --json"""

_DIFFERENT = 1


@click.command("diff", cls=Command, epilog=_EXAMPLE)
@click.argument("old", metavar="RUN[@CHECKPOINT]", type=RunName())
@click.argument("new", metavar="RUN[@CHECKPOINT]", type=RunName())
@click.option("--exit-code", "as_code", is_flag=True, help="Exit with 1 where anything differs, as git diff does.")
@json_option
@store_option
@color_option
def command(old: str, new: str, as_code: bool, as_json: bool, store: str | None, no_color: bool) -> int:
    """Show what differs: steps, their outputs leaf by leaf, inputs, snapshot, evidence, status.

    CHECKPOINT is an id, of which the newest counts, or a sequence; by default the newest checkpoint of the run. Times
    and durations are not compared. Exits with 0, also if something differs, unless --exit-code is given.
    """
    checkpoints = opened_store(store, runs_nothing=True)
    sides = named_checkpoint(checkpoints, old), named_checkpoint(checkpoints, new)
    found = compare(sides[0].data, sides[1].data)
    if as_json:
        write(f"{json_text(diff_document(*sides, found), indent=2)}\n")
    else:
        is_colored = is_terminal() and not no_color and color_allowed()
        write(diff_text(*sides, found, is_colored=is_colored))
    return _DIFFERENT if as_code and not found.is_equal else 0
