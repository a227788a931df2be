"""Progress for pipes and logs: a line of plain text an event, on standard error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from flowckpt.cli.durations import duration_text
from flowckpt.cli.output import say
from flowckpt.cli.terminal_text import escaped, short_value
from flowckpt.events import Event

_LINES: dict[str, Callable[[Any], str]] = {
    "WorkflowStarted": lambda e: f"run {e.workflow_id} of {e.workflow_name}: started",
    "WorkflowResumed": lambda e: (
        f"run {e.workflow_id} of {e.workflow_name}: resumed from checkpoint {e.checkpoint_id}, attempt {e.attempt}"
    ),
    "StepStarted": lambda e: f"{e.path}: started",
    "StepRestored": lambda e: f"{e.path}: restored" if e.success else f"{e.path}: restored, with its failure",
    "StepRetrying": lambda e: (
        f"{e.path}: try {e.tries} failed with {e.error_type}: {e.error_message}; again in {e.delay_seconds:g} s"
    ),
    "StepCompleted": lambda e: f"{e.path}: done in {duration_text(e.duration_ms)}",
    "StepFailed": lambda e: (
        f"{e.path}: failed in {duration_text(e.duration_ms)} with {e.error_type}: {e.error_message}"
    ),
    "CheckpointSaved": lambda e: f"checkpoint {e.checkpoint_id} saved ({e.steps} steps)",
    "CheckpointFailed": lambda e: f"checkpoint {e.checkpoint_id or e.sequence} not saved: {e.error}",
    "WorkflowCompleted": lambda e: f"run {e.workflow_id}: completed in {duration_text(e.duration_ms)}",
    "WorkflowFailed": lambda e: f"run {e.workflow_id}: failed with {e.error_type}: {e.error_message}",
    "WorkflowCancelled": lambda e: f"run {e.workflow_id}: stopped by {e.cause}",
}


class PlainLines:
    """Writes events as lines of text."""

    def start(self) -> None:
        """Do nothing."""

    def tell(self, event: Event) -> None:
        """Write the event's line."""
        line = _LINES.get(event.kind, _other_line)
        say(escaped(line(event)))

    def stop(self) -> None:
        """Do nothing."""


def _other_line(event: Event) -> str:
    """Write an event that has no line of its own."""
    fields = attrs.asdict(event, recurse=False)
    del fields["workflow_id"]
    return f"{event.kind} " + " ".join(f"{name}={short_value(value, 80)}" for name, value in fields.items())
