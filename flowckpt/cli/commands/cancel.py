"""`flowckpt cancel`."""

from __future__ import annotations

import attrs
import click

from flowckpt.cli.loaded_run import recorded_run
from flowckpt.cli.next_steps import show_resume_hint
from flowckpt.cli.options import (
    Command,
    RunName,
    here_option,
    input_option,
    json_option,
    store_option,
    target_option,
    wait_option,
    without_repeats,
)
from flowckpt.cli.render.summary import show_cancelled, show_not_undone
from flowckpt.cli.render.terminal import json_text, keep_for_document, write
from flowckpt.cli.runs import chosen_run, opened_store, waited
from flowckpt.cli.settings import choose_store
from flowckpt.core.system.clock import SystemClock
from flowckpt.engine import RunOptions, WorkflowEngine
from flowckpt.engine.session.control import cancel_run
from flowckpt.engine.session.session import Session

_EXAMPLE = """\b
Examples:
  flowckpt cancel nightly
  flowckpt cancel nightly --no-rollback --wait 5 --json"""


class _ProgramNeededError(Exception):
    """No process runs it, so its program must say what is to be undone."""


@click.command("cancel", cls=Command, epilog=_EXAMPLE)
@click.argument("run", type=RunName(is_unfinished=True))
@click.option("--no-rollback", is_flag=True, help="Leave what its steps did as it is. Needs no program.")
@click.option(
    "--force",
    is_flag=True,
    help="Undo what can be undone, although the code no longer says it of every step; the others are named.",
)
@wait_option
@input_option
@target_option
@here_option
@json_option
@store_option
def command(  # noqa: PLR0913, PLR0917 - one parameter for each option
    run: str,
    no_rollback: bool,
    force: bool,
    patience: float,
    inputs: tuple[tuple[str, str], ...],
    target: str | None,
    is_here: bool,
    as_json: bool,
    store: str | None,
) -> None:
    """Stop a run for good, and undo its steps that have .rollback(), newest first.

    The command asks a live run on this machine to stop, and waits for it. For a run without a process it loads the
    program and runs only its rollbacks. Then the run is cancelled, and recover leaves it alone; resume can still
    continue it. A completed run is refused. If the code was edited and no longer says how to undo a step, the command
    changes nothing and names the step.
    """
    if as_json:
        keep_for_document()
    texts = without_repeats(inputs, "-i")
    checkpoints, choice = opened_store(store), choose_store(store)
    run = chosen_run(checkpoints, run, is_unfinished=True)

    def undoing() -> Session:
        raise _ProgramNeededError

    undo = None if no_rollback else undoing
    try:
        done = waited(cancel_run(checkpoints, SystemClock(), run, undo=undo, patience_seconds=patience))
    except _ProgramNeededError:
        recorded = recorded_run(choice, run, target=target, inputs=texts, asks_for_secrets=True, is_here=is_here)
        session = WorkflowEngine(checkpoints).prepare_resume(
            recorded.workflow,
            run,
            RunOptions(force=force, base_path=recorded.base_path),
            recorded.inputs,
            is_cancel=True,
        )
        done = waited(cancel_run(checkpoints, SystemClock(), run, undo=lambda: session, patience_seconds=patience))
    if as_json:
        write(f"{json_text(attrs.asdict(done), indent=2)}\n")
        show_not_undone(done)
    else:
        show_cancelled(done)
        show_resume_hint(run, choice)
