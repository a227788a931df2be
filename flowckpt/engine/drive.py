"""One attempt of a run, from its first event to its last.

    replay ──command──► drive ──► execute the step ──► record its result ──► save where asked ──► tell
       ▲                                                                                           │
       └──────────────────────────── the outcome, sent or thrown ◄────────────────────────────────┘

Whatever ends an attempt (the end of the generator, an error in it, a failing save, a cancel, a signal, a consumer that
goes away) ends it on one path: `_end` closes the generator, saves the final checkpoint, and leaves a result.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from typing import Any

import attrs

from flowckpt import codec
from flowckpt.checkpoint import CheckpointData, Reason, Status, StepError, StepResult
from flowckpt.checkpointer import Checkpointer
from flowckpt.clock import Clock
from flowckpt.codec.blob import Recorded
from flowckpt.codec.results import append_result
from flowckpt.dsl import Step, Workflow
from flowckpt.engine.failures import failed_step, recorded_error, step_failure, text_of
from flowckpt.engine.result import StepCounts, WorkflowResult
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointStorageError,
    DecodingError,
    EncodingError,
    FencedError,
    FlowckptError,
    ForeignRecordError,
    UnsupportedSchemaError,
    WorkflowChangedError,
    type_name,
)
from flowckpt.events import (
    CheckpointFailed,
    CheckpointSaved,
    Event,
    StepCompleted,
    StepFailed,
    StepRestored,
    StepRetrying,
    StepStarted,
    WorkflowCancelled,
    WorkflowCompleted,
    WorkflowFailed,
    WorkflowResumed,
    WorkflowStarted,
)
from flowckpt.execution.interrupts import Interrupts, RunInterrupted
from flowckpt.execution.python import waited
from flowckpt.execution.runner import STOPS, Outcome, StepRunner
from flowckpt.replay import Execute, Finish, Replay, Restore

_REFUSALS = (
    WorkflowChangedError,
    DecodingError,
    CheckpointCorruptedError,
    ForeignRecordError,
    UnsupportedSchemaError,
)
"""What is wrong with the record, or with the code against the record; never the fault of a step that ran."""


@attrs.define(eq=False, repr=False)
class Drive:
    """Drives one attempt of a run.

    Attributes:
        workflow: the workflow.
        replay: its generator and its record.
        checkpointer: saves its checkpoints.
        clock: the time.
        random: returns numbers in [0, 1), for the jitter of retries.
        interrupts: the signals.
        resumed_from: the checkpoint that the attempt goes on from; None for a new run.
        is_observed: whether anybody hears the events of single steps; making one nobody hears costs 0.8 µs.
        result: how the attempt ended, once it has.
    """

    workflow: Workflow[Any, Any]
    replay: Replay
    checkpointer: Checkpointer
    clock: Clock
    random: Callable[[], float]
    interrupts: Interrupts
    resumed_from: CheckpointData | None
    is_observed: bool = True
    result: WorkflowResult | None = None
    _runner: StepRunner = attrs.field(
        init=False, default=attrs.Factory(lambda self: StepRunner(self.interrupts), takes_self=True)
    )
    _executed: int = 0
    _restored: int = 0
    _failed: int = 0
    _began_ns: int = 0
    _is_begun: bool = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """Run the attempt, yielding what happens.

        Raises:
            WorkflowChangedError: the generator is not the one that wrote the record; nothing was changed.
            DecodingError: a recorded value does not fit the code; nothing was changed.
            CheckpointCorruptedError: a large value in the record is damaged; nothing was changed.
            FencedError: the run was taken over by another owner.
            RunInterrupted: a signal stopped the run; it is saved.
        """
        run, clock, replay = self.checkpointer.workflow_id, self.clock, self.replay
        self._began_ns = clock.elapsed_ns()
        self.interrupts.watch(asyncio.current_task())
        output: Any = None
        ending: BaseException | None = None
        try:
            if self.resumed_from is None:
                yield WorkflowStarted(run, self.workflow.name, self.checkpointer.attempt)
                yield await self._begin()
            else:
                yield self._resumption(self.resumed_from)
            command = replay.start()
            while True:
                if isinstance(command, Restore):
                    result = command.result
                    self._restored += 1
                    if self.is_observed:
                        yield StepRestored(run, command.path, result.success, result.duration_ms)
                    if result.success:
                        command = replay.send(self._runner.restored_value(command.step, result))
                    else:
                        command = replay.throw(step_failure(command.path, result.error or StepError("", "")))
                elif isinstance(command, Execute):
                    self.interrupts.raise_noted()  # here what has ended is safe, and nothing has begun
                    step, path, is_recorded = command.step, command.path, not command.step.modifiers.is_ephemeral
                    if not self._is_begun and is_recorded:
                        yield await self._begin()
                    if self.is_observed:
                        yield StepStarted(run, path, step.action.step_type)
                    started_at, started_ns, tries = clock.now(), clock.elapsed_ns(), 1
                    outcome = await self._runner.attempt(step, path)
                    while (error := outcome.error) is not None and self._is_retried(step, tries, error):
                        delay = self._delay(step, tries)
                        yield StepRetrying(run, path, tries, delay, type_name(type(error)), text_of(error))
                        await waited(clock.sleep(delay), self.interrupts)
                        tries += 1
                        outcome = await self._runner.attempt(step, path)
                    duration_ms = round((clock.elapsed_ns() - started_ns) / 1e6, 3)
                    failure = None if error is None else recorded_error(error, path=path, tries=tries)
                    self._executed += 1
                    if is_recorded:
                        self._record(command, outcome, failure, duration_ms, started_at, tries)
                    if failure is not None:
                        self._failed += 1
                        yield StepFailed(run, path, duration_ms, tries, failure.type, failure.message)
                        command = replay.throw(step_failure(path, failure))
                    else:
                        saved = None
                        if step.modifiers.has_checkpoint:
                            saved = await self.checkpointer.save(Reason.STEP, step.modifiers.checkpoint_id or path)
                        if self.is_observed:
                            yield StepCompleted(run, path, duration_ms, not is_recorded)
                            if saved is not None:
                                yield self._saved(saved)
                        command = replay.send(outcome.value)
                elif isinstance(command, Finish):
                    output = codec.encode(command.output, self.workflow.output_type, place="the workflow's output")
                    break
                else:
                    raise command.error
        except BaseException as error:
            ending = self.interrupts.cause_of(error)
        for event in await self._end(output, ending):
            if not isinstance(ending, GeneratorExit):
                yield event
        # A failing workflow is a result. What stops a program (Ctrl-C, a cancel, SystemExit) goes on through us.
        if ending is not None and (not isinstance(ending, Exception) or self.result is None):
            raise ending

    def _resumption(self, latest: CheckpointData) -> WorkflowResumed:
        recorded = len(self.checkpointer.history.results)
        return WorkflowResumed(
            self.checkpointer.workflow_id,
            self.workflow.name,
            self.checkpointer.attempt,
            recorded,
            latest.checkpoint_id,
        )

    # --- a step ----------------------------------------------------------------------------------------------------

    def _is_retried(self, step: Step[Any], tries: int, error: BaseException) -> bool:
        retry = step.modifiers.retry
        if retry is None or tries >= retry.attempts or isinstance(error, EncodingError) or self.interrupts.noted:
            return False
        return isinstance(error, retry.on)

    def _delay(self, step: Step[Any], tries: int) -> float:
        retry = step.modifiers.retry
        return retry.delay(tries, random=self.random()) if retry else 0.0

    def _record(
        self,
        command: Execute,
        outcome: Outcome,
        failure: StepError | None,
        duration_ms: float,
        started_at: datetime,
        tries: int,
    ) -> None:
        step = command.step
        action = step.action
        append_result(
            self.checkpointer.history,
            StepResult(
                step.name,
                action.step_type,
                failure is None,
                Recorded(outcome.tree),
                duration_ms,
                failure,
                command.path,
                started_at,
                self.checkpointer.attempt,
                tries,
                action.function_name,
                step.modifiers.version,
                command.location,
            ),
        )

    # --- saving and ending -----------------------------------------------------------------------------------------

    async def _begin(self) -> CheckpointSaved:
        """Save that the attempt has begun: on a resume not before it has something to do."""
        data = await self.checkpointer.save(Reason.STARTED)
        self._is_begun = True
        return self._saved(data)

    def _saved(self, data: CheckpointData) -> CheckpointSaved:
        steps = len(data.step_results)
        return CheckpointSaved(self.checkpointer.workflow_id, data.checkpoint_id, data.sequence, data.reason, steps)

    async def _end(self, output: Any, ending: BaseException | None) -> list[Event]:
        """End the attempt: close the generator, save where it stands, and make the result."""
        told: list[Event] = []
        in_close = self.replay.close()
        if in_close is not None and ending is not None:
            ending.add_note(f"While the generator was closed, it raised {in_close!r}.")
        self._runner.close()
        self.interrupts.watch(None)
        if isinstance(ending, FencedError) or (not self._is_begun and isinstance(ending, _REFUSALS)):
            return told  # a resume that is refused leaves the run as it was
        if isinstance(ending, CheckpointStorageError) and not self.checkpointer.is_usable:
            told.append(self._not_saved(ending))
        reason, error = _reason_of(ending)
        is_saved = False
        if self.checkpointer.is_usable:
            try:
                held = None if ending is not None else Recorded(output)
                told.append(self._saved(await self.checkpointer.save(reason, output=held, error=error)))
                is_saved = True
            except FencedError:
                raise
            except FlowckptError as failure:
                told.append(self._not_saved(failure))
                if ending is None:
                    ending, (reason, error) = failure, _reason_of(failure)
                else:
                    ending.add_note(f"The end of the run could not be saved: {failure}")
        self._finish(output, ending, reason, is_saved)
        told.append(self._final_event(ending, error))
        return told

    def _not_saved(self, error: FlowckptError) -> CheckpointFailed:
        data = self.checkpointer.attempted
        assert data is not None
        return CheckpointFailed(
            self.checkpointer.workflow_id, data.checkpoint_id, data.sequence, data.reason, str(error)
        )

    def _finish(self, output: Any, ending: BaseException | None, reason: Reason, is_saved: bool) -> None:
        value = codec.decode(output, self.workflow.output_type) if ending is None else None
        self.result = WorkflowResult(
            self.checkpointer.workflow_id,
            self.workflow.name,
            Status(reason.value),
            value,
            self.checkpointer.attempt,
            StepCounts(self._executed, self._restored, self._failed),
            round((self.clock.elapsed_ns() - self._began_ns) / 1e6, 3),
            ending,
            is_saved,
        )
        self.interrupts.result = self.result
        if isinstance(ending, RunInterrupted):
            ending.result = self.result

    def _final_event(self, ending: BaseException | None, error: StepError | None) -> Event:
        run, counts = self.checkpointer.workflow_id, (self._executed, self._restored)
        assert self.result is not None
        duration = self.result.duration_ms
        if ending is None:
            return WorkflowCompleted(run, self.result.output, *counts, duration)
        if self.result.status is Status.CANCELLED:
            cause = ending.signal_name if isinstance(ending, RunInterrupted) else "cancelled"
            return WorkflowCancelled(run, cause, *counts, duration, self.result.is_saved)
        assert error is not None
        return WorkflowFailed(run, error.type, error.message, *counts, duration, self.result.is_saved)


def _reason_of(ending: BaseException | None) -> tuple[Reason, StepError | None]:
    if ending is None:
        return Reason.COMPLETED, None
    if isinstance(ending, STOPS):
        return Reason.CANCELLED, None
    return Reason.FAILED, recorded_error(ending, path=failed_step(ending))
