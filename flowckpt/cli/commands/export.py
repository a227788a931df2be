"""`flowckpt export`."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import click

from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.notices import warn
from flowckpt.cli.options import Command, RunName, store_option
from flowckpt.cli.render.files import MISNAMED
from flowckpt.cli.render.tables import size_of_run
from flowckpt.cli.render.terminal import escaped, escaped_json, is_terminal, say, write, write_bytes
from flowckpt.cli.runs import chosen_run, latest_of, opened_store, waited
from flowckpt.core.codec.checkpoints import export_text
from flowckpt.core.records import CheckpointData
from flowckpt.core.system.numbers import counted
from flowckpt.core.system.streams import write_whole
from flowckpt.engine.history.checkpoints import any_checkpoint
from flowckpt.maintenance import ExportedRun, export_documents, export_run
from flowckpt.maintenance.portable.export import document_name, refuse_other, stream_run
from flowckpt.stores.base import StoreBase
from flowckpt.stores.file import FileCheckpointStore

_EXAMPLE = """\b
Examples:
  flowckpt export nightly -o nightly.run.gz
  flowckpt export nightly -o - | ssh other flowckpt import -
  flowckpt export nightly -o history/
  flowckpt export nightly | jq .step_results
  flowckpt export nightly --checkpoint fetch -o fetch.json"""


@click.command("export", cls=Command, epilog=_EXAMPLE)
@click.argument("run", type=RunName())
@click.option("--checkpoint", metavar="ID", help="Only this checkpoint, by its id or sequence, as one JSON document.")
@click.option(
    "-o",
    "--output",
    metavar="FILE|DIR",
    help="A file for the whole run (compressed where it ends in .gz; - is standard output), or a directory (existing, or "
    "ending in /) for one JSON document a checkpoint.",
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@store_option
def command(run: str, checkpoint: str | None, output: str | None, force: bool, store: str | None) -> int:
    """Write a run so that it can be kept, read and resumed elsewhere; 'flowckpt import' takes it in again.

    -o FILE writes the whole run: every attempt and checkpoint, large values, and the place of its workflow. Without
    -o the command prints the newest checkpoint as one JSON document, for people and for git. The store is only read.
    If the store has a key, that file is signed with it. The file is never encrypted. An existing file is replaced only with --force; in a directory, equal documents stay.
    """
    checkpoints = opened_store(store, runs_nothing=True)
    run = chosen_run(checkpoints, run)
    is_directory = output is not None and output != "-" and (output.endswith("/") or Path(output).is_dir())
    try:
        if checkpoint is None and output is not None:
            _write_run(checkpoints, run, output, is_directory=is_directory, is_forced=force)
        else:
            data = latest_of(checkpoints, run)
            if checkpoint is not None:
                data = waited(any_checkpoint(checkpoints, run, data, checkpoint))
            _write_document(data, run, output, is_directory=is_directory, is_forced=force)
    except FileExistsError as error:
        if is_directory and Path(str(output)).is_file():
            raise click.UsageError(f"{output} cannot be written: {Path(str(output))} is a file") from error
        raise click.UsageError(
            f"{error.filename} is there already, and was not touched; --force replaces it"
        ) from error
    except OSError as error:
        said = f"{output} cannot be written: {error.strerror or error}"
        if error.errno in MISNAMED:
            raise click.UsageError(said) from error
        say(f"flowckpt: {escaped(said)}")
        return ExitCode.OUTPUT_FAILED
    if isinstance(checkpoints, FileCheckpointStore) and checkpoints.is_encrypting:
        warn(
            "the store is encrypted, and what was exported is not: anyone who can read it reads all that the run holds"
        )
    return ExitCode.DONE


def _write_run(store: StoreBase, run: str, output: str, *, is_directory: bool, is_forced: bool) -> None:
    if is_directory:
        done = waited(export_documents(store, run, output, is_forced=is_forced))
        what = f"{counted(done.checkpoints, 'checkpoint')} of {escaped(run)}, one document each,"
    elif output == "-":
        done = waited(stream_run(store, run, _shown if is_terminal() else write_bytes))
        _warn(store, done)
        return
    else:
        if (Path(output).is_file() or Path(output).is_symlink()) and not is_forced:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), output)
        done = waited(export_run(store, run, output))
        what = f"{escaped(run)} {size_of_run(done)}"
    _warn(store, done, is_signable=not is_directory)
    signed = f", signed with key {done.signed_by}" if done.signed_by else ""
    say(f"wrote {what} to {escaped(output)}{signed}")


def _warn(store: StoreBase, done: ExportedRun, *, is_signable: bool = True) -> None:
    if is_signable and store.keys is not None and not done.signed_by:
        warn(f"the file is not signed: an import that was not signed brought run {done.workflow_id} in")
    if done.owner is not None:
        warn(
            f"run {done.workflow_id} is running in {done.owner}: this is the run as of its checkpoint "
            f"{done.checkpoint_id}. Do not resume both"
        )


def _shown(line: bytes) -> None:
    write(escaped_json(line.decode()))


def _write_document(data: CheckpointData, run: str, output: str | None, *, is_directory: bool, is_forced: bool) -> None:
    text = export_text(data)
    if output is None or output == "-":
        write(escaped_json(text) if is_terminal() else text)
        return
    place = Path(output) / document_name(data) if is_directory else Path(output)
    if is_directory:
        place.parent.mkdir(parents=True, exist_ok=True)
    if not is_forced:
        refuse_other(place, text.encode())
    waited(write_whole(place, [text.encode()], is_compressed=place.suffix == ".gz"))
    say(f"wrote checkpoint {escaped(data.checkpoint_id)} of {escaped(run)} to {escaped(str(place))}")
