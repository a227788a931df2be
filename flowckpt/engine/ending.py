"""The end of an attempt: its final checkpoint, its result, its last event. One path for every kind of end."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs

from flowckpt import codec
from flowckpt.checkpoint import Reason, Status, StepError
from flowckpt.checkpoint.recorded_waits import due_at
from flowckpt.checkpointer import Checkpointer
from flowckpt.clock import Clock
from flowckpt.codec.blob import Recorded
from flowckpt.dsl import Workflow
from flowckpt.engine.failures import NO_SECRETS, failed_step, recorded_error
from flowckpt.engine.redaction import redact_ending
from flowckpt.engine.telling import Told, failed_event, saved_event
from flowckpt.errors import (
    CheckpointStorageError,
    FencedError,
    FlowckptError,
    RunCancelledError,
    StepFailedError,
    SuspensionUnsavedError,
)
from flowckpt.execution.interrupts import Interrupts, RunInterrupted
from flowckpt.execution.runner import STOPS
from flowckpt.known_secrets import KnownSecrets
from flowckpt.lazy import LazyModule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flowckpt import events
    from flowckpt.checkpoint.wait import Wait
    from flowckpt.engine import result as results
    from flowckpt.engine.result import StepCounts, WorkflowResult
    from flowckpt.engine.rolling_back import UnfinishedRollback
else:  # a start needs neither
    events = LazyModule("flowckpt.events")
    results = LazyModule("flowckpt.engine.result")


@attrs.frozen(eq=False, repr=False)
class Ending:
    """Ends an attempt whose generator has ended.

    Attributes:
        workflow: the workflow.
        checkpointer: saves its last checkpoint.
        clock: the time.
        interrupts: the signals, which are told the result.
        counts: its steps.
        began_ns: when it began, by the clock's `elapsed_ns`.
        in_flight: the paths of steps that have not ended.
        evidence: answers to recorded claims that no checkpoint holds yet.
        rollback_failures: the steps that were to be undone and could not be.
        undone: the paths of those that were undone.
        decided: how the run ends, where an earlier attempt said so.
        secrets: what is not told of its errors.
        is_suspended: whether what stopped it leaves it suspended and due, for whoever recovers runs.
    """

    workflow: Workflow[Any, Any]
    checkpointer: Checkpointer
    clock: Clock
    interrupts: Interrupts
    counts: StepCounts
    began_ns: int
    in_flight: tuple[str, ...]
    evidence: tuple[Any, ...] = ()
    rollback_failures: tuple[StepFailedError, ...] = ()
    undone: tuple[str, ...] = ()
    decided: UnfinishedRollback | None = None
    secrets: KnownSecrets = NO_SECRETS
    is_suspended: bool = False

    async def end(self, output: Any, ending: BaseException | None) -> tuple[WorkflowResult, list[Told]]:
        """Save where the run stands, and return its result and what is to be told.

        Args:
            output: what the workflow returned, as it is recorded.
            ending: what ended it otherwise, or None.

        Raises:
            FencedError: the run was taken over by another owner.
        """
        told: list[Told] = []
        checkpointer = self.checkpointer
        if ending is not None:
            redact_ending(ending, self.secrets)
        is_told = isinstance(ending, SuspensionUnsavedError)  # when it could not be saved that the run waits
        if isinstance(ending, CheckpointStorageError) and not checkpointer.is_usable and not is_told:
            told.append(partial(failed_event, checkpointer.workflow_id, checkpointer.attempted, ending))
        reason, error = reason_of(ending, self.secrets)
        if self.is_suspended:
            reason = Reason.SUSPENDED
        if self.decided is not None:
            reason, error = self.decided.reason, self.decided.error
        is_saved = False
        unsaved = ending if isinstance(ending, FlowckptError) and not checkpointer.is_usable else None
        if checkpointer.is_usable:
            try:
                held = None if ending is not None else Recorded(output)
                data = await checkpointer.save(
                    reason, output=held, error=error, in_flight=self.in_flight, evidence=self.evidence
                )
                told.append(partial(saved_event, checkpointer.workflow_id, data))
                is_saved = True
            except FlowckptError as failure:
                goes_on = checkpointer.goes_on_after(failure)
                if isinstance(failure, FencedError) and not goes_on:
                    raise
                unsaved = failure
                told.append(partial(failed_event, checkpointer.workflow_id, checkpointer.attempted, failure))
                if ending is not None:
                    ending.add_note(f"The end of the run could not be saved: {failure.message}")
                elif not goes_on:
                    ending, (reason, error) = failure, reason_of(failure, self.secrets)
        if not is_saved and reason is Reason.SUSPENDED:  # nobody could go on with it
            reason = Reason.CANCELLED
        result = self._result(output, ending, reason, is_saved, unsaved, error)
        told.append(partial(self._final_event, result, ending, error))
        return result, told

    def suspend(self, waits: tuple[Wait, ...], attempt: int) -> tuple[WorkflowResult, list[Told]]:
        """Return the result of an attempt that ends because everything waits, and what is to be told; it is saved.

        Args:
            waits: what the run waits for.
            attempt: the attempt that saved last: one that found nothing changed has left no trace.
        """
        run, steps = self.checkpointer.workflow_id, (self.counts.executed, self.counts.restored)
        duration = round((self.clock.elapsed_ns() - self.began_ns) / 1e6, 3)
        result = results.WorkflowResult(
            run,
            self.workflow.name,
            Status.SUSPENDED,
            None,
            attempt,
            self.counts,
            duration,
            waits=waits,
            last_saved=self.checkpointer.last_saved,
        )
        self.interrupts.result = result
        return result, [lambda: events.WorkflowSuspended(run, waits, due_at(waits), *steps, duration)]

    def _result(
        self,
        output: Any,
        ending: BaseException | None,
        reason: Reason,
        is_saved: bool,
        unsaved: FlowckptError | None,
        error: StepError | None,
    ) -> WorkflowResult:
        value = codec.decode(output, self.workflow.output_type) if ending is None else None
        result = results.WorkflowResult(
            self.checkpointer.workflow_id,
            self.workflow.name,
            Status(reason.value),
            value,
            self.checkpointer.attempt,
            self.counts,
            round((self.clock.elapsed_ns() - self.began_ns) / 1e6, 3),
            ending,
            is_saved,
            self.rollback_failures,
            error,
            self.undone,
            last_saved=self.checkpointer.last_saved,
            save_error=unsaved,
        )
        self.interrupts.result = result
        if isinstance(ending, RunInterrupted):
            ending.result = result
        return result

    def _final_event(
        self, result: WorkflowResult, ending: BaseException | None, error: StepError | None
    ) -> events.Event:
        run, steps = self.checkpointer.workflow_id, (self.counts.executed, self.counts.restored)
        duration = result.duration_ms
        if ending is None:
            return events.WorkflowCompleted(run, result.output, *steps, duration, result.is_saved)
        cause = ending.signal_name if isinstance(ending, RunInterrupted) else "cancelled"
        if result.status is Status.SUSPENDED:
            return events.WorkflowSuspended(run, (), None, *steps, duration, cause)
        if result.status is Status.CANCELLED:
            return events.WorkflowCancelled(run, cause, *steps, duration, result.is_saved)
        error = error or StepError("", "")
        return events.WorkflowFailed(run, error.type, error.message, *steps, duration, result.is_saved)


def reason_of(ending: BaseException | None, secrets: KnownSecrets = NO_SECRETS) -> tuple[Reason, StepError | None]:
    """Return how a run ends by what ended it, and the error as it is recorded.

    Args:
        ending: what ended it, or None.
        secrets: what goes out of the error's texts.
    """
    if ending is None:
        return Reason.COMPLETED, None
    if isinstance(ending, (*STOPS, RunCancelledError)):
        return Reason.CANCELLED, None
    return Reason.FAILED, recorded_error(ending, path=failed_step(ending), secrets=secrets)
