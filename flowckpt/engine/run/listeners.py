"""Listeners of a run besides its own consumer: they hear every event, and cannot harm the run."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from flowckpt.events import Event

Listener: TypeAlias = Callable[["Event"], None]
"""Called with every event of a run, in order; an error of it is logged and changes nothing."""

EVENTS = logging.getLogger("flowckpt.events")
"""The logger of the events; its records reach the handlers of the logger `flowckpt`."""
EVENTS.addHandler(logging.NullHandler())  # without handlers, Python would print warnings by itself
_log = logging.getLogger(__name__)

_FAILURES = frozenset({"StepFailed", "StepRetrying", "WorkflowFailed", "CheckpointFailed", "EvidenceFailed"})
_DETAILS = frozenset({"StepProgress", "StepOutput"})


def heard_by(
    listeners: Sequence[Listener], consumer: Callable[[Event], Any] | None
) -> Callable[[Event], Awaitable[None]]:
    """Return what emits an event to listeners, to the log if a handler takes it, and to the consumer of the run."""
    told: list[Listener] = [*listeners, LogListener()] if is_log_read() else [*listeners]

    async def tell(event: Event) -> None:
        for listener in told:
            try:
                listener(event)
            except Exception as error:
                _log.warning(
                    "run %s: a listener failed at %s: %s: %s",
                    event.workflow_id,
                    event.kind,
                    type(error).__name__,
                    error,
                )
        if consumer is not None and (waited := consumer(event)) is not None:
            await waited

    return tell


def is_log_read() -> bool:
    """Return whether a handler takes records of events."""
    logger: logging.Logger | None = EVENTS
    if not EVENTS.isEnabledFor(logging.WARNING):
        return False
    while logger is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


class LogListener:
    """Logs each event of a run as a record with its fields as attributes, as formatters of JSON expect them."""

    def __init__(self) -> None:
        self._workflow_name = ""
        self._attempt = 0

    def __call__(self, event: Event) -> None:
        """Log the event."""
        if event.kind in ("WorkflowStarted", "WorkflowResumed"):
            begun: Any = event
            self._workflow_name, self._attempt = begun.workflow_name, begun.attempt
        level = logging.INFO
        failed_with: str = getattr(event, "error_type", "")
        if event.kind in _FAILURES or failed_with:
            level = logging.WARNING
        elif event.kind in _DETAILS:
            level = logging.DEBUG
        if EVENTS.isEnabledFor(level):
            EVENTS.log(level, "run %s: %s", event.workflow_id, _said(event), extra=self._extra(event))

    def _extra(self, event: Event) -> dict[str, Any]:
        found: dict[str, Any] = {
            "event": event.kind,
            "workflow_id": event.workflow_id,
            "workflow_name": self._workflow_name,
            "attempt": self._attempt,
            "step": getattr(event, "path", None),
        }
        for name in ("duration_ms", "tries", "error_type", "error_message", "figures", "checkpoint_id"):
            value: Any = getattr(event, name, None)
            if value:
                found[name] = dict(value) if name == "figures" else value
        return found


def _said(event: Event) -> str:
    """Write an event in a few words."""
    path = getattr(event, "path", "")
    words = f"{path} {event.kind}" if path else event.kind
    error_type: str = getattr(event, "error_type", "")
    if error_type:
        words += f" with {error_type}: {getattr(event, 'error_message', '')}"
    elif event.kind in _FAILURES:
        words += f": {getattr(event, 'error', None) or getattr(event, 'reason', '')}"
    return words
