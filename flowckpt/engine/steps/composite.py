"""What a map, a group and a child workflow have in common: how a step that is made of steps begins, and how it ends.

Its record is written once, at its end. What its own steps came to stands in their records.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

from flowckpt.core.dsl.composites import FanOutAction
from flowckpt.core.records import Reason, StepError
from flowckpt.core.replay import Enter, Execute
from flowckpt.engine.run.attempt import Attempt
from flowckpt.engine.run.recorder import record
from flowckpt.engine.steps.members import NewScope
from flowckpt.engine.steps.restore import Answer
from flowckpt.errors import StepFailedError
from flowckpt.events import StepCompleted, StepFailed, StepStarted
from flowckpt.execution.runner import Outcome


@attrs.define(eq=False, repr=False)
class CompositeRun:
    """A step of one run that is made of steps: what drives it adds how it looks back and runs.

    Attributes:
        attempt: the attempt.
        enter: the step, its path, and the record of its own steps.
        new_scope: makes what drives the generators under it.
        answer: what it came to.
        is_stale: whether its record was found to be no longer true.
    """

    attempt: Attempt
    enter: Enter
    new_scope: NewScope
    answer: Answer = (None, None)
    is_stale: bool = False
    _begun: tuple[datetime, int] | None = None

    async def begin(self) -> None:
        """Let go what the record held and is no longer true, and tell that it starts: once, though it may pause."""
        attempt, step = self.attempt, self.enter.step
        if attempt.aside.dropped:
            attempt.let_go()
            await attempt.begin()
        if self._begun is None:
            self._begun = attempt.clock.now(), attempt.clock.elapsed_ns()
            if attempt.tell is not None:
                action: Any = step.action
                size = action.size if isinstance(action, FanOutAction) else None
                await attempt.tell(StepStarted(attempt.workflow_id, self.enter.path, action.step_type, size))

    async def end(self, outcome: Outcome, failure: StepError | None, *, arguments: Mapping[str, Any]) -> None:
        """Record how it ended, save where it has a checkpoint, and tell.

        Args:
            outcome: what is recorded as its output.
            failure: how it failed; None where it did not.
            arguments: the digests of what it was given.
        """
        assert self._begun is not None, "what has not begun does not end"
        attempt, path, step = self.attempt, self.enter.path, self.enter.step
        started_at, started_ns = self._begun
        duration_ms = round((attempt.clock.elapsed_ns() - started_ns) / 1e6, 3)
        command = Execute(path, step, self.enter.location)
        record(attempt, command, outcome, failure, started_at, duration_ms, arguments, step.action.function_name)
        saved = None
        if failure is None and step.modifiers.has_checkpoint:
            saved = await attempt.save(Reason.STEP, step.modifiers.checkpoint_id or path)
        if attempt.tell is None:
            return
        run = attempt.workflow_id
        if failure is None:
            await attempt.tell(StepCompleted(run, path, duration_ms, False))
        else:
            await attempt.tell(StepFailed(run, path, duration_ms, 1, failure.type, failure.message))
        await attempt.tell_saved(saved)

    def answered(self, value: Any, failure: StepFailedError | None = None) -> Answer:
        """Keep what it came to, and return it.

        Args:
            value: what its generator gets; None where it failed.
            failure: what is raised there; None where it did not fail.
        """
        self.answer = value, failure
        return self.answer
