"""A Dask cluster as an executor: an existing one, or one of processes on this machine.

This fills gaps of Dask's own `concurrent.futures` executor: equal calls run separately, no argument is taken for an
option of Dask, cancelled work is ended in its worker, and a cluster that no longer works is reported instead of waited
for.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import queue
import shutil
import stat
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Executor, Future
from pathlib import Path
from typing import Any

from flowckpt.core.system import external
from flowckpt.errors import ExecutorError
from flowckpt.execution.executors import dask_worker
from flowckpt.execution.executors.base import LostWorkerError, OnMessage, StoppedWorkError

CONNECT_SECONDS = 10.0
PATIENCE_SECONDS = 60.0
MOST_TRIES_WHEN_LOST = 4
"""How often a step is tried if its worker is lost, on a cluster that does not retry by itself."""

_ANSWER_SECONDS = 10.0
_LOOK_SECONDS = 0.25
_LOST = ("KilledWorker", "CommClosedError", "FutureCancelledError", "FuturesCancelledError")


# The directory of a local cluster, for Dask's own files. A process that is killed leaves it, so the next one removes it: its
# owner keeps a lock in it, which ends with the owner.

_SCRATCH = "flowckpt-dask-"
_SCRATCH_LOCK = "lock"


class Scratch:
    """A new temporary directory of this process; directories of dead processes of this user are removed first.

    Attributes:
        path: the directory.
    """

    def __init__(self) -> None:
        for directory in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
            with contextlib.suppress(OSError):  # it belongs to another user or a live process, or is already removed
                _remove_abandoned(directory)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_SCRATCH))
            self._lock = os.open(self.path / _SCRATCH_LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(self._lock).st_nlink:  # otherwise another process removed it before it was locked
                    return
            os.close(self._lock)

    def remove(self) -> None:
        """Remove the directory; Dask never does."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_abandoned(path: Path) -> None:
    """Remove a directory whose owner has died.

    Raises:
        OSError: its owner is alive, or it is not a directory of this user.
    """
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return
    lock = os.open(path / _SCRATCH_LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


class DaskExecutor(Executor):
    """Runs functions on the workers of a Dask cluster, connected when there is work; needs `flowckpt[dask]`.

    Args:
        cluster: the address of a scheduler (`tcp://host:8786`), the number of worker processes for a cluster started on
            this machine, or a connected `distributed.Client`, which stays open.
        patience_seconds: how long a cluster may be idle while work waits for it.
    """

    repeats_work = True

    def __init__(self, cluster: Any, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._target = cluster
        # Workers on this machine have the files: a class sent by value would lack the names of its module. Cells have none.
        self.imports_program = type(cluster) is int and hasattr(sys.modules["__main__"], "__file__")
        self._patience = patience_seconds
        self._lock = threading.Lock()
        self._client: Any = None
        self._cluster: Any = None
        self._scratch: Scratch | None = None
        self._pending: dict[Future[Any], tuple[Any, Mapping[str, float]]] = {}
        self._listeners: dict[str, OnMessage] = {}
        self._topic = ""
        self._at_work: set[Future[Any]] = set()
        self._watch: threading.Thread | None = None
        self._closing = threading.Event()
        self._allowed_failures = 0

    @property
    def tries_when_lost(self) -> int:
        """How often a step without `.retry()` is tried if its worker is lost."""
        return 1 if self._allowed_failures else MOST_TRIES_WHEN_LOST

    def connect(self) -> None:
        """Connect to the cluster or start it, if not done yet.

        Raises:
            ExecutorError: it cannot be reached or started.
        """
        with self._lock:
            if self._closing.is_set():
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._client is None:
                self._connect()
            if self._closing.is_set():  # shut down meanwhile: close the new connection here
                self._disconnect()
                raise RuntimeError("cannot schedule new futures after shutdown")

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a function called by a worker.

        Raises:
            ExecutorError: the cluster cannot be reached.
            RuntimeError: the executor is shut down.
        """
        return self.submit_with({}, functools.partial(fn, **kwargs) if kwargs else fn, *args)

    def submit_with(self, resources: Mapping[str, float], function: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """Have a function called by a worker with certain resources; see `submit`."""
        return self.submit_heard(None, resources, function, *args)

    def submit_heard(
        self, hear: OnMessage | None, resources: Mapping[str, float], function: Callable[..., Any], /, *args: Any
    ) -> Future[Any]:
        """Have a function called by a worker, which may send messages while it runs; see `submit`.

        Args:
            hear: called with each message.
            resources: the resources that the worker must have.
            function: the function.
            args: its arguments.
        """
        self.connect()
        key = f"flowckpt-{uuid.uuid4().hex}"
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        topic = ""
        if hear is not None:
            topic = self._subscribe()
            self._listeners[key] = hear
            future.add_done_callback(lambda _: self._listeners.pop(key, None))
        remote = self._client.submit(
            dask_worker.work, key, topic, function, args, key=key, pure=False, resources=dict(resources) or None
        )
        with self._lock:
            self._pending[future] = remote, resources
            if self._watch is None:
                watch = threading.Thread(target=self._watch_cluster, name="flowckpt-dask", daemon=True)
                watch.start()
                self._watch = watch
        remote.add_done_callback(functools.partial(self._set_result, future))
        return future

    def stop(self, future: Future[Any], /) -> None:
        """Cancel work, and raise an exception in it if it runs; a call into C ends first."""
        remote = self._take(future)
        if remote is None:
            return
        self._at_work.add(future)
        threading.Thread(
            target=self._end_and_watch, args=(remote, future), name="flowckpt-dask-end", daemon=True
        ).start()
        future.set_exception(StoppedWorkError("it was stopped"))

    def is_at_work(self, future: Future[Any], /) -> bool:
        """Return whether stopped work may still be running in its worker."""
        return future in self._at_work

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more work; close the connection, and the cluster if it was started here.

        Args:
            wait: whether to wait until the submitted work has ended.
            cancel_futures: whether to cancel the submitted work.
        """
        if cancel_futures:
            self.kill()
            return
        while wait and self._pending:
            time.sleep(0.05)
        if wait:
            self.kill()

    def kill(self) -> None:
        """Stop running work, and close at once."""
        if self._closing.is_set():
            return
        self._closing.set()
        if not self._lock.acquire(timeout=1):
            return  # the thread that is connecting closes it
        try:
            pending, self._pending = self._pending, {}
        finally:
            self._lock.release()
        for future, (remote, _) in pending.items():
            if self._cluster is None:
                self._end(remote)
            future.set_exception(StoppedWorkError("the executor is closed"))
        self._disconnect()

    def _disconnect(self) -> None:
        if self._topic and self._cluster is None:
            with contextlib.suppress(Exception):  # the scheduler would keep the messages
                self._client.unsubscribe_topic(self._topic)
                self._client.run_on_scheduler(dask_worker.forget_topic, self._topic)
        with contextlib.suppress(Exception):  # errors of an abandoned cluster do not matter
            if self._client is not None and self._client is not self._target:
                self._client.close(timeout=2)
        with contextlib.suppress(Exception):
            if self._cluster is not None:
                self._cluster.close(timeout=5)
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None

    def _connect(self) -> None:
        target = self._target
        try:
            if isinstance(target, int):
                self._scratch = self._scratch or Scratch()
                local = (
                    external.distributed.LocalCluster
                )  # the import fills the configuration, so it must come before the change
                # A step that kills its worker must not kill three more before that is reported.
                local_settings = {
                    "distributed.scheduler.allowed-failures": 0,
                    "temporary-directory": str(self._scratch.path),  # the scheduler's, too
                }
                with external.dask.config.set(local_settings):
                    self._cluster = local(
                        n_workers=target,
                        threads_per_worker=1,
                        processes=True,
                        # by default it would use port 8787, which another cluster may use
                        dashboard_address="127.0.0.1:0",
                        scheduler_kwargs={"dashboard": False},
                        silence_logs=logging.CRITICAL,
                        local_directory=str(self._scratch.path),
                    )
                target = self._cluster
            if isinstance(target, external.distributed.Client):
                client = target
            else:
                client = external.distributed.Client(target, timeout=CONNECT_SECONDS, set_as_default=False)
            if self._cluster is None:
                self._allowed_failures = client.run_on_scheduler(_allowed_failures)
            self._client = client
        except ImportError as error:
            raise missing_package_error() from error
        except Exception as error:
            where = f"at {target}" if isinstance(target, str) else "on this machine"
            raise ExecutorError(
                f"the Dask cluster {where} cannot be reached: {type(error).__name__}: {error}",
                remedy="Check that its scheduler is running and reachable, and that both have the same version of Dask.",
            ) from error

    def _take(self, future: Future[Any]) -> Any:
        """Remove a future from those that wait for an answer; None if it already has one."""
        with self._lock:
            return self._pending.pop(future, (None, None))[0]

    def _set_result(self, future: Future[Any], remote: Any) -> None:
        if self._take(future) is None:
            return  # this answer is no longer awaited
        try:
            future.set_result(remote.result(timeout=_ANSWER_SECONDS))
        except (Exception, CancelledError) as error:
            if type(error).__name__ in _LOST or isinstance(error, CancelledError | TimeoutError):
                future.set_exception(LostWorkerError(_first_sentence(error)))
            else:
                future.set_exception(error)

    def _end(self, remote: Any) -> None:
        with contextlib.suppress(Exception):  # the worker may be gone, or the whole cluster
            remote.cancel()
            self._client.run(dask_worker.end_work, remote.key, on_error="ignore")

    def _end_and_watch(self, remote: Any, future: Future[Any]) -> None:
        """End stopped work, and watch it until it has ended; work out of reach may keep running."""
        self._end(remote)
        while True:
            with contextlib.suppress(Exception):
                if not any(self._client.run(dask_worker.is_at_work, remote.key, on_error="ignore").values()):
                    self._at_work.discard(future)
                    return
            if self._closing.wait(_LOOK_SECONDS):
                break
        if self._cluster is not None:  # its processes end with the cluster
            self._at_work.discard(future)

    # --- messages of running work ---------------------------------------------------------------------------------

    def _subscribe(self) -> str:
        with self._lock:
            if not self._topic:
                self._topic = f"flowckpt-{uuid.uuid4().hex}"
                self._client.subscribe_topic(self._topic, self._handle_event)
            return self._topic

    def _handle_event(self, event: tuple[float, Any]) -> None:
        """Take an event of a worker, in the client's loop: a message, or a notice of a waiting question."""
        key, address, content = event[1]
        hear = self._listeners.get(key)
        if isinstance(content, bytes):
            if hear is not None:
                hear(content, None)
        else:
            threading.Thread(
                target=self._answer, args=(hear, address, content), name="flowckpt-dask-answer", daemon=True
            ).start()

    def _answer(self, hear: OnMessage | None, address: str, number: int) -> None:
        """Fetch a worker's question, and send it the answer; not by an event, because a scheduler keeps events."""
        answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        with contextlib.suppress(Exception):  # the worker is gone: no answer can be sent
            run = functools.partial(self._client.run, workers=[address], on_error="ignore")
            question = run(dask_worker.get_question, number).get(address)
            if question is None:
                return
            if hear is None:  # the run no longer waits for it
                run(dask_worker.answer, number, None)
                return
            hear(question, answers.put)
            run(dask_worker.answer, number, answers.get())

    # --- a cluster that no longer works ---------------------------------------------------------------------------

    def _watch_cluster(self) -> None:
        pause = min(1.0, self._patience / 4)
        busy_at = time.monotonic()
        while not self._closing.wait(pause):
            if not self._pending or self._is_busy():
                busy_at = time.monotonic()
            elif time.monotonic() - busy_at > self._patience:
                self._give_up()
                busy_at = time.monotonic()

    def _is_busy(self) -> bool:
        """Return whether any worker of the cluster is busy, for any client."""
        try:
            client = self._client
            tasks = client.sync(client.scheduler.processing, workers=None, callback_timeout=_ANSWER_SECONDS)
        except Exception:  # the scheduler does not answer
            return False
        return any(tasks.values())

    def _give_up(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, {}
        workers = self._count_workers()
        for future, (remote, resources) in pending.items():
            with contextlib.suppress(Exception):
                remote.cancel()
            wanted = f" with {dict(resources)}" if resources else ""
            future.set_exception(
                ExecutorError(
                    f"the Dask cluster did nothing for {self._patience:g} s while the step waited for a worker{wanted}; "
                    f"it has {workers} workers",
                    remedy="Check the scheduler's log; start workers, with the requested resources if there are any.",
                )
            )

    def _count_workers(self) -> int:
        try:
            return len(self._client.scheduler_info(n_workers=-1)["workers"])
        except Exception:  # needed only for the message
            return 0


def missing_package_error() -> ExecutorError:
    """Return the error of a program that needs Dask, which is not installed."""
    return ExecutorError(
        "a Dask executor needs the package distributed, which is not installed", remedy="pip install 'flowckpt[dask]'"
    )


def _allowed_failures(dask_scheduler: Any) -> int:
    return int(dask_scheduler.allowed_failures)


def _first_sentence(error: BaseException) -> str:
    """Return the first sentence of Dask's error."""
    text = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {text.partition('. ')[0][:300]}"
