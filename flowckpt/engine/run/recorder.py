"""The record of one attempt: the results of its steps, the unfinished steps, and the saves that make them durable."""

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
from flowckpt.engine.run.resumption import RUNNERS, add_reusable, trim_history
from flowckpt.engine.values.superseded import LEAVES_EARLIER, STARTED_ONCE, Superseded
from flowckpt.engine.values.waits import Waits
from flowckpt.errors import FlowckptError, StepFailedError
from flowckpt.execution.current_step import StepCall
from flowckpt.execution.python import keep_arguments
from flowckpt.execution.runner import Outcome

_log = logging.getLogger("flowckpt")

_STEP = Reason.STEP  # accessing a member of an enum takes 60 ns
_ATOMS = frozenset({int, str, float, bool, type(None)})
"""Types of immutable trees that decode to themselves: they are recorded without a wrapper."""

T = TypeVar("T")


class GroupCommit:
    """Combines the saves that are requested while another save is in progress.

    Steps that request a save meanwhile form a group: the first of them saves for all as soon as the present save has
    ended, and the others wait for the outcome. So a fan-out of a thousand durable children needs only as many syncs as
    the disk has time for, not a thousand.

    A group is closed before its checkpoint is created. By then every member has its result in the history, so the
    checkpoint acknowledged to all of them contains the results of all of them.
    """

    def __init__(self) -> None:
        self.is_saving = False
        """Whether a save is in progress."""
        self._turn: asyncio.Future[None] | None = None
        self._group: list[asyncio.Future[bool]] | None = None  # the futures of all members but the first

    async def save_once(self, save: Callable[[], Awaitable[T]]) -> T | None:
        """Save, or have another member of the group save; return what `save` returned, or None if another saved.

        Raises:
            FlowckptError: the save failed, also if another step made it.
        """
        while self.is_saving:
            group = self._group
            if group is None:
                return await self._lead(save)
            waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            # one shared future, in a shield for each member, would be a third of a waiting step's work
            group.append(waiter)
            if await waiter:
                return None
            # else the group's first member was cancelled before it could save
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
            for waiter in [each for each in group if not each.done()]:  # a done future belongs to a cancelled member
                if failure is None:
                    waiter.set_result(is_done)
                else:
                    waiter.set_exception(failure)
                    waiter.exception()  # mark it as retrieved: its member may be cancelled before it looks
        return made

    def _pass_on(self) -> None:
        """Let the waiting group save next: otherwise the task that has just saved would always come first."""
        turn, self._turn = self._turn, None
        if turn is None:
            self.is_saving = False
        else:
            turn.set_result(None)


_NOTHING_MORE: Mapping[str, Any] = MappingProxyType({})


class StepEnd:
    """How a step ended, after all its tries.

    Attributes:
        outcome: the outcome of the last try.
        failure: the failure to record; None if the step succeeded.
        started_at: when the step started.
        duration_ms: how long it ran.
        tries: how often it was tried.
        marks: its marks, except the one for steps that can be undone.
        is_adopted: whether its evidence proved it done, so that it was not run.
        taken_from: the run that the result was taken from; empty otherwise.
        more: the non-empty fields of its result that few steps have, such as `signal` and `figures`.
    """

    __slots__ = (
        "duration_ms",
        "failure",
        "is_adopted",
        "marks",
        "more",
        "outcome",
        "started_at",
        "taken_from",
        "tries",
    )

    def __init__(self, outcome: Outcome, failure: StepError | None, started_at: datetime, duration_ms: float) -> None:
        self.outcome = outcome
        self.failure = failure
        self.started_at = started_at
        self.duration_ms = duration_ms
        self.tries = 1
        self.marks: tuple[str, ...] = ()
        self.is_adopted = False
        self.taken_from = ""
        self.more: Mapping[str, Any] = _NOTHING_MORE


@attrs.define(eq=False, repr=False)
class Undo:
    """The steps to undo if the run fails or is cancelled.

    Attributes:
        compensate: whether to undo the steps then.
        undoable: finished steps with a compensation, by path.
        not_undoable: why steps cannot be undone, by path.
        undone: the paths of undone steps.
        failures: the failed compensations of steps that a race stopped.
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
        checkpointer: saves the checkpoints and holds the history.
        notifier: emits the events of saves.
        judge: has the verdicts on recorded claims, which the first checkpoint records.
        aside: recorded results that no longer count, or may be reused later.
        waits: the pending waits.
        undo: the steps to undo if the run fails or is cancelled.
        superseded: results that no longer count, of steps that must check them before they run again.
        in_doubt: the paths of steps with a recorded start and no end; every checkpoint repeats them until they end.
        resumed_from: the checkpoint that the attempt resumes; None for a new run.
        crash_count: how often the run crashed at its last crash site; None for a new run.
        note_started: notes the start of a step in the store, as a hint; None if the store keeps no such notes.
        in_flight: the current try of each running step, by path.
        is_start_saved: whether the start of the attempt is saved; a resume saves it once it has something to do.
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
    is_start_saved: bool = attrs.field(init=False, default=False)
    _starting: asyncio.Lock = attrs.field(init=False, factory=asyncio.Lock)
    _group: GroupCommit = attrs.field(init=False, factory=GroupCommit)

    @property
    def start_reason(self) -> Reason:
        """The reason of the checkpoint that records the start of the attempt."""
        is_generation = self.resumed_from is None and generation.KEY in self.checkpointer.metadata
        return Reason.CONTINUED if is_generation else Reason.STARTED

    # --- results ---------------------------------------------------------------------------------------------------

    def record(self, call: StepCall, end: StepEnd) -> None:
        """Count a step that has ended, and append its result to the history; this makes nothing durable yet."""
        step, path, identity, checkpointer = call.step, call.path, call.identity, self.checkpointer
        action, modifiers, failure, outcome = call.action, call.modifiers, end.failure, end.outcome
        marks, more = end.marks, end.more
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
                self.undo.undoable[path] = keep_arguments(step)
        fields = {  # only those that differ from their defaults
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
        if (earlier := self.superseded) and path in earlier and LEAVES_EARLIER.isdisjoint(marks):
            self._replace_superseded(step, path, has_failed=failure is not None)

    def restore(self, result: StepResult) -> None:
        """Put a result that was set aside and is still valid back into the history."""
        append_result(self.checkpointer.history, result)
        self.forget_superseded(result.path)

    def _replace_superseded(self, step: Step[Any], path: str, *, has_failed: bool) -> None:
        """Forget the earlier result of a step that ran again, unless its effect is still there and can be undone."""
        if has_failed and self.superseded.is_only_undoable(path):
            self.undo.undoable[path] = keep_arguments(step)
        else:
            self.forget_superseded(path)

    def forget_superseded(self, path: str) -> None:
        """Forget the earlier result of a step that has a new one."""
        if self.superseded.pop(path, None) is not None:
            self._write_down_superseded()

    def list_doubts(self) -> dict[str, str]:
        """Return the at-most-once steps that may have been done; see `Superseded.list_doubts`."""
        is_any = self.in_doubt or self.superseded
        return self.superseded.list_doubts(self.checkpointer.metadata, self.in_doubt) if is_any else {}

    def drop_stale(self) -> None:
        """Remove dropped results, and results set aside for reuse, from the history."""
        if not self.aside.dropped:
            return
        checkpointer, spare = self.checkpointer, self.aside.spare
        is_prefix = self.judge.policy.reuse is ReuseMode.PREFIX
        if checkpointer.partial and is_prefix:
            for path in [*checkpointer.partial]:
                self.drop_state(path, f"upstream: {self.aside.dropped[0].path} runs again before it")
        is_decided = self.judge.policy.reruns_what_follows
        undone = undone_paths((*self.aside.dropped, *spare.values()))
        self.superseded.add((each for each in self.aside.dropped if each.path not in undone), is_decided=is_decided)
        self.waits.drop_stale(self.aside.dropped, takes_later=is_prefix)
        self.superseded.add(  # kept for later resumes
            (each for each in spare.values() if each.path not in undone), is_decided=is_decided
        )
        if not self.is_start_saved:
            dropped = {result.path for result in self.aside.dropped}
            checkpointer.history = trim_history(checkpointer.history.view(), dropped | spare.keys())
            if spare and self.resumed_from is not None:
                checkpointer.metadata = add_reusable(checkpointer.metadata, self.resumed_from.attempt, dropped)
        self.aside.dropped.clear()
        self._write_down_superseded()

    def drop_state(self, path: str, reason: str) -> None:
        """Drop the saved state of a step; the event is emitted before the next step runs."""
        checkpointer = self.checkpointer
        if checkpointer.partial.pop(path, None) is not None:
            run = checkpointer.run.workflow_id
            _log.warning("run %s: the saved state of step %s is dropped: %s", run, path, reason)
            self.notifier.dropped_states.append(events.StepStateDropped(run, path, reason))

    def _write_down_superseded(self) -> None:
        self.checkpointer.metadata = self.superseded.add_to_metadata(self.checkpointer.metadata)

    # --- saving ----------------------------------------------------------------------------------------------------

    def checkpoint(
        self, reason: Reason, name: str | None = None, *, status: Status | None = None
    ) -> Coroutine[Any, Any, CheckpointData | FlowckptError | None]:
        """Save a checkpoint, and return it; if the save failed and the run continues anyway, return the error.

        Args:
            reason: why the checkpoint is saved.
            name: the id of the checkpoint.
            status: the status of the run; by default implied by the reason.

        Returns:
            None if a checkpoint that another step requested at the same time covers this one.

        Raises:
            FlowckptError: the save failed, and the run must stop. The start of an attempt and the mark of an
                at-most-once step always must be saved before the run continues.
        """
        if not may_block() or self._group.is_saving:
            return self._group.save_once(lambda: self._save(reason, name, status))
        checkpointer = self.checkpointer  # nothing else runs in the loop, so no other save could join
        if self.waits.is_changed or self.in_doubt or self.in_flight or checkpointer.policy.continue_on_save_error:
            return self._save(reason, name, status)
        return checkpointer.save(reason, name, status=status)

    async def _save(
        self, reason: Reason, name: str | None = None, status: Status | None = None
    ) -> CheckpointData | FlowckptError:
        self.write_down_waits(is_at_rest=False)
        checkpointer = self.checkpointer
        is_first = not self.is_start_saved and reason in (self.start_reason, Reason.SUSPENDED)
        in_flight, evidence = self.list_unfinished(), self.take_unsaved_verdicts() if is_first else ()
        save = checkpointer.save if reason in (self.start_reason, Reason.IN_DOUBT) else checkpointer.save_or_continue
        return await save(reason, name, in_flight=in_flight, evidence=evidence, status=status)

    def step_save(
        self, call: StepCall, end: StepEnd
    ) -> Coroutine[Any, Any, CheckpointData | FlowckptError | None] | None:
        """Return the save after a step; None if the step has no checkpoint and the trigger asks for none."""
        modifiers, checkpointer = call.modifiers, self.checkpointer
        if end.failure is None:
            if checkpointer.partial:
                checkpointer.partial.pop(call.path, None)  # drop a state saved meanwhile by a thread of the ended step
            if modifiers.has_checkpoint or modifiers.is_at_most_once or call.action.is_saved:
                return self.checkpoint(_STEP, modifiers.checkpoint_id or call.path)
        if checkpointer.policy.trigger is not None and not modifiers.is_ephemeral and checkpointer.is_due():
            return self.checkpoint(Reason.TRIGGER)
        return None

    async def save_failures(self) -> None:
        """Make unsaved failures durable; the unsaved start of an attempt will include them."""
        attempted, results = self.checkpointer.attempted, self.checkpointer.history.results
        unsaved = results[0 if attempted is None else len(attempted.step_results) :]
        if self.is_start_saved and not all(each.success for each in unsaved):
            await self.emit_saved(await self.checkpoint(Reason.TRIGGER))

    async def save_start(self) -> None:
        """Save the start of the attempt, unless it is already saved."""
        if self.is_start_saved:
            return
        async with self._starting:  # of several parallel steps, one saves and the others wait
            data = None if self.is_start_saved else await self._save_start()
        await self.emit_saved(data)

    async def _save_start(self) -> CheckpointData | FlowckptError:
        checkpointer = self.checkpointer
        self.write_down_waits(is_at_rest=False)
        if self.crash_count is not None:
            checkpointer.metadata = self.crash_count.add_to_metadata(
                checkpointer.metadata, results=len(checkpointer.history.results), partial=checkpointer.partial
            )
        data = await self._save(self.start_reason)
        self.is_start_saved = True
        return data

    async def mark_in_doubt(self, call: StepCall) -> None:
        """Save that an at-most-once step starts; the result of an earlier call no longer matters."""
        path, metadata = call.path, self.checkpointer.metadata
        self.in_doubt.add(path)
        once = {each: name for each, name in metadata.get(STARTED_ONCE, {}).items() if each in self.in_doubt}
        once[path] = call.action.function_name
        self.checkpointer.metadata = metadata = {**metadata, STARTED_ONCE: once}
        if path in (runners := metadata.get(RUNNERS, ())):  # this process runs it now
            others = {each: processes for each, processes in runners.items() if each != path}
            self.checkpointer.metadata = {**metadata, RUNNERS: others}
        self.forget_superseded(path)
        await self.emit_saved(await self._group.save_once(lambda: self._save(Reason.IN_DOUBT)))

    async def checkpoint_wait(self) -> None:
        """Make a wait durable while other steps still run."""
        await self.save_start()
        await self.emit_saved(await self.checkpoint(Reason.SUSPENDED, status=Status.RUNNING))

    async def suspend(self) -> FlowckptError | None:
        """Make the suspension of the run durable; save nothing if it is already recorded.

        Returns:
            The error, if the save failed and the run continues anyway.
        """
        self.write_down_waits(is_at_rest=True)
        if self.is_suspended():
            return None
        saved = await self._save(Reason.SUSPENDED)
        await self.emit_saved(saved)
        if isinstance(saved, FlowckptError):
            return saved
        self.is_start_saved = True
        return None

    def is_suspended(self) -> bool:
        """Return whether the last checkpoint records the suspension and nothing has changed since."""
        checkpointer = self.checkpointer
        last = checkpointer.attempted if self.is_start_saved else self.resumed_from
        return (
            last is not None
            and last.status is Status.SUSPENDED
            and len(last.step_results) == len(checkpointer.history.results)
            and last.metadata == checkpointer.metadata
            and last.in_flight == self.list_unfinished()
            and last.checkpoint_id == checkpointer.last_saved
        )

    def write_down_waits(self, *, is_at_rest: bool) -> None:
        """Write the pending waits into the metadata, for the next checkpoint.

        Args:
            is_at_rest: whether every step of the run waits, or the attempt ends.
        """
        if self.waits.is_changed:
            self.checkpointer.metadata = self.waits.add_to_metadata(self.checkpointer.metadata, is_at_rest=is_at_rest)

    async def emit_saved(self, saved: CheckpointData | FlowckptError | None) -> None:
        """Emit the event for a value that `checkpoint` returned."""
        emit = self.notifier.emit
        if saved is None or emit is None:
            return
        run = self.checkpointer.run.workflow_id
        if isinstance(saved, FlowckptError):
            await emit(failed_event(run, self.checkpointer.attempted, saved))
        else:
            await emit(saved_event(run, saved, self.checkpointer.policy.took))

    def list_unfinished(self) -> tuple[str, ...]:
        """Return the steps of this and earlier attempts with a recorded start and no recorded end."""
        return tuple(sorted(self.in_doubt | self.in_flight.keys())) if self.in_doubt or self.in_flight else ()

    def take_unsaved_verdicts(self) -> tuple[Any, ...]:
        """Return the verdicts on recorded claims that no checkpoint holds yet; the caller saves them, or the run ends."""
        reports, saved = self.judge.reports, self.judge.saved
        fresh = {path: report for path, report in reports.items() if saved.get(path) is not report}
        saved.update(fresh)
        return answer_documents(fresh)
