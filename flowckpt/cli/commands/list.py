"""`flowckpt list`."""

from __future__ import annotations

import click

from flowckpt.cli.options import Command, color_option, json_option, split_pair, store_option
from flowckpt.cli.render.documents import listed_document
from flowckpt.cli.render.tables import ago_text, moment_text, show_table
from flowckpt.cli.render.terminal import is_terminal, write_document
from flowckpt.cli.runs import open_chosen_store, read_survey, report_left_out
from flowckpt.cli.settings import StoreChoice
from flowckpt.cli.stored_run import read_crash_loops, read_live_notes, read_stale_notes
from flowckpt.core.records import Status
from flowckpt.core.records.listing import MANAGED, RunFilter, RunInfo, is_not_started
from flowckpt.engine.run.live import LiveNote
from flowckpt.maintenance.recovery import STALE_STATUSES

_STALE = "stale"
_HEADER = ("RUN", "WORKFLOW", "STATUS", "STEPS", "STARTED", "UPDATED", "NOW", "TAGS")
_NOW = _HEADER.index("NOW")
"""Columns that are left out if they are empty."""


@click.command("list", cls=Command)
@click.option(
    "--status",
    "statuses",
    type=click.Choice([*map(str, Status), _STALE]),
    multiple=True,
    help="Only runs with this status; repeatable. Stale: resume or recover stopped because the run needs a person.",
)
@click.option("--workflow", metavar="W", help="Only runs of this workflow.")
@click.option("--tag", "tags", metavar="K=V", multiple=True, help="Only runs with this tag; K alone takes any value.")
@click.option("--waiting", "is_waiting", is_flag=True, help="Only waiting runs, each with all its waits.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show at most N runs.")
@json_option
@store_option
@color_option
def list_command(
    statuses: tuple[str, ...],
    workflow: str | None,
    tags: tuple[str, ...],
    is_waiting: bool,
    limit: int | None,
    as_json: bool,
    store: StoreChoice,
) -> int:
    """List the runs of the store, most recently started first.

    A run is crashed if its record says running but its process is gone. It is in a crash loop if it crashed so often at
    the same step that a resume needs --force. It is a task if a CheckpointManager created it: only that program continues
    it. It is stale if resume or recover stopped because the run needs a person. Runs with unreadable records are named on
    standard error, and the exit code is 11; the others are listed.

    Examples:
      flowckpt list
      flowckpt list --status crashed --status failed --limit 20
      flowckpt list --status stale
      flowckpt list --workflow etl --tag team=data --json
    """
    opened = open_chosen_store(store, runs_nothing=True)
    names = {*statuses} - {_STALE} | ({*map(str, STALE_STATUSES)} if _STALE in statuses else set())
    most = None if _STALE in statuses or is_waiting else limit
    run_filter = RunFilter(statuses=names or None, workflow=workflow, tags=[*map(split_pair, tags)], limit=most)
    survey = read_survey(opened, run_filter)
    stale = read_stale_notes(opened, survey.runs)
    runs = [
        info for info in survey.runs if _STALE not in statuses or info.status in statuses or info.workflow_id in stale
    ]
    runs = [info for info in runs if info.waits] if is_waiting else runs
    runs = runs[:limit]
    looping, live = read_crash_loops(opened, runs), read_live_notes(opened, runs)
    if as_json:
        document = [
            listed_document(info, looping.get(run), stale.get(run), live.get(run))
            for info, run in ((info, info.workflow_id) for info in runs)
        ]
        write_document(document)
    elif runs:
        rows = [
            _make_row(
                info,
                is_crash_loop=info.workflow_id in looping,
                is_stale=info.workflow_id in stale,
                has_all_waits=is_waiting,
                live=live.get(info.workflow_id),
            )
            for info in runs
        ]
        columns = [index for index in range(len(_HEADER)) if index != _NOW or any(row[_NOW] for row in rows)]
        header, rows = [_HEADER[index] for index in columns], [[row[index] for index in columns] for row in rows]
        show_table(header, rows, wrapped=("WORKFLOW", "NOW", "TAGS"))
    elif not survey.unreadable:
        has_filter = statuses or workflow is not None or tags or is_waiting
        store.report_no_runs("no run matches" if has_filter else "no runs")
    return report_left_out(survey.unreadable)


def _describe_activity(info: RunInfo, live: LiveNote | None, *, is_whole: bool) -> str:
    """Return the current step of a run and its process, or its waits."""
    if info.owner is not None and not is_whole:
        process = f"process {info.owner.pid} on {info.owner.host}"
        return process if live is None or not live.steps else f"{_describe_live_step(live)} ({process})"
    if live is not None and live.steps and not is_whole:
        # a note is written about once a second: an older one than the last save may name a step that has ended since
        return f"{'died' if live.at >= info.updated_at else 'last seen'} in {_describe_live_step(live)}"
    if not info.waits:
        return "created, not run yet" if is_not_started(info.metadata, info.attempt) else ""
    if is_whole:
        return "; ".join(wait.said for wait in info.waits)
    first, more = info.waits[0].said, len(info.waits) - 1
    return f"{first}, and {more} more" if more else first


def _describe_live_step(live: LiveNote) -> str:
    """Return the step that started last, and its progress."""
    step, others = live.steps[-1], len(live.steps) - 1 + live.more
    progress = f", {step.said}" if step.said else ""
    return f"{step.path}, started {ago_text(step.since)}{progress}{f', and {others} more' if others else ''}"


def _make_row(
    info: RunInfo, *, is_crash_loop: bool, is_stale: bool, has_all_waits: bool, live: LiveNote | None
) -> list[str]:
    tags = " ".join(f"{key}={value}" for key, value in info.tags.items())
    started, updated = moment_text(info.started_at, is_short=is_terminal()), ago_text(info.updated_at)
    marks = []
    if is_crash_loop:
        marks.append("crash loop")
    elif is_stale:
        marks.append("stale")
    if info.workflow_name == MANAGED and info.status is not Status.COMPLETED:
        marks.append("task")
    status = f"{info.status.value} ({', '.join(marks)})" if marks else info.status.value
    return [
        info.workflow_id,
        info.workflow_name,
        status,
        str(info.steps),
        started,
        updated,
        _describe_activity(info, live, is_whole=has_all_waits),
        tags,
    ]
