"""Driving a run from the command line: its progress, its result, and its exit code."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import click

from flowckpt.cli.exit_codes import ExitCode, code_of_error, code_of_result
from flowckpt.cli.next_steps import (
    CODE,
    NEEDS_A_DECISION,
    ResumeLine,
    change_kinds,
    mismatch_ways,
    secret_ways,
    show_resume_hint,
    show_stop,
    show_ways_on,
)
from flowckpt.cli.notices import show_error
from flowckpt.cli.options import color_option, events_option, json_option
from flowckpt.cli.progress import JsonLines, choose_progress
from flowckpt.cli.progress.lines import ended_document
from flowckpt.cli.render.summary import (
    show_cancelled,
    show_failure,
    show_orphaned,
    show_unsaved_output,
    show_what_is_left,
    summary_text,
)
from flowckpt.cli.render.terminal import OutputFailedError, escape, is_person_there, json_text, say, write_if_read
from flowckpt.cli.runs import run_async
from flowckpt.cli.settings import StoreChoice
from flowckpt.core.dsl import Workflow
from flowckpt.core.records import CheckpointData
from flowckpt.core.system.attrs_base import FieldEquality
from flowckpt.core.system.clock import SystemClock
from flowckpt.core.system.numbers import pluralize
from flowckpt.engine import RunOptions, WorkflowEngine, WorkflowResult
from flowckpt.engine.run.resumption import is_final
from flowckpt.engine.session.session import Session
from flowckpt.errors import (
    CheckpointStorageError,
    FencedError,
    FlowckptError,
    InputMismatchError,
    RunLockedError,
    RunUndoneError,
    SecretMissingError,
    StaleStepError,
    StepInDoubtError,
    WorkflowChangedError,
)
from flowckpt.execution.interrupts import RunInterrupted

_NOTED = (StaleStepError, StepInDoubtError, WorkflowChangedError)
"""The errors after which a run is listed as stale: it needs a person."""
_RESUMABLE = (RunLockedError, WorkflowChangedError)


@attrs.frozen(eq=False, repr=False)
class Form(FieldEquality):
    """The output format of a run.

    Attributes:
        as_json: one document at the end, on standard output.
        as_events: the events, as JSON lines on standard output.

    Raises:
        click.UsageError: both `--json` and `--events` were given.
    """

    as_json: bool = False
    as_events: bool = False

    def __attrs_post_init__(self) -> None:
        if self.as_json and self.as_events:
            raise click.UsageError("--json and --events exclude each other: both print to standard output")


def form_options(command: Callable[..., ExitCode | int]) -> Callable[..., ExitCode | int]:
    """Add `--json`, `--events`, `--progress` and `--no-color`, which the command gets as one `form`."""

    @json_option
    @events_option
    @color_option
    @functools.wraps(command)
    def with_form(*, as_json: bool, as_events: bool, **options: Any) -> ExitCode | int:
        return command(form=Form(as_json, as_events), **options)

    return with_form


@attrs.frozen(eq=False, repr=False)
class ResumeFacts(FieldEquality):
    """The facts about a resume apart from its session.

    Attributes:
        latest: the checkpoint that it continues from.
        line: the resume as typed.
        is_noted: whether the run is listed as stale if the resume stops until a person decides.
    """

    latest: CheckpointData
    line: ResumeLine
    is_noted: bool = False


Ask: TypeAlias = Callable[[StaleStepError], tuple[Session, ResumeFacts] | None]


def follow_run(
    session: Session,
    workflow: Workflow[..., Any],
    workflow_id: str,
    *,
    store: StoreChoice,
    form: Form,
    resuming: ResumeFacts | None = None,
    ask: Ask | None = None,
) -> ExitCode:
    """Drive a run to its end, show it, and return the exit code.

    Args:
        session: the start or the resume.
        workflow: its workflow.
        workflow_id: the run.
        store: the store of the run.
        form: the output format.
        resuming: further facts of a resume.
        ask: asks a person what to do if a step's function was edited, and returns the session to continue with, if any.
    """
    line = None if resuming is None else resuming.line
    try:
        result, stop, unwritten = _drive(session, workflow, form, resuming)
    except FlowckptError as error:
        if isinstance(error, StaleStepError) and ask is not None and CODE in change_kinds(error):
            answer = ask(error)
            if answer is None:
                say("flowckpt: stopped; nothing was run, and nothing was changed")
                return code_of_error(error)
            chosen, resuming = answer
            return follow_run(chosen, workflow, workflow_id, store=store, form=form, resuming=resuming)
        _show_refusal(error, session, workflow_id, store, resuming)
        return code_of_error(error)
    signal_name = "" if stop is None else stop.signal_name
    if result is None:
        say(f"flowckpt: stopped at once by {signal_name}; earlier checkpoints are intact")
        for note in getattr(stop, "__notes__", ()):
            say(note)
        show_resume_hint(workflow_id, store)
        return ExitCode[signal_name]
    code = code_of_result(result, signal_name=signal_name, continue_on_save_error=session.continue_on_save_error)
    if not _write_result(result, unwritten, workflow, form):
        code = code or ExitCode.OUTPUT_FAILED
    _note_stop(result.error, session, workflow_id, resuming, attempt=result.attempt)
    if isinstance(result.error, NEEDS_A_DECISION) and line is not None:
        if line.options.done or line.options.not_done:
            latest = run_async(session.store.load_latest(workflow_id))
            line = line.leave_out({each.path for each in latest.step_results if each.success} if latest else ())
        show_stop(result.error, line)
    elif code is ExitCode.SUSPENDED:
        show_ways_on(workflow_id, result.waits, store)
    elif code not in (ExitCode.DONE, ExitCode.OUTPUT_FAILED) or (result.error is None and not result.is_saved):
        _show_end(result, signal_name, session, store, form)
    elif resuming is not None and resuming.line.options.force:
        show_orphaned(resuming.latest, run_async(session.store.load_latest(workflow_id)))
    return code


def _write_result(result: WorkflowResult, unwritten: str, workflow: Workflow[..., Any], form: Form) -> bool:
    """Write the result, except after events, to standard output; return whether all output was written."""
    try:
        if form.as_json:
            write_if_read(f"{json_text(ended_document(result, workflow.output_type))}\n")
        elif not form.as_events:
            write_if_read(summary_text(result))
        elif unwritten:
            raise OutputFailedError(unwritten)
    except OutputFailedError as error:
        say(f"flowckpt: standard output cannot be written: {error}")
        return False
    return True


def _show_refusal(
    error: FlowckptError, session: Session, workflow_id: str, store: StoreChoice, resuming: ResumeFacts | None
) -> None:
    """Show why a run could not be started or resumed, and what to do; note if it needs a person."""
    line = None if resuming is None else resuming.line
    _note_stop(error, session, workflow_id, resuming)
    if isinstance(error, NEEDS_A_DECISION) and line is not None:
        show_stop(error, line)
        return
    if isinstance(error, SecretMissingError) and line is not None:
        show_error(error, secret_ways(line, error.names))
    elif isinstance(error, InputMismatchError) and line is not None:
        show_error(error, mismatch_ways(line, error))
    else:
        show_error(error)
    if isinstance(error, FencedError) and not error.newest_attempt:
        show_what_is_left(workflow_id, session.store, store)
    elif isinstance(error, _RESUMABLE) and line is None:  # a refused resume would be refused again
        show_resume_hint(workflow_id, store)


def _note_stop(
    error: BaseException | None, session: Session, workflow_id: str, resuming: ResumeFacts | None, *, attempt: int = 0
) -> None:
    """Note that a run needs a person, or no longer does; a new attempt voids earlier notes."""
    if resuming is None or not resuming.is_noted:
        return
    if not isinstance(error, _NOTED) and attempt != resuming.latest.attempt:
        return
    from flowckpt.maintenance import recovery  # noqa: PLC0415 - few resumes stop, or have nothing to do

    async def note() -> None:
        if not isinstance(error, _NOTED):
            await recovery.forget_stale(session.store, workflow_id)
        elif (info := await session.store.describe_run(workflow_id)) is not None:
            code = code_of_error(error)
            await recovery.note_stale(session.store, SystemClock(), info, code, error.message, noted_by="resume")

    with contextlib.suppress(FlowckptError):  # only the list would differ, and the resume has reported it
        run_async(note())


def _show_end(result: WorkflowResult, signal_name: str, session: Session, store: StoreChoice, form: Form) -> None:
    """Show why a run did not complete, or why its end is not saved, and what to do."""
    if result.error is None and not result.is_saved:
        show_unsaved_output(result)
    else:
        show_failure(result, signal_name)
        if signal_name == "SIGINT" and result.is_saved and not (form.as_json or form.as_events):
            _offer_to_undo(session, result)
        if result.handled is None and _would_end_the_same_way(result):
            say("Every step was restored, so a resume ends the same way: correct the workflow's own code first.")
    if result.failure is not None and is_final(result.failure) and result.is_saved:
        say("The failure is final: a resume is refused. Start a new run, or resume with --from STEP.")
    elif result.is_saved:
        show_resume_hint(result.workflow_id, store, handled=result.handled)
    else:
        show_what_is_left(result.workflow_id, session.store, store, last_saved=result.last_saved)


def _offer_to_undo(session: Session, result: WorkflowResult) -> None:
    """Ask a person who pressed Ctrl-C whether to undo what the steps of the run did; undoing cancels the run."""
    if not result.undoable or not is_person_there():
        return
    first, more = escape(result.undoable[0]), len(result.undoable) - 1
    what = f"'{first}' and {pluralize(more, 'other step')}" if more else f"'{first}'"
    try:
        is_wanted = click.confirm(f"Undo {what}, and cancel the run?", default=False, err=True)
    except click.Abort:  # Ctrl-C again
        say("")
        return
    if is_wanted:
        from flowckpt.engine.session.control import cancel_run  # noqa: PLC0415 - only if a person wants it

        work = cancel_run(session.store, SystemClock(), result.workflow_id, undo=session.make_cancel)
        show_cancelled(run_async(work))


def _would_end_the_same_way(result: WorkflowResult) -> bool:
    """Return whether the resume of a failed run would do the same again; undone steps run again."""
    is_of_code = not result.undone and not isinstance(result.error, RunUndoneError | CheckpointStorageError)
    return result.status == "failed" and result.steps.restored > 0 and not result.steps.executed and is_of_code


def _drive(
    session: Session, workflow: Workflow[..., Any], form: Form, resuming: ResumeFacts | None
) -> tuple[WorkflowResult | None, RunInterrupted | None, str]:
    """Return the run's result, if any, what stopped it, and why events could not be written; empty if all were."""
    progress = choose_progress(
        as_events=form.as_events,
        output_type=workflow.output_type,
        restored_attempt=0 if resuming is None else resuming.latest.attempt,
    )
    progress.start()
    try:
        result = WorkflowEngine.drive_sync(session, on_event=progress.show, folds_restored=not form.as_events)
    except RunInterrupted as stop:
        return stop.result, stop, ""
    except SystemExit as ended:
        say(f"flowckpt: the workflow called sys.exit({ended.code!r}), so the run has failed")
        is_success = ended.code is None or (isinstance(ended.code, int) and not ended.code & 0xFF)
        raise SystemExit(int(ExitCode.WORKFLOW_FAILED) if is_success else ended.code) from ended
    finally:
        progress.stop()
    return result, None, progress.failure if isinstance(progress, JsonLines) else ""


# What a resume asks a person at a terminal.


def can_ask(options: RunOptions) -> bool:
    """Return whether a person can be asked and has not already chosen."""
    is_open = options.on_code_change is None and not options.force
    return is_open and is_person_there()


def ask_about_import(workflow_id: str, description: str) -> bool:
    """Ask a person at a terminal whether an imported run may be resumed; elsewhere, return False.

    Args:
        workflow_id: the run.
        description: its program and its directory.
    """
    if not is_person_there():
        return False
    say(f"Run '{escape(workflow_id)}' was imported. It names {escape(description)}.")
    say("Approvals and signals that came with it do not count.")
    return click.confirm("Import this program and resume the run?", default=False, err=True)
