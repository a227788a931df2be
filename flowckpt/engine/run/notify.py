"""Hands what a run tells to the code that iterates over its events, one at a time.

The run continues in a task of its own, because much of it may happen at once; but in step with its listener: what tells an
event continues when the next one is asked for. So a listener that stops, stops the run at the very event.
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
else:  # a run without a listener makes no event
    events = LazyModule("flowckpt.events")


EventSink: TypeAlias = Callable[["Event"], Awaitable[None]]
"""Takes each event; awaited, so that it can hold the run up."""


async def event_stream(work: Callable[[EventSink], Awaitable[None]]) -> AsyncGenerator[Event, None]:
    """Run `work` and yield what it tells.

    A cancel of the listener is handed on to the run, whose last events are still yielded; a listener that goes away
    cancels it, too, and waits for its end.

    Args:
        work: told whom to tell.
    """
    loop = asyncio.get_running_loop()
    told: asyncio.Queue[tuple[Event, asyncio.Future[None]] | None] = asyncio.Queue()
    is_heard, is_cancelled, is_stopped = True, False, False

    async def tell(event: Event) -> None:
        nonlocal is_stopped
        if is_heard:
            heard: asyncio.Future[None] = loop.create_future()
            told.put_nowait((event, heard))
            try:
                if not is_stopped:
                    await heard
            except asyncio.CancelledError:
                # Somebody else cancels the run while the listener has an event, as `asyncio.run` does after an error in
                # the listener's loop: the listener may never come back for the last events, so they do not wait for it.
                is_stopped = True
                raise

    running = asyncio.ensure_future(work(tell))
    running.add_done_callback(lambda _: told.put_nowait(None))
    try:
        while True:
            try:
                item = await told.get()
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
            error = running.exception()  # no caller is left to raise it to
            if error is not None:
                _log.warning("a run whose listener went away could not be ended: %s", error)
    if is_cancelled:
        running.exception()  # retrieved: the cancel weighs more
        raise asyncio.CancelledError
    await running


@attrs.define(eq=False, repr=False)
class Notifier:
    """Emits the events of one attempt, and counts its steps.

    Attributes:
        emit: takes an event; None without a listener: an event without a listener is not even made.
        names_restored: whether the listener gets an event for each restored step, and not one for several in a row.
        executed: how many steps were run.
        restored: how many results came from the store.
        failed: how many steps failed.
        dropped_states: the events of partial states that were dropped, not emitted yet.
        folded: how many steps in a row were restored, and their event not emitted yet.
        last_folded: the path of the last of them.
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
            folds_restored: whether steps in a row that are plainly restored have one event.
        """
        self.emit, self.names_restored = emit, emit is not None and not folds_restored
        if emit is None or not folds_restored:
            return

        async def emit_after_restored(event: Event) -> None:
            if self.folded:
                told = events.StepsRestored(workflow_id, self.last_folded, self.folded)
                self.folded = 0
                await emit(told)
            await emit(event)

        self.emit = emit_after_restored

    async def emit_dropped_states(self) -> None:
        """Emit which partial states were dropped."""
        dropped, self.dropped_states = self.dropped_states, []
        if self.emit is not None:
            for event in dropped:
                await self.emit(event)


# Events of what was saved and of what was found in the world.


EventFactory: TypeAlias = Callable[[], "events.Event"]
"""Makes an event once somebody listens."""


def saved_event(workflow_id: str, data: CheckpointData, took: tuple[int, float]) -> events.CheckpointSaved:
    """Return the event of a checkpoint that is durable.

    Args:
        workflow_id: the run.
        data: the checkpoint.
        took: the sequence of the newest checkpoint, and how many milliseconds its save took.
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
        report: the answers.
        moment: `now` after the step, `resume`, or `in_doubt`.
    """
    took_ms = max((each.duration_ms for each in report.verdicts), default=0.0)
    if report.verified or report.outcome == "no_evidence":
        return events.EvidenceVerified(workflow_id, path, moment, report.verified_count, took_ms)
    details = tuple(each.error for each in report.verdicts if each.error is not None and each.is_against)
    return events.EvidenceFailed(workflow_id, path, moment, report.reason, details, took_ms)


def answer_documents(reports: Mapping[str, VerificationReport]) -> tuple[Any, ...]:
    """Return what a checkpoint records of the answers that a resume got.

    Args:
        reports: the answers, by the path of the step whose claims they are.
    """
    return tuple(
        {"path": path, "outcome": str(report.outcome), "verified_at": encode_time(report.verdicts[0].verified_at)}
        for path, report in reports.items()
        if report.verdicts
    )


# Events and errors of a run without its secrets: the last door that they go through.


_NOT_TEXT = ("workflow_id", "path", "output")
"""The texts that are recorded as they are; one that holds a secret was refused."""


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


# Listeners of a run besides its own consumer: they hear every event, and cannot harm the run.


Listener: TypeAlias = Callable[["Event"], None]
"""Called with every event of a run, in order; an error of it is logged and changes nothing."""

EVENTS = logging.getLogger("flowckpt.events")
"""The logger of the events; its records reach the handlers of the logger `flowckpt`."""
EVENTS.addHandler(logging.NullHandler())  # without handlers, Python would print warnings by itself
_log = logging.getLogger(__name__)

_FAILURES = frozenset(
    {"StepFailed", "StepRetrying", "WorkflowFailed", "CheckpointFailed", "EvidenceFailed", "CrashLoopDetected"}
)
_DETAILS = frozenset({"StepProgress", "StepOutput"})


def heard_by(
    listeners: Sequence[Listener], consumer: Callable[[Event], Any] | None
) -> Callable[[Event], Awaitable[None]]:
    """Return what emits an event to listeners and to the consumer of the run."""

    async def tell(event: Event) -> None:
        for listener in listeners:
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


class LogListener:
    """Logs each event of a run as a record with its fields as attributes, as formatters of JSON expect them."""

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
        words += (
            f": {next((said for each in ('error', 'reason', 'message') if (said := getattr(event, each, ''))), '')}"
        )
    return words
