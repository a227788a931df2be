"""Which runs are to be resumed now: a rule over how they stand, without I/O."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

import attrs

from flowckpt.checkpoint import Status
from flowckpt.checkpoint.reference import RunInfo
from flowckpt.manager.task import WORKFLOW_NAME as MANAGED

RECOVERED_STATUSES = frozenset({Status.CRASHED, Status.SUSPENDED})
"""How a run stands that may be due. One that failed or was cancelled waits for a person."""

State: TypeAlias = tuple[str, int, int, datetime, str]
"""What tells a run that has moved from one that stands where it stood."""


class Why(StrEnum):
    """Why a run is to be resumed."""

    CRASHED = "crashed"
    STOPPED = "stopped"
    DUE = "due"
    SIGNALLED = "signalled"
    DAMAGED = "damaged"

    @property
    def said(self) -> str:
        """The reason, for people."""
        return _SAID[self]


_SAID = {
    Why.CRASHED: "its process is gone",
    Why.STOPPED: "it was stopped to be gone on with",
    Why.DUE: "its time has come",
    Why.SIGNALLED: "what it waits for was sent",
    Why.DAMAGED: "whether it is due cannot be read",
}


@attrs.frozen
class DueRun:
    """A run that is to be resumed.

    Attributes:
        info: the run as it stood when it was looked at.
        why: why.
        damage: what cannot be read of it; empty where all can. It is left as it is, and told.
    """

    info: RunInfo
    why: Why
    damage: str = ""

    @property
    def workflow_id(self) -> str:
        """The run."""
        return self.info.workflow_id

    @property
    def state(self) -> State:
        """How it stands."""
        info = self.info
        return info.status.value, info.attempt, info.steps, info.updated_at, self.why.value


def why_due(info: RunInfo, now: datetime, *, waits: int, due_at: datetime | None, is_signalled: bool) -> Why | None:
    """Return why a run is to be resumed now, or None where it is not.

    Args:
        info: the run.
        now: the time, aware.
        waits: how many of its steps wait.
        due_at: when the first of them ends by itself; None where none does.
        is_signalled: whether something lies there that one of them waits for.
    """
    if info.owner is not None:  # it waits, and its process stays
        return None
    if info.workflow_name == MANAGED:  # a task of a checkpoint manager: only its own loop can go on with it
        return None
    if info.status is Status.CRASHED:
        return Why.CRASHED
    if info.status is not Status.SUSPENDED:
        return None
    if not waits:
        return Why.STOPPED
    if due_at is not None and due_at <= now:
        return Why.DUE
    return Why.SIGNALLED if is_signalled else None
