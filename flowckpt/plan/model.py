"""The resume plan, as a value."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import attrs

from flowckpt.plan.reason import Reason


class Decision(StrEnum):
    """What a resume does with a step."""

    REUSE = "reuse"
    RERUN = "rerun"
    NEW = "new"
    IN_DOUBT = "in_doubt"
    ORPHANED = "orphaned"
    UNDO = "undo"
    """Undo what it did: the run stopped while its steps were undone."""
    KEEP = "keep"
    """Neither run nor undo it: nothing but undoing is done."""


@attrs.frozen
class PlannedStep:
    """What a resume would do with one step, and why.

    Attributes:
        path: the step.
        decision: what would be done with it.
        reasons: why it is not simply reused; a reused one has reasons only where the policy sets them aside.
        assumes: the first of the steps that run again before it, and are taken to return what they returned before.
        duration_ms: how long it took when it was recorded, in milliseconds; None where it was not.
        location: `file:line` of its `yield`, where known.
    """

    path: str
    decision: Decision
    reasons: tuple[Reason, ...] = ()
    assumes: tuple[str, ...] = ()
    duration_ms: float | None = None
    location: str = ""

    @property
    def is_stale(self) -> bool:
        """Whether its recorded result is no longer true; a step in doubt has none."""
        return self.decision is not Decision.IN_DOUBT and any(reason.makes_stale for reason in self.reasons)

    def to_document(self) -> dict[str, Any]:
        """Return the step as plain JSON."""
        document: dict[str, Any] = {
            "path": self.path,
            "decision": str(self.decision),
            "reasons": [reason.to_document() for reason in self.reasons],
        }
        if self.assumes:
            document["assumes"] = list(self.assumes)
        return {**document, "duration_ms": self.duration_ms, "location": self.location}


@attrs.frozen
class ResumePlan:
    """What a resume would reuse and what it would run.

    Attributes:
        workflow_id: the run.
        workflow_name: its workflow.
        steps: the steps in the order in which the workflow yields them; what it yields no more at the end.
        ends_at: why the plan cannot see further, in one sentence; empty where it sees the end of the workflow.
        stops: why the resume would stop, in one sentence, as far as it can be foreseen; empty where it would go on.
        stopped_by: the step that it would stop at.
        is_parked: whether it would stop because the run died too often at the same step.
        is_undoing: whether it would run nothing, but undo what is left of a run that stopped while it was undone. Its
            steps are those to undo, in that order, and then the others in that of the record.
    """

    workflow_id: str
    workflow_name: str
    steps: Sequence[PlannedStep]
    ends_at: str = ""
    stops: str = ""
    stopped_by: str = ""
    is_parked: bool = False
    is_undoing: bool = False

    @property
    def stale(self) -> int:
        """How many recorded results are no longer true."""
        return sum(step.is_stale for step in self.steps)

    @property
    def is_nothing_to_do(self) -> bool:
        """Whether a resume would run nothing and stop at nothing."""
        return not self.stops and all(step.decision is Decision.REUSE for step in self.steps)

    @property
    def stale_stop(self) -> PlannedStep | None:
        """The stale step that the resume would stop at, if that is why it stops."""
        stopped = self.step(self.stopped_by) if self.stops else None
        return stopped if stopped is not None and stopped.is_stale else None

    def step(self, path: str) -> PlannedStep | None:
        """Return the step of a path, or None.

        Args:
            path: the step.
        """
        return next((step for step in self.steps if step.path == path), None)

    def count(self, decision: Decision) -> int:
        """Return how many steps have this decision.

        Args:
            decision: which.
        """
        return sum(step.decision is decision for step in self.steps)

    def to_document(self) -> dict[str, Any]:
        """Return the plan as plain JSON: what `plan --json` prints."""
        return {
            "workflow_id": self.workflow_id,
            "workflow_name": self.workflow_name,
            "steps": [step.to_document() for step in self.steps],
            "stale": self.stale,
            "ends_at": self.ends_at,
            "stops": self.stops,
            "undoing": self.is_undoing,
        }
