"""The tries of a step with retries, evidence that decides, an undo before its next call, or live output."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from functools import partial
from io import BytesIO, IOBase, StringIO, TextIOBase
from typing import Any

import attrs

from flowckpt.core.dsl import PythonAction
from flowckpt.core.dsl.modifiers import RetryPolicy
from flowckpt.core.identity.values import value_parts
from flowckpt.core.records.wait import Wait, WaitKind
from flowckpt.core.system.copies import IMMUTABLE
from flowckpt.core.system.declared import type_name
from flowckpt.engine.run.context import RunContext
from flowckpt.engine.run.in_doubt import Resolution, resolve_retry, undo_earlier
from flowckpt.engine.run.notify import EventSink, events, evidence_event
from flowckpt.engine.values.waits import Suspended
from flowckpt.errors import (
    EncodingError,
    FinalError,
    NotSendableError,
    StepInDoubtError,
    StepTimeoutError,
    WorkerDiedError,
)
from flowckpt.execution.current_step import StepCall
from flowckpt.execution.errors import RemoteError, is_one_of, kind_of, read_retry_after, text_of
from flowckpt.execution.python import await_interruptibly
from flowckpt.execution.runner import Outcome, StepRunner

# What a try has used up.

_OF_GENERATORS = frozenset({"close", "send", "throw", "aclose", "asend", "athrow"})


def find_used_iterator(action: PythonAction) -> type | None:
    """Return the type of an iterator in the arguments of a call; None if there is none.

    Args:
        action: the call.
    """
    rest: list[Any] = [action.function, *action.args, *action.kwargs.values()]
    seen: set[int] = set()
    while rest:
        value = rest.pop()
        if type(value) in IMMUTABLE or id(value) in seen:
            continue
        seen.add(id(value))
        with contextlib.suppress(Exception):  # the object's own code failed
            if issubclass(type(value), Iterator | AsyncIterator) and _has_only_rest(value):
                return type(value)
            if isinstance(value, partial):
                rest += [value.func, *value.args, *value.keywords.values()]
            elif isinstance(value, dict | list | tuple | set | deque):
                rest += value.values() if isinstance(value, dict) else value
    return None


def _has_only_rest(value: Any) -> bool:
    """Return whether an iterator that a try got continues where that try has stopped; a client or cursor does not."""
    kind = type(value)
    if not issubclass(kind, IOBase):
        is_proxy = value.__class__ is not kind or issubclass(kind, weakref.ProxyTypes)
        return not is_proxy and all(
            name.startswith("_") or name in _OF_GENERATORS or not callable(getattr(kind, name)) for name in dir(kind)
        )
    if value.closed:
        return True
    if not value.readable() or (value.writable() and not isinstance(value, StringIO | BytesIO)):  # a log, or a port
        return False
    try:
        return bool(value.tell() > 0)
    except OSError:  # a text file in the middle of its lines
        return isinstance(value, TextIOBase)


# A try whose output is emitted line by line while it runs.


MOST_WAITING = 10_000
"""How many lines may wait for the listener; further lines are not emitted, but the result has all of the output."""


async def stream_try(runner: StepRunner, call: StepCall, emit: EventSink) -> Outcome:
    """Run a command once, and emit the lines of its output as they arrive."""
    lines: asyncio.Queue[events.StepOutput | None] = asyncio.Queue()
    left_out = 0

    def keep(stream: str, line: str) -> None:
        nonlocal left_out
        if lines.qsize() < MOST_WAITING:
            lines.put_nowait(events.StepOutput(call.workflow_id, call.path, stream, line))
        else:
            left_out += 1

    trying = asyncio.ensure_future(runner.make_try(call, on_line=keep))
    trying.add_done_callback(lambda _: lines.put_nowait(None))
    try:
        while (line := await lines.get()) is not None:
            await emit(line)
            if left_out and lines.empty():
                note = f"[{left_out} lines left out: they were not read in time]"
                await emit(events.StepOutput(call.workflow_id, call.path, "stderr", note))
                left_out = 0
        return await trying
    finally:
        if not trying.done():
            trying.cancel()
            await asyncio.wait({trying})


def continue_tries(run: RunContext, call: StepCall) -> tuple[StepCall, datetime | None]:
    """Return the call with its next try number, and when the first try started (None without an earlier try).

    Raises:
        Suspended: the next try is not due yet.
    """
    wait = run.waits.get(call.path)
    if wait is None or wait.kind is not WaitKind.RETRY:
        return call, None
    recorded = {name: value for name, value in wait.arguments.items() if name not in ("tries", "figures")}
    if repr(recorded) != repr(_identity_document(call)):  # another call: it starts with its first try
        run.waits.end(call.path)
        return call, None
    if not wait.is_due(run.clock.now()):
        raise Suspended([call.path])
    if figures := wait.arguments.get("figures"):
        run.services.keep_figures(call.path, figures)
    return attrs.evolve(call, tries=wait.arguments["tries"] + 1), wait.since


def _identity_document(call: StepCall) -> dict[str, Any]:
    identity = call.identity
    parts = identity.function, identity.fingerprint, identity.version or ""
    return {"call": "\n".join(parts), "arguments": value_parts(identity.arguments)}


_NO_BETTER_NEXT_TIME = (EncodingError, FinalError, NotSendableError)


@attrs.define(eq=False, repr=False)
class RetryLoop:
    """Tries one step until it succeeds, or until no further try is allowed.

    Attributes:
        context: the current attempt of the run.
        call: the current try.
        found: how an earlier call of the step was resolved.
        since: when the first try started, if the run was suspended between two tries.
        is_undone: whether the effect of an earlier execution is undone; True if there is nothing to undo.
        is_started: whether a try may have called the step's function.
    """

    context: RunContext
    call: StepCall
    found: Resolution
    is_undone: bool = attrs.field(init=False, default=attrs.Factory(lambda it: it.found.undo is None, takes_self=True))
    is_started: bool = attrs.field(init=False, default=False)
    since: datetime | None = None
    _outcome: Outcome | None = attrs.field(init=False, default=None)
    _started_ns: int = attrs.field(init=False, default=0)

    @property
    def tries(self) -> int:
        """How often the step was tried."""
        return self.call.tries

    @property
    def is_adopted(self) -> bool:
        """Whether the evidence proved the step done, so that it was not run."""
        return self.found.outcome is not None and self._outcome is not None and self._outcome.error is None

    async def run(self) -> Outcome:
        """Make the tries and emit their events; return the outcome of the last one."""
        run, path = self.context, self.call.path
        modifiers, clock = self.call.modifiers, run.clock
        # Undo the earlier effect before marking the next call: a mark says that the new call may have had its effect.
        is_mark_due = modifiers.is_at_most_once and (not self.is_undone or modifiers.files is not None)
        self._started_ns = clock.elapsed_ns()
        while True:
            run.recorder.in_flight[path] = self.call
            outcome = await run.runner.open_files(self.call) if is_mark_due and self.found.outcome is None else None
            outcome = outcome or await self._find_substitute()
            if outcome is None:
                if is_mark_due:
                    await run.recorder.mark_in_doubt(self.call)
                    is_mark_due = False
                outcome = await self._try_once()
            self._outcome = outcome
            self.is_started |= outcome.is_started
            error = outcome.error
            if error is None or not self._is_retried(error):
                return outcome
            delay = self._choose_delay(error)
            if not self._is_in_time(error, delay):
                return outcome
            if modifiers.is_at_most_once and self.is_undone and outcome.is_started:
                was_adopted = self.found.outcome is not None
                if not await self._may_be_repeated(error):
                    return outcome
                if self.found.outcome is not None:
                    self._next()
                    continue
                # if so, the result could not be adopted, and the evidence now says that the step was not done
                is_mark_due = was_adopted
            run.interrupts.raise_pending(asyncio.current_task())  # the tries that are left are those of a resume
            if not run.budget.take():
                error.add_note(f"It was not tried again: the run's {run.budget.limit} retries are used up.")
                return outcome
            await self._emit_retry(outcome, error, delay)
            if delay > run.budget.longest_delay and not modifiers.is_ephemeral:
                await self._suspend(error, delay)
            await await_interruptibly(clock.sleep(delay), run.interrupts)
            if not self._is_in_time(error, 0.0):  # the machine was suspended during the delay
                return outcome
            self._next()

    def _next(self) -> None:
        self.call = attrs.evolve(self.call, tries=self.call.tries + 1)

    async def _try_once(self) -> Outcome:
        run, emit = self.context, self.context.notifier.emit
        if emit is None or self.call.action.step_type != "command":
            return await run.runner.make_try(self.call)
        return await stream_try(run.runner, self.call, emit)

    async def _emit_retry(self, outcome: Outcome, error: BaseException, delay: float) -> None:
        emit, call = self.context.notifier.emit, self.call
        if emit is None:
            return
        if outcome.committed is not None:
            await emit(evidence_event(call.workflow_id, call.path, outcome.committed.report, "now"))
        await emit(events.StepRetrying(call.workflow_id, call.path, call.tries, delay, kind_of(error), text_of(error)))

    async def _find_substitute(self) -> Outcome | None:
        """Return the outcome if the step must not run: it is adopted, or its earlier effect cannot be undone."""
        if self.found.outcome is not None:
            return self.found.outcome
        if not self.is_undone and self.found.undo is not None:
            unable = await undo_earlier(self.context, self.call, self.found.undo)
            self.is_undone = unable is None
            return unable
        return None

    def _is_retried(self, error: BaseException) -> bool:
        retry = self.call.modifiers.retry
        if retry is None:  # a cluster often loses workers: that is not a failure of the step
            step, runner = self.call.step, self.context.runner
            if not isinstance(error, WorkerDiedError) or runner.is_here(step):
                return False
            return self.tries < runner.places.tries_when_lost(step, self.call.path)
        if retry.attempts is not None and self.tries >= retry.attempts:
            return False
        if is_one_of(error, _NO_BETTER_NEXT_TIME):
            return False
        return self._is_wanted(error, retry) and not self._has_used_iterator(error)

    def _is_wanted(self, error: BaseException, retry: RetryPolicy) -> bool:
        """Return whether `.retry(on=…)` wants another try; only the worker has the exception that its function raised."""
        if isinstance(error, RemoteError) and error.is_wanted is not None:
            retry = retry.only(functions=False)
            return error.is_wanted or retry.should_retry(error, matches=is_one_of, warn=error.add_note)
        is_wanted = retry.should_retry(error, matches=is_one_of, warn=lambda why: error.add_note(f"{why[:500]}."))
        if isinstance(error, RemoteError) and not is_wanted and retry.only(functions=True).on:
            error.add_note("The functions of .retry(on=…) got only its text: the worker cannot import them.")
        return is_wanted

    def _has_used_iterator(self, error: BaseException) -> bool:
        """Return whether an argument is or contains an iterator, of which another try would get only the rest."""
        action = self.call.action
        used = find_used_iterator(action) if isinstance(action, PythonAction) else None
        if used is not None:
            error.add_note(
                f"It was not tried again: its argument of type {type_name(used)} is an iterator, and the try has used up a "
                "part of it. Pass a list, or create the iterator in the step."
            )
        return used is not None

    def _is_in_time(self, error: BaseException, delay: float) -> bool:
        """Return whether another try would start before the deadline; True without a deadline."""
        retry = self.call.modifiers.retry
        if retry is None or retry.deadline is None:
            return True
        clock = self.context.clock
        elapsed = (clock.elapsed_ns() - self._started_ns) / 1e9
        if self.since is not None:
            elapsed = (clock.now() - self.since).total_seconds()
        if elapsed + delay <= retry.deadline:
            return True
        error.add_note(
            f"It was not tried again: its deadline of {retry.deadline:g} s "
            + (f"ends before the next try, after a delay of {delay:g} s." if delay else "has passed.")
        )
        return False

    def _choose_delay(self, error: BaseException) -> float:
        retry, run = self.call.modifiers.retry, self.context
        if retry is None:
            return 0.0
        return retry.delay(self.tries, random=run.world.random(), at_least=read_retry_after(error, run.clock.now()))

    async def _suspend(self, error: BaseException, delay: float) -> None:
        """Suspend the step until its next try is due; the process need not keep running.

        Raises:
            Suspended: always.
        """
        run, call, now = self.context, self.call, self.context.clock.now()
        elapsed = timedelta(microseconds=(run.clock.elapsed_ns() - self._started_ns) / 1e3)
        since, due_at = self.since or now - elapsed, now + timedelta(seconds=delay)
        arguments = {**_identity_document(call), "tries": call.tries}
        if figures := run.services.read_so_far(call.path)[0]:
            arguments["figures"] = figures
        name = run.secrets.redact(kind_of(error))
        run.waits.begin(Wait(call.path, WaitKind.RETRY, name, since, due_at, arguments=arguments))
        run.recorder.in_flight.pop(call.path, None)
        if run.services.is_used:
            await run.services.wait_for_reports(call.path)
        if run.waits.fan_outs and run.waits.is_worth_a_save(run.waits.select([call.path])[0]):
            await run.recorder.checkpoint_wait()
        raise Suspended([call.path])

    async def _may_be_repeated(self, error: BaseException) -> bool:
        """Return whether an at-most-once step may be tried again."""
        if isinstance(error, StepTimeoutError) and self.context.runner.is_left_behind(self.call.step):
            error.add_note(
                "It was not tried again: its function still runs after the timeout, and may still have its effect."
            )
            return False
        try:
            self.found = await resolve_retry(self.context, self.call)
        except StepInDoubtError as doubt:  # another try could repeat the effect
            error.add_note(f"It was not tried again: {doubt.message}.")
            return False
        return True
