"""Worker processes as an executor, each with a channel of its own.

`ProcessPoolExecutor` is dead for good once one of its processes was killed, and every step in it has failed; it cannot end
one piece of work and leave the others alone. Here one process is one piece of work: a death, a time limit or a cancel
concerns the step that it concerns, and the next piece gets a new process.
"""

from __future__ import annotations

import os
import pickle
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any

from flowckpt.errors import SettingError
from flowckpt.executors.base import Hear, LostWorkerError, StoppedWorkError
from flowckpt.executors.process.worker import WorkerProcess

_Work = tuple[Future[Any], bytes, Hear | None]


class ProcessExecutor(Executor):
    """Runs picklable functions in processes of this machine; they are started when there is work for them.

    Args:
        max_workers: how many; as many as there are processors for this process where not given.

    Raises:
        SettingError: the number is no whole number from 1.
    """

    kills_work = True
    imports_program = True

    def __init__(self, max_workers: int | None = None) -> None:
        if max_workers is not None and (type(max_workers) is not int or max_workers < 1):
            raise SettingError(
                f"max_workers={max_workers!r:.80} must be a whole number from 1",
                setting="max_workers",
                remedy="Leave it out for one process a processor.",
            )
        self.max_workers: int = max_workers or processors()
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._running: dict[Future[Any], WorkerProcess] = {}
        self._stopped: set[Future[Any]] = set()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._is_closed = False
        self._is_killed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a function called in a worker process.

        Raises:
            RuntimeError: the executor is shut down.
        """
        return self._submitted(pickle.dumps((fn, args, kwargs)), None)

    def submit_heard(
        self, hear: Hear, resources: Mapping[str, float], function: Callable[..., Any], /, *args: Any
    ) -> Future[Any]:
        """Have a function called in a worker process, which may say something while it runs; see `submit`.

        Args:
            hear: told what it says.
            resources: none: processes know no resources.
            function: what to call.
            args: its arguments.

        Raises:
            RuntimeError: the executor is shut down.
            SettingError: it asks for resources.
        """
        if resources:
            raise SettingError(f"resources={dict(resources)}: worker processes have none", setting="resources")
        return self._submitted(pickle.dumps((function, args, {})), hear)

    def _submitted(self, message: bytes, hear: Hear | None) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._waiting.put((future, message, hear))
            if self._idle:
                self._idle -= 1
            elif len(self._threads) < self.max_workers:
                thread = threading.Thread(target=self._serve, name="flowckpt-worker", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def stop(self, future: Future[Any], /) -> None:
        """End a piece of work: by an exception in it, by force two seconds later, by force at once when called again."""
        if future.cancel():
            return
        with self._lock:
            self._stopped.add(future)
            process = self._running.get(future)
        if process is not None:
            process.stop()
        elif future.done():
            with self._lock:
                self._stopped.discard(future)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work; the processes end with what they do now.

        Args:
            wait: until they have.
            cancel_futures: what has not begun is cancelled.
        """
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                if cancel_futures:
                    self._cancel_waiting()
                for _ in self._threads:
                    self._waiting.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def kill(self) -> None:
        """Shut down at once: what runs is ended, and waited for."""
        self.shutdown(wait=False)
        with self._lock:
            self._is_killed = True
            self._cancel_waiting()
            running = list(self._running)
        for future in running:
            self.stop(future)
        self.shutdown(wait=True)

    def _cancel_waiting(self) -> None:
        ends = 0
        while True:
            try:
                work = self._waiting.get_nowait()
            except queue.Empty:
                break
            if work is None:
                ends += 1
            elif work[0].cancel():
                work[0].set_running_or_notify_cancel()
        for _ in range(ends):
            self._waiting.put(None)

    def _serve(self) -> None:
        """Pass work to one process, and to its successor when it has died."""
        process: WorkerProcess | None = None
        while (work := self._waiting.get()) is not None:
            future, message, hear = work
            if future.set_running_or_notify_cancel():
                process = self._done(future, message, hear, process)
            del work, future, message, hear
            with self._lock:
                self._idle += 1
        if process is not None:
            process.end()

    def _done(
        self, future: Future[Any], message: bytes, hear: Hear | None, process: WorkerProcess | None
    ) -> WorkerProcess | None:
        """Have one piece of work done; return the process where it still lives."""
        is_done, value = False, None
        try:
            if process is None:
                process = WorkerProcess()
            with self._lock:
                self._running[future] = process
                is_to_stop = self._is_killed or future in self._stopped  # before it had a process
            if is_to_stop:
                process.stop()
            is_done, value = pickle.loads(process.answer(message, hear))  # noqa: S301 - from our own child
        except LostWorkerError as error:
            process, value = None, error
        except Exception as error:  # what the work raised cannot be rebuilt here
            value = RuntimeError(f"{type(error).__name__}: {error}")
        finally:
            with self._lock:
                self._running.pop(future, None)
                is_stopped = self._is_killed or future in self._stopped
                self._stopped.discard(future)
        if process is not None and process.is_stopped:  # it answered, and was told to end a moment later
            process.end()
            process = None
        if is_done:
            future.set_result(value)
        elif is_stopped and isinstance(value, LostWorkerError):
            future.set_exception(StoppedWorkError("it was stopped"))
        else:
            future.set_exception(value)
        return process


def processors() -> int:
    """Return how many processors this process may use."""
    counted: Callable[[], int | None] = getattr(os, "process_cpu_count", os.cpu_count)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return counted() or 1
