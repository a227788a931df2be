"""Responders without effects: they answer a generator from its record, and run nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import attrs

from flowckpt.core.dsl import Step
from flowckpt.core.dsl.composites import WorkflowAction
from flowckpt.core.records import StepResult
from flowckpt.core.replay import (
    Answer,
    Command,
    Crash,
    Enter,
    Execute,
    Expansion,
    Finish,
    Replay,
    Restore,
    drive,
    expand,
)
from flowckpt.engine.rules.paths import is_stopped
from flowckpt.engine.values.failures import read_answer, read_fan_out
from flowckpt.engine.values.placeholders import make_placeholder

Visit = Callable[[Step[Any], StepResult], Answer]
"""Called with a step and its recorded result; returns what the generator gets."""


class DryResponder:
    """Answers only from the record. Subclasses define what else to do with each step, and where to stop."""

    async def restore(self, replay: Replay, command: Restore) -> Answer | None:
        """Answer with the recorded result."""
        return read_answer(command.step, command.result)

    async def execute(self, replay: Replay, command: Execute) -> Answer | None:
        """Answer an ephemeral step with a placeholder for its output; any other step has no answer."""
        return (make_placeholder(command.step, command.path), None) if command.step.modifiers.is_ephemeral else None

    async def enter(self, replay: Replay, command: Enter) -> Answer | None:
        """Answer a composite that a generator has yielded."""
        return await self.answer_composite(replay, command)

    async def answer_composite(self, replay: Replay, enter: Enter) -> Answer | None:
        """Answer a composite, in a generator or in a fan-out, from the record of its steps."""
        action = enter.step.action
        if isinstance(action, WorkflowAction):
            return await self.answer_child(replay, enter, action)
        return await self.answer_fan_out(replay, enter)

    async def answer_child(self, replay: Replay, enter: Enter, action: WorkflowAction) -> Answer | None:
        """Drive a child workflow; return its recorded end, if the record reaches it."""
        workflow, prefix = action.workflow, f"{enter.path}/"
        child = workflow.make_generator(action.inputs)
        with closing(
            Replay(child, enter.nested, workflow.name, prefix=prefix, aside=replay.aside, is_muted=True)
        ) as nested:
            end = await drive(nested, self)
        result = enter.result
        is_ended = result is not None and (is_stopped(result) or isinstance(end, Finish | Crash))
        return read_answer(enter.step, result) if result is not None and is_ended else None

    async def answer_fan_out(self, replay: Replay, enter: Enter) -> Answer | None:
        """Return the answer of a fan-out, if it has ended."""
        if enter.result is not None and is_stopped(enter.result):
            await self.answer_members(replay, expand(attrs.evolve(enter, result=None)))
            return read_answer(enter.step, enter.result)
        answers = await self.answer_members(replay, expand(enter))
        return None if enter.result is None else read_fan_out(enter, enter.result, answers)

    async def answer_members(self, replay: Replay, expansion: Expansion) -> list[Answer]:
        """Answer the members of a fan-out: all of them if it has ended, otherwise those with a record."""
        end = expansion.enter.result
        answers: list[Answer] = []
        if end is None and not expansion.own:
            return answers
        for member in expansion:
            answer = await self.answer_member(replay, member)
            if answer is None and end is not None and end.success:
                answer = make_placeholder(member.step, member.path), None
            if answer is not None:
                answers.append(answer)
            if end is None and not expansion.own:
                break
        return answers

    async def answer_member(self, replay: Replay, member: Enter) -> Answer | None:
        """Answer a member of a fan-out."""
        step, result = member.step, member.result
        if step.action.is_composite:
            return await self.answer_composite(replay, member)
        if step.modifiers.is_ephemeral:
            return await self.execute(replay, Execute(member.path, step, member.location))
        if result is None:
            return None
        return await self.restore(replay, Restore(member.path, step, result, member.is_spare))


@attrs.frozen
class _Visitor(DryResponder):
    visit: Visit

    async def restore(self, replay: Replay, command: Restore) -> Answer | None:
        return self.visit(command.step, command.result)


def follow(replay: Replay, visit: Visit) -> Command:
    """Answer a generator with its recorded results; return its end, or the first step that has none.

    Args:
        replay: the generator and its record.
        visit: called with each recorded step, including nested ones; may raise to stop there.

    Raises:
        PlanStopped: the generator needs the output of an ephemeral step.
        WorkflowChangedError: the generator does not follow the record.
    """
    return drive_recorded(replay, _Visitor(visit))


def drive_recorded(replay: Replay, responder: DryResponder) -> Command:
    """Drive a generator without an event loop, with a responder that never waits; return its last command."""
    try:
        drive(replay, responder).send(None)
    except StopIteration as stop:
        command: Command = stop.value
        return command
    raise AssertionError("a responder that answers from the record never waits")
