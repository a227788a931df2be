"""Light descriptions of checkpoints, runs and owners, for listing without loading."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

import attrs

from flowckpt.core.records import wait
from flowckpt.core.records.checkpoint import CheckpointData, Reason, Status, verified_after
from flowckpt.core.records.wait import Wait
from flowckpt.errors import SettingError


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
        return wait.waits_in(self.metadata) if self.status is Status.SUSPENDED else ()

    @property
    def due_at(self) -> datetime | None:
        """When a suspended run goes on by itself, if it is resumed; None where only a signal can end its waits."""
        return wait.due_at(self.waits)


# Which runs of a store are wanted: a rule over the description of a run.


def _statuses(value: Collection[Status | str] | None) -> frozenset[Status] | None:
    if value is None:
        return None
    try:
        return frozenset(Status(each) for each in value)
    except ValueError:
        known = ", ".join(Status)
        raise SettingError(
            f"no run has one of the statuses {[*value]!r:.80}", setting="statuses", remedy=f"They are {known}."
        ) from None


def _tags(value: Iterable[tuple[str, str | None]]) -> tuple[tuple[str, str | None], ...]:
    return tuple(value)


def _checked_limit(_: object, __: object, value: Any) -> None:
    if value is not None and (type(value) is not int or value < 1):
        raise SettingError(
            f"limit is a whole number from 1 on, not {value!r:.80}", setting="limit", remedy="Write limit=100."
        )


@attrs.frozen(kw_only=True)
class RunFilter:
    """Which runs are wanted; what is None, or empty, does not matter.

    Attributes:
        statuses: only those that stand so; `crashed` and `running` are told apart by whether there is a live owner.
        workflow: only those of this workflow, by name.
        tags: only those that have all of these tags: the name, and the value, or None for any.
        limit: at most so many, those that were started last.
    """

    statuses: frozenset[Status] | None = attrs.field(default=None, converter=_statuses)
    workflow: str | None = None
    tags: tuple[tuple[str, str | None], ...] = attrs.field(default=(), converter=_tags)
    limit: int | None = attrs.field(default=None, validator=_checked_limit)

    def takes(self, info: RunInfo) -> bool:
        """Tell whether a run is wanted, whatever the limit.

        Args:
            info: the run.
        """
        return (
            (self.statuses is None or info.status in self.statuses)
            and (self.workflow is None or info.workflow_name == self.workflow)
            and all(name in info.tags and value in (None, info.tags[name]) for name, value in self.tags)
        )

    def of(self, runs: Iterable[RunInfo]) -> list[RunInfo]:
        """Return those of some runs that are wanted.

        Args:
            runs: the runs, the one started last first.
        """
        return [info for info in runs if self.takes(info)][: self.limit]


# Which checkpoints of a run are wanted.


def _checked_attempt(_: object, __: object, value: Any) -> None:
    if value is not None and (type(value) is not int or value < 1):
        raise SettingError(
            f"an attempt is a whole number from 1 on, not {value!r:.80}", setting="attempt", remedy="Write attempt=2."
        )


def _checked_selection_limit(_: object, __: object, value: Any) -> None:
    if value is not None and (type(value) is not int or value < 0):
        raise SettingError(
            f"limit is a whole number from 0 on, not {value!r:.80}", setting="limit", remedy="Write limit=100."
        )


def _checked_verified(_: object, __: object, value: Any) -> None:
    if value is not None and type(value) is not bool:
        raise SettingError(
            f"verified is True, False or None, not {value!r:.80}", setting="verified", remedy="Write verified=True."
        )


def _reason(value: Reason | str | None) -> Reason | None:
    if value is None:
        return None
    try:
        return Reason(value)
    except ValueError:
        known = ", ".join(Reason)
        raise SettingError(
            f"no checkpoint is taken for the reason {value!r:.80}", setting="reason", remedy=f"It is one of {known}."
        ) from None


@attrs.frozen(kw_only=True)
class Selection:
    """Which checkpoints of a run are wanted; what is None does not matter.

    Attributes:
        attempt: only those that this attempt saved.
        reason: only those that were taken for this reason.
        verified: only those whose evidence was found to hold (True), or was not (False).
        limit: at most so many, the newest.
    """

    attempt: int | None = attrs.field(default=None, validator=_checked_attempt)
    reason: Reason | None = attrs.field(default=None, converter=_reason)
    verified: bool | None = attrs.field(default=None, validator=_checked_verified)
    limit: int | None = attrs.field(default=None, validator=_checked_selection_limit)

    def takes(self, reference: CheckpointRef) -> bool:
        """Tell whether a checkpoint is one of those wanted; the limit does not matter here."""
        return (
            self.attempt in (None, reference.attempt)
            and self.reason in (None, reference.reason)
            and (self.verified is None or self.verified is reference.verified)
        )

    def of(self, references: Iterable[CheckpointRef]) -> list[CheckpointRef]:
        """Return the wanted ones among checkpoints.

        Args:
            references: the checkpoints, newest first.
        """
        return [reference for reference in references if self.takes(reference)][: self.limit]


EVERY = Selection()
"""All checkpoints of a run."""
