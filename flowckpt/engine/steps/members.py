"""A step as something that first looks back and then runs: a plain one, a fan-out, a child workflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from flowckpt.core.replay import Crash, Enter, Execute, Finish, Replay
from flowckpt.core.system.lazy import LazyModule
from flowckpt.engine.run.attempt import Attempt
from flowckpt.engine.steps.restore import Answer, is_still_true, restored
from flowckpt.engine.steps.run_step import run_step

if TYPE_CHECKING:
    from flowckpt.core.dsl import composites
    from flowckpt.engine.steps import approvals, child, fan_out
else:
    composites = LazyModule("flowckpt.core.dsl.composites")
    approvals = LazyModule("flowckpt.engine.steps.approvals")
    child = LazyModule("flowckpt.engine.steps.child")
    fan_out = LazyModule("flowckpt.engine.steps.fan_out")


class Driven(Protocol):
    """What drives a generator: a `Scope`."""

    is_stale: bool

    async def look_back(self) -> bool:
        """Answer it from its record; tell whether that brought it to its end."""
        ...

    async def run(self) -> Finish | Crash:
        """Drive it to its end."""
        ...


NewScope = Callable[[Attempt, Replay], Driven]


class Member(Protocol):
    """A step of a generator, or of a step that is made of steps.

    Attributes:
        answer: what it comes to, once it has looked back and found everything, or has run.
        is_stale: whether its record was found to be no longer true.
    """

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
        attempt: the attempt.
        enter: the step, its path and its record.
        answer: what it came to.
        is_stale: whether its recorded result is no longer true.
    """

    attempt: Attempt
    enter: Enter
    answer: Answer = (None, None)
    is_stale: bool = False

    async def look_back(self) -> bool:
        """Look at its recorded result."""
        enter = self.enter
        result, step = enter.result, enter.step
        if result is None:
            await self.attempt.refuse_doubt(step, enter.path)
            return False
        if not await is_still_true(self.attempt, step, result, is_spare=enter.is_spare):
            self.is_stale = True
            self.attempt.aside.dropped.append(result)
            return False
        self.answer = await restored(self.attempt, step, result, is_spare=enter.is_spare)
        return True

    async def run(self) -> Answer:
        """Run it."""
        enter = self.enter
        if self.attempt.waits.approved:
            await approvals.check(self.attempt, enter.path)
        self.answer = await run_step(self.attempt, Execute(enter.path, enter.step, enter.location))
        return self.answer


def member_of(attempt: Attempt, enter: Enter, new_scope: NewScope) -> Member:
    """Return a step as something that looks back and runs.

    Args:
        attempt: the attempt.
        enter: the step, its path and its record.
        new_scope: makes what drives the generator of a child workflow.
    """
    action: Any = enter.step.action
    if isinstance(action, composites.FanOutAction):
        return fan_out.FanOut(attempt, enter, new_scope)
    if isinstance(action, composites.WorkflowAction):
        return child.ChildWorkflow(attempt, enter, new_scope)
    return PlainMember(attempt, enter)
