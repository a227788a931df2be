"""A worker process: one piece of work after another, until its channel is closed.

It leads its own session, so Ctrl-C at the terminal reaches only the engine, which decides what to do. It does not
outlive the engine. Only the engine has the other end of a pipe, which is closed when the engine dies. A thread of the
worker waits for that, and lets the work end in order. A guard, a small separate process, waits for it too, because C
code that holds the interpreter lock (`sum(range(10**9))`) blocks every thread of the worker.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import time
from types import FrameType
from typing import Any

from flowckpt.execution.executors.base import way_up
from flowckpt.execution.thread import AbandonedStepError

# Messages between two processes over a socket: one byte for the kind, eight for the length, then the content.


WORK, ANSWER, TELLS, ASKS, REPLY = range(5)
"""The kinds of messages: a piece of work and its answer; in between, the messages of the running work."""

_HEAD = struct.Struct("!BQ")
_CHUNK = 1 << 20


class Channel:
    """One end of the conversation.

    Args:
        end: a connected stream socket, which blocks.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """Return the descriptor, to wait for."""
        return self._end.fileno()

    def send(self, message: bytes, kind: int) -> None:
        """Send a message, whole.

        Raises:
            OSError: the other side is gone.
        """
        self._end.sendall(_HEAD.pack(kind, len(message)))
        self._end.sendall(message)

    def receive(self) -> tuple[int, bytes] | None:
        """Return the kind and the content of the next message; None if the other end is closed."""
        head = self._receive_exactly(_HEAD.size)
        if head is None:
            return None
        kind, length = _HEAD.unpack(head)
        message = self._receive_exactly(length)
        return None if message is None else (kind, message)

    def close(self) -> None:
        """Close this end."""
        self._end.close()

    def _receive_exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            try:
                piece = self._end.recv(min(count - len(data), _CHUNK))
            except ConnectionError:
                return None
            if not piece:
                return None
            data += piece
        return bytes(data)


GRACE_SECONDS = 2.0
"""How long the `finally` blocks of ending work may take."""

_GUARD_LOOK_SECONDS = 1.0
"""How often the guard checks its worker if the system cannot report the exit of a process."""


def serve(channel_descriptor: int, life_descriptor: int) -> None:
    """Work until the channel is closed.

    Args:
        channel_descriptor: the socket for work and answers.
        life_descriptor: a pipe that is closed when the engine is gone.
    """
    for descriptor in (channel_descriptor, life_descriptor):
        os.set_inheritable(descriptor, False)  # child processes of the work must not keep the engine's ends open
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _abandon)
    # before threads are started: forking with several threads is unsafe
    _start_guard(life_descriptor, channel_descriptor)
    threading.Thread(target=_watch, args=(life_descriptor,), name="flowckpt-life", daemon=True).start()
    channel = Channel(socket.socket(fileno=channel_descriptor))
    try:
        channel.send(b"", ANSWER)
        way_up.set(_EngineConnection(channel))
        while (received := channel.receive()) is not None:
            answer = _do_work(received[1])
            _flush()
            channel.send(answer, ANSWER)
    except (AbandonedStepError, OSError):  # stopped, or the engine has gone
        _end_at_once()


class _EngineConnection:
    """The connection to the engine; while work runs, nothing else uses the channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def tell(self, message: bytes) -> None:
        self._channel.send(message, TELLS)

    def ask(self, message: bytes) -> bytes:
        self._channel.send(message, ASKS)
        reply = self._channel.receive()
        if reply is None:
            raise ConnectionError("the engine is gone")
        return reply[1]


def _do_work(message: bytes) -> bytes:
    """Do the work; an exception is an answer, too."""
    try:
        function, args, kwargs = pickle.loads(message)  # noqa: S301 - the engine's own, over a private socket
        answer: tuple[bool, Any] = True, function(*args, **kwargs)
    except AbandonedStepError:
        raise
    except BaseException as error:
        answer = False, error
    try:
        return pickle.dumps(answer)
    except AbandonedStepError:
        raise
    except Exception as error:
        cause = answer[1] if isinstance(answer[1], BaseException) else error
        return pickle.dumps((False, RuntimeError(f"{type(cause).__name__}: {cause}")))


def _abandon(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so that a second signal does not interrupt its `finally` blocks
    raise AbandonedStepError


def _watch(life_descriptor: int) -> None:
    """Wait for the engine's death; then end this process and the child processes of the work."""
    with contextlib.suppress(OSError):
        while os.read(life_descriptor, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _start_guard(life_descriptor: int, channel_descriptor: int) -> None:
    """Fork the guard; it is not a child of the worker, so that work which waits for its children does not reap it."""
    worker = os.getpid()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        if os.fork() == 0:
            os.setsid()  # signals of the work to its own group must not reach the guard
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2, channel_descriptor):  # readers of the worker's output must see its end
                os.dup2(null, descriptor)
            _guard(worker, life_descriptor)
    finally:
        os._exit(0)


def _guard(worker: int, life_descriptor: int) -> None:
    """Wait until the engine or the worker has ended; kill a worker that outlives its engine and its time to end."""
    watched = os.pidfd_open(worker) if hasattr(os, "pidfd_open") else -1

    def is_worker_gone(seconds: float, *others: int) -> bool:
        if watched >= 0:
            return watched in select.select([watched, *others], [], [], seconds)[0]
        select.select(others, [], [], seconds)
        try:
            os.kill(worker, 0)
        except OSError:
            return True
        return False

    while not is_worker_gone(_GUARD_LOOK_SECONDS, life_descriptor):
        if select.select([life_descriptor], [], [], 0)[0]:
            if not is_worker_gone(GRACE_SECONDS + 1):
                os.killpg(worker, signal.SIGKILL)
            return


def _end_at_once() -> None:
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    _flush()
    os.killpg(os.getpgrp(), signal.SIGKILL)  # this process leads the group, and dies too


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
