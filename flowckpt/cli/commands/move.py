"""Moving runs between stores: `flowckpt export`, `import` and `copy`."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

import click

from flowckpt.cli.arguments import list_known_secrets, refuse_known_secrets
from flowckpt.cli.exit_codes import ExitCode, code_of_error
from flowckpt.cli.next_steps import command_line, show_resume_hint
from flowckpt.cli.notices import show_error, warn
from flowckpt.cli.options import Command, NewRunName, RunName, json_option, store_option
from flowckpt.cli.render.tables import size_text
from flowckpt.cli.render.terminal import (
    escape,
    escape_json,
    is_terminal,
    say,
    write,
    write_bytes,
    write_document,
    write_lines,
)
from flowckpt.cli.runs import (
    named_on_failure,
    open_chosen_store,
    open_run,
    read_latest,
    read_survey,
    resolve_run,
    run_async,
)
from flowckpt.cli.settings import StoreChoice, choose_store
from flowckpt.core.codec import Json
from flowckpt.core.codec.checkpoints import export_text
from flowckpt.core.records import CheckpointData
from flowckpt.core.records.listing import MANAGED
from flowckpt.core.system.ids import new_run_id
from flowckpt.core.system.numbers import pluralize
from flowckpt.core.system.streams import write_whole
from flowckpt.engine.history.checkpoints import find_checkpoint
from flowckpt.errors import CheckpointCorruptedError, CheckpointStorageError, FlowckptError, StoreSpecError
from flowckpt.maintenance import (
    CopiedRun,
    ExportedRun,
    ImportedRun,
    ImportLimits,
    copy_run,
    export_documents,
    export_run,
    import_run,
)
from flowckpt.maintenance.export import document_name, refuse_other, stream_run
from flowckpt.stores.base import Finding, StoreBase
from flowckpt.stores.file import FileCheckpointStore
from flowckpt.stores.open import hide_passwords


@click.command("export", cls=Command)
@click.argument("run", type=RunName())
@click.option("--checkpoint", metavar="ID", help="Only this checkpoint, by its id or sequence, as one JSON document.")
@click.option(
    "-o",
    "--output",
    metavar="FILE|DIR",
    help="A file for the whole run (compressed if it ends in .gz; - is standard output), or a directory (existing, or "
    "ending in /) for one JSON document per checkpoint.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@store_option
def export_command(run: str, checkpoint: str | None, output: str | None, force: bool, store: StoreChoice) -> None:
    """Write a run to a file that can be kept, read, and resumed elsewhere after 'flowckpt import'.

    -o FILE writes the whole run: every attempt and checkpoint, large values, and its target. Without -o, the command
    prints the newest checkpoint as one JSON document, for people and for git. The store is only read.
    If the store has a key, the file is signed with it. The file is never encrypted. An existing file is replaced only with
    --force; in a directory, identical documents stay.

    Examples:
      flowckpt export nightly -o nightly.run.gz
      flowckpt export nightly -o - | ssh other flowckpt import -
      flowckpt export nightly -o history/
      flowckpt export nightly | jq .step_results
      flowckpt export nightly --checkpoint fetch -o fetch.json
    """
    checkpoints, run = open_run(store, run, runs_nothing=True)
    is_directory = output is not None and output != "-" and (output.endswith("/") or Path(output).is_dir())
    with named_on_failure(output):
        try:
            if checkpoint is None and output is not None:
                _write_run(checkpoints, run, output, is_directory=is_directory, is_forced=force)
            else:
                data = read_latest(checkpoints, run)
                if checkpoint is not None:
                    data = run_async(find_checkpoint(checkpoints, run, data, checkpoint))
                _export_document(data, run, output, is_directory=is_directory, is_forced=force)
        except FileExistsError as error:
            if is_directory and Path(str(output)).is_file():
                raise click.UsageError(f"{output} cannot be written: {Path(str(output))} is a file") from error
            raise click.UsageError(f"{error.filename} already exists; --force replaces it") from error
    if isinstance(checkpoints, FileCheckpointStore) and checkpoints.is_encrypting:
        warn("the store is encrypted, but the export is not: anyone who can read the file can read the whole run")


def _write_run(store: StoreBase, run: str, output: str, *, is_directory: bool, is_forced: bool) -> None:
    if is_directory:
        done = run_async(export_documents(store, run, output, is_forced=is_forced))
        what = f"{pluralize(done.checkpoints, 'checkpoint')} of {escape(run)}, one document each,"
    elif output == "-":
        done = run_async(stream_run(store, run, _write_escaped if is_terminal() else write_bytes))
        _warn_about_export(store, done)
        return
    else:
        if (Path(output).is_file() or Path(output).is_symlink()) and not is_forced:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), output)
        done = run_async(export_run(store, run, output))
        what = f"{escape(run)} {size_text(done)}"
    _warn_about_export(store, done, is_signable=not is_directory)
    signed = f", signed with key {done.signed_by}" if done.signed_by else ""
    say(f"wrote {what} to {escape(output)}{signed}")


def _warn_about_export(store: StoreBase, done: ExportedRun, *, is_signable: bool = True) -> None:
    if is_signable and store.keys is not None and not done.signed_by:
        warn(f"the file is not signed, because run {done.workflow_id} comes from an unsigned import")
    if done.owner is not None:
        warn(
            f"run {done.workflow_id} is running in {done.owner}: this is the run as of its checkpoint "
            f"{done.checkpoint_id}. Do not resume both"
        )


def _write_escaped(line: bytes) -> None:
    write(escape_json(line.decode()))


def _export_document(
    data: CheckpointData, run: str, output: str | None, *, is_directory: bool, is_forced: bool
) -> None:
    text = export_text(data)
    if output is None or output == "-":
        write(escape_json(text) if is_terminal() else text)
        return
    place = Path(output) / document_name(data) if is_directory else Path(output)
    if is_directory:
        place.parent.mkdir(parents=True, exist_ok=True)
    if not is_forced:
        refuse_other(place, text.encode())
    run_async(write_whole(place, [text.encode()], is_compressed=place.suffix == ".gz"))
    say(f"wrote checkpoint {escape(data.checkpoint_id)} of {escape(run)} to {escape(str(place))}")


_DEFAULT = ImportLimits()
_COUNT = click.IntRange(min=1)


@click.command("import", cls=Command)
@click.argument("file")
@click.option(
    "--id",
    "new_id",
    type=NewRunName(),
    metavar="NEW",
    help="The id of the imported run. Default: the id in the file, or a new ULID for a checkpoint.",
)
@click.option("--max-bytes", type=_COUNT, default=_DEFAULT.max_bytes, help="Refuse a larger file (uncompressed size).")
@click.option("--max-value-bytes", type=_COUNT, default=_DEFAULT.max_value_bytes, help="Refuse a longer line.")
@click.option("--max-records", type=_COUNT, default=_DEFAULT.max_records, help="Refuse more lines.")
@click.option("--max-attempts", type=_COUNT, default=_DEFAULT.max_attempts, help="Refuse higher attempts.")
@click.option(
    "--max-ratio", type=_COUNT, default=_DEFAULT.max_ratio, help="Refuse a file with a higher compression ratio."
)
@json_option
@store_option
def import_command(  # noqa: PLR0913, PLR0917 - one parameter for each option
    file: str,
    new_id: str | None,
    max_bytes: int,
    max_value_bytes: int,
    max_records: int,
    max_attempts: int,
    max_ratio: int,
    as_json: bool,
    store: StoreChoice,
) -> None:
    """Import a file of 'flowckpt export': a whole run, or one checkpoint, from which a new run continues.

    The whole file is verified before anything is written, and the run appears completely or not at all; after a kill,
    repeat the command. An identical run in the store stays unchanged. The command runs nothing: flowckpt resume
    continues the run.

    Examples:
      flowckpt import nightly.run.gz
      flowckpt import nightly.run --id nightly-again --store sqlite:runs.db
      flowckpt export nightly -o - | flowckpt import - --store sqlite:runs.db
      flowckpt import fetch.json
    """
    refuse_known_secrets(id=new_id)
    limits = ImportLimits(
        max_bytes=max_bytes,
        max_value_bytes=max_value_bytes,
        max_records=max_records,
        max_attempts=max_attempts,
        max_ratio=max_ratio,
    )
    checkpoints = open_chosen_store(store, runs_nothing=True)
    done = run_async(import_run(checkpoints, file, workflow_id=new_id, limits=limits, secrets=list_known_secrets()))
    if as_json:
        write_document(done.to_document())
        return
    write_lines(_import_lines(done))
    if done.is_new and done.source_id:
        warn(
            "the run is unchanged in the store that it comes from. Resume only one of the two: both would run the same steps"
        )
    if done.status != "completed" and done.workflow_name != MANAGED:
        show_resume_hint(done.workflow_id, store, more="--accept-import")


def _import_lines(done: ImportedRun) -> list[str]:
    name = escape(done.workflow_id)
    headline = f"imported {name}" if done.is_new else f"{name} already exists and is identical: nothing to do"
    lines = [
        f"{headline} {size_text(done)}",
        f"workflow: {escape(done.workflow_name)}, {escape(done.status)}",
    ]
    if done.workflow_name != MANAGED:
        lines.append("held: nothing runs until a person resumes it with --accept-import")
        if done.is_new:
            lines.append(
                f"its approvals and signals must be given again: {done.unauthenticated}"
                if done.unauthenticated
                else "its approvals and signals count: the file is signed with a key of this store"
            )
    place = done.target.get("file") or done.target.get("module") or ""
    if place:
        is_missing = "file" in done.target and not Path(place).is_file()
        lines.append(
            f"target: {escape(place)}:{escape(done.target.get('name', ''))}"
            + (" (not on this machine: resume with --target)" if is_missing else "")
        )
    elif done.workflow_name != MANAGED:
        lines.append("target: not recorded: resume with --target")
    return lines


@click.command("copy", cls=Command)
@click.argument("runs", metavar="RUN…", type=RunName(), nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Every run of the store.")
@click.option(
    "--to", metavar="STORE", required=True, help="The store to copy to, such as sqlite:FILE or file:DIRECTORY."
)
@click.option("--id", "new_id", type=NewRunName(), metavar="NEW", help="The id of the copy; only with one run.")
@json_option
@store_option
def copy_command(
    runs: tuple[str, ...], is_all: bool, to: str, new_id: str | None, as_json: bool, store: StoreChoice
) -> int:
    """Copy runs to another store: every attempt, checkpoint and large value, unchanged.

    The source is only read; the other store and its directories are created if missing. Each run appears there completely
    or not at all, and an identical run is skipped; so after a kill, repeat the command. A run that cannot be read or
    copied is reported and does not stop the others; the exit code is that of the first failure, and 12 if --all finds no
    store. Runs of a store with a key cannot be copied to a database.

    Examples:
      flowckpt copy nightly --to sqlite:runs.db
      flowckpt copy nightly weekly --to postgresql://db.example/runs
      flowckpt copy --all --to file:/backup/flowckpt
    """
    if bool(runs) is is_all:
        raise click.UsageError("name the runs to copy: their ids, or --all")
    if new_id is not None and len(runs) != 1:
        raise click.UsageError("--id needs exactly one run")
    refuse_known_secrets(id=new_id)
    source, place = open_chosen_store(store, runs_nothing=True), choose_store(to)
    target = _open_target(place, store)
    run_ids, code = list(dict.fromkeys(runs)), ExitCode.DONE
    failures: dict[str, FlowckptError] = {}
    if is_all:
        survey = read_survey(source)
        run_ids = [info.workflow_id for info in reversed(survey.runs)]
        failures = {each.workflow_id: _find_error(source, each) for each in survey.unreadable}
        if not run_ids and not failures and not store.report_no_runs():
            code = ExitCode.NOT_FOUND
    if (fault := _find_fault(target, new_run_id())) is not None:  # that run is in no store: the fault is not one run's
        _show_fault(fault, place)
        return code_of_error(fault)
    documents: list[Json] = []
    first: FlowckptError | None = None
    for run in (*run_ids, *failures):
        try:
            if run in failures:
                raise failures[run]
            run = resolve_run(source, run) if runs else run  # noqa: PLW2901
            done = run_async(copy_run(source, target, run, new_id=new_id))
        except FlowckptError as error:
            first = first or error
            documents.append({"source_id": run, "error": {"type": type(error).__name__, "message": str(error)}})
            if _find_fault(target, new_id or run) is None:
                show_error(error)
            else:
                _show_fault(error, place)
            continue
        documents.append({**done.to_document(), "error": None})
        _report_copy(done, as_json=as_json)
    if as_json:
        write_document(documents)
    return code if first is None else code_of_error(first)


def _find_error(store: StoreBase, finding: Finding) -> FlowckptError:
    """Return why a run is unreadable: the error of reading it, or, if its id is unknown, that of the finding."""
    if (error := _find_fault(store, finding.workflow_id)) is not None:
        return error
    if finding.severity == "corrupt":
        return CheckpointCorruptedError(finding.workflow_id, location=store.spec, detail=finding.detail)
    return CheckpointStorageError(f"run {finding.workflow_id!r} cannot be read: {finding.detail}", operation="read")


def _find_fault(store: StoreBase, run: str) -> FlowckptError | None:
    """Return the error of looking up a run in a store, or None."""
    try:
        run_async(store.load_latest(run))
    except FlowckptError as error:
        return error
    return None


def _show_fault(error: FlowckptError, store: StoreChoice) -> None:
    say(f"flowckpt: the failure is in {escape(store.shown)}, the store to copy to; the source is unchanged")
    show_error(error)


def _open_target(choice: StoreChoice, source: StoreChoice) -> StoreBase:
    """Open the store to copy to; refuse a store without keys if the source has one."""
    try:
        return open_chosen_store(choice, runs_nothing=True)
    except StoreSpecError as error:
        if choice.key_file is None:
            raise
        raise StoreSpecError(
            f"{error.message}; the copy would be unprotected, so nothing was copied",
            spec=error.spec,
            remedy=f"To have it there in plain text: {command_line('export', source, 'RUN')} -o FILE with the key file, "
            f"and then, without one, flowckpt import --store {shlex.quote(hide_passwords(choice.given or choice.spec))} FILE. The exported file is "
            "plain text, too: keep it where others cannot read it, and remove it afterwards.",
        ) from error


def _report_copy(done: CopiedRun, *, as_json: bool) -> None:
    name = escape(done.workflow_id)
    if not as_json:
        message = f"copied {name}" if done.is_new else f"{name} already exists and is identical"
        write(f"{message} {size_text(done)}\n")
    if done.owner is not None:
        warn(
            f"run {done.source_id} is running in {done.owner}: the copy is as of its last checkpoint. Do not resume both"
        )
