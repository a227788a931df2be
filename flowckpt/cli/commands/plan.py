"""`flowckpt plan`."""

from __future__ import annotations

from typing import Any

import click

from flowckpt.cli.loaded_run import recorded_run
from flowckpt.cli.notices import show_warnings
from flowckpt.cli.options import (
    RunName,
    color_option,
    input_option,
    json_option,
    policy_options,
    store_option,
    target_option,
    without_repeats,
)
from flowckpt.cli.render.plan import show_plan
from flowckpt.cli.render.terminal import keep_for_document
from flowckpt.cli.settings import choose_store
from flowckpt.engine import RunOptions

_EXAMPLE = """\b
Examples:
  flowckpt plan nightly
  flowckpt plan nightly --on-code-change rerun --verify stat
  flowckpt plan nightly --from clean --json"""


@click.command("plan", epilog=_EXAMPLE)
@click.argument("run", type=RunName())
@policy_options
@input_option
@target_option
@json_option
@store_option
@color_option
def command(
    run: str,
    inputs: tuple[tuple[str, str], ...],
    target: str | None,
    as_json: bool,
    store: str | None,
    no_color: bool,
    **policy: Any,
) -> int:
    """Show what a resume with the same options would do, step by step, with reasons. Runs nothing, changes nothing.

    Exits with 0 where nothing is stale, and with 10 where something is. Where the resume would stop, it exits as that
    would: 10 for a stale result, 14 where the workflow yields something else than the record says, 15 for a step in
    doubt; and 1 for a run that stopped while its steps were undone, which the resume would only finish.
    """
    if as_json:
        keep_for_document()
    show_warnings()
    found = recorded_run(choose_store(store), run, target=target, inputs=without_repeats(inputs, "-i"))
    return show_plan(found, RunOptions(**policy), as_json=as_json, no_color=no_color)
