"""When every step of a run waits, the process stays for a while, or the attempt ends and the run is suspended.

It does not matter whether a step waits in the workflow itself, in a member of a map, or in a child. Parallel steps
first run to their end. Then the generators stop at their waits, and continue from there as soon as one of the waits has
ended.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import AbstractAsyncContextManager, nullcontext

import attrs

from flowckpt.core.records.wait import Wait, due_at
from flowckpt.core.replay import Crash, Finish
from flowckpt.core.system.clock import Clock
from flowckpt.engine.run.context import RunContext
from flowckpt.engine.steps.run_step import Scope
from flowckpt.engine.values.waits import SHORT_SECONDS, Suspended
from flowckpt.errors import SuspensionUnsavedError
from flowckpt.events import WorkflowWaiting
from flowckpt.execution.python import await_interruptibly

_FIRST_LOOK = 0.1
_LAST_LOOK = 2.0
_LAST_LOOK_HEARING = 10.0
"""How often to look if the store announces messages: an announcement may get lost."""
_LONGEST_NAP = 60.0
"""The longest sleep: the system clock may be set meanwhile, so check it now and then."""


async def drive_to_end(
    run: RunContext, scope: Scope, suspended: Suspended, stay_seconds: float | None
) -> Finish | Crash:
    """Drive a run whose steps all wait to its end, for as long as the process may stay.

    Raises:
        Suspended: every step waits, the run is saved, and the process may not stay.
        SuspensionUnsavedError: the same, but the run could not be saved.
        BaseException: any other error that ends the run.
    """
    staying = _Staying(run, stay_seconds)
    while True:
        voided = run.waits.voided
        run.waits.retain((*suspended.paths, *voided))
        waits = run.waits.all
        if voided or not await run.inbox.can_end_any(waits, is_fresh=True):
            unsaved = await run.recorder.suspend()
            if voided or not await staying.wait_for_one(waits):  # only a resume can go back to an approval
                if unsaved is None:
                    raise suspended
                run.recorder.checkpointer.is_usable = False  # so that this end undoes nothing and records nothing
                raise SuspensionUnsavedError(run.workflow_id, waits=[str(wait) for wait in waits]) from unsaved
        try:
            return await scope.run()
        except Suspended as pause:
            suspended = pause


@attrs.define(eq=False)
class _Staying:
    context: RunContext
    stay_seconds: float | None
    _stayed: float = 0.0

    async def wait_for_one(self, waits: tuple[Wait, ...]) -> bool:
        """Wait until one of the waits can end; return False if the process must stop waiting first."""
        run, clock = self.context, self.context.clock
        if await await_interruptibly(run.rest(lambda: self._can_end(waits)), run.interrupts):
            return True
        seconds = self._limit_stay(waits)
        if seconds <= 0:
            return False
        if run.notifier.emit is not None:
            await run.notifier.emit(WorkflowWaiting(run.workflow_id, waits, due_at(waits), seconds))
        has_people = any(not wait.is_timed for wait in waits)
        started_ns = clock.elapsed_ns()
        try:
            async with self._listen(is_worth_it=has_people or seconds > SHORT_SECONDS) as heard:
                look, last_look = _FIRST_LOOK, _LAST_LOOK if heard is None else _LAST_LOOK_HEARING
                while True:
                    stayed = (clock.elapsed_ns() - started_ns) / 1e9
                    if await run.inbox.can_end_any(waits, is_fresh=True):
                        return True
                    if stayed >= seconds:
                        return False
                    due = self._seconds_to(waits)
                    nap = look if has_people else _LONGEST_NAP
                    nap = min(nap, seconds - stayed, math.inf if due is None else max(due, 0.001))
                    await await_interruptibly(_sleep(clock, nap, heard), run.interrupts)
                    await run.poll_requests()
                    run.interrupts.raise_pending(asyncio.current_task())
                    look = min(look * 2, last_look)
        finally:
            self._stayed += (clock.elapsed_ns() - started_ns) / 1e9

    async def _can_end(self, waits: tuple[Wait, ...]) -> bool:
        run = self.context
        await run.poll_requests()
        run.interrupts.raise_pending(asyncio.current_task())
        return await run.inbox.can_end_any(waits, is_fresh=True)

    def _listen(self, *, is_worth_it: bool) -> AbstractAsyncContextManager[asyncio.Event | None]:
        """Listen for announced messages, if the store has announcements."""
        store = self.context.recorder.checkpointer.store
        return store.announcements(self.context.workflow_id) if is_worth_it else nullcontext()

    def _limit_stay(self, waits: tuple[Wait, ...]) -> float:
        """Return how many seconds the process may stay for these waits."""
        due = self._seconds_to(waits)
        if self.stay_seconds is None:
            return due + 1.0 if due is not None and due <= SHORT_SECONDS else 0.0
        left = self.stay_seconds - self._stayed
        if all(wait.is_timed for wait in waits) and due is not None and due > left:
            return 0.0  # no wait can end before the process must stop
        return left

    def _seconds_to(self, waits: tuple[Wait, ...]) -> float | None:
        """Return the seconds until the first deadline; None without one."""
        first = due_at(waits)
        return None if first is None else (first - self.context.clock.now()).total_seconds()


async def _sleep(clock: Clock, seconds: float, heard: asyncio.Event | None) -> None:
    """Sleep for this time, or until a message is announced."""
    if heard is None:
        await clock.sleep(seconds)
        return
    ways = [asyncio.ensure_future(clock.sleep(seconds)), asyncio.ensure_future(heard.wait())]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in ways:
            each.cancel()
    heard.clear()
