"""A task that this process owns: its log, its history, and the only thing that saves to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from flowckpt.blocking import finish_despite_cancel
from flowckpt.checkpoint import CheckpointData, History, Reason, StepResult
from flowckpt.clock import Clock
from flowckpt.codec.results import append_result, as_view
from flowckpt.errors import CheckpointStorageError, EncodingError, FlowckptError
from flowckpt.manager.record import NO_INPUTS, read_log
from flowckpt.manager.records import BegunStep
from flowckpt.manager.task import WORKFLOW_NAME
from flowckpt.manager.task_log import TaskLog
from flowckpt.stores.base import CheckpointStore, Lease, OwnsRuns
from flowckpt.stores.giving_back import released

_log = logging.getLogger("flowckpt")
_INPUTS: Mapping[str, Any] = {}


class OwnedTask:
    """A task that this process owns.

    Args:
        store: where it lies.
        clock: the time.
        lease: what was taken.
        log: what the task has done.

    Attributes:
        log: what the task has done.
        lease: what was taken.
        attempt: the attempt, the fencing number.
        sequence: the number of the last record.
        is_usable: whether a further save makes sense; after one that failed, the task must be taken over again.
        one_at_a_time: held by whoever changes the task.
    """

    def __init__(self, store: CheckpointStore, clock: Clock, lease: Lease, log: TaskLog) -> None:
        self.log = log
        self.lease = lease
        self.attempt = lease.attempt
        self.sequence = lease.last_sequence
        self.is_usable = True
        self.one_at_a_time = asyncio.Lock()
        self._store = store
        self._clock = clock
        self._history = History() if lease.latest is None else _to_go_on(lease.latest)
        self._metadata: Mapping[str, Any] = log.metadata()

    async def save(
        self,
        reason: Reason,
        checkpoint_id: str,
        *,
        begun: Iterable[BegunStep],
        snapshot: Any = None,
        description: Mapping[str, Any] | None = None,
        result: StepResult | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Make the next record durable.

        Args:
            reason: why it is made.
            checkpoint_id: its id in the store.
            begun: the steps that are begun and not committed, from this record on.
            snapshot: a state, as the record holds it.
            description: what a begun step is.
            result: what a committed step leaves in the history.
            metadata: what every record carries from this one on, where plan or head change.

        Raises:
            FlowckptError: one of the store's errors; what a store raises beyond its contract becomes
                `CheckpointStorageError`.
        """
        self.is_usable = False
        metadata = self.log.metadata() if metadata is None else metadata
        if metadata != self._metadata:  # else the very same object, which a store need not write again
            self._metadata = metadata
        if result is not None:
            append_result(self._history, result)
        data = CheckpointData(
            checkpoint_id,
            WORKFLOW_NAME,
            NO_INPUTS,
            self._history.view(),
            self._clock.now(),
            self.sequence + 1,
            self.attempt,
            reason,
            inputs=_INPUTS,
            in_flight=tuple(step.path for step in begun),
            snapshot=snapshot,
            metadata=self._metadata,
            output=description,
        )
        try:
            await finish_despite_cancel(self._store.save(self.log.task_id, data))
        except EncodingError:  # refused before anything was written
            self.is_usable = result is None
            raise
        except FlowckptError:
            raise
        except Exception as failure:
            raise CheckpointStorageError(
                f"{type(self._store).__name__} raised {type(failure).__name__} while it saved: {failure}",
                workflow_id=self.log.task_id,
                operation="save",
                is_outcome_unknown=True,
                remedy="The next call takes the task over again, and finds out what was saved.",
            ) from failure
        self.sequence += 1
        self.is_usable = True


async def take(store: CheckpointStore, clock: Clock, task_id: str) -> OwnedTask:
    """Become the owner of a task.

    Args:
        store: where it lies.
        clock: the time.
        task_id: the task; it need not exist yet.

    Raises:
        RunLockedError: another process, or another manager, owns it.
        ForeignRecordError: it is a run of the engine.
        FlowckptError: one of the store's errors.
    """
    if not isinstance(store, OwnsRuns):
        latest = await store.load_latest(task_id)
        lease = Lease(
            task_id,
            attempt=latest.attempt + 1 if latest else 1,
            latest=latest,
            last_sequence=latest.sequence if latest else 0,
        )
        return OwnedTask(store, clock, lease, await read_log(store, task_id, latest))
    lease = await store.acquire(task_id)
    try:
        log = await read_log(store, task_id, lease.latest)
    except BaseException:
        await released(store, lease)
        raise
    for notice in lease.notices:
        _log.warning("task %s: %s", task_id, notice)
    return OwnedTask(store, clock, lease, log)


def _to_go_on(latest: CheckpointData) -> History:
    view = as_view(latest.step_results)
    return view.history if len(view) == len(view.history.results) else view.history.forked(len(view))
