"""`flowckpt copy`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from flowckpt.cli.exit_codes import code_of_error
from flowckpt.cli.next_steps import command_line
from flowckpt.cli.notices import warn
from flowckpt.cli.options import Command, NewRunName, RunName, json_option, store_option
from flowckpt.cli.render.errors import show_error
from flowckpt.cli.render.tables import size_of_run
from flowckpt.cli.render.terminal import escaped, json_text, keep_for_document, say, write
from flowckpt.cli.runs import chosen_run, opened_store, surveyed_runs, tell_left_out, waited
from flowckpt.cli.settings import StoreChoice, choose_store
from flowckpt.core.codec import Json
from flowckpt.core.system.ids import new_run_id
from flowckpt.errors import FlowckptError, StoreSpecError
from flowckpt.maintenance import CopiedRun, copy_run
from flowckpt.stores.base import Finding, StoreBase
from flowckpt.stores.open import shown_spec

_EXAMPLE = """\b
Examples:
  flowckpt copy nightly --to sqlite:runs.db
  flowckpt copy nightly weekly --to postgresql://db.example/runs
  flowckpt copy --all --to file:/backup/flowckpt"""


@click.command("copy", cls=Command, epilog=_EXAMPLE)
@click.argument("runs", metavar="RUN…", type=RunName(), nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Every run of the store.")
@click.option("--to", metavar="STORE", required=True, help="The store to copy to, as sqlite:FILE or file:DIRECTORY.")
@click.option("--id", "new_id", type=NewRunName(), metavar="NEW", help="The id that the copy is to have; for one run.")
@json_option
@store_option
def command(runs: tuple[str, ...], is_all: bool, to: str, new_id: str | None, as_json: bool, store: str | None) -> int:
    """Copy runs to another store: every attempt and checkpoint and all large values, as they are.

    The source is only read; the other store and its directories are created if missing. Each run appears there at
    once or not at all, and an equal run that exists already is skipped; so after a kill, repeat the command. A run
    that cannot be copied is reported and does not stop the others; the exit code is that of the first one. A database
    takes no runs of a store with a key.
    """
    if bool(runs) is is_all:
        raise click.UsageError("say which runs to copy: their ids, or --all")
    if new_id is not None and len(runs) != 1:
        raise click.UsageError("--id is for the copy of one run")
    if as_json:
        keep_for_document()
    source, place = opened_store(store, runs_nothing=True), choose_store(to)
    target = _opened_target(to, choose_store(store))
    wanted = list(dict.fromkeys(runs))
    unreadable: Sequence[Finding] = ()
    if is_all:
        survey = surveyed_runs(source)
        wanted = [info.workflow_id for info in reversed(survey.runs)]
        unreadable = survey.unreadable
    if (fault := _fault(target, new_run_id())) is not None:  # that run is in no store: the fault is not one run's
        _show_fault(fault, place)
        return code_of_error(fault)
    documents: list[Json] = []
    first: FlowckptError | None = None
    for run in wanted:
        try:
            run = chosen_run(source, run) if runs else run  # noqa: PLW2901
            done = waited(copy_run(source, target, run, new_id=new_id))
        except FlowckptError as error:
            first = first or error
            documents.append({"source_id": run, "error": {"type": type(error).__name__, "message": str(error)}})
            if _fault(target, new_id or run) is None:
                show_error(error)
            else:
                _show_fault(error, place)
            continue
        documents.append({**done.to_document(), "error": None})
        _say(done, as_json=as_json)
    if as_json:
        write(f"{json_text(documents, indent=2)}\n")
    code = tell_left_out(unreadable)
    return code if first is None else code_of_error(first)


def _fault(store: StoreBase, run: str) -> FlowckptError | None:
    """Return why a store cannot tell whether it has a run."""
    try:
        waited(store.load_latest(run))
    except FlowckptError as error:
        return error
    return None


def _show_fault(error: FlowckptError, store: StoreChoice) -> None:
    say(f"flowckpt: the fault is in {escaped(store.shown)}, which is to be copied to; the source is as it was")
    show_error(error)


def _opened_target(to: str, source: StoreChoice) -> StoreBase:
    """Open the store that is copied to; one that cannot keep what the key protects is refused, and the way is named."""
    choice = choose_store(to)
    try:
        return opened_store(choice.spec, runs_nothing=True)
    except StoreSpecError as error:
        if choice.key_file is None:
            raise
        raise StoreSpecError(
            f"{error.message}; a copy would not be protected any more, so nothing was copied",
            spec=error.spec,
            remedy=f"To have it there in plain text: {command_line('export', source, 'RUN')} -o FILE with the key file, "
            f"and then, without one, flowckpt import --store {shlex.quote(shown_spec(to))} FILE. The exported file is "
            "plain text, too: keep it where others cannot read it, and remove it afterwards.",
        ) from error


def _say(done: CopiedRun, *, as_json: bool) -> None:
    name = escaped(done.workflow_id)
    if not as_json:
        said = f"copied {name}" if done.is_new else f"{name} is there already, the very same"
        write(f"{said} {size_of_run(done)}\n")
    if done.owner is not None:
        warn(
            f"run {done.source_id} is running in {done.owner}: the copy is as of its last checkpoint. Do not resume both"
        )
