"""Light descriptions of checkpoints, runs and owners, for listing without loading."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

import attrs

from flowckpt.core.records import wait
from flowckpt.core.records.checkpoint import CheckpointData, Reason, Status, verified_after
from flowckpt.core.records.wait import Wait
from flowckpt.core.system.attrs_base import FieldEquality, ShownInNotebook, lazy_frozen
from flowckpt.core.system.process import ProcessIdentity
from flowckpt.errors import InputError, SettingError

ROLLED_BACK = "rolled_back_to"
"""Metadata key of a rollback's checkpoint: the checkpoint that the run returned to."""
MANAGED = "CheckpointManager"
"""The workflow name of a `CheckpointManager` task, which is stored like a run."""
MANAGER = "manager"
"""The key of such a task in its metadata."""
IMPORTED = "imported"
"""Metadata key: the run was imported from an untrusted file, and no person has resumed it yet.

Such a run is held. It is never due, its program is not imported unasked, and its approvals and signals do not count
unless the file was authenticated.
"""
AUTHENTICATED = "authenticated"
"""The value of that key if the file was signed with a key of the store. Otherwise it is True, and no answer counts."""


STARTED_BY = "started_by"
"""Metadata key of a run started by another run: that run, the path of its step, and the attempt that recorded it."""


def is_not_started(metadata: Mapping[str, Any], attempt: int) -> bool:
    """Return whether a run was started by another run, and no process has driven it yet."""
    started_by = metadata.get(STARTED_BY)
    return isinstance(started_by, Mapping) and started_by.get("attempt") == attempt


def is_task(data: CheckpointData) -> bool:
    """Return whether a checkpoint belongs to a task of a `CheckpointManager`."""
    return data.workflow_name == MANAGED and MANAGER in data.metadata


def refuse_task(workflow_id: str, latest: CheckpointData) -> None:
    """Refuse a task of a checkpoint manager: a resume cannot drive it.

    Args:
        workflow_id: the run.
        latest: its newest checkpoint.

    Raises:
        InputError: it is a task of a checkpoint manager.
    """
    if is_task(latest):
        raise InputError(
            f"{workflow_id!r} is a task of a CheckpointManager, not a run of a workflow",
            parameter="workflow_id",
            remedy="Run the program that made the task to continue it; its manager can roll it back: "
            "await manager.rollback_to_checkpoint(id).",
        )


@lazy_frozen(eq=False, repr=False)
class CheckpointRef(FieldEquality):
    """A checkpoint without its contents.

    Attributes:
        checkpoint_id: its id.
        sequence: its place in the run.
        attempt: the attempt that saved it.
        reason: why it was taken.
        saved_at: when it was saved.
        steps: the number of results it holds.
        size: bytes of its record including its new results, without large values.
        verified: whether the claims of all its results held when their steps ended; None without claims. It is computed
            from the results, so it does not change; `flowckpt verify` checks what holds now.
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
        """Return the reference to a checkpoint.

        Args:
            workflow_id: the run.
            data: the checkpoint.
            size: bytes of its record.
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


def make_reference(
    workflow_id: str, head: Mapping[str, Any], attempt: int, steps: int, size: int, verified: bool | None
) -> CheckpointRef:
    """Return the reference to a checkpoint with the given encoded head; for the other arguments, see the class."""
    saved_at = datetime.fromisoformat(head["saved_at"])
    place = head["checkpoint_id"], head["sequence"], attempt
    return CheckpointRef(workflow_id, *place, Reason(head["reason"]), saved_at, steps, size, verified)


@lazy_frozen(eq=False, repr=False)
class Owner(FieldEquality):
    """The process that owns an attempt of a run. A pid alone is ambiguous, because pids are reused.

    Attributes:
        host: the machine's name.
        boot_id: the boot, the machine and the PID namespace, or empty if the system has no boot id.
        pid: the process id.
        start_time: when the process started, in the kernel's ticks; 0 if unknown.
        acquired_at: when it took the run.
    """

    host: str
    boot_id: str
    pid: int
    start_time: int
    acquired_at: datetime

    @property
    def process(self) -> ProcessIdentity:
        """The process, regardless of when it took the run."""
        return ProcessIdentity(self.host, self.boot_id, self.pid, self.start_time)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.acquired_at:%Y-%m-%d %H:%M:%S} UTC"


@lazy_frozen(eq=False, repr=False)
class RunInfo(FieldEquality, ShownInNotebook):
    """A run in a list, available without loading the run.

    Attributes:
        workflow_name: its workflow.
        status: its status; `crashed` if its owner is gone.
        attempt: its newest attempt.
        started_at: when its first checkpoint was saved, even if that was removed since.
        updated_at: when its newest checkpoint was saved.
        steps: the number of results in its newest checkpoint.
        metadata: its target, tags and more.
        owner: its live owner, or None.
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

    @classmethod
    def of(cls, workflow_id: str, newest: CheckpointData, started_at: datetime) -> RunInfo:
        """Return a run as its newest checkpoint describes it, without its owner.

        Args:
            workflow_id: the run.
            newest: the checkpoint.
            started_at: when its first checkpoint was saved.
        """
        return cls(
            workflow_id,
            newest.workflow_name,
            newest.status,
            newest.attempt,
            started_at,
            newest.saved_at,
            len(newest.step_results),
            newest.metadata,
        )

    def with_owner(self, owner: Owner | None) -> RunInfo:
        """Return the same run with its live owner; a running run without an owner has crashed."""
        status = Status.CRASHED if self.status is Status.RUNNING and owner is None else self.status
        return attrs.evolve(self, owner=owner, status=status)

    def contradicted_by(self, newest: CheckpointData, oldest: CheckpointRef | None = None) -> str:
        """Return the first field that the run's record contradicts, or an empty text.

        A list reads one line or one row, unverified, so a removal of runs must not rely on it.

        Args:
            newest: the run's newest checkpoint, verified.
            oldest: its oldest remaining checkpoint, verified; None to leave out `started_at`.
        """
        recorded = {
            "workflow_name": (self.workflow_name, newest.workflow_name),
            "status": (Status.RUNNING if self.status is Status.CRASHED else self.status, newest.status),
            "attempt": (self.attempt, newest.attempt),
            "updated_at": (self.updated_at, newest.saved_at),
            "steps": (self.steps, len(newest.step_results)),
            "metadata": (self.metadata, newest.metadata),
        }
        for name, (listed, held) in recorded.items():
            if listed != held:
                return name
        if oldest is None:
            return ""
        is_first = oldest.sequence == 1  # the first checkpoint may have been removed since
        is_wrong = self.started_at != oldest.saved_at if is_first else self.started_at > oldest.saved_at
        return "started_at" if is_wrong else ""

    @property
    def tags(self) -> Mapping[str, str]:
        """The run's tags."""
        tags: Mapping[str, str] = self.metadata.get("tags", {})
        return tags

    @property
    def is_held(self) -> bool:
        """Whether the run was imported, and no person has resumed it yet."""
        return IMPORTED in self.metadata

    @property
    def waits(self) -> tuple[Wait, ...]:
        """The waits of a suspended run; otherwise empty."""
        return wait.waits_in(self.metadata) if self.status is Status.SUSPENDED else ()

    @property
    def due_at(self) -> datetime | None:
        """When the first wait of a suspended run ends by itself; None if only a signal can end them."""
        return wait.due_at(self.waits)


# Filters of runs, by their descriptions.


def sort_key(info: RunInfo) -> tuple[datetime, str]:
    """Return the place of a run in a list by age."""
    return info.started_at, info.workflow_id


def _to_statuses(value: Collection[Status | str] | None) -> frozenset[Status] | None:
    if value is None:
        return None
    try:
        return frozenset(Status(each) for each in value)
    except ValueError:
        known = ", ".join(Status)
        raise SettingError(
            f"no run has one of the statuses {[*value]!r:.80}", setting="statuses", remedy=f"They are {known}."
        ) from None


def _to_tags(value: Iterable[tuple[str, str | None]]) -> tuple[tuple[str, str | None], ...]:
    return tuple(value)


def _whole_number_validator(least: int, example: int) -> Callable[[object, attrs.Attribute[Any], Any], None]:
    """Make the validator of a field that is None or a whole number."""

    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        if value is not None and (type(value) is not int or value < least):
            problem = f"{field.name} must be a whole number from {least}, got {value!r:.80}"
            raise SettingError(problem, setting=field.name, remedy=f"Write {field.name}={example}.")

    return check


def _check_before(_: object, __: object, value: Any) -> None:
    if value is None:
        return
    is_place = isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], datetime) and type(value[1]) is str
    if not is_place or value[0].tzinfo is None:
        raise SettingError(
            f"before must be the start time of a run, with a time zone, and its id, got {value!r:.80}",
            setting="before",
            remedy="Write before=(info.started_at, info.workflow_id).",
        )


class RunList(list[RunInfo], ShownInNotebook):
    """Runs, most recently started first; a notebook shows them as a table."""


@lazy_frozen(kw_only=True, eq=False, repr=False)
class RunFilter(FieldEquality):
    """Selects runs; None or empty means any.

    Attributes:
        statuses: the statuses; `running` runs have a live owner, `crashed` ones have none.
        workflow: the name of their workflow.
        tags: tags that all must have: a name, and a value or None for any.
        limit: at most this many, the most recently started.
        text: a part of their ids, in any case.
        before: the start time and id of a run: select only runs after it in the list, most recently started first. The
            run need not exist any more.
    """

    statuses: frozenset[Status] | None = attrs.field(default=None, converter=_to_statuses)
    workflow: str | None = None
    tags: tuple[tuple[str, str | None], ...] = attrs.field(default=(), converter=_to_tags)
    limit: int | None = attrs.field(default=None, validator=_whole_number_validator(1, 100))
    text: str = ""
    before: tuple[datetime, str] | None = attrs.field(default=None, validator=_check_before)

    def takes(self, info: RunInfo) -> bool:
        """Return whether a run is selected, regardless of `before` and the limit."""
        return (
            self.text.lower() in info.workflow_id.lower()
            and (self.statuses is None or info.status in self.statuses)
            and (self.workflow is None or info.workflow_name == self.workflow)
            and all(name in info.tags and value in (None, info.tags[name]) for name, value in self.tags)
        )

    def of(self, runs: Iterable[RunInfo]) -> list[RunInfo]:
        """Return the selected runs among runs in the order of the list."""
        if self.before is not None:
            runs = self._after(self.before, [*runs])
        return RunList([info for info in runs if self.takes(info)][: self.limit])

    @staticmethod
    def _after(before: tuple[datetime, str], runs: list[RunInfo]) -> list[RunInfo]:
        started_at, workflow_id = before
        for index, info in enumerate(runs):
            if info.workflow_id == workflow_id:  # runs with the same start time are in any order
                return runs[index + 1 :]
        return [info for info in runs if info.started_at < started_at]


# Filters of a run's checkpoints.


def _check_verified(_: object, __: object, value: Any) -> None:
    if value is not None and type(value) is not bool:
        raise SettingError(
            f"verified must be True, False or None, got {value!r:.80}",
            setting="verified",
            remedy="Write verified=True.",
        )


def _to_reason(value: Reason | str | None) -> Reason | None:
    if value is None:
        return None
    try:
        return Reason(value)
    except ValueError:
        known = ", ".join(Reason)
        raise SettingError(
            f"no checkpoint is taken for the reason {value!r:.80}", setting="reason", remedy=f"It is one of {known}."
        ) from None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Selection(FieldEquality):
    """Selects checkpoints of a run; None means any.

    Attributes:
        attempt: the attempt that saved them.
        reason: why they were taken.
        verified: whether their evidence held.
        limit: at most this many, the newest.
    """

    attempt: int | None = attrs.field(default=None, validator=_whole_number_validator(1, 2))
    reason: Reason | None = attrs.field(default=None, converter=_to_reason)
    verified: bool | None = attrs.field(default=None, validator=_check_verified)
    limit: int | None = attrs.field(default=None, validator=_whole_number_validator(0, 100))

    def takes(self, reference: CheckpointRef) -> bool:
        """Return whether a checkpoint is selected, regardless of the limit."""
        return (
            self.attempt in (None, reference.attempt)
            and self.reason in (None, reference.reason)
            and (self.verified is None or self.verified is reference.verified)
        )

    def of(self, references: Iterable[CheckpointRef]) -> list[CheckpointRef]:
        """Return the selected checkpoints."""
        return [reference for reference in references if self.takes(reference)][: self.limit]


EVERY = Selection()
"""All checkpoints of a run."""
