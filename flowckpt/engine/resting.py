"""When everything in a run waits: the process stays for a while, or the attempt ends and the run is suspended.

Where a wait stands does not matter here: in the workflow itself, in a member of a map, in a child. The steps beside it
go on to their end first. Then the generators stand where they wait, and are driven on from there as soon as one of the
waits has ended.
"""

from __future__ import annotations

import asyncio
import math

import attrs

from flowckpt.checkpoint.wait import Wait, WaitKind, due_at
from flowckpt.engine.attempt import Attempt
from flowckpt.engine.scope import Scope
from flowckpt.engine.waits import Suspended
from flowckpt.events import WorkflowWaiting
from flowckpt.execution.python import waited
from flowckpt.replay import Crash, Finish

SHORT_SECONDS = 60.0
"""A wait that ends by itself within so many seconds is waited for, where nothing was said about staying."""
_FIRST_LOOK = 0.1
_LAST_LOOK = 2.0
_LONGEST_NAP = 60.0
"""The clock of the machine may be set while the process sleeps: look at it now and then."""


async def driven_to_its_end(
    attempt: Attempt, scope: Scope, suspended: Suspended, stay_seconds: float | None
) -> Finish | Crash:
    """Drive a run that has come to rest on to its end, waiting as long as the process may stay.

    Args:
        attempt: the attempt.
        scope: the generator of the workflow.
        suspended: what it said when it came to rest.
        stay_seconds: how long to stay for waits in all; None for short ones alone.

    Raises:
        Suspended: everything waits, it is saved, and the process is not to stay.
        BaseException: what else ends the run.
    """
    staying = _Staying(attempt, stay_seconds)
    while True:
        attempt.waits.keep_only(suspended.paths)
        waits = attempt.waits.all
        if not await attempt.inbox.can_end_any(waits, is_fresh=True):
            await attempt.rest()
            if not await staying.until_one_has_ended(waits):
                raise suspended
        try:
            return await scope.run()
        except Suspended as pause:
            suspended = pause


@attrs.define(eq=False)
class _Staying:
    attempt: Attempt
    stay_seconds: float | None
    _stayed: float = 0.0

    async def until_one_has_ended(self, waits: tuple[Wait, ...]) -> bool:
        """Wait until one of the waits can end; tell whether one can before the process is to go."""
        seconds = self._allowed(waits)
        if seconds <= 0:
            return False
        attempt, clock = self.attempt, self.attempt.clock
        if attempt.tell is not None:
            await attempt.tell(WorkflowWaiting(attempt.workflow_id, waits, due_at(waits), seconds))
        has_people = any(wait.kind is not WaitKind.SLEEP for wait in waits)
        look = _FIRST_LOOK if has_people else _LONGEST_NAP
        began_ns = clock.elapsed_ns()
        try:
            while True:
                stayed = (clock.elapsed_ns() - began_ns) / 1e9
                if await attempt.inbox.can_end_any(waits, is_fresh=True):
                    return True
                if stayed >= seconds:
                    return False
                due = self._seconds_to(waits)
                nap = min(look, seconds - stayed, math.inf if due is None else max(due, 0.001))
                await waited(clock.sleep(nap), attempt.interrupts)
                await attempt.cancel_requests.look()
                attempt.interrupts.raise_noted(asyncio.current_task())
                look = min(look * 2, _LAST_LOOK) if has_people else look
        finally:
            self._stayed += (clock.elapsed_ns() - began_ns) / 1e9

    def _allowed(self, waits: tuple[Wait, ...]) -> float:
        """Return for how many seconds to stay now."""
        due = self._seconds_to(waits)
        if self.stay_seconds is None:
            return due + 1.0 if due is not None and due <= SHORT_SECONDS else 0.0
        left = self.stay_seconds - self._stayed
        if all(wait.kind is WaitKind.SLEEP for wait in waits) and due is not None and due > left:
            return 0.0  # nothing can happen before the process has to go
        return left

    def _seconds_to(self, waits: tuple[Wait, ...]) -> float | None:
        """Return how long it is to the first deadline."""
        first = due_at(waits)
        return None if first is None else (first - self.attempt.clock.now()).total_seconds()
