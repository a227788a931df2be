"""Leases: who owns a run and for how long, in stores without locks. Also the release of a lease in any store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from flowckpt.core.system.attrs_base import lazy_frozen
from flowckpt.core.system.blocking import cancellable_wait, start_thread
from flowckpt.core.system.process import is_alive
from flowckpt.errors import CheckpointStorageError, FlowckptError

if TYPE_CHECKING:
    from flowckpt.core.records.listing import Owner
    from flowckpt.core.system.clock import Clock
    from flowckpt.stores.base import Lease, StoreBase


@lazy_frozen(eq=False, repr=False)
class LeaseTimes:
    """The duration of a lease and the interval of its heartbeats.

    Attributes:
        seconds: how long a lease lasts after a heartbeat; its owner sends three in that time.
    """

    seconds: float = 30.0

    @property
    def interval(self) -> float:
        """Seconds between two heartbeats."""
        return self.seconds / 3


@lazy_frozen(eq=False, repr=False)
class LeaseHolder:
    """The owner of a run, as recorded in a store.

    Attributes:
        owner: the process.
        expires_at: when its lease ends, by the store's clock.
    """

    owner: Owner
    expires_at: datetime

    def holds(self, now: datetime) -> bool:
        """Return whether the owner still owns the run.

        On this machine the process itself is checked: a dead process owns nothing, and a suspended one does not lose its run
        just because it could not renew its lease. For another machine, only the lease decides.

        Args:
            now: the time by the store's clock.
        """
        lives = is_alive(self.owner.process)
        return now < self.expires_at if lives is None else lives


# Signs of life from a thread of their own, so that a step that takes long does not cost its run.


_log = logging.getLogger("flowckpt")


@contextlib.contextmanager
def _block_signals() -> Iterator[None]:
    """Block signals while a thread is started, which inherits the mask.

    The kernel delivers a signal to any thread that does not block it; after a SIGCONT, the choice is unspecified. Delivered
    to this thread, a signal would not wake the main thread, which alone handles signals in Python.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


class Heartbeat:
    """Calls a method periodically while there is something to keep alive.

    Args:
        renew: a bound method that renews all leases and returns whether any are left; its object is not kept alive.
        interval: seconds between two calls.
        name: of the thread.
    """

    def __init__(self, renew: Callable[[], bool], interval: float, name: str = "flowckpt-lease") -> None:
        self._renew = weakref.WeakMethod(renew)
        self._interval = interval
        self._name = name
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._starts = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it already runs in this process; `renew` must already know everything to keep alive.

        Raises:
            CheckpointStorageError: no thread can be started.
        """
        if self._pid != os.getpid():  # a forked child has no thread, and a lock and an event of unknown state
            self._pid, self._lock, self._stop, self._thread = os.getpid(), threading.Lock(), threading.Event(), None
        with self._lock:
            self._starts += 1
            if self._thread is not None and self._thread.is_alive():
                return
            self._stop = threading.Event()
            with _block_signals():
                self._thread = start_thread(partial(self._beat, self._stop), self._name)

    def set_interval(self, seconds: float) -> None:
        """Change the interval; the current pause is not shortened.

        Args:
            seconds: between two calls.
        """
        self._interval = seconds

    def stop(self) -> None:
        """Stop the thread without waiting for it, because it may be waiting for the store."""
        self._stop.set()
        self._thread = None

    def _beat(self, stop: threading.Event) -> None:
        while not stop.wait(self._interval):
            renew = self._renew()
            if renew is None:
                return
            starts = self._starts  # read first: `renew` may not see what starts after this
            try:
                is_needed = renew()
            except FlowckptError:  # not a failure yet: each save checks the lease
                is_needed = True
            except Exception:
                _log.exception("a lease could not be renewed; trying again in %g s", self._interval)
                is_needed = True
            del renew
            if not is_needed and self._is_over(starts, stop):
                return

    def _is_over(self, starts: int, stop: threading.Event) -> bool:
        """Return whether this thread may end: not if something started meanwhile and relies on it."""
        with self._lock:
            if self._starts != starts:
                return False
            if self._stop is stop:
                self._thread = None
            return True


async def release_lease(store: StoreBase, lease: Lease) -> None:
    """Release a lease; a later owner through the same store object keeps the run.

    Raises:
        CheckpointStorageError: the medium failed.
    """
    if lease.token:
        await store.release(lease.workflow_id, token=lease.token)
    else:  # the store cannot tell owners apart
        await store.release(lease.workflow_id)


# Room for the files that an owned run keeps open.


_FILES_OF_A_RUN, _FILES_OF_A_CLAIM = 3, 4
"""Open files of an owned run: its directory, lock and segment, and those that a claim opens briefly."""
PATIENCE_SECONDS, _LOOK_SECONDS = 30.0, 0.02
MANY_FILES = (
    "Raise the limit of open files (ulimit -n), or run less at the same time. Acknowledged checkpoints are not lost."
)


class RunLimit:
    """Limits how many runs a process owns to what its limit of open files allows; further claims wait.

    Without this limit, the claims of a thousand runs use up the descriptors that running ones need, and all fail.

    Args:
        owned: the runs that are owned now.
        clock: the time.
    """

    def __init__(self, owned: Collection[str], clock: Clock) -> None:
        self._owned, self._clock = owned, clock
        self._lock, self._claiming, self._waiting = threading.Lock(), 0, 0
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()
        self._last_owned, self._changed_ns = frozenset[str](), 0

    @contextlib.asynccontextmanager
    async def reserve_room(self, workflow_id: str) -> AsyncGenerator[None]:
        """Wait for room, and keep it while a run is claimed.

        Raises:
            CheckpointStorageError: there is no room, and no run has ended for half a minute: they may wait for this one.
        """
        if workflow_id in self._owned:
            yield
            return
        if self._waiting or not self._try_reserve():  # earlier waiters come first
            with self._lock:
                self._waiting += 1
            try:
                with cancellable_wait():
                    async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                        await self._wait(workflow_id, self._clock.elapsed_ns())
            finally:
                with self._lock:
                    self._waiting -= 1
        try:
            yield
        finally:
            with self._lock:
                self._claiming -= 1

    def _try_reserve(self) -> bool:
        """Reserve room for a run if there is any; return whether it was reserved."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        others = max(limit // 4, min(limit // 2, 64))  # for everything else, such as steps that run commands
        with self._lock:
            files = len(self._owned) * _FILES_OF_A_RUN + self._claiming * _FILES_OF_A_CLAIM
            is_free = limit == resource.RLIM_INFINITY or not files or files + _FILES_OF_A_CLAIM <= limit - others
            self._claiming += is_free
        return is_free

    async def _wait(self, workflow_id: str, since_ns: int) -> None:
        while not self._try_reserve():
            now = self._clock.elapsed_ns()
            if (owned := frozenset([*self._owned])) != self._last_owned:
                self._last_owned, self._changed_ns = owned, now
            elif now - max(since_ns, self._changed_ns) > PATIENCE_SECONDS * 1e9:
                raise CheckpointStorageError(
                    f"the file store could not acquire run {workflow_id!r}: this process owns {len(owned)} runs, its limit of "
                    f"open files allows no more, and none of them has ended for {PATIENCE_SECONDS:.0f} seconds",
                    workflow_id=workflow_id,
                    operation="acquire",
                    remedy=MANY_FILES,
                )
            await self._clock.sleep(_LOOK_SECONDS)
