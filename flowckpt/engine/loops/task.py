"""A task that this process owns: its log, its history, and its saves."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Iterable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

from flowckpt.core.codec.blob import pack_value
from flowckpt.core.codec.results import append_result, as_view
from flowckpt.core.codec.tags import encode
from flowckpt.core.records import CheckpointData, History, LazyValue, Reason, StepResult
from flowckpt.core.records.listing import MANAGED, RunFilter
from flowckpt.core.system.blocking import finish_despite_cancel, may_block
from flowckpt.core.system.clock import Clock
from flowckpt.engine.loops.claims import Files, TaskClaims
from flowckpt.engine.run.checkpointer import Checkpointer, RunFacts
from flowckpt.engine.run.lease import require_run
from flowckpt.errors import (
    CheckpointNotFoundError,
    EncodingError,
    StepNotStartedError,
)
from flowckpt.maintenance.task_log import (
    NO_INPUTS,
    CommittedStep,
    StartedStep,
    TaskLog,
    check_task_id,
    check_text,
    describe_begin,
    local_part,
    make_commit_result,
    marker_id,
    public_id,
    read_log,
    split_id,
)
from flowckpt.stores.base import Ability, Lease, StoreBase
from flowckpt.stores.leases import release_lease
from flowckpt.stores.queries import find_runs

_log = logging.getLogger("flowckpt")
_INPUTS: Mapping[str, Any] = {}
_REMEDY = "The next call takes the task again, and finds out what was saved."


class SharedLock:
    """A lock for asyncio tasks of several event loops: a service may have one loop in each of its threads.

    A task that leaves passes the lock to the next one in the queue. A turn is a future of `concurrent.futures`, which a
    loop can await although another thread ends it.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._queue: dict[Future[None], asyncio.AbstractEventLoop] = {}
        self._owner: Future[None] | None = None

    async def __aenter__(self) -> None:
        turn: Future[None] = Future()
        with self._guard:
            self._queue[turn] = asyncio.get_running_loop()
            if self._owner is None:
                self._pass_on()
        if self._owner is turn:
            return
        try:
            await asyncio.wrap_future(turn)
        except asyncio.CancelledError:
            self._leave(turn)  # also if its turn has come meanwhile
            raise

    async def __aexit__(self, *error: object) -> None:
        assert self._owner is not None
        self._leave(self._owner)

    def _leave(self, turn: Future[None]) -> None:
        with self._guard:
            del self._queue[turn]
            if self._owner is turn:
                self._pass_on()

    def _pass_on(self) -> None:
        # A task of a closed loop never runs again, although nothing has cancelled it.
        waiting = [turn for turn, loop in self._queue.items() if not (loop.is_closed() or turn.cancelled())]
        self._owner = next((turn for turn in waiting if turn.set_running_or_notify_cancel()), None)
        if self._owner is not None:
            self._owner.set_result(None)


class OwnedTask:
    """A task that this process owns.

    Args:
        store: the store of the task.
        clock: the time.
        lease: the lease of the task.
        log: the log of the task.

    Attributes:
        log: the log of the task.
        lease: the lease of the task.
        one_at_a_time: lock that is held while the task is changed.
        saves: writes its records; after a save that failed, it may be unusable, and the task must be taken again.
    """

    def __init__(self, store: StoreBase, clock: Clock, lease: Lease, log: TaskLog) -> None:
        self.log = log
        self.lease = lease
        self.one_at_a_time = SharedLock()
        history = History() if lease.latest is None else _continue_history(lease.latest)
        facts, metadata = RunFacts(log.task_id, MANAGED, NO_INPUTS, _INPUTS, remedy=_REMEDY), log.metadata()
        self.saves = Checkpointer(store, clock, facts, metadata, lease.attempt, lease.last_sequence, history)

    async def save(
        self,
        reason: Reason,
        checkpoint_id: str,
        *,
        begun: Iterable[StartedStep],
        snapshot: Any = None,
        description: Mapping[str, Any] | None = None,
        result: StepResult | None = None,
        metadata: Mapping[str, Any] | None = None,
        files: Files | None = None,
    ) -> None:
        """Make the next record durable.

        Args:
            reason: the reason of the record.
            checkpoint_id: its id in the store.
            begun: the started and uncommitted steps, from this record on.
            snapshot: an encoded state.
            description: the description of a started step.
            result: the result of a committed step.
            metadata: the metadata from this record on, if the plan or the head changes.
            files: the files that are kept with the state.

        Raises:
            FlowckptError: an error of the store; `CheckpointStorageError` if the store raised anything else.
        """
        saves = self.saves
        metadata = self.log.metadata() if metadata is None else metadata
        if metadata != saves.metadata:  # otherwise pass the same object, which a store need not write again
            saves.metadata = metadata
        if result is not None:
            append_result(saves.history, result)
        in_flight = tuple(step.path for step in begun)
        saves.partial = dict(files or {})
        try:
            await saves.save(reason, checkpoint_id, output=description, in_flight=in_flight, snapshot=snapshot)
        except EncodingError:  # refused before any write, but the history already has the result of the step
            saves.sequence -= 1
            saves.is_usable = result is None
            raise


async def take(store: StoreBase, clock: Clock, task_id: str) -> OwnedTask:
    """Become the owner of a task.

    Args:
        store: the store of the task.
        clock: the time.
        task_id: the task; it need not exist yet.

    Raises:
        RunLockedError: another process, or another manager, owns it.
        ForeignRecordError: it is a run of the engine.
        FlowckptError: one of the store's errors.
    """
    lease = await store.acquire(task_id)
    try:
        log = await read_log(store, task_id, lease.latest)
    except BaseException:
        await release_lease(store, lease)
        raise
    for notice in lease.notices:
        _log.warning("task %s: %s", task_id, notice)
    return OwnedTask(store, clock, lease, log)


def _continue_history(latest: CheckpointData) -> History:
    view = as_view(latest.step_results)
    return view.history if len(view) == len(view.history.results) else view.history.forked(len(view))


# The tasks of a manager: owned while they are changed, and read by any caller.


class Tasks:
    """The tasks of a store, and those among them that this manager owns.

    Args:
        store: the store.
        clock: the time.
        claims: knows where relative paths of evidence start.
    """

    def __init__(self, store: StoreBase, clock: Clock, claims: TaskClaims) -> None:
        self._store = store
        self._clock = clock
        self._claims = claims
        self._owned: dict[str, OwnedTask] = {}
        self._taking = SharedLock()

    @asynccontextmanager
    async def own(self, task_id: str) -> AsyncGenerator[OwnedTask, None]:
        """Own a task from now on, and change it during the block, one asyncio task at a time.

        Args:
            task_id: the task; it need not exist yet.

        Raises:
            SettingError: the id cannot be a run id.
            RunLockedError: another process, or another manager, owns it.
            ForeignRecordError: it is a run of the engine.
        """
        check_task_id(task_id)
        while True:
            task = await self._take(task_id)
            async with task.one_at_a_time:
                if self._owned.get(task_id) is not task:  # released while this call waited
                    continue
                try:
                    yield task
                finally:
                    # read the task again, or take one that does not exist yet
                    if not task.saves.is_usable or task.saves.sequence == 0:
                        await self.give_up(task)
                    if not may_block():
                        # deliver a cancel that arrived during a save here, where the caller expects it
                        await asyncio.sleep(0)
                return

    async def _take(self, task_id: str) -> OwnedTask:
        async with self._taking:
            task = self._owned.get(task_id)
            if task is None:
                task = await finish_despite_cancel(take(self._store, self._clock, task_id))
                self._owned[task_id] = task
                task.log.base_path = self._claims.find_base(task.log)
            return task

    async def give_up(self, task: OwnedTask) -> None:
        """Release a task; does nothing if it is already released."""
        task_id = task.log.task_id
        if self._owned.get(task_id) is task:
            del self._owned[task_id]
            await finish_despite_cancel(release_lease(self._store, task.lease), is_last=True)

    async def release(self, task_id: str) -> None:
        """Release a task once no code is changing it any more.

        Args:
            task_id: the task; it need not be owned.
        """
        task = self._owned.get(task_id)
        if task is not None:
            async with task.one_at_a_time:
                await self.give_up(task)

    async def release_all(self) -> None:
        """Release every owned task."""
        for task_id in list(self._owned):
            await self.release(task_id)

    async def load_log(self, task_id: str) -> TaskLog | None:
        """Return the log of a task, from its owner or from the store; None if the task does not exist.

        Raises:
            SettingError: the id is blank or not text.
            ForeignRecordError: it is a run of the engine.
            CheckpointCorruptedError: its record is damaged.
        """
        task = self._owned.get(check_text(task_id, "task_id"))
        if task is not None and task.saves.is_usable and task.saves.sequence:
            return task.log
        latest = await self._store.load_latest(task_id)
        return None if latest is None else await read_log(self._store, task_id, latest)

    async def find_checkpoint(self, checkpoint_id: str) -> tuple[TaskLog, int]:
        """Return the task of a stored checkpoint, and the index of its step.

        Args:
            checkpoint_id: its id; or an id without the task, if only one task has it.

        Raises:
            CheckpointNotFoundError: the checkpoint does not exist, or the id is ambiguous.
            CheckpointCorruptedError: the record is damaged.
        """
        task_id, local_id = split_id(checkpoint_id, "checkpoint_id")
        if not task_id:
            return await self._find_in_any(local_id)
        log = require_run(task_id, await self.load_log(task_id))
        if local_id not in log.live:
            raise CheckpointNotFoundError(task_id, local_id)
        return log, log.live[local_id]

    async def _find_in_any(self, local_id: str) -> tuple[TaskLog, int]:
        names = set(self._owned)
        if self._store.has(Ability.LIST):
            runs = await find_runs(self._store, RunFilter(workflow=MANAGED))
            names |= {run.workflow_id for run in runs}
        logs = [log for name in sorted(names) if (log := await self.load_log(name)) and local_id in log.live]
        if len(logs) == 1:
            return logs[0], logs[0].live[local_id]
        shown = ", ".join(public_id(log.task_id, local_id) for log in logs)
        raise CheckpointNotFoundError(
            local_id, detail=f"it could be {shown}" if shown else "a checkpoint's id is written TASK@CHECKPOINT"
        )


# The two records of a step: its start and its commit.


def encode_state(snapshot: Any) -> LazyValue:
    """Return a state encoded, so that it cannot change any more.

    Raises:
        EncodingError: it cannot be recorded.
    """
    return pack_value(encode(snapshot, "snapshot"))


def find_begun(log: TaskLog, step_id: str, local_id: str) -> StartedStep:
    """Return a started and uncommitted step.

    Raises:
        StepNotStartedError: the step is not started, or has ended.
    """
    step = log.begun.get(local_id)
    if step is not None:
        return step
    committed = log.find_committed(local_id)
    raise StepNotStartedError(
        log.task_id,
        step_id,
        detail=f"it was committed as {committed.id!r}"
        if committed is not None
        else "it was abandoned, dropped by a rollback, started again by a later process, or never started",
    )


async def begin(
    task: OwnedTask,
    clock: Clock,
    *,
    checkpoint_type: str,
    work_item_id: str | None,
    metadata: Mapping[str, Any],
    snapshot: LazyValue,
    version: int,
    files: Files,
) -> StartedStep:
    """Record the start of a step. It replaces a step in doubt with the same work from an earlier attempt.

    Args:
        task: the owned task.
        clock: the time.
        checkpoint_type: the kind of step.
        work_item_id: the piece of work, or None.
        metadata: notes of the program; no other code has a reference to them.
        snapshot: the encoded state before the step.
        version: how many migrations of states this program knows.
        files: the files that are kept with the state.
    """
    log = task.log
    gone = log.find_superseded(checkpoint_type, work_item_id, task.saves.attempt)
    path = log.new_path(checkpoint_type, gone)
    local_id = marker_id(path, task.saves.sequence + 1)
    step = StartedStep(
        public_id(log.task_id, local_id),
        log.task_id,
        path,
        checkpoint_type,
        work_item_id,
        metadata,
        clock.now(),
        task.saves.attempt,
        snapshot,
        clock.elapsed_ns(),
        version,
        files,
    )
    begun = {**log.without_begun(gone), local_id: step}
    description = describe_begin(step)
    await task.save(
        Reason.IN_DOUBT, local_id, begun=begun.values(), snapshot=snapshot, description=description, files=files
    )
    log.mark_begins_obsolete(gone)
    log.begun, log.is_finished = begun, False
    return step


async def commit(
    task: OwnedTask,
    clock: Clock,
    step: StartedStep,
    *,
    checkpoint_id: str | None,
    evidence: Mapping[str, Any] | None,
    snapshot: LazyValue | None,
    version: int,
    files: Files | None,
) -> CommittedStep:
    """Make a begun step durable.

    Args:
        task: the owned task.
        clock: the time.
        step: the step.
        checkpoint_id: the id of its checkpoint; by default its path.
        evidence: the document of its claims and verdicts.
        snapshot: the encoded state after the step; None for the one before it.
        version: how many migrations of states this program knows.
        files: the files that are kept with the state after it; None for those before it.
    """
    log = task.log
    local_id = checkpoint_id or step.path
    elapsed_ns = 0 if step.began_ns is None else clock.elapsed_ns() - step.began_ns
    committed = CommittedStep(
        public_id(log.task_id, local_id),
        log.task_id,
        step.step_id,
        step.path,
        step.checkpoint_type,
        step.work_item_id,
        step.metadata,
        task.saves.sequence + 1,
        step.begun_at,
        clock.now(),
        elapsed_ns / 1e6,
        log.head,
        evidence,
        snapshot_version=step.snapshot_version if snapshot is None else version,
    )
    index = len(log.committed)
    await task.save(
        Reason.STEP,
        local_id,
        begun=log.without_begun([local_part(step.step_id, log.task_id)]).values(),
        snapshot=step.held_snapshot if snapshot is None else snapshot,
        result=make_commit_result(committed, local_id, index=index, attempt=task.saves.attempt, evidence=evidence),
        metadata=log.metadata(head=index),
        files=step.files if files is None else files,
    )
    log.add(committed)
    return committed
