"""`flowckpt copy`."""

from __future__ import annotations

import shlex

import click

from flowckpt.cli.exit_codes import ExitCode, code_of_error
from flowckpt.cli.failures import show_error
from flowckpt.cli.notices import warn
from flowckpt.cli.options import RunName, json_option, store_option
from flowckpt.cli.output import keep_for_document, write
from flowckpt.cli.resume_hint import command_line
from flowckpt.cli.settings import StoreChoice, choose_store
from flowckpt.cli.stored_runs import listed_runs, opened_store, waited
from flowckpt.cli.terminal_text import escaped, json_text
from flowckpt.codec import Json
from flowckpt.errors import FlowckptError, StoreSpecError
from flowckpt.portable import CopiedRun, copy_run
from flowckpt.stores.base import CheckpointStore
from flowckpt.stores.opening import shown_spec

_EXAMPLE = """\b
Examples:
  flowckpt copy nightly --to sqlite:runs.db
  flowckpt copy nightly weekly --to postgresql://db.example/runs
  flowckpt copy --all --to file:/backup/flowckpt"""


@click.command("copy", epilog=_EXAMPLE)
@click.argument("runs", metavar="RUN…", type=RunName(), nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Every run of the store.")
@click.option("--to", metavar="STORE", required=True, help="The store to copy to, as sqlite:FILE or file:DIRECTORY.")
@click.option("--id", "new_id", metavar="NEW", help="The id that the copy is to have; for one run.")
@json_option
@store_option
def command(runs: tuple[str, ...], is_all: bool, to: str, new_id: str | None, as_json: bool, store: str | None) -> int:
    """Copy runs to another store: every attempt and checkpoint and all large values, as they are.

    The source is only read. Each run appears in the other store at once or not at all, and one that is there already,
    the very same, is passed over; so after a kill, do it again. A run that cannot be copied does not stop the others:
    it is told, and the exit code is that of the first. A database takes no runs of a store with a key.
    """
    if bool(runs) is is_all:
        raise click.UsageError("say which runs to copy: their ids, or --all")
    if new_id is not None and len(runs) != 1:
        raise click.UsageError("--id is for the copy of one run")
    if new_id is not None and (not new_id.strip() or not new_id.isprintable() or len(new_id) > 200):
        raise click.UsageError(f"--id must be 1 to 200 printable characters, got {new_id[:60]!r}")
    if as_json:
        keep_for_document()
    source, target = opened_store(store), _opened_target(to, choose_store(store))
    wanted = [info.workflow_id for info in reversed(listed_runs(source))] if is_all else list(dict.fromkeys(runs))
    documents: list[Json] = []
    first: FlowckptError | None = None
    for run in wanted:
        try:
            done = waited(copy_run(source, target, run, new_id=new_id))
        except FlowckptError as error:
            first = first or error
            documents.append({"source_id": run, "error": {"type": type(error).__name__, "message": str(error)}})
            show_error(error)
            continue
        documents.append({**done.to_document(), "error": None})
        _say(done, as_json=as_json)
    if as_json:
        write(f"{json_text(documents, indent=2)}\n")
    return ExitCode.DONE if first is None else code_of_error(first)


def _opened_target(to: str, source: StoreChoice) -> CheckpointStore:
    """Open the store that is copied to; one that cannot keep what the key protects is refused, and the way is named."""
    choice = choose_store(to)
    try:
        return opened_store(choice.spec)
    except StoreSpecError as error:
        if choice.key_file is None:
            raise
        raise StoreSpecError(
            f"{error.message}; a copy would not be protected any more, so nothing was copied",
            spec=error.spec,
            remedy=f"To have it there in plain text: {command_line('export', source, 'RUN')} -o FILE with the key file, "
            f"and then, without one, flowckpt import FILE --store {shlex.quote(shown_spec(to))}. The exported file is plain text, too: keep it "
            "where nobody else reads it, and remove it afterwards.",
        ) from error


def _say(done: CopiedRun, *, as_json: bool) -> None:
    name = escaped(done.workflow_id)
    if not as_json:
        said = f"copied {name}" if done.is_new else f"{name} is there already, the very same"
        write(f"{said} ({done.attempts} attempts, {done.checkpoints} checkpoints, {done.steps} results)\n")
    if done.owner is not None:
        warn(
            f"run {done.source_id} goes on, by {done.owner}: the copy is as of its last checkpoint. Do not resume both"
        )
