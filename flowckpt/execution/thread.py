"""Threads for the sync steps of one run, if the event loop must keep running.

Steps that run one after another share one thread, so that objects bound to a thread (a SQLite connection) work across
steps; parallel steps have one thread each. They are daemon threads, unlike those of `concurrent.futures`, so a step
that never ends does not prevent the process from exiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import os
import queue
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

from flowckpt.core.system.blocking import answers
from flowckpt.execution.errors import user_traceback
from flowckpt.execution.interrupts import Interrupts

# Ending a step that the run no longer waits for.


class AbandonedStepError(BaseException):
    """Raised inside a step that the run no longer waits for, so that its `finally` blocks run and it ends."""


Work = Callable[[], Any]
_LOOKS, _LOOK_SECONDS = 20, 0.001


class Call:
    """A callable for a thread, in the context of its caller: it is waiting, running, or has ended.

    Args:
        work: the callable.
        future: gets its outcome.

    Attributes:
        returned: the value that it returned, as entry 0; empty before that.
    """

    def __init__(self, work: Work, future: asyncio.Future[Any]) -> None:
        self.future = future
        # No bytecode comes between the work and its entry, so no exception for a thread that is abandoned just now.
        self.returned: dict[int, Any] = defaultdict(partial(contextvars.copy_context().run, work))
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_abandoned = False

    @property
    def is_at_work(self) -> bool:
        """Whether it is running."""
        return self._thread is not None and self._thread.is_alive()

    def put_into(self, calls: queue.SimpleQueue[Call | None]) -> bool:
        """Pass it to its thread, unless it was abandoned meanwhile: that thread may have ended."""
        with self._lock:
            if not self._is_abandoned:
                calls.put(self)
            return not self._is_abandoned

    def __call__(self) -> Any:
        """Do the work, unless the call was abandoned.

        Raises:
            AbandonedStepError: the call was abandoned.
        """
        with self._lock:
            if self._is_abandoned:
                raise AbandonedStepError
            self._thread = threading.current_thread()
        try:
            return self.returned[0]
        except StopIteration as error:  # no future can carry it
            raise RuntimeError("the step raised StopIteration") from error.with_traceback(user_traceback(error))
        finally:
            with self._lock:  # from here on, abandoning comes too late, and must not affect the thread's next call
                self._thread = None

    async def wait_briefly(self) -> None:
        """Wait until an abandoned call has ended, unless something blocks it: nearly always, it ends at once."""
        for _ in range(_LOOKS):
            if not self.is_at_work:
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def abandon(self) -> None:
        """Abandon the call: it ends at its next bytecode, or does not start; an ended call is not affected.

        This raises an exception once: a second one could interrupt the `finally` blocks. A step may miss the exception,
        for example if it catches everything, or in the callback of a weak reference, where Python drops exceptions.
        """
        with self._lock:
            if self._thread is not None and self._thread.ident is not None and not self._is_abandoned:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread.ident), ctypes.py_object(AbandonedStepError)
                )
            self._is_abandoned = True


class _Relay:
    """Wakes the threads of many runs one after another: each thread that has started wakes the next one.

    Two hundred threads woken at once would all wait for the interpreter lock, and poll it every five milliseconds: a
    sixth of a step's CPU time. Measured by `python -m benchmarks --only "many runs"` (sync steps).
    """

    _MOST = 2

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[queue.SimpleQueue[Call | None], Call]] = deque()
        self._woken = 0

    def wake(self, calls: queue.SimpleQueue[Call | None], call: Call) -> None:
        """Pass a call to its thread, now or once earlier calls have started."""
        with self._lock:
            self._waiting.append((calls, call))
            if self._woken >= self._MOST:
                return
            self._woken += 1
        self.wake_next()

    def wake_next(self) -> None:
        """Wake the next thread."""
        with self._lock:
            while self._waiting:
                calls, call = self._waiting.popleft()
                if call.put_into(calls):
                    return
            self._woken -= 1


_relay = _Relay()


class StepThread:
    """Runs one callable at a time; started for the first one."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Call | None] | None = None

    async def run(self, work: Work, *, on_left: Callable[[Call], None], on_returned: Callable[[int], None]) -> Any:
        """Run `work` on the thread, in the caller's context, and return its value.

        When the wait is cancelled, the thread is abandoned: `AbandonedStepError` is raised in it at its next bytecode,
        and the next call gets a new thread. If `work` has returned by then, it has had its effect, and its value counts.

        Args:
            work: the callable.
            on_left: called with a call that may still be running after a cancel.
            on_returned: called with the number of cancels that came too late, if any did.
        """
        if self._queue is None:
            self._queue = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(self._queue,), name="flowckpt-step", daemon=True).start()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        call, task = Call(work, future), asyncio.current_task()
        assert task is not None
        requests = task.cancelling()
        _relay.wake(self._queue, call)
        try:
            return await future
        except asyncio.CancelledError:
            if not future.done() or future.cancelled():
                call.abandon()  # first, so that the relay does not hand it to a thread that has ended
                self.close()
                with contextlib.suppress(asyncio.CancelledError):
                    await call.wait_briefly()
            if call.returned:
                on_returned(task.cancelling() - requests)  # two requests before the task wakes are one exception
                return call.returned[0]
            on_left(call)
            raise

    def close(self) -> None:
        """Let the thread end after its current call."""
        if self._queue is not None:
            self._queue.put(None)
            self._queue = None


class StepThreads:
    """The threads of one run: as many as ever ran in parallel; the last used thread is used next."""

    def __init__(self) -> None:
        self._idle: list[StepThread] = []
        self._is_closed = False

    async def run(self, work: Work, *, on_left: Callable[[Call], None], on_returned: Callable[[int], None]) -> Any:
        """Run `work` on an idle thread, as `StepThread.run` does."""
        thread = self._idle.pop() if self._idle else StepThread()
        try:
            return await thread.run(work, on_left=on_left, on_returned=on_returned)
        finally:
            if self._is_closed:
                thread.close()
            else:
                self._idle.append(thread)

    def close(self) -> None:
        """Let the threads end after their current calls."""
        self._is_closed = True
        for thread in self._idle:
            thread.close()
        self._idle.clear()


def _serve(calls: queue.SimpleQueue[Call | None]) -> None:
    with contextlib.suppress(AbandonedStepError):
        while (call := calls.get()) is not None:
            _relay.wake_next()
            try:
                value = call()
            except AbandonedStepError:
                raise
            except BaseException as error:
                answers.give(call.future, None, error)
            else:
                answers.give(call.future, value, None)
            del call


# Cancels that arrived just after the work had ended.


def deliver_later(count: int, interrupts: Interrupts) -> None:
    """Deliver cancels that arrived too late to stop the work once its result is safe."""
    task = asyncio.current_task()
    assert task is not None
    for index in range(count):
        task.uncancel()
        # a signal is noted: the engine reads the note when nothing can be lost
        if index or not interrupts.pending_signal:
            task.cancel()
