"""Light descriptions of checkpoints, runs and owners, for listing without loading."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

from flowckpt.checkpoint import recorded_waits
from flowckpt.checkpoint.data import CheckpointData, Reason, Status
from flowckpt.checkpoint.verified import verified_after
from flowckpt.checkpoint.wait import Wait


@attrs.frozen
class CheckpointRef:
    """A checkpoint without its contents.

    Attributes:
        workflow_id: the run.
        checkpoint_id: the checkpoint's id.
        sequence: its place in the run.
        attempt: the attempt that saved it.
        reason: why it was taken.
        saved_at: when.
        steps: how many results it holds.
        size: bytes that its own record takes, with the results that are new in it; large values lie elsewhere.
        verified: whether the claims of all results that it holds were found to hold when their steps ended; False
            where one was not, None where there are none.
    """

    workflow_id: str
    checkpoint_id: str
    sequence: int
    attempt: int
    reason: Reason
    saved_at: datetime
    steps: int = 0
    size: int = 0
    verified: bool | None = None

    @classmethod
    def of(cls, workflow_id: str, data: CheckpointData, *, size: int = 0) -> CheckpointRef:
        """Return the reference to a checkpoint that is at hand.

        Args:
            workflow_id: the run.
            data: the checkpoint.
            size: bytes that its own record takes.
        """
        return cls(
            workflow_id,
            data.checkpoint_id,
            data.sequence,
            data.attempt,
            data.reason,
            data.saved_at,
            len(data.step_results),
            size,
            verified_after(None, data.step_results),
        )


@attrs.frozen
class Owner:
    """The process that owns an attempt of a run. A pid alone is none: pids come again.

    Attributes:
        host: the machine's name.
        boot_id: the machine's boot, or an empty string where the system has no such id.
        pid: the process.
        start_time: when the process started, in the kernel's ticks; 0 where unknown.
        acquired_at: when it took the run.
    """

    host: str
    boot_id: str
    pid: int
    start_time: int
    acquired_at: datetime

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.acquired_at:%Y-%m-%d %H:%M:%S} UTC"


@attrs.frozen
class RunInfo:
    """A run in a list.

    Attributes:
        workflow_id: the run.
        workflow_name: its workflow.
        status: where it stands; `crashed` where its owner is gone.
        attempt: its newest attempt.
        started_at: when its first checkpoint was saved, also where that was removed since.
        updated_at: when its newest checkpoint was saved.
        steps: how many results the newest checkpoint holds.
        metadata: its target, tags and the like.
        owner: who runs it now, or None.
    """

    workflow_id: str
    workflow_name: str
    status: Status
    attempt: int
    started_at: datetime
    updated_at: datetime
    steps: int
    metadata: Mapping[str, Any]
    owner: Owner | None = None

    def with_owner(self, owner: Owner | None) -> RunInfo:
        """Return the same run with its live owner; a running one without an owner has crashed."""
        status = Status.CRASHED if self.status is Status.RUNNING and owner is None else self.status
        return attrs.evolve(self, owner=owner, status=status)

    @property
    def tags(self) -> Mapping[str, str]:
        """The run's tags."""
        tags: Mapping[str, str] = self.metadata.get("tags", {})
        return tags

    @property
    def waits(self) -> tuple[Wait, ...]:
        """What the run waits for; nothing where it is not suspended. Of hundreds, some may have ended meanwhile."""
        return recorded_waits.waits_in(self.metadata) if self.status is Status.SUSPENDED else ()

    @property
    def due_at(self) -> datetime | None:
        """When a suspended run goes on by itself, if it is resumed; None where only a signal can end its waits."""
        return recorded_waits.due_at(self.waits)
