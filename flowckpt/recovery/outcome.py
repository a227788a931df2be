"""What became of a run that was to be recovered."""

from __future__ import annotations

from enum import StrEnum

import attrs

from flowckpt.recovery.due import Why


class Outcome(StrEnum):
    """What became of it."""

    COMPLETED = "completed"
    SUSPENDED = "suspended"
    CANCELLED = "cancelled"
    FAILED = "failed"
    STOPPED = "stopped"
    SKIPPED = "skipped"
    LEFT = "left"
    DIED = "died"

    @property
    def is_trouble(self) -> bool:
        """Whether somebody should look at the run."""
        return self in (Outcome.FAILED, Outcome.LEFT, Outcome.DIED)


@attrs.frozen
class Recovered:
    """A run that was tried.

    Attributes:
        workflow_id: the run.
        workflow_name: its workflow.
        why: why it was tried.
        outcome: what became of it.
        attempt: its newest attempt afterwards.
        detail: why it was left, failed or died, for people; may be empty.
        exit_code: how its process ended; None where none was started. A negative one is the signal that killed it.
    """

    workflow_id: str
    workflow_name: str
    why: Why
    outcome: Outcome
    attempt: int
    detail: str = ""
    exit_code: int | None = None
