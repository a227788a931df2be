"""A run as a page or a picture: `flowckpt report` and `flowckpt graph`."""

from __future__ import annotations

import re
import webbrowser
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from flowckpt.cli.arguments import convert_inputs, load_typed_target
from flowckpt.cli.loaded_run import load_recorded_run, plan_run
from flowckpt.cli.options import Command, RunName, input_option, store_option
from flowckpt.cli.render.documents import read_run_history
from flowckpt.cli.render.terminal import escape, say, write
from flowckpt.cli.runs import open_chosen_store, open_run, resolve_run, run_async, write_output
from flowckpt.cli.settings import StoreChoice
from flowckpt.cli.stored_run import StoredRun, read_stored_run
from flowckpt.engine import RunOptions
from flowckpt.errors import CheckpointNotFoundError, FlowckptError, TargetError
from flowckpt.report.comparison import Comparison, read_comparison
from flowckpt.report.document import RunReport, make_report, plan_sentence, planned_steps
from flowckpt.report.drawing import dot, mermaid, svg
from flowckpt.report.graph import Graph, make_run_graph, make_workflow_graph
from flowckpt.report.page import render_page
from flowckpt.report.timeline import make_timeline
from flowckpt.stores.base import StoreBase

_NOT_PLAIN = re.compile(r"[^\w@=,+. -]+")


@click.command("report", cls=Command)
@click.argument("run", type=RunName())
@click.option("-o", "--output", metavar="FILE", help="The file to write; RUN.html by default, - for standard output.")
@click.option("--open", "opens", is_flag=True, help="Open the file in the browser.")
@click.option("--plan", is_flag=True, help="Also show what a resume would do. This loads the program of the run.")
@store_option
def report_command(run: str, output: str | None, opens: bool, plan: bool, store: StoreChoice) -> None:
    """Write one HTML file that shows a run: waterfall, graph, steps, and what changed since earlier runs.

    The file opens from disk without a network and sends nothing anywhere. It contains the recorded inputs and outputs of
    the run, shortened, but no secrets.

    Examples:
      flowckpt report nightly
      flowckpt report --last --open
      flowckpt report nightly -o public/nightly.html
    """
    if opens and output == "-":
        raise click.UsageError("--open needs a file: omit -o -")
    opened, run = open_run(store, run, runs_nothing=not plan)
    stored = read_stored_run(opened, run)
    decisions, note = plan_decisions(run, store) if plan else ({}, "")
    comparison = _read_comparison(opened, run, stored)
    text = render_page(make_run_report(opened, run, stored, comparison=comparison, decisions=decisions, plan_note=note))
    if output == "-":
        write(text)
        return
    path = Path(output or f"{make_file_name(run)}.html")
    write_output(path, text)
    say(f"flowckpt: wrote {escape(str(path))} ({len(text.encode()) / 1000:,.0f} kB)")
    if opens:
        webbrowser.open(path.resolve().as_uri())


def make_run_report(store: StoreBase, run: str, stored: StoredRun, **more: Any) -> RunReport:
    """Return the report of a run from its store.

    Args:
        store: the store of the run.
        run: the run.
        stored: the stored run.
        **more: the comparison and the plan, as `make_report` takes them.
    """
    attempts = read_run_history(store, run, stored)
    facts: Any = {name: getattr(stored, name) for name in ("waits", "begun", "seen", "live")}
    return make_report(run, stored.latest, stored.status, attempts, **facts, **more)


def make_file_name(run: str) -> str:
    """Return a file name for an id: not hidden, without a path, and not too long."""
    return _NOT_PLAIN.sub("_", run).lstrip(".- ")[:60] or "run"


def _read_comparison(store: StoreBase, run: str, stored: StoredRun) -> Comparison:
    comparison, damaged = run_async(read_comparison(store, run, stored.latest, stored.started_at))
    for each in damaged:
        say(f"flowckpt: run {escape(each.workflow_id)} is not compared: {escape(each.detail)}")
    return comparison


def plan_decisions(run: str, store: StoreChoice) -> tuple[dict[str, tuple[str, str]], str]:
    """Return the decision of a resume about each step, by path, and a summary of the plan, or why it failed."""
    try:
        plan = plan_run(load_recorded_run(store, run), RunOptions()).plan.to_document()
    except FlowckptError as error:
        return {}, f"The plan failed: {error.message}"
    return planned_steps(plan), plan_sentence(plan)


_FORMATS: Mapping[str, Callable[[Graph], str]] = {"mermaid": mermaid, "dot": dot, "svg": svg}


@click.command("graph", cls=Command)
@click.argument("target_or_run", metavar="TARGET|RUN", type=RunName())
@click.option(
    "--format", "form", type=click.Choice([*_FORMATS]), default="mermaid", show_default=True, help="The format."
)
@click.option("-o", "--output", metavar="FILE", help="The file to write; standard output by default.")
@click.option("--plan", is_flag=True, help="Mark what a resume would run, and why. This loads the program of the run.")
@input_option
@store_option
def graph_command(
    target_or_run: str,
    form: str,
    output: str | None,
    plan: bool,
    inputs: dict[str, str],
    store: StoreChoice,
) -> None:
    """Draw the steps of a workflow or a run, and which output is used by which step.

    For a run, the graph comes from its record. For a workflow, no step runs: the graph ends where the workflow's own code
    uses the output of a step.

    Examples:
      flowckpt graph pipeline.py:etl
      flowckpt graph pipeline.py:etl -i source=orders.csv --format dot | dot -Tpng -o etl.png
      flowckpt graph nightly --plan --format svg -o nightly.svg
    """
    if _is_target(target_or_run):
        if plan:
            raise click.UsageError(f"--plan needs a run, but {target_or_run} is a workflow")
        workflow, _ = load_typed_target(target_or_run)
        graph = make_workflow_graph(workflow, convert_inputs(workflow, inputs))
    else:
        graph = _make_graph(target_or_run, inputs, store, is_planned=plan)
    text = _FORMATS[form](graph)
    if output is None or output == "-":
        write(text)
    else:
        write_output(Path(output), text)
    if graph.note:
        say(f"flowckpt: {escape(graph.note)}")


def _is_target(text: str) -> bool:
    return ":" in text or text.endswith(".py") or "/" in text


def _make_graph(run: str, inputs: dict[str, str], store: StoreChoice, *, is_planned: bool) -> Graph:
    opened = open_chosen_store(store, runs_nothing=not is_planned)
    try:
        run = resolve_run(opened, run)
    except CheckpointNotFoundError as error:
        try:
            workflow, _ = load_typed_target(run)  # a dotted module without the name of a workflow
        except TargetError:
            raise error from None
        return make_workflow_graph(workflow, convert_inputs(workflow, inputs))
    if inputs:
        raise click.UsageError(f"{run} is a run, whose inputs are recorded: omit -i")
    stored = read_stored_run(opened, run)
    timeline = make_timeline(read_run_history(opened, run, stored), stored.status, stored.waits, begun=stored.begun)
    decisions, summary = plan_decisions(run, store) if is_planned else ({}, "")
    if summary:
        say(f"flowckpt: {escape(summary)}")
    return make_run_graph(stored.latest.workflow_name, timeline.lanes, decisions)
