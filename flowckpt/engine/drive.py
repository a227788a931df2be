"""One attempt of a run, from its first event to its last.

    replay ──command──► drive ──► execute the step ──► record its result ──► save where asked ──► tell
       ▲                  │                                                                         │
       │                  └──► is a recorded result still true? ── no ──► execute the step          │
       └──────────────────────────── the outcome, sent or thrown ◄────────────────────────────────┘

Whatever ends an attempt (the end of the generator, an error in it, a failing save, a cancel, a signal, a consumer that
goes away) ends it on one path: `_end` closes the generator, saves the final checkpoint, and leaves a result.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any

import attrs

from flowckpt import codec
from flowckpt.checkpoint import CheckpointData, Reason, StepError, StepResult
from flowckpt.checkpoint.result import result_of
from flowckpt.checkpointer import Checkpointer
from flowckpt.clock import Clock
from flowckpt.codec.blob import Recorded
from flowckpt.codec.results import append_result
from flowckpt.dsl import Step, Workflow
from flowckpt.engine.ending import Ending
from flowckpt.engine.failures import REFUSALS, recorded_error, stale_step, step_failure
from flowckpt.engine.result import StepCounts, WorkflowResult
from flowckpt.engine.resumption import kept_history, with_reusable, without_reusable
from flowckpt.engine.settling import RUN, Settled, Settling
from flowckpt.engine.superseded import NOT_UNDONE, Superseded, marks_of
from flowckpt.engine.telling import answer_documents, evidence_event, failed_event, saved_event
from flowckpt.engine.trying import Trying
from flowckpt.engine.verifying import Verifying, is_open
from flowckpt.errors import (
    FencedError,
    FlowckptError,
)
from flowckpt.events import (
    CheckpointSaved,
    Event,
    StepAdopted,
    StepCompleted,
    StepFailed,
    StepRestored,
    StepStarted,
    WorkflowResumed,
    WorkflowStarted,
)
from flowckpt.execution.interrupts import Interrupts
from flowckpt.execution.runner import Outcome, StepRunner, restored_value
from flowckpt.plan.identity import arguments_of, fingerprint_of
from flowckpt.plan.judge import Judge
from flowckpt.plan.policy import OnStale, ResumePolicy, ReuseMode
from flowckpt.replay import Execute, Finish, Replay, Restore
from flowckpt.stores.base import NotesBeginnings

_NOTHING: Mapping[str, Any] = {}


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
        verifying: checks what the steps claim.
        resumed_from: the checkpoint that the attempt goes on from; None for a new run.
        judge: says which recorded results are still true.
        superseded: results that no longer count, of steps that must look at them before they run again.
        in_doubt: the paths of steps whose start was recorded and whose end was not; each checkpoint repeats them until
            their step has a result.
        is_stolen: whether the run was taken although its owner may be alive.
        is_observed: whether anybody hears the events of single steps; making one nobody hears costs 0.8 µs.
        result: how the attempt ended, once it has.
    """

    workflow: Workflow[Any, Any]
    replay: Replay
    checkpointer: Checkpointer
    clock: Clock
    random: Callable[[], float]
    interrupts: Interrupts
    verifying: Verifying
    resumed_from: CheckpointData | None = None
    judge: Judge = attrs.field(factory=lambda: Judge(ResumePolicy()))
    superseded: Superseded = attrs.field(factory=Superseded)
    in_doubt: set[str] = attrs.field(factory=set)
    is_stolen: bool = False
    is_observed: bool = True
    result: WorkflowResult | None = None
    _runner: StepRunner = attrs.field(
        init=False, default=attrs.Factory(lambda self: StepRunner(self.interrupts, self.verifying), takes_self=True)
    )
    _executed: int = 0
    _restored: int = 0
    _failed: int = 0
    _began_ns: int = 0
    _is_begun: bool = False
    _in_flight: tuple[str, ...] = ()
    _told_reports: dict[str, Any] = attrs.field(init=False, factory=dict)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Run the attempt, yielding what happens.

        Raises:
            WorkflowChangedError: the generator is not the one that wrote the record; nothing was changed.
            StaleStepError: a recorded result is no longer true, and the policy is to stop; nothing was changed.
            StepInDoubtError: nobody knows whether a step was done that must not be done twice.
            DecodingError: a recorded value does not fit the code; nothing was changed.
            CheckpointCorruptedError: a large value in the record is damaged; nothing was changed.
            FencedError: the run was taken over by another owner.
            RunInterrupted: a signal stopped the run; it is saved.
        """
        checkpointer, clock, replay, judge = self.checkpointer, self.clock, self.replay, self.judge
        run, attempt = checkpointer.workflow_id, checkpointer.attempt
        note = checkpointer.store.note_begun if isinstance(checkpointer.store, NotesBeginnings) else None
        self._began_ns = clock.elapsed_ns()
        task = asyncio.current_task()
        self.interrupts.watch(task)
        output: Any = None
        ending: BaseException | None = None
        try:
            if self.resumed_from is None:
                yield WorkflowStarted(run, self.workflow.name, attempt)
                yield await self._begin()
            else:
                yield self._resumption(self.resumed_from)
            command = replay.start()
            while True:
                if isinstance(command, Restore):
                    step, result = command.step, command.result
                    if result.evidence is not None and result.success:
                        report = judge.reports.get(result.path)
                        if self._executed or is_open(report):  # the world has moved on, or could not be asked before
                            report = judge.reports[result.path] = await self.verifying.look_again(step, result)
                        if report is not None and report.outcome != "no_evidence":
                            yield evidence_event(run, result.path, report, "resume")
                    reasons = judge.reasons(step, result, is_behind_rerun=command.is_spare)
                    if reasons and (answer := judge.decide(reasons)) is not OnStale.REUSE:
                        if answer is OnStale.FAIL:
                            raise stale_step(run, result.path, reasons, is_at_most_once=step.modifiers.is_at_most_once)
                        if not judge.proves_done(step, result):
                            command = replay.rerun(command, keeps_rest=judge.policy.reuse is ReuseMode.INPUTS)
                            continue
                    if command.is_spare:
                        append_result(self.checkpointer.history, result)
                        self._settle(result.path)
                    self._restored += 1
                    if self.is_observed:
                        yield StepRestored(run, command.path, result.success, result.duration_ms)
                    if result.success:
                        command = replay.send(restored_value(step, result))
                    else:
                        command = replay.throw(step_failure(command.path, result.error or StepError("", "")))
                elif isinstance(command, Execute):
                    self.interrupts.raise_noted()  # here what has ended is safe, and nothing has begun
                    if task is not None and task.cancelling():
                        await asyncio.sleep(0)  # a cancel that waited for the end of the last step comes in here
                    step, path = command.step, command.path
                    modifiers, action = step.modifiers, step.action
                    is_recorded = not modifiers.is_ephemeral
                    code, arguments, settled = "", _NOTHING, RUN
                    if is_recorded:
                        if replay.dropped:
                            self._let_go()
                        code, arguments = fingerprint_of(action), arguments_of(action)
                        if modifiers.is_at_most_once or path in self.superseded:
                            settled = await self._settling().before(step, path, arguments)
                            if settled.report is not None and settled.report.verdicts:
                                yield evidence_event(run, path, settled.report, "in_doubt")
                            if settled.reused is not None:
                                self._keep(attrs.evolve(settled.reused, fingerprint=code))
                                yield StepRestored(run, path, True, settled.reused.duration_ms)
                                command = replay.send(restored_value(step, settled.reused))
                                continue
                        if not self._is_begun:
                            yield await self._begin()
                        if modifiers.is_at_most_once and settled.outcome is None and settled.undo is None:
                            yield await self._mark(path)
                    self._in_flight = (path,)
                    if self.is_observed and settled.outcome is None:
                        yield StepStarted(run, path, action.step_type)
                    if note is not None and is_recorded:
                        note(run, path)
                    started_at, started_ns, trying = clock.now(), clock.elapsed_ns(), None
                    if (
                        settled is RUN
                        and modifiers.retry is None
                        and (action.step_type == "python" or not self.is_observed)
                    ):
                        tries = 1
                        outcome = await self._runner.attempt(step, (run, path, attempt, 1, arguments))
                    else:
                        trying = self._trying(step, path, arguments, settled)
                        async with aclosing(trying.events()) as told:
                            async for event in told:
                                yield event
                        outcome, tries = trying.outcome, trying.tries
                    error = outcome.error
                    duration_ms = round((clock.elapsed_ns() - started_ns) / 1e6, 3)
                    failure = None if error is None else recorded_error(error, path=path, tries=tries)
                    if is_adopted := trying is not None and trying.is_adopted:
                        self._restored += 1
                    else:
                        self._executed += 1
                    if is_recorded:
                        marks: tuple[str, ...] = ()
                        if modifiers.looks_back:
                            is_undone = trying is None or trying.is_undone
                            marks = marks_of(modifiers, is_adopted=is_adopted, is_not_undone=not is_undone)
                        self._record(command, outcome, failure, duration_ms, started_at, tries, code, arguments, marks)
                    else:
                        self.in_doubt.discard(path)
                    self._in_flight = ()
                    saved = None
                    if failure is None and (modifiers.has_checkpoint or modifiers.is_at_most_once):
                        name = modifiers.checkpoint_id or path
                        saved = await checkpointer.save_or_go_on(Reason.STEP, name, in_flight=self._unended())
                    elif is_recorded and checkpointer.trigger is not None and checkpointer.is_due():
                        saved = await checkpointer.save_or_go_on(Reason.TRIGGER, in_flight=self._unended())
                    if outcome.committed is not None:
                        yield evidence_event(run, path, outcome.committed.report, "now")
                    if failure is not None:
                        self._failed += 1
                        yield StepFailed(run, path, duration_ms, tries, failure.type, failure.message)
                    elif is_adopted:
                        yield StepAdopted(run, path)
                    elif self.is_observed:
                        yield StepCompleted(run, path, duration_ms, not is_recorded)
                    if isinstance(saved, FlowckptError):
                        yield failed_event(run, checkpointer.attempted, saved)
                    elif saved is not None and self.is_observed:
                        yield saved_event(run, saved)
                    if failure is not None:
                        command = replay.throw(step_failure(path, failure))
                    else:
                        command = replay.send(outcome.value)
                elif isinstance(command, Finish):
                    if replay.dropped:
                        self._let_go()
                    self.checkpointer.metadata = without_reusable(self.checkpointer.metadata)
                    output = codec.encode(command.output, self.workflow.output_type, place="the workflow's output")
                    break
                else:
                    if replay.dropped:
                        self._let_go()
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

    def _settling(self) -> Settling:
        policy, run = self.judge.policy, self.checkpointer.workflow_id
        attempt = self.checkpointer.attempt
        return Settling(
            run, attempt, policy, self.superseded, self.in_doubt, self._runner, self.verifying, self.is_stolen
        )

    def _trying(self, step: Step[Any], path: str, arguments: Mapping[str, Any], settled: Settled) -> Trying:
        return Trying(
            step,
            path,
            self.checkpointer.workflow_id,
            self.checkpointer.attempt,
            arguments,
            settled,
            self._settling(),
            self._runner,
            self.clock,
            self.random,
            self.interrupts,
            self.is_observed,
            self._mark,
        )

    def _record(
        self,
        command: Execute,
        outcome: Outcome,
        failure: StepError | None,
        duration_ms: float,
        started_at: datetime,
        tries: int,
        code: str,
        arguments: Mapping[str, Any],
        marks: tuple[str, ...],
    ) -> None:
        step = command.step
        action = step.action
        fields = {
            "name": step.name,
            "step_type": action.step_type,
            "success": failure is None,
            "_output": Recorded(outcome.tree) if failure is None else None,
            "duration_ms": duration_ms,
            "error": failure,
            "path": command.path,
            "started_at": started_at,
            "attempt": self.checkpointer.attempt,
            "tries": tries,
            "function": action.function_name,
            "version": step.modifiers.version,
            "location": command.location,
            "fingerprint": code,
            "arguments": arguments,
            "evidence": None if outcome.committed is None else outcome.committed.document,
            "marks": marks,
        }
        append_result(self.checkpointer.history, result_of(fields))
        self.in_doubt.discard(command.path)
        if NOT_UNDONE not in marks:
            self._settle(command.path)

    # --- results that no longer count ------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Take what replay has dropped, and what it still keeps back, out of the history."""
        replay, checkpointer = self.replay, self.checkpointer
        self.superseded.add(replay.dropped)
        self.superseded.add(replay.spare.values())  # a resume that does not ask for them must not forget them
        if not self._is_begun:
            dropped = {result.path for result in replay.dropped}
            checkpointer.history = kept_history(checkpointer.history.view(), dropped | replay.spare.keys())
            if replay.spare and self.resumed_from is not None:
                checkpointer.metadata = with_reusable(checkpointer.metadata, self.resumed_from.attempt, dropped)
        replay.dropped.clear()
        self._write_down_superseded()

    def _keep(self, result: StepResult) -> None:
        """Take a result back that was let go and still holds."""
        self._restored += 1
        append_result(self.checkpointer.history, result)
        self._settle(result.path)

    def _settle(self, path: str) -> None:
        """Forget the earlier result of a step that has one again."""
        if path in self.superseded:
            self.superseded.settle(path)
            self._write_down_superseded()

    def _write_down_superseded(self) -> None:
        self.checkpointer.metadata = self.superseded.written_to(self.checkpointer.metadata)

    # --- saving, telling, ending -----------------------------------------------------------------------------------

    async def _begin(self) -> CheckpointSaved:
        """Save that the attempt has begun: on a resume not before it has something to do."""
        data = await self.checkpointer.save(Reason.STARTED, in_flight=self._unended(), evidence=self._answers())
        self._is_begun = True
        return saved_event(self.checkpointer.workflow_id, data)

    def _answers(self) -> tuple[Any, ...]:
        """Return the answers to recorded claims that no checkpoint holds yet."""
        reports, told = self.judge.reports, self._told_reports
        fresh = {path: report for path, report in reports.items() if told.get(path) is not report}
        told.update(fresh)
        return answer_documents(fresh)

    async def _mark(self, path: str) -> CheckpointSaved:
        """Save that a step begins that must not be done twice; what an earlier call left behind is no question now."""
        self.in_doubt.add(path)
        self._settle(path)
        data = await self.checkpointer.save(Reason.IN_DOUBT, in_flight=self._unended())
        return saved_event(self.checkpointer.workflow_id, data)

    def _unended(self) -> tuple[str, ...]:
        """Return the steps whose start is known and whose end is not: of this attempt, and of those before it."""
        return tuple(sorted({*self.in_doubt, *self._in_flight})) if self.in_doubt or self._in_flight else ()

    async def _end(self, output: Any, ending: BaseException | None) -> list[Event]:
        """End the attempt: close the generator, save where it stands, and make the result."""
        in_close = self.replay.close()
        if in_close is not None and ending is not None:
            ending.add_note(f"While the generator was closed, it raised {in_close!r}.")
        self._runner.close()
        self.interrupts.watch(None)
        if isinstance(ending, FencedError) or (not self._is_begun and isinstance(ending, REFUSALS)):
            return []  # a resume that is refused leaves the run as it was
        counts = StepCounts(self._executed, self._restored, self._failed)
        end = Ending(
            self.workflow,
            self.checkpointer,
            self.clock,
            self.interrupts,
            counts,
            self._began_ns,
            self._unended(),  # also of a run that is complete: its code may yield them again
            self._answers(),
        )
        self.result, told = await end.end(output, ending)
        return told
