"""Driving a run from the command line: its progress, its result, and the exit code that says how it ended."""

from __future__ import annotations

from typing import Any

import attrs

from flowckpt.cli.exit_codes import ExitCode, code_of_error, code_of_result, code_of_signal
from flowckpt.cli.failures import show_error
from flowckpt.cli.output import OutputFailedError, say, write_if_read
from flowckpt.cli.progress import choose_progress
from flowckpt.cli.resume_hint import show_resume_hint
from flowckpt.cli.run_documents import ended_document
from flowckpt.cli.settings import StoreChoice
from flowckpt.cli.summary import show_failure, summary_text
from flowckpt.cli.terminal_text import json_text
from flowckpt.dsl import Workflow
from flowckpt.engine import WorkflowEngine, WorkflowResult
from flowckpt.engine.session import Session
from flowckpt.errors import FencedError, FlowckptError, RunLockedError, WorkflowChangedError
from flowckpt.execution.interrupts import RunInterrupted

_RESUMABLE = (RunLockedError, FencedError, WorkflowChangedError)


@attrs.frozen
class Form:
    """In which form a run is told.

    Attributes:
        as_json: one document at the end, on standard output.
        as_events: the events, as JSON lines on standard output.
        no_color: nothing drawn.
    """

    as_json: bool = False
    as_events: bool = False
    no_color: bool = False


@attrs.frozen
class _Ending:
    """How the driving of a run ended.

    Attributes:
        result: the run's result, where it has one.
        signal_name: the signal that stopped it, if one did.
    """

    result: WorkflowResult | None
    signal_name: str = ""


def follow(
    session: Session,
    workflow: Workflow[..., Any],
    workflow_id: str,
    *,
    store: StoreChoice,
    form: Form,
    restored_attempt: int = 0,
) -> ExitCode:
    """Drive a run to its end, show it, and return the exit code.

    Args:
        session: the start or the resume.
        workflow: its workflow.
        workflow_id: the run.
        store: the store that it is in.
        form: how it is told.
        restored_attempt: the attempt that a resume goes on from; 0 for a new run.
    """
    try:
        ending = _drive(session, workflow, form, restored_attempt)
    except FlowckptError as error:
        show_error(error)
        code = code_of_error(error)
        if isinstance(error, _RESUMABLE):
            show_resume_hint(workflow_id, store)
        return code
    result = ending.result
    if result is None:
        say(f"flowckpt: stopped at once by {ending.signal_name}; what was saved before is saved")
        show_resume_hint(workflow_id, store)
        return code_of_signal(ending.signal_name)
    code = code_of_result(result, signal_name=ending.signal_name)
    try:
        if form.as_json:
            write_if_read(f"{json_text(ended_document(result, workflow.output_type))}\n")
        elif not form.as_events:
            write_if_read(summary_text(result, no_color=form.no_color))
    except OutputFailedError as error:
        say(f"flowckpt: standard output cannot be written: {error}")
        code = code or ExitCode.OUTPUT_FAILED
    if code not in (ExitCode.DONE, ExitCode.OUTPUT_FAILED):
        show_failure(result, ending.signal_name)
        if result.status == "failed" and result.steps.restored and not result.steps.executed:
            say("Every step was restored, so a resume ends the same way: mend the workflow's own code first.")
        show_resume_hint(workflow_id, store)
    return code


def _drive(session: Session, workflow: Workflow[..., Any], form: Form, restored_attempt: int) -> _Ending:
    progress = choose_progress(
        as_events=form.as_events,
        no_color=form.no_color,
        output_type=workflow.output_type,
        restored_attempt=restored_attempt,
    )
    progress.start()
    try:
        result = WorkflowEngine.drive_sync(session, door="flowckpt", on_event=progress.tell)
    except RunInterrupted as stop:
        return _Ending(stop.result, stop.signal_name)
    finally:
        progress.stop()
    return _Ending(result)
