"""The last words about a run whose end is not in the store: what a resume would find there."""

from __future__ import annotations

from flowckpt.checkpoint import Status
from flowckpt.cli.output import say
from flowckpt.cli.resume_hint import show_resume_hint
from flowckpt.cli.settings import StoreChoice
from flowckpt.cli.stored_runs import waited
from flowckpt.cli.terminal_text import escaped
from flowckpt.engine.result import WorkflowResult
from flowckpt.errors import FlowckptError
from flowckpt.stores.base import CheckpointStore


def show_unsaved_output(result: WorkflowResult) -> None:
    """Warn of a run that completed and could not save that it did.

    Args:
        result: how it ended.
    """
    say("flowckpt: warning: the run completed, but its end is not saved; its output is nowhere but here")
    if result.save_error is not None:
        say(escaped(result.save_error.message))


def show_what_is_left(
    workflow_id: str, store: CheckpointStore, choice: StoreChoice, *, last_saved: str | None = None
) -> None:
    """Show from which checkpoint a resume would go on, as the store is now, and the very command for it.

    Args:
        workflow_id: the run.
        store: the store that it is in.
        choice: which one that is.
        last_saved: the id of the last checkpoint that is known to be saved, in case the store cannot be read.
    """
    try:
        latest = waited(store.load_latest(workflow_id))
    except FlowckptError as error:
        known = f"; the last checkpoint known to be saved is {last_saved!r}" if last_saved else ""
        say(escaped(f"What is left of the run cannot be read now: {error.message}{known}"))
        show_resume_hint(workflow_id, choice)
        return
    if latest is None:
        say("Nothing of the run is in the store, so it cannot be carried on: start it again.")
        return
    if latest.status is Status.COMPLETED:
        say("The store shows its end now, but that was not acknowledged, and may not outlive the machine.")
    else:
        place = f"checkpoint {latest.checkpoint_id!r} (sequence {latest.sequence})"
        say(escaped(f"A resume goes on from {place}; what was done after it is done again."))
    show_resume_hint(workflow_id, choice)
