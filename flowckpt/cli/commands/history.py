"""Another history of a run: `flowckpt rollback` and `flowckpt fork`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from flowckpt.cli.arguments import convert_inputs, parse_edits, read_plain_json, refuse_known_secrets
from flowckpt.cli.loaded_run import prepare_program
from flowckpt.cli.next_steps import show_resume_hint
from flowckpt.cli.options import (
    CheckpointName,
    Command,
    NewRunName,
    RunName,
    StepName,
    input_option,
    json_option,
    network_option,
    pairs_option,
    program_options,
    store_option,
    verify_option,
)
from flowckpt.cli.render.terminal import escape, shorten, write_document, write_lines
from flowckpt.cli.runs import open_run, run_async
from flowckpt.cli.settings import StoreChoice
from flowckpt.core.dsl import Workflow
from flowckpt.core.system.clock import SystemClock
from flowckpt.core.system.ids import new_run_id
from flowckpt.engine import RunOptions
from flowckpt.engine.history.checkpoints import Recheck, RolledBack, roll_back
from flowckpt.engine.history.fork import Forked, ForkPlan, fork_run

_MOST_DROPPED = 8


@click.command("rollback", cls=Command)
@click.argument("run", type=RunName())
@click.argument("checkpoint", type=CheckpointName())
@verify_option
@network_option
@program_options
@json_option
@store_option
def rollback_command(
    run: str,
    checkpoint: str,
    verify: str | None,
    allow_network: tuple[str, ...],
    target: str | None,
    is_here: bool,
    as_json: bool,
    store: StoreChoice,
) -> None:
    """Make a run resume from an earlier checkpoint. Runs nothing; later checkpoints stay in the store.

    CHECKPOINT is an id (its newest checkpoint counts) or a sequence. The evidence of every result up to it is checked
    first: if a claim does not hold or cannot be checked, nothing changes and the exit code is 10. Later checkpoints stay
    visible in show --history.

    Examples:
      flowckpt rollback nightly clean
      flowckpt rollback nightly 7 --verify stat --json
    """
    checkpoints, run = open_run(store, run)
    program = prepare_program(checkpoints, run, target, is_here=is_here)
    options = RunOptions(
        verify=verify, allow_network=allow_network, target=program.moved_to, base_path=program.base_path
    )
    rechecking = Recheck(options, program=program)
    done = run_async(roll_back(checkpoints, SystemClock(), run, checkpoint, rechecking))
    if as_json:
        write_document(done.to_document())
    else:
        write_lines(_rollback_lines(done))
        show_resume_hint(run, store)


def _rollback_lines(done: RolledBack) -> list[str]:
    place = f"checkpoint {escape(done.checkpoint_id)} (sequence {done.sequence})"
    if not done.is_new:
        return [f"run {escape(done.workflow_id)} is already at {place}: nothing was changed"]
    lines = [f"run {escape(done.workflow_id)} is back at {place}"]
    lines.append(f"results: {done.steps} count, {len(done.dropped)} no longer count")
    lines += [f"no longer counts: {shorten(path, 80)}" for path in done.dropped[:_MOST_DROPPED]]
    if len(done.dropped) > _MOST_DROPPED:
        lines.append(f"no longer count: {len(done.dropped) - _MOST_DROPPED} more")
    return lines


@click.command("fork", cls=Command)
@click.argument("run", type=RunName())
@click.option(
    "--checkpoint",
    metavar="ID",
    help="Start from this checkpoint, by its id or sequence, even if the run no longer uses it.",
)
@click.option(
    "--from",
    "from_step",
    metavar="STEP",
    type=StepName(),
    help="Copy only the results before this step. STEP is a path or a name.",
)
@pairs_option(
    "--set",
    "outputs",
    metavar="STEP=JSON",
    help="Replace a step's recorded output, converted by its function's annotation.",
)
@input_option
@click.option("--id", "new_id", type=NewRunName(), metavar="NEW", help="Id of the new run; by default a new ULID.")
@verify_option
@network_option
@program_options
@json_option
@store_option
def fork_command(  # noqa: PLR0913, PLR0917 - one parameter for each option
    run: str,
    checkpoint: str | None,
    from_step: str | None,
    outputs: dict[str, str],
    inputs: dict[str, str],
    new_id: str | None,
    verify: str | None,
    allow_network: tuple[str, ...],
    target: str | None,
    is_here: bool,
    as_json: bool,
    store: StoreChoice,
) -> None:
    """Create a run that starts from another run's history, with edits if you like. Runs nothing; resume continues it.

    The source is only read: it may be running, failed or completed. The evidence of every copied result is checked first:
    if it does not hold or cannot be checked, no run is created and the exit code is 10.

    Examples:
      flowckpt fork nightly --from clean
      flowckpt fork nightly --checkpoint 7 --id again
      flowckpt fork nightly --set 'clean={"rows": 12}' --id what-if
      flowckpt fork nightly -i limit=500 --json
    """
    checkpoints, run = open_run(store, run)
    edits = parse_edits(outputs)
    refuse_known_secrets(id=new_id)
    program = prepare_program(checkpoints, run, target, is_here=is_here)
    load: Callable[[], Workflow[..., Any] | None] = program
    values: dict[str, Any] = {}
    if edits or inputs:
        workflow = program.load()
        recorded = {name: read_plain_json(text) for name, text in inputs.items() if name not in workflow.secret_inputs}
        refuse_known_secrets(input=recorded)
        values, load = convert_inputs(workflow, inputs), lambda: workflow
    options = RunOptions(
        verify=verify, allow_network=allow_network, target=program.moved_to, base_path=program.base_path
    )
    plan = ForkPlan(
        new_id=new_id or new_run_id(),
        checkpoint=checkpoint or "",
        from_step=from_step or "",
        edits=edits,
        inputs=values,
    )
    made = run_async(fork_run(checkpoints, SystemClock(), run, plan, Recheck(options, program=load)))
    if as_json:
        write_document(made.to_document())
    else:
        write_lines(_fork_lines(made))
        show_resume_hint(made.workflow_id, store)


def _fork_lines(made: Forked) -> list[str]:
    at = f"{escape(made.source_id)} at checkpoint {escape(made.checkpoint_id)} (sequence {made.sequence})"
    lines = [f"run {escape(made.workflow_id)} is a fork of {at}" + ("" if made.is_new else ": it already existed")]
    results = f"results: {made.steps} taken over" + (f", {len(made.edited)} of them edited" if made.edited else "")
    lines.append(f"{results}, {len(made.dropped)} left out")
    if made.undone:
        undone = shorten(", ".join(made.undone), 80)
        lines.append(f"undone in run {escape(made.source_id)}, so run again with what follows: {undone}")
    lines += [f"edited: {shorten(path, 80)}" for path in made.edited]
    lines += [f"input {escape(place)}: {escape(old)} → {escape(new)}" for place, (old, new) in made.inputs.items()]
    return lines
