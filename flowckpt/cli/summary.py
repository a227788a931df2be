"""The last words about a run, for people."""

from __future__ import annotations

from flowckpt.cli.durations import duration_text
from flowckpt.cli.failures import show_error
from flowckpt.cli.output import say
from flowckpt.cli.status_text import status_text
from flowckpt.cli.terminal_text import escaped, escaped_lines, short_value
from flowckpt.cli.waiting import wait_lines
from flowckpt.engine.failures import failed_step, recorded_error
from flowckpt.engine.result import WorkflowResult
from flowckpt.errors import FlowckptError, StepFailedError
from flowckpt.plan.undoing import step_of


def summary_text(result: WorkflowResult, *, no_color: bool) -> str:
    """Write how a run ended: a few lines, each ending in a line feed.

    Args:
        result: how it ended.
        no_color: whether the command line forbids colours.
    """
    attempt = f" (attempt {result.attempt})" if result.attempt > 1 else ""
    status = status_text(result.status.value, no_color=no_color)
    lines = [f"{status}: {escaped(result.workflow_name)} {escaped(result.workflow_id)}{attempt}"]
    if result.status.value == "completed":
        lines.append(f"output: {short_value(result.output)}")
    lines += wait_lines(result.waits)
    counts = result.steps
    lines.append(f"steps: {counts.executed} executed, {counts.restored} restored, {counts.failed} failed")
    if result.undone or result.rollback_failures:
        stuck = f", {len(result.rollback_failures)} could not be undone" if result.rollback_failures else ""
        lines.append(f"undone: {len(result.undone)}{stuck}")
    lines.append(f"time: {duration_text(result.duration_ms)}")
    if result.is_removed:
        lines.append("removed: it has completed, and on_success is clear; the store has it no more")
    return "".join(f"{line}\n" for line in lines)


def show_failure(result: WorkflowResult, signal_name: str) -> None:
    """Show on standard error why a run ended before its end.

    Args:
        result: how it ended.
        signal_name: the signal that stopped it, if one did.
    """
    error = result.error
    if signal_name:
        is_saved = "it is saved" if result.is_saved else "its end could not be saved"
        say(f"flowckpt: the run was stopped by {signal_name}; {is_saved}")
    elif isinstance(error, FlowckptError) and not isinstance(error, StepFailedError):
        show_error(error)
    elif error is not None:
        recorded = result.failure or recorded_error(error, path=failed_step(error))
        if recorded.traceback:
            say(escaped_lines(recorded.traceback.rstrip()))
        if isinstance(error, StepFailedError):
            say(f"flowckpt: {escaped(error.message)}")
            if error.remedy:
                say(escaped(error.remedy))
        else:
            said = f": {recorded.message}" if recorded.message else ""
            say(f"flowckpt: workflow {result.workflow_name!r} failed with {escaped(recorded.type + said)}")
    for failure in result.rollback_failures:
        said = f"{failure.error_type}: {failure.error_message}"
        path = step_of(failure.path)
        say(escaped(f"flowckpt: step {path!r} could not be undone: {said}"))
    for note in getattr(error, "__notes__", ()):
        say(escaped(str(note)))
