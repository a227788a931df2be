"""Retention while a run goes on: old checkpoints go with the save of a new one, at no cost that grows with the run.

What goes is decided in groups: the rule looks at all checkpoints, so it is asked when they have become a third more, at
least eight; and once more at the end. So a save pays for a look at about four checkpoints, however many there are.
What goes is part of the save itself: no eviction fails by itself, and none happens without its save.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import attrs

from flowckpt.checkpoint import CheckpointData, History, Reason
from flowckpt.checkpoint.reference import CheckpointRef
from flowckpt.checkpoint.verified import verified_after
from flowckpt.errors import SettingError
from flowckpt.retention.rule import ONLY_THE_LAST, OnSuccess, Retention, checked_retention, removable
from flowckpt.stores.base import CheckpointStore
from flowckpt.stores.retention import EvictsCheckpoints, PinsCheckpoints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowckpt.clock import Clock

_log = logging.getLogger("flowckpt")
_GROUP = 8
_HEAD_BYTES = 250
"""About what a checkpoint takes beside its results."""
_ENDS = (Reason.COMPLETED, Reason.FAILED, Reason.CANCELLED, Reason.SUSPENDED)


def evicting_store(store: CheckpointStore) -> EvictsCheckpoints:
    """Return a store as one that can evict checkpoints, or refuse it.

    Args:
        store: the store.

    Raises:
        SettingError: it cannot.
    """
    if isinstance(store, EvictsCheckpoints):
        return store
    raise SettingError(
        f"{store!r} cannot remove the checkpoints of a run while it goes on",
        setting="retention",
        remedy="Use a store that can, or Retention(on_success='clear') without limits.",
    )


def checked_for(value: object, store: CheckpointStore) -> Retention:
    """Return a retention, or refuse what is none or what a store cannot do.

    Args:
        value: what was given.
        store: the store.

    Raises:
        SettingError: it is none, or the store cannot remove checkpoints as it asks for.
    """
    retention = checked_retention(value)
    if retention.has_limits or retention.on_success is OnSuccess.KEEP_LAST:
        evicting_store(store)
    return retention


@attrs.define(eq=False)
class Evictor:
    """Decides, before each save of an attempt, which checkpoints go with it.

    Attributes:
        store: where they lie.
        retention: what stays.
        clock: the time.
        workflow_id: the run.
        history: its results.
        is_new: whether the run has no checkpoint yet.
    """

    store: CheckpointStore
    retention: Retention
    clock: Clock
    workflow_id: str
    history: History
    is_new: bool
    _held: list[CheckpointRef] | None = None
    _since: int = 0
    _gone: frozenset[int] = frozenset()
    _is_given_up: bool = False
    _saved: int = 0
    _answers: list[bool | None] = attrs.field(factory=lambda: [None])

    def __attrs_post_init__(self) -> None:
        self._saved = len(self.history.results)
        if self.is_new:
            self._held = []

    async def before_save(self, data: CheckpointData) -> None:
        """Hand what goes to the store, if it is time. Never raises: what fails here is told to the log.

        Args:
            data: what is about to be saved, and will be the newest.
        """
        retention = self._retention_for(data)
        is_due = self._since >= max(_GROUP, len(self._held or ()) // 3) or data.reason in _ENDS
        self._gone = frozenset()
        if self._is_given_up or not retention.has_limits or not is_due:
            return
        try:
            store = evicting_store(self.store)
            held = await self._known()
            pinned = await self.store.pinned(self.workflow_id) if isinstance(self.store, PinsCheckpoints) else ()
            found = removable([*held, self._reference(data)], retention, self.clock.now(), pinned=pinned)
            sequences = [each.sequence for each in found]
            store.evict_with_next_save(self.workflow_id, sequences)
            self._gone = frozenset(sequences)
        except Exception as error:
            self._is_given_up = True
            _log.warning("run %s keeps its old checkpoints: %s", self.workflow_id, error)

    def after_save(self, data: CheckpointData) -> None:
        """Take note of what is durable now.

        Args:
            data: what was saved.
        """
        self._since += 1
        if self._held is not None:
            reference = self._reference(data)
            self._held = [each for each in self._held if each.sequence not in self._gone] if self._gone else self._held
            self._held.append(reference)
        if self._gone:
            self._since, self._gone = 0, frozenset()
        self._saved = len(data.step_results)

    def _retention_for(self, data: CheckpointData) -> Retention:
        """Return what stays beside this checkpoint: at the end, the last one alone, where the engine is told so."""
        if data.reason is Reason.COMPLETED and self.retention.on_success is OnSuccess.KEEP_LAST:
            return attrs.evolve(ONLY_THE_LAST, pinned=self.retention.pinned)
        return self.retention

    async def _known(self) -> list[CheckpointRef]:
        """Return the checkpoints that count, read once an attempt where the run was resumed."""
        if self._held is None:
            listed: Sequence[CheckpointRef] = await self.store.list_checkpoints(self.workflow_id)
            self._held = [attrs.evolve(each, verified=each.verified or self._verified(each.steps)) for each in listed]
            self._held.sort(key=lambda each: each.sequence)
        return self._held

    def _reference(self, data: CheckpointData) -> CheckpointRef:
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
            self._verified(steps),
        )

    def _verified(self, steps: int) -> bool | None:
        """Tell whether all evidence up to a number of results held when it was recorded; None where there is none."""
        answers, results = self._answers, self.history.results
        for result in results[len(answers) - 1 : steps]:
            answers.append(verified_after(answers[-1], (result,)))
        return answers[steps] if steps < len(answers) else None
