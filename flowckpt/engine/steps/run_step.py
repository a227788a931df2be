"""One step, from the doubt about an earlier try of it to the event that it is done.

    settle ──► mark ──► try, and try again ──► record ──► save where asked ──► tell

A step is never told as done before it is durable where it was meant to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.dsl import Step
from flowckpt.core.identity.function import known_of
from flowckpt.core.records import Reason
from flowckpt.core.replay import Execute
from flowckpt.core.system.lazy import LazyModule
from flowckpt.engine.rules.identity import identity_of, known_arguments
from flowckpt.engine.rules.partial import partial_reasons
from flowckpt.engine.rules.reasons import OnStale
from flowckpt.engine.run.context import RunContext
from flowckpt.engine.run.notify import evidence_event
from flowckpt.engine.run.recorder import record
from flowckpt.engine.values.failures import recorded_error, stale_step, step_failure
from flowckpt.engine.values.superseded import marks_of
from flowckpt.errors import StepFailedError
from flowckpt.execution.redaction import refuse_secret_names
from flowckpt.execution.runner import restored_value

if TYPE_CHECKING:
    from flowckpt import events
    from flowckpt.engine.run import in_doubt
    from flowckpt.engine.steps import tries as tryings
    from flowckpt.engine.steps import wait
else:
    events = LazyModule("flowckpt.events")
    in_doubt = LazyModule("flowckpt.engine.run.in_doubt")
    wait = LazyModule("flowckpt.engine.steps.wait")
    tryings = LazyModule("flowckpt.engine.steps.tries")


_NOTHING: Mapping[str, Any] = {}


async def run_step(run: RunContext, command: Execute) -> tuple[Any, StepFailedError | None]:
    """Run a step and record it; return what the generator gets: its output, or its failure.

    Raises:
        Suspended: it waits.
        StepInDoubtError: nobody knows whether it was done, and it must not be done twice.
        UnknownExecutorError: there is no executor of the name that it asks for, or that one cannot take it.
        FencedError: the run was taken over by another owner.
        FlowckptError: what it left behind cannot be saved.
        KeyboardInterrupt: a signal came while it ran.
        asyncio.CancelledError: the run was cancelled while it ran.
    """
    step, path = command.step, command.path
    action: Any = step.action
    modifiers, tell, checkpointer = step.modifiers, run.notifier.emit, run.recorder.checkpointer
    secrets = run.judge.secrets
    if secrets.is_any:
        refuse_secret_names(step, path, secrets)
    if action.is_waiting:
        return await wait.run_wait(run, command)
    is_recorded = not modifiers.is_ephemeral
    settled: in_doubt.Settled | None = None
    code, arguments, tries_when_lost = "", _NOTHING, 1
    known = known_of(action)
    if modifiers.placement is not None or run.runner.has_places:
        tries_when_lost = await run.runner.check_place(step, path)
    if is_recorded:
        if known is None:
            code, arguments = identity_of(action, secrets)
        else:
            code, arguments = known.fingerprint, known_arguments(action, known, secrets)
        if modifiers.is_at_most_once or path in run.recorder.superseded.by_path:
            settled = await run.in_doubt_resolver().before(step, path, arguments)
            if tell is not None and settled.report is not None and settled.report.verdicts:
                await tell(evidence_event(run.workflow_id, path, settled.report, "in_doubt"))
            if settled.reused is not None:
                run.notifier.restored += 1
                if modifiers.rollback is not None:
                    run.recorder.undo.undoable[path] = step
                run.recorder.restore(attrs.evolve(settled.reused, fingerprint=code))
                if tell is not None:
                    await tell(
                        events.StepRestored(run.workflow_id, path, True, settled.reused.duration_ms, action.step_type)
                    )
                return restored_value(step, settled.reused), None
            if settled is in_doubt.RUN:
                settled = None
        if path in checkpointer.partial:
            judge_partial(run, step, path)
        if not run.recorder.start_saved:
            await run.recorder.save_start()
        if run.notifier.dropped_states:
            await run.notifier.emit_dropped_states()
        if modifiers.is_at_most_once and (settled is None or (settled.outcome is None and settled.undo is None)):
            await run.recorder.mark_in_doubt(path)
    run.recorder.in_flight[path] = 1
    if tell is not None and (settled is None or settled.outcome is None):
        await tell(events.StepStarted(run.workflow_id, path, action.step_type))
    if is_recorded and run.recorder.note_started is not None:
        run.recorder.note_started(checkpointer.workflow_id, path)
    clock = run.clock
    started_at, started_ns, trying = clock.now(), clock.elapsed_ns(), None
    is_tried_once = modifiers.retry is None and tries_when_lost == 1
    if settled is None and is_tried_once and (tell is None or action.step_type == "python"):
        tries = 1
        told = (checkpointer.workflow_id, path, checkpointer.attempt, 1, arguments, step, code, run.services)
        outcome = await run.runner.attempt(step, told, known=known)
    else:
        trying = _trying(run, command, arguments, code, settled or in_doubt.RUN)
        await trying.run()
        outcome, tries = trying.outcome, trying.tries
    error = outcome.error
    duration_ms = (clock.elapsed_ns() - started_ns + 500) // 1000 / 1000  # round() takes 0.2 µs
    failure = None if error is None else recorded_error(error, path=path, tries=tries, secrets=secrets)
    if is_adopted := trying is not None and trying.is_adopted:
        run.notifier.restored += 1
    else:
        run.notifier.executed += 1
    if is_recorded:
        marks: tuple[str, ...] = ()
        if modifiers.is_at_most_once or modifiers.on_rerun is not None:
            is_undone = trying is None or trying.is_undone
            marks = marks_of(modifiers, is_adopted=is_adopted, is_not_undone=not is_undone)
        function = action.function_name if known is None else known.name
        record(
            run.recorder, command, outcome, failure, started_at, duration_ms, arguments, function, code, tries, marks
        )
    else:
        run.recorder.in_doubt.discard(path)
    # From here on the step is done, whatever comes: who listens to it may be slow, go away, or fail.
    try:
        if run.services.is_used:
            await run.services.settle(path)
    finally:
        run.recorder.in_flight.pop(path, None)
    if failure is None and checkpointer.partial:
        checkpointer.partial.pop(path, None)  # what a thread that it left behind has saved since
    saved = None
    if failure is None and (modifiers.has_checkpoint or modifiers.is_at_most_once):
        saved = await run.recorder.checkpoint(Reason.STEP, modifiers.checkpoint_id or path)
    elif checkpointer.trigger is not None and is_recorded and checkpointer.is_due():
        saved = await run.recorder.checkpoint(Reason.TRIGGER)
    if tell is not None and outcome.committed is not None:
        await tell(evidence_event(run.workflow_id, path, outcome.committed.report, "now"))
    if failure is not None:
        run.notifier.failed += 1
        if tell is not None:
            await tell(events.StepFailed(run.workflow_id, path, duration_ms, tries, failure.type, failure.message))
    elif tell is not None:
        if is_adopted:
            await tell(events.StepAdopted(run.workflow_id, path))
        else:
            await tell(events.StepCompleted(run.workflow_id, path, duration_ms, not is_recorded))
    if tell is not None and saved is not None:
        await run.recorder.emit_saved(saved)
    return (outcome.value, None) if failure is None else (None, step_failure(path, failure))


def _trying(
    run: RunContext, command: Execute, arguments: Mapping[str, Any], code: str, settled: in_doubt.Settled
) -> tryings.Trying:
    return tryings.Trying(
        command.step,
        command.path,
        run.workflow_id,
        run.number,
        arguments,
        code,
        settled,
        run.in_doubt_resolver(),
        run.runner,
        run.clock,
        run.world.random,
        run.interrupts,
        run.notifier.emit,
        run.recorder.mark_in_doubt,
        run.budget,
        run.services,
        run.recorder.in_flight,
    )


# Before a step runs that saved something of itself in an earlier attempt: is that still its own?


def judge_partial(run: RunContext, step: Step[Any], path: str) -> None:
    """Drop what a step saved of itself where code or arguments have moved, as the policy for results says.

    Raises:
        StaleStepError: something has moved, and the policy is to stop.
    """
    reasons = partial_reasons(step, run.recorder.checkpointer.partial[path], run.secrets)
    answer = run.judge.decide(reasons) if reasons else OnStale.REUSE
    if answer is OnStale.FAIL:
        raise stale_step(run.workflow_id, path, reasons)
    if answer is OnStale.RERUN:
        run.recorder.drop_state(path, "; ".join(map(str, reasons)))
