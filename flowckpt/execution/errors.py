"""The record of an exception, raised in this process or in a worker."""

from __future__ import annotations

import traceback
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any

import attrs

from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.records import StepError
from flowckpt.core.system import external
from flowckpt.core.system.declared import type_name
from flowckpt.errors import FanOutFailedError, FlowckptError, StepFailedError

NO_SECRETS = KnownSecrets()

_LONGEST_DELAY = 366 * 86_400.0
"""A year: the longest delay that a server may ask for."""

_COMMON_BASES = ("builtins.object", "builtins.BaseException", "builtins.Exception")


class RemoteError(Exception):
    """An exception of a step in a worker, represented by its record, because the exception itself may not be picklable.

    Attributes:
        recorded: the record of the exception.
        is_exception: whether it was an `Exception`, and not for example a `SystemExit`.
        retry_after: the seconds that it asked to wait before another try.
        is_wanted: whether a function of `.retry(on=…)`, asked by the worker, wants another try; None if it was not asked.
    """

    def __init__(
        self, recorded: StepError, *, is_exception: bool, retry_after: float = 0.0, is_wanted: bool | None = None
    ) -> None:
        super().__init__(recorded.message)
        self.recorded = recorded
        self.is_exception = is_exception
        self.retry_after = retry_after
        self.is_wanted = is_wanted


def record_error(
    error: BaseException,
    *,
    path: str = "",
    tries: int = 1,
    secrets: KnownSecrets = NO_SECRETS,
    is_whole: bool = False,
) -> StepError:
    """Return the record of an exception.

    Args:
        error: the exception.
        path: the step that it ended.
        tries: how often the step was tried.
        secrets: values to remove from its texts.
        is_whole: whether to keep a long traceback whole, because secrets are still to be removed from it.
    """
    if isinstance(error, RemoteError):
        recorded = error.recorded
        trace = "\n".join([recorded.traceback.rstrip(), *getattr(error, "__notes__", ())])
        message, trace = secrets.redact(recorded.message), _shorten(secrets.redact(trace))
        remedy = secrets.redact(recorded.remedy)
        return attrs.evolve(recorded, message=message, traceback=trace, path=path, tries=tries, remedy=remedy)
    if isinstance(error, StepFailedError):
        is_nested = path not in ("", error.path)  # a child workflow has no members whose records name the failure
        trace = _shorten(secrets.redact(error.trace if is_nested else error.traceback))
        message = secrets.redact(error.error_message)
        causes = tuple(each.path for each in error.causes) if isinstance(error, FanOutFailedError) else ()
        remedy = secrets.redact(error.remedy)
        return StepError(
            error.error_type, message, tuple(error.error_bases), trace, error.path, error.tries, causes, remedy=remedy
        )
    bases = tuple(
        type_name(base) for base in type(error).__mro__ if f"{base.__module__}.{base.__qualname__}" not in _COMMON_BASES
    )
    message = error.message if isinstance(error, FlowckptError) else text_of(error)
    message, trace = secrets.redact(message), secrets.redact(_format_traceback(error))
    trace = trace if is_whole else _shorten(trace)
    remedy = _replace_surrogates(secrets.redact(error.remedy)) if isinstance(error, FlowckptError) else ""
    kind = secrets.redact(type_name(type(error)))  # a class name created at run time may contain a secret
    bases = tuple(map(secrets.redact, bases))
    return StepError(
        _replace_surrogates(kind),
        _replace_surrogates(message),
        bases,
        _replace_surrogates(trace),
        path,
        tries,
        remedy=remedy,
    )


def kind_of(error: BaseException) -> str:
    """Return the qualified name of an exception's class, also of one that was raised elsewhere."""
    return error.recorded.type if isinstance(error, RemoteError) else type_name(type(error))


def is_one_of(error: BaseException, types: tuple[type[BaseException], ...]) -> bool:
    """Return whether an exception is an instance of one of some classes, also if it was raised in a worker.

    Args:
        error: the exception.
        types: the classes; for a worker's exception, they are compared by name.
    """
    if not isinstance(error, RemoteError):
        return isinstance(error, types)
    names = {error.recorded.type, *error.recorded.bases}
    return any(type_name(each) in names or (each is Exception and error.is_exception) for each in types)


def read_retry_after(error: BaseException, now: datetime) -> float:
    """Return the seconds that an error asks to wait before another try; 0 without a readable request.

    Args:
        error: the error: its attribute `retry_after`, or the header `Retry-After` of its response or its own.
        now: the time, for an error that gives a point in time.
    """
    try:
        delay: Any = getattr(error, "retry_after", None)
        if delay is None:
            headers = getattr(getattr(error, "response", error), "headers", None)
            delay = None if headers is None else headers.get("Retry-After")
        if isinstance(delay, str):
            delay = float(delay) if delay.strip().isdecimal() else external.email_utils.parsedate_to_datetime(delay)
        if isinstance(delay, datetime):
            delay = delay - now
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay or 0)
    except Exception:  # a user's class may raise anything
        return 0.0
    return min(seconds, _LONGEST_DELAY) if seconds > 0 else 0.0


def text_of(error: BaseException) -> str:
    """Return `str()` of an exception, even if its `__str__` fails."""
    try:
        return str(error)
    except Exception as failure:
        return f"(its text is not available: {type(failure).__name__})"


def user_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback of an exception, from the first frame of user code."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_globals.get("__name__", "").startswith("flowckpt."):
        at = at.tb_next
    return at


def _format_traceback(error: BaseException) -> str:
    """Format the traceback from the first frame of user code; the engine's frames are not useful."""
    at = user_traceback(error)
    if at is None and isinstance(error, FlowckptError):
        return "\n".join(getattr(error, "__notes__", ()))  # no frame of user code: the message is enough
    try:
        text = "".join(traceback.format_exception(type(error), error, at))
    except Exception:  # a chained exception that cannot be shown must not hide this one
        text = "".join(traceback.format_tb(at))
    return text


def _shorten(text: str) -> str:
    return text if len(text) <= 20_000 else text[:10_000] + "\n[…]\n" + text[-10_000:]


def _replace_surrogates(text: str) -> str:
    """Make text valid Unicode: file names and messages may contain surrogates."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
