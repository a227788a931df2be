"""The resume plan, as a value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import attrs

from flowckpt.core.records.wait import Signal, Wait, WaitKind, shown_moment
from flowckpt.engine.rules.reasons import Reason, ReasonKind


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


# What a resume does with a step that waits, in a sentence. Rules, without I/O.


def message_for(wait: Wait, messages: Iterable[Signal]) -> Signal | None:
    """Return the message that ends a wait: the first that was sent before its deadline; None where there is none.

    Args:
        wait: the wait.
        messages: those that nobody has taken, in the order in which they are taken.
    """
    for message in messages:
        if message.ends(wait) and (wait.due_at is None or message.sent_at < wait.due_at):
            return message
    return None


def wait_reason(wait: Wait, message: Signal | None, moved: Sequence[str] = ()) -> Reason:
    """Return what a resume finds at a step that waits.

    Args:
        wait: the wait.
        message: what ends it, if that was sent.
        moved: what speaks against what is to be approved, claim by claim; empty where it is as it was asked for.
    """
    found = f"it {wait.said} since {shown_moment(wait.since)}"
    is_rejected = message is not None and wait.kind is WaitKind.APPROVAL and not message.data.get("approved")
    if message is not None:
        by = f" by {message.by}" if message.by else ""
        what = "sent" if wait.kind is not WaitKind.APPROVAL else "rejected" if is_rejected else "approved"
        found += f"; it was {what}{by} at {shown_moment(message.sent_at)}"
    if moved and not is_rejected:
        found += f"; what is to be approved has changed since ({'; '.join(moved)}): the resume asks anew"
    elif message is not None:
        found += ": the resume takes it"
    return Reason(ReasonKind.STARTED, found)


def untaken(messages: Iterable[Signal], taken: Iterable[str]) -> list[Signal]:
    """Return the messages that nobody has taken.

    Args:
        messages: what lies in the store.
        taken: the ids that the record names.
    """
    known = {*taken}
    return [message for message in messages if message.signal_id not in known]
