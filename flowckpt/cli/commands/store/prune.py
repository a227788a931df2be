"""`flowckpt store prune`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.options import AgeText, Command, RunName, json_option, store_option
from flowckpt.cli.render.statistics import bytes_text, checkpoints_document, summary_document
from flowckpt.cli.render.tables import ago_text
from flowckpt.cli.render.terminal import escaped, json_text, keep_for_document, say, write
from flowckpt.cli.runs import chosen_run, opened_store, tell_unreadable, waited
from flowckpt.cli.settings import choose_store
from flowckpt.core.records import Status
from flowckpt.core.system.numbers import counted
from flowckpt.maintenance.retention.prune import FINISHED, PrunedRun, PruneReport, prune, prune_checkpoints
from flowckpt.stores.base import StoreBase

_EXAMPLE = """\b
Examples:
  flowckpt store prune --older-than 30d --dry-run
  flowckpt store prune --keep 5
  flowckpt store prune --older-than 90d --status failed --status cancelled
  flowckpt store prune nightly --keep 3
  flowckpt store prune nightly --keep 3 --older-than 7d"""

_STATUSES = [str(status) for status in Status if status is not Status.RUNNING]


@click.command("prune", cls=Command, epilog=_EXAMPLE)
@click.argument("run", type=RunName(), required=False)
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    metavar="N",
    help="Keep the N newest runs of each workflow; with RUN, its N newest checkpoints (of a task, committed steps).",
)
@click.option(
    "--older-than", type=AgeText(), metavar="AGE", help="Only what was saved longer ago, as 90s, 45m, 12h, 30d or 2w."
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="With RUN: only checkpoints whose records do not fit into N bytes beside the newer ones.",
)
@click.option(
    "--status",
    "statuses",
    type=click.Choice(_STATUSES),
    multiple=True,
    help="Only runs with this status. Default: completed, because all others can be resumed.",
)
@click.option("--workflow", metavar="W", help="Only runs of this workflow.")
@click.option("--dry-run", is_flag=True, help="Say what would go, with sizes, and remove nothing.")
@json_option
@store_option
def command(  # noqa: PLR0913, PLR0917 - one parameter for each option
    run: str | None,
    keep: int | None,
    older_than: timedelta | None,
    max_bytes: int | None,
    statuses: tuple[str, ...],
    workflow: str | None,
    dry_run: bool,
    as_json: bool,
    store: str | None,
) -> int:
    """Remove completed runs that are not needed any more, and free unused space.

    A run, or with RUN one of its checkpoints, is removed only if it meets every given condition. Without --keep,
    --older-than and --max-bytes nothing is removed: the command only frees space. Runs that a process owns, and runs
    with a pinned checkpoint, always stay. Of the checkpoints of RUN the newest, the newest verified and the pinned
    ones always stay, and the one from which a task of a CheckpointManager continues; so do all results. A run whose
    record cannot be read stays and is named, and the exit code is 11. Damage of RUN that no longer counts only keeps its
    space from being freed, with a warning.
    """
    if run is not None and (statuses or workflow is not None):
        raise click.UsageError("--status and --workflow choose among runs, and a run is named")
    if run is None and max_bytes is not None:
        raise click.UsageError("--max-bytes chooses among the checkpoints of a run, and no run is named")
    if run is None and (statuses or workflow is not None) and keep is None and older_than is None:
        raise click.UsageError("say which of them go: --keep N, --older-than AGE, or --keep 0 for all")
    if run is not None and keep == 0:
        raise click.UsageError(
            "--keep 0: the newest checkpoint of a run always stays; 'flowckpt store clear' removes the run"
        )
    if as_json:
        keep_for_document()
    checkpoints = opened_store(store, runs_nothing=True)
    if run is not None:
        run = chosen_run(checkpoints, run)
        conditions: dict[str, Any] = {"keep": keep, "older_than": older_than, "max_bytes": max_bytes}
        _prune_one(checkpoints, run, conditions, is_dry_run=dry_run, as_json=as_json)
        return ExitCode.DONE
    verb = "would remove" if dry_run else "removed"

    def show(pruned: PrunedRun) -> None:
        said = [pruned.status.value, f"updated {ago_text(pruned.updated_at)}"]
        if pruned.size is not None:
            said.append(bytes_text(pruned.size))
        write(f"{verb} {escaped(pruned.workflow_id)} ({', '.join(said)})\n")

    report = waited(
        prune(
            checkpoints,
            keep=keep,
            older_than=older_than,
            statuses=[Status(each) for each in statuses] or FINISHED,
            workflow=workflow,
            is_dry_run=dry_run,
            on_run=None if as_json else show,
        )
    )
    if as_json:
        write(f"{json_text(summary_document(report, is_dry_run=dry_run), indent=2)}\n")
    else:
        _summarize(report, verb, is_dry_run=dry_run)
    if not report.matched and (workflow is not None or statuses):
        of = "" if workflow is None else f" of the workflow {escaped(workflow)}"
        stands = f" that is {' or '.join(statuses or map(str, FINISHED))}"
        say(f"flowckpt: {choose_store(store).shown} has no run{of}{stands}")
    return tell_unreadable(report.unreadable)


def _summarize(report: PruneReport, verb: str, *, is_dry_run: bool) -> None:
    for workflow_id, why in report.skipped.items():
        say(escaped(f"flowckpt: {workflow_id} stays: {why}"))
    size = "" if report.unsized else f", {bytes_text(report.removed_bytes)}"
    say(f"flowckpt: {verb} {counted(report.removed, 'run')}{size}")
    if not is_dry_run and report.compacted:
        say(f"flowckpt: rewrote {counted(report.compacted, 'run')}, {bytes_text(report.compacted_bytes)} freed")


def _prune_one(
    store: StoreBase,
    run: str,
    conditions: dict[str, Any],
    *,
    is_dry_run: bool,
    as_json: bool,
) -> None:
    sequences, freed = waited(prune_checkpoints(store, run, **conditions, is_dry_run=is_dry_run))
    if as_json:
        write(f"{json_text(checkpoints_document(run, sequences, freed, is_dry_run=is_dry_run), indent=2)}\n")
        return
    if is_dry_run:
        write(f"would remove {counted(len(sequences), 'checkpoint')} of {escaped(run)}\n")
    else:
        write(f"removed {counted(len(sequences), 'checkpoint')} of {escaped(run)}, {bytes_text(freed)} freed\n")
