"""What the generators and the steps of one attempt share: its record, what is open in it, and whom it tells."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from flowckpt.core.codec.results import append_result
from flowckpt.core.dsl import Step
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.records import CheckpointData, Reason, Status, StepResult
from flowckpt.core.replay import Replay, SetAside
from flowckpt.core.system import ids
from flowckpt.core.system.blocking import may_block
from flowckpt.core.system.clock import Clock
from flowckpt.core.system.lazy import LazyModule
from flowckpt.engine.rules.crash_loop import Deaths
from flowckpt.engine.rules.judge import Judge
from flowckpt.engine.rules.reasons import ResumePolicy, ReuseMode
from flowckpt.engine.run.checkpointer import Checkpointer
from flowckpt.engine.run.notify import Tell, answer_documents, failed_event, saved_event
from flowckpt.engine.run.progress import Desk
from flowckpt.engine.run.resumption import kept_history, with_reusable
from flowckpt.engine.run.verification import Verifying
from flowckpt.engine.values.superseded import RetryBudget, Superseded
from flowckpt.engine.values.waits import Waits
from flowckpt.errors import FlowckptError
from flowckpt.execution.interrupts import Interrupts
from flowckpt.execution.runner import StepRunner
from flowckpt.execution.world import World
from flowckpt.stores.base import CheckpointStore, NotesBeginnings

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from flowckpt import events
    from flowckpt.engine.run import cancel_requests as requests
    from flowckpt.engine.run import in_doubt as settlings
    from flowckpt.engine.run import inbox as inboxes
    from flowckpt.engine.values import result as results
    from flowckpt.engine.values.result import StepCounts
    from flowckpt.execution.executors.base import Given
else:
    events = LazyModule("flowckpt.events")
    requests = LazyModule("flowckpt.engine.run.cancel_requests")
    inboxes = LazyModule("flowckpt.engine.run.inbox")
    results = LazyModule("flowckpt.engine.values.result")
    settlings = LazyModule("flowckpt.engine.run.in_doubt")


# Steps that end at the same time share one checkpoint.
#
# A step that has ended and is to be durable asks for a save. While a save is going on, those who ask form a group: the
# first of them saves for all, as soon as its turn comes, and the others wait for what becomes of it. So a fan-out of a
# thousand durable children takes as many syncs as the disk has time for, and not a thousand.
#
# A group is closed before its checkpoint is made, and whoever joined it had its result in the history by then. So what is
# acknowledged to all of them holds the results of all of them.


T = TypeVar("T")


class GroupCommit:
    """Makes one save of those that are asked for while another goes on."""

    def __init__(self) -> None:
        self.is_saving = False
        """Whether a save is going on."""
        self._turn: asyncio.Future[None] | None = None
        self._group: asyncio.Future[bool] | None = None

    async def saved(self, save: Callable[[], Awaitable[T]]) -> T | None:
        """Save, or have it done by another; return what came of it, or None where another did it.

        Args:
            save: makes a checkpoint of everything that is recorded.

        Raises:
            FlowckptError: the save failed, whoever did it.
        """
        while self.is_saving:
            group = self._group
            if group is None:
                return await self._lead(save)
            if await asyncio.shield(group):
                return None
            # else the one that was to save for us was cancelled before it could
        self.is_saving = True
        try:
            return await save()
        finally:
            self._pass_on()

    async def _lead(self, save: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        group = self._group = loop.create_future()
        turn = self._turn = loop.create_future()
        is_done = False
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
            group.set_exception(error)
            group.exception()  # there may be nobody else in the group
            raise
        finally:
            if self._group is group:
                self._group = None
            if not group.done():
                group.set_result(is_done)
        return made

    def _pass_on(self) -> None:
        """Let the group that waits have its turn at once: else whoever has just saved would come first, for ever."""
        turn, self._turn = self._turn, None
        if turn is None:
            self.is_saving = False
        else:
            turn.set_result(None)


_log = logging.getLogger("flowckpt")

LOOK_NS = 1_000_000_000
"""So often the owner of a run looks for requests to cancel it, at most."""


@attrs.define(eq=False, repr=False)
class Attempt:
    """One attempt of a run, as all its generators and steps know it.

    Attributes:
        checkpointer: saves its checkpoints.
        clock: the time.
        random: returns numbers in [0, 1), for the jitter of retries.
        interrupts: the signals.
        new_uuid: makes UUIDs.
        verifying: checks what the steps claim.
        aside: recorded results that are no longer, or not yet again, part of the run.
        resumed_from: the checkpoint that the attempt goes on from; None for a new run.
        judge: says which recorded results are still true.
        superseded: results that no longer count, of steps that must look at them before they run again.
        in_doubt: the paths of steps whose start was recorded, and no end; all checkpoints repeat them until they have one.
        in_flight: the paths of the steps that are running.
        is_stolen: whether the run was taken although its owner may be alive.
        rolls_back: whether the steps are undone when it fails or is cancelled.
        is_suspended_by_stop: whether a signal leaves the run suspended and due, with nothing undone.
        executors: where steps can run besides here, by name; what is built in need not be given.
        tell: told what happens, or None where nobody hears it; an event that nobody hears is not made (0.8 µs).
        is_begun: whether it is saved that the attempt has begun: on a resume not before it has something to do.
        executed: how many steps were run.
        restored: how many results came from the store.
        failed: how many steps failed.
        replays: the generators that were begun, to be closed at the end.
        undone: the paths of those that were undone.
        undoable: steps that have a result and say how it is undone, by path.
        not_undoable: why nobody can undo a step that is to be undone all the same, by path.
        deaths: how often the run died where it died last; None where it is not resumed.
        budget: how many retries its steps may make.
        loop: the event loop that it runs in, once it runs.
        tries: which try runs now, by path; only of steps that are tried again.
        states_dropped: partial states that were let go, and not told yet.
        desk: where its steps hand in what they tell and save while they run.
        runner: does the steps.
        note_begun: leaves word of a step that begins, where the store can.
        waits: what its steps wait for.
        told_waits: the steps that wait and were told to have been started.
        cancelled_before: requests to cancel the run that were made until then count no more; None for all.
        look_at_ns: when to look for requests to cancel the run, by the clock's `elapsed_ns`.
        fan_outs: how many fan-outs are being run: while there are any, others go on beside a step that waits.
    """

    checkpointer: Checkpointer
    clock: Clock
    random: Callable[[], float]
    interrupts: Interrupts
    verifying: Verifying
    aside: SetAside
    new_uuid: Callable[[], UUID] = ids.new_uuid
    resumed_from: CheckpointData | None = None
    judge: Judge = attrs.field(factory=lambda: Judge(ResumePolicy()))
    superseded: Superseded = attrs.field(factory=Superseded)
    in_doubt: set[str] = attrs.field(factory=set)
    in_flight: set[str] = attrs.field(factory=set)
    is_stolen: bool = False
    tell: Tell | None = None
    rolls_back: bool = True
    is_suspended_by_stop: bool = False
    executors: Mapping[str, Given] = attrs.field(factory=dict)
    is_begun: bool = False
    executed: int = 0
    restored: int = 0
    failed: int = 0
    replays: list[Replay] = attrs.field(factory=list)
    undoable: dict[str, Step[Any]] = attrs.field(factory=dict)
    not_undoable: dict[str, str] = attrs.field(factory=dict)
    undone: list[str] = attrs.field(factory=list)
    deaths: Deaths | None = None
    budget: RetryBudget = attrs.field(factory=RetryBudget)
    loop: asyncio.AbstractEventLoop | None = None
    tries: dict[str, int] = attrs.field(factory=dict)
    states_dropped: list[events.StepStateDropped] = attrs.field(factory=list)
    desk: Desk = attrs.field(init=False, default=attrs.Factory(Desk, takes_self=True))
    runner: StepRunner = attrs.field(
        init=False,
        default=attrs.Factory(lambda self: _runner(self), takes_self=True),  # noqa: PLW0108 - it stands below
    )
    note_begun: Callable[[str, str], None] | None = attrs.field(
        init=False, default=attrs.Factory(lambda self: _note_begun(self.checkpointer.store), takes_self=True)
    )
    waits: Waits = attrs.field(factory=Waits)
    told_waits: set[str] = attrs.field(init=False, factory=set)
    fan_outs: int = attrs.field(init=False, default=0)
    cancelled_before: datetime | None = attrs.field(init=False, default=None)
    look_at_ns: int = attrs.field(
        init=False, default=attrs.Factory(lambda it: it.clock.elapsed_ns() + LOOK_NS, takes_self=True)
    )
    _inbox: inboxes.Inbox | None = attrs.field(init=False, default=None)
    _beginning: asyncio.Lock = attrs.field(init=False, factory=asyncio.Lock)
    _group: GroupCommit = attrs.field(init=False, factory=GroupCommit)
    _told_reports: dict[str, Any] = attrs.field(init=False, factory=dict)

    @property
    def workflow_id(self) -> str:
        """The run."""
        return self.checkpointer.workflow_id

    @property
    def number(self) -> int:
        """The attempt's number."""
        return self.checkpointer.attempt

    @property
    def secrets(self) -> KnownSecrets:
        """The secrets of the run, those included that its steps return."""
        return self.judge.secrets

    @property
    def counts(self) -> StepCounts:
        """Its steps, counted."""
        return results.StepCounts(self.executed, self.restored, self.failed)

    @property
    def inbox(self) -> inboxes.Inbox:
        """The messages for the run."""
        if self._inbox is None:
            checkpointer = self.checkpointer
            self._inbox = inboxes.Inbox(
                checkpointer.store, self.workflow_id, self.clock, self.waits, checkpointer.history
            )
        return self._inbox

    @property
    def cancel_requests(self) -> requests.CancelRequests:
        """What was left in the store for whoever runs it."""
        store, after = self.checkpointer.store, self.cancelled_before
        return requests.CancelRequests(store, self.workflow_id, self.clock, self.interrupts, after)

    async def look_for_cancel(self) -> None:
        """Look for a request to cancel the run, and stop it where there is one."""
        self.look_at_ns = self.clock.elapsed_ns() + LOOK_NS
        await self.cancel_requests.look()

    def settling(self) -> settlings.Settling:
        """Return what settles a step that was started or done before."""
        return settlings.Settling(
            self.workflow_id,
            self.number,
            self.judge.policy,
            self.superseded,
            self.in_doubt,
            self.runner,
            self.verifying,
            self.is_stolen,
        )

    async def refuse_doubt(self, step: Step[Any], path: str) -> None:
        """Refuse to run anything where a step was started that must not be done twice, and nobody knows whether it was.

        Args:
            step: the step.
            path: its path.

        Raises:
            StepInDoubtError: nobody can tell whether it was done.
        """
        if path in self.in_doubt:
            await self.settling().refuse_doubt(step, path)

    # --- results ---------------------------------------------------------------------------------------------------

    def keep(self, result: StepResult) -> None:
        """Take a result back that was let go and still holds."""
        append_result(self.checkpointer.history, result)
        self.settle(result.path)

    def settle(self, path: str) -> None:
        """Forget the earlier result of a step that has one again."""
        if path in self.superseded:
            self.superseded.settle(path)
            self._write_down_superseded()

    def let_go(self) -> None:
        """Take the results that were dropped, and those that are still kept back, out of the history."""
        if not self.aside.dropped:
            return
        checkpointer, spare = self.checkpointer, self.aside.spare
        if checkpointer.partial and self.judge.policy.reuse is ReuseMode.PREFIX:
            for path in [*checkpointer.partial]:
                self.drop_state(path, f"upstream: {self.aside.dropped[0].path} runs again before it")
        self.superseded.add(self.aside.dropped)
        self.waits.let_go(self.aside.dropped, takes_behind=self.judge.policy.reuse is ReuseMode.PREFIX)
        self.superseded.add(spare.values())  # a resume that does not ask for them must not forget them
        if not self.is_begun:
            dropped = {result.path for result in self.aside.dropped}
            checkpointer.history = kept_history(checkpointer.history.view(), dropped | spare.keys())
            if spare and self.resumed_from is not None:
                checkpointer.metadata = with_reusable(checkpointer.metadata, self.resumed_from.attempt, dropped)
        self.aside.dropped.clear()
        self._write_down_superseded()

    def drop_state(self, path: str, reason: str) -> None:
        """Let go of what a step saved of itself, which is told before anything more is run.

        Args:
            path: the step.
            reason: why.
        """
        if self.checkpointer.partial.pop(path, None) is not None:
            _log.warning("run %s: what step %s had saved of itself is dropped: %s", self.workflow_id, path, reason)
            self.states_dropped.append(events.StepStateDropped(self.workflow_id, path, reason))

    async def tell_states_dropped(self) -> None:
        """Tell which partial states were let go."""
        dropped, self.states_dropped = self.states_dropped, []
        if self.tell is not None:
            for event in dropped:
                await self.tell(event)

    def _write_down_superseded(self) -> None:
        self.checkpointer.metadata = self.superseded.written_to(self.checkpointer.metadata)

    # --- saving ----------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Save that the attempt has begun, if that is not saved yet."""
        if not self.is_begun:
            async with self._beginning:  # of several that run beside each other, one saves it, and the others wait
                data = await self._save_beginning()
            if data is not None and self.tell is not None:
                await self.tell(saved_event(self.workflow_id, data))

    async def _save_beginning(self) -> CheckpointData | None:
        if self.is_begun:
            return None
        self.write_down_waits()
        checkpointer = self.checkpointer
        if self.deaths is not None:
            checkpointer.metadata = self.deaths.written_to(
                checkpointer.metadata, results=len(checkpointer.history.results), partial=checkpointer.partial
            )
        data = await self.checkpointer.save(Reason.STARTED, in_flight=self.unended(), evidence=self.answers())
        self.is_begun = True
        return data

    async def mark(self, path: str) -> None:
        """Save that a step begins that must not be done twice; what an earlier call left behind is no question now."""
        self.in_doubt.add(path)
        self.settle(path)
        self.write_down_waits()
        data = await self._group.saved(lambda: self.checkpointer.save(Reason.IN_DOUBT, in_flight=self.unended()))
        if data is not None and self.tell is not None:
            await self.tell(saved_event(self.workflow_id, data))

    def save(
        self, reason: Reason, name: str | None = None
    ) -> Coroutine[Any, Any, CheckpointData | FlowckptError | None]:
        """Make durable what is recorded; return the checkpoint, or why it could not be where the run goes on then.

        Args:
            reason: why.
            name: what to call the checkpoint.

        Returns:
            None where what was to be saved went into a checkpoint that somebody else asked for at the same time.
        """
        if may_block() and not self._group.is_saving:  # nothing else runs in the loop: nobody could join (0.5 µs)
            checkpointer = self.checkpointer
            if self.waits.is_changed or self.in_doubt or self.in_flight or checkpointer.goes_on_unsaved:
                return self._saved(reason, name)
            return checkpointer.save(reason, name)
        return self._group.saved(lambda: self._saved(reason, name))

    def _saved(
        self, reason: Reason, name: str | None, status: Status | None = None
    ) -> Coroutine[Any, Any, CheckpointData | FlowckptError]:
        if self.waits.is_changed:
            self.write_down_waits()
        checkpointer = self.checkpointer
        in_flight = self.unended() if self.in_doubt or self.in_flight else ()
        if not checkpointer.goes_on_unsaved:
            return checkpointer.save(reason, name, in_flight=in_flight, status=status)
        return checkpointer.save_or_go_on(reason, name, in_flight=in_flight, status=status)

    async def save_wait(self) -> None:
        """Make durable that a step waits, while others beside it go on."""
        await self.begin()
        await self.tell_saved(await self._group.saved(lambda: self._saved(Reason.SUSPENDED, None, Status.RUNNING)))

    async def rest(self) -> FlowckptError | None:
        """Make durable that the whole run waits; where the record says so already, nothing is saved.

        Returns:
            Why it could not be saved where the run goes on then; None where the record says it.
        """
        self.write_down_waits(is_at_rest=True)
        last = self.checkpointer.attempted if self.is_begun else self.resumed_from
        if (
            last is not None
            and last.status is Status.SUSPENDED
            and len(last.step_results) == len(self.checkpointer.history.results)
            and last.metadata == self.checkpointer.metadata
            and last.in_flight == self.unended()
            and last.checkpoint_id == self.checkpointer.last_saved
        ):
            return None
        evidence = () if self.is_begun else self.answers()
        saved = await self.checkpointer.save_or_go_on(Reason.SUSPENDED, in_flight=self.unended(), evidence=evidence)
        await self.tell_saved(saved)
        if isinstance(saved, FlowckptError):
            return saved
        self.is_begun = True
        return None

    def write_down_waits(self, *, is_at_rest: bool = False) -> None:
        """Put what the run waits for into its metadata, for the next checkpoint.

        Args:
            is_at_rest: whether everything in the run waits, or the attempt ends.
        """
        if self.waits.is_changed:
            self.checkpointer.metadata = self.waits.written_to(self.checkpointer.metadata, is_at_rest=is_at_rest)

    async def tell_saved(self, saved: CheckpointData | FlowckptError | None) -> None:
        """Tell of a save what `save` returned of it."""
        if saved is None or self.tell is None:
            return
        if isinstance(saved, FlowckptError):
            await self.tell(failed_event(self.workflow_id, self.checkpointer.attempted, saved))
        else:
            await self.tell(saved_event(self.workflow_id, saved))

    def unended(self) -> tuple[str, ...]:
        """Return the steps whose start is known and whose end is not: of this attempt, and of those before it."""
        return tuple(sorted(self.in_doubt | self.in_flight))

    def answers(self) -> tuple[Any, ...]:
        """Return the answers to recorded claims that no checkpoint holds yet."""
        reports, told = self.judge.reports, self._told_reports
        fresh = {path: report for path, report in reports.items() if told.get(path) is not report}
        told.update(fresh)
        return answer_documents(fresh)


def _runner(attempt: Attempt) -> StepRunner:
    world = World(attempt.clock, attempt.random, attempt.new_uuid)
    return StepRunner(attempt.interrupts, attempt.verifying, attempt.secrets, world, attempt.executors)


def _note_begun(store: CheckpointStore) -> Callable[[str, str], None] | None:
    return store.note_begun if isinstance(store, NotesBeginnings) else None  # asking takes 2 µs
