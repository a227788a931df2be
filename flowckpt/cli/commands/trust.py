"""`flowckpt trust`."""

from __future__ import annotations

import sys

import click

from flowckpt.cli.options import RunName, store_option
from flowckpt.cli.output import say, write
from flowckpt.cli.settings import choose_store
from flowckpt.cli.stored_runs import latest_of, waited
from flowckpt.cli.terminal_text import escaped
from flowckpt.counted import counted
from flowckpt.stores.file import FileCheckpointStore
from flowckpt.stores.opening import open_store

_EXAMPLE = """\b
Examples:
  flowckpt trust nightly
  flowckpt trust nightly --yes"""


@click.command("trust", epilog=_EXAMPLE)
@click.argument("run", type=RunName())
@click.option("--yes", is_flag=True, help="Do not ask. Nobody is asked either where no terminal is there to answer.")
@store_option
def command(run: str, yes: bool, store: str | None) -> None:
    """Take a run for true and whole from now on, though it does not prove it with the key.

    For a run that was begun before there was a key, and for one whose end cannot be proved, as after the restore of a
    backup without its file head. A segment is added, sealed with the key, that holds the digest of all there is. What
    is sealed and does not open stays refused.
    """
    choice = choose_store(store)
    checkpoints = open_store(choice.spec, key_file=choice.key_file, compression=choice.compression, trust=True)
    if not isinstance(checkpoints, FileCheckpointStore) or choice.key_file is None:
        raise click.UsageError("trust is for a file store with a key: name the key file by FLOWCKPT_KEY_FILE")
    latest = latest_of(checkpoints, run)
    if not yes and sys.stdin is not None and sys.stdin.isatty():
        what = f"{latest.status.value}, {counted(len(latest.step_results), 'step')}, last saved at {latest.saved_at}"
        asked = f"Take run {escaped(run)} ({escaped(what)}) for true as it is?"
        if not click.confirm(asked, default=False, err=True):
            say("flowckpt: nothing was changed")
            return
    waited(checkpoints.trust(run))
    write(f"trusted {escaped(run)}\n")
