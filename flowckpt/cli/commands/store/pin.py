"""`flowckpt store pin`."""

from __future__ import annotations

from typing import Any

import click

from flowckpt.cli.options import Command, RunName, json_option, store_option
from flowckpt.cli.render.terminal import escaped, json_text, keep_for_document, write
from flowckpt.cli.runs import chosen_run, latest_of, opened_store, waited
from flowckpt.engine.history.checkpoints import earlier_checkpoint
from flowckpt.stores.base import Ability

_EXAMPLE = """\b
Examples:
  flowckpt store pin nightly
  flowckpt store pin nightly trained
  flowckpt store pin nightly trained --unpin"""


@click.command("pin", cls=Command, epilog=_EXAMPLE)
@click.argument("run", type=RunName())
@click.argument("checkpoint", required=False)
@click.option("--unpin", is_flag=True, help="Take the pin away again.")
@json_option
@store_option
def command(run: str, checkpoint: str | None, unpin: bool, as_json: bool, store: str | None) -> None:
    """Keep a checkpoint whatever is pruned, and its run with it. Only clear removes it.

    CHECKPOINT is an id, of which the newest counts, or a sequence; by default the newest checkpoint. A live run can
    be pinned, too.
    """
    if as_json:
        keep_for_document()
    checkpoints = opened_store(store, runs_nothing=True)
    if not checkpoints.has(Ability.PINS):
        raise click.UsageError(f"{checkpoints!r} cannot pin checkpoints")
    run = chosen_run(checkpoints, run)
    data = latest_of(checkpoints, run)
    if checkpoint is not None:
        data = waited(earlier_checkpoint(checkpoints, run, data, checkpoint))
    was_pinned = data.sequence in waited(checkpoints.pinned(run))
    change = checkpoints.unpin if unpin else checkpoints.pin
    waited(change(run, data.sequence))
    is_changed = was_pinned is unpin
    if as_json:
        document: dict[str, Any] = {
            "workflow_id": run,
            "checkpoint_id": data.checkpoint_id,
            "sequence": data.sequence,
            "pinned": not unpin,
        }
        if not is_changed:
            document["changed"] = False
        write(f"{json_text(document, indent=2)}\n")
        return
    place = f"checkpoint {escaped(data.checkpoint_id)} (sequence {data.sequence})"
    if is_changed:
        write(f"{'unpinned' if unpin else 'pinned'} {place} of {escaped(run)}\n")
    else:
        write(f"{place} of {escaped(run)} {'was not pinned' if unpin else 'is pinned already'}: nothing was changed\n")
