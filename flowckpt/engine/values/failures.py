"""Conversion between failures and their records, and the answers that a generator gets for recorded results."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from typing import Any

from flowckpt.core.dsl import Step
from flowckpt.core.records import StepError, StepResult
from flowckpt.core.replay import Answer, Enter
from flowckpt.core.system.declared import shell_word, type_name
from flowckpt.engine.rules.reasons import Reason, ReasonKind
from flowckpt.errors import (
    CheckpointCorruptedError,
    DecodingError,
    FanOutFailedError,
    ForeignRecordError,
    StaleStepError,
    StepFailedError,
    StepInDoubtError,
    StepStoppedError,
    UnknownExecutorError,
    UnsupportedSchemaError,
    WorkflowChangedError,
)
from flowckpt.execution.errors import record_error
from flowckpt.execution.runner import restore_value

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
"""Errors of the record, or of code or evidence that does not match it; never failures of a step that ran."""


FAN_OUT_FAILED = type_name(FanOutFailedError)


def step_failure(path: str, error: StepError) -> StepFailedError:
    """Return the error to raise at the `yield` of a failed step, built from its record, now and at every replay."""
    return _make_failure(StepFailedError, path, error)


def _make_failure(cls: type[StepFailedError], path: str, error: StepError, **more: Any) -> StepFailedError:
    failure = cls(
        path,
        error_type=error.type,
        error_message=error.message,
        error_bases=error.bases,
        traceback=error.traceback,
        tries=error.tries,
        remedy=error.remedy,
        **more,
    )
    if trace := failure.trace:  # Python shows the notes with the error, so also where the step failed
        failure.add_note(trace)
    return failure


def _make_fan_out_failure(path: str, error: StepError, causes: Sequence[StepFailedError]) -> StepFailedError:
    """Return the error to raise at the `yield` of a failed fan-out, from its record and those of its members."""
    if not error.causes and error.type != FAN_OUT_FAILED:  # the iterable of items failed, not a member
        return step_failure(path, error)
    return _make_failure(FanOutFailedError, path, error, causes=causes)


def read_failure(error: StepError, results: Iterable[StepResult]) -> StepFailedError:
    """Return the error of a failed step from the record of its run.

    Args:
        error: the recorded failure.
        results: the history, which has the failures of the members of a fan-out.
    """
    if not error.causes:
        return step_failure(error.path, error)
    failed = {each.path: each.error for each in results if each.error is not None}
    causes = [read_failure(failed[path], results) for path in error.causes if path in failed]
    return _make_fan_out_failure(error.path, error, causes)


def stale_step_error(
    workflow_id: str, path: str, reasons: Sequence[Reason], *, repeats_effect: bool = False
) -> StaleStepError:
    """Return the error of a resume that stops at a stale result, with the commands that continue.

    Args:
        workflow_id: the run.
        path: the step.
        reasons: why the result is stale.
        repeats_effect: whether a rerun repeats an effect that must not be repeated without the user's decision.
    """
    kinds = {reason.kind for reason in reasons} - {ReasonKind.HANDLED}
    options = [
        option
        for option, is_meant in (
            ("--on-code-change", ReasonKind.CODE in kinds),
            ("--on-stale", bool(kinds - {ReasonKind.CODE})),
        )
        if is_meant
    ]
    rerun, reuse = (" ".join(f"{option} {answer}" for option in options) for answer in ("rerun", "reuse"))
    run = shell_word(workflow_id)
    once = (
        f" It was done, and is never repeated by default: 'flowckpt resume {run} --from {shell_word(path)}' always "
        f"repeats it. 'flowckpt recover' takes {' and '.join(options)}, too."
        if repeats_effect
        else ""
    )
    remedy = (
        f"To run it and what follows again: 'flowckpt resume {run} {rerun}'. To reuse its result anyway: "
        f"'flowckpt resume {run} {reuse}'. 'flowckpt plan {run}' shows it step by step.{once}"
    )
    if hasattr(builtins, "__IPYTHON__"):  # a notebook has no shell, and a command could not load its cells
        names = ", ".join(f"{option[2:].replace('-', '_')}='rerun'" for option in options)
        remedy = (
            f"To run it and what follows again: await flowckpt.resume(workflow, workflow_id={workflow_id!r}, {names}). "
            "To reuse its result anyway, write 'reuse'. With an engine of your own: "
            f"engine.resume_sync(workflow, workflow_id={workflow_id!r}, options=RunOptions({names}))."
        )
    texts = [str(reason) for reason in reasons]
    return StaleStepError(
        workflow_id,
        path,
        reasons=texts,
        is_proved=any(reason.is_proved for reason in reasons),
        repeats_effect=repeats_effect,
        remedy=remedy,
    )


def misfit_reason(error: DecodingError) -> Reason:
    """Return the reason why a recorded value that does not fit the present code is stale."""
    return Reason(ReasonKind.CODE, error.message)


def misfit_error(workflow_id: str, path: str, error: DecodingError) -> DecodingError:
    """Return the error of a resume that would reuse a value which does not fit, with the commands that continue."""
    run = f"flowckpt resume {shell_word(workflow_id)}"
    return DecodingError(
        f"the result of step {path!r} of run {workflow_id!r} cannot be reused: {error.message}",
        place=error.place,
        remedy=f"{error.remedy} To run the step and what follows again: '{run} --on-code-change rerun' or "
        f"'{run} --from {shell_word(path)}'.",
    )


def find_failed_step(error: BaseException) -> str:
    """Return the path of the step whose failure ended the run, even if the generator raised another error from it.

    Args:
        error: the exception that the generator raised.
    """
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        if isinstance(at, StepFailedError):
            return at.path
        if isinstance(at, BaseExceptionGroup):
            for each in at.exceptions:  # the group has the failures in the order in which the steps failed
                if path := find_failed_step(each):
                    return path
        seen.add(id(at))
        at = at.__cause__ or at.__context__
    return ""


# What a generator gets for a step: from its recorded result, or combined from those of its members.


_UNKNOWN = StepError("", "")


def stopped_error(path: str) -> StepError:
    """Return the recorded failure of a member that was stopped because enough others had succeeded."""
    return record_error(StepStoppedError(), path=path)


def read_answer(step: Step[Any], result: StepResult) -> Answer:
    """Return what a generator gets for a recorded result.

    Raises:
        DecodingError: the record does not fit the step's annotation.
    """
    if result.success:
        return restore_value(step, result), None
    return None, step_failure(result.path, result.error or _UNKNOWN)


def combine_answers(enter: Enter, error: StepError | None, answers: Iterable[Answer]) -> Answer:
    """Return what a generator gets for a fan-out.

    Args:
        enter: the fan-out.
        error: how it failed; None if it succeeded.
        answers: the answers of its members, in their order.
    """
    if error is None:
        action: Any = enter.step.action
        return action.combine([value if failure is None else failure for value, failure in answers]), None
    failures = {failure.path: failure for _, failure in answers if failure is not None}
    return None, _make_fan_out_failure(enter.path, error, [failures[each] for each in error.causes if each in failures])


def read_fan_out(enter: Enter, result: StepResult, answers: Iterable[Answer]) -> Answer:
    """Return what a generator gets for a fan-out that has ended."""
    return combine_answers(enter, None if result.success else result.error or _UNKNOWN, answers)
