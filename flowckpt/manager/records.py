"""What a manager tells of a task: its begun steps, its committed ones, and where it can be taken up again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

from flowckpt.checkpoint.result import look
from flowckpt.evidence.model import EvidencePack
from flowckpt.evidence.verdict import PackOutcome


@attrs.frozen
class BegunStep:
    """A step that was begun and not committed: one that runs now, or one in doubt after a crash.

    Attributes:
        step_id: what `commit_step` and `abandon_step` take.
        task_id: the task.
        path: its place in the task.
        checkpoint_type: what kind of step it is.
        work_item_id: which piece of work it is, or None.
        metadata: what the program noted about it.
        begun_at: when it was begun, aware and in UTC.
        attempt: the attempt of the task that began it.
        began_ns: the monotonic clock at its beginning, in nanoseconds; None where another process began it.
    """

    step_id: str
    task_id: str
    path: str
    checkpoint_type: str
    work_item_id: str | None
    metadata: Mapping[str, Any]
    begun_at: datetime
    attempt: int
    _snapshot: Any = attrs.field(default=None, eq=look, repr=False, alias="snapshot")
    began_ns: int | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def held_snapshot(self) -> Any:
        """The snapshot as the record holds it, encoded."""
        return self._snapshot

    @property
    def snapshot(self) -> Any:
        """The state at the beginning of the step; a fresh value at each access."""
        return look(self._snapshot)


@attrs.frozen
class CommittedStep:
    """A step that was committed.

    Attributes:
        id: its checkpoint's id, which names the task too: `TASK@CHECKPOINT`.
        task_id: the task.
        step_id: the id under which it was begun.
        path: its place in the task.
        checkpoint_type: what kind of step it is.
        work_item_id: which piece of work it is, or None.
        metadata: what the program noted about it.
        sequence: its checkpoint's place in the task; it grows, and is no clock.
        begun_at: when it was begun, aware and in UTC.
        saved_at: when it was committed, aware and in UTC.
        duration_ms: how long it took, in milliseconds; 0 where another process began it.
        after: the step that it goes on from, as an index into the committed ones; -1 for none.
    """

    id: str
    task_id: str
    step_id: str
    path: str
    checkpoint_type: str
    work_item_id: str | None
    metadata: Mapping[str, Any]
    sequence: int
    begun_at: datetime
    saved_at: datetime
    duration_ms: float
    after: int = attrs.field(repr=False)
    _evidence: Mapping[str, Any] | None = attrs.field(repr=False, alias="evidence")

    @property
    def outcome(self) -> PackOutcome | None:
        """What its evidence said when it was committed; None where nobody asked."""
        if self._evidence is None:
            return PackOutcome.NO_EVIDENCE
        said = self._evidence.get("outcome")
        return None if said is None else PackOutcome(said)

    @property
    def verified(self) -> bool:
        """Whether its evidence held when it was committed. What holds now, `verify_checkpoint` finds out."""
        return self.outcome is PackOutcome.VERIFIED

    @property
    def has_claims(self) -> bool:
        """Whether there is anything to verify."""
        return bool(self._evidence and self._evidence["pack"]["evidence"])

    @property
    def evidence_pack(self) -> EvidencePack:
        """What it claims of the outside world, with the facts of its commit; empty where it claims nothing."""
        return EvidencePack([]) if self._evidence is None else EvidencePack.from_document(self._evidence["pack"])


@attrs.frozen
class TaskCheckpoint(CommittedStep):
    """A committed step with the state that it left."""

    @classmethod
    def of(cls, step: CommittedStep, snapshot: Any) -> TaskCheckpoint:
        """Return a step with its state.

        Args:
            step: the step.
            snapshot: the state, as the record holds it.
        """
        return cls(*(getattr(step, field.name) for field in attrs.fields(CommittedStep)), snapshot=snapshot)

    _snapshot: Any = attrs.field(default=None, eq=look, repr=False, alias="snapshot", kw_only=True)

    @property
    def snapshot(self) -> Any:
        """The state; a fresh value at each access."""
        return look(self._snapshot)


@attrs.frozen
class RestoredTask:
    """Where a task can be taken up again.

    Attributes:
        task_id: the task.
        checkpoint: the newest checkpoint that counts; None where no step was committed.
        completed: the committed steps that led there, oldest first.
        remaining: the planned steps that are not completed; None where no plan was made.
        in_doubt: the steps that were begun and not committed, oldest first.
        is_finished: whether the task was finished.
    """

    task_id: str
    checkpoint: TaskCheckpoint | None
    completed: tuple[CommittedStep, ...]
    remaining: tuple[str, ...] | None
    in_doubt: tuple[BegunStep, ...]
    is_finished: bool = False

    @property
    def snapshot(self) -> Any:
        """The state to go on with; None where no step was committed."""
        return None if self.checkpoint is None else self.checkpoint.snapshot
