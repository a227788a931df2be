"""`flowckpt store trust`."""

from __future__ import annotations

import sys

import click

from flowckpt.cli.next_steps import command_line
from flowckpt.cli.notices import warn
from flowckpt.cli.options import Command, RunName, store_option
from flowckpt.cli.render.terminal import escaped, say, write
from flowckpt.cli.runs import chosen_run, latest_of, waited
from flowckpt.cli.settings import choose_store
from flowckpt.core.system.numbers import counted
from flowckpt.stores.file import FileCheckpointStore
from flowckpt.stores.file.store_keys import TrustReport
from flowckpt.stores.open import open_store

_MOST = 10

_EXAMPLE = """\b
Examples:
  flowckpt store trust nightly
  flowckpt store trust nightly --yes"""


@click.command("trust", cls=Command, epilog=_EXAMPLE)
@click.argument("run", type=RunName())
@click.option("--yes", is_flag=True, help="Do not ask. Without a terminal, the command does not ask either.")
@store_option
def command(run: str, yes: bool, store: str | None) -> None:
    """Accept a run whose records are not authenticated by the key.

    Use it for a run that began before the store had a key, and for a run whose end cannot be proved, for example
    after the restore of a backup without its head- files. The command adds a segment, sealed with the key, that holds
    the digest of the whole run. Sealed data that does not open is still refused. The output lists what was trusted,
    what was verified, and what is lost.
    """
    choice = choose_store(store)
    checkpoints = open_store(choice.spec, key_file=choice.key_file, compression=choice.compression, trust=True)
    if not isinstance(checkpoints, FileCheckpointStore) or choice.key_file is None:
        raise click.UsageError("trust is for a file store with a key: name the key file by FLOWCKPT_KEY_FILE")
    run = chosen_run(checkpoints, run)
    latest = latest_of(checkpoints, run)
    if not yes and sys.stdin is not None and sys.stdin.isatty():
        for line in _said_of(checkpoints.runs.trust_report(run), "would be"):
            say(line)
        what = f"{latest.status.value}, {counted(len(latest.step_results), 'step')}, last saved at {latest.saved_at}"
        asked = f"Take run {escaped(run)} ({escaped(what)}) for true as it is?"
        if not click.confirm(asked, default=False, err=True):
            say("flowckpt: nothing was changed")
            return
    found = waited(checkpoints.trust(run))
    counts = f"{found.checkpoints} checkpoints, {found.results} results"
    if found.is_proved:
        write(f"{escaped(run)} proves itself with the key ({counts}): nothing was to be taken on trust\n")
    else:
        write(f"trusted {escaped(run)} as it is now ({counts})\n")
    write("".join(f"{line}\n" for line in _said_of(found, "was")))
    if found.message:
        warn(f"its messages stay refused: {found.message}. Remove the file, and send the message again")
    if others := [each for each in checkpoints.runs.plain_runs() if each != run]:
        shown = ", ".join(map(escaped, others[:_MOST])) + (f" and {len(others) - _MOST} more" if others[_MOST:] else "")
        say(f"Still refused, as each was written without a key: {shown}")
        say(f"Look at each, and if it is what it should be: {command_line('store trust', choice, others[0])}")


def _said_of(found: TrustReport, verb: str) -> list[str]:
    lines = []
    if found.plain and not found.is_proved:
        lines.append(f"  {verb} taken on trust, written without a key: {', '.join(found.plain)}")
    if not found.is_proved:
        lines.append(f"  lost: {found.lost or 'nothing that the record tells of'}")
    elif found.plain:
        lines.append(f"  held, and proved by what a sealed one says of it: {', '.join(found.plain)}")
    if found.sealed:
        lines.append(f"  held, and sealed with the key: {', '.join(found.sealed)}")
    return [escaped(line) for line in lines]
