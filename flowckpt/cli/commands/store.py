"""The commands that maintain a store: `flowckpt store …`."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import click

from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.next_steps import command_line
from flowckpt.cli.notices import warn
from flowckpt.cli.options import AGE, Command, RunName, color_option, json_option, mirror_option, store_option
from flowckpt.cli.render.statistics import (
    checkpoints_document,
    figures_document,
    figures_lines,
    figures_tables,
    summary_document,
)
from flowckpt.cli.render.tables import ago_text, bytes_text, show_table
from flowckpt.cli.render.terminal import escape, say, write, write_document, write_lines
from flowckpt.cli.runs import open_chosen_store, open_run, read_latest, report_unreadable, resolve_run, run_async
from flowckpt.cli.settings import StoreChoice
from flowckpt.core.records import Status
from flowckpt.core.system.numbers import join_names, pluralize
from flowckpt.engine.history.checkpoints import find_standing_checkpoint
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    FlowckptError,
    UnauthenticatedRecordError,
    WrongKeyError,
)
from flowckpt.maintenance.prune import FINISHED, PrunedRun, PruneReport, prune, prune_checkpoints
from flowckpt.stores.base import Ability, Finding
from flowckpt.stores.file import FileCheckpointStore
from flowckpt.stores.file.store_keys import TrustReport
from flowckpt.stores.log.sealing.cipher import check_installed
from flowckpt.stores.log.sealing.keys import AUTHENTICATE, ENCRYPT, KeyRing, new_key, read_key_file, write_key_file
from flowckpt.stores.open import hide_passwords, open_store
from flowckpt.stores.queries import store_statistics


@click.command("check", cls=Command)
@click.argument("run", type=RunName(), required=False)
@json_option
@mirror_option
@store_option
def check_command(run: str | None, as_json: bool, store: StoreChoice) -> int:
    """Read and verify the whole store, or one run. Changes nothing.

    A notice is harmless, for example a record that a crash cut short. Exits with 11 if something is corrupt, with 13 if
    something could not be read now, and with 2 if a key or the permission to enter a run's directory is missing.

    A record with matching digests but content that flowckpt never writes is corrupt, too.

    A store with a mirror is compared with it: a notice names what the mirror lacks; a different history in the mirror
    counts as corrupt.

    Examples:
      flowckpt store check
      flowckpt store check nightly
      flowckpt store check --json
    """
    checkpoints = open_chosen_store(store, runs_nothing=True)
    findings = run_async(checkpoints.check(None if run is None else resolve_run(checkpoints, run)))
    with suppress(FlowckptError):  # a file that is not a database is among the findings
        if medium := checkpoints.medium():
            say(f"flowckpt: {store.shown} is stored in {medium}")
    if store.mirror:
        say(f"flowckpt: compared with the mirror {hide_passwords(store.mirror)}")
    if as_json:
        write_document([attrs.asdict(finding) for finding in findings])
    else:
        write_lines(map(_describe_finding, findings))
    counts = Counter(finding.severity for finding in findings)
    corrupt, locked, failed = counts["corrupt"], counts["locked"], counts["failed"]
    of_all = f"of {pluralize(len(findings), 'finding')}"
    if corrupt:
        say(f"flowckpt: {corrupt} {of_all} in {store.shown} {'is' if corrupt == 1 else 'are'} corrupt")
    if locked:
        say(
            f"flowckpt: {locked} {of_all} in {store.shown} {'needs' if locked == 1 else 'need'} a key or a permission that is missing"
        )
    elif not findings:
        store.report_no_runs()
    if failed:
        say(f"flowckpt: {failed} {of_all} could not be read now, which says nothing about the record")
    if corrupt or failed:
        return ExitCode.CORRUPT if corrupt else ExitCode.STORE_FAILED
    return ExitCode.USAGE if locked else ExitCode.DONE


def _describe_finding(finding: Finding) -> str:
    return escape(f"{finding.severity}: {finding.workflow_id or 'store'}: {finding.detail}")


@click.command("repair", cls=Command)
@click.argument("run", type=RunName())
@json_option
@mirror_option
@store_option
def repair_command(run: str, as_json: bool, store: StoreChoice) -> None:
    """Set the damaged parts of a run aside, and keep everything that is intact.

    The original is kept: in a directory or bucket under damaged/, in a database in tables named damaged_…. The command
    prints its place, what is lost, and the checkpoint from which the run resumes. An intact run is not changed. A mirror
    is updated.

    Examples:
      flowckpt store repair nightly
      flowckpt store repair nightly --json
    """
    checkpoints = open_chosen_store(store, runs_nothing=True)
    with suppress(CheckpointNotFoundError):  # an interrupted repair has set it aside
        run = resolve_run(checkpoints, run)
    done = run_async(checkpoints.repair(run))
    if as_json:
        lost = [{"place": each.place, "bytes": each.size, "detail": each.detail} for each in done.lost]
        remaining = {"checkpoints": done.checkpoints, "steps": done.steps, "newest": done.newest}
        write_document({"workflow_id": run, "aside": done.aside or None, "lost": lost, **remaining})
        return
    left = (
        f"{pluralize(done.checkpoints, 'checkpoint')}, {pluralize(done.steps, 'result')}, the newest is {done.newest!r}"
    )
    if not done.is_changed:
        write(escape(f"{run} is intact ({left}): nothing was changed") + "\n")
        return
    write_lines(escape(f"lost: {each}") for each in done.lost)
    write(escape(f"set aside: the original, in {done.aside}") + "\n")
    write(escape(f"repaired: {run} ({left})") + "\n")
    say(f"See what a resume would run: {command_line('plan', store, run)}")


@click.command("stats", cls=Command)
@click.argument("run", type=RunName(), required=False)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="How many of the newest days, largest runs and slowest steps to show.",
)
@json_option
@store_option
@color_option
def stats_command(run: str | None, limit: int, as_json: bool, store: StoreChoice) -> int:
    """Show statistics of the store or of one run: checkpoints over time, sizes, evidence, failures, slowest steps.

    The statistics include superseded results. Sizes are those of records, without large values; "stored" is the size on
    the medium, which is unknown for a bucket. A run with an unreadable record is left out and named, and the exit code
    is 11.

    Examples:
      flowckpt store stats
      flowckpt store stats nightly
      flowckpt store stats --limit 30 --json
    """
    checkpoints = open_chosen_store(store, runs_nothing=True)
    run = None if run is None else resolve_run(checkpoints, run)
    figures = run_async(store_statistics(checkpoints, run, limit=limit))
    if as_json:
        write_document(figures_document(figures))
        return report_unreadable(figures.unreadable)
    write_lines(map(escape, figures_lines(figures, run)))
    for header, rows, wrapped in figures_tables(figures, limit):
        write("\n")
        show_table(header, rows, wrapped=wrapped)
    return report_unreadable(figures.unreadable)


@click.command("pin", cls=Command)
@click.argument("run", type=RunName())
@click.argument("checkpoint", required=False)
@click.option("--unpin", is_flag=True, help="Remove the pin.")
@json_option
@store_option
def pin_command(run: str, checkpoint: str | None, unpin: bool, as_json: bool, store: StoreChoice) -> None:
    """Protect a checkpoint and its run from pruning. Only clear removes them.

    CHECKPOINT is an id (its newest checkpoint counts) or a sequence; by default, the newest checkpoint. The run may be
    live.

    Examples:
      flowckpt store pin nightly
      flowckpt store pin nightly trained
      flowckpt store pin nightly trained --unpin
    """
    checkpoints = open_chosen_store(store, runs_nothing=True)
    if not checkpoints.has(Ability.PINS):
        raise click.UsageError(f"{checkpoints!r} cannot pin checkpoints")
    run = resolve_run(checkpoints, run)
    data = read_latest(checkpoints, run)
    if checkpoint is not None:
        data = run_async(find_standing_checkpoint(checkpoints, run, data, checkpoint))
    was_pinned = data.sequence in run_async(checkpoints.pinned(run))
    change = checkpoints.unpin if unpin else checkpoints.pin
    run_async(change(run, data.sequence))
    is_changed = was_pinned is unpin
    if as_json:
        document: dict[str, Any] = {
            "workflow_id": run,
            "checkpoint_id": data.checkpoint_id,
            "sequence": data.sequence,
            "pinned": not unpin,
        }
        if not is_changed:
            document["changed"] = False
        write_document(document)
        return
    place = f"checkpoint {escape(data.checkpoint_id)} (sequence {data.sequence})"
    if is_changed:
        write(f"{'unpinned' if unpin else 'pinned'} {place} of {escape(run)}\n")
    else:
        write(f"{place} of {escape(run)} {'was not pinned' if unpin else 'is already pinned'}: nothing was changed\n")


_STATUSES = [str(status) for status in Status if status is not Status.RUNNING]


@click.command("prune", cls=Command)
@click.argument("run", type=RunName(), required=False)
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    metavar="N",
    help="Keep the N newest runs of each workflow; with RUN, its N newest checkpoints (of a task, committed steps).",
)
@click.option(
    "--older-than", type=AGE, metavar="AGE", help="Only what is older than AGE, such as 90s, 45m, 12h, 30d or 2w."
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="With RUN: only checkpoints whose records, with all newer ones, exceed N bytes.",
)
@click.option(
    "--status",
    "statuses",
    type=click.Choice(_STATUSES),
    multiple=True,
    help="Only runs with this status. Default: completed, because all others can be resumed.",
)
@click.option("--workflow", metavar="W", help="Only runs of this workflow.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, with sizes, and remove nothing.")
@json_option
@store_option
def prune_command(  # noqa: PLR0913, PLR0917 - one parameter for each option
    run: str | None,
    keep: int | None,
    older_than: timedelta | None,
    max_bytes: int | None,
    statuses: tuple[str, ...],
    workflow: str | None,
    dry_run: bool,
    as_json: bool,
    store: StoreChoice,
) -> int:
    """Remove completed runs that are no longer needed, and free unused space.

    A run (with RUN: a checkpoint) is removed only if it meets every given condition. Without --keep, --older-than and
    --max-bytes, nothing is removed: the command only frees space. Runs that a process owns and runs with a pinned
    checkpoint always stay. With RUN, the newest, the newest verified and the pinned checkpoints always stay, and the one
    from which a task of a CheckpointManager continues; so do all results. A run with an unreadable record stays and is
    named, and the exit code is 11. If only superseded parts of RUN are damaged, their space is not freed, with a warning.

    Examples:
      flowckpt store prune --older-than 30d --dry-run
      flowckpt store prune --keep 5
      flowckpt store prune --older-than 90d --status failed --status cancelled
      flowckpt store prune nightly --keep 3
      flowckpt store prune nightly --keep 3 --older-than 7d
    """
    has_filter = bool(statuses) or workflow is not None
    if run is not None:
        if has_filter:
            raise click.UsageError("--status and --workflow select runs; omit them with RUN")
        conditions: dict[str, Any] = {"keep": keep, "older_than": older_than, "max_bytes": max_bytes}
        _prune_one(store, run, conditions, is_dry_run=dry_run, as_json=as_json)
        return ExitCode.DONE
    if max_bytes is not None:
        raise click.UsageError("--max-bytes selects checkpoints of a run; name a RUN")
    if has_filter and keep is None and older_than is None:
        raise click.UsageError("choose what to remove: --keep N, --older-than AGE, or --keep 0 for all")
    checkpoints = open_chosen_store(store, runs_nothing=True)
    verb = "would remove" if dry_run else "removed"
    report = run_async(
        prune(
            checkpoints,
            keep=keep,
            older_than=older_than,
            statuses=[Status(each) for each in statuses] or FINISHED,
            workflow=workflow,
            is_dry_run=dry_run,
            on_run=None if as_json else lambda pruned: write(f"{verb} {_describe_run(pruned)}\n"),
        )
    )
    if as_json:
        write_document(summary_document(report, is_dry_run=dry_run))
    else:
        has_condition = keep is not None or older_than is not None
        _show_summary(report, verb, is_dry_run=dry_run, has_condition=has_condition)
    if not report.matched and has_filter:
        of = "" if workflow is None else f" of the workflow {escape(workflow)}"
        stands = f" that is {' or '.join(statuses or map(str, FINISHED))}"
        say(f"flowckpt: {store.shown} has no run{of}{stands}")
    return report_unreadable(report.unreadable)


def _describe_run(pruned: PrunedRun) -> str:
    details = [pruned.status.value, f"updated {ago_text(pruned.updated_at)}"]
    if pruned.size is not None:
        details.append(bytes_text(pruned.size))
    return f"{escape(pruned.workflow_id)} ({', '.join(details)})"


def _show_summary(report: PruneReport, verb: str, *, is_dry_run: bool, has_condition: bool) -> None:
    for workflow_id, why in report.skipped.items():
        say(escape(f"flowckpt: {workflow_id} stays: {why}"))
    size = "" if report.unsized else f", {bytes_text(report.removed_bytes)}"
    say(f"flowckpt: {verb} {pluralize(report.removed, 'run')}{size}")
    if not is_dry_run and report.compacted:
        say(f"flowckpt: rewrote {pluralize(report.compacted, 'run')}, {bytes_text(report.compacted_bytes)} freed")
    elif not has_condition:
        say("To remove runs, give --keep N or --older-than AGE.")


def _prune_one(store: StoreChoice, run: str, conditions: dict[str, Any], *, is_dry_run: bool, as_json: bool) -> None:
    if conditions["keep"] == 0:
        raise click.UsageError(
            "--keep 0: the newest checkpoint of a run always stays; 'flowckpt store clear' removes the run"
        )
    checkpoints, run = open_run(store, run, runs_nothing=True)
    sequences, freed = run_async(prune_checkpoints(checkpoints, run, **conditions, is_dry_run=is_dry_run))
    if as_json:
        write_document(checkpoints_document(run, sequences, freed, is_dry_run=is_dry_run))
        return
    if is_dry_run:
        write(f"would remove {pluralize(len(sequences), 'checkpoint')} of {escape(run)}\n")
    else:
        write(f"removed {pluralize(len(sequences), 'checkpoint')} of {escape(run)}, {bytes_text(freed)} freed\n")


@click.command("clear", cls=Command)
@click.argument("run", type=RunName())
@click.option("--yes", is_flag=True, help="Do not ask. Without a terminal, the command does not ask either.")
@store_option
def clear_command(run: str, yes: bool, store: StoreChoice) -> None:
    """Remove a run with all its checkpoints, irrevocably. A store with a key requires the key.

    Examples:
      flowckpt store clear nightly
      flowckpt store clear nightly --yes
    """
    checkpoints, run = open_run(store, run, runs_nothing=True)
    what = "its record is damaged"
    try:
        latest = read_latest(checkpoints, run)
        what = f"{latest.status.value}, {pluralize(len(latest.step_results), 'step')}"
    except CheckpointCorruptedError as error:  # what is damaged may be removed anyway
        warn(error.message)
    except (WrongKeyError, UnauthenticatedRecordError) as error:  # the same: a key of an old run may be lost
        if isinstance(error, WrongKeyError) and error.is_whole_store:
            raise
        what = "its record cannot be read"
        warn(error.message)
    if not yes and sys.stdin is not None and sys.stdin.isatty():
        question = f"Remove run {escape(run)} ({what}) with all its checkpoints?"
        if not click.confirm(question, default=False, err=True):
            say("flowckpt: nothing was removed")
            return
    run_async(checkpoints.clear(run))
    write(f"removed {escape(run)}\n")


@click.command("key", cls=Command)
@click.argument("action", type=click.Choice(["new", "rotate", "show"]))
@click.argument("file", type=click.Path())
@click.option(
    "--use",
    type=click.Choice([ENCRYPT, AUTHENTICATE]),
    help="Use of the new key: encrypt (the default of new), or only authenticate, which leaves records readable. "
    "A rotation keeps the use of the newest key.",
)
@json_option
def key_command(action: str, file: str, use: str | None, as_json: bool) -> None:
    """Create a key file, add a new key to it, or show its keys without their secrets.

    new creates the file, readable only by its owner. Pass it to other commands by FLOWCKPT_KEY_FILE, or by key_file in
    pyproject.toml. rotate adds a new key: new records are sealed with it, and older ones are still read with the others;
    flowckpt store prune also seals older records with the new key. Keep a copy of the file outside the store: without it,
    encrypted records are lost.

    Examples:
      flowckpt store key new ~/.flowckpt.key
      flowckpt store key new ~/.flowckpt.key --use authenticate
      flowckpt store key rotate ~/.flowckpt.key
      flowckpt store key show ~/.flowckpt.key
    """
    if action == "show":
        if use is not None:
            raise click.UsageError("--use needs new or rotate")
        ring = read_key_file(file)
    else:
        before = read_key_file(file).keys if action == "rotate" else ()
        key_use = use or (before[0].use if before else ENCRYPT)
        if key_use == ENCRYPT:
            check_installed()
        ring = KeyRing([new_key(key_use), *before])
        write_key_file(file, ring.keys, is_new=action == "new")
    if as_json:
        documents = [{"id": key.id, "use": key.use, "created_at": key.created_at} for key in ring.keys]
        write_document(documents)
    else:
        write_lines(escape(f"{key.id}  {key.use:<12}  {key.created_at}") for key in ring.keys)
    if action == "new":
        say(
            escape(
                f"Keep a copy of {file} outside the store. To use it: export FLOWCKPT_KEY_FILE={Path(file).absolute()}"
            )
        )


_MOST_RUNS = 10


@click.command("trust", cls=Command)
@click.argument("run", type=RunName())
@click.option("--yes", is_flag=True, help="Do not ask. Without a terminal, the command does not ask either.")
@store_option
def trust_command(run: str, yes: bool, store: StoreChoice) -> None:
    """Accept a run whose records are not authenticated by the key.

    Use it for a run that started before the store had a key, and for a run whose end cannot be proved, for example after
    restoring a backup without its head- files. The command adds a segment, sealed with the key, that holds the digest of
    the whole run. Sealed data that does not open is still refused. The output lists what was trusted, what was verified,
    and what is lost.

    Examples:
      flowckpt store trust nightly
      flowckpt store trust nightly --yes
    """
    checkpoints = open_store(store.spec, key_file=store.key_file, compression=store.compression, trust=True)
    if not isinstance(checkpoints, FileCheckpointStore) or store.key_file is None:
        raise click.UsageError("trust needs a file store with a key: set FLOWCKPT_KEY_FILE")
    run = resolve_run(checkpoints, run)
    latest = read_latest(checkpoints, run)
    if not yes and sys.stdin is not None and sys.stdin.isatty():
        for line in _describe_trust(checkpoints.runs.trust_report(run), "would be"):
            say(line)
        what = f"{latest.status.value}, {pluralize(len(latest.step_results), 'step')}, last saved at {latest.saved_at}"
        question = f"Trust run {escape(run)} ({escape(what)}) as it is?"
        if not click.confirm(question, default=False, err=True):
            say("flowckpt: nothing was changed")
            return
    trusted = run_async(checkpoints.trust(run))
    counts = f"{trusted.checkpoints} checkpoints, {trusted.results} results"
    if trusted.is_proved:
        write(f"{escape(run)} is already authenticated by the key ({counts}): nothing was changed\n")
    else:
        write(f"trusted {escape(run)} as it is now ({counts})\n")
    write_lines(_describe_trust(trusted, "was"))
    if trusted.message:
        warn(f"its messages are still refused: {trusted.message}. Remove the file, and send the message again")
    if others := [each for each in checkpoints.runs.plain_runs() if each != run]:
        say(f"Still refused, because they were written without a key: {escape(join_names(others, _MOST_RUNS))}")
        say(f"Inspect each run; if it is correct: {command_line('store trust', store, others[0])}")


def _describe_trust(trusted: TrustReport, verb: str) -> list[str]:
    lines = []
    if trusted.plain and not trusted.is_proved:
        lines.append(f"  {verb} trusted, written without a key: {', '.join(trusted.plain)}")
    if not trusted.is_proved:
        lines.append(f"  lost: {trusted.lost or 'nothing known from the record'}")
    elif trusted.plain:
        lines.append(f"  verified by a later sealed segment: {', '.join(trusted.plain)}")
    if trusted.sealed:
        lines.append(f"  verified, sealed with the key: {', '.join(trusted.sealed)}")
    return [escape(line) for line in lines]
