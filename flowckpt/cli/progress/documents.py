"""The JSON documents about a run that this command drives: their keys are a promise."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import attrs

from flowckpt.cli.render.terminal import OutputFailedError, json_text, write_if_read
from flowckpt.core import codec
from flowckpt.core.codec import Json
from flowckpt.core.codec.results import encode_error
from flowckpt.core.records.wait import Wait, moment_text
from flowckpt.engine.values import approved
from flowckpt.engine.values.failures import recorded_error
from flowckpt.engine.values.result import WorkflowResult
from flowckpt.events import Event


def ended_document(result: WorkflowResult, output_type: Any) -> Json:
    """Return how a run ended: what `run --json` and `resume --json` print."""
    waits = {"waits": [wait_document(wait) for wait in result.waits]} if result.waits else {}
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
        **waits,
        **({"removed": True} if result.is_removed else {}),
        "undone": list(result.undone),
        "rollback_failures": [encode_error(recorded_error(each, path=each.path)) for each in result.rollback_failures],
        "is_saved": result.is_saved,
        "last_saved": result.last_saved,
    }


def event_document(event: Event, output_type: Any) -> Json:
    """Return an event: one line of `--events`."""
    document: dict[str, Any] = {"event": event.kind}
    for field in attrs.fields(type(event)):
        value = getattr(event, field.name)
        document[field.name] = codec.encode(value, output_type) if field.name == "output" else _plain(value)
    return document


def wait_document(wait: Wait) -> Json:
    """Return what a step waits for: one of the `waits` of `run --json` and of `show --json`."""
    return {
        "path": wait.path,
        "kind": str(wait.kind),
        "name": wait.name,
        "since": moment_text(wait.since),
        "due_at": None if wait.due_at is None else moment_text(wait.due_at),
        "digests": approved.digests_of(wait) if wait.claims else {},
        "voided": wait.voided or None,
        "ask": wait.ask,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return moment_text(value)
    if isinstance(value, tuple):
        return [wait_document(each) if isinstance(each, Wait) else each for each in value]
    return value


# Progress for programs: every event as a line of JSON on standard output.


class JsonLines:
    """Writes events as JSON lines.

    Args:
        output_type: what the workflow says that it returns.
    """

    def __init__(self, output_type: Any) -> None:
        self._output_type = output_type
        self.failure = ""  # why the last event that could not be written was lost

    def start(self) -> None:
        """Do nothing."""

    def tell(self, event: Event) -> None:
        """Write the event."""
        try:
            write_if_read(f"{json_text(event_document(event, self._output_type))}\n")
        except OutputFailedError as error:  # the run is not worse for it
            self.failure = str(error)

    def stop(self) -> None:
        """Do nothing."""
