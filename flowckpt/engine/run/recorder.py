"""The record of one attempt: the results of its steps, what is open in it, and when it becomes durable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeVar

import attrs

from flowckpt.core.codec.blob import Recorded
from flowckpt.core.codec.results import append_result
from flowckpt.core.dsl import Step
from flowckpt.core.records import CheckpointData, Reason, Status, StepError, StepResult, generation
from flowckpt.core.records.result import result_of
from flowckpt.core.replay import DroppedResults
from flowckpt.core.system.blocking import may_block
from flowckpt.engine.rules.crash_loop import CrashCount
from flowckpt.engine.rules.judge import Judge
from flowckpt.engine.rules.paths import UNDOABLE, undone_paths
from flowckpt.engine.rules.reasons import ReuseMode
from flowckpt.engine.run.checkpointer import Checkpointer
from flowckpt.engine.run.notify import Notifier, answer_documents, events, failed_event, saved_event
from flowckpt.engine.run.resumption import kept_history, with_reusable
from flowckpt.engine.values.superseded import LEAVES_EARLIER, Superseded
from flowckpt.engine.values.waits import Waits
from flowckpt.errors import FlowckptError, StepFailedError
from flowckpt.execution.current_step import StepCall
from flowckpt.execution.runner import Outcome

_log = logging.getLogger("flowckpt")

_STEP = Reason.STEP  # an enum takes 60 ns to find a member of it
_ATOMS = frozenset({int, str, float, bool, type(None)})
"""Trees that cannot change and that decode to themselves: they are recorded unwrapped."""

T = TypeVar("T")


class GroupCommit:
    """Makes one save of those that are asked for while another one is in progress.

    While a save is in progress, the steps that ask for one form a group: the first of them saves for all as soon as its
    turn comes, and the others wait for the outcome. A fan-out of a thousand durable children so takes as many syncs as
    the disk has time for, not a thousand.

    A group is closed before its checkpoint is made, and every member had its result in the history by then: what is
    acknowledged to all of them holds the results of all of them.
    """

    def __init__(self) -> None:
        self.is_saving = False
        """Whether a save is in progress."""
        self._turn: asyncio.Future[None] | None = None
        self._group: list[asyncio.Future[bool]] | None = None  # what its members wait with, but for the first

    async def saved(self, save: Callable[[], Awaitable[T]]) -> T | None:
        """Save, or have another member of the group save; return what `save` returned, or None if another saved.

        Raises:
            FlowckptError: the save failed, also if another step made it.
        """
        while self.is_saving:
            group = self._group
            if group is None:
                return await self._lead(save)
            waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            group.append(
                waiter
            )  # one future for all, in a shield for each, would be a third of the work of a waiting step
            if await waiter:
                return None
            # else the one that was to save for us was cancelled before it could
        self.is_saving = True
        try:
            return await save()
        finally:
            self._pass_on()

    async def _lead(self, save: Callable[[], Awaitable[T]]) -> T:
        group: list[asyncio.Future[bool]] = []
        turn = asyncio.get_running_loop().create_future()
        self._group, self._turn = group, turn
        is_done = False
        failure: Exception | None = None
        try:
            try:
                await asyncio.shield(turn)
            except asyncio.CancelledError:
                if turn.done():
                    self._pass_on()
                elif self._turn is turn:
                    self._turn = None
                raise
            self._group = None
            self.is_saving = True
            try:
                made = await save()
            finally:
                self._pass_on()
            is_done = True
        except Exception as error:
            failure = error
            raise
        finally:
            if self._group is group:
                self._group = None
            for waiter in [each for each in group if not each.done()]:  # the members of the others were cancelled
                if failure is None:
                    waiter.set_result(is_done)
                else:
                    waiter.set_exception(failure)
                    waiter.exception()  # its member may be cancelled before it looks
        return made

    def _pass_on(self) -> None:
        """Give the waiting group its turn at once: otherwise the task that has just saved would always come first."""
        turn, self._turn = self._turn, None
        if turn is None:
            self.is_saving = False
        else:
            turn.set_result(None)


class StepEnd:
    """How a step ended, after all its tries.

    Attributes:
        outcome: how its last try ended.
        failure: how it failed, as it is recorded; None if it did not.
        started_at: when it started.
        duration_ms: how long it ran, in milliseconds.
        tries: how often it was tried.
        marks: its marks, without that of a step that can be undone.
        is_adopted: whether it was not run, but proved done.
        taken_from: the run that it was taken from; empty otherwise.
        more: the fields of its result that few steps have, such as `signal` and `figures`, where they are not empty.
    """

    tries: int = 1
    marks: tuple[str, ...] = ()
    is_adopted: bool = False
    taken_from: str = ""
    more: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, outcome: Outcome, failure: StepError | None, started_at: datetime, duration_ms: float) -> None:
        self.outcome = outcome
        self.failure = failure
        self.started_at = started_at
        self.duration_ms = duration_ms


@attrs.define(eq=False, repr=False)
class Undo:
    """The steps to be undone if the run fails or is cancelled.

    Attributes:
        compensate: whether the steps are undone then.
        undoable: steps that have a result and say how it is undone, by path.
        not_undoable: why steps that are to be undone cannot be, by path.
        undone: the paths of those that were undone.
        failures: why steps could not be undone that a race stopped.
    """

    compensate: bool = True
    undoable: dict[str, Step[Any]] = attrs.field(factory=dict)
    not_undoable: dict[str, str] = attrs.field(factory=dict)
    undone: list[str] = attrs.field(factory=list)
    failures: list[StepFailedError] = attrs.field(factory=list)


@attrs.define(eq=False, repr=False)
class Recorder:
    """Records one attempt of a run.

    Attributes:
        checkpointer: saves its checkpoints, and holds the history that they show.
        notifier: emits what was saved.
        judge: holds the answers of the world, which the first checkpoint records.
        aside: recorded results that are no longer, or not yet again, part of the run.
        waits: what its steps wait for.
        undo: what is undone if the run does not end well.
        superseded: results that no longer count, of steps that must look at them before they run again.
        in_doubt: the paths of steps whose start was recorded, and no end; every checkpoint repeats them until they end.
        resumed_from: the checkpoint that the attempt resumes; None for a new run.
        crash_count: how often the run crashed where it crashed last; None for a new run.
        note_started: leaves a hint of a step that starts; None if the store keeps none.
        in_flight: the try that runs now of each step that is running, by path.
        start_saved: whether the start of the attempt is saved; a resume saves it once it has something to do.
    """

    checkpointer: Checkpointer
    notifier: Notifier
    judge: Judge
    aside: DroppedResults
    waits: Waits
    undo: Undo
    superseded: Superseded = attrs.field(factory=Superseded)
    in_doubt: set[str] = attrs.field(factory=set)
    resumed_from: CheckpointData | None = None
    crash_count: CrashCount | None = None
    note_started: Callable[[str, str], None] | None = None
    in_flight: dict[str, StepCall] = attrs.field(init=False, factory=dict)
    start_saved: bool = attrs.field(init=False, default=False)
    _starting: asyncio.Lock = attrs.field(init=False, factory=asyncio.Lock)
    _group: GroupCommit = attrs.field(init=False, factory=GroupCommit)

    @property
    def start_reason(self) -> Reason:
        """The reason of the checkpoint that says that the attempt has started."""
        is_generation = self.resumed_from is None and generation.KEY in self.checkpointer.metadata
        return Reason.CONTINUED if is_generation else Reason.STARTED

    # --- results ---------------------------------------------------------------------------------------------------

    def record(self, call: StepCall, end: StepEnd) -> None:
        """Count a step that has ended, and append what it left behind to the history; nothing is durable yet."""
        step, path, identity, checkpointer = call.step, call.path, call.identity, self.checkpointer
        action, modifiers, failure, outcome = call.action, call.modifiers, end.failure, end.outcome
        marks, more = end.marks, end.more
        if not action.is_composite:
            notifier = self.notifier
            if end.is_adopted or end.taken_from:
                notifier.restored += 1
            else:
                notifier.executed += 1
            if failure is not None:
                notifier.failed += 1
        if self.in_doubt:
            self.in_doubt.discard(path)
        if not modifiers.is_plain:
            if modifiers.is_ephemeral:
                return
            if failure is None and modifiers.rollback is not None and not action.modifies_members:
                marks = (*marks, UNDOABLE)
                self.undo.undoable[path] = step
        fields = {  # those that differ from their defaults
            "name": step.name,
            "step_type": action.step_type,
            "duration_ms": end.duration_ms,
            "path": path,
            "started_at": end.started_at,
            "attempt": checkpointer.attempt,
            "tries": end.tries,
            "function": identity.function,
            "version": identity.version,
            "location": call.location,
            "fingerprint": identity.fingerprint,
            "arguments": identity.arguments,
        }
        is_common = failure is None and outcome.committed is None and not marks and not more
        if failure is None:
            tree = outcome.tree
            fields["_output"] = tree if type(tree) in _ATOMS else Recorded(tree)
        else:
            fields["success"], fields["error"] = False, failure
        if outcome.committed is not None:
            fields["evidence"] = outcome.committed.document
        if marks:
            fields["marks"] = marks
        if more:
            fields.update(more)
        append_result(checkpointer.history, result_of(fields), is_common=is_common)
        if checkpointer.partial and failure is None:
            checkpointer.partial.pop(path, None)
        if (earlier := self.superseded.by_path) and path in earlier and LEAVES_EARLIER.isdisjoint(marks):
            self.settle(path)

    def restore(self, result: StepResult) -> None:
        """Put a result that was set aside and still holds back into the history."""
        append_result(self.checkpointer.history, result)
        self.settle(result.path)

    def settle(self, path: str) -> None:
        """Forget the earlier result of a step that has one again."""
        if path in self.superseded:
            self.superseded.settle(path)
            self._write_down_superseded()

    def drop_stale(self) -> None:
        """Take the results that were dropped, and those that are still kept back, out of the history."""
        if not self.aside.dropped:
            return
        checkpointer, spare = self.checkpointer, self.aside.spare
        is_prefix = self.judge.policy.reuse is ReuseMode.PREFIX
        if checkpointer.partial and is_prefix:
            for path in [*checkpointer.partial]:
                self.drop_state(path, f"upstream: {self.aside.dropped[0].path} runs again before it")
        holds_undoable = not self.judge.policy.reruns_what_follows
        undone = undone_paths((*self.aside.dropped, *spare.values()))
        self.superseded.add(
            (each for each in self.aside.dropped if each.path not in undone), holds_undoable=holds_undoable
        )
        self.waits.drop_stale(self.aside.dropped, takes_behind=is_prefix)
        self.superseded.add(  # a resume that does not ask for them must not forget them
            (each for each in spare.values() if each.path not in undone), holds_undoable=holds_undoable
        )
        if not self.start_saved:
            dropped = {result.path for result in self.aside.dropped}
            checkpointer.history = kept_history(checkpointer.history.view(), dropped | spare.keys())
            if spare and self.resumed_from is not None:
                checkpointer.metadata = with_reusable(checkpointer.metadata, self.resumed_from.attempt, dropped)
        self.aside.dropped.clear()
        self._write_down_superseded()

    def drop_state(self, path: str, reason: str) -> None:
        """Drop what a step saved of itself; the event is emitted before anything more is run."""
        checkpointer = self.checkpointer
        if checkpointer.partial.pop(path, None) is not None:
            run = checkpointer.run.workflow_id
            _log.warning("run %s: the state that step %s saved of itself is dropped: %s", run, path, reason)
            self.notifier.dropped_states.append(events.StepStateDropped(run, path, reason))

    def _write_down_superseded(self) -> None:
        self.checkpointer.metadata = self.superseded.written_to(self.checkpointer.metadata)

    # --- saving ----------------------------------------------------------------------------------------------------

    def checkpoint(
        self, reason: Reason, name: str | None = None, *, status: Status | None = None
    ) -> Coroutine[Any, Any, CheckpointData | FlowckptError | None]:
        """Make durable what is recorded; return the checkpoint, or why it was not saved if the run continues then.

        Args:
            reason: why.
            name: what to call the checkpoint.
            status: where the run stands; implied by the reason if not given.

        Returns:
            None if a checkpoint that another step asked for at the same time holds it.

        Raises:
            FlowckptError: it could not be saved, and the run stops then: always for the start of the attempt and for the
                mark of an at-most-once step, which nothing may follow unsaved.
        """
        if not may_block() or self._group.is_saving:
            return self._group.saved(lambda: self._save(reason, name, status))
        checkpointer = self.checkpointer  # nothing else runs in the loop: no save could join
        if self.waits.is_changed or self.in_doubt or self.in_flight or checkpointer.policy.continue_on_save_error:
            return self._save(reason, name, status)
        return checkpointer.save(reason, name, status=status)

    async def _save(
        self, reason: Reason, name: str | None = None, status: Status | None = None
    ) -> CheckpointData | FlowckptError:
        self.write_down_waits(is_at_rest=False)
        checkpointer = self.checkpointer
        is_first = not self.start_saved and reason in (self.start_reason, Reason.SUSPENDED)
        in_flight, evidence = self.unfinished(), self.answers() if is_first else ()
        save = checkpointer.save if reason in (self.start_reason, Reason.IN_DOUBT) else checkpointer.save_or_continue
        return await save(reason, name, in_flight=in_flight, evidence=evidence, status=status)

    def step_save(
        self, call: StepCall, end: StepEnd
    ) -> Coroutine[Any, Any, CheckpointData | FlowckptError | None] | None:
        """Return the save of a step that has ended; None if it has no checkpoint and the trigger asks for none."""
        modifiers, checkpointer = call.modifiers, self.checkpointer
        if end.failure is None:
            if checkpointer.partial:
                checkpointer.partial.pop(call.path, None)  # what a thread that it left behind has saved since
            if modifiers.has_checkpoint or modifiers.is_at_most_once or call.action.is_saved:
                return self.checkpoint(_STEP, modifiers.checkpoint_id or call.path)
        if checkpointer.policy.trigger is not None and not modifiers.is_ephemeral and checkpointer.is_due():
            return self.checkpoint(Reason.TRIGGER)
        return None

    async def save_failures(self) -> None:
        """Make failures durable that no checkpoint holds; the start of the attempt, if it is still to be saved, holds them."""
        attempted, results = self.checkpointer.attempted, self.checkpointer.history.results
        unsaved = results[0 if attempted is None else len(attempted.step_results) :]
        if self.start_saved and not all(each.success for each in unsaved):
            await self.emit_saved(await self.checkpoint(Reason.TRIGGER))

    async def save_start(self) -> None:
        """Save that the attempt has started, unless that is saved already."""
        if self.start_saved:
            return
        async with self._starting:  # of several that run in parallel, one saves it, and the others wait
            data = None if self.start_saved else await self._save_start()
        await self.emit_saved(data)

    async def _save_start(self) -> CheckpointData | FlowckptError:
        checkpointer = self.checkpointer
        self.write_down_waits(is_at_rest=False)
        if self.crash_count is not None:
            checkpointer.metadata = self.crash_count.written_to(
                checkpointer.metadata, results=len(checkpointer.history.results), partial=checkpointer.partial
            )
        data = await self._save(self.start_reason)
        self.start_saved = True
        return data

    async def mark_in_doubt(self, path: str) -> None:
        """Save that an at-most-once step starts; what an earlier call of it left behind no longer matters."""
        self.in_doubt.add(path)
        self.settle(path)
        await self.emit_saved(await self._group.saved(lambda: self._save(Reason.IN_DOUBT)))

    async def checkpoint_wait(self) -> None:
        """Make durable that a step waits while others still run."""
        await self.save_start()
        await self.emit_saved(await self.checkpoint(Reason.SUSPENDED, status=Status.RUNNING))

    async def suspend(self) -> FlowckptError | None:
        """Make durable that the whole run waits; save nothing if the record says so already.

        Returns:
            Why it could not be saved, if the run continues then.
        """
        self.write_down_waits(is_at_rest=True)
        if self.is_suspended():
            return None
        saved = await self._save(Reason.SUSPENDED)
        await self.emit_saved(saved)
        if isinstance(saved, FlowckptError):
            return saved
        self.start_saved = True
        return None

    def is_suspended(self) -> bool:
        """Return whether the last checkpoint says that the run waits, and nothing has changed since."""
        checkpointer = self.checkpointer
        last = checkpointer.attempted if self.start_saved else self.resumed_from
        return (
            last is not None
            and last.status is Status.SUSPENDED
            and len(last.step_results) == len(checkpointer.history.results)
            and last.metadata == checkpointer.metadata
            and last.in_flight == self.unfinished()
            and last.checkpoint_id == checkpointer.last_saved
        )

    def write_down_waits(self, *, is_at_rest: bool) -> None:
        """Put what the run waits for into its metadata, for the next checkpoint.

        Args:
            is_at_rest: whether everything in the run waits, or the attempt ends.
        """
        if self.waits.is_changed:
            self.checkpointer.metadata = self.waits.written_to(self.checkpointer.metadata, is_at_rest=is_at_rest)

    async def emit_saved(self, saved: CheckpointData | FlowckptError | None) -> None:
        """Emit the event of what `checkpoint` returned."""
        emit = self.notifier.emit
        if saved is None or emit is None:
            return
        run = self.checkpointer.run.workflow_id
        if isinstance(saved, FlowckptError):
            await emit(failed_event(run, self.checkpointer.attempted, saved))
        else:
            await emit(saved_event(run, saved, self.checkpointer.policy.took))

    def unfinished(self) -> tuple[str, ...]:
        """Return the steps whose start is recorded and whose end is not, of this attempt and of those before it."""
        return tuple(sorted(self.in_doubt | self.in_flight.keys())) if self.in_doubt or self.in_flight else ()

    def answers(self) -> tuple[Any, ...]:
        """Return the answers to recorded claims that no checkpoint holds yet."""
        reports, saved = self.judge.reports, self.judge.saved
        fresh = {path: report for path, report in reports.items() if saved.get(path) is not report}
        saved.update(fresh)
        return answer_documents(fresh)
