"""Steps in parallel: those of a map, or of a group.

Each member is a step with its own path and record. When the fan-out ends, it gets a record too: how many members it
had, how many failed, and whether the fan-out succeeded. The generator gets the members' results in their order, so no
output is stored twice.

    check the members that have results ──► run the others, up to `concurrency` at a time ──► record how it ended

A fixed number of workers takes the members one by one: a hundred thousand members do not need a hundred thousand tasks,
and an item is requested only when a worker is free.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from flowckpt.core.codec.results import append_result
from flowckpt.core.dsl.composites import TOO_FEW_REMEDY, FanOutAction, ItemsError, ParallelAction
from flowckpt.core.identity.secrets import refuse_secret_names
from flowckpt.core.records import StepError, StepResult
from flowckpt.core.records.result import result_of
from flowckpt.core.replay import Answer, Enter, Expansion, expand
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.core.system.declared import type_name
from flowckpt.engine import run as attempts
from flowckpt.engine.rules.paths import is_stopped, is_within, split_stopped_member
from flowckpt.engine.rules.reasons import ReuseMode
from flowckpt.engine.steps.members import CompositeRun, Member, StoppedMember, make_member, read_ended_answer
from flowckpt.engine.steps.run_step import (
    OTHER_END,
    changed_members_reason,
    has_other_end,
    is_still_valid,
    note_restored,
)
from flowckpt.engine.values.failures import combine_answers, read_fan_out, step_failure, stopped_error
from flowckpt.engine.values.waits import Suspended
from flowckpt.errors import FanOutFailedError, StepFailedError
from flowckpt.execution.errors import record_error
from flowckpt.execution.python import await_interruptibly
from flowckpt.execution.runner import Outcome

DEFAULT_CONCURRENCY = 32
MOST_WINNERS = 100
"""The record of a race names at most this many successful members, in the order in which they succeeded."""
_LOOK_SECONDS = 0.2
"""While others run, an idle worker checks at this interval whether a waiting member can continue."""
_BREATHER = 64
"""A worker yields to the event loop after this many members, even if none of them had to wait."""


class _DecidedError(Exception):
    """The fan-out is decided: too many members have failed, or enough have succeeded."""


@attrs.define(eq=False, repr=False)
class FanOut(CompositeRun):
    """A fan-out of one run."""

    _answers: list[Answer | None] = attrs.field(init=False, factory=list)
    _unended: deque[tuple[int, Member]] = attrs.field(init=False, factory=deque)
    _new_members: Iterator[Enter] | None = None
    _failed: int = 0
    _succeeded: int = 0
    _before: int = 0
    _winners: dict[int, str] = attrs.field(init=False, factory=dict)
    _stopped: list[tuple[int, Member]] = attrs.field(init=False, factory=list)
    _running: dict[int, Member] = attrs.field(init=False, factory=dict)
    _paths: dict[asyncio.Task[Any] | None, str] = attrs.field(init=False, factory=dict)
    _error: ItemsError | None = None
    _paused: list[tuple[int, Member, Suspended]] = attrs.field(init=False, factory=list)
    _busy: int = 0
    _looking: asyncio.Lock = attrs.field(init=False, factory=asyncio.Lock)
    _action: FanOutAction = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        action = self.enter.step.action
        assert isinstance(action, FanOutAction)
        self._action = action

    # --- looking back ----------------------------------------------------------------------------------------------

    async def look_back(self) -> bool:
        """Check the members that have results; return whether the fan-out had ended and nothing in it has changed."""
        run, enter = self.context, self.enter
        result = enter.result
        expansion = expand(enter)
        if result is not None and not await is_still_valid(run, enter.step, result, is_spare=enter.is_spare):
            self.is_stale = True  # its version tag changed, or the user forced it to run again
            judge = run.judge
            if judge.policy.reuse is not ReuseMode.INPUTS or judge.is_forced(enter.path):
                run.recorder.aside.dropped += expansion.take_rest()
        self._new_members = self._expand(expansion)
        start = f"{enter.path}/"
        unended = [each for each in {*run.recorder.in_doubt, *run.recorder.list_doubts()} if each.startswith(start)]
        doubts = {start + each[len(start) :].partition("/")[0] for each in unended}
        if expansion.own or doubts or result is not None:
            await self._look_at_members(expansion, doubts, is_ended=result is not None)
        if doubts and self._error is None:
            once = [each for each in run.recorder.list_doubts() for top in doubts if is_within(each, top)]
            attempts.in_doubt.refuse_missed(run, once)
        gone = expansion.take_rest()
        run.recorder.aside.dropped += gone
        is_same = not (self.is_stale or gone or (self._unended and result is not None and result.success))
        if result is not None and is_same and self._has_other_end(result):
            is_same = await is_still_valid(run, enter.step, result, is_spare=enter.is_spare, more=(OTHER_END,))
            self.is_stale = not is_same
        if self._stopped and not self._is_won and (result is None or not is_same):
            await self._race_again()
        for _, member in self._stopped:
            if isinstance(member, StoppedMember):
                member.keep()
        if result is None:
            return False
        if is_same:
            await self._restore(result)
            return True
        if not self.is_stale:
            why = (changed_members_reason(len(self._unended), len(gone)),)
            await is_still_valid(run, enter.step, result, is_spare=enter.is_spare, more=why)
        self.is_stale = True
        run.recorder.aside.dropped.append(result)
        return False

    def _has_other_end(self, result: StepResult) -> bool:
        stopped, unended = len(self._stopped), len(self._unended)
        return has_other_end(self.enter.step, result, self._answers, stopped=stopped, unended=unended)

    async def _look_at_members(self, expansion: Expansion, doubts: set[str], *, is_ended: bool) -> None:
        """Check each member that has a record or is in doubt; queue the others."""
        assert self._new_members is not None
        for made in self._new_members:
            path, step = made.path, made.step
            is_known = made.result is not None or bool(made.nested) or path in doubts
            doubts.discard(path)
            member = self._make_member(made)
            index = len(self._answers)
            self._answers.append(None)
            if step.modifiers.is_ephemeral and is_ended:  # in a replay, it runs before anything is decided
                self._note(index, path, await member.run())
            elif is_known and await member.look_back():
                if is_stopped(made.result):
                    self._stopped.append((index, member))
                    self._answers[index] = member.answer
                else:
                    self._note(index, path, member.answer)
            else:
                self.is_stale = self.is_stale or member.is_stale
                self._unended.append((index, member))
            if not expansion.own and not doubts and not is_ended:
                return  # the other members are created when a worker is free

    def _make_member(self, made: Enter) -> Member:
        made.is_bound = made.is_bound and not self.is_stale
        return make_member(self.context, made)

    async def _race_again(self) -> None:
        """Queue the members that were stopped: the race has no winner any more.

        Their undone results are dropped, their other results stay.
        """
        for index, member in self._stopped:
            enter: Enter = member.enter
            assert enter.result is not None
            kept, gone = split_stopped_member(enter.nested)
            self.context.recorder.aside.dropped += [*gone, enter.result]
            self._answers[index] = None
            again = self._make_member(attrs.evolve(enter, result=None, nested=kept))
            await again.look_back()  # refuses a step in doubt before a member runs
            self._unended.append((index, again))
        self._stopped = []

    async def _restore(self, result: StepResult) -> None:
        """Restore the recorded end of the fan-out."""
        await note_restored(self.context, self.enter.step, result, is_spare=self.enter.is_spare)
        self.keep_answer(read_fan_out(self.enter, result, self._list_answers()))

    # --- running ---------------------------------------------------------------------------------------------------

    async def run(self) -> Answer:
        """Run the members that have no results, and record how it ended.

        Raises:
            Suspended: some members wait, and all others have ended; call this method again to continue those that wait.
        """
        run, path = self.context, self.enter.path
        refuse_secret_names(self.enter.step, path, run.secrets)
        if self._new_members is None:
            await self.look_back()
        await self.begin()
        self._before = len(run.recorder.checkpointer.history.results)
        if not self._is_decided:
            await self._run_members()
        if self._paused and not self._is_decided and self._error is None:
            paused, self._paused = sorted(self._paused, key=lambda each: each[0]), []
            self._unended.extend((index, member) for index, member, _ in paused)
            raise Suspended(path for _, _, pause in paused for path in pause.paths)
        run.waits.end_within(path)
        await run.recorder.save_start()
        if self._is_won:
            self._stop_the_rest()
            await attempts.undo_steps.undo_stopped(run, [member.enter.path for _, member in self._stopped])
        failure = self._find_failure()
        summary: dict[str, Any] = {"members": len(self._answers), "failed": self._failed}
        if self._stopped:
            summary = {**summary, "stopped": len(self._stopped), "winners": self._order_winners()}
        await self.end(Outcome(tree=summary), failure)
        return self.keep_answer(combine_answers(self.enter, failure, self._list_answers()))

    async def _run_members(self) -> None:
        self.context.waits.fan_outs += 1
        try:
            await self._run_in_parallel()
        finally:
            self.context.waits.fan_outs -= 1

    async def _run_in_parallel(self) -> None:
        width = self._count_workers()
        feed = self._feed()
        if width == 1:  # one member at a time: it may block, like any other step
            with contextlib.suppress(_DecidedError):
                await self._work(feed)
            return
        with blocking_allowed(False):
            workers = [asyncio.ensure_future(self._work(feed)) for _ in range(width)]
        try:
            await await_interruptibly(
                asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION), self.context.interrupts
            )
            if self._is_decided:
                await self._let_ended_finish(workers)
        except asyncio.CancelledError:
            if self.context.waits.fan_outs > 1:  # an outer one is decided, but a save that failed here ends the run
                with contextlib.suppress(asyncio.CancelledError):
                    await _stop_all(workers)
                _raise_error_of(workers)
            raise
        finally:
            await _stop_all(workers)
        is_decided = _raise_error_of(workers)
        if not is_decided and any(each.cancelled() for each in workers):  # by a signal that arrived before the wait
            raise asyncio.CancelledError
        if is_decided:  # stopped members are not in doubt: they ended without a result
            in_flight = self.context.recorder.in_flight
            for path in [each for each in in_flight if each.startswith(f"{self.enter.path}/")]:
                del in_flight[path]

    async def _let_ended_finish(self, workers: Sequence[asyncio.Task[None]]) -> None:
        """Stop the workers; a worker whose member is already recorded first saves it and emits its event."""
        recorded = {each.path for each in self.context.recorder.checkpointer.history.results[self._before :]}
        finishing = []
        for worker in workers:
            if self._paths.get(worker) in recorded:
                finishing.append(worker)
            else:
                worker.cancel()
        if finishing:
            await await_interruptibly(asyncio.wait(finishing), self.context.interrupts)

    def _count_workers(self) -> int:
        action, size = self._action, self._action.size
        width = action.concurrency
        if width is None:
            width = len(action.steps) if isinstance(action, ParallelAction) else DEFAULT_CONCURRENCY
        return max(1, width if size is None else min(width, size))

    def _feed(self) -> Iterator[tuple[int, Member]]:
        """Yield the members to run: first the queued ones, then new ones as they are created."""
        assert self._new_members is not None
        while self._unended:
            yield self._unended.popleft()
        for made in self._new_members:
            index = len(self._answers)
            self._answers.append(None)
            yield index, self._make_member(made)

    def _expand(self, expansion: Expansion) -> Iterator[Enter]:
        """Create the members; an error in the iterable of items becomes a failure of this step."""
        try:
            yield from expansion
        except ItemsError as error:
            self._error = error

    async def _work(self, feed: Iterator[tuple[int, Member]]) -> None:
        """Run members until there are no more."""
        task, interrupts = asyncio.current_task(), self.context.interrupts
        for done, (index, member) in enumerate(feed):
            interrupts.raise_pending(task)
            await self._run_member(index, member, task)
            if done % _BREATHER == _BREATHER - 1:
                await asyncio.sleep(0)
        while (woken := await self._wake_member()) is not None:
            interrupts.raise_pending(task)
            await self._run_member(*woken, task)

    async def _run_member(self, index: int, member: Member, task: asyncio.Task[Any] | None) -> None:
        self._busy += 1
        self._running[index] = member
        self._paths[task] = member.enter.path
        try:
            answer = await member.run()
        except Suspended as pause:
            self._paused.append((index, member, pause))
            del self._running[index]
            return
        finally:
            self._busy -= 1
        del self._running[index]
        self._note(index, member.enter.path, answer)
        if self._is_decided:
            raise _DecidedError

    async def _wake_member(self) -> tuple[int, Member] | None:
        """Return a waiting member that can continue; None when no member runs any more."""
        run = self.context
        if not self._paused:
            return None
        async with self._looking:  # one worker looks for all of them; when it finds a member, the next worker looks
            while self._paused and self._busy:
                for index, paused in enumerate(self._paused):
                    if await run.inbox.can_end_any(run.waits.select(paused[2].paths)):
                        del self._paused[index]  # only this loop removes entries; new ones are appended
                        return paused[0], paused[1]
                await run.clock.sleep(_LOOK_SECONDS)
        return None

    # --- how it ends -----------------------------------------------------------------------------------------------

    def _note(self, index: int, path: str, answer: Answer) -> None:
        self._answers[index] = answer
        if answer[1] is not None:
            self._failed += 1
            return
        self._succeeded += 1
        if self._action.completion.min_success is not None and len(self._winners) < MOST_WINNERS:
            self._winners[index] = path

    def _order_winners(self) -> list[int]:
        """Return the indexes of the successful members in the order of their records, which earlier processes share."""
        ended = {each.path: place for place, each in enumerate(self.context.recorder.checkpointer.history.results)}
        return sorted(self._winners, key=lambda index: ended.get(self._winners[index], len(ended)))

    @property
    def _is_lost(self) -> bool:
        return self._failed > 0 and self._action.completion.cannot_succeed(self._failed, self._action.size)

    @property
    def _is_won(self) -> bool:
        completion = self._action.completion
        is_race = completion.min_success is not None and self._error is None
        return is_race and completion.is_enough(self._succeeded, self._action.size)

    @property
    def _is_decided(self) -> bool:
        return self._is_lost or self._is_won

    def _stop_the_rest(self) -> None:
        """Record every unfinished member as stopped; no other result is recorded in between."""
        paused, self._paused = self._paused, []
        begun = [*self._running.items(), *((index, member) for index, member, _ in paused)]
        self._running = {}
        results = self.context.recorder.checkpointer.history.results
        recorded = {each.path: each for each in results[self._before :]}
        for index, member in sorted([*begun, *self._feed()], key=lambda each: each[0]):
            if member.enter.path in recorded:  # it had ended before it was cancelled
                below = f"{member.enter.path}/"
                nested = [each for each in results if each.path.startswith(below)]
                ended = attrs.evolve(member.enter, result=recorded[member.enter.path], nested=nested)
                self._note(index, ended.path, read_ended_answer(ended))
                continue
            failure = stopped_error(member.enter.path)
            self._record_stopped(member.enter, failure)
            self._answers[index] = None, step_failure(member.enter.path, failure)
            self._stopped.append((index, member))

    def _record_stopped(self, enter: Enter, failure: StepError) -> None:
        run, action = self.context, enter.step.action
        result = {
            "name": enter.step.name,
            "step_type": action.step_type,
            "success": False,
            "_output": None,
            "duration_ms": 0.0,
            "error": failure,
            "path": enter.path,
            "started_at": run.clock.now(),
            "attempt": run.number,
            "function": action.function_name,
        }
        append_result(run.recorder.checkpointer.history, result_of(result))

    def _find_failure(self) -> StepError | None:
        """Return the failure of the fan-out; None if it succeeded."""
        if self._is_won:
            return None
        path, total = self.enter.path, len(self._answers)
        if self._error is not None:
            error = record_error(self._error.__cause__ or self._error, path=path, secrets=self.context.secrets)
            where = self.context.secrets.redact(str(self._error))
            return attrs.evolve(error, message=f"{where}: {error.message}" if error.message else where)
        if not self._is_lost and self._action.completion.is_met(self._failed, total):
            return None
        causes = [failure for _, failure in self._list_answers() if failure is not None]
        message, remedy = _summary_of(total if self._action.size is None else self._action.size, causes), ""
        wanted = self._action.completion.min_success
        if type(wanted) is int and wanted > total and not self._is_lost:
            message = f"min_success={wanted}, but there were only {total}" + (f"; {message}" if causes else "")
            remedy = TOO_FEW_REMEDY
        return StepError(
            type_name(FanOutFailedError),
            message,
            path=path,
            causes=tuple(each.path for each in causes),
            remedy=remedy or next((each.remedy for each in causes if each.remedy), ""),
        )

    def _list_answers(self) -> list[Answer]:
        return [answer for answer in self._answers if answer is not None]


def _summary_of(total: int, causes: list[StepFailedError]) -> str:
    """Return the message of a failed fan-out: the number of failures, and the first three of them."""
    shown = [f"{each.path}: {each.error_type}: {each.error_message}"[:200] for each in causes[:3]]
    more = f"; and {len(causes) - 3} more" if len(causes) > 3 else ""
    return f"{len(causes)} of {total} failed: {'; '.join(shown)}{more}"


async def _stop_all(workers: Sequence[asyncio.Future[None]]) -> None:
    """Cancel the workers that still run, and wait until they have ended: a save in progress is finished first."""
    is_cancelled = False
    while unended := {each for each in workers if not each.done()}:
        for each in unended:
            each.cancel()
        try:
            await asyncio.wait(unended)
        except asyncio.CancelledError:
            is_cancelled = True
    for each in workers:  # retrieve each error, else asyncio logs it as never retrieved
        if not each.cancelled():
            each.exception()
    if is_cancelled:
        raise asyncio.CancelledError


def _raise_error_of(workers: Sequence[asyncio.Future[None]]) -> bool:
    """Raise the first error of the workers; return whether one of them has decided the fan-out."""
    errors = [error for each in workers if not each.cancelled() and (error := each.exception()) is not None]
    for error in errors:
        if not isinstance(error, _DecidedError):
            raise error
    return bool(errors)
