"""Threads that run the sync steps of one run, where the loop must stay live.

While steps run one after another it is one thread for all, so what belongs to a thread (a SQLite connection) works from
step to step; steps that run beside each other have one each. They are daemons, unlike those of `concurrent.futures`, so a
step that never ends does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowckpt.abandoned import AbandonedStepError
from flowckpt.lazy import LazyModule

if TYPE_CHECKING:
    import ctypes
else:  # only a step that is abandoned needs it
    ctypes = LazyModule("ctypes")

Work = Callable[[], Any]


class StepThread:
    """Runs one callable at a time; started at the first one."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Work, asyncio.Future[Any]] | None] | None = None
        self._thread: threading.Thread | None = None

    async def run(self, work: Work) -> Any:
        """Run `work` on the thread, in the caller's context, and return what it returns.

        When the wait is cancelled, the thread is abandoned: `AbandonedStepError` is raised in it at its next bytecode,
        and the next call gets a new thread.
        """
        if self._queue is None:
            self._queue = queue.SimpleQueue()
            self._thread = threading.Thread(target=_serve, args=(self._queue,), name="flowckpt-step", daemon=True)
            self._thread.start()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        context = contextvars.copy_context()
        self._queue.put((lambda: context.run(work), future))
        try:
            return await future
        except asyncio.CancelledError:
            if not future.done() or future.cancelled():
                self.abandon()
            raise

    def abandon(self) -> None:
        """Leave the thread to itself and ask the step in it to end."""
        thread, work = self._thread, self._queue
        self._thread = self._queue = None
        if thread is not None and work is not None and thread.ident is not None:
            work.put(None)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(AbandonedStepError)
            )

    def close(self) -> None:
        """Let the thread end after what it does now."""
        if self._queue is not None:
            self._queue.put(None)
            self._thread = self._queue = None


class StepThreads:
    """The threads of one run: as many as ever ran beside each other; the one used last is used next."""

    def __init__(self) -> None:
        self._idle: list[StepThread] = []
        self._is_closed = False

    async def run(self, work: Work) -> Any:
        """Run `work` on an idle thread, as `StepThread.run` does."""
        thread = self._idle.pop() if self._idle else StepThread()
        try:
            return await thread.run(work)
        finally:
            if self._is_closed:
                thread.close()
            else:
                self._idle.append(thread)

    def close(self) -> None:
        """Let the threads end after what they do now."""
        self._is_closed = True
        for thread in self._idle:
            thread.close()
        self._idle.clear()


def _serve(work_queue: queue.SimpleQueue[tuple[Work, asyncio.Future[Any]] | None]) -> None:
    with contextlib.suppress(AbandonedStepError):
        while (item := work_queue.get()) is not None:
            work, future = item
            try:
                value = work()
            except AbandonedStepError:
                raise
            except BaseException as error:
                _deliver(future, None, error)
            else:
                _deliver(future, value, None)
            del item, work, future


def _deliver(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        elif isinstance(error, StopIteration):  # a future cannot hold one
            future.set_exception(RuntimeError(f"the step raised StopIteration: {error}"))
        else:
            future.set_exception(error)

    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        future.get_loop().call_soon_threadsafe(settle)
