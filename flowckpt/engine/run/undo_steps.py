"""Undo single steps: at the end of the run, and when a race stops the members that contain them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowckpt.core.codec.results import append_result
from flowckpt.core.dsl.checks import undo_parameters
from flowckpt.core.identity.call import CallIdentity, argument_differences, identify
from flowckpt.core.records import Reason, StepError, StepResult
from flowckpt.core.records.result import result_of
from flowckpt.core.system.copies import Copier
from flowckpt.engine.rules.paths import ROLLBACK, UNDOABLE, find_left_to_undo, undo_path
from flowckpt.engine.run.context import RunContext
from flowckpt.engine.run.notify import events
from flowckpt.engine.values.failures import step_failure
from flowckpt.engine.values.placeholders import PlanStopped
from flowckpt.errors import FlowckptError, NotUndoableError, StepFailedError
from flowckpt.execution.current_step import NO_SERVICES, StepCall
from flowckpt.execution.errors import record_error
from flowckpt.execution.interrupts import CANCEL, LOST
from flowckpt.execution.runner import restore_value

if TYPE_CHECKING:
    from flowckpt.core.dsl.step import Step
    from flowckpt.core.identity.secrets import KnownSecrets

_log = logging.getLogger("flowckpt")


async def undo_stopped(run: RunContext, stopped: Sequence[str]) -> None:
    """Undo the steps of the stopped members of a race, newest first; failed compensations are retried at the run's end.

    The stop of the members is saved first: if the run dies in the middle, its resume undoes the remaining steps.

    Args:
        run: the current attempt of the run.
        stopped: the paths of the members, whose ends are recorded.

    Raises:
        FlowckptError: an undo cannot be saved; nothing more is undone.
        KeyboardInterrupt: a signal arrived; the next resume continues.
        asyncio.CancelledError: the run was cancelled; the next resume continues.
    """
    recorder, below = run.recorder, tuple(f"{path}/" for path in stopped)
    _close_generators(run, below)
    results = recorder.checkpointer.history.results
    nested = [each for each in results if each.path.startswith(below)]
    todo = find_left_to_undo(
        nested, recorder.undo.undoable.keys() | {each.path for each in nested if UNDOABLE in each.marks}
    )
    if not todo or not recorder.undo.compensate:
        return
    saved = await recorder.checkpoint(Reason.ROLLBACK)
    await recorder.emit_saved(saved)
    if isinstance(saved, FlowckptError):
        return
    recorder.undo.failures += [failure for each in todo if (failure := await undo_step(run, each)) is not None]


def _close_generators(run: RunContext, below: tuple[str, ...]) -> None:
    """Close the generators to be undone, innermost first: their `finally` blocks run before the undo."""
    for replay in [each for each in reversed(run.generators) if each.prefix.startswith(below)]:
        run.generators.remove(replay)
        error_in_close = replay.close()
        if error_in_close is not None:
            path = replay.prefix.rstrip("/")
            _log.warning("run %s: while %s was stopped, its generator raised %r", run.workflow_id, path, error_in_close)


async def undo_step(run: RunContext, result: StepResult) -> StepFailedError | None:
    """Undo one step and make that durable; return the error if it could not be undone."""
    workflow_id, path, clock, emit = run.workflow_id, result.path, run.clock, run.notifier.emit
    if emit is not None:
        await emit(events.RollbackStarted(workflow_id, path))
    if run.recorder.note_started is not None:
        run.recorder.note_started(workflow_id, undo_path(path))
    started_at, started_ns = clock.now(), clock.elapsed_ns()
    failure: StepError | None = None
    try:
        await _call_compensation(run, result)
    except (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        if run.interrupts.pending_signal not in (CANCEL, LOST):  # Ctrl-C may have ended a program of the compensation
            run.interrupts.raise_pending(asyncio.current_task())
        failure = record_error(error, path=undo_path(path), secrets=run.secrets)
    duration_ms = round((clock.elapsed_ns() - started_ns) / 1e6, 3)
    append_result(
        run.recorder.checkpointer.history,
        result_of(
            {
                "name": result.name,
                "step_type": ROLLBACK,
                "success": failure is None,
                "_output": None,
                "duration_ms": duration_ms,
                "error": failure,
                "path": undo_path(path),
                "started_at": started_at,
                "attempt": run.number,
            }
        ),
    )
    if failure is None:
        run.recorder.undo.undone.append(path)
        run.recorder.forget_superseded(path)
    saved = await run.recorder.checkpoint(Reason.ROLLBACK, undo_path(path))
    if emit is not None:
        texts = ("", "") if failure is None else (failure.type, failure.message)
        await emit(events.RollbackCompleted(workflow_id, path, duration_ms, *texts))
        await run.recorder.emit_saved(saved)
    return None if failure is None else step_failure(undo_path(path), failure)


def find_moved_argument(step: Step[Any], result: StepResult, secrets: KnownSecrets) -> str:
    """Return why a step's compensation would get another argument than the step had; empty if it would get the same.

    Args:
        step: the step as it is in the code now.
        result: the recorded result.
        secrets: the secrets of the run.
    """
    undo = step.modifiers.rollback
    named = () if undo is None else undo_parameters(undo)
    if not named:
        return ""
    now, recorded = identify(step.action, secrets, step.modifiers.version), result.arguments
    for name in named:
        if argument_differences(
            {name: recorded[name]} if name in recorded else {},
            {name: now.arguments[name]} if name in now.arguments else {},
        ):
            return f"the code now passes another {name!r}, which its compensation would get"
        if name not in recorded and now.fingerprint != result.fingerprint:
            return f"its function was edited; its compensation would get {name!r}, whose default may have changed"
    return ""


async def _call_compensation(run: RunContext, result: StepResult) -> None:
    """Call the compensation of a step."""
    workflow_id, path, name = run.workflow_id, result.path, run.recorder.checkpointer.run.workflow_name
    if path in run.recorder.undo.not_undoable:
        raise NotUndoableError.of_step(workflow_id, name, path, run.recorder.undo.not_undoable[path])
    if path not in run.recorder.undo.undoable:
        raise NotUndoableError.of_step(workflow_id, name, path, "the workflow no longer yields it")
    step = run.recorder.undo.undoable[path]
    undo = step.modifiers.rollback
    assert undo is not None
    if moved := find_moved_argument(step, result, run.secrets):
        raise NotUndoableError.of_step(workflow_id, name, path, moved)
    call = StepCall.first(workflow_id, path, run.number, step, CallIdentity(arguments=result.arguments), NO_SERVICES)
    call.generation = run.generation
    try:
        named = undo_parameters(undo)
        arguments, copier = (step.action.arguments() if named else {}), Copier()  # it may be called again
        given = {name: copier.copy_whole(arguments[name]) for name in named}
        await run.runner.call(undo, (restore_value(step, result),), given, call)
    except PlanStopped as stop:
        raise NotUndoableError.of_step(
            workflow_id, name, path, f"its compensation uses the output of {stop.args[0]!r}, which was not run"
        ) from None
