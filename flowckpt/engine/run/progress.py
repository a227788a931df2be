"""The services of an attempt for its running steps: reports, states and signals.

A step runs in one of four places, and calls the engine from each of them in another way:

| the step runs | and calls the engine |
|---|---|
| in place, while the loop stands still | directly; threads of the step take turns |
| on a thread, while the loop runs | through the loop, which the thread waits for |
| in the loop, as async code | by an `await` |
| in another process | by a message from its worker to the loop: see `flowckpt.execution.remote.channel` |
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from flowckpt.core.codec.blob import pack_value, plain_tree
from flowckpt.core.codec.results import encode_time
from flowckpt.core.dsl.checks import check_published_name
from flowckpt.core.identity.secrets import refuse_secrets
from flowckpt.core.records import PartialState, Reason
from flowckpt.core.records.wait import birth_of
from flowckpt.core.system.blocking import blocking_allowed, finish_despite_cancel
from flowckpt.engine.run.notify import events
from flowckpt.errors import EncodingError, FlowckptError
from flowckpt.execution.current_step import (
    StepServices,
    add_figures,
    encode_published,
    encode_state,
    ended_try_error,
    find_running_loop,
    save_in_loop_error,
    state_place,
    validate_figures,
    validate_progress,
)
from flowckpt.stores.base import Ability

if TYPE_CHECKING:
    from flowckpt.core.system.clock import Clock
    from flowckpt.engine.run.notify import Notifier
    from flowckpt.engine.run.recorder import Recorder
    from flowckpt.execution.current_step import CurrentStep, Figures, StepCall
    from flowckpt.execution.interrupts import Interrupts


# Partial states, which steps save while they run: each is a checkpoint of the run.


class PartialSaves(StepServices):
    """Saves and loads the partial states of the steps of one attempt.

    Attributes:
        recorder: makes partial states durable.
        notifier: emits events.
        interrupts: the signals; also knows whether a step runs in place.
        loop: the event loop of the run, once it runs.
        is_used: whether any step has called them.
    """

    def __init__(self, recorder: Recorder, notifier: Notifier, interrupts: Interrupts) -> None:
        self.recorder = recorder
        self.notifier = notifier
        self.interrupts = interrupts
        self.loop: asyncio.AbstractEventLoop | None = None
        self.is_used = False
        self._one_save = threading.Lock()  # a step in place may save from several threads
        self._is_closed = False
        self._failure: BaseException | None = None
        self._saving: set[asyncio.Task[None]] = set()
        self._emitting: set[asyncio.Task[None]] = set()

    def find_call(self, current: CurrentStep) -> StepCall | None:
        """Return the running try that a call comes from; None if that try has ended."""
        call = self.recorder.in_flight.get(current.path)
        return call if call is not None and call.tries == current.tries else None

    def save(self, current: CurrentStep, state: Any, as_type: Any) -> None:
        """Save a state from the step's thread, or from a thread that the step started.

        Args:
            current: the call of the step.
            state: the state.
            as_type: the type to encode it as, or None.

        Raises:
            EncodingError: the state cannot be recorded.
            FlowckptError: the state cannot be saved, or not from this thread.
        """
        self._check(current)
        partial = self._make_partial(current, encode_state(current, state, as_type))
        if self.interrupts.is_in_place:
            with self._one_save, self.interrupts.defer_signals():
                self._check(current)
                if not self.interrupts.is_in_place:  # the step has ended without waiting for this thread
                    raise ended_try_error(current.path, current.tries)
                run_without_loop(self._save(current, partial, emits_here=True))
            return
        loop = self.loop
        if loop is None or loop.is_closed():
            raise ended_try_error(current.path, current.tries)
        if loop is find_running_loop():
            raise save_in_loop_error(current.path)
        asyncio.run_coroutine_threadsafe(self._save_for_thread(current, partial), loop).result()

    async def save_async(self, current: CurrentStep, state: Any, as_type: Any) -> None:
        """Save a state from code in the loop; see `save`."""
        self._check(current)
        partial = self._make_partial(current, encode_state(current, state, as_type))
        if self.loop is not asyncio.get_running_loop():  # a loop of the step's own
            await asyncio.to_thread(self.save, current, state, as_type)
            return
        await self._save(current, partial, emits_here=True)

    async def save_recorded(self, current: CurrentStep, tree: Any) -> None:
        """Save a state that a worker has already encoded; see `save`.

        Args:
            current: the call of the step.
            tree: the encoded state.
        """
        self._check(current)
        await self._save_for_thread(current, self._make_partial(current, tree))

    async def _save_for_thread(self, current: CurrentStep, partial: PartialState) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._saving.add(task)
        try:
            self._check(current)
            with blocking_allowed(False):
                await self._save(current, partial, emits_here=False)
        finally:
            self._saving.discard(task)

    async def _save(self, current: CurrentStep, partial: PartialState, *, emits_here: bool) -> None:
        partials = self.recorder.checkpointer.partial
        before = partials.get(current.path)
        partials[current.path] = partial
        try:
            saved = await self.recorder.checkpoint(Reason.MANUAL)
        except EncodingError:  # refused before any write: the step may continue
            if before is None:
                partials.pop(current.path, None)
            else:
                partials[current.path] = before
            raise
        except Exception as failure:
            self._failure = failure
            raise
        if emits_here:
            await self.recorder.emit_saved(saved)
        elif self.notifier.emit is not None:  # the thread waits for the save, but not for the listener
            emitting = asyncio.ensure_future(self.recorder.emit_saved(saved))
            self._emitting.add(emitting)
            emitting.add_done_callback(self._emitting.discard)

    def find_state(self, path: str) -> tuple[Any, ...]:
        """Return the last saved state of a step, encoded; nothing if there is none."""
        partial = self.recorder.checkpointer.partial.get(path)
        return () if partial is None else (plain_tree(partial.held_state, state_place(path)),)

    async def wait_for_saves(self) -> None:
        """Wait for saves in progress.

        Raises:
            FlowckptError: a save failed.
        """
        with self._one_save:  # a thread that the step has not waited for may be saving
            pass
        if self._emitting:
            await asyncio.gather(*self._emitting)
        if self._failure is not None:
            raise self._failure

    async def close_saves(self) -> None:
        """Accept no more saves, and wait for those in progress: the end of the run is saved after them."""
        self._is_closed = True
        with self._one_save:
            pass
        while self._saving:
            await finish_despite_cancel(asyncio.wait({*self._saving}))  # the saves end meanwhile
        for each in self._emitting:
            each.cancel()
        if self._emitting:
            await asyncio.wait({*self._emitting})

    def _check(self, current: CurrentStep) -> None:
        self.is_used = True
        refuse_in_ephemeral(current, "save")
        if self._is_closed or self.find_call(current) is None:
            raise ended_try_error(current.path, current.tries)

    def _make_partial(self, current: CurrentStep, tree: Any) -> PartialState:
        refuse_secrets(tree, self.recorder.judge.secrets, state_place(current.path))
        assert current._call is not None
        identity = current._call.identity
        facts = identity.function, identity.fingerprint, identity.arguments, identity.version
        return PartialState(pack_value(tree), *facts)


def refuse_in_ephemeral(current: CurrentStep, what: str) -> None:
    """Refuse a call that needs a recorded step.

    Raises:
        FlowckptError: the step is ephemeral.
    """
    if current._call is not None and current._call.modifiers.is_ephemeral:
        raise FlowckptError(
            f"step {current.path!r} is .ephemeral() and cannot {what} anything",
            remedy="Remove .ephemeral(): such a step is never recorded, and runs again at each replay.",
        )


# Engine work inside a step that runs in place: the loop stands still, so this work must not wait for the loop.


T = TypeVar("T")


def run_without_loop(work: Awaitable[T]) -> T:
    """Run a coroutine to its end without an event loop.

    Args:
        work: a coroutine that only blocks and never waits for the loop, as in flowckpt's own stores.

    Raises:
        FlowckptError: the coroutine waits for the loop.
    """
    with blocking_allowed(True):
        steps = work.__await__()
        try:
            next(steps)
        except StopIteration as stop:
            value: T = stop.value
            return value
    close = getattr(steps, "close", None)
    if close is not None:
        close()
    raise FlowckptError(
        "a step that runs in place cannot wait for something that needs the event loop",
        remedy="Make the step an async function and await save_async(); or give it a .timeout(), so that it runs on a "
        "thread of its own.",
    )


# Progress of steps, emitted a few times a second: only the newest report of each step counts.


EVERY_NS = 100_000_000
"""The shortest interval between two progress events of a step."""


class Reporting:
    """Emits the progress of the steps of one attempt.

    Args:
        services: the services that it belongs to.
    """

    def __init__(self, services: RunServices) -> None:
        self._services = services
        self._lock = threading.Lock()
        self._waiting: dict[str, events.StepProgress] = {}
        self._emitted_ns: dict[str, int] = {}
        self._is_due = False
        self._flushing: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    def report(self, path: str, done: float, total: float | None, note: str) -> None:
        """Keep the progress of a step, and emit it unless that was done a moment ago.

        Args:
            path: the step.
            done: how much is done.
            total: how much there is, or None.
            note: a short text.
        """
        services = self._services
        if path not in services.recorder.in_flight:
            return  # called by a thread of a step that has ended
        event = events.StepProgress(services.workflow_id, path, done, total, note)
        if services.interrupts.is_in_place:
            self._report_instate_place(event)
            return
        with self._lock:
            self._waiting[path] = event
            is_due, self._is_due = self._is_due, True
        if not is_due:
            loop = services.loop
            if loop is None:
                return
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._schedule_flush)

    def _report_instate_place(self, event: events.StepProgress) -> None:
        services, path = self._services, event.path
        with self._lock:
            now = services.clock.elapsed_ns()
            since = self._emitted_ns.get(path)
            is_last = event.total is not None and event.done >= event.total
            if since is not None and now - since < EVERY_NS and not is_last:
                self._waiting[path] = event
                return
            self._waiting.pop(path, None)
            self._emitted_ns[path] = now
            if services.notifier.emit is not None:
                with services.interrupts.defer_signals():
                    run_without_loop(services.notifier.emit(event))

    def _schedule_flush(self) -> None:
        wait = EVERY_NS - self._services.clock.elapsed_ns() + self._emitted_ns.get("", -EVERY_NS)
        asyncio.get_running_loop().call_later(max(0.0, wait / 1e9), self._flush)

    def _flush(self) -> None:
        with self._lock:
            self._is_due = False
            newest, self._waiting = self._waiting, {}
            self._emitted_ns[""] = self._services.clock.elapsed_ns()
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.ensure_future(self._emit_all(newest))
        elif newest:  # the listener is slow: emit the newest reports later
            with self._lock:
                self._waiting = {**newest, **self._waiting}
                is_due, self._is_due = self._is_due, True
            if not is_due:
                self._schedule_flush()

    async def _emit_all(self, newest: dict[str, events.StepProgress]) -> None:
        try:
            for path, event in newest.items():
                if self._services.notifier.emit is not None and path in self._services.recorder.in_flight:
                    await self._services.notifier.emit(event)
        except Exception as failure:  # the listener has failed: raised when the step ends
            self._failure = failure

    async def flush(self, path: str) -> None:
        """Emit the last report of a step before its end.

        Args:
            path: the step.
        """
        with self._lock:
            event = self._waiting.pop(path, None)
            self._emitted_ns.pop(path, None)
        if self._flushing is not None and not self._flushing.done():
            await asyncio.wait({self._flushing})  # the events being emitted may belong to this step
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if event is not None and self._services.notifier.emit is not None:
            await self._services.notifier.emit(event)

    async def close(self) -> None:
        """Drop the reports that were not emitted."""
        with self._lock:
            self._waiting.clear()
            self._is_due = True  # so that no new flush starts
        if self._flushing is not None and not self._flushing.done():
            self._flushing.cancel()
            await asyncio.wait({self._flushing})


# All services.


class RunServices(PartialSaves):
    """The engine's services for the steps of one attempt.

    Attributes:
        clock: the time.
    """

    def __init__(self, recorder: Recorder, notifier: Notifier, interrupts: Interrupts, clock: Clock) -> None:
        super().__init__(recorder, notifier, interrupts)
        self.clock = clock
        self._lock = threading.Lock()
        # kept until the step ends, and recorded with its result; None: the step has ended
        self._figures: dict[str, dict[str, int | float] | None] = {}
        self._published: dict[str, dict[str, Any]] = {}
        self._process = os.getpid()

    @property
    def workflow_id(self) -> str:
        """The run."""
        return self.recorder.checkpointer.run.workflow_id

    @property
    def birth(self) -> str:
        """The `birth` of the run, or its id if it has none."""
        return birth_of(self.recorder.checkpointer.metadata) or self.workflow_id

    @cached_property
    def _reporting(self) -> Reporting:
        return Reporting(self)

    def progress(self, current: CurrentStep, done: float, total: float | None, note: str) -> None:
        """Report the progress of a step; see `CurrentStep.progress`."""
        done, total, note = validate_progress(done, total, note)
        if (call := self.find_call(current)) is not None:
            call.done = done, total, note
        if self.notifier.emit is not None:
            self.is_used = True
            self._reporting.report(current.path, done, total, note)

    def record(self, current: CurrentStep, figures: Mapping[str, Any]) -> None:
        """Add figures of a step; see `CurrentStep.record`."""
        figures = validate_figures(figures)
        self.is_used = True
        with self._accept_from(current, "record"):
            total = self._figures[current.path] = self._figures.get(current.path) or {}
            add_figures(total, figures)

    def keep_figures(self, path: str, figures: Figures) -> None:
        """Count the figures of tries before a suspension, unless this process has counted them itself."""
        self.is_used = True
        with self._lock:
            self._figures.setdefault(path, dict(figures))

    @contextlib.contextmanager
    def _accept_from(self, current: CurrentStep, what: str) -> Iterator[None]:
        """Accept figures and values of a try during the block; refuse those of an ended try or another process."""
        if os.getpid() != self._process:
            raise FlowckptError(
                f"current_step().{what}() was called in a process started by step {current.path!r}",
                remedy=f"Return the value to the process that runs the step's function, and call {what}() there.",
            )
        with self._lock:
            if self._figures.get(current.path, {}) is None or self.find_call(current) is None:
                raise ended_try_error(current.path, current.tries)
            yield

    def read_so_far(self, path: str) -> tuple[Figures, Mapping[str, Any]]:
        """Return the figures and published values of a step so far."""
        if not self.is_used:
            return {}, {}
        with self._lock:
            return dict(self._figures.get(path) or {}), dict(self._published.get(path, {}))

    def take(self, path: str) -> tuple[Figures, Mapping[str, Any]]:
        """Return the figures and published values of an ended step, from all its tries; later ones are refused."""
        with self._lock:
            found, self._figures[path] = self._figures.get(path), None
            return found or {}, self._published.pop(path, {})

    def publish(self, current: CurrentStep, name: str, value: Any) -> None:
        """Publish a value of a step; see `CurrentStep.publish`."""
        self.publish_recorded(current, {name: encode_published(current, name, value)})

    def publish_recorded(self, current: CurrentStep, published: Any) -> None:
        """Publish values that are already encoded, as a worker sends them."""
        secrets = self.recorder.judge.secrets
        refuse_in_ephemeral(current, "publish")
        entries = {}
        for name, tree in dict(published).items():
            place = f"{current.path}: published {check_published_name(name)!r:.80}"
            refuse_secrets({name: tree}, secrets, place)
            entries[name] = {"value": tree, "at": encode_time(self.clock.now())}
        self.is_used = True
        with self._accept_from(current, "publish"):
            self._published.setdefault(current.path, {}).update(entries)

    @property
    def is_followed(self) -> bool:
        """Whether the progress of steps is shown anywhere: by a listener or in the live note."""
        return self.notifier.emit is not None or self.recorder.checkpointer.store.has(Ability.LIVE)

    async def wait_for_reports(self, path: str) -> None:
        """Wait until all reports and saves of a step are processed, before its end is emitted.

        Args:
            path: the step.

        Raises:
            FlowckptError: a save failed, which ends the run even if the step handled the error.
        """
        await self.wait_for_saves()
        await self._reporting.flush(path)

    def forget(self, path: str) -> None:
        """Forget a step that has ended."""
        with self._lock:
            self._figures.pop(path, None)

    async def close(self) -> None:
        """Accept nothing more: wait for saves in progress, and drop progress that was not emitted."""
        if self.is_used:
            await self.close_saves()
            await self._reporting.close()
