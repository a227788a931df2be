"""Progress as lines with times on standard error, for pipes, logs and CI, or as JSON documents with stable keys."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import attrs

from flowckpt.cli.progress.state import Counts, FanOutProgress, FanOuts, Progress, progress_text
from flowckpt.cli.render.tables import duration_text, figures_text
from flowckpt.cli.render.terminal import OutputFailedError, escape, json_text, say_with_time, short_value, write_if_read
from flowckpt.core import codec
from flowckpt.core.codec import Json
from flowckpt.core.codec.results import encode_error
from flowckpt.core.records.wait import Wait, encode_utc
from flowckpt.core.system.numbers import pluralize
from flowckpt.engine.values import waits
from flowckpt.engine.values.result import WorkflowResult
from flowckpt.events import Event, EvidenceVerified, StepRestored, StepsRestored
from flowckpt.execution.errors import record_error


def ended_document(result: WorkflowResult, output_type: Any) -> Json:
    """Return the document of an ended run, as `run --json` and `resume --json` print it."""
    return {
        "workflow_id": result.workflow_id,
        "workflow_name": result.workflow_name,
        "status": result.status.value,
        "output": codec.encode(result.output, output_type, place="the workflow's output"),
        "attempt": result.attempt,
        "steps": attrs.asdict(result.steps),
        "duration_ms": result.duration_ms,
        **({"figures": dict(result.figures)} if result.figures else {}),
        "error": None if result.failure is None else encode_error(result.failure),
        **({"waits": [wait_document(wait) for wait in result.waits]} if result.waits else {}),
        **({"removed": True} if result.is_removed else {}),
        "undone": list(result.undone),
        "rollback_failures": [encode_error(record_error(each, path=each.path)) for each in result.rollback_failures],
        "is_saved": result.is_saved,
        "last_saved": result.last_saved,
    }


def event_document(event: Event, output_type: Any) -> Json:
    """Return the document of an event: one line of `--events`."""
    document: dict[str, Any] = {"event": event.kind}
    for field in attrs.fields(type(event)):
        value = getattr(event, field.name)
        document[field.name] = codec.encode(value, output_type) if field.name == "output" else _plain_value(value)
    return document


def wait_document(wait: Wait) -> Json:
    """Return the document of a wait: one of the `waits` of `run --json` and of `show --json`."""
    return {
        "path": wait.path,
        "kind": str(wait.kind),
        "name": wait.name,
        "since": encode_utc(wait.since),
        "due_at": None if wait.due_at is None else encode_utc(wait.due_at),
        "digests": waits.approval_digests(wait) if wait.claims else {},
        "voided": wait.voided or None,
        "ask": wait.ask,
        "request": wait.request_id or None,
    }


def _plain_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return encode_utc(value)
    if isinstance(value, tuple):
        return [wait_document(each) if isinstance(each, Wait) else each for each in value]
    return value


# Progress for programs: every event as a line of JSON on standard output.


class JsonLines(Progress):
    """Writes events as JSON lines.

    Args:
        output_type: the return annotation of the workflow.
    """

    def __init__(self, output_type: Any) -> None:
        self._output_type = output_type
        self.failure = ""  # why the last lost event could not be written

    def show(self, event: Event) -> None:
        """Write the event."""
        try:
            write_if_read(f"{json_text(event_document(event, self._output_type))}\n")
        except OutputFailedError as error:  # the run is unaffected
            self.failure = str(error)


_FAILED = {"resume": "no longer holds", "in_doubt": "does not prove that it was done"}


_MOST_WAITS = 8
_SILENT = frozenset({"StepStarted", "CheckpointSaved", "EvidenceVerified"})
"""Events without a line: a step has one line, at its end."""
_FOLDED = frozenset({"StepCompleted", "StepAdopted"})
"""Events that are not shown for each member of a map or a large group."""
_UNKNOWN_PART = 100
"""The number of members per line if their total is unknown."""


LINES: dict[str, Callable[[Any], str]] = {
    "WorkflowStarted": lambda e: f"run {e.workflow_id} of {e.workflow_name}: started",
    "WorkflowResumed": lambda e: (
        f"run {e.workflow_id} of {e.workflow_name}: resumed from checkpoint {e.checkpoint_id}, attempt {e.attempt}"
    ),
    "WorkflowContinued": lambda e: (
        f"run {e.workflow_id} of {e.workflow_name}: continues as generation {e.generation}, attempt {e.attempt}"
    ),
    "StepRestored": lambda e: (
        f"{e.path}: taken from run {e.taken_from}" if e.taken_from else f"{e.path}: restored, with its failure"
    ),
    "StepRetrying": lambda e: (
        f"{e.path}: try {e.tries} failed with {e.error_type}: {e.error_message}; again in {e.delay_seconds:g} s"
    ),
    "StepOutput": lambda e: f"{e.path} {'!' if e.stream == 'stderr' else '|'} {e.line}",
    "StepProgress": lambda e: f"{e.path}: {progress_text(e.done, e.total, e.note)}",
    "StepStateDropped": lambda e: f"{e.path}: its saved state is dropped: {e.reason}",
    "StepAdopted": lambda e: f"{e.path}: adopted, not run: {e.decision or 'its evidence proves that it was done'}",
    "StepCompleted": lambda e: f"{e.path}: done in {duration_text(e.duration_ms)}",
    "StepFailed": lambda e: (
        f"{e.path}: failed in {duration_text(e.duration_ms)} with {e.error_type}: {e.error_message}"
    ),
    "EvidenceFailed": lambda e: f"{e.path}: evidence {_FAILED.get(e.moment, 'does not hold')}: {e.reason}",
    "CheckpointFailed": lambda e: f"checkpoint {e.checkpoint_id or e.sequence} not saved: {e.error}",
    "RollbackStarted": lambda e: f"{e.path}: is being undone",
    "RollbackCompleted": lambda e: (
        f"{e.path}: could not be undone: {e.error_type}: {e.error_message}"
        if e.error_type
        else f"{e.path}: undone in {duration_text(e.duration_ms)}"
    ),
    "ApprovalVoided": lambda e: (
        f"{e.path}: the approval{f' by {e.by}' if e.by else ''} is void and is asked for again: {e.reason}"
    ),
    "SignalSetAside": lambda e: f"{e.path}: signal {e.name} is set aside; the step waits for another one: {e.detail}",
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


class PlainLines(Progress):
    """Writes a line for each ended step; for a map or a large group, a line for each tenth of its members and failure."""

    def __init__(self) -> None:
        self._fan_outs = FanOuts()
        self._counts = Counts()
        self._claims: dict[str, int] = {}
        self._shown_parts: dict[str, int] = {}
        self._progress_shown_at: dict[str, float] = {}

    def show(self, event: Event) -> None:
        """Write the event's line, with findings below it."""
        kind, path = event.kind, getattr(event, "path", "")
        if isinstance(event, EvidenceVerified):
            self._claims[path] = event.claims
        if event.kind == "WorkflowContinued":
            self._fan_outs = FanOuts()
        self._fan_outs.note(event)
        if isinstance(event, StepRestored) and event.taken_from:
            self._counts.restored += 1
        elif isinstance(event, StepRestored):
            self._counts.restore(is_reverified=self._claims.pop(path, 0) > 0)
        if isinstance(event, StepsRestored):
            self._counts.restore(event.steps, is_reverified=False)
            return
        if kind in _SILENT or (isinstance(event, StepRestored) and event.success and not event.taken_from):
            if kind == "StepStarted":
                self._say_restored()
            return
        self._say_restored()
        fan_out = self._fan_outs.find_folded(path) if path else None
        if fan_out is not None and (kind in _FOLDED or getattr(event, "taken_from", False)):
            self._say_members(fan_out)
            return
        more = ""
        if kind in ("StepCompleted", "StepFailed"):
            if (ended := self._fan_outs.get(path)) is not None:
                more += f", {ended} members" if ended.is_folded else ""
                self._fan_outs.forget(path)
            if (claims := self._claims.pop(path, 0)) and kind == "StepCompleted":
                more += f", evidence holds ({pluralize(claims, 'claim')})"
            figures = getattr(event, "figures", None)
            more += f", {figures_text(figures)}" if figures else ""
        if kind == "StepProgress" and not self._is_due(event):
            return
        say_with_time(escape(LINES.get(kind, _other_line)(event)) + more)
        for detail in getattr(event, "details", ()):
            say_with_time(f"  {escape(detail)}")

    def stop(self) -> None:
        """Write a line about the steps restored since the last one."""
        self._say_restored()

    def _say_restored(self) -> None:
        restored, reverified = self._counts.take_restored()
        if restored:
            more = f", the evidence of {reverified} holds" if reverified else ""
            say_with_time(f"{pluralize(restored, 'step')} restored from the record{more}")

    def _say_members(self, fan_out: FanOutProgress) -> None:
        tenth = max(1, (fan_out.total or 0) // 10) if fan_out.total is not None else _UNKNOWN_PART
        part = fan_out.done // tenth
        if part > self._shown_parts.get(fan_out.path, 0) and fan_out.done != fan_out.total:
            self._shown_parts[fan_out.path] = part
            say_with_time(f"{escape(fan_out.path)}: {fan_out}")

    def _is_due(self, event: Any) -> bool:
        now = time.monotonic()
        if now - self._progress_shown_at.get(event.path, now - _SECONDS_BETWEEN) < _SECONDS_BETWEEN:
            return False
        self._progress_shown_at[event.path] = now
        return True


def _other_line(event: Event) -> str:
    """Return the line of an event without an own format."""
    fields = attrs.asdict(event, recurse=False)
    del fields["workflow_id"]
    return f"{event.kind} " + " ".join(f"{name}={short_value(value, 80)}" for name, value in fields.items())
