"""Resumes what is due, so many at a time: once, or again and again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, MutableSequence
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import attrs

from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.recoverer.child import Child, ChildEnd, why_not_here
from flowckpt.core.records import Status
from flowckpt.core.records.listing import RunInfo
from flowckpt.core.system.clock import Clock
from flowckpt.errors import CheckpointStorageError, FlowckptError, ReadOnlyStoreError
from flowckpt.maintenance.recovery import (
    DueRun,
    Outcome,
    Pauses,
    Recovered,
    due_runs,
    kept,
    look_again,
    note_stale,
    stale_note,
)
from flowckpt.stores.base import StoreBase

_BREATHER_SECONDS = 0.2
"""The pause of a watcher between an announcement and its look."""

_MOVED = "another process has resumed it"

Shuffle: TypeAlias = Callable[[MutableSequence[DueRun]], None]

_STOPS = {ExitCode.SIGINT, ExitCode.SIGTERM, ExitCode.SIGHUP}
_ASKS = {ExitCode.STALE, ExitCode.MISMATCH, ExitCode.IN_DOUBT}
"""How a resume stops to ask a person."""
_CRASHES = {ExitCode.STORE_FAILED, ExitCode.INTERNAL, ExitCode.OUTPUT_FAILED, ExitCode.OUTPUT_CLOSED}
_OUTCOMES_OF_STATUS = {
    Status.FAILED: Outcome.FAILED,
    Status.CANCELLED: Outcome.CANCELLED,
    Status.SUSPENDED: Outcome.SUSPENDED,
}


@attrs.define(eq=False)
class Recoverer:
    """Resumes the runs of a store that are due, each in a process of its own.

    Args:
        store: where they lie.
        clock: the time.
        new_child: makes the process of a run.
        jobs: how many run at the same time.
        workflows: only runs of these workflows; of any where it is empty.
        shuffle: mixes the runs, so that several recoverers seldom begin with the same one.
        on_start: told of each run before it is resumed.
        on_end: told what became of each.
        on_trouble: told that the store could not be read, or takes no write; a watcher continues looking.
        pauses: the runs that are not to be tried again yet; a watcher leaves them alone.
    """

    _store: StoreBase
    _clock: Clock
    _new_child: Callable[[DueRun], Child]
    jobs: int
    workflows: Collection[str]
    shuffle: Shuffle
    on_start: Callable[[DueRun], None]
    on_end: Callable[[Recovered], None]
    on_trouble: Callable[[CheckpointStorageError], None]
    pauses: Pauses = attrs.field(default=attrs.Factory(lambda self: Pauses(self._store, self._clock), takes_self=True))
    _children: dict[str, Child] = attrs.field(init=False, factory=dict)
    _tasks: dict[str, asyncio.Task[Recovered]] = attrs.field(init=False, factory=dict)
    _stop: asyncio.Event = attrs.field(init=False, factory=asyncio.Event)
    _refusal: ReadOnlyStoreError | None = attrs.field(init=False, default=None)
    _is_watching: bool = attrs.field(init=False, default=False)

    def stop(self) -> None:
        """Begin no more, and have the processes save their runs and end."""
        self._stop.set()
        for child in self._children.values():
            child.stop()

    async def once(self) -> list[Recovered]:
        """Resume what is due now, and return what became of each run.

        Raises:
            ReadOnlyStoreError: the store takes no write, so that no run can be resumed; those that are being resumed are
                waited for.
            CheckpointStorageError: the store could not be read.
        """
        runs = await due_runs(self._store, self._clock, workflows=self.workflows)
        self.shuffle(runs)
        found: list[Recovered] = []
        while runs or self._tasks:
            if self._stop.is_set() or self._is_refused:
                runs.clear()
            while runs and len(self._tasks) < self.jobs:
                self._begin(runs.pop())
            if self._tasks:
                await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
                found += self._ended()
        if self._refusal is not None:
            raise self._refusal
        return found

    async def watch(self, every_seconds: float) -> None:
        """Resume what is due until it is stopped."""
        self._is_watching = True
        stopping = asyncio.ensure_future(self._stop.wait())
        store = self._store
        try:
            async with store.announcements() as heard:
                while not self._stop.is_set():
                    if heard is not None:
                        heard.clear()
                    self._refusal = None
                    has_more = await self._begin_due()
                    waits: set[asyncio.Future[Any]] = {stopping}
                    if has_more:  # the next one begins as soon as one has ended
                        waits |= set(self._tasks.values())
                    await _first_of(waits, heard, every_seconds)
                    self._ended()
                    if self._is_refused and has_more:  # else each is tried as soon as one was refused
                        await _first_of({stopping}, None, every_seconds)
            if self._tasks:
                await asyncio.wait(self._tasks.values())
                self._ended()
        finally:
            stopping.cancel()

    async def _begin_due(self) -> bool:
        """Begin what is due and may be tried; return whether there is more than may run at the same time."""
        try:
            runs = await due_runs(self._store, self._clock, workflows=self.workflows)
        except CheckpointStorageError as error:
            self.on_trouble(error)
            return False
        todo = [run for run in runs if run.workflow_id not in self._tasks and await self._may_try(run)]
        self.pauses.looked([*(run.workflow_id for run in runs), *self._tasks])
        self.shuffle(todo)
        while todo and len(self._tasks) < self.jobs and not self._stop.is_set():
            self._begin(todo.pop())
        return bool(todo)

    def _begin(self, run: DueRun) -> None:
        self._tasks[run.workflow_id] = asyncio.create_task(self._recovered(run))

    def _ended(self) -> list[Recovered]:
        """Return what became of the runs that have come to an end since."""
        ended = [workflow_id for workflow_id, task in self._tasks.items() if task.done()]
        return [self._tasks.pop(workflow_id).result() for workflow_id in ended]

    async def _recovered(self, run: DueRun) -> Recovered:
        try:
            found = await self._tried(run)
        except CheckpointStorageError as error:
            found = _of(run, Outcome.DIED, error.message)
        except OSError as error:
            found = _of(run, Outcome.LEFT, f"its process could not be started: {error}")
        except Exception as error:  # whatever is wrong with this run, the others are processed
            found = _of(run, Outcome.LEFT, error.message if isinstance(error, FlowckptError) else f"{error!r:.200}")
        with contextlib.suppress(FlowckptError):  # a pause that cannot be recorded is kept here alone
            await self._note(run, found)
        self.on_end(found)
        return found

    async def _may_try(self, run: DueRun) -> bool:
        try:
            return await self.pauses.may_try(run)
        except FlowckptError:  # why it cannot be read is reported when it is tried
            return True

    async def _note(self, run: DueRun, found: Recovered) -> None:
        """Keep the pause of a run that got no further, and forget that of another one."""
        if found.exit_code is None:
            if found.outcome is not Outcome.SKIPPED:
                self.pauses.leave(run)
        elif found.outcome in (Outcome.LEFT, Outcome.DIED, Outcome.SUSPENDED):
            await self.pauses.end(run, has_died=found.outcome is Outcome.DIED)
        else:
            await self.pauses.clear(run.workflow_id)

    async def _tried(self, run: DueRun) -> Recovered:
        if run.damage:
            return _of(run, Outcome.LEFT, run.damage)
        if reason := why_not_here(run.info):
            return _of(run, Outcome.LEFT, reason)
        now = await look_again(self._store, self._clock, run)
        if now is None or self._stop.is_set():
            return _of(run, Outcome.SKIPPED, _MOVED if now is None else "")
        async with AsyncExitStack() as keeps:
            try:
                keeping = await keeps.enter_async_context(kept(self._store, now))
            except ReadOnlyStoreError as error:  # the store's trouble and not the run's: no process was started for it
                self._note_refusal(error)
                return _of(run, Outcome.SKIPPED)
            if keeping is None or self._stop.is_set():
                return _of(run, Outcome.SKIPPED, _MOVED if keeping is None else "")
            if self._is_watching and not await self._may_try(run):  # another recoverer was quicker
                return _of(run, Outcome.SKIPPED)
            await self.pauses.begin(run)
            noted = await stale_note(self._store, now.info)
            if not noted:
                self.on_start(now)
            child = self._children[run.workflow_id] = self._new_child(now)
            try:
                end = await child.end(keeping.give_up)
            finally:
                del self._children[run.workflow_id]
        info = await self._store.describe_run(run.workflow_id)
        outcome = _outcome(now, end, info, is_stopping=self._stop.is_set())
        attempt = run.info.attempt if info is None else info.attempt
        detail = end.detail if outcome.is_trouble else ""
        if outcome is Outcome.SKIPPED:
            detail = "it is gone" if info is None else _MOVED
        if end.exit_code < 0 and outcome is Outcome.DIED:
            detail = f"its process was killed by signal {-end.exit_code}" + (f"; {detail}" if detail else "")
        is_reported = False
        if info is not None and outcome is Outcome.LEFT and end.exit_code in _ASKS:
            is_reported = not await note_stale(self._store, self._clock, info, end.exit_code, detail)
        elif noted and outcome is not Outcome.SKIPPED:
            self.on_start(now)  # it was left out above, and the run has moved after all
        found = _of(run, outcome, detail, attempt=attempt, exit_code=end.exit_code)
        return attrs.evolve(found, is_reported=is_reported)

    @property
    def _is_refused(self) -> bool:
        """Whether the store took no write since this was last looked at."""
        return self._refusal is not None

    def _note_refusal(self, error: ReadOnlyStoreError) -> None:
        """Note that the store takes no write. A watcher reports it and continues: a standby may become the primary."""
        if self._is_watching and not self._is_refused:
            self.on_trouble(error)
        self._refusal = error


async def _first_of(waits: set[asyncio.Future[Any]], heard: asyncio.Event | None, seconds: float) -> None:
    """Wait until one of some futures is done, a message is heard of, or the time is over."""
    hearing = None if heard is None else asyncio.ensure_future(heard.wait())
    try:
        every = waits if hearing is None else {*waits, hearing}
        await asyncio.wait(every, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if hearing is not None and hearing.done():  # several messages at once are one reason to look
            await asyncio.wait(waits, timeout=min(seconds, _BREATHER_SECONDS), return_when=asyncio.FIRST_COMPLETED)
    finally:
        if hearing is not None:
            hearing.cancel()


def _outcome(run: DueRun, end: ChildEnd, info: RunInfo | None, *, is_stopping: bool) -> Outcome:
    """Return what became of a run, by how its process ended and by how it stands now."""
    code = end.exit_code
    if code == ExitCode.DONE:  # told to continue unsaved, a run can complete of which the store does not know it
        return Outcome.COMPLETED if info is None or info.status is Status.COMPLETED else Outcome.DIED
    if code == ExitCode.SUSPENDED:
        return Outcome.SUSPENDED
    if info is None or code in (ExitCode.LOCKED, ExitCode.NOT_FOUND):
        return Outcome.SKIPPED
    has_moved = info.attempt != run.info.attempt
    if code in _STOPS:
        return Outcome.CANCELLED if has_moved and info.status is Status.CANCELLED else Outcome.STOPPED
    if code < 0 or code in _CRASHES:
        return Outcome.STOPPED if is_stopping and code == -15 else Outcome.DIED
    with contextlib.suppress(KeyError):
        if has_moved:
            return _OUTCOMES_OF_STATUS[info.status]
    return Outcome.LEFT


def _of(
    run: DueRun, outcome: Outcome, detail: str = "", *, attempt: int | None = None, exit_code: int | None = None
) -> Recovered:
    info = run.info
    at = info.attempt if attempt is None else attempt
    return Recovered(info.workflow_id, info.workflow_name, run.why, outcome, at, detail, exit_code)
