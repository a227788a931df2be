"""`flowckpt resume`."""

from __future__ import annotations

import click

from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.follow import Form, follow
from flowckpt.cli.inputs import convert_inputs
from flowckpt.cli.notices import show_warnings
from flowckpt.cli.options import (
    RunName,
    TargetName,
    color_option,
    events_option,
    input_option,
    json_option,
    store_option,
    without_repeats,
)
from flowckpt.cli.output import keep_for_document, say
from flowckpt.cli.settings import choose_store
from flowckpt.cli.stored_runs import last_unfinished, latest_of
from flowckpt.cli.targets import recorded_target, typed_target
from flowckpt.engine import RunOptions, WorkflowEngine
from flowckpt.stores.opening import open_store

_EXAMPLE = """\b
Examples:
  flowckpt resume --last
  flowckpt resume 01JD8Z3K4Q6V5T0M2N7R9X1Y3C
  flowckpt resume nightly --target moved/pipeline.py:etl --json"""


@click.command("resume", epilog=_EXAMPLE)
@click.argument("run", type=RunName(), required=False)
@click.option("--last", is_flag=True, help="The run that was updated last among those that are not completed.")
@input_option
@click.option(
    "--target", type=TargetName(), help="Where the workflow is now, as for run; recorded at the start otherwise."
)
@click.option("--steal", is_flag=True, help="Take the run over although its owner's process still holds it.")
@json_option
@events_option
@store_option
@color_option
def command(
    run: str | None,
    last: bool,
    inputs: tuple[tuple[str, str], ...],
    target: str | None,
    steal: bool,
    as_json: bool,
    as_events: bool,
    store: str | None,
    no_color: bool,
) -> int:
    """Carry a run on from its last checkpoint.

    Its inputs and its target were recorded at the start. Inputs that are given again must match the record.
    """
    if (run is None) is not last:
        raise click.UsageError(
            "give either the id of a run or --last" + ("" if last else "; 'flowckpt list' shows ids")
        )
    if as_json and as_events:
        raise click.UsageError("--json and --events exclude each other: both print to standard output")
    if as_json or as_events:
        keep_for_document()
    show_warnings()
    texts = without_repeats(inputs, "-i")
    choice = choose_store(store)
    checkpoints = open_store(choice.spec)
    if run is None:
        found = last_unfinished(checkpoints)
        if found is None:
            say(f"flowckpt: no run in {choice.spec} is left to resume: each is completed, or there is none")
            return ExitCode.NOT_FOUND
        run = found.workflow_id
    latest = latest_of(checkpoints, run)  # verified: what it names is imported
    moved_to = None
    if target is None:
        workflow = recorded_target(latest.metadata.get("target", {}), run)
    else:
        workflow, moved_to = typed_target(target)
    values = convert_inputs(workflow, texts)
    session = WorkflowEngine(checkpoints).prepare_resume(
        workflow, run, RunOptions(steal=steal, target=moved_to), values
    )
    form = Form(as_json, as_events, no_color)
    return follow(session, workflow, run, store=choice, form=form, restored_attempt=latest.attempt)
