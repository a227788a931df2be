"""Where the steps of an attempt hand in what they tell and save while they run.

A step runs in one of four places, and from each of them the way to the engine is another one:

| the step runs | and hands in |
|---|---|
| in place: the engine owns the loop and waits for it | right there, and from threads of its own one after the other |
| on a thread, while the loop is live | by the loop, which the thread waits for |
| in the loop, as async code | by an `await` |
| in another process | by a message of its worker, which comes to the loop: see `flowckpt.execution.remote.hearing` |
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.execution.handing_in import checked_progress
from flowckpt.lazy import LazyModule

if TYPE_CHECKING:
    from flowckpt.engine import partial_saves, reporting
    from flowckpt.engine.attempt import Attempt
    from flowckpt.execution.current_step import CurrentStep
else:  # few steps hand anything in
    reporting = LazyModule("flowckpt.engine.reporting")
    partial_saves = LazyModule("flowckpt.engine.partial_saves")


@attrs.define(eq=False, repr=False, slots=False)
class Desk:
    """The desk of one attempt; see `flowckpt.execution.current_step.Desk`.

    Attributes:
        attempt: the attempt.
        is_used: whether any step has handed in something.
    """

    attempt: Attempt
    is_used: bool = False

    @cached_property
    def _reporting(self) -> reporting.Reporting:
        return reporting.Reporting(self.attempt)

    @cached_property
    def _saves(self) -> partial_saves.PartialSaves:
        return partial_saves.PartialSaves(self.attempt)

    def progress(self, now: CurrentStep, done: float, total: float | None, note: str) -> None:
        """Tell how far a step is; see `CurrentStep.progress`."""
        done, total, note = checked_progress(done, total, note)
        if self.attempt.tell is not None:
            self.is_used = True
            self._reporting.report(now.path, done, total, note)

    def save(self, now: CurrentStep, state: Any, as_type: Any) -> None:
        """Make the partial state of a step durable; see `CurrentStep.save`."""
        self.is_used = True
        self._saves.save(now, state, as_type)

    async def save_async(self, now: CurrentStep, state: Any, as_type: Any) -> None:
        """Make the partial state of a step durable, from the loop; see `CurrentStep.save_async`."""
        self.is_used = True
        await self._saves.save_async(now, state, as_type)

    def load(self, now: CurrentStep, default: Any, as_type: Any) -> Any:
        """Return the partial state of a step; see `CurrentStep.load`."""
        return self._saves.load(now.path, default, as_type)

    @property
    def is_followed(self) -> bool:
        """Whether anybody follows the run, so that progress is worth telling."""
        return self.attempt.tell is not None

    def held(self, path: str) -> tuple[Any, ...]:
        """Return the partial state of a step as it is recorded; nothing where it has saved none."""
        return self._saves.held(path)

    async def save_recorded(self, now: CurrentStep, tree: Any) -> None:
        """Make durable what a worker has put into the form of the record."""
        self.is_used = True
        await self._saves.save_recorded(now, tree)

    async def settle(self, path: str) -> None:
        """Wait until what a step has handed in is done with, before its end is told.

        Args:
            path: the step.

        Raises:
            FlowckptError: a save of its failed: that ends the run, whatever the step made of it.
        """
        await self._saves.settle()
        await self._reporting.settle(path)

    async def close(self) -> None:
        """Take nothing more: wait for saves that were begun, and forget what was not told yet."""
        if self.is_used:
            await self._saves.close()
            await self._reporting.close()
