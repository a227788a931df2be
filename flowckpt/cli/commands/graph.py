"""`flowckpt graph`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import click

from flowckpt.cli.arguments import convert_inputs, typed_target
from flowckpt.cli.commands.report import foreseen
from flowckpt.cli.options import Command, RunName, input_option, store_option, without_repeats
from flowckpt.cli.render.documents import run_history
from flowckpt.cli.render.files import write_output
from flowckpt.cli.render.terminal import escaped, say, write
from flowckpt.cli.runs import chosen_run, opened_store
from flowckpt.cli.stored_run import stored_run
from flowckpt.errors import CheckpointNotFoundError, TargetError
from flowckpt.report.drawing import dot, mermaid, svg
from flowckpt.report.graph import Graph, graph_of_run, graph_of_workflow
from flowckpt.report.timeline import timeline_of

_EXAMPLE = """\b
Examples:
  flowckpt graph pipeline.py:etl
  flowckpt graph pipeline.py:etl -i source=orders.csv --format dot | dot -Tpng -o etl.png
  flowckpt graph nightly --plan --format svg -o nightly.svg"""

_FORMATS: Mapping[str, Callable[[Graph], str]] = {"mermaid": mermaid, "dot": dot, "svg": svg}


@click.command("graph", cls=Command, epilog=_EXAMPLE)
@click.argument("target_or_run", metavar="TARGET|RUN", type=RunName())
@click.option(
    "--format", "form", type=click.Choice([*_FORMATS]), default="mermaid", show_default=True, help="The format."
)
@click.option("-o", "--output", metavar="FILE", help="The file to write; standard output by default.")
@click.option("--plan", is_flag=True, help="Mark what a resume would run, and why. This loads the program of the run.")
@input_option
@store_option
def command(
    target_or_run: str,
    form: str,
    output: str | None,
    plan: bool,
    inputs: tuple[tuple[str, str], ...],
    store: str | None,
) -> None:
    """Draw the steps of a workflow or of a run, and which output went into which argument.

    For a run, the graph comes from its record. For a workflow, no step runs: the graph ends where the workflow itself
    looks at the output of a step.
    """
    if _is_target(target_or_run):
        if plan:
            raise click.UsageError(f"{target_or_run} is a workflow, and --plan needs a run")
        workflow, _ = typed_target(target_or_run)
        graph = graph_of_workflow(workflow, convert_inputs(workflow, without_repeats(inputs, "-i")))
    else:
        graph = _of_run(target_or_run, inputs, store, is_planned=plan)
    text = _FORMATS[form](graph)
    if output is None or output == "-":
        write(text)
    else:
        write_output(Path(output), text)
    if graph.note:
        say(f"flowckpt: {escaped(graph.note)}")


def _is_target(text: str) -> bool:
    return ":" in text or text.endswith(".py") or "/" in text


def _of_run(run: str, inputs: tuple[tuple[str, str], ...], store: str | None, *, is_planned: bool) -> Graph:
    opened = opened_store(store, runs_nothing=not is_planned)
    try:
        run = chosen_run(opened, run)
    except CheckpointNotFoundError as error:
        try:
            workflow, _ = typed_target(run)  # a dotted module without the name of a workflow
        except TargetError:
            raise error from None
        return graph_of_workflow(workflow, convert_inputs(workflow, without_repeats(inputs, "-i")))
    if inputs:
        raise click.UsageError(f"{run} is a run, and its inputs are recorded: leave out -i")
    found = stored_run(opened, run)
    timeline = timeline_of(run_history(opened, run, found), found.status, found.waits, begun=found.hints.begun)
    decisions, said = foreseen(run, store) if is_planned else ({}, "")
    if said:
        say(f"flowckpt: {escaped(said)}")
    return graph_of_run(found.latest.workflow_name, timeline.lanes, decisions)
