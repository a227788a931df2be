"""`flowckpt checkpoint`."""

from __future__ import annotations

import click

from flowckpt.cli.options import Command, RunName, json_option, store_option, wait_option
from flowckpt.cli.render.terminal import escaped, json_text, keep_for_document, write
from flowckpt.cli.runs import chosen_run, opened_store, waited
from flowckpt.core.system.clock import SystemClock
from flowckpt.core.system.numbers import counted
from flowckpt.engine.session.control import checkpoint_run

_EXAMPLE = """\b
Examples:
  flowckpt checkpoint nightly
  flowckpt checkpoint nightly --wait 600"""


@click.command("checkpoint", cls=Command, epilog=_EXAMPLE)
@click.argument("run", type=RunName(is_unfinished=True))
@wait_option
@json_option
@store_option
def command(run: str, patience: float, as_json: bool, store: str | None) -> None:
    """Have a live run save a checkpoint at the end of its present step, before a deployment or a reboot.

    Steps without .checkpoint() are saved with the next checkpoint only; this one makes their results durable now.
    """
    if as_json:
        keep_for_document()
    checkpoints = opened_store(store, runs_nothing=True)
    run = chosen_run(checkpoints, run, is_unfinished=True)
    data = waited(checkpoint_run(checkpoints, SystemClock(), run, patience_seconds=patience))
    steps = len(data.step_results)
    if as_json:
        document = {
            "workflow_id": run,
            "checkpoint_id": data.checkpoint_id,
            "sequence": data.sequence,
            "steps": steps,
        }
        write(f"{json_text(document, indent=2)}\n")
        return
    place = f"checkpoint {escaped(data.checkpoint_id)} (sequence {data.sequence})"
    write(f"saved {place} of {escaped(run)}: {counted(steps, 'step')}\n")
