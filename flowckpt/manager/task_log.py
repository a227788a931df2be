"""What a task has done: a pure log, made from its record and kept up by its owner.

Each committed step names the one that it goes on from, so the steps that led to any checkpoint are a chain, also after
a rollback. A rollback moves the head; the steps behind it stay in the log, and can be rolled forward to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from flowckpt.dsl.path import path_of
from flowckpt.manager.names import local_part, public_id, sequence_in_marker
from flowckpt.manager.records import BegunStep, CommittedStep


@attrs.define
class TaskLog:
    """The steps of a task.

    Attributes:
        task_id: the task.
        committed: all committed steps, in their order.
        live: the checkpoints that the store holds: the id there, to the index of the step.
        begun: the steps that were begun and not committed: the id in the store, to the step.
        settled: the ids in the store of records that a step was begun, which nobody needs any more.
        plan: the planned steps, or None.
        head: the index of the step that the task stands behind; -1 for none.
        base_path: where relative paths of evidence are taken from, as recorded; empty where nobody said.
        is_finished: whether the task was finished.
    """

    task_id: str
    committed: list[CommittedStep] = attrs.field(factory=list)
    live: dict[str, int] = attrs.field(factory=dict)
    begun: dict[str, BegunStep] = attrs.field(factory=dict)
    settled: list[str] = attrs.field(factory=list)
    plan: tuple[str, ...] | None = None
    head: int = -1
    base_path: str = ""
    is_finished: bool = False
    _uses: Counter[str] | None = None

    # --- where the task stands ---------------------------------------------------------------------------------------

    def chain(self, index: int) -> list[CommittedStep]:
        """Return the steps that led to one, itself included, oldest first.

        Args:
            index: the step; -1 for the beginning.
        """
        found = []
        while index >= 0:
            found.append(self.committed[index])
            index = self.committed[index].after
        return found[::-1]

    def current(self) -> int:
        """Return the index of the newest step on the way to the head whose checkpoint the store holds; -1 for none."""
        index = self.head
        while index >= 0 and not self.is_live(index):
            index = self.committed[index].after
        return index

    def is_live(self, index: int) -> bool:
        """Tell whether the store holds the checkpoint of a step.

        Args:
            index: the step.
        """
        return self.live.get(local_part(self.committed[index].id, self.task_id)) == index

    def live_steps(self) -> list[CommittedStep]:
        """Return the steps whose checkpoints the store holds, newest first."""
        return [self.committed[index] for index in sorted(self.live.values(), reverse=True)]

    def live_chain(self, index: int) -> list[CommittedStep]:
        """Return those of them that led to one, itself included, newest first.

        Args:
            index: the step; -1 for the beginning.
        """
        live = set(self.live.values())
        found = []
        while index >= 0:
            if index in live:
                found.append(self.committed[index])
            index = self.committed[index].after
        return found

    def remaining(self, index: int) -> tuple[str, ...] | None:
        """Return the planned steps that did not lead to one; None where there is no plan.

        A step crosses off what is called as its work item; as its type where it has none, or none that was planned.

        Args:
            index: the step; -1 for the beginning.
        """
        if self.plan is None:
            return None
        planned = Counter(self.plan)
        done: Counter[str] = Counter()
        for step in self.chain(index):
            names = (step.work_item_id, step.checkpoint_type)
            name = next((name for name in names if name is not None and planned[name] > done[name]), None)
            if name is not None:
                done[name] += 1
        left = []
        for name in self.plan:
            if done[name]:
                done[name] -= 1
            else:
                left.append(name)
        return tuple(left)

    def in_doubt(self) -> tuple[BegunStep, ...]:
        """Return the steps that were begun and not committed, oldest first."""
        return tuple(self.begun.values())

    # --- what is recorded --------------------------------------------------------------------------------------------

    def metadata(self, *, plan: tuple[str, ...] | None = None, head: int | None = None) -> dict[str, Any]:
        """Return what every record of the task carries.

        Args:
            plan: another plan than so far.
            head: another head than so far; the index of a step that is about to be added, too.
        """
        plan = self.plan if plan is None else plan
        head = self.head if head is None else head
        said: dict[str, Any] = {}
        if plan is not None:
            said["plan"] = list(plan)
        if head < len(self.committed) - 1:
            said["head"] = head
        return {"base_path": self.base_path, "manager": said}

    def new_path(self, checkpoint_type: str, gone: Sequence[str] = ()) -> str:
        """Return the place of the next step of a type; none is given twice by one log.

        Args:
            checkpoint_type: the type.
            gone: the begun steps that it takes the place of, by their ids in the store.
        """
        if self._uses is None:
            self._uses = Counter(step.checkpoint_type for step in self.committed)
        taken = {step.path for step in self.without_begun(gone).values()}
        while True:
            path = path_of(checkpoint_type, self._uses[checkpoint_type])
            self._uses[checkpoint_type] += 1
            if path not in taken:
                return path

    def superseded_by(self, checkpoint_type: str, work_item_id: str | None, attempt: int) -> list[str]:
        """Return the begun steps that a new one takes the place of: the same work, begun by an earlier attempt.

        Args:
            checkpoint_type: its type.
            work_item_id: its piece of work.
            attempt: the attempt that begins it now.
        """
        return [
            local_id
            for local_id, step in self.begun.items()
            if step.attempt < attempt and (step.checkpoint_type, step.work_item_id) == (checkpoint_type, work_item_id)
        ]

    def without_begun(self, gone: Sequence[str]) -> dict[str, BegunStep]:
        """Return the begun steps but for some.

        Args:
            gone: their ids in the store.
        """
        return {local_id: step for local_id, step in self.begun.items() if local_id not in gone}

    def add(self, step: CommittedStep) -> None:
        """Note a committed step: it is where the task stands now.

        Args:
            step: the step.
        """
        local_id = local_part(step.id, self.task_id)
        self.committed.append(step)
        self.head = self.live[local_id] = len(self.committed) - 1
        self.begun.pop(local_part(step.step_id, self.task_id), None)

    def committed_as(self, local_step_id: str) -> CommittedStep | None:
        """Return what a step was committed as, or None.

        Args:
            local_step_id: the id under which it was begun, in the store.
        """
        step_id = public_id(self.task_id, local_step_id)
        return next((step for step in reversed(self.committed) if step.step_id == step_id), None)

    # --- what may go -------------------------------------------------------------------------------------------------

    def needed(self, verified: CommittedStep | None) -> list[CommittedStep]:
        """Return the checkpoints that nothing but their names removes.

        They are the newest, the one that the task stands behind, and the newest verified one.

        Args:
            verified: the newest verified one, or None.
        """
        current = self.current()
        found = [*self.live_steps()[:1], *([self.committed[current]] if current >= 0 else [])]
        return found if verified is None else [*found, verified]

    def needed_sequences(self) -> frozenset[int]:
        """Return the places of the records that the task rests on: of those checkpoints, and of the steps in doubt.

        Plan and head are in every record, and so in the newest.
        """
        steps = self.live_steps()
        verified = next((step for step in steps if step.verified), None)
        if verified is None:  # where nobody checked any, the newest that might hold
            verified = next((step for step in steps if step.has_claims and step.outcome is None), None)
        begun = map(sequence_in_marker, self.begun)
        return frozenset([*(step.sequence for step in self.needed(verified)), *begun])

    def settle(self, local_ids: Iterable[str]) -> None:
        """Note that begun steps are not in doubt any more, and were not committed.

        Args:
            local_ids: their ids in the store.
        """
        self.settled += (gone := list(local_ids))
        self.begun = self.without_begun(gone)

    def to_remove(self, most: int, verified: CommittedStep | None) -> list[CommittedStep]:
        """Return the checkpoints that are too many, oldest first.

        Never among them: those that are needed.

        Args:
            most: how many may stay.
            verified: the newest verified one, or None.
        """
        steps = self.live_steps()
        kept = {step.id for step in self.needed(verified)}
        for step in steps:
            if len(kept) >= most:
                break
            kept.add(step.id)
        return [step for step in reversed(steps) if step.id not in kept]
