"""The tasks of a manager: owned while they are changed, and read by whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from flowckpt.blocking import finish_despite_cancel
from flowckpt.checkpoint.run_filter import RunFilter
from flowckpt.clock import Clock
from flowckpt.errors import CheckpointNotFoundError
from flowckpt.manager.claims import Verifying
from flowckpt.manager.names import checked_task_id, checked_text, public_id, split_id
from flowckpt.manager.owned_task import OwnedTask, take
from flowckpt.manager.record import read_log
from flowckpt.manager.task import WORKFLOW_NAME
from flowckpt.manager.task_log import TaskLog
from flowckpt.stores.base import CheckpointStore, ListsRuns, OwnsRuns
from flowckpt.stores.finding import find_runs
from flowckpt.stores.giving_back import released


class Tasks:
    """The tasks of a store, and those among them that this manager owns.

    Args:
        store: where they lie.
        clock: the time.
        verifying: knows where relative paths of evidence are taken from.
    """

    def __init__(self, store: CheckpointStore, clock: Clock, verifying: Verifying) -> None:
        self._store = store
        self._clock = clock
        self._verifying = verifying
        self._owned: dict[str, OwnedTask] = {}
        self._taking = asyncio.Lock()

    @asynccontextmanager
    async def changing(self, task_id: str) -> AsyncGenerator[OwnedTask, None]:
        """Own a task for the block and after it, alone among the tasks of this loop.

        Args:
            task_id: the task; it need not exist yet.

        Raises:
            SettingError: the id can be no id of a run.
            RunLockedError: another process, or another manager, owns it.
            ForeignRecordError: it is a run of the engine.
        """
        checked_task_id(task_id)
        while True:
            task = await self._taken(task_id)
            async with task.one_at_a_time:
                if self._owned.get(task_id) is not task:  # given up while we waited
                    continue
                try:
                    yield task
                finally:
                    if not task.is_usable or task.sequence == 0:  # to be read again; or there was nothing to own
                        await self.give_up(task)
                return

    async def _taken(self, task_id: str) -> OwnedTask:
        async with self._taking:
            task = self._owned.get(task_id)
            if task is None:
                task = await finish_despite_cancel(take(self._store, self._clock, task_id))
                self._owned[task_id] = task
                task.log.base_path = self._verifying.base_of(task.log)
            return task

    async def give_up(self, task: OwnedTask) -> None:
        """Give a task up; no error where that was done before.

        Args:
            task: the task.
        """
        task_id = task.log.task_id
        if self._owned.get(task_id) is task:
            del self._owned[task_id]
            if isinstance(self._store, OwnsRuns):
                await finish_despite_cancel(released(self._store, task.lease))

    async def release(self, task_id: str) -> None:
        """Give a task up when nobody is changing it any more.

        Args:
            task_id: the task; no error where it is not owned.
        """
        task = self._owned.get(task_id)
        if task is not None:
            async with task.one_at_a_time:
                await self.give_up(task)

    async def release_all(self) -> None:
        """Give up every owned task."""
        for task_id in list(self._owned):
            await self.release(task_id)

    async def log_of(self, task_id: str) -> TaskLog | None:
        """Return what a task has done, as its owner knows or as the store says; None where there is no such task.

        Args:
            task_id: the task.

        Raises:
            SettingError: the id is blank or no text.
            ForeignRecordError: it is a run of the engine.
            CheckpointCorruptedError: its record is damaged.
        """
        task = self._owned.get(checked_text(task_id, "task_id"))
        if task is not None and task.is_usable and task.sequence:
            return task.log
        latest = await self._store.load_latest(task_id)
        return None if latest is None else await read_log(self._store, task_id, latest)

    async def found(self, checkpoint_id: str) -> tuple[TaskLog, int]:
        """Return the task of a checkpoint that the store holds, and the index of its step.

        Args:
            checkpoint_id: its id; or one without its task, where only one task has it.

        Raises:
            CheckpointNotFoundError: there is no such checkpoint, or there are several.
            CheckpointCorruptedError: the record is damaged.
        """
        task_id, local_id = split_id(checkpoint_id, "checkpoint_id")
        if not task_id:
            return await self._found_in_any(local_id)
        log = await self.log_of(task_id)
        if log is None:
            raise CheckpointNotFoundError(task_id)
        if local_id not in log.live:
            raise CheckpointNotFoundError(task_id, local_id)
        return log, log.live[local_id]

    async def _found_in_any(self, local_id: str) -> tuple[TaskLog, int]:
        names = set(self._owned)
        if isinstance(self._store, ListsRuns):
            found = await find_runs(self._store, RunFilter(workflow=WORKFLOW_NAME))
            names |= {run.workflow_id for run in found}
        logs = [log for name in sorted(names) if (log := await self.log_of(name)) and local_id in log.live]
        if len(logs) == 1:
            return logs[0], logs[0].live[local_id]
        shown = ", ".join(public_id(log.task_id, local_id) for log in logs)
        raise CheckpointNotFoundError(
            local_id, detail=f"it could be {shown}" if shown else "a checkpoint's id is written TASK@CHECKPOINT"
        )
