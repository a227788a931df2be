"""A durable point in a run: everything needed to continue from there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.records.result import StepError, StepResult, decode_held
from flowckpt.core.system.attrs_base import FieldEquality

if TYPE_CHECKING:
    from flowckpt.core.records.result import PartialState


SCHEMA_VERSION = 1
BIRTH = "birth"
"""Metadata key: a random value, new for each run. Messages repeat it, so a later run of the same id ignores them."""


class Reason(StrEnum):
    """Why a checkpoint was taken.

    Attributes:
        STARTED: the run was started, or a resume has something to execute.
        CONTINUED: a generation of the run started, by `continue_as(…)`; its history is empty.
        STEP: a step has its own checkpoint.
        TRIGGER: a trigger requested it.
        MANUAL: a rollback or fork, or a `CheckpointManager`.
        IN_DOUBT: the marker before an at-most-once step.
        ROLLBACK: steps are being undone: before the first, and after each.
        SUSPENDED: the run waits, or was stopped to be resumed.
        FAILED: the run failed.
        COMPLETED: the run completed.
        CANCELLED: the run was cancelled.
    """

    STARTED = "started"
    CONTINUED = "continued"
    STEP = "step"
    TRIGGER = "trigger"
    MANUAL = "manual"
    IN_DOUBT = "in_doubt"
    ROLLBACK = "rollback"
    SUSPENDED = "suspended"
    FAILED = "failed"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class Status(StrEnum):
    """The status of a run.

    Attributes:
        RUNNING: it is being executed.
        SUSPENDED: it waits for a time, a signal or an approval, or was stopped to be resumed.
        COMPLETED: it ended with an output.
        FAILED: it ended with an error.
        CANCELLED: it was stopped.
        CRASHED: it is running, but its owner is gone; never stored.
    """

    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    CRASHED = "crashed"


STATUS_OF_REASON = {
    Reason.STARTED: Status.RUNNING,
    Reason.CONTINUED: Status.RUNNING,
    Reason.STEP: Status.RUNNING,
    Reason.TRIGGER: Status.RUNNING,
    Reason.MANUAL: Status.RUNNING,
    Reason.IN_DOUBT: Status.RUNNING,
    Reason.ROLLBACK: Status.RUNNING,
    Reason.SUSPENDED: Status.SUSPENDED,
    Reason.FAILED: Status.FAILED,
    Reason.COMPLETED: Status.COMPLETED,
    Reason.CANCELLED: Status.CANCELLED,
}
"""The status of a run that a checkpoint implies by its reason."""


def _to_reason(value: Reason | str) -> Reason:
    return value if type(value) is Reason else Reason(value)  # Reason(reason) takes 0.4 µs


def _to_status(value: Status | str) -> Status:
    return value if type(value) is Status else Status(value)


def _status_default(data: CheckpointData) -> Status:
    return STATUS_OF_REASON[data.reason]


# Filling a frozen class with slots takes twice as long, once a checkpoint.
@attrs.frozen(slots=False, eq=False, repr=False)
class CheckpointData(FieldEquality):
    """A durable point in a run: everything needed to continue from there.

    Attributes:
        checkpoint_id: its id; loading an id returns its newest checkpoint.
        workflow_name: the workflow.
        inputs_hash: `sha256:v1:` and the digest of the inputs.
        step_results: the whole history up to here.
        saved_at: when it was saved, aware and in UTC; never used for ordering.
        sequence: its place in the run: 1, 2, 3 …
        attempt: the attempt that saved it, the fencing number of its writer.
        reason: why it was taken.
        status: the status of the run; implied by the reason by default.
        inputs: the inputs by name, decoded afresh at each access.
        fingerprint: the identity of the workflow's code.
        evidence: in `@started.N` of a resume, the outcome of the claims before the attempt started: `path`, `outcome`
            and `verified_at` of each step; otherwise empty.
        in_flight: paths of steps that had started and not ended.
        snapshot: the state of a `CheckpointManager` task, or a user's own.
        partial: the partial state of steps that have not succeeded, by path.
        metadata: target, tags and more; see the record format.
        output: what the workflow returned.
        error: how the run failed, or None.
        schema_version: the version of the record format.
        extra: unknown fields of a newer version, kept.
    """

    checkpoint_id: str
    workflow_name: str
    inputs_hash: str
    step_results: Sequence[StepResult]
    saved_at: datetime
    sequence: int = 1
    attempt: int = 1
    reason: Reason = attrs.field(default=Reason.MANUAL, converter=_to_reason)
    status: Status = attrs.field(
        default=attrs.Factory(_status_default, takes_self=True),
        converter=_to_status,
    )
    _inputs: Any = attrs.field(factory=dict, eq=decode_held, alias="inputs")
    fingerprint: str = ""
    evidence: tuple[Any, ...] = ()
    in_flight: tuple[str, ...] = ()
    _snapshot: Any = attrs.field(default=None, eq=decode_held, alias="snapshot")
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    _output: Any = attrs.field(default=None, eq=decode_held, alias="output")
    error: StepError | None = None
    schema_version: int = SCHEMA_VERSION
    extra: Mapping[str, Any] = attrs.field(factory=dict)
    partial: Mapping[str, PartialState] = attrs.field(factory=dict)

    @property
    def held_inputs(self) -> Any:
        """The inputs as the record holds them: plain, or a `LazyValue`; for the codec and the stores."""
        return self._inputs

    @property
    def held_snapshot(self) -> Any:
        """The snapshot as the record holds it."""
        return self._snapshot

    @property
    def held_output(self) -> Any:
        """The output as the record holds it."""
        return self._output

    @property
    def held_values(self) -> tuple[Any, ...]:
        """All values in it except those of its results; any of them may be large."""
        partial = (each.held_state for each in self.partial.values())
        return (self._inputs, self._snapshot, self._output, *partial)

    @property
    def inputs(self) -> Any:
        """The bound inputs by name, decoded afresh at each access where they came from a store."""
        return decode_held(self._inputs)

    @property
    def snapshot(self) -> Any:
        """The user's own state."""
        return decode_held(self._snapshot)

    @property
    def output(self) -> Any:
        """The return value of the workflow."""
        return decode_held(self._output)

    def carries_same_objects(self, previous: CheckpointData) -> bool:
        """Return whether both carry the very same objects: a quick check, and nearly always true."""
        return (
            self._inputs is previous._inputs
            and self.metadata is previous.metadata
            and self.workflow_name == previous.workflow_name
            and self.inputs_hash == previous.inputs_hash
            and self.fingerprint == previous.fingerprint
        )

    def differs_only_in_position(self, previous: CheckpointData) -> bool:
        """Return whether only id, reason, numbers and time differ, as in nearly all checkpoints of a run."""
        has_more = len(vars(self)) != _COMMON and (
            self.evidence
            or self.in_flight
            or self.extra
            or self.partial
            or self.error is not None
            or self._snapshot is not None
            or self.schema_version != SCHEMA_VERSION
        )
        return (
            not has_more
            and self._output is None
            and self.status is STATUS_OF_REASON[self.reason]
            and self.carries_same_objects(previous)
        )


_COMMON = 13
"""The number of fields that every new checkpoint has; nearly all have no others. See `checkpoint_of`."""


for _field in attrs.fields(CheckpointData):  # attrs leaves no defaults on the class; `checkpoint_of` needs them
    if _field.default is None or isinstance(_field.default, tuple):
        setattr(CheckpointData, _field.name, _field.default)
CheckpointData.schema_version = SCHEMA_VERSION
CheckpointData.extra = {}
CheckpointData.partial = {}
_new, _set = object.__new__, object.__setattr__


def checkpoint_of(fields: dict[str, Any]) -> CheckpointData:
    """Return a checkpoint that owns a dict of fields: 0.3 µs, where setting and converting all fields takes 1.3.

    Args:
        fields: the fields by name, including `_inputs` and `_output`. Optional are `evidence`, `in_flight`,
            `_snapshot`, `error`, `schema_version`, `extra` and `partial`.
    """
    data = _new(CheckpointData)
    _set(data, "__dict__", fields)
    return data


# Whether the evidence of a checkpoint was verified.
#
# The answer is computed from the results alone: each has the verdicts of its claims when its step ended. So it needs no
# value, costs nothing to update while results are added, is the same in every store, and never changes after the
# checkpoint was saved. Only a check of the outside world shows what holds *now* (`flowckpt verify`).


def verified_after(before: bool | None, results: Iterable[StepResult]) -> bool | None:
    """Return the answer for a history with further results.

    Args:
        before: the answer for the results before them; None for an empty history.
        results: the further results, failures included.

    Returns: True if all claims of all results were found to hold; False if one was not, or was not checked; None
    without claims.
    """
    for result in results:
        if result.evidence is not None and _has_claims(result.evidence):
            before = before is not False and result.evidence.get("outcome") == "verified"
    return before


def recorded_claims(evidence: Mapping[str, Any]) -> list[tuple[Any, Mapping[str, Any]]]:
    """Return the recorded claims of a result, each with its verdict; a malformed verdict is left out.

    Args:
        evidence: the `evidence` of a result, possibly malformed.
    """
    pack, verdicts = evidence.get("pack"), evidence.get("verdicts")
    claims = pack.get("evidence") if isinstance(pack, Mapping) else None
    answers = verdicts if isinstance(verdicts, list | tuple) else []
    return [
        (claim, answers[index] if index < len(answers) and isinstance(answers[index], Mapping) else {})
        for index, claim in enumerate(claims if isinstance(claims, list | tuple) else [])
    ]


def _has_claims(evidence: Mapping[str, Any]) -> bool:
    pack = evidence.get("pack")
    return not isinstance(pack, Mapping) or pack.get("evidence") != []
