"""The steps of a generator or a fan-out: each first looks for its recorded result, then runs if it has none.

The record of a composite is written once, at its end. The results of its own steps are in their own records.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from datetime import datetime
from typing import Any

import attrs

from flowckpt.core.dsl import Step, composites
from flowckpt.core.identity.call import identify
from flowckpt.core.records import Reason, StepError, StepResult
from flowckpt.core.replay import Answer, Enter, Execute, Replay, Restore, drive, expand
from flowckpt.engine import steps
from flowckpt.engine.rules.paths import ROLLBACK, find_not_yielded, is_stopped
from flowckpt.engine.run.context import RunContext
from flowckpt.engine.run.recorder import StepEnd
from flowckpt.engine.steps import wait
from flowckpt.engine.steps.run_step import emit_end, restore_step, run_step
from flowckpt.engine.values.failures import read_answer, read_fan_out
from flowckpt.events import StepStarted
from flowckpt.execution.current_step import StepCall
from flowckpt.execution.python import keep_arguments
from flowckpt.execution.runner import Outcome


@attrs.define(eq=False, repr=False)
class Member(ABC):
    """A step of a generator or of a composite.

    Attributes:
        context: the attempt.
        enter: the step, its path, its record, and the record of its own steps.
        answer: the step's output or failure, once it is restored or has run.
        is_stale: whether its recorded result is no longer valid.
    """

    context: RunContext
    enter: Enter
    answer: Answer = (None, None)
    is_stale: bool = False

    @abstractmethod
    async def look_back(self) -> bool:
        """Return whether the record has a result of this step that is still valid."""

    @abstractmethod
    async def run(self) -> Answer:
        """Run whatever has no result yet; return the step's output or failure."""


@attrs.define(eq=False, repr=False)
class PlainMember(Member):
    """A step with an action of its own."""

    async def look_back(self) -> bool:
        """Restore the recorded result, if there is one and it is still valid."""
        enter = self.enter
        result, step = enter.result, enter.step
        if result is None:
            await self.context.refuse_doubt(step, enter.path)
            return False
        answer = await restore_step(self.context, step, result, is_spare=enter.is_spare)
        if answer is None:
            self.is_stale = True
            self.context.recorder.aside.dropped.append(result)
            return False
        self.answer = answer
        return True

    async def run(self) -> Answer:
        """Run the step."""
        enter = self.enter
        if self.context.waits.approved:
            await wait.check_approvals(self.context, enter.path)
        self.answer = await run_step(self.context, Execute(enter.path, enter.step, enter.location))
        return self.answer


@attrs.define(eq=False, repr=False)
class CompositeRun(Member):
    """A step that consists of other steps; subclasses define how to look back and how to run."""

    _start_times: tuple[datetime, int] | None = None

    async def begin(self) -> None:
        """Drop stale results and emit that the step starts; only once, even if the step pauses."""
        run, step = self.context, self.enter.step
        if run.recorder.aside.dropped:
            run.recorder.drop_stale()
            await run.recorder.save_start()
        if self._start_times is None:
            self._start_times = run.clock.now(), run.clock.elapsed_ns()
            if run.notifier.emit is not None:
                action: Any = step.action
                size = action.size if isinstance(action, composites.FanOutAction) else None
                await run.notifier.emit(StepStarted(run.workflow_id, self.enter.path, action.step_type, size))

    async def end(self, outcome: Outcome, failure: StepError | None) -> None:
        """Record how the step ended, save if it has a checkpoint, and emit the events.

        Args:
            outcome: the outcome to record.
            failure: how the step failed; None if it succeeded.
        """
        assert self._start_times is not None, "end() needs begin() before it"
        run, path, step = self.context, self.enter.path, self.enter.step
        started_at, started_ns = self._start_times
        duration_ms = round((run.clock.elapsed_ns() - started_ns) / 1e6, 3)
        identity = identify(step.action, run.judge.secrets, step.modifiers.version)
        call = StepCall.first(
            run.workflow_id, path, run.number, step, identity, run.services, self.enter.location, run.generation
        )
        end = StepEnd(outcome, failure, started_at, duration_ms)
        run.recorder.record(call, end)
        saved = None
        if failure is None and step.modifiers.has_checkpoint:
            saved = await run.recorder.checkpoint(Reason.STEP, step.modifiers.checkpoint_id or path)
        if run.notifier.emit is not None:
            await emit_end(run, call, end, saved)

    def keep_answer(self, answer: Answer) -> Answer:
        """Keep the answer, and return it."""
        self.answer = answer
        return answer


def read_ended_answer(enter: Enter) -> Answer:
    """Return the recorded output or failure of a step; that of a fan-out comes from the records of its members."""
    assert enter.result is not None
    if not isinstance(enter.step.action, composites.FanOutAction):
        return read_answer(enter.step, enter.result)
    answers = [read_ended_answer(each) for each in expand(enter) if each.result is not None]
    return read_fan_out(enter, enter.result, answers)


@attrs.frozen
class _Undoables:
    """Responder that answers a generator from its record, and notes the steps that can be undone.

    Attributes:
        context: the current attempt of the run.
        is_any_left: whether a recorded step still has to be undone.
    """

    context: RunContext
    is_any_left: bool

    async def restore(self, replay: Replay, command: Restore) -> Answer:
        self._note(command.step, command.result)
        return read_answer(command.step, command.result)

    async def execute(self, replay: Replay, command: Execute) -> Answer | None:
        """Run an ephemeral step again, if later ones have to be undone; any other one without a record was not reached."""
        is_needed = self.is_any_left and command.step.modifiers.is_ephemeral
        return await run_step(self.context, command) if is_needed else None

    async def enter(self, replay: Replay, command: Enter) -> Answer | None:
        await self.search_below(command)
        return None if command.result is None else read_ended_answer(command)

    async def search_below(self, enter: Enter) -> None:
        """Note the steps below a composite."""
        action: Any = enter.step.action
        if isinstance(action, composites.WorkflowAction):
            child = action.workflow
            path = f"{enter.path}/"
            with contextlib.closing(
                Replay(child.make_generator(action.inputs), enter.nested, child.name, prefix=path, is_muted=True)
            ) as replay:
                await drive(replay, self)
            return
        for member in expand(enter):
            if member.step.action.is_composite:
                await self.search_below(member)
            if member.result is not None:
                self._note(member.step, member.result)

    def _note(self, step: Step[Any], result: StepResult) -> None:
        if result.success and step.modifiers.rollback is not None:
            self.context.recorder.undo.undoable[result.path] = keep_arguments(step)


@attrs.define(eq=False, repr=False)
class StoppedMember(PlainMember):
    """A stopped member of a race: its record is used unchanged, and none of its steps runs again."""

    async def look_back(self) -> bool:
        """Restore the recorded failure, and note which steps below it can be undone."""
        enter = self.enter
        assert enter.result is not None
        if enter.nested:
            is_any_left = bool(find_not_yielded(enter.nested, ()))
            with contextlib.suppress(Exception):  # the race is decided: changes of the code since then do not matter
                await _Undoables(self.context, is_any_left).search_below(enter)
        self.answer = read_answer(enter.step, enter.result)
        return True

    def keep(self) -> None:
        """Move the record back into the history, if it was set aside."""
        enter = self.enter
        assert enter.result is not None
        if enter.is_spare:
            undoing = [each for each in enter.nested if each.step_type == ROLLBACK]
            others = [each for each in enter.nested if each.step_type != ROLLBACK]
            for each in (*others, enter.result, *undoing):
                self.context.recorder.restore(each)


def make_member(run: RunContext, enter: Enter) -> Member:
    """Return the `Member` for a step."""
    action: Any = enter.step.action
    if is_stopped(enter.result):
        return StoppedMember(run, enter)
    if isinstance(action, composites.FanOutAction):
        return steps.fan_out.FanOut(run, enter)
    if isinstance(action, composites.WorkflowAction):
        return steps.child.ChildWorkflow(run, enter)
    return PlainMember(run, enter)
