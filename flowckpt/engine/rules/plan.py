"""The resume plan, as a value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import attrs

from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.records.wait import Signal, Wait, WaitKind, format_moment
from flowckpt.core.system.attrs_base import ShownInNotebook
from flowckpt.engine.rules.paths import HandledFailure
from flowckpt.engine.rules.reasons import Reason, ReasonKind


class Decision(StrEnum):
    """The action of a resume for a step.

    Attributes:
        REUSE: its recorded result is used.
        RERUN: it was recorded and runs again.
        NEW: it was not recorded and runs.
        IN_DOUBT: it is to be done at most once, and was started or done; the reasons say what follows.
        INTERRUPTED: it was running when its process died or the run stopped, and runs again.
        CACHED: it takes the result of an equal call; the reason names the run.
        ORPHANED: it was recorded, and the workflow no longer yields it.
        UNDO: it is undone, because the run stopped during a rollback.
        KEEP: it stays as it is while others are undone.
    """

    REUSE = "reuse"
    RERUN = "rerun"
    NEW = "new"
    IN_DOUBT = "in_doubt"
    INTERRUPTED = "interrupted"
    CACHED = "cached"
    ORPHANED = "orphaned"
    UNDO = "undo"
    """Undo its effect: the run stopped during a rollback."""
    KEEP = "keep"
    """Neither run nor undo it: the resume only undoes."""


@attrs.frozen
class PlannedStep:
    """The action of a resume for one step, with its reasons.

    Each reason has a `kind` (`evidence`, `reads`, `packages`, `arguments`, `nondeterminism`, `code`, `version`, `forced`,
    `upstream`, `failed`, `undone`, `undoing`, `started` or `cached`), a `detail`, and `is_proved`, which is False for evidence that could not be checked.

    Attributes:
        decision: what the resume would do.
        reasons: why it is not simply reused; for a reused step, what the policy overrides.
        assumes: earlier steps that run again and are assumed to return the same as before.
        duration_ms: how long the recorded execution took; None without one.
        location: `file:line` of its `yield`, if known.
        may_stop: whether the resume stops here if those steps return something else, or, of a step that the plan has not
            seen, if it is not as recorded.
    """

    path: str
    decision: Decision
    reasons: tuple[Reason, ...] = ()
    assumes: tuple[str, ...] = ()
    duration_ms: float | None = None
    location: str = ""
    may_stop: bool = False

    @property
    def is_stale(self) -> bool:
        """Whether its recorded result is stale."""
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
        if self.may_stop:
            document["may_stop"] = True
        return {**document, "duration_ms": self.duration_ms, "location": self.location}


def redact_steps(steps: Iterable[PlannedStep], secrets: KnownSecrets) -> tuple[PlannedStep, ...]:
    """Return planned steps with the run's secrets removed."""
    if not secrets.is_any:
        return tuple(steps)
    return tuple(
        attrs.evolve(
            step,
            path=secrets.redact(step.path),
            assumes=tuple(map(secrets.redact, step.assumes)),
            reasons=tuple(attrs.evolve(reason, detail=secrets.redact(reason.detail)) for reason in step.reasons),
        )
        for step in steps
    )


NEXT_GENERATION = "the workflow continues as its next generation"
"""Why the plan of such a run ends: the inputs are known, but no later step is recorded."""


@attrs.frozen
class ResumePlan(ShownInNotebook):
    """The actions of a resume, step by step, before it runs.

    Attributes:
        workflow_name: its workflow.
        steps: the steps in the order of the yields; recorded steps that are no longer yielded come last.
        ends_at: why the plan ends before the end of the workflow; otherwise empty.
        stops: why the resume would stop, as far as it can be foreseen; otherwise empty.
        stopped_by: the step at which it would stop.
        is_crash_loop: whether it would stop because of a crash loop.
        is_final: whether it would stop because the run failed with a `FinalError`.
        is_undoing: whether it would only finish a rollback. Then `steps` starts with the steps to undo, in that order.
        ends_otherwise: how the workflow ends now, where that is not how its finished run ended; otherwise empty.
        repeats_effect: whether running the step of `stopped_by` again would repeat an effect that happened once.
        handled: the failure that the workflow handled before the run failed, where a resume would run nothing; or None.
    """

    workflow_id: str
    workflow_name: str
    steps: Sequence[PlannedStep]
    ends_at: str = ""
    stops: str = ""
    stopped_by: str = ""
    is_crash_loop: bool = False
    is_undoing: bool = False
    ends_otherwise: str = ""
    handled: HandledFailure | None = None
    repeats_effect: bool = False
    is_final: bool = False

    @property
    def stale(self) -> int:
        """The number of stale results."""
        return sum(step.is_stale for step in self.steps)

    @property
    def is_nothing_to_do(self) -> bool:
        """Whether a resume would neither run nor stop, nor end in another way than the record says."""
        if self.stops or self.ends_otherwise or self.ends_at == NEXT_GENERATION:
            return False
        return all(step.decision is Decision.REUSE for step in self.steps)

    @property
    def stale_stop(self) -> PlannedStep | None:
        """The step at which the resume would stop because a result is stale or an effect would be repeated, if any."""
        stopped = self.step(self.stopped_by) if self.stops else None
        if stopped is None or stopped.decision is Decision.IN_DOUBT:
            return None
        return stopped if stopped.is_stale or self.repeats_effect else None

    def step(self, path: str) -> PlannedStep | None:
        """Return the step of a path, or None."""
        return next((step for step in self.steps if step.path == path), None)

    def count(self, decision: Decision) -> int:
        """Return the number of steps with a decision."""
        return sum(step.decision is decision for step in self.steps)

    def to_document(self) -> dict[str, Any]:
        """Return the plan as plain JSON, as printed by `flowckpt plan --json`."""
        return {
            "workflow_id": self.workflow_id,
            "workflow_name": self.workflow_name,
            "steps": [step.to_document() for step in self.steps],
            "stale": self.stale,
            "ends_at": self.ends_at,
            "stops": self.stops,
            "undoing": self.is_undoing,
            "ends_otherwise": self.ends_otherwise,
            "handled": self.handled and self.handled.to_document(),
        }


# What a resume does with a waiting step, as a sentence; without I/O.


def wait_reason(wait: Wait, message: Signal | None, moved: Sequence[str] = ()) -> Reason:
    """Return what a resume does with a waiting step.

    Args:
        wait: the wait.
        message: the message that ends it, if one was sent.
        moved: how the facts to approve have changed, claim by claim; empty if they are unchanged.
    """
    text = f"it {wait.said} since {format_moment(wait.since)}"
    is_rejected = message is not None and wait.kind is WaitKind.APPROVAL and not message.data.get("approved")
    if message is not None:
        by = f" by {message.by}" if message.by else ""
        what = "sent" if wait.kind is not WaitKind.APPROVAL else "rejected" if is_rejected else "approved"
        text += f"; it was {what}{by} at {format_moment(message.sent_at)}"
    if moved and not is_rejected:
        text += f"; what is to be approved has changed since ({'; '.join(moved)}): the resume asks again"
    elif message is not None:
        text += ": the resume takes it"
    return Reason(ReasonKind.STARTED, text)
