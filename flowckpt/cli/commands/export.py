"""`flowckpt export`."""

from __future__ import annotations

from pathlib import Path

import click

from flowckpt.cli.exported_file import write_file
from flowckpt.cli.options import RunName, store_option
from flowckpt.cli.output import is_terminal, say, write
from flowckpt.cli.stored_runs import latest_of, opened_store, waited
from flowckpt.cli.terminal_text import escaped, escaped_json
from flowckpt.codec.checkpoints import export_text

_EXAMPLE = """\b
Examples:
  flowckpt export nightly | jq .step_results
  flowckpt export nightly --checkpoint fetch -o fetch.json"""


@click.command("export", epilog=_EXAMPLE)
@click.argument("run", type=RunName())
@click.option("--checkpoint", metavar="ID", help="The newest checkpoint of this id; the latest one where not given.")
@click.option("-o", "--output", "file", type=click.Path(dir_okay=False), help="Write to this file; - is the default.")
@store_option
def command(run: str, checkpoint: str | None, file: str | None, store: str | None) -> None:
    """Write a checkpoint as one JSON document: the whole history up to it, readable by people and by git."""
    checkpoints = opened_store(store)
    data = latest_of(checkpoints, run) if checkpoint is None else waited(checkpoints.load(run, checkpoint))
    text = export_text(data)
    if file is None or file == "-":
        write(escaped_json(text) if is_terminal() else text)
        return
    try:
        write_file(Path(file), text.encode())
    except OSError as error:
        raise click.UsageError(f"{file} cannot be written: {error.strerror}") from error
    say(f"wrote checkpoint {escaped(data.checkpoint_id)} of {escaped(run)} to {escaped(file)}")
