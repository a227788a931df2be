"""Resumes due runs, a limited number in parallel: once, or until it is stopped."""

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
    claim_run,
    find_due_run,
    find_due_runs,
    note_stale,
    read_stale_note,
)
from flowckpt.stores.base import StoreBase

_DEBOUNCE_SECONDS = 0.2
"""How long a watcher waits after an announcement, so that several announcements cause one check."""

_RESUMED_ELSEWHERE = "another process has resumed it"

Shuffle: TypeAlias = Callable[[MutableSequence[DueRun]], None]

_STOP_CODES = {ExitCode.SIGINT, ExitCode.SIGTERM, ExitCode.SIGHUP}
_DECISION_CODES = {ExitCode.STALE, ExitCode.MISMATCH, ExitCode.IN_DOUBT}
"""Exit codes of a resume that a person must decide about."""
_CRASH_CODES = {ExitCode.STORE_FAILED, ExitCode.INTERNAL, ExitCode.OUTPUT_FAILED, ExitCode.OUTPUT_CLOSED}
_OUTCOMES_OF_STATUS = {
    Status.FAILED: Outcome.FAILED,
    Status.CANCELLED: Outcome.CANCELLED,
    Status.SUSPENDED: Outcome.SUSPENDED,
}


@attrs.define(eq=False)
class Recoverer:
    """Resumes the due runs of a store, each in a process of its own.

    Args:
        store: the store of the runs.
        clock: the time.
        new_child: creates the process of a run.
        jobs: how many runs are resumed in parallel.
        workflows: only runs of these workflows; all by default.
        shuffle: shuffles the runs, so that several recoverers rarely start with the same one.
        on_start: called with each run before it is resumed.
        on_end: called with the outcome of each run.
        on_trouble: called if the store could not be read or written; a watcher continues.
        pauses: the runs that must not be tried again yet; a watcher skips them.
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
        """Start no more runs, and ask the processes to save their runs and end."""
        self._stop.set()
        for child in self._children.values():
            child.stop()

    async def once(self) -> list[Recovered]:
        """Resume the runs that are due now, and return their outcomes.

        Raises:
            ReadOnlyStoreError: the store cannot be written, so no run can be resumed; raised once the running processes
                have ended.
            CheckpointStorageError: the store could not be read.
        """
        runs = await find_due_runs(self._store, self._clock, workflows=self.workflows)
        self.shuffle(runs)
        results: list[Recovered] = []
        while runs or self._tasks:
            if self._stop.is_set() or self._is_refused:
                runs.clear()
            while runs and len(self._tasks) < self.jobs:
                self._start(runs.pop())
            if self._tasks:
                await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
                results += self._collect_ended()
        if self._refusal is not None:
            raise self._refusal
        return results

    async def watch(self, every_seconds: float) -> None:
        """Resume due runs until `stop` is called."""
        self._is_watching = True
        stopping = asyncio.ensure_future(self._stop.wait())
        store = self._store
        try:
            async with store.announcements() as heard:
                while not self._stop.is_set():
                    if heard is not None:
                        heard.clear()
                    self._refusal = None
                    has_more = await self._start_due()
                    waits: set[asyncio.Future[Any]] = {stopping}
                    if has_more:  # the next run starts as soon as one has ended
                        waits |= set(self._tasks.values())
                    await _wait_for_first(waits, heard, every_seconds)
                    self._collect_ended()
                    if self._is_refused and has_more:  # otherwise each run would be tried as soon as one was refused
                        await _wait_for_first({stopping}, None, every_seconds)
            if self._tasks:
                await asyncio.wait(self._tasks.values())
                self._collect_ended()
        finally:
            stopping.cancel()

    async def _start_due(self) -> bool:
        """Start due runs without a pause, up to `jobs`; return whether more are due."""
        try:
            runs = await find_due_runs(self._store, self._clock, workflows=self.workflows)
        except CheckpointStorageError as error:
            self.on_trouble(error)
            return False
        todo = [run for run in runs if run.workflow_id not in self._tasks and await self._may_try(run)]
        self.pauses.forget_all_but([*(run.workflow_id for run in runs), *self._tasks])
        self.shuffle(todo)
        while todo and len(self._tasks) < self.jobs and not self._stop.is_set():
            self._start(todo.pop())
        return bool(todo)

    def _start(self, run: DueRun) -> None:
        self._tasks[run.workflow_id] = asyncio.create_task(self._recover(run))

    def _collect_ended(self) -> list[Recovered]:
        """Return the outcomes of the runs that have ended since the last call."""
        ended = [workflow_id for workflow_id, task in self._tasks.items() if task.done()]
        return [self._tasks.pop(workflow_id).result() for workflow_id in ended]

    async def _recover(self, run: DueRun) -> Recovered:
        try:
            result = await self._try(run)
        except CheckpointStorageError as error:
            result = _make_result(run, Outcome.DIED, error.message)
        except OSError as error:
            result = _make_result(run, Outcome.LEFT, f"its process could not be started: {error}")
        except Exception as error:  # one broken run must not stop the others
            message = error.message if isinstance(error, FlowckptError) else f"{error!r:.200}"
            result = _make_result(run, Outcome.LEFT, message)
        with contextlib.suppress(FlowckptError):  # a pause that cannot be recorded is kept only in memory
            await self._record_pause(run, result)
        self.on_end(result)
        return result

    async def _may_try(self, run: DueRun) -> bool:
        try:
            return await self.pauses.may_try(run)
        except FlowckptError:  # the try will report why the pause cannot be read
            return True

    async def _record_pause(self, run: DueRun, result: Recovered) -> None:
        """Record the pause of a run that made no progress, and clear that of any other run."""
        if result.exit_code is None:
            if result.outcome is not Outcome.SKIPPED:
                self.pauses.leave(run)
        elif result.outcome in (Outcome.LEFT, Outcome.DIED, Outcome.SUSPENDED):
            await self.pauses.end(run, has_died=result.outcome is Outcome.DIED)
        else:
            await self.pauses.clear(run.workflow_id)

    async def _try(self, run: DueRun) -> Recovered:
        if run.damage:
            return _make_result(run, Outcome.LEFT, run.damage)
        if reason := why_not_here(run.info):
            return _make_result(run, Outcome.LEFT, reason)
        due = await find_due_run(self._store, self._clock, run)
        if due is None or self._stop.is_set():
            return _make_result(run, Outcome.SKIPPED, _RESUMED_ELSEWHERE if due is None else "")
        async with AsyncExitStack() as keeps:
            try:
                keeping = await keeps.enter_async_context(claim_run(self._store, due))
            except ReadOnlyStoreError as error:  # a fault of the store, not of the run: no process was started
                self._note_refusal(error)
                return _make_result(run, Outcome.SKIPPED)
            if keeping is None or self._stop.is_set():
                return _make_result(run, Outcome.SKIPPED, _RESUMED_ELSEWHERE if keeping is None else "")
            if self._is_watching and not await self._may_try(run):  # another recoverer was faster
                return _make_result(run, Outcome.SKIPPED)
            await self.pauses.begin(run)
            noted = await read_stale_note(self._store, due.info)
            if not noted:
                self.on_start(due)
            child = self._children[run.workflow_id] = self._new_child(due)
            try:
                end = await child.resume(keeping.release)
            finally:
                del self._children[run.workflow_id]
        info = await self._store.describe_run(run.workflow_id)
        outcome = _judge_outcome(due, end, info, is_stopping=self._stop.is_set())
        attempt = run.info.attempt if info is None else info.attempt
        detail = end.detail if outcome.is_trouble else ""
        if outcome is Outcome.SKIPPED:
            detail = "it was removed" if info is None else _RESUMED_ELSEWHERE
        if end.exit_code < 0 and outcome is Outcome.DIED:
            detail = f"its process was killed by signal {-end.exit_code}" + (f"; {detail}" if detail else "")
        is_reported = False
        if info is not None and outcome is Outcome.LEFT and end.exit_code in _DECISION_CODES:
            is_reported = not await note_stale(self._store, self._clock, info, end.exit_code, detail)
        elif noted and outcome is not Outcome.SKIPPED:
            self.on_start(due)  # not called above, but the run has made progress
        result = _make_result(run, outcome, detail, attempt=attempt, exit_code=end.exit_code)
        return attrs.evolve(result, is_reported=is_reported)

    @property
    def _is_refused(self) -> bool:
        """Whether the store has refused a write since the last check of due runs."""
        return self._refusal is not None

    def _note_refusal(self, error: ReadOnlyStoreError) -> None:
        """Note that the store is read-only. A watcher reports it and continues: a standby may become the primary."""
        if self._is_watching and not self._is_refused:
            self.on_trouble(error)
        self._refusal = error


async def _wait_for_first(waits: set[asyncio.Future[Any]], heard: asyncio.Event | None, seconds: float) -> None:
    """Wait until a future is done, a message is announced, or the time is over."""
    hearing = None if heard is None else asyncio.ensure_future(heard.wait())
    try:
        every = waits if hearing is None else {*waits, hearing}
        await asyncio.wait(every, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if hearing is not None and hearing.done():  # several messages at once cause one check
            await asyncio.wait(waits, timeout=min(seconds, _DEBOUNCE_SECONDS), return_when=asyncio.FIRST_COMPLETED)
    finally:
        if hearing is not None:
            hearing.cancel()


def _judge_outcome(run: DueRun, end: ChildEnd, info: RunInfo | None, *, is_stopping: bool) -> Outcome:
    """Return the outcome of a run from the end of its process and its current state."""
    code = end.exit_code
    if code == ExitCode.DONE:  # with --on-save-error continue, a run can complete although its end was not saved
        return Outcome.COMPLETED if info is None or info.status is Status.COMPLETED else Outcome.DIED
    if code == ExitCode.SUSPENDED:
        return Outcome.SUSPENDED
    if info is None or code in (ExitCode.LOCKED, ExitCode.NOT_FOUND):
        return Outcome.SKIPPED
    is_new_attempt = info.attempt != run.info.attempt
    if code in _STOP_CODES:
        return Outcome.CANCELLED if is_new_attempt and info.status is Status.CANCELLED else Outcome.STOPPED
    if code < 0 or code in _CRASH_CODES:
        return Outcome.STOPPED if is_stopping and code == -15 else Outcome.DIED
    with contextlib.suppress(KeyError):
        if is_new_attempt:
            return _OUTCOMES_OF_STATUS[info.status]
    return Outcome.LEFT


def _make_result(
    run: DueRun, outcome: Outcome, detail: str = "", *, attempt: int | None = None, exit_code: int | None = None
) -> Recovered:
    info = run.info
    at = info.attempt if attempt is None else attempt
    return Recovered(info.workflow_id, info.workflow_name, run.why, outcome, at, detail, exit_code)
