"""The one driver of generators: each command goes to a responder, and its answer goes back into the generator.

    replay ──Restore | Execute | Enter──► responder ──answer, sent or thrown──► replay ──► … ──► Finish | Crash

A run, its plan, the search for steps to undo, and the determinism check differ only in their responders: what they
answer, and whether answering has effects. All of them use `expand` to get the members of a fan-out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Any, Protocol, TypeAlias

from flowckpt.core.dsl.checks import check_depth
from flowckpt.core.records import StepResult
from flowckpt.core.replay.replay import (
    Command,
    Enter,
    Execute,
    Glance,
    Nested,
    Own,
    Replay,
    Restore,
    all_of,
    split_record,
)
from flowckpt.core.system.attrs_base import lazy_define
from flowckpt.errors import StepFailedError

Answer: TypeAlias = tuple[Any, StepFailedError | None]
"""The generator's answer for a step: its output, or its failure."""


class Responder(Protocol):
    """Answers the commands of a generator. An answer of None ends the drive at the command."""

    async def restore(self, replay: Replay, command: Restore) -> Answer | Execute | None:
        """Answer a step that has a recorded result, or return an `Execute` if the step must run instead."""
        ...

    def execute(self, replay: Replay, command: Execute) -> Awaitable[Answer | None]:
        """Answer a step that has no recorded result."""
        ...

    async def enter(self, replay: Replay, command: Enter) -> Answer | None:
        """Answer a composite, whose steps have their own records."""
        ...


async def drive(
    replay: Replay, responder: Responder, start: Command | None = None, glance: Glance | None = None
) -> Command:
    """Drive a generator until it ends, or until its responder has no answer; return that last command.

    The coroutine awaits its responder and nothing else: with one that never waits, it runs without an event loop.

    Args:
        replay: the generator and its record.
        responder: answers its commands.
        start: the command at which an earlier drive stopped; None starts the generator.
        glance: a fast path that answers recorded plain steps instead of the responder.

    Raises:
        WorkflowChangedError: the generator does not follow the record.
        WorkflowDefinitionError: the generator yields something that is not a step.
    """
    command: Command = replay.start(glance) if start is None else start
    while True:
        answer: Answer | Execute | None
        kind = type(command)
        if kind is Execute:
            answer = await responder.execute(replay, command)  # type: ignore[arg-type]
        elif kind is Restore:
            answer = await responder.restore(replay, command)  # type: ignore[arg-type]
        elif kind is Enter:
            answer = await responder.enter(replay, command)  # type: ignore[arg-type]
        else:
            return command
        if type(answer) is tuple:
            value, failure = answer
            command = replay.send(value, glance) if failure is None else replay.throw(failure)
        elif answer is None:
            return command
        else:
            command = answer  # type: ignore[assignment]


@lazy_define(eq=False, repr=False)
class Expansion:
    """The members of a fan-out, created one by one, each with its part of the record.

    Attributes:
        enter: the fan-out.
        own: the recorded results of the members that were not created yet.
        nested: the recorded results below them, by member.
    """

    enter: Enter
    own: Own
    nested: Nested

    def __iter__(self) -> Iterator[Enter]:
        enter = self.enter
        check_depth(enter.path)
        action: Any = enter.step.action
        for place, step in action.members(enter.step):
            path = f"{enter.path}/{place}"
            result, nested = self.own.pop(path, None), self.nested.pop(path, [])
            yield Enter(path, step, enter.location, result, nested, enter.is_spare, enter.is_bound)

    def take_rest(self) -> list[StepResult]:
        """Remove and return the recorded results of members that were not created."""
        rest = [*all_of(self.own, self.nested)]
        self.own, self.nested = {}, {}
        return rest


def expand(enter: Enter) -> Expansion:
    """Split a fan-out into its members; iterate over the value to create them.

    Args:
        enter: the fan-out and its record.
    """
    return Expansion(enter, *split_record(enter.nested, f"{enter.path}/"))
