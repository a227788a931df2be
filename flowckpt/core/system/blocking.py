"""Blocking work runs in place when nothing else could run, and on another thread when a loop must stay live.

A hop to a thread and back costs 50 to 110 µs, as much as the disk's own sync. The owner of a loop that
runs one thing at a time (`run_sync`, the command line) says so once, here, and steps and stores ask.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

_may_block: ContextVar[bool] = ContextVar("flowckpt_may_block", default=False)

may_block = _may_block.get
"""Return whether the caller may block the running loop, because nothing else runs in it."""


@contextmanager
def blocking_allowed(allowed: bool) -> Iterator[None]:
    """Allow or forbid blocking the loop within the block, for this context and the tasks made in it."""
    token = _may_block.set(allowed)
    try:
        yield
    finally:
        _may_block.reset(token)


def run_alone(runner: asyncio.Runner, work: Awaitable[T]) -> T:
    """Run something in a loop in which nothing else runs, so that it may block the loop, and return its result.

    The result is not returned through the loop's task: when a `Runner` restores the handler of SIGINT, `signal` formats
    that handler with the task and the task's result, which takes seconds for a large one.
    """
    found: list[T] = []

    async def alone() -> None:
        with blocking_allowed(True):
            found.append(await work)

    runner.run(alone())
    return found[0]


async def finish_despite_cancel(work: Awaitable[T], *, is_last: bool = False) -> T:
    """Await something to its end; a cancel meanwhile is delivered at the task's next await.

    For what must not be left half known: a save, the taking of a run, its giving back.

    Args:
        work: what to await.
        is_last: raise the cancel here, as the caller's next await may stand after its `asyncio.timeout()`. Python 3.13
            has dropped the cancel by then; 3.11 and 3.12 no longer turn it into a `TimeoutError`.
    """
    if may_block():  # nothing else runs in the loop, and the signals know when not to cancel
        return await work
    task = asyncio.ensure_future(work)
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})  # unlike awaiting the task itself, a cancel of ours does not reach it
        except asyncio.CancelledError:
            is_cancelled = True
    current = asyncio.current_task()
    if is_cancelled and current is not None:
        current.uncancel()  # so that it counts once: asyncio.timeout() asks how often
        current.cancel()
    try:
        return task.result()
    finally:
        if is_cancelled and is_last:
            await asyncio.sleep(0)


async def run_blocking(work: Callable[[], T]) -> T:
    """Run `work` in place where that is allowed, else on a worker thread."""
    if may_block():
        return work()
    return await (_on_own_thread(work) if _is_left.get() else _workers.run(work))


# Threads for work that mostly waits for a disk or a server. Measured with 200 runs of which each waits for a sync of its own
# (`python -m benchmarks --only "many runs"`): `asyncio.to_thread` has six threads on a machine with two cores, and takes
# 60 µs of processor time for each piece of work; syncs of sixteen files at a time share the writes of the disk.

_THREADS = 16
_IDLE_SECONDS = 1.0


class Answers:
    """Gives the answers of threads to the futures of event loops; a loop is woken once for all that it has not seen."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)  # of a thread that is gone, or that held the lock

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._given: dict[asyncio.AbstractEventLoop, list[_Answer]] = {}

    def give(self, future: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
        """Settle a future in its own loop, unless that has ended; may be called from any thread."""
        loop = future.get_loop()
        with self._lock:
            given = self._given.get(loop)
            if given is not None:
                given.append((future, result, failure))
                return
            self._given[loop] = [(future, result, failure)]
        try:
            loop.call_soon_threadsafe(self._settle, loop)
        except RuntimeError:  # the loop has ended meanwhile
            with self._lock:
                self._given.pop(loop, None)

    def _settle(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            given = self._given.pop(loop, [])
        for future, result, failure in given:
            if not future.done():
                future.set_result(result) if failure is None else future.set_exception(failure)


_Answer = tuple["asyncio.Future[Any]", Any, BaseException | None]
answers = Answers()


class Workers:
    """Threads that do blocking work for event loops, and end when there is none for a second.

    Args:
        most: the number of threads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._threads = self._idle = 0

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do work on a thread; it is done to its end, whatever becomes of the future."""
        if self._pid != os.getpid():  # a forked child has neither the threads nor those who hold the lock
            self._reset()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._changed:
            self._waiting.append((partial(copy_context().run, work), future))
            if self._idle:
                self._changed.notify()
            elif self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._work, name="flowckpt-worker", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._idle += 1
                    has_some = self._changed.wait_for(lambda: self._waiting, _IDLE_SECONDS)
                    self._idle -= 1
                    if not has_some:
                        self._threads -= 1
                        return
                work, future = self._waiting.popleft()
            result: Any = None
            failure: BaseException | None = None
            try:
                result = work()
            except BaseException as error:
                failure = error
            answers.give(future, result, failure)
            del work, future, result, failure  # not kept while the thread is idle


_workers = Workers(_THREADS)


# Work that a run does not wait for: what a store that is away keeps for half a minute must not keep the steps as well.


_is_left: ContextVar[bool] = ContextVar("flowckpt_is_left", default=False)


async def begin(work: Awaitable[T], *, patience: float) -> asyncio.Future[T]:
    """Start something, wait for it for a moment, and return it, done or not.

    The process may end while it is not done: its thread is not waited for then.

    Args:
        work: what to do.
        patience: how long to wait, in seconds.
    """
    with blocking_allowed(False):
        token = _is_left.set(True)
        try:
            begun = asyncio.ensure_future(work)
        finally:
            _is_left.reset(token)
    begun.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may never be asked for
    await asyncio.wait({begun}, timeout=patience)
    return begun


async def _on_own_thread(work: Callable[[], T]) -> T:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def give(result: T | None, error: BaseException | None) -> None:
        if not answer.done():
            answer.set_exception(error) if error is not None else answer.set_result(result)  # type: ignore[arg-type]

    def do() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(give, result, failure)

    threading.Thread(target=do, name="flowckpt-left", daemon=True).start()
    return await answer


# A loop inside the thread of another one, which stands still meanwhile.


# From 3.14 on the current task belongs to the thread, and no other loop can run a task while it is set.
swap_task: Callable[[asyncio.AbstractEventLoop, Any], Any] | None = (
    getattr(asyncio.tasks, "_swap_current_task", None) if sys.version_info >= (3, 14) else None
)


def swap_loop(loop: asyncio.AbstractEventLoop | None, task: Any) -> tuple[asyncio.AbstractEventLoop | None, Any]:
    """Make another loop the running one of this thread, or none; return the former loop and its current task."""
    former = _get_running_loop()
    former_task = None if swap_task is None or former is None else swap_task(former, None)
    _set_running_loop(loop)
    if swap_task is not None and loop is not None:
        swap_task(loop, task)
    return former, former_task


@contextmanager
def loop_hidden() -> Iterator[bool]:
    """Hide the loop that runs in this thread, as in a notebook, so that another one can run; yield whether there is one."""
    former = swap_loop(None, None)
    try:
        yield former[0] is not None
    finally:
        swap_loop(*former)
