"""The tries of a step that is not simply called once: retried, settled by its evidence, undone before, or told live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.dsl import Step
from flowckpt.core.system.clock import Clock
from flowckpt.core.system.lazy import LazyModule
from flowckpt.engine.run.in_doubt import InDoubtResolver, Settled
from flowckpt.engine.run.notify import EventSink, evidence_event
from flowckpt.engine.values.superseded import RetryBudget
from flowckpt.errors import EncodingError, NotSendableError, StepInDoubtError, StepTimeoutError, WorkerDiedError
from flowckpt.execution.current_step import EngineDesk, Told
from flowckpt.execution.errors import is_one_of, kind_of, text_of
from flowckpt.execution.interrupts import Interrupts
from flowckpt.execution.python import waited
from flowckpt.execution.runner import Outcome, StepRunner

if TYPE_CHECKING:
    from flowckpt import events
else:
    events = LazyModule("flowckpt.events")


# A try whose output is told line by line while it runs.


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


_NO_BETTER_NEXT_TIME = (EncodingError, NotSendableError)


@attrs.define(eq=False, repr=False)
class Trying:
    """Tries one step until it is done, or given up.

    Attributes:
        step: the step.
        path: its path.
        workflow_id: the run.
        attempt: the attempt of the run.
        arguments: what the record keeps of its arguments.
        code: the fingerprint of its function.
        settled: what was found out about it before.
        settling: settles it between two tries, where it must not be done twice.
        runner: does it.
        clock: waits.
        random: returns numbers in [0, 1), for the jitter.
        interrupts: the signals.
        tell: told what happens on the way, or None.
        mark: saves that a step begins that must not be done twice.
        budget: how many retries there may be.
        desk: where the step hands in what it tells and saves.
        numbers: which try runs now, by path.
        tries: how often it was tried.
        is_undone: whether what an earlier execution left behind is undone; True where there is nothing to undo.
    """

    step: Step[Any]
    path: str
    workflow_id: str
    attempt: int
    arguments: Mapping[str, Any]
    code: str
    settled: Settled
    settling: InDoubtResolver
    runner: StepRunner
    clock: Clock
    random: Callable[[], float]
    interrupts: Interrupts
    tell: EventSink | None
    mark: Callable[[str], Awaitable[None]]
    budget: RetryBudget
    desk: EngineDesk
    numbers: dict[str, int]
    tries: int = 0
    is_undone: bool = attrs.field(default=attrs.Factory(lambda self: self.settled.undo is None, takes_self=True))
    _outcome: Outcome | None = None
    _began_ns: int = 0

    @property
    def outcome(self) -> Outcome:
        """How the last try ended."""
        assert self._outcome is not None
        return self._outcome

    @property
    def is_adopted(self) -> bool:
        """Whether it was not run in the end, but proved done."""
        return self.settled.outcome is not None and self.outcome.error is None

    async def run(self) -> None:
        """Try it, telling what happens on the way."""
        step, path = self.step, self.path
        # An effect is undone before the next one is marked: a mark says that the new call may have had its effect.
        is_mark_due = step.modifiers.is_at_most_once and not self.is_undone
        self._began_ns = self.clock.elapsed_ns()
        while True:
            self.tries += 1
            self.numbers[path] = self.tries
            self._outcome = await self._instead()
            if self._outcome is None:
                if is_mark_due:
                    await self.mark(path)
                    is_mark_due = False
                if self.tell is not None and step.action.step_type == "command":
                    streamed = StreamedTry(self.runner, step, self._told)
                    async with aclosing(streamed.lines()) as lines:
                        async for line in lines:
                            await self.tell(line)
                    self._outcome = streamed.outcome
                else:
                    self._outcome = await self.runner.attempt(step, self._told)
            error = self._outcome.error
            if error is None or not self._is_retried(error):
                return
            delay = self._delay()
            if not self._is_in_time(error, delay):
                return
            if step.modifiers.is_at_most_once and self.is_undone:
                was_adopted = self.settled.outcome is not None
                if not await self._may_be_repeated(error):
                    return
                if self.settled.outcome is not None:
                    continue
                is_mark_due = was_adopted  # adopting failed, and by now the world says that it was not done
            if not self.budget.take():
                error.add_note(f"It was not tried again: the run's {self.budget.limit} retries are used up.")
                return
            if self.tell is not None:
                if self._outcome.committed is not None:
                    await self.tell(evidence_event(self.workflow_id, path, self._outcome.committed.report, "now"))
                await self.tell(
                    events.StepRetrying(self.workflow_id, path, self.tries, delay, kind_of(error), text_of(error))
                )
            await waited(self.clock.sleep(delay), self.interrupts)
            if not self._is_in_time(error, 0.0):  # the machine slept longer than we did
                return

    @property
    def _told(self) -> Told:
        run, step = self.workflow_id, self.step
        return run, self.path, self.attempt, self.tries, self.arguments, step, self.code, self.desk

    async def _instead(self) -> Outcome | None:
        """Return what the try comes to without running the step: it is adopted, or what was there cannot be undone."""
        if self.settled.outcome is not None:
            return self.settled.outcome
        if not self.is_undone and self.settled.undo is not None:
            unable = await self.settling.undone(self.step, self.settled.undo)
            self.is_undone = unable is None
            return unable
        return None

    def _is_retried(self, error: BaseException) -> bool:
        retry = self.step.modifiers.retry
        if self.interrupts.noted:
            return False
        if retry is None:  # a cluster loses workers all the time: that is no failure of the step
            step, runner = self.step, self.runner
            if not isinstance(error, WorkerDiedError) or runner.is_here(step):
                return False
            return self.tries < runner.places.tries_when_lost(step, self.path)
        if self.tries >= retry.attempts:
            return False
        if is_one_of(error, _NO_BETTER_NEXT_TIME):
            return False
        return retry.is_worth_it(error, matches=is_one_of, doubt=lambda said: error.add_note(f"{said[:500]}."))

    def _is_in_time(self, error: BaseException, delay: float) -> bool:
        """Tell whether another try would begin before the deadline, where there is one."""
        retry = self.step.modifiers.retry
        if retry is None or retry.deadline is None:
            return True
        elapsed = (self.clock.elapsed_ns() - self._began_ns) / 1e9
        if elapsed + delay <= retry.deadline:
            return True
        error.add_note(
            f"It was not tried again: its deadline of {retry.deadline:g} s is over"
            + (f", or would be after a wait of {delay:g} s." if delay else ".")
        )
        return False

    def _delay(self) -> float:
        retry = self.step.modifiers.retry
        return retry.delay(self.tries, random=self.random()) if retry else 0.0

    async def _may_be_repeated(self, error: BaseException) -> bool:
        """Tell whether another try of a step that must not be done twice is none too many."""
        if isinstance(error, StepTimeoutError) and self.runner.is_left_behind(self.step):
            error.add_note("It was not tried again: it was left running, and may yet do its work.")
            return False
        try:
            self.settled = await self.settling.retried(self.step, self.path, self.arguments)
        except StepInDoubtError as doubt:  # another try could be the second time
            error.add_note(f"It was not tried again: {doubt.message}.")
            return False
        return True
