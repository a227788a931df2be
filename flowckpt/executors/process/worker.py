"""One worker process, as the engine sees it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from flowckpt.executors.base import Hear, LostWorkerError
from flowckpt.executors.process.channel import ANSWER, ASKS, REPLY, WORK, Channel
from flowckpt.executors.process.serve import GRACE_SECONDS
from flowckpt.process_session import signal_session

_BEGIN = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[3]); sys.argv[:] = json.loads(sys.argv[4]); "
    "from flowckpt.executors.process.serve import serve; serve({}, {})"
)
_LOOK_SECONDS = 0.5

START_SECONDS = 60.0
"""How long a process may take until it can work."""


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
                _command(theirs.fileno(), life_read),
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
        if self._received(START_SECONDS) is None:
            code = self.end()
            raise LostWorkerError(
                f"a worker process could not be started: it ended with {code}; see the standard error", code
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def answer(self, message: bytes, hear: Hear | None = None) -> bytes:
        """Have a piece of work done, and return what the process answers.

        Args:
            message: the work.
            hear: told what it says meanwhile.

        Raises:
            LostWorkerError: it died; it is reaped, and nothing that it had started is left.
        """
        found: bytes | None = None
        with contextlib.suppress(OSError):  # it has died meanwhile
            self._channel.send(message, WORK)
            while (received := self._received()) is not None:
                kind, found = received
                if kind == ANSWER:
                    break
                if hear is not None:
                    hear(found, self._reply if kind == ASKS else None)
                found = None
        if found is None:
            code = self.end()
            raise LostWorkerError(_said(code), code)
        return found

    def stop(self) -> None:
        """Ask what it does to end, and end it by force a little later; called again, at once."""
        with self._lock:
            if self._is_reaped:
                return
            if self.is_stopped:
                signal_session(self.pid, signal.SIGKILL)
                return
            self.is_stopped = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            self._timer = threading.Timer(GRACE_SECONDS, self._kill)
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> int:
        """Wait until the process is gone, by force in the end; leave nothing behind that it had started.

        Returns:
            What it returned, the negative number of the signal that killed it.
        """
        self._close_ends()
        with self._lock:
            if self._timer is None:
                self._timer = threading.Timer(GRACE_SECONDS, self._kill)
                self._timer.daemon = True
                self._timer.start()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)  # its id must stay its own until its session is ended
        with self._lock:
            self._timer.cancel()
            signal_session(self.pid, signal.SIGKILL)
            self._is_reaped = True
            return self._process.wait()

    def _kill(self) -> None:
        with self._lock:
            if not self._is_reaped:
                signal_session(self.pid, signal.SIGKILL)

    def _reply(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # it has died meanwhile
            self._channel.send(message, REPLY)

    def _received(self, seconds: float = math.inf) -> tuple[int, bytes] | None:
        """Wait for an answer, or for the end of the process: a child of it may hold its end of the channel open."""
        waiting, until = select.poll(), time.monotonic() + seconds
        waiting.register(self._channel.fileno(), select.POLLIN)
        while not waiting.poll(_LOOK_SECONDS * 1000):
            if time.monotonic() > until or (self._has_exited() and not waiting.poll(0)):
                return None
        return self._channel.receive()

    def _has_exited(self) -> bool:
        found: Any = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        return found is not None

    def _close_ends(self) -> None:
        self._channel.close()
        if self._life >= 0:
            os.close(self._life)
            self._life = -1


def _command(channel: int, life: int) -> list[str]:
    flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
    begin = _BEGIN.format("int(sys.orig_argv[-4])", "int(sys.orig_argv[-3])")
    return [sys.executable, *flags, "-c", begin, str(channel), str(life), json.dumps(_path()), json.dumps(sys.argv)]


def _path() -> list[str]:
    """Return where modules are looked for, as it is when the directory changes."""
    return [os.path.abspath(each) if each else os.getcwd() for each in sys.path]  # noqa: PTH100, PTH109 - as text


def _said(code: int) -> str:
    if code == -signal.SIGKILL:
        return "it was killed by SIGKILL, by somebody, or by the system because memory ran out"
    if code < 0:
        try:
            return f"it was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"it was killed by signal {-code}"
    return f"it exited with {code} in the middle of the step"
