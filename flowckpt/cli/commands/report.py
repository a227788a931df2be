"""`flowckpt report`."""

from __future__ import annotations

import re
import webbrowser
from pathlib import Path

import click

from flowckpt.cli.loaded_run import recorded_run
from flowckpt.cli.options import Command, RunName, store_option
from flowckpt.cli.render.documents import run_history
from flowckpt.cli.render.files import write_output
from flowckpt.cli.render.plan import planned_run
from flowckpt.cli.render.terminal import escaped, say, write
from flowckpt.cli.runs import chosen_run, opened_store, waited
from flowckpt.cli.settings import choose_store
from flowckpt.cli.stored_run import StoredRun, stored_run
from flowckpt.engine import RunOptions
from flowckpt.errors import FlowckptError
from flowckpt.report.comparison import Comparison, read_comparison
from flowckpt.report.document import plan_sentence, planned_steps, report_of
from flowckpt.report.page import page
from flowckpt.stores.base import StoreBase

_EXAMPLE = """\b
Examples:
  flowckpt report nightly
  flowckpt report --last --open
  flowckpt report nightly -o public/nightly.html"""

_NOT_PLAIN = re.compile(r"[^\w@=,+. -]+")


@click.command("report", cls=Command, epilog=_EXAMPLE)
@click.argument("run", type=RunName())
@click.option("-o", "--output", metavar="FILE", help="The file to write; RUN.html by default, - for standard output.")
@click.option("--open", "opens", is_flag=True, help="Open the file in the browser.")
@click.option("--plan", is_flag=True, help="Also show what a resume would do. This loads the program of the run.")
@store_option
def command(run: str, output: str | None, opens: bool, plan: bool, store: str | None) -> None:
    """Write one HTML file that shows a run: waterfall, graph, steps, and what changed since earlier runs.

    The file opens from disk without a network and sends nothing anywhere. It contains the recorded inputs and outputs of
    the run, shortened, but no secrets.
    """
    if opens and output == "-":
        raise click.UsageError("--open needs a file: leave out -o -")
    opened = opened_store(store, runs_nothing=not plan)
    run = chosen_run(opened, run)
    found = stored_run(opened, run)
    decisions, note = foreseen(run, store) if plan else ({}, "")
    report = report_of(
        run,
        found.latest,
        found.status,
        run_history(opened, run, found),
        waits=found.waits,
        begun=found.hints.begun,
        seen=found.hints.seen,
        live=found.hints.live,
        comparison=_comparison(opened, run, found),
        decisions=decisions,
        plan_note=note,
    )
    text = page(report)
    if output == "-":
        write(text)
        return
    path = Path(output or f"{plain_name(run)}.html")
    write_output(path, text)
    say(f"flowckpt: wrote {escaped(str(path))} ({len(text.encode()) / 1000:,.0f} kB)")
    if opens:
        webbrowser.open(path.resolve().as_uri())


def plain_name(run: str) -> str:
    """Return an id as the name of a file in the current directory: neither hidden nor a path, and of a possible length."""
    return _NOT_PLAIN.sub("_", run).lstrip(".- ")[:60] or "run"


def _comparison(store: StoreBase, run: str, found: StoredRun) -> Comparison:
    comparison, damaged = waited(read_comparison(store, run, found.latest, found.started_at))
    for each in damaged:
        say(f"flowckpt: run {escaped(each.workflow_id)} is not compared: {escaped(each.detail)}")
    return comparison


def foreseen(run: str, store: str | None) -> tuple[dict[str, tuple[str, str]], str]:
    """Return what a resume would do with each step, and why, by path; and the plan in one line, or why there is none."""
    try:
        plan = planned_run(recorded_run(choose_store(store), run), RunOptions()).plan.to_document()
    except FlowckptError as error:
        return {}, f"No plan could be made: {error.message}"
    return planned_steps(plan), plan_sentence(plan)
