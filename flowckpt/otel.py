"""Traces and metrics of runs with OpenTelemetry; needs the extra `otel`, and is imported on first use.

A run is one trace. The trace id is derived from the run, so attempts in all processes join it. Each attempt is a root
span, linked to the previous attempt; steps, waits, checks of evidence and rollbacks are its child spans.
"""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import re
import time
from collections.abc import Mapping
from contextvars import Token
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt._version import __version__
from flowckpt.core.records.result import COMPOSITES
from flowckpt.errors import SettingError
from flowckpt.events import is_repeated_end
from flowckpt.execution.current_step import StepBaggage, step_baggage

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, propagate, trace
except ImportError as error:
    raise SettingError(
        f"OpenTelemetry is not installed: {error}", setting="otel", remedy="Install it: pip install 'flowckpt[otel]'."
    ) from error

if TYPE_CHECKING:
    from flowckpt.events import Event

__all__ = ["Telemetry", "export_by_environment"]

_SCOPE = "flowckpt"
_WAITS = frozenset({"sleep", "wait", "approval"})
_UNTRACED = frozenset({"now", "uuid", "random"})
_ENDS = {
    "WorkflowCompleted": "completed",
    "WorkflowFailed": "failed",
    "WorkflowSuspended": "suspended",
    "WorkflowCancelled": "cancelled",
    "WorkflowContinued": "continued",
}
_MOST_WHOLE = 2**40
_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 21_600, 86_400)


@attrs.define
class _OpenStep:
    """A step in progress.

    Attributes:
        span: its span; None for a wait, whose span is made when it ends, possibly in another process.
        before: the context and the baggage from before the step; None if the step changed neither.
    """

    step_type: str
    span: trace.Span | None = None
    before: tuple[contexts.Context, StepBaggage | None] | None = None


@attrs.define
class _OpenRun:
    """An attempt in progress."""

    workflow_name: str
    span: trace.Span
    steps: dict[str, _OpenStep] = attrs.field(factory=dict)

    def parent_of(self, path: str) -> contexts.Context:
        """Return the context of the nearest enclosing step, or of the attempt."""
        around = path
        while "/" in around:
            around = around.rpartition("/")[0]
            step = self.steps.get(around)
            if step is not None and step.span is not None:
                return trace.set_span_in_context(step.span, contexts.Context())
        return trace.set_span_in_context(self.span, contexts.Context())


class Telemetry:
    """A listener that records traces and metrics of runs: `WorkflowEngine(listeners=[Telemetry()])`.

    Args:
        tracer_provider: the provider of spans; the global one by default.
        meter_provider: the provider of metrics; the global one by default.
        exports_from_workers: whether worker processes set up the export of spans from the environment, like
            `export_by_environment`.
    """

    folds_restored = True

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        exports_from_workers: bool = False,
    ) -> None:
        self._provider = tracer_provider
        self._exports = exports_from_workers
        self._runs: dict[str, _OpenRun] = {}
        meter = metrics.get_meter(_SCOPE, __version__, meter_provider)
        self._ended = meter.create_counter("flowckpt.runs", "{attempt}", "Attempts that ended, by status.")
        self._steps = meter.create_counter("flowckpt.steps", "{step}", "Steps executed, and results restored.")
        histogram = partial(meter.create_histogram, unit="s", explicit_bucket_boundaries_advisory=_SECONDS)
        self._durations = histogram(
            "flowckpt.step.duration", description="Duration of a step, including all tries and waits."
        )
        self._saves = meter.create_counter("flowckpt.saves", "{checkpoint}", "Checkpoints, saved or failed.")
        self._save_durations = histogram("flowckpt.save.duration", description="Time until a checkpoint was durable.")
        self._figures = meter.create_counter("flowckpt.figures", "1", "Figures of steps, by name.")

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        data: Any = event
        run = self._runs.get(event.workflow_id)
        if event.kind in ("WorkflowStarted", "WorkflowResumed"):
            self._start_run(data)
        if run is None:
            return
        match event.kind:
            case "StepStarted":
                self._start_step(run, data)
            case "StepCompleted" | "StepFailed" | "StepAdopted":
                self._end_step(run, data)
            case "StepRetrying":
                self._record_retry(run, data)
            case "EvidenceVerified" | "EvidenceFailed":
                self._record_check(run, data)
            case "CheckpointSaved" | "CheckpointFailed":
                self._record_save(run, data)
            case "RollbackCompleted":
                self._record_rollback(run, data)
            case "WorkflowContinued":
                self._end_run(run, data)
                self._start_run(data)
            case kind if kind in _ENDS:
                self._end_run(run, data)

    # --- attempts --------------------------------------------------------------------------------------------------

    def _tracer(self) -> trace.Tracer:
        return trace.get_tracer(_SCOPE, __version__, self._provider)

    def _start_run(self, event: Any) -> None:
        """Start the span of an attempt in the trace of the run, linked to the previous attempt and to the caller."""
        ids = _RunIds(event.birth or event.workflow_id, event.attempt)
        links = [trace.Link(_RunIds(ids.birth, event.attempt - 1).context())] if event.attempt > 1 else []
        caller = trace.get_current_span().get_span_context()
        if caller.is_valid:
            links.append(trace.Link(caller))
        attributes = {
            "flowckpt.workflow.name": event.workflow_name,
            "flowckpt.run.id": event.workflow_id,
            "flowckpt.attempt": event.attempt,
        }
        around = contexts.Context()
        tracer: Any = copy.copy(self._tracer())
        if hasattr(tracer, "id_generator"):  # the SDK's tracer
            tracer.id_generator = ids
        else:
            around = trace.set_span_in_context(trace.NonRecordingSpan(ids.context()), around)
        span = tracer.start_span(f"run {event.workflow_name}", around, attributes=attributes, links=links)
        self._runs[event.workflow_id] = _OpenRun(event.workflow_name, span)

    def _end_run(self, run: _OpenRun, event: Any) -> None:
        del self._runs[event.workflow_id]
        if is_repeated_end(event):  # nothing ran: the span is not ended, so it is not exported
            return
        for step in reversed([*run.steps.values()]):
            self._leave(step)
            if step.span is not None:
                step.span.set_attribute("flowckpt.step.interrupted", True)
                step.span.end()
        status, workflow = _ENDS[event.kind], {"flowckpt.workflow.name": run.workflow_name}
        span = run.span
        span.set_attribute("flowckpt.run.status", status)
        span.set_attribute("flowckpt.steps.executed", event.executed)
        span.set_attribute("flowckpt.steps.restored", event.restored)
        if waits := [each.path for each in getattr(event, "waits", ())]:
            span.set_attribute("flowckpt.waits", waits)
        if cause := getattr(event, "cause", ""):
            span.set_attribute("flowckpt.cause", cause)
        _set_error(span, event)
        span.end()
        self._ended.add(1, {**workflow, "flowckpt.run.status": status})
        for outcome, count in (("executed", event.executed), ("restored", event.restored)):
            if count:
                self._steps.add(count, {**workflow, "flowckpt.step.outcome": outcome})

    # --- steps -----------------------------------------------------------------------------------------------------

    def _start_step(self, run: _OpenRun, event: Any) -> None:
        path, step_type = event.path, event.step_type
        if step_type in _UNTRACED:
            return
        if step_type in _WAITS:
            run.steps[path] = _OpenStep(step_type)
            return
        attributes = {"flowckpt.step.path": path, "flowckpt.step.type": step_type}
        span = self._tracer().start_span(_span_name(path), run.parent_of(path), attributes=attributes)
        step = run.steps[path] = _OpenStep(step_type, span)
        if step_type not in COMPOSITES:  # the step runs next, in this context or a copy of it
            before = contexts.get_current()
            inside = trace.set_span_in_context(span, before)
            step.before = before, step_baggage.get()
            contexts.attach(inside)
            headers: dict[str, str] = {}
            propagate.inject(headers, inside)
            variables = {name.upper().replace("-", "_"): value for name, value in headers.items()}
            step_baggage.set(StepBaggage(variables, pickle.dumps(WorkerContext(headers, self._exports))))

    def _leave(self, step: _OpenStep) -> None:
        """Restore the context from before a step; tokens cannot be used, because they belong to one context."""
        if step.before is not None:
            contexts.attach(step.before[0])
            step_baggage.set(step.before[1])

    def _end_step(self, run: _OpenRun, event: Any) -> None:
        step, path = run.steps.pop(event.path, None), event.path
        duration_ms = getattr(event, "duration_ms", 0.0)
        if step is None:  # adopted, or not traced
            return
        span = step.span
        if span is None:
            attributes = {"flowckpt.step.path": path, "flowckpt.step.type": step.step_type}
            start = time.time_ns() - round(duration_ms * 1e6)
            span = self._tracer().start_span(
                _span_name(path), run.parent_of(path), attributes=attributes, start_time=start
            )
        self._leave(step)
        figures = getattr(event, "figures", {})
        for name, value in figures.items():
            span.set_attribute(f"flowckpt.figure.{name}", value)
        _set_error(span, event)
        span.end()
        labels = {"flowckpt.workflow.name": run.workflow_name, "flowckpt.step.name": _span_name(path)}
        error = {"error.type": event.error_type} if event.kind == "StepFailed" else {}
        self._durations.record(duration_ms / 1e3, {**labels, "flowckpt.step.type": step.step_type, **error})
        for name, value in figures.items():
            if (
                value >= 0
            ):  # counters only grow; the protocol cannot encode sums of 64 bits or more, and would drop all metrics
                added = value if value < _MOST_WHOLE else float(value)
                self._figures.add(added, {**labels, "flowckpt.figure.name": name})

    def _record_retry(self, run: _OpenRun, event: Any) -> None:
        step = run.steps.get(event.path)
        if step is not None and step.span is not None:
            step.span.add_event(
                "retry",
                {
                    "flowckpt.tries": event.tries,
                    "flowckpt.delay": event.delay_seconds,
                    "exception.type": event.error_type,
                    "exception.message": event.error_message,
                },
            )

    # --- what has happened already -----------------------------------------------------------------------------------

    def _record_check(self, run: _OpenRun, event: Any) -> None:
        attributes = {"flowckpt.step.path": event.path, "flowckpt.evidence.moment": event.moment}
        step = run.steps.get(event.path)
        around = run.span if step is None or step.span is None else step.span
        span = self._past_span(f"verify {_span_name(event.path)}", around, event.duration_ms, attributes)
        if event.kind == "EvidenceVerified":
            span.set_attribute("flowckpt.evidence.claims", event.claims)
        else:
            span.set_status(trace.StatusCode.ERROR, event.reason)
            span.set_attribute("flowckpt.evidence.details", list(event.details))
        span.end()

    def _record_rollback(self, run: _OpenRun, event: Any) -> None:
        attributes = {"flowckpt.step.path": event.path}
        span = self._past_span(f"rollback {_span_name(event.path)}", run.span, event.duration_ms, attributes)
        _set_error(span, event)
        span.end()

    def _past_span(self, name: str, around: trace.Span, duration_ms: float, attributes: dict[str, Any]) -> trace.Span:
        start = time.time_ns() - round(duration_ms * 1e6)
        parent = trace.set_span_in_context(around, contexts.Context())
        return self._tracer().start_span(name, parent, attributes=attributes, start_time=start)

    def _record_save(self, run: _OpenRun, event: Any) -> None:
        is_saved = event.kind == "CheckpointSaved"
        labels = {"flowckpt.workflow.name": run.workflow_name, "flowckpt.save.reason": str(event.reason)}
        self._saves.add(1, {**labels, "flowckpt.save.outcome": "saved" if is_saved else "failed"})
        if is_saved and event.duration_ms:
            self._save_durations.record(event.duration_ms / 1e3, labels)


def _span_name(path: str) -> str:
    """Return the name of a span, of low cardinality: `fetch` for `fetch[2]`, and `pages/[]` for `pages/[17]`."""
    return re.sub(r"/\[\d+\]", "/[]", re.sub(r"(?<=[^/])\[\d+\]", "", path))


def _set_error(span: trace.Span, event: Any) -> None:
    """Set the error attributes of the semantic conventions."""
    if not (kind := getattr(event, "error_type", "")):
        return
    span.set_status(trace.StatusCode.ERROR, event.error_message)
    span.set_attribute("error.type", kind)
    span.add_event("exception", {"exception.type": kind, "exception.message": event.error_message})


@attrs.frozen
class _RunIds:
    """The ids of an attempt's span, the same in every process.

    Attributes:
        birth: distinguishes the run from all others.
        attempt: the attempt.
    """

    birth: str
    attempt: int

    def generate_trace_id(self) -> int:
        """Return the id of the run's trace."""
        return int.from_bytes(sha256(f"flowckpt run {self.birth}".encode()).digest()[:16], "big") or 1

    def generate_span_id(self) -> int:
        """Return the id of the attempt's span."""
        return int.from_bytes(sha256(f"flowckpt attempt {self.attempt} {self.birth}".encode()).digest()[:8], "big") or 1

    def is_trace_id_random(self) -> bool:
        """Return whether samplers may use the id as a random number; a hash is as good as one."""
        return True

    def context(self) -> trace.SpanContext:
        """Return the context of the attempt's span."""
        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        return trace.SpanContext(self.generate_trace_id(), self.generate_span_id(), is_remote=True, trace_flags=flags)


# In workers, and exporters configured by the environment.


@attrs.define
class WorkerContext:
    """Sets the trace context of a step around its function in a worker.

    Attributes:
        headers: the context as text.
        exports: whether the worker sets up its export from the environment.
    """

    headers: Mapping[str, str]
    exports: bool = False
    _token: Token[contexts.Context] | None = None

    def __enter__(self) -> None:
        if self.exports:
            with contextlib.suppress(Exception):
                export_by_environment()
        self._token = contexts.attach(propagate.extract(self.headers))

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            contexts.detach(self._token)


def export_by_environment() -> None:
    """Export traces and metrics by OTLP over HTTP, unless the program has set its own providers.

    It is configured by the environment: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME` and the other standard variables;
    `OTEL_TRACES_EXPORTER=none` and `OTEL_METRICS_EXPORTER=none` turn one of them off.

    Raises:
        SettingError: the exporter is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise SettingError(
            f"the OpenTelemetry exporter is not installed: {error}",
            setting="otel",
            remedy="Install it: pip install 'flowckpt[otel]'.",
        ) from error
    is_named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if is_named else {"service.name": "flowckpt"})
    is_open = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    if is_open and os.environ.get("OTEL_TRACES_EXPORTER") != "none":
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
    is_open = "Proxy" in type(metrics.get_meter_provider()).__name__
    if is_open and os.environ.get("OTEL_METRICS_EXPORTER") != "none":
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        metrics.set_meter_provider(MeterProvider(resource=resource, metric_readers=[reader]))
