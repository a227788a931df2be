"""One generator, driven against its record: the workflow's own, or a child's.

    replay ──command──► is the recorded result still true? ── no ──► run the step ──► record, save, tell
       ▲                          │ yes                                                   │
       └──────────────────────────┴───── the outcome, sent or thrown ◄────────────────────┘

It first looks back, as far as the record goes, and does nothing that anybody could notice; only then it runs. Where
several generators stand beside each other, all of them have looked back before one begins: a resume that is refused
changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import attrs

from flowckpt.core.replay import Command, Crash, Enter, Execute, Finish, Replay, Restore
from flowckpt.core.system.lazy import LazyModule
from flowckpt.engine.rules.reasons import ReuseMode
from flowckpt.engine.run.attempt import Attempt
from flowckpt.engine.steps.restore import UNSURE, Answer, is_still_true, plainly_restored, restored
from flowckpt.engine.steps.run_step import run_step

if TYPE_CHECKING:
    from flowckpt.engine.steps import approvals, members
else:
    approvals = LazyModule("flowckpt.engine.steps.approvals")
    members = LazyModule("flowckpt.engine.steps.members")


@attrs.define(eq=False, repr=False)
class Scope:
    """Drives one generator.

    Attributes:
        attempt: the attempt that it belongs to.
        replay: the generator and its record.
        is_stale: whether something in its record was found to be no longer true.
    """

    attempt: Attempt
    replay: Replay
    is_stale: bool = False
    _command: Command | None = None
    _entered: members.Member | None = None

    async def look_back(self) -> bool:
        """Answer the generator from its record; tell whether that brought it to its end.

        Raises:
            StaleStepError: a recorded result is no longer true, and the policy is to stop.
            WorkflowChangedError: the generator yields something else than the record says.
        """
        return await self._advance(has_effects=False)

    async def run(self) -> Finish | Crash:
        """Drive the generator to its end and return how it ended.

        Raises:
            Suspended: it waits, and everything beside it has come to rest; called again, it goes on from there.
            BaseException: what ends the run, and not the generator alone.
        """
        await self._advance(has_effects=True)
        assert isinstance(self._command, Finish | Crash)
        return self._command

    async def _advance(self, *, has_effects: bool) -> bool:
        attempt, replay = self.attempt, self.replay
        task = asyncio.current_task()
        command = replay.start() if self._command is None else self._command
        while True:
            if type(command) is Restore:
                value = plainly_restored(attempt, command)
                command = replay.send(value) if value is not UNSURE else await self._restored(command)
            elif type(command) is Execute:
                is_ephemeral = command.step.modifiers.is_ephemeral
                if not has_effects and not is_ephemeral:
                    await attempt.refuse_doubt(command.step, command.path)
                    self._command = command
                    return False
                if attempt.clock.elapsed_ns() >= attempt.look_at_ns:
                    await attempt.look_for_cancel()
                if attempt.interrupts.noted:
                    attempt.interrupts.raise_noted(task)  # here what has ended is safe, and nothing has begun
                if task is not None and task.cancelling():
                    await asyncio.sleep(0)  # a cancel that waited for the end of the last step comes in here
                if attempt.aside.dropped and not is_ephemeral:
                    attempt.let_go()
                self._command = command  # where it waits, it is run again
                if has_effects and attempt.waits.approved:
                    await approvals.check(attempt, command.path)
                value, failure = await run_step(attempt, command)
                command = replay.send(value) if failure is None else replay.throw(failure)
            elif isinstance(command, Enter):
                self._command = command
                answer = await self._enter(command, has_effects=has_effects)
                if answer is None:
                    return False
                value, failure = answer
                command = replay.send(value) if failure is None else replay.throw(failure)
            else:
                self._command = command
                return True

    async def _restored(self, command: Restore) -> Command:
        """Answer the generator with a recorded result, or say that it is to be run again."""
        step, result = command.step, command.result
        if not await is_still_true(self.attempt, step, result, is_spare=command.is_spare):
            self.is_stale = True
            return self.replay.rerun(command, keeps_rest=self._keeps_rest)
        value, failure = await restored(self.attempt, step, result, is_spare=command.is_spare)
        return self.replay.send(value) if failure is None else self.replay.throw(failure)

    async def _enter(self, command: Enter, *, has_effects: bool) -> Answer | None:
        """Go into a step that is made of steps; return None where some must run and nothing may run yet."""
        member = self._entered
        if member is None:
            member = self._entered = members.member_of(self.attempt, command, new_scope)
            if await member.look_back():
                self._entered = None
                return member.answer
            if member.is_stale:
                self.is_stale = True
                self.replay.begin_anew(keeps_rest=self._keeps_rest)
            else:
                self.replay.begin(command)
        if not has_effects:
            return None
        task = asyncio.current_task()
        self.attempt.interrupts.raise_noted(task)
        if task is not None and task.cancelling():
            await asyncio.sleep(0)
        answer = await member.run()
        self._entered = None
        return answer

    @property
    def _keeps_rest(self) -> bool:
        return self.attempt.judge.policy.reuse is ReuseMode.INPUTS


def new_scope(attempt: Attempt, replay: Replay) -> Scope:
    """Return what drives a generator, which the attempt closes at its end.

    Args:
        attempt: the attempt.
        replay: the generator and its record.
    """
    attempt.replays.append(replay)
    return Scope(attempt, replay)
