"""Exceptions as records, and back."""

from __future__ import annotations

from collections.abc import Sequence

from flowckpt.core.records import StepError
from flowckpt.engine.rules.reasons import Reason, ReasonKind
from flowckpt.errors import (
    CheckpointCorruptedError,
    DecodingError,
    FanOutFailedError,
    ForeignRecordError,
    StaleStepError,
    StepFailedError,
    StepInDoubtError,
    UnknownExecutorError,
    UnsupportedSchemaError,
    WorkflowChangedError,
    shell_word,
    type_name,
)
from flowckpt.execution.errors import NO_SECRETS, recorded_error, text_of

__all__ = [
    "NO_SECRETS",
    "REFUSALS",
    "failed_step",
    "fan_out_failure",
    "recorded_error",
    "stale_step",
    "step_failure",
    "text_of",
]

REFUSALS = (
    WorkflowChangedError,
    DecodingError,
    CheckpointCorruptedError,
    ForeignRecordError,
    UnsupportedSchemaError,
    StaleStepError,
    StepInDoubtError,
    UnknownExecutorError,
)
"""What is wrong with the record, or with the code or the world against the record; never the fault of a step that ran."""


_FAN_OUT = type_name(FanOutFailedError)


def step_failure(path: str, error: StepError) -> StepFailedError:
    """Return the error that is raised at the `yield` of a failed step, from its record: now and at every replay."""
    return StepFailedError(
        path,
        error_type=error.type,
        error_message=error.message,
        error_bases=error.bases,
        traceback=error.traceback,
        tries=error.tries,
        remedy=error.remedy,
    )


def fan_out_failure(path: str, error: StepError, causes: Sequence[StepFailedError]) -> StepFailedError:
    """Return the error that is raised at the `yield` of a failed fan-out, from its record and those of its members.

    Args:
        path: the fan-out.
        error: its recorded failure.
        causes: the failures of its members.
    """
    if not error.causes and error.type != _FAN_OUT:  # not the members failed, but what makes the items
        return step_failure(path, error)
    return FanOutFailedError(
        path,
        causes=causes,
        error_type=error.type,
        error_message=error.message,
        error_bases=error.bases,
        traceback=error.traceback,
        tries=error.tries,
        remedy=error.remedy,
    )


def stale_step(
    workflow_id: str, path: str, reasons: Sequence[Reason], *, is_at_most_once: bool = False
) -> StaleStepError:
    """Return the error of a resume that stops at a stale result, with the commands that go on.

    Args:
        workflow_id: the run.
        path: the step.
        reasons: what moved.
        is_at_most_once: whether the step must not be done twice on a guess.
    """
    kinds = {reason.kind for reason in reasons}
    options = [
        option
        for option, is_meant in (
            ("--on-code-change", ReasonKind.CODE in kinds),
            ("--on-stale", bool(kinds - {ReasonKind.CODE})),
        )
        if is_meant
    ]
    rerun, reuse = (" ".join(f"{option} {answer}" for option in options) for answer in ("rerun", "reuse"))
    once = f" It is to be done at most once: only '--from {shell_word(path)}' repeats it." if is_at_most_once else ""
    run = shell_word(workflow_id)
    return StaleStepError(
        workflow_id,
        path,
        reasons=[str(reason) for reason in reasons],
        remedy=f"To run it and what follows again: 'flowckpt resume {run} {rerun}'. To reuse its result all the same: "
        f"'flowckpt resume {run} {reuse}'. 'flowckpt plan {run}' shows it step by step.{once}",
    )


def failed_step(error: BaseException) -> str:
    """Return the path of the step whose failure ended the run, also where the generator raised another error from it.

    Args:
        error: what the generator raised.
    """
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        if isinstance(at, StepFailedError):
            return at.path
        if isinstance(at, BaseExceptionGroup):
            for each in at.exceptions:  # collected in the order in which the steps failed
                if path := failed_step(each):
                    return path
        seen.add(id(at))
        at = at.__cause__ or at.__context__
    return ""
