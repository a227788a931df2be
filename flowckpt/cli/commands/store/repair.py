"""`flowckpt store repair`."""

from __future__ import annotations

import contextlib

import click

from flowckpt.cli.next_steps import command_line
from flowckpt.cli.options import Command, RunName, json_option, store_option
from flowckpt.cli.render.terminal import escaped, json_text, say, write
from flowckpt.cli.runs import chosen_run, opened_store, waited
from flowckpt.cli.settings import choose_store
from flowckpt.core.system.numbers import counted
from flowckpt.errors import CheckpointNotFoundError

_EXAMPLE = """\b
Examples:
  flowckpt store repair nightly
  flowckpt store repair nightly --json"""


@click.command("repair", cls=Command, epilog=_EXAMPLE)
@click.argument("run", type=RunName())
@json_option
@store_option
def command(run: str, as_json: bool, store: str | None) -> None:
    """Set the damaged part of a run aside, and keep everything that is intact.

    The run as it was is kept beside it: in a directory or bucket under damaged/, in a database in tables named
    damaged_…. The command prints where, what is lost, and the checkpoint from which the run resumes. An intact run is
    not changed.
    """
    checkpoints, choice = opened_store(store, runs_nothing=True), choose_store(store)
    with contextlib.suppress(CheckpointNotFoundError):  # an interrupted repair has set it aside
        run = chosen_run(checkpoints, run)
    done = waited(checkpoints.repair(run))
    if as_json:
        lost = [{"place": each.place, "bytes": each.size, "detail": each.detail} for each in done.lost]
        kept = {"checkpoints": done.checkpoints, "steps": done.steps, "newest": done.newest}
        write(f"{json_text({'workflow_id': run, 'aside': done.aside or None, 'lost': lost, **kept}, indent=2)}\n")
        return
    left = f"{counted(done.checkpoints, 'checkpoint')}, {counted(done.steps, 'result')}, the newest is {done.newest!r}"
    if not done.is_changed:
        write(escaped(f"{run} is intact ({left}): nothing was changed") + "\n")
        return
    write("".join(escaped(f"lost: {each}") + "\n" for each in done.lost))
    write(escaped(f"set aside: the run as it was, in {done.aside}") + "\n")
    write(escaped(f"repaired: {run} ({left})") + "\n")
    say(f"See what a resume would run: {command_line('plan', choice, run)}")
