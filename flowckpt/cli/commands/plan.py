"""`flowckpt plan`."""

from __future__ import annotations

from typing import Any

import click

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
    run_options_of,
    store_option,
    target_option,
    without_repeats,
)
from flowckpt.cli.render.plan import show_plan, show_step
from flowckpt.cli.render.terminal import keep_for_document
from flowckpt.cli.settings import choose_store

_EXAMPLE = """\b
Examples:
  flowckpt plan nightly
  flowckpt plan nightly --on-code-change rerun --verify stat
  flowckpt plan nightly --from clean --json
  flowckpt plan nightly clean
  flowckpt plan nightly 'parse[24]' --json"""


@click.command("plan", cls=Command, epilog=_EXAMPLE)
@click.argument("run", type=RunName(is_unfinished=True))
@click.argument("step", type=StepName(), required=False)
@policy_options
@input_option
@target_option
@json_option
@store_option
@color_option
def command(
    run: str,
    step: str | None,
    inputs: tuple[tuple[str, str], ...],
    target: str | None,
    as_json: bool,
    store: str | None,
    no_color: bool,
    **policy: Any,
) -> int:
    """Show what a resume with the same options would do, step by step, and why. Run nothing and change nothing.

    With STEP, show everything that speaks for or against the recorded result of one step: its code, arguments,
    version, evidence, and the steps before it. STEP is a path, or a name (its first use).

    The exit code is 0 if nothing is stale and 10 if something is. If the resume would stop, the exit code is that of the
    resume: 10 for a stale result, 14 if the workflow yields something else than recorded, 15 for a step in doubt, and 1
    for a run that stopped while it was being undone.
    """
    if as_json:
        keep_for_document()
    show_warnings()
    found = recorded_run(choose_store(store), run, target=target, inputs=without_repeats(inputs, "-i"))
    options = run_options_of(policy)
    if step is not None:
        return show_step(found, options, step, as_json=as_json, no_color=no_color)
    return show_plan(found, options, as_json=as_json, no_color=no_color)
