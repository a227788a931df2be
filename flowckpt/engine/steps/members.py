"""A step as something that first looks back and then runs: a plain one, a fan-out, a child workflow.

The record of a composite is written once, at its end. What its own steps came to stands in their records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol

import attrs

from flowckpt.core.dsl import Step, composites
from flowckpt.core.identity.call import identify
from flowckpt.core.records import Reason, StepError, StepResult
from flowckpt.core.replay import Answer, Crash, Enter, Execute, Finish, Replay, Restore, drive, expand
from flowckpt.engine import steps
from flowckpt.engine.rules.paths import ROLLBACK, is_stopped
from flowckpt.engine.run.context import RunContext
from flowckpt.engine.run.recorder import StepEnd
from flowckpt.engine.steps import wait
from flowckpt.engine.steps.run_step import emit_end, is_still_true, restored, run_step
from flowckpt.engine.values.failures import recorded_answer, recorded_fan_out
from flowckpt.events import StepStarted
from flowckpt.execution.current_step import StepCall
from flowckpt.execution.runner import Outcome


class Driven(Protocol):
    """The driver of a generator: a `Scope`."""

    is_stale: bool

    async def look_back(self) -> bool:
        """Answer it from its record; tell whether that brought it to its end."""
        ...

    async def run(self) -> Finish | Crash:
        """Drive it to its end."""
        ...


NewScope = Callable[[RunContext, Replay], Driven]


class Member(Protocol):
    """A step of a generator, or of a step that is made of steps.

    Attributes:
        enter: the step, its path and its record.
        answer: what it comes to, once it has looked back and found everything, or has run.
        is_stale: whether its record was found to be no longer true.
    """

    enter: Enter
    answer: Answer
    is_stale: bool

    async def look_back(self) -> bool:
        """Look for its result in the record; tell whether it is there, and still true."""
        ...

    async def run(self) -> Answer:
        """Run what has no result; return what it comes to."""
        ...


@attrs.define(eq=False, repr=False)
class PlainMember:
    """A step with an action of its own.

    Attributes:
        context: the attempt.
        enter: the step, its path and its record.
        answer: what it came to.
        is_stale: whether its recorded result is no longer true.
    """

    context: RunContext
    enter: Enter
    answer: Answer = (None, None)
    is_stale: bool = False

    async def look_back(self) -> bool:
        """Look at its recorded result."""
        enter = self.enter
        result, step = enter.result, enter.step
        if result is None:
            await self.context.refuse_doubt(step, enter.path)
            return False
        if not await is_still_true(self.context, step, result, is_spare=enter.is_spare):
            self.is_stale = True
            self.context.recorder.aside.dropped.append(result)
            return False
        self.answer = await restored(self.context, step, result, is_spare=enter.is_spare)
        return True

    async def run(self) -> Answer:
        """Run it."""
        enter = self.enter
        if self.context.waits.approved:
            await wait.check(self.context, enter.path)
        self.answer = await run_step(self.context, Execute(enter.path, enter.step, enter.location))
        return self.answer


@attrs.define(eq=False, repr=False)
class CompositeRun:
    """A step of one run that is made of steps: what drives it adds how it looks back and runs.

    Attributes:
        context: the attempt.
        enter: the step, its path, and the record of its own steps.
        new_scope: makes what drives the generators under it.
        answer: what it came to.
        is_stale: whether its record was found to be no longer true.
    """

    context: RunContext
    enter: Enter
    new_scope: NewScope
    answer: Answer = (None, None)
    is_stale: bool = False
    _begun: tuple[datetime, int] | None = None

    async def begin(self) -> None:
        """Let go what the record held and is no longer true, and tell that it starts: once, though it may pause."""
        run, step = self.context, self.enter.step
        if run.recorder.aside.dropped:
            run.recorder.drop_stale()
            await run.recorder.save_start()
        if self._begun is None:
            self._begun = run.clock.now(), run.clock.elapsed_ns()
            if run.notifier.emit is not None:
                action: Any = step.action
                size = action.size if isinstance(action, composites.FanOutAction) else None
                await run.notifier.emit(StepStarted(run.workflow_id, self.enter.path, action.step_type, size))

    async def end(self, outcome: Outcome, failure: StepError | None) -> None:
        """Record how it ended, save where it has a checkpoint, and tell.

        Args:
            outcome: what is recorded as its output.
            failure: how it failed; None where it did not.
        """
        assert self._begun is not None, "what has not begun does not end"
        run, path, step = self.context, self.enter.path, self.enter.step
        started_at, started_ns = self._begun
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

    def answered(self, answer: Answer) -> Answer:
        """Keep what it came to, and return it."""
        self.answer = answer
        return answer


def ended_answer(enter: Enter) -> Answer:
    """Return what a step with a recorded result came to, a fan-out from the records of its members."""
    assert enter.result is not None
    if not isinstance(enter.step.action, composites.FanOutAction):
        return recorded_answer(enter.step, enter.result)
    answers = [ended_answer(each) for each in expand(enter) if each.result is not None]
    return recorded_fan_out(enter, enter.result, answers)


@attrs.frozen
class _Undoables:
    """Answers a generator from its record, and notes the steps that can be undone."""

    undoable: dict[str, Step[Any]]

    async def restore(self, replay: Replay, command: Restore) -> Answer:
        self._note(command.step, command.result)
        return recorded_answer(command.step, command.result)

    async def execute(self, replay: Replay, command: Execute) -> None:
        """Give no answer: the record ends here."""

    async def enter(self, replay: Replay, command: Enter) -> Answer | None:
        await self.below(command)
        return None if command.result is None else ended_answer(command)

    async def below(self, enter: Enter) -> None:
        """Note the steps that a composite is made of."""
        action: Any = enter.step.action
        if isinstance(action, composites.WorkflowAction):
            child = action.workflow
            path = f"{enter.path}/"
            with contextlib.closing(
                Replay(child(**action.inputs), enter.nested, child.name, prefix=path, is_muted=True)
            ) as replay:
                await drive(replay, self)
            return
        for member in expand(enter):
            if member.step.action.is_composite:
                await self.below(member)
            if member.result is not None:
                self._note(member.step, member.result)

    def _note(self, step: Step[Any], result: StepResult) -> None:
        if result.success and step.modifiers.rollback is not None:
            self.undoable[result.path] = step


@attrs.define(eq=False, repr=False)
class StoppedMember(PlainMember):
    """A member of a race that was stopped: its record is taken as it is, and nothing of it runs again."""

    async def look_back(self) -> bool:
        """Take its record, and note what its own steps can undo."""
        enter = self.enter
        assert enter.result is not None
        if enter.nested:
            with contextlib.suppress(Exception):  # what the code is now is nothing to a race that was decided
                await _Undoables(self.context.recorder.undo.undoable).below(enter)
        self.answer = recorded_answer(enter.step, enter.result)
        return True

    def keep(self) -> None:
        """Put its record back into the history, if it was set aside."""
        enter = self.enter
        assert enter.result is not None
        if enter.is_spare:
            undoing = [each for each in enter.nested if each.step_type == ROLLBACK]
            steps = [each for each in enter.nested if each.step_type != ROLLBACK]
            for each in (*steps, enter.result, *undoing):
                self.context.recorder.restore(each)


def member_of(run: RunContext, enter: Enter, new_scope: NewScope) -> Member:
    """Return a step as something that looks back and runs."""
    action: Any = enter.step.action
    if is_stopped(enter.result):
        return StoppedMember(run, enter)
    if isinstance(action, composites.FanOutAction):
        return steps.fan_out.FanOut(run, enter, new_scope)
    if isinstance(action, composites.WorkflowAction):
        return steps.child.ChildWorkflow(run, enter, new_scope)
    return PlainMember(run, enter)
