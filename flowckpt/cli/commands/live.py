"""Requests to a run that may be live: `flowckpt cancel`, `checkpoint` and `tag`."""

from __future__ import annotations

import attrs
import click

from flowckpt.cli.arguments import refuse_known_secrets
from flowckpt.cli.loaded_run import load_recorded_run
from flowckpt.cli.next_steps import show_resume_hint
from flowckpt.cli.options import (
    Command,
    KeyValue,
    RunName,
    collect_pairs,
    input_option,
    json_option,
    program_options,
    store_option,
    wait_option,
)
from flowckpt.cli.render.summary import show_cancelled, show_not_undone
from flowckpt.cli.render.terminal import escape, write, write_document
from flowckpt.cli.runs import open_run, run_async
from flowckpt.cli.settings import StoreChoice
from flowckpt.core.system.clock import SystemClock
from flowckpt.core.system.numbers import pluralize
from flowckpt.engine import RunOptions, WorkflowEngine
from flowckpt.engine.session.control import cancel_run, checkpoint_run, tag_run
from flowckpt.engine.session.session import Session


class _ProgramNeededError(Exception):
    """No process runs it, so its program must define what to undo."""


@click.command("cancel", cls=Command)
@click.argument("run", type=RunName(is_unfinished=True))
@click.option("--no-rollback", is_flag=True, help="Do not undo any steps. Needs no program.")
@click.option(
    "--force",
    is_flag=True,
    help="Undo what can be undone, even if the code no longer says how to undo every step; the others are named.",
)
@wait_option
@input_option
@program_options
@json_option
@store_option
def cancel_command(  # noqa: PLR0913, PLR0917 - one parameter for each option
    run: str,
    no_rollback: bool,
    force: bool,
    patience: float,
    inputs: dict[str, str],
    target: str | None,
    is_here: bool,
    as_json: bool,
    store: StoreChoice,
) -> None:
    """Stop a run for good, and undo its steps that have .rollback(), newest first.

    The command asks a live run on this machine to stop, and waits for it. For a run without a process it loads the
    program and runs only its rollbacks. Then the run is cancelled, and recover leaves it alone; resume can still
    continue it. A completed run is refused. If the code was edited and no longer says how to undo a step, the command
    changes nothing and names the step.

    Examples:
      flowckpt cancel nightly
      flowckpt cancel nightly --no-rollback --wait 5 --json
    """
    checkpoints, run = open_run(store, run, is_unfinished=True)

    def require_program() -> Session:
        raise _ProgramNeededError

    undo = None if no_rollback else require_program
    try:
        done = run_async(cancel_run(checkpoints, SystemClock(), run, undo=undo, patience_seconds=patience))
    except _ProgramNeededError:
        recorded = load_recorded_run(store, run, target=target, inputs=inputs, asks_for_secrets=True, is_here=is_here)
        session = WorkflowEngine(checkpoints).prepare_resume(
            recorded.workflow,
            run,
            RunOptions(force=force, target=recorded.moved_to, base_path=recorded.base_path),
            recorded.inputs,
            is_cancel=True,
        )
        done = run_async(cancel_run(checkpoints, SystemClock(), run, undo=lambda: session, patience_seconds=patience))
    if as_json:
        write_document(attrs.asdict(done))
        show_not_undone(done)
    else:
        show_cancelled(done)
        show_resume_hint(run, store)


@click.command("checkpoint", cls=Command)
@click.argument("run", type=RunName(is_unfinished=True))
@wait_option
@json_option
@store_option
def checkpoint_command(run: str, patience: float, as_json: bool, store: StoreChoice) -> None:
    """Have a live run save a checkpoint when its current step ends, for example before a deployment or a reboot.

    Results of steps without .checkpoint() are saved only with the next checkpoint; this command makes them durable now.

    Examples:
      flowckpt checkpoint nightly
      flowckpt checkpoint nightly --wait 600
    """
    checkpoints, run = open_run(store, run, runs_nothing=True, is_unfinished=True)
    data = run_async(checkpoint_run(checkpoints, SystemClock(), run, patience_seconds=patience))
    steps = len(data.step_results)
    if as_json:
        document = {
            "workflow_id": run,
            "checkpoint_id": data.checkpoint_id,
            "sequence": data.sequence,
            "steps": steps,
        }
        write_document(document)
        return
    place = f"checkpoint {escape(data.checkpoint_id)} (sequence {data.sequence})"
    write(f"saved {place} of {escape(run)}: {pluralize(steps, 'step')}\n")


@click.command("tag", cls=Command)
@click.argument("run", type=RunName())
@click.argument("tags", type=KeyValue(), nargs=-1, metavar="[K=V]...")
@click.option("--remove", "removed", metavar="K", multiple=True, help="Remove this tag; repeatable.")
@wait_option
@json_option
@store_option
def tag_command(
    run: str,
    tags: tuple[tuple[str, str], ...],
    removed: tuple[str, ...],
    patience: float,
    as_json: bool,
    store: StoreChoice,
) -> None:
    """Add, change or remove tags of a run, even while it is live or after it has ended.

    The tags are part of the record: the command saves a checkpoint that differs only in them. A live run's process saves
    it when its current step ends.

    Examples:
      flowckpt tag nightly reviewed=yes
      flowckpt tag nightly team=data --remove draft
    """
    change: dict[str, str | None] = {**collect_pairs(tags, "K=V")}
    both = sorted({*change} & {*removed})
    if both:
        raise click.UsageError(f"the tag {both[0]!r} is given a value and removed")
    change |= dict.fromkeys(removed)
    if not change:
        raise click.UsageError("name a tag to change: K=V, or --remove K")
    refuse_known_secrets(tag={key: value or "" for key, value in change.items()})
    checkpoints, run = open_run(store, run, runs_nothing=True)
    data = run_async(tag_run(checkpoints, SystemClock(), run, change, patience_seconds=patience))
    tags_after = data.metadata.get("tags", {})
    if as_json:
        write_document({"workflow_id": run, "tags": tags_after})
        return
    text = " ".join(f"{key}={value}" for key, value in tags_after.items()) or "none"
    write(f"tags of {escape(run)}: {escape(text)}\n")
