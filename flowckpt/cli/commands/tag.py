"""`flowckpt tag`."""

from __future__ import annotations

import click

from flowckpt.cli.options import Command, KeyValue, RunName, json_option, store_option, wait_option, without_repeats
from flowckpt.cli.render.terminal import escaped, json_text, keep_for_document, write
from flowckpt.cli.runs import chosen_run, opened_store, waited
from flowckpt.core.system.clock import SystemClock
from flowckpt.engine.session.control import tag_run

_EXAMPLE = """\b
Examples:
  flowckpt tag nightly reviewed=yes
  flowckpt tag nightly team=data --remove draft"""


@click.command("tag", cls=Command, epilog=_EXAMPLE)
@click.argument("run", type=RunName())
@click.argument("tags", type=KeyValue(), nargs=-1, metavar="[K=V]...")
@click.option("--remove", "removed", metavar="K", multiple=True, help="Remove this tag; repeatable.")
@wait_option
@json_option
@store_option
def command(
    run: str,
    tags: tuple[tuple[str, str], ...],
    removed: tuple[str, ...],
    patience: float,
    as_json: bool,
    store: str | None,
) -> None:
    """Add, change or remove tags of a run, whether it is live, waiting or has ended.

    The tags are part of the record: the command saves a checkpoint that differs only in them. The process of a live run
    saves it at the end of its present step.
    """
    if as_json:
        keep_for_document()
    change: dict[str, str | None] = {**without_repeats(tags, "K=V")}
    both = sorted({*change} & {*removed})
    if both:
        raise click.UsageError(f"the tag {both[0]!r} is given a value and removed")
    change |= dict.fromkeys(removed)
    if not change:
        raise click.UsageError("name a tag to change: K=V, or --remove K")
    checkpoints = opened_store(store, runs_nothing=True)
    run = chosen_run(checkpoints, run)
    data = waited(tag_run(checkpoints, SystemClock(), run, change, patience_seconds=patience))
    now = data.metadata.get("tags", {})
    if as_json:
        write(f"{json_text({'workflow_id': run, 'tags': now}, indent=2)}\n")
        return
    shown = " ".join(f"{key}={value}" for key, value in now.items()) or "none"
    write(f"tags of {escaped(run)}: {escaped(shown)}\n")
