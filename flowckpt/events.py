"""The events of a run: frozen facts in the past tense, in the order in which they became true.

`StepCompleted` comes after the result is recorded, and `CheckpointSaved` after the checkpoint is durable.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from flowckpt.core.system.attrs_base import lazy_frozen

if TYPE_CHECKING:
    from flowckpt.core.records.wait import Wait


__all__ = [
    "ApprovalVoided",
    "CheckpointFailed",
    "CheckpointSaved",
    "CrashLoopDetected",
    "Event",
    "EvidenceFailed",
    "EvidenceVerified",
    "RollbackCompleted",
    "RollbackStarted",
    "SignalSetAside",
    "StepAdopted",
    "StepCompleted",
    "StepFailed",
    "StepOutput",
    "StepProgress",
    "StepRestored",
    "StepRetrying",
    "StepStarted",
    "StepStateDropped",
    "StepsRestored",
    "WorkflowCancelled",
    "WorkflowCompleted",
    "WorkflowContinued",
    "WorkflowFailed",
    "WorkflowResumed",
    "WorkflowStarted",
    "WorkflowSuspended",
    "WorkflowWaiting",
]


@lazy_frozen(repr=False, eq=False)
class Event:
    """The base class of all events.

    Attributes:
        kind: the name of the class.
    """

    workflow_id: str

    kind: ClassVar[str] = "Event"

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__

    # Shared by all events: generating these for every class takes milliseconds of every start.

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            getattr(self, each.name) == getattr(other, each.name) for each in attrs.fields(type(self)) if each.eq
        )

    def __hash__(self) -> int:
        return hash(
            (self.kind, *(getattr(self, each.name) for each in attrs.fields(type(self)) if each.hash is not False))
        )

    def __repr__(self) -> str:
        fields = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in attrs.fields(type(self)))
        return f"{self.kind}({fields})"


@lazy_frozen(repr=False, eq=False)
class WorkflowStarted(Event):
    """A run was started; nothing is saved yet.

    Attributes:
        workflow_name: its workflow.
        attempt: 1, or more if earlier starts crashed before their first save.
        birth: distinguishes the run from others with the same id; the same in all its attempts.
    """

    workflow_name: str
    attempt: int = 1
    birth: str = attrs.field(default="", eq=False)


@lazy_frozen(repr=False, eq=False)
class WorkflowResumed(Event):
    """A run was resumed.

    Attributes:
        workflow_name: its workflow.
        attempt: the number of this attempt: starts and resumes so far.
        recorded: the number of results that this attempt continues from; for a failed run, those before the failed
            step.
        checkpoint_id: the checkpoint that it continues from.
        birth: as for `WorkflowStarted`; empty for a run recorded without one.
    """

    workflow_name: str
    attempt: int
    recorded: int
    checkpoint_id: str
    birth: str = attrs.field(default="", eq=False)


@lazy_frozen(repr=False, eq=False)
class WorkflowContinued(Event):
    """The workflow returned `continue_as(…)`: a generation of the run ended, and the next one started, durably.

    Attributes:
        workflow_name: its workflow.
        attempt: the number of the attempt that starts the generation.
        generation: the number of the generation that starts, from 2.
        executed: the number of steps that the last attempt of the generation before executed.
        restored: the number of results that it restored.
        duration_ms: how long it took.
        birth: as for `WorkflowStarted`.
    """

    workflow_name: str
    attempt: int
    generation: int
    executed: int
    restored: int
    duration_ms: float
    birth: str = attrs.field(default="", eq=False)


@lazy_frozen(repr=False, eq=False)
class CrashLoopDetected(Event):
    """A resume was refused, because the run crashed too often at the same step; nothing was run.

    Listeners of the engine and the log get it; the caller gets a `CrashLoopError`.

    Attributes:
        workflow_name: its workflow.
        attempt: the number of the attempt that was refused.
        path: the step, or the last candidate; empty if unknown.
        crashes: the number of crashes.
        message: the text of the `CrashLoopError`.
    """

    workflow_name: str
    attempt: int
    path: str
    crashes: int
    message: str


@lazy_frozen(repr=False, eq=False)
class StepStarted(Event):
    """A step was started; emitted once, however many tries follow.

    Attributes:
        step_type: its action: `python`, `command`, `map`, `parallel`, `workflow`, `start`, `signal`, `now`, `uuid` or
            `random`.
        members: for a map or group, its number of steps; None if unknown, and for any other step.
    """

    path: str
    step_type: str
    members: int | None = None


@lazy_frozen(repr=False, eq=False)
class StepRestored(Event):
    """A step's result came from the record; nothing was executed.

    Attributes:
        success: whether the result is an output; otherwise it is a failure, raised again at the `yield`.
        duration_ms: how long the step took when it was executed.
        step_type: its action.
        taken_from: the run whose result `.cache()` took; empty for a result of the run itself.
    """

    path: str
    success: bool
    duration_ms: float
    step_type: str = "python"
    taken_from: str = ""


@lazy_frozen(repr=False, eq=False)
class StepsRestored(Event):
    """The results of several steps in a row came from the record; nothing was executed.

    The progress of the command and the log get one such event. Other listeners get a `StepRestored` for each step.

    Attributes:
        path: the last of the steps.
        steps: the number of steps.
    """

    path: str
    steps: int


@lazy_frozen(repr=False, eq=False)
class StepRetrying(Event):
    """A try of a step failed, and another follows.

    Attributes:
        tries: the number of failed tries.
        delay_seconds: the wait before the next try.
        error_type: the qualified name of the exception's class.
        error_message: `str()` of the exception.
    """

    path: str
    tries: int
    delay_seconds: float
    error_type: str
    error_message: str


@lazy_frozen(repr=False, eq=False)
class StepOutput(Event):
    """A command wrote a line; emitted while the command runs, and not recorded.

    Attributes:
        stream: `stdout` or `stderr`.
        line: the text without its line end, at most 10,000 characters, including control characters.
    """

    path: str
    stream: str
    line: str


@lazy_frozen(repr=False, eq=False)
class StepProgress(Event):
    """A step reported its progress by `current_step().progress(…)`; emitted while the step runs, and not recorded.

    Attributes:
        path: the step's path; for a member of a map, the member's.
        done: the amount done, in the step's own unit.
        total: the total amount, or None if unknown.
        note: what the step is doing, in a few words; may be empty.
    """

    path: str
    done: float
    total: float | None = None
    note: str = ""


@lazy_frozen(repr=False, eq=False)
class StepStateDropped(Event):
    """A step does not receive its partial state and starts from its beginning; also logged as a warning.

    Attributes:
        reason: what has changed since the state was saved.
    """

    path: str
    reason: str


@lazy_frozen(repr=False, eq=False)
class StepCompleted(Event):
    """A step ended with an output; if it has a checkpoint, that is durable.

    Attributes:
        duration_ms: how long it took, including all tries and waits.
        is_ephemeral: whether it is never recorded.
        figures: what the step recorded by `current_step().record(…)`, all tries together.
    """

    path: str
    duration_ms: float
    is_ephemeral: bool = False
    figures: Mapping[str, int | float] = attrs.field(factory=dict, hash=False)


@lazy_frozen(repr=False, eq=False)
class StepFailed(Event):
    """A step failed after its last try; the error is raised at its `yield`.

    Attributes:
        duration_ms: how long it took, including all tries and waits.
        tries: the number of tries.
        error_type: the qualified name of the exception's class.
        error_message: `str()` of the exception.
        figures: what the step recorded by `current_step().record(…)`, all tries together.
    """

    path: str
    duration_ms: float
    tries: int
    error_type: str
    error_message: str
    figures: Mapping[str, int | float] = attrs.field(factory=dict, hash=False)


@lazy_frozen(repr=False, eq=False)
class StepAdopted(Event):
    """A step in doubt was not run again, because its evidence proves that it was done, or a person decided so.

    It replaces `StepStarted` and `StepCompleted`.

    Attributes:
        decision: the person's decision, in a sentence; empty if evidence proves it.
    """

    path: str
    decision: str = ""


@lazy_frozen(repr=False, eq=False)
class EvidenceVerified(Event):
    """The claims of a step hold.

    Attributes:
        moment: `now` after the step, `resume` before its recorded result is reused, `in_doubt` if its end is unknown.
        claims: the number of claims found to hold.
        duration_ms: how long the check took.
    """

    path: str
    moment: str
    claims: int
    duration_ms: float = attrs.field(default=0.0, eq=False)


@lazy_frozen(repr=False, eq=False)
class EvidenceFailed(Event):
    """The claims of a step do not hold, or cannot be checked; another event or an error follows.

    Attributes:
        moment: as for `EvidenceVerified`.
        reason: why, in one sentence.
        details: the finding for each claim.
        duration_ms: how long the check took.
    """

    path: str
    moment: str
    reason: str
    details: tuple[str, ...] = ()
    duration_ms: float = attrs.field(default=0.0, eq=False)


@lazy_frozen(repr=False, eq=False)
class CheckpointSaved(Event):
    """A checkpoint is durable.

    Attributes:
        checkpoint_id: its id.
        sequence: its place in the run.
        reason: why it was taken.
        steps: the number of results it holds.
        duration_ms: how long the store took to make it durable; 0 if that is not known.
    """

    checkpoint_id: str
    sequence: int
    reason: str
    steps: int
    duration_ms: float = attrs.field(default=0.0, eq=False)


@lazy_frozen(repr=False, eq=False)
class CheckpointFailed(Event):
    """A checkpoint could not be saved; whether it reached the medium is unknown.

    Attributes:
        checkpoint_id: its id; may be empty.
        sequence: its place in the run.
        reason: why it was requested; may be empty.
        error: the store's error, as text.
    """

    checkpoint_id: str
    sequence: int
    reason: str
    error: str


@lazy_frozen(repr=False, eq=False)
class RollbackStarted(Event):
    """A step is being undone, because the run failed or was cancelled."""

    path: str


@lazy_frozen(repr=False, eq=False)
class RollbackCompleted(Event):
    """A step was undone, or could not be; the outcome is recorded.

    Attributes:
        duration_ms: how long it took.
        error_type: the qualified name of the class raised by `.rollback()`; empty if the step is undone.
        error_message: `str()` of it.
    """

    path: str
    duration_ms: float
    error_type: str = ""
    error_message: str = ""


@lazy_frozen(repr=False, eq=False)
class ApprovalVoided(Event):
    """An approval is void, because what was approved has changed since; it is requested again.

    Attributes:
        by: the person who approved.
        reason: why it is void, in one sentence.
        details: the finding for each claim.
    """

    path: str
    by: str
    reason: str
    details: tuple[str, ...] = ()


@lazy_frozen(repr=False, eq=False)
class SignalSetAside(Event):
    """A signal does not fit the type that its step waits for. It is set aside, and the step waits for another one.

    Attributes:
        path: the step.
        name: the signal.
        by: the sender; may be empty.
        signal_id: the id of the message.
        detail: what does not fit.
    """

    path: str
    name: str
    by: str
    signal_id: str
    detail: str


@lazy_frozen(repr=False, eq=False)
class WorkflowWaiting(Event):
    """Everything in the run waits, and the process stays; the run continues by itself.

    Attributes:
        waits: the waits.
        due_at: when the first wait ends by itself; None if none does.
        stays_seconds: how long the process stays at most.
    """

    waits: tuple[Wait, ...]
    due_at: datetime | None
    stays_seconds: float


@lazy_frozen(repr=False, eq=False)
class WorkflowSuspended(Event):
    """The attempt ended and a resume continues it: everything waits, or a signal stopped the run.

    Attributes:
        waits: the waits; empty if it was stopped.
        due_at: when the first wait ends by itself; None if none does.
        executed: the number of steps that this attempt executed.
        restored: the number of results from the record.
        duration_ms: how long this attempt took.
        cause: the reason: `SIGINT`, `SIGTERM`, `SIGHUP`, or `cancelled` for a cancelled task; empty if it waits.
        is_saved: whether the end was recorded.
    """

    waits: tuple[Wait, ...]
    due_at: datetime | None
    executed: int
    restored: int
    duration_ms: float
    cause: str = ""
    is_saved: bool = True


@lazy_frozen(repr=False, eq=False)
class WorkflowCompleted(Event):
    """The run ended with an output.

    Attributes:
        output: what the workflow returned.
        executed: the number of steps that this attempt executed.
        restored: the number of results from the record.
        duration_ms: how long this attempt took.
        is_saved: whether the end was recorded; False only with `on_save_error="continue"`.
    """

    output: Any
    executed: int
    restored: int
    duration_ms: float
    is_saved: bool = True


@lazy_frozen(repr=False, eq=False)
class WorkflowFailed(Event):
    """The run ended with an error; it can be resumed.

    Attributes:
        error_type: the qualified name of the error's class.
        error_message: the error's text.
        executed: the number of steps that this attempt executed.
        restored: the number of results from the record.
        duration_ms: how long this attempt took.
        is_saved: whether the end was recorded.
    """

    error_type: str
    error_message: str
    executed: int
    restored: int
    duration_ms: float
    is_saved: bool = True


@lazy_frozen(repr=False, eq=False)
class WorkflowCancelled(Event):
    """The run was stopped from outside; it can be resumed.

    Attributes:
        cause: the reason: `cancelled`, `SIGINT`, `SIGTERM` or `SIGHUP`.
        executed: the number of steps that this attempt executed.
        restored: the number of results from the record.
        duration_ms: how long this attempt took.
        is_saved: whether the end was recorded.
    """

    cause: str
    executed: int
    restored: int
    duration_ms: float
    is_saved: bool = True


def is_repeated_end(event: Event) -> bool:
    """Return whether an end is only reported again: a resume of a completed run, or a start that found the run."""
    ended: Any = event
    return not (getattr(event, "duration_ms", 1.0) or ended.executed)
