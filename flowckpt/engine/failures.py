"""Exceptions as records, and back."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from flowckpt.checkpoint import StepError
from flowckpt.errors import (
    CheckpointCorruptedError,
    DecodingError,
    FanOutFailedError,
    FlowckptError,
    ForeignRecordError,
    StaleStepError,
    StepFailedError,
    StepInDoubtError,
    UnsupportedSchemaError,
    WorkflowChangedError,
    type_name,
)
from flowckpt.known_secrets import KnownSecrets
from flowckpt.plan.reason import Reason, ReasonKind

NO_SECRETS = KnownSecrets()

REFUSALS = (
    WorkflowChangedError,
    DecodingError,
    CheckpointCorruptedError,
    ForeignRecordError,
    UnsupportedSchemaError,
    StaleStepError,
    StepInDoubtError,
)
"""What is wrong with the record, or with the code or the world against the record; never the fault of a step that ran."""

_NO_NEWS = ("builtins.object", "builtins.BaseException", "builtins.Exception")


def recorded_error(
    error: BaseException, *, path: str = "", tries: int = 1, secrets: KnownSecrets = NO_SECRETS
) -> StepError:
    """Return what is recorded of an exception.

    Args:
        error: the exception.
        path: the step that it ended.
        tries: how often the step was tried.
        secrets: what goes out of its texts.
    """
    if isinstance(error, StepFailedError):
        message, trace = secrets.text(error.error_message), secrets.text(error.traceback)
        causes = tuple(each.path for each in error.causes) if isinstance(error, FanOutFailedError) else ()
        return StepError(error.error_type, message, error.error_bases, trace, error.path, error.tries, causes)
    bases = tuple(
        type_name(base) for base in type(error).__mro__ if f"{base.__module__}.{base.__qualname__}" not in _NO_NEWS
    )
    message = error.message if isinstance(error, FlowckptError) else text_of(error)
    message, trace = secrets.text(message), _shortened(secrets.text(_formatted(error)))
    return StepError(_clean(type_name(type(error))), _clean(message), bases, _clean(trace), path, tries)


def step_failure(path: str, error: StepError) -> StepFailedError:
    """Return the error that is raised at the `yield` of a failed step, from its record: now and at every replay."""
    return StepFailedError(
        path,
        error_type=error.type,
        error_message=error.message,
        error_bases=error.bases,
        traceback=error.traceback,
        tries=error.tries,
    )


def fan_out_failure(path: str, error: StepError, causes: Sequence[StepFailedError]) -> StepFailedError:
    """Return the error that is raised at the `yield` of a failed fan-out, from its record and those of its members.

    Args:
        path: the fan-out.
        error: its recorded failure.
        causes: the failures of its members.
    """
    if not error.causes:  # not the members failed, but what makes the items
        return step_failure(path, error)
    return FanOutFailedError(
        path,
        causes=causes,
        error_type=error.type,
        error_message=error.message,
        error_bases=error.bases,
        traceback=error.traceback,
        tries=error.tries,
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
    once = f" It is to be done at most once: only '--from {path}' repeats it." if is_at_most_once else ""
    return StaleStepError(
        workflow_id,
        path,
        reasons=[str(reason) for reason in reasons],
        remedy=f"To run it and what follows again: 'flowckpt resume {workflow_id} {rerun}'. To reuse its result all the "
        f"same: 'flowckpt resume {workflow_id} {reuse}'. 'flowckpt plan {workflow_id}' shows it step by step.{once}",
    )


def text_of(error: BaseException) -> str:
    """Return `str()` of an exception, also of one whose own `__str__` fails."""
    try:
        return str(error)
    except Exception as failure:
        return f"(its text cannot be had: {type(failure).__name__})"


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


def _formatted(error: BaseException) -> str:
    """Format the traceback from the first frame of the user's on; the engine's own frames tell nobody anything."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_globals.get("__name__", "").startswith("flowckpt."):
        at = at.tb_next
    if at is None and isinstance(error, FlowckptError):
        return "\n".join(getattr(error, "__notes__", ()))  # no line of the user's: the message says it all
    try:
        text = "".join(traceback.format_exception(type(error), error, at))
    except Exception:  # a chained exception that cannot be shown must not hide this one
        text = "".join(traceback.format_tb(at))
    return text


def _shortened(text: str) -> str:
    return text if len(text) <= 20_000 else text[:10_000] + "\n[…]\n" + text[-10_000:]


def _clean(text: str) -> str:
    """Make text valid Unicode, whatever file names and messages bring."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
