"""Blocking work: in place if nothing else could run, on another thread, or in its own loop.

A switch to a thread and back costs 50 to 110 µs, as much as a disk's sync. The owner of a loop that runs one thing at a
time (`run_sync`, the command line) declares that here, and steps and stores check it. `in_sync` is the way to use an
object's async methods from sync code, in a separate loop; there are no sync twins of classes. That loop runs one call
at a time and nothing else, so stores and checks work in place.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import io
import os
import queue
import sys
import threading
import weakref
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Self, TypeVar

from flowckpt.errors import CheckpointStorageError

T = TypeVar("T")

_may_block: ContextVar[bool] = ContextVar("flowckpt_may_block", default=False)

may_block = _may_block.get
"""Return whether the caller may block the running loop, because nothing else runs in it."""


allow_blocking, forget_allowance = _may_block.set, _may_block.reset
"""The start and the end of a block of `blocking_allowed`; the end takes what the start returned."""


@contextmanager
def blocking_allowed(allowed: bool) -> Iterator[None]:
    """Allow or forbid blocking the loop within the block, for this context and the tasks created in it."""
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

    For work whose outcome must be known: a save, taking a lease, releasing it. `cancellable_wait` allows a cancel before it
    starts.

    Args:
        work: the awaitable.
        is_last: raise the cancel here, because the caller's next await may come after its `asyncio.timeout()` block,
            where Python 3.13 drops the cancel, and 3.11 and 3.12 do not turn it into a `TimeoutError`.
    """
    if may_block():  # nothing else runs in the loop, and the signal handlers do not cancel meanwhile
        return await work
    task = asyncio.ensure_future(work)
    is_cancelled = False
    while not task.done():
        # unlike awaiting the task itself, this does not cancel it
        waiter = task.get_loop().create_future()
        task.add_done_callback(partial(_wake, waiter))  # asyncio.wait() takes three times as long
        try:
            await waiter
        except asyncio.CancelledError:
            is_cancelled = True
            if task in _giving_way:
                task.cancel()
                await task
    current = asyncio.current_task()
    if is_cancelled and current is not None:
        current.uncancel()  # count it once: asyncio.timeout() reads the count
        current.cancel()
    try:
        return task.result()
    finally:
        if is_cancelled and is_last:
            await asyncio.sleep(0)


_giving_way: weakref.WeakSet[asyncio.Future[Any]] = weakref.WeakSet()


@contextmanager
def cancellable_wait() -> Iterator[None]:
    """Allow a cancel in this block, even within `finish_despite_cancel`: the work only waits, and has not started."""
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    _giving_way.add(task)
    try:
        yield
    finally:
        _giving_way.discard(task)


def _wake(waiter: asyncio.Future[None], _: object) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def run_blocking(work: Callable[[], T]) -> T:
    """Run `work` in place if that is allowed, otherwise on a worker thread."""
    if may_block():
        return work()
    return await (run_on_daemon(work) if _is_left.get() else workers.run(work))


# Threads for work that mostly waits for a disk or a server. Measured with 200 runs that each wait for their own sync
# (`python -m benchmarks --only "many runs"`): `asyncio.to_thread` has six threads on a machine with two cores and takes
# 60 µs of processor time per call; syncs of sixteen files at a time share disk writes.

_THREADS = 16
_IDLE_SECONDS = 1.0


def start_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread, and return it.

    Args:
        work: the function to run.
        name: the name of the thread.

    Raises:
        CheckpointStorageError: the limit of threads is reached, or Python is shutting down.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise CheckpointStorageError(
            f"cannot start a thread to read or write: {error}",
            remedy="Raise the limit of threads (ulimit -u), or run fewer things at the same time.",
        ) from error
    return thread


def call_safely(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Return the result of a call, or None and the error that it raised."""
    try:
        return work(), None
    except BaseException as error:
        return None, error


class ResultDelivery:
    """Delivers results of threads to the futures of event loops, waking each loop once for all pending results."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)  # a missing thread may hold the lock

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[asyncio.AbstractEventLoop, list[_Answer]] = {}

    def give(self, future: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
        """Set the result of a future in its loop, unless the loop is closed; may be called from any thread."""
        loop = future.get_loop()
        with self._lock:
            given = self._pending.get(loop)
            if given is not None:
                given.append((future, result, failure))
                return
            self._pending[loop] = [(future, result, failure)]
        try:
            loop.call_soon_threadsafe(self._set_results, loop)
        except RuntimeError:  # the loop has ended meanwhile
            with self._lock:
                self._pending.pop(loop, None)

    def _set_results(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            given = self._pending.pop(loop, [])
        for future, result, failure in given:
            if not future.done():
                future.set_result(result) if failure is None else future.set_exception(failure)


_Answer = tuple["asyncio.Future[Any]", Any, BaseException | None]
answers = ResultDelivery()


class Workers:
    """Threads that do blocking work for event loops, and end after one second without work.

    Args:
        most: the maximum number of threads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._waiting: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any] | None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._unfinished = 0

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function on a thread, to its end even if the future is cancelled."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.start(partial(copy_context().run, work), future)
        return future

    def start(self, work: Callable[[], Any], future: asyncio.Future[Any] | None = None) -> None:
        """Run a function on a thread.

        Args:
            work: the function. Without a future, it must not raise.
            future: receives the result.

        Raises:
            CheckpointStorageError: no thread is running and none can be started; the work is not done.
        """
        if self._pid != os.getpid():  # a forked child has neither the threads nor those that hold the locks
            self._reset()
        with self._lock:
            if self._threads < min(self._most, self._unfinished + 1):
                try:
                    start_thread(self._work, "flowckpt-worker")
                    self._threads += 1
                except CheckpointStorageError:
                    if not self._threads:
                        raise
            self._unfinished += 1
            self._waiting.put((work, future))

    def each(self, calls: Sequence[Callable[[], object]]) -> list[tuple[Any, BaseException | None]]:
        """Make calls in parallel, on this thread and others; return the result and the error of each.

        Args:
            calls: the calls, which mostly wait for the disk.
        """
        outcomes: list[tuple[Any, BaseException | None]] = [(None, None)] * len(calls)
        pending, done, are_done = deque(range(len(calls))), deque[int](), threading.Event()

        def make_some() -> None:
            with contextlib.suppress(IndexError):  # no calls remain
                while True:
                    place = pending.popleft()
                    outcomes[place] = call_safely(calls[place])
                    done.append(place)
                    if len(done) == len(calls):
                        are_done.set()

        with contextlib.suppress(CheckpointStorageError):  # without other threads, this one makes all calls
            for _ in range(min(len(calls), self._most) - 1):
                self.start(make_some)
        make_some()
        if calls:
            are_done.wait()
        return outcomes

    def _work(self) -> None:
        while True:
            try:
                work, future = self._waiting.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._waiting.empty():
                        self._threads -= 1
                        return
                continue
            result, failure = call_safely(work)
            with self._lock:
                self._unfinished -= 1
            if future is not None:
                answers.give(future, result, failure)
            del work, future, result, failure  # not kept while the thread is idle


workers = Workers(_THREADS)


# Concurrent work of many runs that mostly waits for syncs: saves, claims and releases in files.
#
# Such work is a generator. It yields each call that waits for the disk, and receives the result or the error of the
# call at the `yield`. `SyncGroup` drives all generators in rounds, on one thread: each continues to its next wait, then
# all calls are made in parallel, and calls with the same key once.
#
# With a thread for each save, every system call released the interpreter's lock and had to wait for it again, which
# took longer than the disk (`python -m benchmarks --only "many runs"`).


Wait = tuple[Callable[[], object], Hashable]
"""A call that waits for the disk, and its key. Waits with the same key share one call; None is never shared."""
Waiting = Generator[Wait, Any, T]
APART = "apart"
"""Marks a call that may take long, so that other runs do not wait for it."""


def run_in_place(work: Waiting[T]) -> T:
    """Make each call that a generator waits for on this thread, and return the result of the generator."""
    try:
        call, _ = next(work)
        while True:
            try:
                answer = call()
            except BaseException as error:
                call, _ = work.throw(error)
            else:
                call, _ = work.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


class _Item:
    """Work in progress.

    Attributes:
        run: the run; its work is done in the order of arrival.
        wait: the call that it waits for.
        outcome: the result and the error of that call.
    """

    __slots__ = ("future", "outcome", "run", "wait", "work")

    def __init__(self, run: str, work: Waiting[Any], future: asyncio.Future[Any]) -> None:
        self.run = run
        self.work = work
        self.future = future
        self.wait: Wait | None = None
        self.outcome: tuple[Any, BaseException | None] = None, None


class SyncGroup:
    """The saves, claims and releases of a store that are in progress for event loops."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: deque[_Item] = deque()
        self._apart: set[str] = set()  # runs
        self._has_thread = False

    def later(self, run: str, work: Waiting[T]) -> asyncio.Future[T]:
        """Start work in the next round; it runs to its end, even if the future is cancelled.

        Args:
            run: the run.
            work: the generator.

        Raises:
            CheckpointStorageError: no thread can be started; the work is not done.
        """
        if self._pid != os.getpid():  # a forked child has neither the thread nor those that hold the lock
            self._reset()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._ensure_thread()
            self._waiting.append(_Item(run, work, future))
        return future

    def _ensure_thread(self) -> None:
        if not self._has_thread:
            workers.start(self._lead)
            self._has_thread = True

    def _lead(self) -> None:
        """Make rounds until no work remains."""
        under_way: list[_Item] = []
        while True:
            try:
                with self._lock:
                    under_way = self._take_ready(under_way)
                    if not under_way:
                        self._has_thread = False
                        return
                under_way = self._round(under_way)
            except BaseException as error:  # such as no memory for the lists: all outcomes are unknown
                for item in under_way:
                    self._give_up(item, error)
                for _ in range(0 if under_way else len(self._waiting)):  # not work that arrives meanwhile
                    self._give_up(self._waiting[0], error)
                under_way = []

    def _take_ready(self, under_way: list[_Item]) -> list[_Item]:
        """Return the work in progress, and queued work of runs without work in progress; all or nothing."""
        runs = self._apart.union(item.run for item in under_way)
        taken, left = [*under_way], deque[_Item]()
        for item in self._waiting:
            if item.run in runs:
                left.append(item)
            else:
                runs.add(item.run)
                taken.append(item)
        self._waiting = left
        return taken

    def _give_up(self, item: _Item, error: BaseException) -> None:
        """End work with an error, and continue with the run's later work."""
        with contextlib.suppress(Exception):  # the others must not be affected
            item.work.close()
        with self._lock:
            self._apart.discard(item.run)
            with contextlib.suppress(ValueError):  # it was in progress
                self._waiting.remove(item)
        answers.give(item.future, None, error)

    def _round(self, under_way: list[_Item]) -> list[_Item]:
        """Continue all work to its next wait, make the calls, and return the unfinished work."""
        left: list[_Item] = []
        done: list[tuple[asyncio.Future[Any], Any, BaseException | None]] = []
        for item in under_way:
            try:
                result, failure = item.outcome
                item.wait = item.work.send(result) if failure is None else item.work.throw(failure)
                left.append(item)
            except StopIteration as end:
                done.append((item.future, end.value, None))
            except BaseException as error:
                done.append((item.future, None, error))
        for answer in done:  # not earlier: a woken loop takes the interpreter's lock
            answers.give(*answer)
        waits: dict[Hashable, Callable[[], object]] = {}
        together: list[tuple[_Item, Hashable]] = []
        for item in left:
            assert item.wait is not None
            call, of = item.wait
            if of is APART:
                with self._lock:
                    self._apart.add(item.run)
                workers.start(partial(self._wait_apart, item, call))
            else:
                together.append((item, of or id(item)))
                waits.setdefault(of or id(item), call)
        outcomes = dict(zip(waits, workers.each([*waits.values()]), strict=True))
        for item, of in together:
            item.outcome = outcomes[of]
        return [item for item, _ in together]

    def _wait_apart(self, item: _Item, call: Callable[[], object]) -> None:
        """Make a call that may take long, and continue its work in the next round."""
        item.outcome = call_safely(call)
        try:
            with self._lock:
                self._apart.discard(item.run)
                self._waiting.appendleft(item)  # before other work of its run
                self._ensure_thread()
        except BaseException as error:
            self._give_up(item, error)


# Work that runs in the background: a store that is unavailable for half a minute must not delay the steps.


_is_left: ContextVar[bool] = ContextVar("flowckpt_is_left", default=False)


async def start_within(work: Awaitable[T], *, patience: float) -> asyncio.Future[T]:
    """Start work, wait up to `patience` seconds, and return its future, done or not.

    The process may exit before the work is done, without waiting for its thread.

    Args:
        work: an awaitable.
        patience: the time to wait, in seconds.
    """
    with blocking_allowed(False):
        token = _is_left.set(True)
        try:
            begun = asyncio.ensure_future(work)
        finally:
            _is_left.reset(token)
    # mark it as retrieved, because it may never be read
    begun.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait({begun}, timeout=patience)
    return begun


async def run_on_daemon(work: Callable[[], T]) -> T:
    """Run `work` on a daemon thread, which a cancel abandons: for a wait that may never end, such as opening a pipe.

    A file returned after a cancel is closed.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def give(result: T | None, error: BaseException | None) -> None:
        if not answer.done():
            answer.set_exception(error) if error is not None else answer.set_result(result)  # type: ignore[arg-type]
        elif isinstance(result, io.IOBase):
            result.close()

    def do() -> None:
        result, failure = call_safely(work)
        try:
            loop.call_soon_threadsafe(give, result, failure)
        except RuntimeError:  # the loop has ended meanwhile
            if isinstance(result, io.IOBase):
                result.close()

    start_thread(do, "flowckpt-left")
    return await answer


# A loop inside the thread of another loop, which is blocked meanwhile.


# Since 3.14 the current task belongs to the thread, and no other loop can run a task while it is set.
swap_task: Callable[[asyncio.AbstractEventLoop, Any], Any] | None = (
    getattr(asyncio.tasks, "_swap_current_task", None) if sys.version_info >= (3, 14) else None
)


def swap_loop(loop: asyncio.AbstractEventLoop | None, task: Any) -> tuple[asyncio.AbstractEventLoop | None, Any]:
    """Set the running loop of this thread, or none; return the previous loop and its current task."""
    former = _get_running_loop()
    former_task = None if swap_task is None or former is None else swap_task(former, None)
    _set_running_loop(loop)
    if swap_task is not None and loop is not None:
        swap_task(loop, task)
    return former, former_task


@contextmanager
def hidden_loop() -> Iterator[bool]:
    """Hide the loop that runs in this thread, as in a notebook, so that another can run; yield whether one ran."""
    former = swap_loop(None, None)
    try:
        yield former[0] is not None
    finally:
        swap_loop(*former)


class InSync:
    """A wrapper whose methods wait: each async method runs to its end and returns its result.

    All other attributes are passed through. As a context manager, it enters and leaves the object's own async context,
    if it has one, and closes the loop. Calls from several threads wait for each other.

    Args:
        target: the object.
    """

    def __init__(self, target: object) -> None:
        self._target: Any = target
        self._runner: asyncio.Runner | None = None
        self._one_at_a_time = threading.Lock()

    def __repr__(self) -> str:
        return f"in_sync({self._target!r})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `copy` asks before there is a target
            raise AttributeError(name)
        found = getattr(self._target, name)
        if not callable(found):
            return found

        @functools.wraps(found)
        def waiting(*args: Any, **kwargs: Any) -> Any:
            returned = found(*args, **kwargs)
            return self._wait(returned) if inspect.isawaitable(returned) else returned

        return waiting

    def __enter__(self) -> Self:
        if hasattr(self._target, "__aenter__"):
            self._wait(self._target.__aenter__())
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            if hasattr(self._target, "__aexit__"):
                self._wait(self._target.__aexit__(*raised))
        finally:
            self.close_loop()

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result, with its type kept."""
        return self._wait(work)

    def close_loop(self) -> None:
        """Close the loop, which otherwise closes with this object. A later call opens a new one."""
        with self._one_at_a_time:
            if self._runner is not None:
                self._closing()
                self._runner = None

    def _wait(self, work: Awaitable[T]) -> T:
        with self._one_at_a_time, hidden_loop():
            if self._runner is None:
                self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)  # a factory ignores loop policies
                self._runner.get_loop()
                self._closing = weakref.finalize(self, _close, self._runner)
            return run_alone(self._runner, work)


def _close(runner: asyncio.Runner) -> None:
    with hidden_loop():
        runner.close()


def in_sync(target: object) -> InSync:
    """Return a wrapper for sync code: the object's async methods run to their end in the calling thread.

    `with in_sync(manager) as wrapped:` enters and leaves the object's own `async with`.

    Args:
        target: the object, such as a `CheckpointManager` or a store.
    """
    return InSync(target)
