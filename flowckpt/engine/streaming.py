"""A try whose output is told line by line while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from flowckpt.dsl import Step
from flowckpt.execution.current import Told
from flowckpt.execution.runner import Outcome, StepRunner
from flowckpt.lazy import LazyModule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flowckpt import events
else:
    events = LazyModule("flowckpt.events")

MOST_WAITING = 10_000
"""How many lines wait for whoever hears the events; the output itself is in the result, whatever is left out here."""


class StreamedTry:
    """One try of a command.

    Args:
        runner: runs it.
        step: the step.
        told: what it may know of itself.
    """

    def __init__(self, runner: StepRunner, step: Step[Any], told: Told) -> None:
        self._runner = runner
        self._step = step
        self._told = told
        self._outcome: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        """How it ended, once all its lines were told."""
        assert self._outcome is not None
        return self._outcome

    async def lines(self) -> AsyncGenerator[events.StepOutput, None]:
        """Run it, yielding its lines; when nobody listens any more, it is stopped."""
        run, path = self._told[0], self._told[1]
        lines: asyncio.Queue[events.StepOutput | None] = asyncio.Queue()
        left_out = 0

        def keep(stream: str, line: str) -> None:
            nonlocal left_out
            if lines.qsize() < MOST_WAITING:
                lines.put_nowait(events.StepOutput(run, path, stream, line))
            else:
                left_out += 1

        trying = asyncio.ensure_future(self._runner.attempt(self._step, self._told, on_line=keep))
        trying.add_done_callback(lambda _: lines.put_nowait(None))
        try:
            while (line := await lines.get()) is not None:
                yield line
                if left_out and lines.empty():
                    yield events.StepOutput(
                        run, path, "stderr", f"[{left_out} lines left out: nobody read them in time]"
                    )
                    left_out = 0
            self._outcome = await trying
        finally:
            if not trying.done():
                trying.cancel()
                await asyncio.wait({trying})
