"""Answers one generator of a run, the workflow's own or a child's, with effects on.

    command ──► is the recorded result still true? ── no ──► run the step ──► record, save, emit
                          │ yes                                                   │
                          └───────────────────── the answer ◄─────────────────────┘

It first looks back, as far as the record goes, and does nothing that anybody could notice; only then it runs. Where
several generators run in parallel, all of them have looked back before one runs a step: a resume that is refused changes
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import attrs

from flowckpt.core.replay import Answer, Command, Crash, Enter, Execute, Finish, Replay, Restore, drive
from flowckpt.engine import steps
from flowckpt.engine.rules.reasons import ReuseMode
from flowckpt.engine.run.context import RunContext
from flowckpt.engine.steps.restore import UNSURE, is_still_true, plainly_restored, restored
from flowckpt.engine.steps.run_step import run_step


@attrs.define(eq=False, repr=False)
class Scope:
    """The live responder of one generator.

    Attributes:
        context: the attempt that it belongs to.
        replay: the generator and its record.
        is_stale: whether something in its record was found to be no longer true.
    """

    context: RunContext
    replay: Replay
    is_stale: bool = False
    _has_effects: bool = False
    _command: Command | None = None
    _task: asyncio.Task[Any] | None = None
    _entered: steps.members.Member | None = None

    async def look_back(self) -> bool:
        """Answer the generator from its record; return whether that brought it to its end.

        Raises:
            StaleStepError: a recorded result is no longer true, and the policy is to stop.
            WorkflowChangedError: the generator yields something else than the record says.
        """
        await self._drive()
        return isinstance(self._command, Finish | Crash)

    async def run(self) -> Finish | Crash:
        """Drive the generator to its end and return how it ended.

        Raises:
            Suspended: it waits, and everything that runs in parallel has come to rest; call it again to resume there.
            BaseException: what ends the run, and not the generator alone.
        """
        self._has_effects = True
        await self._drive()
        assert isinstance(self._command, Finish | Crash)
        return self._command

    async def _drive(self) -> None:
        self._task = asyncio.current_task()
        self._command = await drive(self.replay, self, self._command)

    def restore(self, replay: Replay, command: Restore) -> Answer | Awaitable[Answer | Execute | None]:
        """Answer with the recorded result, or say that the step runs again."""
        value = plainly_restored(self.context, command)
        return (value, None) if value is not UNSURE else self._restore(replay, command)

    async def _restore(self, replay: Replay, command: Restore) -> Answer | Execute:
        step, result = command.step, command.result
        if await is_still_true(self.context, step, result, is_spare=command.is_spare):
            return await restored(self.context, step, result, is_spare=command.is_spare)
        self.is_stale = True
        return replay.rerun(command, keeps_rest=self._keeps_rest)

    def execute(self, replay: Replay, command: Execute) -> Awaitable[Answer | None]:
        """Run the step; before effects are on, only an ephemeral one."""
        run, task = self.context, self._task
        if (
            not self._has_effects
            or replay.is_handling
            or run.recorder.aside.dropped
            or run.waits.approved
            or run.interrupts.noted
            or task is None
            or task.cancelling()
            or run.clock.elapsed_ns() >= run.look_at_ns
        ):
            return self._execute(command)
        self._command = command
        return run_step(run, command)

    async def _execute(self, command: Execute) -> Answer | None:
        """Do what is due before a step, then run it."""
        run, task = self.context, self._task
        is_ephemeral = command.step.modifiers.is_ephemeral
        if not self._has_effects and not is_ephemeral:
            await run.refuse_doubt(command.step, command.path)
            return None
        if run.clock.elapsed_ns() >= run.look_at_ns:
            await run.look_for_requests()
        if run.interrupts.noted:
            run.interrupts.raise_noted(task)  # here what has ended is safe, and nothing has begun
        if task is not None and task.cancelling():
            await asyncio.sleep(0)  # a cancel that waited for the end of the last step comes in here
        if run.recorder.aside.dropped and not is_ephemeral:
            run.recorder.drop_stale()
        self._command = command  # where it waits, it is run again
        if self._has_effects:
            await self._record_failure()
        if self._has_effects and run.waits.approved:
            await steps.approvals.check(run, command.path)
        return await run_step(run, command)

    async def enter(self, replay: Replay, command: Enter) -> Answer | None:
        """Look back at the steps of a composite, then run those that have no result; before effects are on, look back only."""
        self._command = command
        member = self._entered
        if member is None:
            member = self._entered = steps.members.member_of(self.context, command, new_scope)
            if await member.look_back():
                self._entered = None
                return member.answer
            if member.is_stale:
                self.is_stale = True
                replay.begin_anew(keeps_rest=self._keeps_rest)
            else:
                replay.begin(command)
        if not self._has_effects:
            return None
        task = self._task
        self.context.interrupts.raise_noted(task)
        if task is not None and task.cancelling():
            await asyncio.sleep(0)
        await self._record_failure()
        answer = await member.run()
        self._entered = None
        return answer

    async def _record_failure(self) -> None:
        """Make a failure durable that the generator has handled, before what it does about it starts.

        Otherwise a crash could lose the failure, and leave the effect of its handler without a reason if the step succeeds next time.
        """
        if self.replay.is_handling:
            self.replay.is_handling = False
            await self.context.recorder.save_failures()

    @property
    def _keeps_rest(self) -> bool:
        return self.context.judge.policy.reuse is ReuseMode.INPUTS


def new_scope(run: RunContext, replay: Replay) -> Scope:
    """Return what drives a generator, which the attempt closes at its end."""
    run.generators.append(replay)
    return Scope(run, replay)
