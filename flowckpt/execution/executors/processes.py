"""Worker processes as an executor, each with its own channel.

If one process of a `ProcessPoolExecutor` is killed, all steps in it fail and the pool is permanently broken; it also
cannot end a single piece of work. Here each process does one piece of work at a time: a crash, a timeout or a cancel
affects only its own step, and the next step gets a new process.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any

from flowckpt.core.system.process import signal_name, signal_session
from flowckpt.errors import SettingError
from flowckpt.execution.executors.base import LostWorkerError, OnMessage, StoppedWorkError
from flowckpt.execution.executors.worker_main import ANSWER, ASKS, GRACE_SECONDS, REPLY, WORK, Channel

# One worker process, as the engine sees it.


_BOOTSTRAP = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[3]); sys.argv[:] = json.loads(sys.argv[4]); "
    "from flowckpt.execution.executors.worker_main import serve; serve({}, {})"
)
_LOOK_SECONDS = 0.5

START_SECONDS = 60.0
"""How long a process may take to start."""


class WorkerProcess:
    """A process that does one piece of work at a time; started by the constructor.

    Raises:
        LostWorkerError: the process cannot be started.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        life_read, self._life = os.pipe()
        self._channel = Channel(ours)
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._is_reaped = False
        self.is_stopped = False
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
                _make_command(theirs.fileno(), life_read),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), life_read),
                start_new_session=True,
            )
        except OSError as error:
            self._close_ends()
            raise LostWorkerError(f"a worker process cannot be started: {error.strerror or error}") from error
        finally:
            theirs.close()
            os.close(life_read)
        if self._receive(START_SECONDS) is None:
            code = self.end()
            raise LostWorkerError(
                f"a worker process could not be started: it ended with {code}; see the standard error", code
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def answer(self, message: bytes, hear: OnMessage | None = None) -> bytes:
        """Have a piece of work done, and return the answer of the process.

        Raises:
            LostWorkerError: the process died; it is reaped, and its child processes are killed.
        """
        content: bytes | None = None
        with contextlib.suppress(OSError):  # the process has died meanwhile
            self._channel.send(message, WORK)
            while (received := self._receive()) is not None:
                kind, content = received
                if kind == ANSWER:
                    break
                if hear is not None:
                    hear(content, self._reply if kind == ASKS else None)
                content = None
        if content is None:
            code = self.end()
            raise LostWorkerError(_describe_exit(code), code)
        return content

    def stop(self) -> None:
        """Ask the work to end, and kill the process a little later; a second call kills it at once."""
        with self._lock:
            if self._is_reaped:
                return
            if self.is_stopped:
                signal_session(self.pid, signal.SIGKILL)
                return
            self.is_stopped = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            self._kill_later()

    def _kill_later(self) -> threading.Timer:
        timer = self._timer = threading.Timer(GRACE_SECONDS, self._kill)
        timer.daemon = True
        timer.start()
        return timer

    def end(self) -> int:
        """Wait until the process has exited, and kill it if necessary, with its child processes.

        Returns:
            Its exit code, or the negative number of the signal that killed it.
        """
        self._close_ends()
        with self._lock:
            timer = self._timer or self._kill_later()
        # keep its id from being reused until its session is ended
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            timer.cancel()
            signal_session(self.pid, signal.SIGKILL)
            self._is_reaped = True
            return self._process.wait()

    def _kill(self) -> None:
        with self._lock:
            if not self._is_reaped:
                signal_session(self.pid, signal.SIGKILL)

    def _reply(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # the process has died meanwhile
            self._channel.send(message, REPLY)

    def _receive(self, seconds: float = math.inf) -> tuple[int, bytes] | None:
        """Wait for an answer or the exit of the process, whose children may keep the channel open."""
        waiting, until = select.poll(), time.monotonic() + seconds
        waiting.register(self._channel.fileno(), select.POLLIN)
        while not waiting.poll(_LOOK_SECONDS * 1000):
            if time.monotonic() > until or (self._has_exited() and not waiting.poll(0)):
                return None
        return self._channel.receive()

    def _has_exited(self) -> bool:
        status: Any = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        return status is not None

    def _close_ends(self) -> None:
        self._channel.close()
        if self._life >= 0:
            os.close(self._life)
            self._life = -1


def _make_command(channel: int, life: int) -> list[str]:
    flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
    begin = _BOOTSTRAP.format("int(sys.orig_argv[-4])", "int(sys.orig_argv[-3])")
    return [
        sys.executable,
        *flags,
        "-c",
        begin,
        str(channel),
        str(life),
        json.dumps(_absolute_search_path()),
        json.dumps(sys.argv),
    ]


def _absolute_search_path() -> list[str]:
    """Return the module search path with absolute entries, independent of the current directory."""
    return [os.path.abspath(each) if each else os.getcwd() for each in sys.path]  # noqa: PTH100, PTH109 - as text


def _describe_exit(code: int) -> str:
    if code == -signal.SIGKILL:
        return "it was killed by SIGKILL: by a user, or by the system because memory ran out"
    if code < 0:
        return f"it was killed by {signal_name(-code)}"
    return f"it exited with {code} in the middle of the step"


_Work = tuple[Future[Any], bytes, OnMessage | None]


class ProcessExecutor(Executor):
    """Runs picklable functions in processes on this machine, which start when there is work.

    Args:
        max_workers: the number of processes; by default, the number of usable processors.

    Raises:
        SettingError: the number is not a whole number from 1.
    """

    kills_work = True
    imports_program = True

    def __init__(self, max_workers: int | None = None) -> None:
        if max_workers is not None and (type(max_workers) is not int or max_workers < 1):
            raise SettingError(
                f"max_workers={max_workers!r:.80} must be a whole number from 1",
                setting="max_workers",
                remedy="Leave it out to get one process per processor.",
            )
        self.max_workers: int = max_workers or count_processors()
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
        return self._enqueue(pickle.dumps((fn, args, kwargs)), None)

    def submit_heard(
        self, hear: OnMessage, resources: Mapping[str, float], function: Callable[..., Any], /, *args: Any
    ) -> Future[Any]:
        """Have a function called in a worker process, which may send messages while it runs; see `submit`.

        Args:
            hear: called with each message.
            resources: must be empty: worker processes have no resources.
            function: the function.
            args: its arguments.

        Raises:
            RuntimeError: the executor is shut down.
            SettingError: resources are requested.
        """
        if resources:
            raise SettingError(f"resources={dict(resources)}: worker processes have none", setting="resources")
        return self._enqueue(pickle.dumps((function, args, {})), hear)

    def _enqueue(self, message: bytes, hear: OnMessage | None) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._idle:
                self._idle -= 1
            elif len(self._threads) < self.max_workers:
                thread = threading.Thread(target=self._serve, name="flowckpt-worker", daemon=True)
                try:
                    thread.start()
                    self._threads.append(thread)
                except (RuntimeError, MemoryError):  # no more threads are allowed: the existing ones do the work
                    if not self._threads:
                        raise
            self._waiting.put((future, message, hear))
        return future

    def stop(self, future: Future[Any], /) -> None:
        """End a piece of work: raise an exception in it, and kill it two seconds later, or at once if called again."""
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
        """Accept no more work; the processes end after their current work.

        Args:
            wait: whether to wait for that.
            cancel_futures: whether to cancel work that has not started.
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
        """Shut down at once: end running work and wait for it."""
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
        """Pass work to one process, and to its successor after it has died."""
        process: WorkerProcess | None = None
        while (work := self._waiting.get()) is not None:
            future, message, hear = work
            if future.set_running_or_notify_cancel():
                process = self._do_work(future, message, hear, process)
            del work, future, message, hear
            with self._lock:
                self._idle += 1
        if process is not None:
            process.end()

    def _do_work(
        self, future: Future[Any], message: bytes, hear: OnMessage | None, process: WorkerProcess | None
    ) -> WorkerProcess | None:
        """Have one piece of work done; return the process if it is still alive."""
        is_done, value = False, None
        try:
            if process is None:
                process = WorkerProcess()
            with self._lock:
                self._running[future] = process
                is_to_stop = self._is_killed or future in self._stopped  # stopped before it had a process
            if is_to_stop:
                process.stop()
            is_done, value = pickle.loads(process.answer(message, hear))  # noqa: S301 - from our own child
        except LostWorkerError as error:
            process, value = None, error
        except Exception as error:  # the exception of the work cannot be rebuilt here
            value = RuntimeError(f"{type(error).__name__}: {error}")
        finally:
            with self._lock:
                self._running.pop(future, None)
                is_stopped = self._is_killed or future in self._stopped
                self._stopped.discard(future)
        if process is not None and process.is_stopped:  # it was asked to end just after it had answered
            process.end()
            process = None
        if is_done:
            future.set_result(value)
        elif is_stopped and isinstance(value, LostWorkerError):
            future.set_exception(StoppedWorkError("it was stopped"))
        else:
            future.set_exception(value)
        return process


def count_processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
