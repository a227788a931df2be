"""Progress for pipes and logs: a line of plain text an event, on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import attrs

from flowckpt.cli.progress.state import FanOutProgress, FanOuts, progress_text
from flowckpt.cli.render.tables import duration_text
from flowckpt.cli.render.terminal import escaped, say, short_value
from flowckpt.core.system.numbers import counted
from flowckpt.events import CheckpointSaved, Event

_VERIFIED = {"resume": "still holds", "in_doubt": "proves that it was done"}
_FAILED = {"resume": "no longer holds", "in_doubt": "does not prove that it was done"}


_MOST_WAITS = 8
_FOLDED = frozenset(
    {"StepStarted", "StepCompleted", "StepRestored", "StepAdopted", "EvidenceVerified", "CheckpointSaved"}
)
"""Events that are not shown for each member of a large map or group."""
_UNKNOWN_PART = 100
"""After so many members a line is written, where nobody knows how many there are."""


def _claims(count: int) -> str:
    return f"{count} claim" if count == 1 else f"{count} claims"


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
    "StepOutput": lambda e: f"{e.path} {'!' if e.stream == 'stderr' else '|'} {e.line}",
    "StepProgress": lambda e: f"{e.path}: {progress_text(e.done, e.total, e.note)}",
    "StepStateDropped": lambda e: f"{e.path}: what it had saved of itself is dropped: {e.reason}",
    "StepAdopted": lambda e: f"{e.path}: adopted, not run: {e.decision or 'its evidence proves that it was done'}",
    "StepCompleted": lambda e: f"{e.path}: done in {duration_text(e.duration_ms)}",
    "StepFailed": lambda e: (
        f"{e.path}: failed in {duration_text(e.duration_ms)} with {e.error_type}: {e.error_message}"
    ),
    "EvidenceVerified": lambda e: f"{e.path}: evidence {_VERIFIED.get(e.moment, 'holds')} ({_claims(e.claims)})",
    "EvidenceFailed": lambda e: f"{e.path}: evidence {_FAILED.get(e.moment, 'does not hold')}: {e.reason}",
    "CheckpointSaved": lambda e: f"checkpoint {e.checkpoint_id} saved ({counted(e.steps, 'step')})",
    "CheckpointFailed": lambda e: f"checkpoint {e.checkpoint_id or e.sequence} not saved: {e.error}",
    "RollbackStarted": lambda e: f"{e.path}: is being undone",
    "RollbackCompleted": lambda e: (
        f"{e.path}: could not be undone: {e.error_type}: {e.error_message}"
        if e.error_type
        else f"{e.path}: undone in {duration_text(e.duration_ms)}"
    ),
    "ApprovalVoided": lambda e: (
        f"{e.path}: the approval{f' by {e.by}' if e.by else ''} is void, it is asked for again: {e.reason}"
    ),
    "SignalSetAside": lambda e: f"{e.path}: signal {e.name} is set aside, it waits for another one: {e.detail}",
    "WorkflowWaiting": lambda e: f"run {e.workflow_id}: waits here: {'; '.join(map(str, e.waits[:_MOST_WAITS]))}",
    "WorkflowSuspended": lambda e: (
        f"run {e.workflow_id}: "
        + (f"suspended by {e.cause}" if e.cause else f"suspended: {'; '.join(map(str, e.waits[:_MOST_WAITS]))}")
    ),
    "WorkflowCompleted": lambda e: f"run {e.workflow_id}: completed in {duration_text(e.duration_ms)}",
    "WorkflowFailed": lambda e: f"run {e.workflow_id}: failed with {e.error_type}: {e.error_message}",
    "WorkflowCancelled": lambda e: (
        f"run {e.workflow_id}: " + (e.cause if e.cause == "cancelled" else f"stopped by {e.cause}")
    ),
}


_SECONDS_BETWEEN = 10.0
"""The pause between two lines about the progress of a step; `--events` has each report."""


class PlainLines:
    """Writes events as lines of text; of a large map or group, a line now and then, and its failures."""

    def __init__(self) -> None:
        self._fan_outs = FanOuts()
        self._said: dict[str, int] = {}
        self._told_at: dict[str, float] = {}

    def start(self) -> None:
        """Do nothing."""

    def tell(self, event: Event) -> None:
        """Write the event's line, and what was found below it."""
        self._fan_outs.note(event)
        path = event.checkpoint_id if isinstance(event, CheckpointSaved) else getattr(event, "path", "")
        folding = self._fan_outs.folding(path) if path else None
        if folding is not None and event.kind in _FOLDED:
            self._say_how_far(folding)
            return
        if event.kind in ("StepCompleted", "StepFailed") and (ended := self._fan_outs.of(path)) is not None:
            if ended.is_folded:
                say(f"{escaped(path)}: {ended}")
            self._fan_outs.forget(path)
        if event.kind == "StepProgress" and not self._is_due(event):
            return
        say(escaped(_LINES.get(event.kind, _other_line)(event)))
        for detail in getattr(event, "details", ()):
            say(f"  {escaped(detail)}")

    def stop(self) -> None:
        """Do nothing."""

    def _say_how_far(self, fan_out: FanOutProgress) -> None:
        tenth = max(1, (fan_out.total or 0) // 10) if fan_out.total is not None else _UNKNOWN_PART
        part = fan_out.done // tenth
        if part > self._said.get(fan_out.path, 0) and fan_out.done != fan_out.total:
            self._said[fan_out.path] = part
            say(f"{escaped(fan_out.path)}: {fan_out}")

    def _is_due(self, event: Any) -> bool:
        now = time.monotonic()
        if now - self._told_at.get(event.path, now - _SECONDS_BETWEEN) < _SECONDS_BETWEEN:
            return False
        self._told_at[event.path] = now
        return True


def _other_line(event: Event) -> str:
    """Write an event that has no line of its own."""
    fields = attrs.asdict(event, recurse=False)
    del fields["workflow_id"]
    return f"{event.kind} " + " ".join(f"{name}={short_value(value, 80)}" for name, value in fields.items())
