"""Pass the events of a run to the code that iterates over them, one at a time.

The run has a task of its own, because it may do several things in parallel. It stays in step with its listener: after
it emits an event, it continues when the listener asks for the next one. So a listener that stops, stops the run at that
event.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from flowckpt.core.codec.results import encode_time
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.records import CheckpointData
from flowckpt.core.system.lazy import LazyModule
from flowckpt.errors import FlowckptError

if TYPE_CHECKING:
    from flowckpt import events as events  # noqa: PLC0414 - others of the engine have it from here
    from flowckpt.events import Event
    from flowckpt.evidence.report import VerificationReport
else:  # a run without a listener creates no events
    events = LazyModule("flowckpt.events")


EventSink: TypeAlias = Callable[["Event"], Awaitable[None]]
"""Takes each event; it is awaited, so it can delay the run."""


async def event_stream(work: Callable[[EventSink], Awaitable[None]]) -> AsyncGenerator[Event, None]:
    """Run `work` and yield the events that it emits.

    A cancel of the listener is passed on to the run, whose last events are still yielded. If the listener stops
    iterating, the run is cancelled too, and awaited.

    Args:
        work: gets the function to call with each event.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[Event, asyncio.Future[None]] | None] = asyncio.Queue()
    is_heard, is_cancelled, is_stopped = True, False, False

    async def emit(event: Event) -> None:
        nonlocal is_stopped
        if is_heard:
            heard: asyncio.Future[None] = loop.create_future()
            queue.put_nowait((event, heard))
            try:
                if not is_stopped:
                    await heard
            except asyncio.CancelledError:
                # The run was cancelled while the listener handles an event, as `asyncio.run` does after an error in the
                # listener's loop. The listener may never ask for the last events, so they do not wait for it.
                is_stopped = True
                raise

    running = asyncio.ensure_future(work(emit))
    running.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while True:
            try:
                item = await queue.get()
            except asyncio.CancelledError:
                is_cancelled = True
                running.cancel()
                continue
            if item is None:
                break
            event, heard = item
            if heard.cancelled():
                continue
            yield event
            if not heard.done():
                heard.set_result(None)
    finally:
        is_heard = False
        while not running.done():
            running.cancel()
            await asyncio.wait({running})
        if isinstance(sys.exception(), GeneratorExit) and not running.cancelled():
            error = running.exception()  # no caller remains to raise it to
            if error is not None:
                _log.warning("a run whose listener stopped iterating could not be ended: %s", error)
    if is_cancelled:
        running.exception()  # mark it as retrieved: the cancel takes precedence
        raise asyncio.CancelledError
    await running


@attrs.define(eq=False, repr=False)
class Notifier:
    """Emits the events of one attempt, and counts its steps.

    Attributes:
        emit: takes an event; None without a listener, and then no events are created.
        names_restored: whether the listener gets one event per restored step, instead of one for several in a row.
        executed: how many steps were run.
        restored: how many results were restored.
        failed: how many steps failed.
        dropped_states: pending events of dropped partial states.
        folded: how many consecutive restored steps have no event yet.
        last_folded: the path of the last of these steps.
    """

    emit: EventSink | None = None
    names_restored: bool = False
    executed: int = 0
    restored: int = 0
    failed: int = 0
    dropped_states: list[events.StepStateDropped] = attrs.field(init=False, factory=list)
    folded: int = attrs.field(init=False, default=0)
    last_folded: str = attrs.field(init=False, default="")

    def listen(self, emit: EventSink | None, workflow_id: str, *, folds_restored: bool) -> None:
        """Emit the events of a run from now on.

        Args:
            emit: takes each event.
            workflow_id: the run.
            folds_restored: whether consecutive plain steps that are restored share one event.
        """
        self.emit, self.names_restored = emit, emit is not None and not folds_restored
        if emit is None or not folds_restored:
            return

        async def emit_after_restored(event: Event) -> None:
            if self.folded:
                event_of_folded = events.StepsRestored(workflow_id, self.last_folded, self.folded)
                self.folded = 0
                await emit(event_of_folded)
            await emit(event)

        self.emit = emit_after_restored

    async def emit_dropped_states(self) -> None:
        """Emit which partial states were dropped."""
        dropped, self.dropped_states = self.dropped_states, []
        if self.emit is not None:
            for event in dropped:
                await self.emit(event)


# Events of saved checkpoints and checked evidence.


EventFactory: TypeAlias = Callable[[], "events.Event"]
"""Creates an event, if there is a listener."""


def saved_event(workflow_id: str, data: CheckpointData, took: tuple[int, float]) -> events.CheckpointSaved:
    """Return the event of a durable checkpoint.

    Args:
        workflow_id: the run.
        data: the checkpoint.
        took: the sequence of the last timed checkpoint, and how many milliseconds its save took.
    """
    took_ms = took[1] if took[0] == data.sequence else 0.0
    steps = len(data.step_results)
    return events.CheckpointSaved(workflow_id, data.checkpoint_id, data.sequence, data.reason, steps, took_ms)


def failed_event(workflow_id: str, data: CheckpointData | None, error: FlowckptError) -> events.CheckpointFailed:
    """Return the event of a checkpoint that could not be saved.

    Args:
        workflow_id: the run.
        data: the checkpoint.
        error: why not.
    """
    assert data is not None
    return events.CheckpointFailed(workflow_id, data.checkpoint_id, data.sequence, data.reason, str(error))


def evidence_event(
    workflow_id: str, path: str, report: VerificationReport, moment: str
) -> events.EvidenceVerified | events.EvidenceFailed:
    """Return the event of a step whose claims were checked.

    Args:
        workflow_id: the run.
        path: the step.
        report: the verdicts.
        moment: `now` after the step, `resume`, or `in_doubt`.
    """
    took_ms = max((each.duration_ms for each in report.verdicts), default=0.0)
    if report.verified or report.outcome == "no_evidence":
        return events.EvidenceVerified(workflow_id, path, moment, report.verified_count, took_ms)
    details = tuple(each.error for each in report.verdicts if each.error is not None and each.is_against)
    return events.EvidenceFailed(workflow_id, path, moment, report.reason, details, took_ms)


def answer_documents(reports: Mapping[str, VerificationReport]) -> tuple[Any, ...]:
    """Return a resume's verdicts in the form that a checkpoint records.

    Args:
        reports: the reports, by the path of the step.
    """
    return tuple(
        {"path": path, "outcome": str(report.outcome), "verified_at": encode_time(report.verdicts[0].verified_at)}
        for path, report in reports.items()
        if report.verdicts
    )


# Removal of a run's secrets from its events and errors, the last stage before they leave the engine.


_NOT_TEXT = ("workflow_id", "path", "output")
"""Fields that are recorded unchanged; a text with a secret was refused earlier."""


def redact_event(event: Event, secrets: KnownSecrets) -> Event:
    """Return an event with all secrets removed from its texts."""
    if not secrets.is_any:
        return event
    changed = {}
    for name in _list_text_fields(type(event)):
        value = getattr(event, name)
        if isinstance(value, str | tuple) and (hidden := _redact(value, secrets)) != value:
            changed[name] = hidden
    return attrs.evolve(event, **changed) if changed else event


def _list_text_fields(kind: type[Event]) -> tuple[str, ...]:
    return tuple(each.name for each in attrs.fields(kind) if each.name not in _NOT_TEXT)


def redact_error(error: FlowckptError, secrets: KnownSecrets) -> None:
    """Remove the secrets from a flowckpt error before the caller gets it.

    A cause that contains a secret is detached: Python shows causes, and other people's exceptions must not be changed.
    """
    if not secrets.is_any:
        return
    error.args = tuple(_redact(each, secrets) for each in error.args)
    for name, value in vars(error).items():
        setattr(error, name, _redact(value, secrets))
    for cause in (error.__cause__, error.__context__):
        if cause is not None and _contains_secret(cause, secrets):
            error.__cause__ = error.__context__ = None


def redact_ending(error: BaseException, secrets: KnownSecrets) -> None:
    """Remove the secrets from the error that ended a run: from a flowckpt error, or from the notes of any other.

    An exception of the workflow itself is otherwise unchanged; only its redacted record is saved and shown.
    """
    if not secrets.is_any:
        return
    if isinstance(error, FlowckptError):
        redact_error(error, secrets)
        return
    if isinstance(error, SystemExit):  # Python prints its text when the program ends
        error.args = _redact(error.args, secrets)
        error.code = _redact(error.code, secrets)
    if notes := getattr(error, "__notes__", None):
        error.__notes__ = _redact([*notes], secrets)


def _contains_secret(error: BaseException, secrets: KnownSecrets) -> bool:
    seen: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in seen:
        try:
            if secrets.is_in(str(at)) or secrets.is_in(repr(at)):
                return True
        except Exception:  # an error whose text cannot be read may contain a secret
            return True
        seen.append(at)
        at = at.__cause__ or at.__context__
    return False


def _redact(value: Any, secrets: KnownSecrets) -> Any:
    if isinstance(value, str):
        return secrets.redact(value) if type(value) is str else value
    if isinstance(value, tuple | list):
        return type(value)([_redact(each, secrets) for each in value])
    if isinstance(value, dict):
        return {key: _redact(each, secrets) for key, each in value.items()}
    return value


# Listeners of a run besides its consumer: they get every event, and their errors do not affect the run.


Listener: TypeAlias = Callable[["Event"], None]
"""Called with every event of a run, in order; an exception that it raises is logged and otherwise ignored."""

EVENTS = logging.getLogger("flowckpt.events")
"""The logger of events; its records reach the handlers of the logger `flowckpt`."""
EVENTS.addHandler(logging.NullHandler())  # without handlers, Python would print warnings by itself
_log = logging.getLogger(__name__)

_FAILURES = frozenset(
    {"StepFailed", "StepRetrying", "WorkflowFailed", "CheckpointFailed", "EvidenceFailed", "CrashLoopDetected"}
)
_DETAILS = frozenset({"StepProgress", "StepOutput"})


def make_emitter(
    listeners: Sequence[Listener], consumer: Callable[[Event], Any] | None, secrets: Callable[[], KnownSecrets]
) -> EventSink:
    """Return a function that passes events, without the run's secrets, to the listeners and the consumer of the run.

    Args:
        listeners: called with every event.
        consumer: called after them; what it returns is awaited, unless it is None.
        secrets: returns the secrets that are known by then.
    """

    async def emit(event: Event) -> None:
        event = redact_event(event, secrets())
        for listener in listeners:
            try:
                listener(event)
            except Exception as error:
                kind, name = event.kind, type(error).__name__
                _log.warning("run %s: a listener failed at %s: %s: %s", event.workflow_id, kind, name, error)
        if consumer is not None and (pending := consumer(event)) is not None:
            await pending

    return emit


class LogListener:
    """Logs each event of a run as a record whose attributes are the event's fields, as JSON formatters expect."""

    def __init__(self) -> None:
        self._workflow_name = ""
        self._attempt = 0

    def __call__(self, event: Event) -> None:
        """Log the event."""
        if event.kind in ("WorkflowStarted", "WorkflowResumed", "WorkflowContinued"):
            begun: Any = event
            self._workflow_name, self._attempt = begun.workflow_name, begun.attempt
        level = logging.INFO
        failed_with: str = getattr(event, "error_type", "")
        if event.kind in _FAILURES or failed_with:
            level = logging.WARNING
        elif event.kind in _DETAILS:
            level = logging.DEBUG
        if EVENTS.isEnabledFor(level):
            EVENTS.log(level, "run %s: %s", event.workflow_id, _text_of(event), extra=self._extra(event))

    def _extra(self, event: Event) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "event": event.kind,
            "workflow_id": event.workflow_id,
            "workflow_name": self._workflow_name,
            "attempt": self._attempt,
            "step": getattr(event, "path", None),
        }
        for name in ("duration_ms", "tries", "error_type", "error_message", "figures", "checkpoint_id"):
            value: Any = getattr(event, name, None)
            if value:
                fields[name] = dict(value) if name == "figures" else value
        return fields


def _text_of(event: Event) -> str:
    """Return an event as a short text."""
    path = getattr(event, "path", "")
    words = f"{path} {event.kind}" if path else event.kind
    error_type: str = getattr(event, "error_type", "")
    if error_type:
        words += f" with {error_type}: {getattr(event, 'error_message', '')}"
    elif event.kind in _FAILURES:
        words += (
            f": {next((text for each in ('error', 'reason', 'message') if (text := getattr(event, each, ''))), '')}"
        )
    return words
