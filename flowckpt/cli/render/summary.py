"""The summary of an ended run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.cli.groups import add_store_option
from flowckpt.cli.next_steps import show_resume_hint, wait_lines
from flowckpt.cli.notices import show_error
from flowckpt.cli.render.tables import duration_text, figures_text, status_text
from flowckpt.cli.render.terminal import escape, escape_lines, say, short_value, write_lines
from flowckpt.cli.runs import run_async
from flowckpt.cli.settings import StoreChoice
from flowckpt.core.records import CheckpointData, Status, generation
from flowckpt.core.system.blocking import start_within
from flowckpt.core.system.numbers import join_names
from flowckpt.engine.rules.paths import ROLLBACK, step_of
from flowckpt.engine.values.failures import find_failed_step
from flowckpt.engine.values.result import WorkflowResult
from flowckpt.errors import CheckpointStorageError, FlowckptError, StepFailedError
from flowckpt.execution.errors import record_error
from flowckpt.stores.base import StoreBase

if TYPE_CHECKING:
    from flowckpt.engine.session.control import Cancelled

_LAST_READ_SECONDS = 5.0
"""How long the end of a run waits for a store that failed its last save."""


def summary_text(result: WorkflowResult) -> str:
    """Return the summary of a run in a few lines, each ending in a line feed."""
    attempt = f" (attempt {result.attempt})" if result.attempt > 1 else ""
    status = status_text(result.status.value)
    lines = [f"{status}: {escape(result.workflow_name)} {escape(result.workflow_id)}{attempt}"]
    if result.status.value == "completed":
        lines.append(f"output: {short_value(result.output)}")
    lines += wait_lines(result.waits)
    counts = result.steps
    lines.append(f"steps: {counts.executed} executed, {counts.restored} restored, {counts.failed} failed")
    if result.undone or result.rollback_failures:
        stuck = f", {len(result.rollback_failures)} could not be undone" if result.rollback_failures else ""
        lines.append(f"undone: {len(result.undone)}{stuck}")
    if result.figures:
        lines.append(f"figures: {figures_text(result.figures)}")
    lines.append(f"time: {duration_text(result.duration_ms)}")
    if result.is_removed:
        lines.append("removed: it has completed, and on_success is clear")
    return "".join(f"{line}\n" for line in lines)


def show_failure(result: WorkflowResult, signal_name: str) -> None:
    """Show on standard error why a run did not complete.

    Args:
        result: its result.
        signal_name: the signal that stopped it, if one did.
    """
    error = result.error
    if signal_name:
        is_saved = "it is saved" if result.is_saved else "its end could not be saved"
        say(f"flowckpt: the run was stopped by {signal_name}; {is_saved}")
    elif isinstance(error, FlowckptError) and not isinstance(error, StepFailedError):
        show_error(error)
    elif error is not None:
        recorded = result.failure or record_error(error, path=find_failed_step(error))
        trace = error.trace if isinstance(error, StepFailedError) else recorded.traceback.rstrip()
        if trace:
            say(escape_lines(trace))
        if isinstance(error, StepFailedError):
            say(f"flowckpt: {escape(error.message)}")
            if error.remedy:
                say(escape(error.remedy))
        else:
            text = f": {recorded.message}" if recorded.message else ""
            say(f"flowckpt: workflow {result.workflow_name!r} failed with {escape(recorded.type + text)}")
    for failure in result.rollback_failures:
        text = f"{failure.error_type}: {failure.error_message}"
        path = step_of(failure.path)
        say(escape(f"flowckpt: step {path!r} could not be undone: {text}"))
    for note in getattr(error, "__notes__", ()):
        if not isinstance(error, StepFailedError) or note != error.trace:
            say(escape(str(note)))


def show_orphaned(before: CheckpointData, after: CheckpointData | None) -> None:
    """Name on standard error the recorded steps that a completed resume has dropped, without those inside them.

    Args:
        before: the checkpoint that the resume started from.
        after: the end of the run; None if the run was removed.
    """
    if after is None or generation.number_of(after.metadata) != generation.number_of(before.metadata):
        return
    gone = {each.path: None for each in before.step_results if each.step_type != ROLLBACK}
    for each in after.step_results:
        gone.pop(each.path, None)
    names = [escape(path) for path in gone if path.rpartition("/")[0] not in gone]
    if names:
        say(
            f"flowckpt: recorded, but no longer yielded by the workflow, so dropped: {join_names(names, 8)}; "
            "the other recorded results were reused if they are still valid"
        )


def show_cancelled(done: Cancelled) -> None:
    """Show that a run was cancelled, with the steps that were undone and those that could not be."""
    lines = [f"cancelled: {escape(done.workflow_id)} (it was {done.was})"]
    if done.undone:
        lines.append(f"undone: {', '.join(map(escape, done.undone))}")
    write_lines(lines)
    show_not_undone(done)


def show_not_undone(done: Cancelled) -> None:
    """Name the steps of a cancelled run that could not be undone, and those in doubt."""
    for path in done.not_undone:
        message = (
            f"step {escape(path)} could not be undone; 'flowckpt show {escape(done.workflow_id)} --steps' says why"
        )
        say(f"flowckpt: {add_store_option(message)}")
    for path in done.in_doubt:
        say(
            f"flowckpt: step {escape(path)} had started and has no recorded end, so it was not undone. Check whether it was done."
        )


# The summary of a run whose end is not saved.


def show_unsaved_output(result: WorkflowResult) -> None:
    """Warn that a run completed, but its completion is not saved."""
    say("flowckpt: warning: the run completed, but its end is not saved; its output is only shown here")
    if result.save_error is not None:
        say(escape(result.save_error.message))


def show_what_is_left(
    workflow_id: str, store: StoreBase, choice: StoreChoice, *, last_saved: str | None = None
) -> None:
    """Show the checkpoint from which a resume would continue, and the command for it.

    Args:
        workflow_id: the run.
        store: its store.
        choice: how the store was chosen.
        last_saved: the id of the last checkpoint known to be saved, in case the store cannot be read.
    """
    try:
        latest = run_async(_read_latest(workflow_id, store))
    except FlowckptError as error:
        known = f"; the last checkpoint known to be saved is {last_saved!r}" if last_saved else ""
        say(escape(f"The rest of the run cannot be read now: {error.message}{known}"))
        show_resume_hint(workflow_id, choice)
        return
    if latest is None:
        say("The store has no checkpoint of the run, so it cannot be resumed: start it again.")
        return
    if latest.status is Status.COMPLETED:
        say("The store shows the end of the run, but did not acknowledge it; it may not survive a power cut.")
    else:
        place = f"checkpoint {latest.checkpoint_id!r} (sequence {latest.sequence})"
        say(escape(f"A resume continues from {place}; later steps run again."))
    show_resume_hint(workflow_id, choice)


async def _read_latest(workflow_id: str, store: StoreBase) -> CheckpointData | None:
    """Return the newest checkpoint; raise if the store takes too long."""
    loading = await start_within(store.load_latest(workflow_id), patience=_LAST_READ_SECONDS)
    if not loading.done():
        raise CheckpointStorageError("the store does not answer", workflow_id=workflow_id, operation="read")
    return loading.result()
