"""The JSON documents about a run that this command drives: their keys are a promise."""

from __future__ import annotations

from typing import Any

import attrs

from flowckpt import codec
from flowckpt.codec import Json
from flowckpt.codec.results import encode_error
from flowckpt.engine.result import WorkflowResult
from flowckpt.events import Event


def ended_document(result: WorkflowResult, output_type: Any) -> Json:
    """Return how a run ended: what `run --json` and `resume --json` print.

    Args:
        result: how it ended.
        output_type: what the workflow says that it returns.
    """
    return {
        "workflow_id": result.workflow_id,
        "workflow_name": result.workflow_name,
        "status": result.status.value,
        "output": codec.encode(result.output, output_type, place="the workflow's output"),
        "attempt": result.attempt,
        "steps": attrs.asdict(result.steps),
        "duration_ms": result.duration_ms,
        "error": None if result.failure is None else encode_error(result.failure),
    }


def event_document(event: Event, output_type: Any) -> Json:
    """Return an event: one line of `--events`.

    Args:
        event: the event.
        output_type: what the workflow says that it returns.
    """
    document: dict[str, Any] = {"event": event.kind}
    for field in attrs.fields(type(event)):
        value = getattr(event, field.name)
        document[field.name] = codec.encode(value, output_type) if field.name == "output" else value
    return document
