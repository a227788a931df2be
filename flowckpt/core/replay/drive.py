"""The one driver of generators: each command goes to a responder, and its answer goes back into the generator.

    replay ──Restore | Execute | Enter──► responder ──answer, sent or thrown──► replay ──► … ──► Finish | Crash

A run, its plan, the search for what can be undone and the check of determinism differ in their responders alone: what
they answer, and whether answering has an effect. `expand` takes a composite apart for all of them.
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
"""The answer that a generator gets for a step: its output, or its failure."""


class Responder(Protocol):
    """Answers the commands of a generator. An answer of None ends the drive at the command."""

    async def restore(self, replay: Replay, command: Restore) -> Answer | Execute | None:
        """Answer a step that has a recorded result; return an `Execute` where the step runs instead."""
        ...

    def execute(self, replay: Replay, command: Execute) -> Awaitable[Answer | None]:
        """Answer a step that has no recorded result."""
        ...

    async def enter(self, replay: Replay, command: Enter) -> Answer | None:
        """Answer a composite, whose steps have records of their own."""
        ...


async def drive(
    replay: Replay, responder: Responder, start: Command | None = None, glance: Glance | None = None
) -> Command:
    """Drive a generator until it ends, or until its responder has no answer; return that last command.

    The coroutine awaits its responder and nothing else: with one that never waits, it runs without an event loop.

    Args:
        replay: the generator and its record.
        responder: answers its commands.
        start: where an earlier drive stopped; None starts the generator.
        glance: answers recorded plain steps in the responder's place.

    Raises:
        WorkflowChangedError: the generator does something else than the record says.
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
    """The members of a fan-out, made one by one, each with its share of the record.

    Attributes:
        enter: the fan-out.
        own: the recorded results of the members that were not made yet.
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
        """Take the recorded results whose member was not made out of the record."""
        rest = [*all_of(self.own, self.nested)]
        self.own, self.nested = {}, {}
        return rest


def expand(enter: Enter) -> Expansion:
    """Take a fan-out apart into its members; iterate over it to make them.

    Args:
        enter: the fan-out and its record.
    """
    return Expansion(enter, *split_record(enter.nested, f"{enter.path}/"))
