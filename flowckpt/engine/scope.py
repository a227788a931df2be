"""One generator, driven against its record: the workflow's own, or a child's.

replay ──command──► is the recorded result still true? ── no ──► run the step ──► record, save, tell
   ▲                          │ yes                                                   │
   └──────────────────────────┴───── the outcome, sent or thrown ◄────────────────────┘
"""

from __future__ import annotations

import asyncio
from typing import Any

import attrs

from flowckpt.checkpoint import StepError
from flowckpt.engine.attempt import Attempt
from flowckpt.engine.failures import stale_step, step_failure
from flowckpt.engine.step_run import run_step
from flowckpt.engine.telling import evidence_event
from flowckpt.engine.verifying import is_open
from flowckpt.events import StepRestored
from flowckpt.execution.runner import restored_value
from flowckpt.plan.policy import OnStale, ReuseMode
from flowckpt.replay import Command, Execute, Finish, Replay, Restore


@attrs.define(eq=False, repr=False)
class Scope:
    """Drives one generator.

    Attributes:
        attempt: the attempt that it belongs to.
        replay: the generator and its record.
    """

    attempt: Attempt
    replay: Replay

    async def run(self) -> Any:
        """Drive the generator to its end and return what it returns.

        Raises:
            BaseException: whatever ends it.
        """
        attempt, replay = self.attempt, self.replay
        task = asyncio.current_task()
        command = replay.start()
        while True:
            if isinstance(command, Restore):
                command = await self._restored(command)
            elif isinstance(command, Execute):
                attempt.interrupts.raise_noted()  # here what has ended is safe, and nothing has begun
                if task is not None and task.cancelling():
                    await asyncio.sleep(0)  # a cancel that waited for the end of the last step comes in here
                if replay.dropped and not command.step.modifiers.is_ephemeral:
                    attempt.let_go(replay)
                value, failure = await run_step(attempt, command)
                command = replay.send(value) if failure is None else replay.throw(failure)
            else:
                if replay.dropped:
                    attempt.let_go(replay)
                if isinstance(command, Finish):
                    return command.output
                raise command.error

    async def _restored(self, command: Restore) -> Command:
        """Answer the generator with a recorded result, or say that it is to be run again."""
        attempt, judge = self.attempt, self.attempt.judge
        step, result = command.step, command.result
        if result.evidence is not None and result.success:
            report = judge.reports.get(result.path)
            if attempt.executed or is_open(report):  # the world has moved on, or could not be asked before
                report = judge.reports[result.path] = await attempt.verifying.look_again(step, result)
            if report is not None and report.outcome != "no_evidence" and attempt.tell is not None:
                await attempt.tell(evidence_event(attempt.workflow_id, result.path, report, "resume"))
        reasons = judge.reasons(step, result, is_behind_rerun=command.is_spare)
        if reasons and (answer := judge.decide(reasons)) is not OnStale.REUSE:
            if answer is OnStale.FAIL:
                once = step.modifiers.is_at_most_once
                raise stale_step(attempt.workflow_id, result.path, reasons, is_at_most_once=once)
            if not judge.proves_done(step, result):
                return self.replay.rerun(command, keeps_rest=judge.policy.reuse is ReuseMode.INPUTS)
        if command.is_spare:
            attempt.keep(result)
        attempt.restored += 1
        if attempt.tell is not None:
            await attempt.tell(StepRestored(attempt.workflow_id, command.path, result.success, result.duration_ms))
        if result.success:
            return self.replay.send(restored_value(step, result))
        return self.replay.throw(step_failure(command.path, result.error or StepError("", "")))
