"""`flowckpt why`."""

from __future__ import annotations

import click

from flowckpt.cli.loaded_run import planned_run, recorded_run
from flowckpt.cli.notices import show_warnings
from flowckpt.cli.options import (
    RunName,
    StepName,
    color_option,
    input_option,
    json_option,
    network_option,
    store_option,
    target_option,
    verify_option,
    without_repeats,
)
from flowckpt.cli.render.plan import explained_step
from flowckpt.cli.render.terminal import is_terminal, json_text, keep_for_document, write
from flowckpt.cli.settings import choose_store, color_allowed
from flowckpt.engine import RunOptions

_EXAMPLE = """\b
Examples:
  flowckpt why nightly clean
  flowckpt why nightly 'parse[24]' --json"""


@click.command("why", epilog=_EXAMPLE)
@click.argument("run", type=RunName())
@click.argument("step", type=StepName())
@verify_option
@network_option
@input_option
@target_option
@json_option
@store_option
@color_option
def command(
    run: str,
    step: str,
    verify: str | None,
    allow_network: tuple[str, ...],
    inputs: tuple[tuple[str, str], ...],
    target: str | None,
    as_json: bool,
    store: str | None,
    no_color: bool,
) -> None:
    """Show why a step would run again or be reused: its code, its arguments, its evidence, what comes before it.

    STEP is its path, or its name, whose first use is meant. Runs nothing, changes nothing.
    """
    if as_json:
        keep_for_document()
    show_warnings()
    found = recorded_run(choose_store(store), run, target=target, inputs=without_repeats(inputs, "-i"))
    planned = planned_run(found, RunOptions(verify=verify, allow_network=allow_network))
    explanation = explained_step(run, step, found.latest, planned)
    if as_json:
        write(f"{json_text(explanation.to_document(run), indent=2)}\n")
    else:
        is_colored = is_terminal() and not no_color and color_allowed()
        write("".join(f"{line}\n" for line in explanation.lines(is_colored=is_colored)))
