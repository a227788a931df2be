"""One attempt of a run, from its first event to its last.

    replay ──command──► drive ──► execute the step ──► record its result ──► save where asked ──► tell
       ▲                                                                                           │
       └──────────────────────────── the outcome, sent or thrown ◄────────────────────────────────┘

Whatever ends an attempt (the end of the generator, an error in it, a failing save, a cancel, a signal, a consumer that
goes away) ends it on one path: `_end` closes the generator, saves the final checkpoint, and leaves a result.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from typing import Any

import attrs

from flowckpt import codec
from flowckpt.blocking import may_block
from flowckpt.checkpoint import CheckpointData, Reason, Status, StepError, StepResult
from flowckpt.checkpointer import Checkpointer
from flowckpt.clock import Clock
from flowckpt.codec.blob import BLOB_SIZE, LazyValue, Recorded, pack
from flowckpt.codec.results import append_result, plain_tree
from flowckpt.dsl import PythonAction, Step, Workflow
from flowckpt.engine.failures import failed_step, recorded_error, step_failure
from flowckpt.engine.result import StepCounts, WorkflowResult
from flowckpt.errors import (
    CheckpointStorageError,
    EncodingError,
    FencedError,
    FlowckptError,
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
from flowckpt.execution.annotation import return_annotation
from flowckpt.execution.interrupts import Interrupts, RunInterrupted
from flowckpt.execution.python import run_python, waited
from flowckpt.execution.thread import StepThread
from flowckpt.replay import Crash, Execute, Finish, Replay, Restore

_STOPS = (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit)


@attrs.define(eq=False)
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
        result: how the attempt ended, once it has.
    """

    workflow: Workflow[Any, Any]
    replay: Replay
    checkpointer: Checkpointer
    clock: Clock
    random: Callable[[], float]
    interrupts: Interrupts
    resumed_from: CheckpointData | None
    result: WorkflowResult | None = None
    _thread: StepThread = attrs.field(factory=StepThread)
    _executed: int = 0
    _restored: int = 0
    _failed: int = 0
    _began_ns: int = 0
    _is_begun: bool = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """Run the attempt, yielding what happens.

        Raises:
            WorkflowChangedError: the generator is not the one that wrote the record; nothing was changed.
            FencedError: the run was taken over by another owner.
            RunInterrupted: a signal stopped the run; it is saved.
        """
        run = self.checkpointer.workflow_id
        self._began_ns = self.clock.elapsed_ns()
        self.interrupts.watch(asyncio.current_task())
        output: Any = None
        ending: BaseException | None = None
        try:
            if self.resumed_from is None:
                yield WorkflowStarted(run, self.workflow.name)
                yield await self._save(Reason.STARTED)
                self._is_begun = True
            else:
                recorded = self.resumed_from
                yield WorkflowResumed(
                    run,
                    self.workflow.name,
                    self.checkpointer.attempt,
                    len(self.checkpointer.history.results),
                    recorded.checkpoint_id,
                )
            command = self.replay.start()
            while True:
                kind = type(command)
                if kind is Execute:
                    step, path = command.step, command.path
                    if not self._is_begun and not step.modifiers.is_ephemeral:
                        yield await self._save(Reason.STARTED)
                        self._is_begun = True
                    yield StepStarted(run, path, step.action.step_type)
                    started_at, started_ns = self.clock.now(), self.clock.elapsed_ns()
                    tries, value, error = 1, None, None
                    while True:
                        try:
                            value = await self._call(step, path)
                            if step.modifiers.is_ephemeral:
                                break
                            tree, value = self._recordable(step, path, value)
                        except _STOPS as stop:
                            if not _is_failure(stop):
                                raise
                            error = stop
                        except (Exception, SystemExit) as failure:
                            error = failure
                        if error is None or not self._is_retried(step, tries, error):
                            break
                        delay = step.modifiers.retry.delay(tries, random=self.random())
                        yield StepRetrying(run, path, tries, delay, type_name(type(error)), str(error))
                        await waited(self.clock.sleep(delay), self.interrupts)
                        tries, error = tries + 1, None
                    duration_ms = round((self.clock.elapsed_ns() - started_ns) / 1e6, 3)
                    self._executed += 1
                    if error is not None:
                        failure = recorded_error(error, path=path, tries=tries)
                        self._failed += 1
                        if not step.modifiers.is_ephemeral:
                            self._record(command, None, failure, duration_ms, started_at, tries)
                        yield StepFailed(run, path, duration_ms, tries, failure.type, failure.message)
                        self.interrupts.raise_noted()
                        command = self.replay.throw(step_failure(path, failure))
                    else:
                        if step.modifiers.is_ephemeral:
                            yield StepCompleted(run, path, duration_ms, True)
                        else:
                            self._record(command, tree, None, duration_ms, started_at, tries)
                            if step.modifiers.has_checkpoint:
                                saved = await self._save(Reason.STEP, step.modifiers.checkpoint_id or path)
                                yield StepCompleted(run, path, duration_ms)
                                yield saved
                            else:
                                yield StepCompleted(run, path, duration_ms)
                        if self.interrupts.noted:
                            self.interrupts.raise_noted()
                        command = self.replay.send(value)
                elif kind is Restore:
                    result = command.result
                    self._restored += 1
                    yield StepRestored(run, command.path, result.success, result.duration_ms)
                    if result.success:
                        command = self.replay.send(self._restored_value(command.step, result))
                    else:
                        command = self.replay.throw(step_failure(command.path, result.error or StepError("", "")))
                elif kind is Finish:
                    output = codec.encode(command.output, self.workflow.output_type, place="the workflow's output")
                    break
                else:
                    assert type(command) is Crash
                    raise command.error
        except BaseException as error:
            ending = error
        for event in await self._end(output, ending):
            if not isinstance(ending, GeneratorExit):
                yield event
        if ending is not None and (isinstance(ending, _STOPS) or self.result is None):
            raise ending

    # --- a step ----------------------------------------------------------------------------------------------------

    async def _call(self, step: Step[Any], path: str) -> Any:
        action = step.action
        assert isinstance(action, PythonAction)
        timeout = step.modifiers.timeout_seconds
        if timeout is None and may_block():  # the hot path: no coroutine of our own around the call (0.4 µs)
            value = self.interrupts.call(action.function, action.args, action.kwargs)
            return await waited(value, self.interrupts) if inspect.isawaitable(value) else value
        return await run_python(
            action, path=path, timeout_seconds=timeout, interrupts=self.interrupts, thread=self._thread
        )

    def _recordable(self, step: Step[Any], path: str, value: Any) -> tuple[Any, Any]:
        """Return the tree of a step's output and the value that the generator gets: what a resumed run would get."""
        action = step.action
        assert isinstance(action, PythonAction)
        annotation = return_annotation(action.function)
        tree = codec.encode(value, annotation, place=f"{path}: output")
        return tree, codec.decode(tree, annotation)

    def _restored_value(self, step: Step[Any], result: StepResult) -> Any:
        action = step.action
        assert isinstance(action, PythonAction)
        tree = plain_tree(result.held_output, "output")
        return codec.decode(tree, return_annotation(action.function), place=f"{result.path}: output")

    def _is_retried(self, step: Step[Any], tries: int, error: BaseException) -> bool:
        retry = step.modifiers.retry
        if retry is None or tries >= retry.attempts or isinstance(error, EncodingError) or self.interrupts.noted:
            return False
        return isinstance(error, retry.on)

    def _record(
        self,
        command: Execute,
        tree: Any,
        error: StepError | None,
        duration_ms: float,
        started_at: datetime,
        tries: int,
    ) -> None:
        step = command.step
        action = step.action
        held: LazyValue = Recorded(tree)
        if type(tree) is not int and type(tree) is not bool and tree is not None:
            _, blob = pack(tree) if not isinstance(tree, str) or len(tree) * 4 >= BLOB_SIZE else ("", None)
            held = blob or held
        append_result(
            self.checkpointer.history,
            StepResult(
                step.name,
                action.step_type,
                error is None,
                held,
                duration_ms,
                error,
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

    async def _save(self, reason: Reason, checkpoint_id: str | None = None, **fields: Any) -> CheckpointSaved:
        data = self.checkpointer.checkpoint(reason, checkpoint_id, **fields)
        await self.checkpointer.save(data)
        return CheckpointSaved(
            self.checkpointer.workflow_id, data.checkpoint_id, data.sequence, reason, len(data.step_results)
        )

    async def _end(self, output: Any, ending: BaseException | None) -> list[Event]:
        """End the attempt: close the generator, save where it stands, and make the result."""
        told: list[Event] = []
        in_close = self.replay.close()
        if in_close is not None and ending is not None:
            ending.add_note(f"While the generator was closed, it raised {in_close!r}.")
        self._thread.close()
        self.interrupts.watch(None)
        if isinstance(ending, WorkflowChangedError | FencedError):
            return told  # nothing of the run may be touched
        if isinstance(ending, CheckpointStorageError) and not self.checkpointer.is_usable:
            told.append(self._not_saved(self.checkpointer.sequence, ending))
        reason, error = _reason_of(ending)
        is_saved = False
        if self.checkpointer.is_usable:
            try:
                held = None if ending is not None else Recorded(output)
                told.append(await self._save(reason, output=held, error=error))
                is_saved = True
            except FencedError:
                raise
            except FlowckptError as failure:
                told.append(self._not_saved(self.checkpointer.sequence, failure))
                if ending is None:
                    ending, (reason, error) = failure, _reason_of(failure)
                else:
                    ending.add_note(f"The end of the run could not be saved: {failure}")
        self._finish(output, ending, reason, is_saved)
        told.append(self._final_event(ending, error))
        return told

    def _not_saved(self, sequence: int, error: FlowckptError) -> CheckpointFailed:
        return CheckpointFailed(self.checkpointer.workflow_id, "", sequence, "", str(error))

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


def _is_failure(stop: BaseException) -> bool:
    """Tell a step that raised `CancelledError` by itself from a cancel of the run."""
    task = asyncio.current_task()
    return isinstance(stop, asyncio.CancelledError) and task is not None and not task.cancelling()


def _reason_of(ending: BaseException | None) -> tuple[Reason, StepError | None]:
    if ending is None:
        return Reason.COMPLETED, None
    if isinstance(ending, _STOPS):
        return Reason.CANCELLED, None
    return Reason.FAILED, recorded_error(ending, path=failed_step(ending))
