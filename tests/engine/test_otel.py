"""Traces and metrics: against the in-memory exporters of the SDK, and a real OTLP receiver over HTTP."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import StatusCode

from flowckpt import (
    FileCheckpointStore,
    MemoryCheckpointStore,
    RunOptions,
    WorkflowEngine,
    current_step,
    in_sync,
    parallel,
    step,
    workflow,
)
from flowckpt.evidence import artifact_exists
from flowckpt.otel import Telemetry
from flowckpt.testing import FakeClock


class Observed:
    """Telemetry with all that it exports."""

    def __init__(self, **given: Any) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.provider = TracerProvider(**given)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.listener = Telemetry(self.provider, MeterProvider(metric_readers=[self.reader]))
        self.tracer = self.provider.get_tracer("user")

    @property
    def spans(self):
        return self.exporter.get_finished_spans()

    def tree(self):
        """The spans as name and name of the parent."""
        names = {each.context.span_id: each.name for each in self.spans}
        return sorted((each.name, names[each.parent.span_id] if each.parent else None) for each in self.spans)

    def span(self, name):
        (found,) = [each for each in self.spans if each.name == name]
        return found

    def points(self, metric):
        data = self.reader.get_metrics_data()
        if data is None:
            return []
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for each in scope.metrics
            if each.name == metric
            for point in each.data.data_points
        ]


@pytest.fixture
def observed():
    return Observed()


def engine_of(observed, store=None, **given):
    return WorkflowEngine(store or MemoryCheckpointStore(), listeners=[observed.listener], **given)


def test_steps_evidence_maps_and_children_are_spans_of_one_trace(observed, tmp_path):
    def fetch():
        with observed.tracer.start_as_current_span("of the user"):
            current_step().record(rows=3, credit=-1)
        (tmp_path / "file").write_text("x")
        return [1, 2]

    @workflow
    def inner(n: int):
        return (yield step("deep").python(int, n))

    @workflow
    def outer():
        rows = yield step("fetch").python(fetch).evidence(artifact_exists(str(tmp_path / "file"))).checkpoint()
        yield step("each").map(str, rows)
        yield step("again").python(int)
        yield step("again").python(int)
        yield step("child").workflow(inner, n=2)
        yield parallel(step("left").python(int), step("right").python(int))

    assert engine_of(observed).run_sync(outer, workflow_id="one").status == "completed"
    assert observed.tree() == sorted(
        [
            ("run outer", None),
            ("fetch", "run outer"),
            ("of the user", "fetch"),
            ("verify fetch", "fetch"),
            ("each", "run outer"),
            ("each/[]", "each"),
            ("each/[]", "each"),
            ("again", "run outer"),
            ("again", "run outer"),
            ("child", "run outer"),
            ("child/deep", "child"),
            ("parallel", "run outer"),
            ("parallel/[left]", "parallel"),
            ("parallel/[right]", "parallel"),
        ]
    )
    assert len({each.context.trace_id for each in observed.spans}) == 1
    root = observed.span("run outer")
    assert {name: root.attributes[name] for name in ("flowckpt.run.id", "flowckpt.attempt", "flowckpt.run.status")} == {
        "flowckpt.run.id": "one",
        "flowckpt.attempt": 1,
        "flowckpt.run.status": "completed",
    }
    assert observed.span("fetch").attributes["flowckpt.figure.rows"] == 3
    assert not trace.get_current_span().get_span_context().is_valid  # nothing is left in this context
    (figure,) = observed.points("flowckpt.figures")
    assert (figure.value, figure.attributes["flowckpt.figure.name"]) == (3, "rows")
    assert {each.attributes["flowckpt.step.name"] for each in observed.points("flowckpt.step.duration")} == {
        each.name for each in observed.spans if not each.name.startswith(("run", "verify", "of"))
    }
    saved = sum(each.value for each in observed.points("flowckpt.saves"))
    assert saved == sum(each.count for each in observed.points("flowckpt.save.duration")) > 1


def test_all_attempts_join_one_trace_and_waits_last_from_one_to_the_other(tmp_path):
    """Each attempt has an engine, a store and providers of its own, as in another process."""

    @workflow
    def waiting():
        yield step("first").python(int).checkpoint()
        yield step("go").wait("go")
        return (yield step("last").python(int))

    first, second, other = Observed(), Observed(), Observed()
    start = datetime.now(UTC)
    engine = engine_of(first, FileCheckpointStore(tmp_path), clock=FakeClock(start))
    assert engine.run_sync(waiting, workflow_id="one").status == "suspended"
    assert first.span("run waiting").attributes["flowckpt.waits"] == ("go",)
    engine = engine_of(second, FileCheckpointStore(tmp_path), clock=FakeClock(start + timedelta(hours=2)))
    in_sync(engine).signal("one", "go")
    assert engine.resume_sync(waiting, workflow_id="one").status == "completed"
    assert first.tree() == [("first", "run waiting"), ("run waiting", None)]
    assert second.tree() == [("go", "run waiting"), ("last", "run waiting"), ("run waiting", None)]
    begun, resumed = first.span("run waiting"), second.span("run waiting")
    assert begun.context.trace_id == resumed.context.trace_id
    assert [each.context.span_id for each in resumed.links] == [begun.context.span_id]
    waited = second.span("go")
    assert waited.end_time - waited.start_time > 7e12  # two hours, since the first attempt
    assert [dict(each.attributes)["flowckpt.run.status"] for each in second.points("flowckpt.runs")] == ["completed"]
    steps = {each.attributes["flowckpt.step.outcome"]: each.value for each in second.points("flowckpt.steps")}
    assert steps == {"executed": 2, "restored": 1}
    engine_of(other, FileCheckpointStore(tmp_path)).resume_sync(waiting, workflow_id="one")
    assert other.spans == () and other.points("flowckpt.runs") == []  # nothing was run
    engine_of(other).run_sync(waiting, workflow_id="one")
    assert other.span("run waiting").context.trace_id != begun.context.trace_id  # another run of the same id


def test_failures_retries_and_rollbacks(observed):
    tried = []

    def flaky():
        tried.append(1)
        if len(tried) < 2:
            raise ConnectionError("not yet")

    def fail():
        raise ValueError("no")

    @workflow
    def failing():
        yield step("flaky").python(flaky).retry(2, backoff=0).rollback(lambda output: None)
        yield step("fail").python(fail)

    assert engine_of(observed).run_sync(failing).status == "failed"
    (retry,) = observed.span("flaky").events
    assert (retry.name, retry.attributes["exception.type"]) == ("retry", "ConnectionError")
    for name in ("fail", "run failing"):
        span = observed.span(name)
        assert span.status.status_code is StatusCode.ERROR and "error.type" in span.attributes
    (exception,) = observed.span("fail").events
    assert dict(exception.attributes) == {"exception.type": "ValueError", "exception.message": "no"}
    assert ("rollback flaky", "run failing") in observed.tree()
    (failed,) = [each for each in observed.points("flowckpt.step.duration") if "error.type" in each.attributes]
    assert failed.attributes["error.type"] == "ValueError"


def test_samplers_decide_by_the_run_and_the_same_for_every_attempt(tmp_path):
    @workflow
    def waiting():
        yield step("go").wait("go")

    decided = set()
    for number in range(6):
        first, second = (Observed(sampler=ParentBased(TraceIdRatioBased(0.5))) for _ in range(2))
        store = MemoryCheckpointStore()
        engine_of(first, store).run_sync(waiting, workflow_id=f"run {number}")
        engine = engine_of(second, store)
        in_sync(engine).signal(f"run {number}", "go")
        engine.resume_sync(waiting, workflow_id=f"run {number}")
        assert bool(first.spans) == bool(second.spans)
        decided.add(bool(first.spans))
    assert decided <= {True, False}


@pytest.mark.parametrize("how", ["thread", "timeout", "async", "executor"])
def test_the_context_reaches_steps_on_threads_and_in_the_loop(observed, how):
    def work():
        observed.tracer.start_span("of the user").end()

    async def work_async():
        work()

    @workflow
    def flow():
        one = step("work").python(work_async if how == "async" else work)
        yield one.on("there") if how == "executor" else one.timeout(600) if how == "timeout" else one

    executors = {"there": lambda: ThreadPoolExecutor(1)} if how == "executor" else {}
    options = RunOptions(executors={"default": "thread"} if how == "thread" else {})
    engine_of(observed, executors=executors).run_sync(flow, options=options).unwrap()
    assert ("of the user", "work") in observed.tree()


async def test_the_caller_is_linked_and_keeps_its_own_span(observed):
    @workflow
    def flow():
        yield step("one").python(int)

    with observed.tracer.start_as_current_span("request") as request:
        await engine_of(observed).run(flow)
        assert trace.get_current_span() is request
    (link,) = observed.span("run flow").links
    assert link.context.span_id == request.get_span_context().span_id
    assert observed.span("run flow").parent is None


def test_without_the_sdk_runs_are_as_ever():
    @workflow
    def flow():
        return (yield step("one").python(int))

    listener = Telemetry(trace.NoOpTracerProvider())
    assert WorkflowEngine(MemoryCheckpointStore(), listeners=[listener]).run_sync(flow).unwrap() == 0


# --- hostile names and exporters --------------------------------------------------------------------------------------


def test_names_texts_and_figures_of_any_kind_can_be_exported(observed):
    def fails():
        raise ValueError("\x1b[31m\x00" + "x" * 100_000)

    def measures(value):
        current_step().record(**{"size": value, "a b\x1b": 1})

    @workflow
    def flow():
        for name in ("a\x1b[31mb", "\u202eevil", "a\x00b", "ü" * 200):
            yield step(name).python(int)
        yield step("map").map(str, ["a\x1b", "b\ud800"], key=str)
        for value in [2**62] * 4 + [2**70, -(2**70), 1e-300]:
            yield step("measure").python(measures, value)
        yield step("fails").python(fails)

    assert engine_of(observed).run_sync(flow).status == "failed"
    sizes = [
        point.as_double
        for scope in encode_metrics(observed.reader.get_metrics_data()).resource_metrics[0].scope_metrics
        for each in scope.metrics
        if each.name == "flowckpt.figures"
        for point in each.sum.data_points
        if "size" in str(point.attributes)
    ]
    assert sizes == [pytest.approx(2**64 + 2**70)], "a sum of more than 64 bits would lose all metrics"
    spans = encode_spans(observed.spans).resource_spans[0].scope_spans[0].spans
    assert len(spans) == len(observed.spans) == 4 + 3 + 7 + 1 + 1
    assert not [each.name for each in spans if "\x1b" in each.name or "\u202e" in each.name]


@pytest.mark.parametrize("when", ["on_start", "on_end", "should_sample"])
def test_an_exporter_that_raises_changes_no_run_and_is_logged(when, caplog):
    def raises(*_, **__):
        raise RuntimeError("the exporter is broken")

    processor = SpanProcessor()
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(1.0)))
    setattr(provider.sampler if when == "should_sample" else processor, when, raises)
    provider.add_span_processor(processor)
    engine = WorkflowEngine(MemoryCheckpointStore(), listeners=[Telemetry(provider)])

    @workflow
    def flow():
        yield step("one").python(int).checkpoint()
        return (yield step("map").map(abs, [1, -2]).checkpoint())

    assert engine.run_sync(flow, workflow_id="one").output == [1, 2]
    assert engine.resume_sync(flow, workflow_id="one").steps.restored == 4
    assert not trace.get_current_span().get_span_context().is_valid
    assert "a listener failed at Workflow" in caplog.text and "the exporter is broken" in caplog.text


# --- processes -------------------------------------------------------------------------------------------------------

PROGRAM = """
import os
from opentelemetry import trace
from flowckpt import current_step, step, workflow

def work():
    with trace.get_tracer("user").start_as_current_span("in the worker"):
        current_step().record(tokens=7)
    trace.get_tracer_provider().force_flush()  # nobody waits for the worker of a process that dies
    return os.getpid()

def die_once():
    if not os.path.exists("died"):
        open("died", "w").close()
        trace.get_tracer_provider().force_flush()
        os._exit(9)

@workflow
def flow():
    yield step("work").python(work).on("far").checkpoint()
    yield step("shell").command(["sh", "-c", "echo $TRACEPARENT"]).checkpoint()
    yield step("die").python(die_once).checkpoint()
    return (yield step("last").python(int).checkpoint())
"""


@pytest.fixture(scope="module")
def receiver():
    """A receiver of OTLP over HTTP."""
    spans, metrics = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/traces":
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    names = {each.key: each.value.string_value for each in resource.resource.attributes}
                    spans.extend(
                        (names["service.name"], span) for scope in resource.scope_spans for span in scope.spans
                    )
            else:
                for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    metrics.extend(each.name for scope in resource.scope_metrics for each in scope.metrics)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()

        def log_message(self, *_):
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    served.spans, served.metrics = spans, metrics
    yield served
    served.shutdown()
    served.server_close()
    thread.join()


def test_a_real_receiver_gets_one_trace_from_all_processes(receiver, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWCKPT_", "OTEL_"))}
    environ |= {
        "FLOWCKPT_OTEL": "1",
        "FLOWCKPT_EXECUTORS": "far=process:1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.server_port}",
        "OTEL_SERVICE_NAME": "shop",
    }

    def flowckpt(*arguments):
        command = [sys.executable, "-m", "flowckpt", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=250)

    assert flowckpt("run", "program.py", "--id", "one").returncode == 9
    ran = flowckpt("resume", "one")
    assert (ran.returncode, ran.stderr.count("Traceback")) == (0, 0), ran.stderr
    assert {service for service, _ in receiver.spans} == {"shop"}
    spans = [span for _, span in receiver.spans]
    assert len({span.trace_id for span in spans}) == 1
    by_id = {span.span_id: span.name for span in spans}
    tree = sorted((span.name, by_id.get(span.parent_span_id)) for span in spans)
    assert tree == [
        ("die", "run flow"),  # that of the process that died was never ended
        ("in the worker", "work"),
        ("last", "run flow"),
        ("run flow", None),
        ("shell", None),  # below the attempt that died: its own span was never ended
        ("work", None),
    ]
    assert {"flowckpt.runs", "flowckpt.step.duration", "flowckpt.save.duration"} <= {*receiver.metrics}
    (shell,) = [span for span in spans if span.name == "shell"]
    shown = flowckpt("show", "one", "--json").stdout
    assert f"00-{shell.trace_id.hex()}-{shell.span_id.hex()}-" in shown


def test_nothing_is_imported_unless_it_is_asked_for(tmp_path):
    (tmp_path / "program.py").write_text(
        "import sys\nfrom flowckpt import step, workflow\n"
        "def loaded(): return sorted(name for name in sys.modules if name.startswith('opentelemetry'))\n"
        "@workflow\ndef flow():\n    return (yield step('loaded').python(loaded))\n"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FLOWCKPT_")}
    command = [sys.executable, "-m", "flowckpt", "run", "program.py"]
    ran = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=250, check=True)
    assert "output: []" in ran.stdout
