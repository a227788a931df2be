"""`flowckpt plan`."""

from __future__ import annotations

from typing import Any

import click

from flowckpt.cli.arguments import run_options_of
from flowckpt.cli.loaded_run import recorded_run
from flowckpt.cli.notices import show_warnings
from flowckpt.cli.options import (
    Command,
    RunName,
    StepName,
    color_option,
    input_option,
    json_option,
    policy_options,
    program_options,
    store_option,
    without_repeats,
)
from flowckpt.cli.render.plan import show_all, show_plan, show_step
from flowckpt.cli.settings import choose_store


@click.command("plan", cls=Command)
@click.argument("run", type=RunName(is_unfinished=True), required=False)
@click.argument("step", type=StepName(), required=False)
@click.option(
    "--all", "is_all", is_flag=True, help="Plan every unfinished run of the store, for example before a deployment."
)
@policy_options
@input_option
@program_options
@json_option
@store_option
@color_option
def plan_command(
    run: str | None,
    step: str | None,
    is_all: bool,
    inputs: tuple[tuple[str, str], ...],
    target: str | None,
    is_here: bool,
    as_json: bool,
    store: str | None,
    **policy: Any,
) -> int:
    """Show what a resume with the same options would do, step by step, and why. Runs and changes nothing.

    With STEP, explain the decision about one step: its code, arguments, version, evidence, and the steps before it. STEP
    is a path, or a name (its first use).

    With --all, show for each unfinished run (with --target, only of that workflow) whether a resume would stop, and why.
    A run that would only run steps again does not count.

    The exit code is 0 if nothing is stale and 10 if something is. If the resume would stop, the exit code is that of the
    resume: 10 for a stale result, 14 if the workflow yields other steps than recorded, 15 for a step in doubt, and 1 for
    a run that stopped during its undo.

    Examples:
      flowckpt plan nightly
      flowckpt plan nightly --on-code-change rerun --verify stat
      flowckpt plan nightly --from clean --json
      flowckpt plan nightly clean
      flowckpt plan nightly 'parse[24]' --json
      flowckpt plan --all --json
    """
    show_warnings()
    if is_all:
        if run is not None or inputs:
            raise click.UsageError("--all excludes RUN and -i: it plans every unfinished run")
        return show_all(choose_store(store), run_options_of(policy), target, as_json=as_json)
    if run is None:
        raise click.UsageError("Give an id, a unique prefix of one, --last, or --all; 'flowckpt list' shows the ids")
    texts = without_repeats(inputs, "-i")
    found = recorded_run(choose_store(store), run, target=target, inputs=texts, is_here=is_here)
    options = run_options_of(policy, base_path=found.base_path)
    if step is not None:
        return show_step(found, options, step, as_json=as_json)
    return show_plan(found, options, as_json=as_json)
