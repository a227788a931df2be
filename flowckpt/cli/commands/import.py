"""`flowckpt import`."""

from __future__ import annotations

from pathlib import Path

import click

from flowckpt.cli.next_steps import show_resume_hint
from flowckpt.cli.notices import warn
from flowckpt.cli.options import Command, NewRunName, json_option, store_option
from flowckpt.cli.render.tables import size_of_run
from flowckpt.cli.render.terminal import escaped, json_text, keep_for_document, write
from flowckpt.cli.runs import opened_store, waited
from flowckpt.cli.settings import choose_store
from flowckpt.core.records.listing import MANAGED
from flowckpt.maintenance import ImportedRun, ImportLimits, import_run

_EXAMPLE = """\b
Examples:
  flowckpt import nightly.run.gz
  flowckpt import nightly.run --id nightly-again --store sqlite:runs.db
  flowckpt export nightly -o - | flowckpt import - --store sqlite:runs.db
  flowckpt import fetch.json"""
_DEFAULT = ImportLimits()
_COUNT = click.IntRange(min=1)


@click.command("import", cls=Command, epilog=_EXAMPLE)
@click.argument("file")
@click.option(
    "--id",
    "new_id",
    type=NewRunName(),
    metavar="NEW",
    help="The run id here; by default that in the file, or a new ULID for a checkpoint.",
)
@click.option("--max-bytes", type=_COUNT, default=_DEFAULT.max_bytes, help="Refuse a larger file, not compressed.")
@click.option("--max-value-bytes", type=_COUNT, default=_DEFAULT.max_value_bytes, help="Refuse a longer line.")
@click.option("--max-records", type=_COUNT, default=_DEFAULT.max_records, help="Refuse more lines.")
@click.option("--max-attempts", type=_COUNT, default=_DEFAULT.max_attempts, help="Refuse higher attempts.")
@click.option(
    "--max-ratio", type=_COUNT, default=_DEFAULT.max_ratio, help="Refuse a file with a higher compression ratio."
)
@json_option
@store_option
def command(  # noqa: PLR0913, PLR0917 - one parameter for each option
    file: str,
    new_id: str | None,
    max_bytes: int,
    max_value_bytes: int,
    max_records: int,
    max_attempts: int,
    max_ratio: int,
    as_json: bool,
    store: str | None,
) -> None:
    """Take in a run that 'flowckpt export' wrote: a whole run, or one checkpoint, from which a new run continues.

    The whole file is verified before anything is written, and the run appears at once or not at all; after a kill,
    repeat the command. An equal run that exists already stays as it is. The command runs nothing: flowckpt resume
    continues the run.
    """
    if as_json:
        keep_for_document()
    limits = ImportLimits(
        max_bytes=max_bytes,
        max_value_bytes=max_value_bytes,
        max_records=max_records,
        max_attempts=max_attempts,
        max_ratio=max_ratio,
    )
    checkpoints, choice = opened_store(store, runs_nothing=True), choose_store(store)
    done = waited(import_run(checkpoints, file, workflow_id=new_id, limits=limits))
    if as_json:
        write(f"{json_text(done.to_document(), indent=2)}\n")
        return
    write("".join(f"{line}\n" for line in _lines(done)))
    if done.is_new and done.source_id:
        warn("where it comes from the run is as it was. Resume one of the two: both would run the same steps")
    if done.status != "completed" and done.workflow_name != MANAGED:
        show_resume_hint(done.workflow_id, choice, more="--accept-import")


def _lines(done: ImportedRun) -> list[str]:
    name = escaped(done.workflow_id)
    said = f"imported {name}" if done.is_new else f"{name} is there already, the very same: nothing to do"
    lines = [
        f"{said} {size_of_run(done)}",
        f"workflow: {escaped(done.workflow_name)}, {escaped(done.status)}",
    ]
    if done.workflow_name != MANAGED:
        lines.append("held: nothing of it runs until a person resumes it with --accept-import")
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
            f"target: {escaped(place)}:{escaped(done.target.get('name', ''))}"
            + (" (not on this machine: resume with --target)" if is_missing else "")
        )
    elif done.workflow_name != MANAGED:
        lines.append("target: not recorded: resume with --target")
    return lines
