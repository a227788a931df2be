"""What a run tells while it goes on: frozen facts in the past tense, in the order in which they became true.

A step is never told as completed before its result is recorded, nor a checkpoint as saved before it is durable.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

if TYPE_CHECKING:
    from flowckpt.core.records.wait import Wait


__all__ = [
    "ApprovalVoided",
    "CheckpointFailed",
    "CheckpointSaved",
    "Event",
    "EvidenceFailed",
    "EvidenceVerified",
    "RollbackCompleted",
    "RollbackStarted",
    "StepAdopted",
    "StepCompleted",
    "StepFailed",
    "StepOutput",
    "StepProgress",
    "StepRestored",
    "StepRetrying",
    "StepStarted",
    "StepStateDropped",
    "WorkflowCancelled",
    "WorkflowCompleted",
    "WorkflowFailed",
    "WorkflowResumed",
    "WorkflowStarted",
    "WorkflowSuspended",
    "WorkflowWaiting",
]


@attrs.frozen(repr=False, eq=False)
class Event:
    """The base of the events.

    Attributes:
        workflow_id: the run.
    """

    workflow_id: str

    kind: ClassVar[str] = "Event"

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__

    # One of each for all: generating these for every class takes milliseconds of every start.

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            getattr(self, each.name) == getattr(other, each.name) for each in attrs.fields(type(self))
        )

    def __hash__(self) -> int:
        return hash((self.kind, *(getattr(self, each.name) for each in attrs.fields(type(self)))))

    def __repr__(self) -> str:
        fields = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in attrs.fields(type(self)))
        return f"{self.kind}({fields})"


@attrs.frozen(repr=False, eq=False)
class WorkflowStarted(Event):
    """A run was started.

    Attributes:
        workflow_name: its workflow.
        attempt: 1, or more where earlier starts died before anything was saved.
    """

    workflow_name: str
    attempt: int = 1


@attrs.frozen(repr=False, eq=False)
class WorkflowResumed(Event):
    """A run was taken up again.

    Attributes:
        workflow_name: its workflow.
        attempt: how often the run was started or resumed, this time included.
        recorded: how many results the record holds.
        checkpoint_id: the checkpoint it goes on from.
    """

    workflow_name: str
    attempt: int
    recorded: int
    checkpoint_id: str


@attrs.frozen(repr=False, eq=False)
class StepStarted(Event):
    """A step was started.

    Attributes:
        path: its path.
        step_type: its action.
        members: of a map or group, how many steps it has; None where that is not known yet, and for any other step.
    """

    path: str
    step_type: str
    members: int | None = None


@attrs.frozen(repr=False, eq=False)
class StepRestored(Event):
    """A step's result came from the record; nothing was run.

    Attributes:
        path: its path.
        success: whether the recorded result is an output (else it is a failure).
        duration_ms: how long the step took when it was executed.
        step_type: its action.
    """

    path: str
    success: bool
    duration_ms: float
    step_type: str = "python"


@attrs.frozen(repr=False, eq=False)
class StepRetrying(Event):
    """A try of a step failed and another one follows.

    Attributes:
        path: its path.
        tries: how many tries have failed.
        delay_seconds: the wait before the next one.
        error_type: qualified name of the exception's class.
        error_message: `str()` of the exception.
    """

    path: str
    tries: int
    delay_seconds: float
    error_type: str
    error_message: str


@attrs.frozen(repr=False, eq=False)
class StepOutput(Event):
    """A command wrote a line; told while it runs, and never recorded.

    Attributes:
        path: the step's path.
        stream: where it wrote: `stdout` or `stderr`.
        line: the text, without its end; whatever the program wrote, control characters included.
    """

    path: str
    stream: str
    line: str


@attrs.frozen(repr=False, eq=False)
class StepProgress(Event):
    """A step said how far it is; told while it runs, a few times a second at most, and never recorded.

    Attributes:
        path: the step's path.
        done: how much is done, in the step's own unit.
        total: how much there is, or None where the step does not know.
        note: what it is at, in a few words; may be empty.
    """

    path: str
    done: float
    total: float | None = None
    note: str = ""


@attrs.frozen(repr=False, eq=False)
class StepStateDropped(Event):
    """What a step had saved of itself is not given to it: it begins from its start.

    Attributes:
        path: the step's path.
        reason: what has moved since it was saved.
    """

    path: str
    reason: str


@attrs.frozen(repr=False, eq=False)
class StepCompleted(Event):
    """A step ended with an output; where it has a checkpoint, that is durable.

    Attributes:
        path: its path.
        duration_ms: how long it ran.
        is_ephemeral: whether it is one that is never recorded.
    """

    path: str
    duration_ms: float
    is_ephemeral: bool = False


@attrs.frozen(repr=False, eq=False)
class StepFailed(Event):
    """A step failed for good; the error is raised at its `yield`.

    Attributes:
        path: its path.
        duration_ms: how long it ran, all tries together.
        tries: how often it was tried.
        error_type: qualified name of the exception's class.
        error_message: `str()` of the exception.
    """

    path: str
    duration_ms: float
    tries: int
    error_type: str
    error_message: str


@attrs.frozen(repr=False, eq=False)
class StepAdopted(Event):
    """A step in doubt was not run again: its evidence proves that it was done.

    Attributes:
        path: the step.
    """

    path: str


@attrs.frozen(repr=False, eq=False)
class EvidenceVerified(Event):
    """The claims of a step hold.

    Attributes:
        path: the step.
        moment: `now` after the step, `resume` before its recorded result is reused, `in_doubt` where its end is unknown.
        claims: how many claims were found to hold.
    """

    path: str
    moment: str
    claims: int


@attrs.frozen(repr=False, eq=False)
class EvidenceFailed(Event):
    """The claims of a step do not hold, or nobody can tell.

    Attributes:
        path: the step.
        moment: as for `EvidenceVerified`.
        reason: why not, in one sentence.
        details: what was found, claim by claim.
    """

    path: str
    moment: str
    reason: str
    details: tuple[str, ...] = ()


@attrs.frozen(repr=False, eq=False)
class CheckpointSaved(Event):
    """A checkpoint is durable.

    Attributes:
        checkpoint_id: its id.
        sequence: its place in the run.
        reason: why it was taken.
        steps: how many results it holds.
    """

    checkpoint_id: str
    sequence: int
    reason: str
    steps: int


@attrs.frozen(repr=False, eq=False)
class CheckpointFailed(Event):
    """A checkpoint could not be saved; whether it is on the medium is unknown.

    Attributes:
        checkpoint_id: its id.
        sequence: its place in the run.
        reason: why it was to be taken.
        error: the store's error.
    """

    checkpoint_id: str
    sequence: int
    reason: str
    error: str


@attrs.frozen(repr=False, eq=False)
class RollbackStarted(Event):
    """What a step did is being undone, because the run failed or was cancelled.

    Attributes:
        path: the step.
    """

    path: str


@attrs.frozen(repr=False, eq=False)
class RollbackCompleted(Event):
    """What a step did was undone, or could not be.

    Attributes:
        path: the step.
        duration_ms: how long it took, in milliseconds.
        error_type: qualified name of the class of what `.rollback()` raised; empty where it is undone.
        error_message: `str()` of it.
    """

    path: str
    duration_ms: float
    error_type: str = ""
    error_message: str = ""


@attrs.frozen(repr=False, eq=False)
class ApprovalVoided(Event):
    """An approval cannot be used: what was approved has changed since. It is asked for anew.

    Attributes:
        path: the step.
        by: who had approved.
        reason: why it is void, in one sentence.
        details: what was found, claim by claim.
    """

    path: str
    by: str
    reason: str
    details: tuple[str, ...] = ()


@attrs.frozen(repr=False, eq=False)
class WorkflowWaiting(Event):
    """Everything in the run waits, and the process stays; it goes on by itself.

    Attributes:
        waits: what it waits for.
        due_at: when the first of them ends by itself; None where none does.
        stays_seconds: how long the process stays at most.
    """

    waits: tuple[Wait, ...]
    due_at: datetime | None
    stays_seconds: float


@attrs.frozen(repr=False, eq=False)
class WorkflowSuspended(Event):
    """The attempt ends, and a resume goes on: everything in the run waits, or it was stopped with `on_stop="suspend"`.

    Attributes:
        waits: what it waits for; nothing where it was stopped.
        due_at: when the first of them ends by itself; None where none does.
        executed: steps run by this attempt.
        restored: results that came from the record.
        duration_ms: how long this attempt took.
        cause: what stopped it: `SIGINT`, `SIGTERM` or `SIGHUP`; empty where it waits.
    """

    waits: tuple[Wait, ...]
    due_at: datetime | None
    executed: int
    restored: int
    duration_ms: float
    cause: str = ""


@attrs.frozen(repr=False, eq=False)
class WorkflowCompleted(Event):
    """The run ended with an output.

    Attributes:
        output: what the workflow returned.
        executed: steps run by this attempt.
        restored: results that came from the record.
        duration_ms: how long this attempt took.
        is_saved: whether the end itself was recorded.
    """

    output: Any
    executed: int
    restored: int
    duration_ms: float
    is_saved: bool = True


@attrs.frozen(repr=False, eq=False)
class WorkflowFailed(Event):
    """The run ended with an error; it can be resumed.

    Attributes:
        error_type: qualified name of the error's class.
        error_message: the error's text.
        executed: steps run by this attempt.
        restored: results that came from the record.
        duration_ms: how long this attempt took.
        is_saved: whether the end itself was recorded.
    """

    error_type: str
    error_message: str
    executed: int
    restored: int
    duration_ms: float
    is_saved: bool = True


@attrs.frozen(repr=False, eq=False)
class WorkflowCancelled(Event):
    """The run was stopped from outside (a cancel, Ctrl-C, SIGTERM); it can be resumed.

    Attributes:
        cause: what stopped it: `cancelled`, `SIGINT`, `SIGTERM` or `SIGHUP`.
        executed: steps run by this attempt.
        restored: results that came from the record.
        duration_ms: how long this attempt took.
        is_saved: whether the end itself was recorded.
    """

    cause: str
    executed: int
    restored: int
    duration_ms: float
    is_saved: bool = True
