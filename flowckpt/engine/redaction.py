"""Events and errors of a run without its secrets: the last door that they go through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from flowckpt.errors import FlowckptError
from flowckpt.known_secrets import KnownSecrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flowckpt.events import Event

_NOT_TEXT = ("workflow_id", "path", "output")
"""What is recorded as it is, and was refused where it held a secret."""


def redacted_event(event: Event, secrets: KnownSecrets) -> Event:
    """Return an event whose texts hold no secret.

    Args:
        event: the event.
        secrets: the secrets of the run.
    """
    if not secrets.is_any:
        return event
    changed = {}
    for name in _texts_of(type(event)):
        value = getattr(event, name)
        if isinstance(value, str | tuple) and (hidden := _hidden(value, secrets)) != value:
            changed[name] = hidden
    return attrs.evolve(event, **changed) if changed else event


def redacting(
    tell: Callable[[Event], Awaitable[None] | None], secrets: Callable[[], KnownSecrets]
) -> Callable[[Event], Awaitable[None]]:
    """Return what tells events without the secrets of their run.

    Args:
        tell: told them then; awaited where that can be.
        secrets: returns the secrets of the run as they are known by now.
    """

    async def tell_redacted(event: Event) -> None:
        told = tell(redacted_event(event, secrets()))
        if told is not None:
            await told

    return tell_redacted


def _texts_of(kind: type[Event]) -> tuple[str, ...]:
    return tuple(each.name for each in attrs.fields(kind) if each.name not in _NOT_TEXT)


def redact_error(error: FlowckptError, secrets: KnownSecrets) -> None:
    """Take the secrets out of an error of ours that is on its way to the caller.

    What caused it is let go of where it tells a secret: Python shows causes, and they are not ours to change.

    Args:
        error: the error.
        secrets: the secrets of the run.
    """
    if not secrets.is_any:
        return
    error.args = tuple(_hidden(each, secrets) for each in error.args)
    for name, value in vars(error).items():
        setattr(error, name, _hidden(value, secrets))
    for cause in (error.__cause__, error.__context__):
        if cause is not None and _tells(cause, secrets):
            error.__cause__ = error.__context__ = None


def redact_ending(error: BaseException, secrets: KnownSecrets) -> None:
    """Take the secrets out of what ended a run: out of an error of ours, and out of the notes of any other.

    An exception of the workflow's own stays as it was raised; what is recorded and shown of it is its record.

    Args:
        error: what ended the run.
        secrets: the secrets of the run.
    """
    if not secrets.is_any:
        return
    if isinstance(error, FlowckptError):
        redact_error(error, secrets)
        return
    if isinstance(error, SystemExit):  # Python writes its text when the program ends
        error.args = _hidden(error.args, secrets)
        error.code = _hidden(error.code, secrets)
    if notes := getattr(error, "__notes__", None):
        error.__notes__ = _hidden([*notes], secrets)


def _tells(error: BaseException, secrets: KnownSecrets) -> bool:
    seen: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in seen:
        try:
            if secrets.is_in(str(at)) or secrets.is_in(repr(at)):
                return True
        except Exception:  # who cannot say what he says is not trusted
            return True
        seen.append(at)
        at = at.__cause__ or at.__context__
    return False


def _hidden(value: Any, secrets: KnownSecrets) -> Any:
    if isinstance(value, str):
        return secrets.text(value) if type(value) is str else value
    if isinstance(value, tuple | list):
        return type(value)([_hidden(each, secrets) for each in value])
    if isinstance(value, dict):
        return {key: _hidden(each, secrets) for key, each in value.items()}
    return value
