"""One attempt of a run, from its first event to its last.

Every attempt ends on one path, whatever the cause (the end of the generator, an error in it, a failing save, a cancel,
a signal, a consumer that disappears): `_end` closes the generator, saves the final checkpoint, and sets the result.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core import codec
from flowckpt.core.codec.blob import Recorded, plain_tree
from flowckpt.core.dsl import NextGeneration, Workflow
from flowckpt.core.dsl.checks import CREATED, Noted, unyielded_warnings
from flowckpt.core.identity.secrets import KnownSecrets, refuse_secrets
from flowckpt.core.records import CheckpointData, Reason, Status, StepError
from flowckpt.core.records.result import sum_figures
from flowckpt.core.records.wait import STOPPED, birth_of
from flowckpt.core.replay import Crash, Finish, Replay
from flowckpt.core.system.declared import shell_word
from flowckpt.core.system.numbers import join_names
from flowckpt.engine import session, undo
from flowckpt.engine.rules.paths import find_handled_end, find_left_to_undo, find_not_yielded
from flowckpt.engine.run.context import RunContext
from flowckpt.engine.run.live import WATCH
from flowckpt.engine.run.notify import EventFactory, EventSink, events, failed_event, redact_ending, saved_event
from flowckpt.engine.run.resumption import drop_reusable
from flowckpt.engine.steps.run_step import new_scope
from flowckpt.engine.values import result as results
from flowckpt.engine.values.failures import REFUSALS, find_failed_step
from flowckpt.engine.values.inputs import BoundInputs, bind_next, refuse_in_labels
from flowckpt.engine.values.waits import Suspended
from flowckpt.errors import (
    CheckpointStorageError,
    FencedError,
    FlowckptError,
    RunCancelledError,
    StepFailedError,
    SuspensionUnsavedError,
)
from flowckpt.execution.current_step import get_call, set_call
from flowckpt.execution.errors import NO_SECRETS, record_error
from flowckpt.execution.interrupts import CANCEL, RunInterrupted
from flowckpt.execution.runner import INTERRUPTIONS

if TYPE_CHECKING:
    from flowckpt.core.records.wait import Wait
    from flowckpt.engine.undo.compensate import UndoAttempt
    from flowckpt.engine.values.result import StepCounts, WorkflowResult


_log = logging.getLogger(__name__)


def reason_of(ending: BaseException | None, secrets: KnownSecrets = NO_SECRETS) -> tuple[Reason, StepError | None]:
    """Return the reason for the final checkpoint, and the error to record.

    Args:
        ending: the exception that ended the run; None if the workflow returned.
        secrets: values to remove from the error's texts.
    """
    if ending is None:
        return Reason.COMPLETED, None
    if isinstance(ending, INTERRUPTIONS):
        return Reason.SUSPENDED, None
    if isinstance(ending, RunCancelledError):
        return Reason.CANCELLED, None
    return Reason.FAILED, record_error(ending, path=find_failed_step(ending), secrets=secrets)


def cause_of_stop(ending: BaseException | None) -> str:
    """Return the name of the signal that stopped a run; `cancelled` if its task or a request cancelled it."""
    return ending.signal_name if isinstance(ending, RunInterrupted) else "cancelled"


def final_event(result: WorkflowResult, cause: str = "", error: StepError | None = None) -> events.Event:
    """Return the last event of an attempt.

    Args:
        result: its result.
        cause: what stopped the run, if it was stopped.
        error: how the run failed; by default the failure of the result.
    """
    run, steps, duration = result.workflow_id, (result.steps.executed, result.steps.restored), result.duration_ms
    if result.status is Status.COMPLETED:
        return events.WorkflowCompleted(run, result.output, *steps, duration, result.is_saved)
    if result.status is Status.SUSPENDED:
        return events.WorkflowSuspended(run, result.waits, result.due_at, *steps, duration, cause, result.is_saved)
    if result.status is Status.CANCELLED:
        return events.WorkflowCancelled(run, cause, *steps, duration, result.is_saved)
    error = error or result.failure or StepError("", "")
    return events.WorkflowFailed(run, error.type, error.message, *steps, duration, result.is_saved)


@attrs.define(eq=False, repr=False)
class Drive:
    """Drives one attempt of a run.

    Attributes:
        workflow: the workflow.
        replay: its generator and its record.
        context: what its steps share.
        undoing: the undo to do, if the attempt only undoes: a rollback that an earlier attempt did not finish, or a run
            that is cancelled.
        wait_for: total seconds that the process stays for waits; None to stay for short timers only.
        ends_with_generation: whether the run completes instead of continuing as another generation; for a check.
        former: what the previous generation did in this process, and its duration in ms, if the attempt starts a new
            one.
        result: how the attempt ended; None until then, and if another generation follows.
        next_inputs: the inputs of the next generation.
        ended: the same of this generation, if another one follows.
    """

    workflow: Workflow[Any, Any]
    replay: Replay
    context: RunContext
    undoing: UndoAttempt | None = None
    wait_for: float | None = None
    ends_with_generation: bool = False
    former: tuple[StepCounts, float] | None = attrs.field(init=False, default=None)
    result: WorkflowResult | None = attrs.field(init=False, default=None)
    next_inputs: BoundInputs | None = attrs.field(init=False, default=None)
    ended: tuple[StepCounts, float] | None = attrs.field(init=False, default=None)
    _has_found_undo: bool = attrs.field(init=False, default=False)
    _started_ns: int = attrs.field(init=False, default=0)
    _rollback_failures: tuple[StepFailedError, ...] = attrs.field(init=False, default=())

    async def run(self, emit: EventSink | None = None, *, folds_restored: bool = False) -> None:
        """Run the attempt.

        Args:
            emit: takes each event.
            folds_restored: whether consecutive restored steps share one event.

        Raises:
            WorkflowChangedError: the generator does not match the record; nothing was changed.
            StaleStepError: a recorded result is no longer valid, and the policy is to stop; nothing was changed.
            StepInDoubtError: it is unknown whether a step was done that must not be done twice.
            DecodingError: a recorded value does not fit the code; nothing was changed.
            CheckpointCorruptedError: a large value in the record is damaged; nothing was changed.
            FencedError: the run was taken over by another owner.
            RunInterrupted: a signal stopped the run; it is saved.
        """
        run = self.context
        run.notifier.listen(emit, run.workflow_id, folds_restored=folds_restored)
        run.recorder.checkpointer.policy.is_timed = emit is not None
        self._started_ns = run.clock.elapsed_ns()
        run.interrupts.watch(asyncio.current_task())
        run.services.loop = asyncio.get_running_loop()
        output: Any = None
        ending: BaseException | None = None
        created: Noted = {}
        noting = CREATED.set(created)
        outer = get_call()
        set_call(None)  # if a step runs this workflow, its body is not part of that step
        WATCH.runs[id(run)] = run
        if not WATCH.is_looking:
            WATCH.start()
        try:
            output = await self._drive_generator()
        except BaseException as error:
            ending = self._ending_of(error)
        finally:
            WATCH.runs.pop(id(run), None)
            CREATED.reset(noting)
            set_call(outer)
        if created and self.undoing is None and (ending is None or isinstance(ending, Exception)):
            for warning in unyielded_warnings(created, ending=ending):
                _log.warning("run %s: %s", run.workflow_id, warning)
        try:
            ending = await self._end(output, ending)
        finally:
            run.runner.kill_places()  # a second signal stops everything, and still no process may be left running
        # A failed or suspended workflow is a result. Exceptions that stop the program (Ctrl-C, a cancel, SystemExit)
        # propagate.
        if ending is not None and (not isinstance(ending, Exception | Suspended) or self.result is None):
            raise ending

    async def _drive_generator(self) -> Any:
        """Drive the generator to its end, and return its encoded output."""
        run = self.context
        is_generation = self.former is not None
        if not is_generation:
            await self._emit_start()
        if run.recorder.resumed_from is None:
            await run.recorder.save_start()
        if is_generation:
            await self._emit_generation()
        if self.undoing is not None:
            await self.undoing.find(run)
            self._has_found_undo = True
            raise self.undoing.error()
        scope = new_scope(run, self.replay)
        try:
            end: Finish | Crash | Suspended = await scope.run()
        except Suspended as pause:
            end = pause
        if isinstance(end, Suspended):  # outside of the handler, which the traceback of a step would show
            end = await session.suspend.drive_to_end(run, scope, end, self.wait_for)
        run.recorder.drop_stale()
        if isinstance(end, Crash):
            raise end.error
        run.waits.retain(())
        history = run.recorder.checkpointer.history
        if run.recorder.resumed_from is not None and any(result.signal for result in history.notable()):
            await run.inbox.tidy()
        run.recorder.checkpointer.metadata = drop_reusable(run.recorder.checkpointer.metadata)
        if type(end.output) is NextGeneration:
            bound = bind_next(self.workflow, end.output)
            refuse_secrets(bound.tree, run.judge.secrets, "the inputs of the next generation")
            refuse_in_labels(bound, run.workflow_id, run.recorder.checkpointer.metadata.get("tags", {}))
            if not self.ends_with_generation:
                self.next_inputs = bound
            return {"continue_as": bound.tree}
        output = codec.encode(end.output, self.workflow.output_type, place="the workflow's output")
        refuse_secrets(output, run.judge.secrets, "the workflow's output")
        return output

    def _ending_of(self, error: BaseException) -> BaseException:
        """Return what ended the run; a cancel by request becomes a `RunCancelledError`."""
        interrupts = self.context.interrupts
        ending = interrupts.find_cause(error)
        if isinstance(ending, RunInterrupted) and (stopped := sorted(self.context.recorder.in_doubt)):
            ending.add_note(
                f"Step {join_names(stopped, 8)} was stopped, and must run at most once. If its evidence cannot tell "
                "whether it was done, the resume needs --done STEP or --not-done STEP."
            )
        if isinstance(ending, RunInterrupted) and ending.signal_name == CANCEL:
            self.context.recorder.undo.compensate = (
                self.context.recorder.undo.compensate and interrupts.cancel_rolls_back
            )
            return RunCancelledError(self.context.workflow_id)
        return ending

    async def _emit_start(self) -> None:
        run, name = self.context, self.workflow.name
        if run.notifier.emit is None:
            return
        latest, birth = run.recorder.resumed_from, birth_of(run.recorder.checkpointer.metadata)
        if latest is None:
            await run.notifier.emit(events.WorkflowStarted(run.workflow_id, name, run.number, birth))
        else:
            recorded = len(run.recorder.checkpointer.history.results)
            resumed = events.WorkflowResumed(run.workflow_id, name, run.number, recorded, latest.checkpoint_id, birth)
            await run.notifier.emit(resumed)

    async def _emit_generation(self) -> None:
        run, name = self.context, self.workflow.name
        if run.notifier.emit is None or self.former is None:
            return
        (steps, duration), birth = self.former, birth_of(run.recorder.checkpointer.metadata)
        facts = run.number, run.generation, steps.executed, steps.restored, duration, birth
        await run.notifier.emit(events.WorkflowContinued(run.workflow_id, name, *facts))

    async def _end(self, output: Any, ending: BaseException | None) -> BaseException | None:
        """End the attempt: close the generators, undo, save the final checkpoint, set the result, emit events."""
        run = self.context
        await run.services.close()
        for replay in reversed(run.generators):
            error_in_close = replay.close()
            if error_in_close is not None and ending is not None:
                ending.add_note(f"While the generator was closed, it raised {error_in_close!r}.")
        if ending is not None:
            redact_ending(ending, run.judge.secrets)
        is_refused = isinstance(ending, FencedError if run.recorder.is_start_saved else (FencedError, *REFUSALS))
        is_refused |= self.undoing is not None and not self._has_found_undo  # it may not have found every step to undo
        failures: tuple[StepFailedError, ...] = ()
        stop: BaseException | None = None
        is_stopped = self.undoing is None and isinstance(ending, INTERRUPTIONS)
        repeated = None if is_refused or run.recorder.is_start_saved else self._find_repeated(output, ending)
        undoes_nothing = ending is None or repeated is not None or isinstance(ending, Suspended)
        if ending is not None and not undoes_nothing and not is_refused and not is_stopped:
            try:
                failures = await self._roll_back(ending)
            except BaseException as error:
                stop = run.interrupts.find_cause(error)
                stop.add_note(
                    "This interrupted a rollback. The next resume undoes the remaining steps and ends the run as before; "
                    "the resume after that continues the run."
                )
        run.runner.close()
        await run.runner.close_places()
        run.interrupts.watch(None)
        if is_refused:
            return ending  # a refused resume leaves the run unchanged
        if stop is not None:
            return stop  # the record has what remains to be undone
        if self.next_inputs is not None:
            self.ended = self._measure()
            return None  # the first checkpoint of the next generation ends this one
        run.recorder.write_down_waits(is_at_rest=True)
        if is_stopped and run.waits.all and not run.recorder.is_suspended():
            checkpointer = run.recorder.checkpointer
            checkpointer.metadata = {**checkpointer.metadata, STOPPED: cause_of_stop(ending)}
        tried = {each.path for each in failures}
        earlier = (each for each in run.recorder.undo.failures if each.path not in tried)
        self._rollback_failures = (*earlier, *failures)
        if isinstance(ending, Suspended):
            last = run.recorder.checkpointer.attempted or run.recorder.resumed_from
            self.result, factories = self._end_suspended(run.waits.all, run.number if last is None else last.attempt)
        elif repeated is not None:
            self.result, factories = self._repeat_end(output, ending, repeated)
        else:
            self.result, factories = await self._save_end(output, ending)
            if isinstance(ending, RunCancelledError) and self.undoing is None:
                await run.requests.forget()
        if run.notifier.emit is not None:
            for factory in factories:
                await run.notifier.emit(factory())
        return ending

    async def _save_end(self, output: Any, ending: BaseException | None) -> tuple[WorkflowResult, list[EventFactory]]:
        """Save the final checkpoint, and return the result and the events to emit.

        Args:
            output: the workflow's output, encoded.
            ending: the exception that ended the run; None if the workflow returned.

        Raises:
            FencedError: the run was taken over by another owner.
        """
        factories: list[EventFactory] = []
        recorder, secrets = self.context.recorder, self.context.judge.secrets
        checkpointer = recorder.checkpointer
        is_reported = isinstance(ending, SuspensionUnsavedError)  # its failed save already has an event
        if isinstance(ending, CheckpointStorageError) and not checkpointer.is_usable and not is_reported:
            factories.append(partial(failed_event, checkpointer.run.workflow_id, checkpointer.attempted, ending))
        reason, error = reason_of(ending, secrets)
        if self.undoing is not None:  # an earlier attempt, or the cancel, decided how the run ends
            reason, error = self.undoing.end.reason, self.undoing.end.error
        is_saved = False
        unsaved = ending if isinstance(ending, FlowckptError) and not checkpointer.is_usable else None
        if checkpointer.is_usable:
            try:
                encoded = None if ending is not None else Recorded(output)
                data = await checkpointer.save(
                    reason,
                    output=encoded,
                    error=error,
                    in_flight=recorder.list_unfinished(),  # also for a complete run: its code may yield these steps again
                    evidence=recorder.take_unsaved_verdicts(),
                )
                factories.append(partial(saved_event, checkpointer.run.workflow_id, data, checkpointer.policy.took))
                is_saved = True
            except FlowckptError as failure:
                continues = checkpointer.policy.continues_after(failure)
                if isinstance(failure, FencedError) and not continues:
                    raise
                unsaved = failure
                factories.append(partial(failed_event, checkpointer.run.workflow_id, checkpointer.attempted, failure))
                if ending is not None:
                    ending.add_note(f"The end of the run could not be saved: {failure.message}")
                elif not continues:
                    ending, (reason, error) = failure, reason_of(failure, secrets)
        result = self._make_final_result(output, ending, reason, is_saved, unsaved, error)
        factories.append(partial(final_event, result, cause_of_stop(ending)))
        return result, factories

    def _end_suspended(self, waits: tuple[Wait, ...], attempt: int) -> tuple[WorkflowResult, list[EventFactory]]:
        """Return the result of a suspended attempt, which is already saved, and the events to emit.

        Args:
            waits: the pending waits of the run.
            attempt: the attempt that saved last; an attempt that changed nothing saves nothing.
        """
        result = self._make_result(Status.SUSPENDED, None, attempt, waits=waits)
        return result, [partial(final_event, result)]

    def _repeat_end(
        self, output: Any, ending: BaseException | None, latest: CheckpointData
    ) -> tuple[WorkflowResult, list[EventFactory]]:
        """Return the result and the last event of an attempt that only repeated the recorded end.

        Nothing is saved: the record already has this end.
        """
        reason, error = reason_of(ending, self.context.secrets)
        result = self._make_final_result(output, ending, reason, True, None, error, latest.attempt)
        return result, [partial(final_event, result, cause_of_stop(ending))]

    def _make_final_result(
        self,
        output: Any,
        ending: BaseException | None,
        reason: Reason,
        is_saved: bool,
        unsaved: FlowckptError | None,
        error: StepError | None,
        attempt: int | None = None,
    ) -> WorkflowResult:
        output_type = Any if self.ends_with_generation else self.workflow.output_type
        value = codec.decode(output, output_type) if ending is None else None
        handled = None
        if reason is Reason.FAILED and error is not None:
            handled = find_handled_end(self.context.recorder.checkpointer.history.results, error.path)
        number = self.context.recorder.checkpointer.attempt if attempt is None else attempt
        result = self._make_result(
            Status(reason.value),
            value,
            number,
            error=ending,
            is_saved=is_saved,
            failure=error,
            save_error=unsaved,
            handled=handled,
            undoable=self._list_undoable() if isinstance(ending, INTERRUPTIONS) else (),
        )
        if isinstance(ending, RunInterrupted):
            ending.result = result
        return result

    def _make_result(self, status: Status, output: Any, attempt: int, **more: Any) -> WorkflowResult:
        run, checkpointer = self.context, self.context.recorder.checkpointer
        result = results.WorkflowResult(
            checkpointer.run.workflow_id,
            self.workflow.name,
            status,
            output,
            attempt,
            *self._measure(),
            rollback_failures=self._rollback_failures,
            undone=tuple(run.recorder.undo.undone),
            last_saved=checkpointer.last_saved,
            figures=sum_figures(checkpointer.history.results),
            generation=run.generation,
            **more,
        )
        run.interrupts.result = result
        return result

    def _list_undoable(self) -> tuple[str, ...]:
        """Return the steps that a cancel would undo, newest first, as far as the generator has yielded them."""
        recorder = self.context.recorder
        if not recorder.undo.compensate:
            return ()
        left = find_left_to_undo(recorder.checkpointer.history.results, recorder.undo.undoable)
        return tuple(each.path for each in left)

    def _measure(self) -> tuple[StepCounts, float]:
        """Return how many steps the attempt has executed and restored so far, and its duration in ms."""
        notifier, clock = self.context.notifier, self.context.clock
        counts = results.StepCounts(notifier.executed, notifier.restored, notifier.failed)
        return counts, round((clock.elapsed_ns() - self._started_ns) / 1e6, 3)

    def _find_repeated(self, output: Any, ending: BaseException | None) -> CheckpointData | None:
        """Return the run's last checkpoint, if this attempt did nothing and ended in the same way."""
        recorder, secrets = self.context.recorder, self.context.judge.secrets
        latest = recorder.resumed_from
        if latest is None or self.undoing is not None:
            return None
        recorded = recorder.checkpointer.history.results
        if len(recorded) != len(latest.step_results):
            return None
        reason, error = reason_of(ending, secrets)
        if reason.value != latest.status.value or not isinstance(ending, Exception | None):
            return None
        if error is None or latest.error is None:
            is_same = error is latest.error and output == plain_tree(latest.held_output, "output")
        else:
            is_same = all(getattr(error, it) == getattr(latest.error, it) for it in ("type", "message", "path"))
        undone = recorder.undo
        is_undoing = undone.compensate and bool(find_left_to_undo(recorded, undone.undoable))
        return latest if is_same and not is_undoing else None

    async def _roll_back(self, ending: BaseException) -> tuple[StepFailedError, ...]:
        """Undo the steps of a run that failed or was cancelled; return the steps that could not be undone."""
        run = self.context
        if not run.recorder.undo.compensate or not run.recorder.checkpointer.is_usable:
            return ()  # an undo that cannot be recorded must not happen: a resume would reuse the undone result
        if isinstance(ending, REFUSALS) and self.undoing is None:
            return ()  # a refusal leaves the decision to the user: continue, or cancel (which undoes)
        if self._is_stopped_early(ending):
            ending.add_note("Nothing was undone: the run stopped before it had replayed every step that can be undone.")
            return ()
        set_aside = run.recorder.superseded.list_undoable()
        left = [each.path for each in set_aside if each.path not in run.recorder.undo.undoable]
        if left and self.undoing is None:
            ending.add_note(
                f"Not undone, because the run did not reach them again: {join_names(left, 10)}. "
                f"'flowckpt cancel {shell_word(run.workflow_id)}' undoes them."
            )
        if self.undoing is not None:
            end = self.undoing.end
        elif run.recorder.undo.undoable or run.recorder.undo.not_undoable:
            end = undo.compensate.UnfinishedRollback(*reason_of(ending, run.secrets))
        else:
            return ()
        failures = await undo.compensate.roll_back(run, end)
        if failures is None:
            ending.add_note(
                "Nothing was undone: the undo could not be recorded, so a resume would still take the steps for done."
            )
        return failures or ()

    def _is_stopped_early(self, ending: BaseException) -> bool:
        """Return whether a resume was cancelled, or an ephemeral step failed, before the whole record was replayed."""
        run = self.context
        if self.undoing is not None or run.recorder.resumed_from is None or run.recorder.is_start_saved:
            return False
        recorded = run.recorder.checkpointer.history.results
        if not isinstance(ending, RunCancelledError):
            path = find_failed_step(ending)
            if not path or any(each.path == path for each in recorded):
                return False
        return bool(find_not_yielded(recorded, run.recorder.undo.undoable))
