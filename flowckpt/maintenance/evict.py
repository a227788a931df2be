"""Retention in a live run: old checkpoints are removed by the save of a new one, at a cost independent of the run's length.

The rule examines all checkpoints, so it is applied in batches: when their number has grown by a third, at least by eight;
when a quarter of them, at least eight, can be removed because of number, age or size; and at the end. So the amortised cost
of a save is that of examining a few checkpoints, however many there are, whether or not any can be removed.
A removal is part of the save itself: it cannot fail separately, and never happens without its save.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import attrs

from flowckpt.core.records import CheckpointData, History, Reason
from flowckpt.core.records.checkpoint import verified_after
from flowckpt.core.records.listing import CheckpointRef
from flowckpt.errors import SettingError
from flowckpt.maintenance.retention import (
    ONLY_THE_LAST,
    OnSuccess,
    Retention,
    check_retention,
    find_protected,
    removable,
)
from flowckpt.stores.base import Ability, StoreBase
from flowckpt.stores.queries import check_references

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime, timedelta

    from flowckpt.core.system.clock import Clock


_log = logging.getLogger("flowckpt")
_GROUP = 8
_HEAD_BYTES = 250
"""The approximate bytes of a checkpoint without its results."""
_ENDS = (Reason.COMPLETED, Reason.FAILED, Reason.CANCELLED, Reason.SUSPENDED)


def require_eviction(store: StoreBase) -> StoreBase:
    """Return the store if it can evict checkpoints, else raise.

    Raises:
        SettingError: it cannot.
    """
    if store.has(Ability.EVICT):
        return store
    raise SettingError(
        f"{store!r} cannot remove the checkpoints of a live run",
        setting="retention",
        remedy="Use a store that can, or Retention(on_success='clear') without limits.",
    )


def check_retention_for(value: object, store: StoreBase) -> Retention:
    """Return a valid retention that the store supports, else raise.

    Raises:
        SettingError: it is invalid, or the store cannot remove checkpoints of a live run.
    """
    retention = check_retention(value)
    if retention.has_limits or retention.on_success is OnSuccess.KEEP_LAST:
        require_eviction(store)
    return retention


@attrs.define
class _Outlook:
    """When to examine the checkpoints next.

    Attributes:
        since: the saves since the last examination.
        added: their bytes.
        quarter_at: the time of saving of the youngest in the oldest quarter; once it is too old, much can be removed.
        room: the bytes that can be added until then.
        more: the saves until then.
    """

    since: int = 0
    added: int = 0
    quarter_at: datetime | None = None
    room: int | None = None
    more: int | None = None

    def is_due(self, data: CheckpointData, held: int, max_age: timedelta | None) -> bool:
        """Return whether to examine the checkpoints before this save."""
        return (
            self.since >= max(_GROUP, held // 3)
            or (self.quarter_at is not None and max_age is not None and data.saved_at - self.quarter_at > max_age)
            or (self.room is not None and self.added > self.room)
            or (self.more is not None and self.since >= self.more)
        )


def _look_ahead(left: Sequence[CheckpointRef], retention: Retention, pinned: Collection[int]) -> _Outlook:
    """Set when a quarter of the remaining checkpoints can be removed, which then pays for the examination."""
    outlook = _Outlook()
    safe = find_protected(left[::-1], retention, pinned)
    many = len(left) // 4
    places = [place for place, each in enumerate(left) if each.sequence not in safe][:many]
    if many < _GROUP or len(places) < many:  # few, or too much is pinned
        return outlook
    quarter = [left[place] for place in places]
    if retention.keep_last is not None:
        outlook.more = retention.keep_last - (len(left) - 1 - places[-1])
    if retention.max_age is not None:
        outlook.quarter_at = max(each.saved_at for each in quarter)
    if retention.max_bytes is not None:  # the last one is not saved yet, and counts when it is
        outlook.room = retention.max_bytes - sum(each.size for each in left[:-1]) + sum(each.size for each in quarter)
    return outlook


@attrs.define(eq=False)
class Evictor:
    """Decides, before each save of an attempt, which checkpoints it removes.

    Attributes:
        store: the store of the run.
        retention: the limits.
        clock: the time.
        workflow_id: the run.
        history: its results.
        is_new: whether the run has no checkpoint yet.
    """

    store: StoreBase
    retention: Retention
    clock: Clock
    workflow_id: str
    history: History
    is_new: bool
    _held: list[CheckpointRef] | None = None
    _outlook: _Outlook = attrs.field(factory=_Outlook)
    _gone: frozenset[int] = frozenset()
    _has_complained: bool = False
    _saved: int = 0
    _answers: list[bool | None] = attrs.field(factory=lambda: [None])

    def __attrs_post_init__(self) -> None:
        self._saved = len(self.history.results)
        if self.is_new:
            self._held = []

    async def before_save(self, data: CheckpointData) -> None:
        """Tell the store which checkpoints to remove with the next save, if it is time. Failures are only logged.

        Args:
            data: the checkpoint to be saved next.
        """
        retention = self._choose_retention(data)
        self._gone = frozenset()
        is_due = data.reason in _ENDS or self._outlook.is_due(data, len(self._held or ()), self.retention.max_age)
        if not retention.has_limits or not is_due:
            return
        self._outlook = _Outlook()  # also if nothing can be removed, or on failure: the next examination is as far away
        try:
            store = require_eviction(self.store)
            held = await self._read_held()
            pinned = await self.store.pinned(self.workflow_id)
            references = [*held, self._make_reference(data)]
            removed = removable(references, retention, self.clock.now(), pinned=pinned)
            sequences = [each.sequence for each in removed]
            store.evict_with_next_save(self.workflow_id, sequences)
            self._gone = frozenset(sequences)
            left = [each for each in references if each.sequence not in self._gone]
            self._outlook = _look_ahead(left, retention, pinned)
        except Exception as error:
            level = logging.INFO if self._has_complained else logging.WARNING
            self._has_complained = True
            _log.log(level, "run %s keeps its old checkpoints: %s", self.workflow_id, error)

    def after_save(self, data: CheckpointData) -> None:
        """Record that a checkpoint is durable."""
        reference = self._make_reference(data)
        self._outlook.since += 1
        self._outlook.added += reference.size
        if self._held is not None:
            if self._gone:
                self._held = [each for each in self._held if each.sequence not in self._gone]
            self._held.append(reference)
        self._gone = frozenset()
        self._saved = len(data.step_results)

    def _choose_retention(self, data: CheckpointData) -> Retention:
        """Return the retention for this save: with `keep_last` on success, only the last checkpoint stays at the end."""
        if data.reason is Reason.COMPLETED and self.retention.on_success is OnSuccess.KEEP_LAST:
            return attrs.evolve(ONLY_THE_LAST, pinned=self.retention.pinned)
        return self.retention

    async def _read_held(self) -> list[CheckpointRef]:
        """Return the checkpoints that count; for a resumed run, they are read once per attempt."""
        if self._held is None:
            listed: Sequence[CheckpointRef] = await self.store.list_checkpoints(self.workflow_id)
            await check_references(self.store, self.workflow_id, listed)
            self._held = [
                attrs.evolve(each, verified=each.verified or self._find_verdict(each.steps)) for each in listed
            ]
            self._held.sort(key=lambda each: each.sequence)
        return self._held

    def _make_reference(self, data: CheckpointData) -> CheckpointRef:
        steps = len(data.step_results)
        added = self.history.encoded_between(min(self._saved, steps), steps)
        return CheckpointRef(
            self.workflow_id,
            data.checkpoint_id,
            data.sequence,
            data.attempt,
            data.reason,
            data.saved_at,
            steps,
            _HEAD_BYTES + sum(map(len, added)),
            self._find_verdict(steps),
        )

    def _find_verdict(self, steps: int) -> bool | None:
        """Return whether all evidence of the first results held when it was recorded; None if there is none."""
        answers, results = self._answers, self.history.results
        for result in results[len(answers) - 1 : steps]:
            answers.append(verified_after(answers[-1], (result,)))
        return answers[steps] if steps < len(answers) else None


# The handling of a completed run, after the completion was reported: nothing, a compaction, or its removal.


async def apply_to_completed(store: StoreBase, workflow_id: str, retention: Retention) -> bool:
    """Apply `on_success` to a completed run; return whether the run was removed.

    Never raises: the run has succeeded; a failure is logged.

    After a crash before this call, a resume of the completed run (which runs nothing) calls it again.

    Args:
        store: the store of the run, which has no owner.
        workflow_id: the run.
        retention: the retention.
    """
    if retention.on_success is OnSuccess.KEEP:
        return False
    try:
        if retention.on_success is OnSuccess.CLEAR and not await _is_pinned(store, workflow_id, retention):
            await store.clear(workflow_id)
            return True
        await store.compact(workflow_id, is_forced=True)
    except Exception as error:
        _log.warning("run %s has completed, but its retention could not be applied: %s", workflow_id, error)
    return False


async def _is_pinned(store: StoreBase, workflow_id: str, retention: Retention) -> bool:
    if await store.pinned(workflow_id):
        return True
    if not retention.pinned:
        return False
    return any(each.checkpoint_id in retention.pinned for each in await store.list_checkpoints(workflow_id))
