"""`flowckpt store clear`."""

from __future__ import annotations

import sys

import click

from flowckpt.cli.notices import warn
from flowckpt.cli.options import Command, RunName, store_option
from flowckpt.cli.render.terminal import escaped, say, write
from flowckpt.cli.runs import chosen_run, latest_of, opened_store, waited
from flowckpt.core.system.numbers import counted
from flowckpt.errors import CheckpointCorruptedError, UnauthenticatedRecordError, WrongKeyError

_EXAMPLE = """\b
Examples:
  flowckpt store clear nightly
  flowckpt store clear nightly --yes"""


@click.command("clear", cls=Command, epilog=_EXAMPLE)
@click.argument("run", type=RunName())
@click.option("--yes", is_flag=True, help="Do not ask. Without a terminal, the command does not ask either.")
@store_option
def command(run: str, yes: bool, store: str | None) -> None:
    """Remove a run with all its checkpoints. It cannot be brought back. A store with a key needs the key for it."""
    checkpoints = opened_store(store, runs_nothing=True)
    run = chosen_run(checkpoints, run)
    what = "its record is damaged"
    try:
        latest = latest_of(checkpoints, run)
        what = f"{latest.status.value}, {counted(len(latest.step_results), 'step')}"
    except CheckpointCorruptedError as error:  # what is damaged may be removed all the same
        warn(error.message)
    except (
        WrongKeyError,
        UnauthenticatedRecordError,
    ) as error:  # likewise: a key of an old run may be lost for good
        if isinstance(error, WrongKeyError) and error.is_whole_store:
            raise
        what = "its record cannot be read"
        warn(error.message)
    if not yes and sys.stdin is not None and sys.stdin.isatty():
        asked = f"Remove run {escaped(run)} ({what}) with all its checkpoints?"
        if not click.confirm(asked, default=False, err=True):
            say("flowckpt: nothing was removed")
            return
    waited(checkpoints.clear(run))
    write(f"removed {escaped(run)}\n")
