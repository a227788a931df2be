"""One step, from the doubt about an earlier try of it to the event that it is done.

    identify ──► settle ──► begin ──► try, and try again ──► record ──► save if asked ──► emit

A step is never reported as done before it is durable where it was meant to be.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.dsl import Step
from flowckpt.core.identity.arguments import argument_values
from flowckpt.core.identity.call import CallIdentity, identify
from flowckpt.core.records import CheckpointData, StepError, StepResult
from flowckpt.core.replay import Answer, Execute
from flowckpt.engine import run as attempts
from flowckpt.engine import steps
from flowckpt.engine.rules.identity import partial_reasons
from flowckpt.engine.rules.paths import ended_wait
from flowckpt.engine.rules.reasons import OnStale
from flowckpt.engine.run.context import RunContext
from flowckpt.engine.run.notify import events, evidence_event
from flowckpt.engine.run.recorder import StepEnd
from flowckpt.engine.values.failures import recorded_error, stale_step, step_failure
from flowckpt.engine.values.superseded import marks_of
from flowckpt.errors import FlowckptError, StepFailedError
from flowckpt.execution.claims import Committed
from flowckpt.execution.current_step import StepCall
from flowckpt.execution.errors import RemoteError, users_frames
from flowckpt.execution.redaction import refuse_secret_names
from flowckpt.execution.runner import Outcome, restored_value

if TYPE_CHECKING:
    from collections.abc import Mapping
from datetime import datetime

_log = logging.getLogger(__name__)

_EPHEMERAL = CallIdentity()


async def run_step(run: RunContext, command: Execute) -> Answer:
    """Run a step and record it; return what the generator gets: its output, or its failure.

    Raises:
        Suspended: it waits.
        StepInDoubtError: it is unknown whether it was done, and it must not be done twice.
        UnknownExecutorError: there is no executor of the name that it asks for, or that one cannot take it.
        FencedError: the run was taken over by another owner.
        FlowckptError: what it left behind cannot be saved.
        KeyboardInterrupt: a signal came while it ran.
        asyncio.CancelledError: the run was cancelled while it ran.
    """
    step, path = command.step, command.path
    modifiers, secrets = step.modifiers, run.judge.secrets
    if step.action.is_waiting:
        if secrets.is_any:
            refuse_secret_names(step, path, secrets)
        return await steps.wait.run_wait(run, command)
    is_recorded = not modifiers.is_ephemeral
    identity = identify(step.action, secrets, modifiers.version) if is_recorded else _EPHEMERAL
    if secrets.is_any:
        refuse_secret_names(step, path, secrets)  # also those that its arguments have brought
    tries_when_lost, found, since = 1, None, None
    if modifiers.placement is not None or run.runner.has_places:
        tries_when_lost = await run.runner.check_place(step, path)
    recorder, notifier, services = run.recorder, run.notifier, run.services
    checkpointer = recorder.checkpointer
    run_id = checkpointer.run.workflow_id
    call = StepCall(run_id, path, checkpointer.attempt, 1, step, identity, services, command.location, run.generation)
    if is_recorded:
        if modifiers.retry is not None and run.waits.all:
            call, since = steps.tries.after_earlier_tries(run, call)
        if modifiers.is_at_most_once or path in recorder.superseded.by_path:
            found = await _settle(run, call)
            if found is not None and found.reused is not None:
                return await _reuse(run, call, found.reused)
        if not recorder.start_saved or modifiers.is_at_most_once or checkpointer.partial or notifier.dropped_states:
            await _begin(run, call, found)
    if modifiers.cache_seconds is None or (end := await _cached(run, call)) is None:
        end = await _try(run, call, found, tries_when_lost, since)
    if services.is_used:
        await _record_used(run, call, end)
    else:
        recorder.record(call, end)
        recorder.in_flight.pop(path, None)
    saving = recorder.step_save(call, end)
    saved = None if saving is None else await saving
    if notifier.emit is not None:
        await _emit(run, call, end, saved)
    return (end.outcome.value, None) if end.failure is None else (None, _failure(run, path, end.failure, end.outcome))


async def _record_used(run: RunContext, call: StepCall, end: StepEnd) -> None:
    """Record a step of a run whose steps use `current_step()`: with what this one gave it, and after what it has emitted."""
    recorder, services, path = run.recorder, run.services, call.path
    end.figures, end.published = services.take(path)
    recorder.record(call, end)
    try:  # the step is done, even if a listener is slow, goes away or fails
        await services.settle(path)
    finally:
        recorder.in_flight.pop(path, None)
        services.forget(path)


def _failure(run: RunContext, path: str, recorded: StepError, outcome: Outcome) -> StepFailedError:
    """Return the error that is raised at the `yield`: with the exception of the step as its cause, if that may be shown.

    Members of a fan-out keep no exception: the frames of a thousand of them would hold what their steps held.
    """
    failure = step_failure(path, recorded)
    _log.info("run %s: step %s failed with %s\n%s", run.workflow_id, path, recorded.type, failure.trace)
    error = outcome.error
    if error is None or isinstance(error, RemoteError | FlowckptError):
        return failure
    if not run.waits.fan_outs and not run.judge.secrets.is_any:
        failure.__cause__ = error.with_traceback(users_frames(error))
        failure.__notes__ = []  # the cause shows it
    return failure


async def _settle(run: RunContext, call: StepCall) -> attempts.in_doubt.Resolution | None:
    """Look at what an earlier call of the step left behind; None if it simply runs."""
    found = await run.in_doubt_resolver().before(call)
    if run.notifier.emit is not None and found.report is not None and found.report.verdicts:
        await run.notifier.emit(evidence_event(call.workflow_id, call.path, found.report, "in_doubt"))
    return None if found is attempts.in_doubt.RUN else found


async def _reuse(run: RunContext, call: StepCall, result: StepResult) -> Answer:
    """Take the earlier result of a step, which still holds."""
    step, path = call.step, call.path
    run.notifier.restored += 1
    if step.modifiers.rollback is not None:
        run.recorder.undo.undoable[path] = step
    run.recorder.restore(attrs.evolve(result, fingerprint=call.identity.fingerprint))
    if run.notifier.emit is not None:
        await run.notifier.emit(
            events.StepRestored(call.workflow_id, path, True, result.duration_ms, step.action.step_type)
        )
    return restored_value(step, result), None


async def _cached(run: RunContext, call: StepCall) -> StepEnd | None:
    """Take the result of an equal call; None if there is none that holds."""
    judge, path, clock = run.judge, call.path, run.clock
    if not judge.policy.takes_cached or judge.is_forced(path):
        return None
    started_at, started_ns = clock.now(), clock.elapsed_ns()
    found = await run.cache.find(call.step, path, run.recorder.checkpointer.history.results)
    if found is None:
        return None
    files = None if call.step.modifiers.files is None else run.runner.files
    if files is not None and not files.restored(run.claims.verifier.base_path, found.result):
        return None
    run.waits.end(path)
    evidence = found.result.evidence
    committed = None if evidence is None or found.report is None else Committed(evidence, found.report)
    outcome = Outcome(found.value, found.tree, committed=committed)
    duration_ms = (clock.elapsed_ns() - started_ns + 500) // 1000 / 1000
    end = StepEnd(
        outcome,
        None,
        started_at,
        duration_ms,
        source=found.source,
        taken_from=found.workflow_id,
        published=found.result.published,
    )
    end.argument_values, _ = _argument_values(run, call)
    return end


def _argument_values(run: RunContext, call: StepCall) -> tuple[Mapping[str, Any], Exception | None]:
    """Return the arguments of a call as JSON if it asks for that; where they cannot be recorded, none, and why."""
    if not call.step.modifiers.records_arguments:
        return {}, None
    try:
        return argument_values(call.step.action, call.path, run.judge.secrets), None
    except Exception as error:
        return {}, error


async def _begin(run: RunContext, call: StepCall, found: attempts.in_doubt.Resolution | None) -> None:
    """Make durable what must be before the step runs."""
    step, path, recorder = call.step, call.path, run.recorder
    if path in recorder.checkpointer.partial:
        judge_partial(run, step, path)
    if not recorder.start_saved:
        await recorder.save_start()
    if run.notifier.dropped_states:
        await run.notifier.emit_dropped_states()
    is_run_now = found is None or (found.outcome is None and found.undo is None)
    if step.modifiers.is_at_most_once and is_run_now and step.modifiers.files is None:
        await recorder.mark_in_doubt(path)


async def _try(
    run: RunContext,
    call: StepCall,
    found: attempts.in_doubt.Resolution | None,
    tries_when_lost: int,
    since: datetime | None,
) -> StepEnd:
    """Emit that the step starts, run it, as often as it may be tried, and return how it ended.

    Args:
        run: the attempt.
        call: the first try now.
        found: what was found out about the step before.
        tries_when_lost: how often it may be tried if workers are lost.
        since: when its first try started, if the run was suspended after one.
    """
    path, action, modifiers, clock = call.path, call.step.action, call.step.modifiers, run.clock
    recorder, emit = run.recorder, run.notifier.emit
    recorder.in_flight[path] = call
    if emit is not None and (found is None or found.outcome is None):
        await emit(events.StepStarted(call.workflow_id, path, action.step_type))
    if recorder.note_started is not None and not modifiers.is_ephemeral:
        secrets = run.judge.secrets
        recorder.note_started(call.workflow_id, secrets.text(path) if secrets.is_any else path)
    call.since = started_at = clock.now()
    started_ns = clock.elapsed_ns()
    loop, is_plain = None, modifiers.is_plain
    is_tried_once = is_plain or (
        modifiers.retry is None and not (modifiers.is_at_most_once and modifiers.files is not None)
    )
    values, refusal = _argument_values(run, call) if modifiers.content else ({}, None)
    if refusal is not None:
        outcome = Outcome(error=refusal)
    elif is_tried_once and found is None and tries_when_lost == 1 and (emit is None or action.step_type == "python"):
        outcome = await run.runner.attempt(call)
    else:
        loop = steps.tries.RetryLoop(run, call, found or attempts.in_doubt.RUN, since)
        outcome = await loop.run()
        run.waits.end(path)
    end = StepEnd(outcome, None, started_at, (clock.elapsed_ns() - started_ns + 500) // 1000 / 1000)
    if loop is not None:
        end.tries, end.is_adopted = loop.tries, loop.is_adopted
    if outcome.error is not None:
        if modifiers.files is not None:
            run.runner.files.release(path)
        end.failure = recorded_error(outcome.error, path=path, tries=end.tries, secrets=run.judge.secrets)
    if not is_plain and (modifiers.is_at_most_once or modifiers.on_rerun is not None or refusal is not None):
        is_not_undone = loop is not None and not loop.is_undone
        is_started = refusal is None if loop is None else loop.is_started
        end.marks = marks_of(modifiers, is_adopted=end.is_adopted, is_not_undone=is_not_undone, is_started=is_started)
    if action.is_saved and end.failure is None:  # a reply: its record names the signal, for the sender
        wait = ended_wait(recorder.checkpointer.history.results, action.arguments()["to"], path)
        end.signal = "" if wait is None else wait.signal
    if values:
        end.argument_values = values
    return end


async def _emit(run: RunContext, call: StepCall, end: StepEnd, saved: CheckpointData | FlowckptError | None) -> None:
    workflow_id, path, failure, emit = call.workflow_id, call.path, end.failure, run.notifier.emit
    assert emit is not None
    if end.outcome.committed is not None:
        await emit(evidence_event(workflow_id, path, end.outcome.committed.report, "now"))
    if failure is not None:
        error, message, figures = failure.type, failure.message, end.figures
        await emit(events.StepFailed(workflow_id, path, end.duration_ms, end.tries, error, message, figures))
    elif end.taken_from:
        step_type = call.step.action.step_type
        await emit(events.StepRestored(workflow_id, path, True, end.duration_ms, step_type, end.taken_from))
    elif end.is_adopted:
        settled = run.judge.policy.settled.get(path)
        await emit(events.StepAdopted(workflow_id, path, "" if settled is None else settled.said))
    else:
        is_ephemeral = call.step.modifiers.is_ephemeral
        await emit(events.StepCompleted(workflow_id, path, end.duration_ms, is_ephemeral, end.figures))
    if saved is not None:
        await run.recorder.emit_saved(saved)


def judge_partial(run: RunContext, step: Step[Any], path: str) -> None:
    """Drop what a step saved of itself if its code or arguments have moved, as the policy for results says.

    Raises:
        StaleStepError: something has moved, and the policy is to stop.
    """
    reasons = partial_reasons(step, run.recorder.checkpointer.partial[path], run.secrets)
    answer = run.judge.policy.decide(reasons) if reasons else OnStale.REUSE
    if answer is OnStale.FAIL:
        raise stale_step(run.workflow_id, path, reasons)
    if answer is OnStale.RERUN:
        run.recorder.drop_state(path, "; ".join(map(str, reasons)))
