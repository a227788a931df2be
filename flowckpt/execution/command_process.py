"""A program and all its child processes, watched by one thread.

This does not use asyncio's subprocesses: their `wait` hangs while a grandchild holds a pipe, a cancel during a start
leaves the program running, and the thread that reaps a child depends on the Python version and the loop. Here one
thread starts the program, feeds and reads its pipes, ends it and reaps it; the loop only waits for the thread.

The program leads its own session, and is reaped last: until then its id cannot be reused, so no signal can hit an
unrelated process.
"""

from __future__ import annotations

import asyncio
import codecs
import contextvars
import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO

import attrs

from flowckpt.core.dsl.command import CommandAction
from flowckpt.core.system.process import has_living, signal_session
from flowckpt.execution.current_step import step_baggage

# Passing lines from a thread to a loop, at the speed of the consumer and in bounded memory.


OnLine = Callable[[str, str], None]

MOST_PENDING = 1_000_000
"""The largest number of characters that wait for the loop."""

PATIENCE_SECONDS = 1.0
"""How long a program waits for a busy loop before lines are dropped."""
_COST = 100  # of a line, in addition to its characters


class LineFeed:
    """Passes lines to a function in the loop, in the context in which this object was created.

    Args:
        loop: the loop.
        on_line: called with the stream and the line.
        on_error: called in the loop when `on_line` raises; `on_line` is not called again after that.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_line: OnLine, on_error: Callable[[], None]) -> None:
        self._loop = loop
        self._on_line = on_line
        self._on_error = on_error
        self._context = contextvars.copy_context()
        self._changed = threading.Condition()
        self._pending: list[tuple[str, str]] = []
        self._size = 0
        self._dropped = 0
        self._dropped_stream = ""
        self._is_stalled = False
        self._is_closed = False
        self.error: BaseException | None = None
        """The error that `on_line` raised."""

    def put(self, stream: str, lines: list[str]) -> None:
        """Queue lines; called in the thread."""
        with self._changed:
            for line in lines:
                self._put(stream, line)

    def finish(self) -> None:
        """Report the lines dropped last; called in the thread after the last line."""
        with self._changed:
            self._report_dropped()

    def close(self) -> None:
        """Pass no more lines."""
        with self._changed:
            self._is_closed = True
            self._pending.clear()
            self._changed.notify_all()

    def _put(self, stream: str, line: str) -> None:
        if not self._has_room() and not self._is_stalled:
            self._is_stalled = not self._changed.wait_for(self._has_room, PATIENCE_SECONDS)
        if self._is_closed:
            return
        if not self._has_room():
            self._dropped += 1
            self._dropped_stream = stream
            return
        self._report_dropped()
        self._append(stream, line)

    def _report_dropped(self) -> None:
        if self._dropped and not self._is_closed:
            self._append(self._dropped_stream, f"… {self._dropped:,} lines are not shown: they came too fast …")
        self._dropped = 0

    def _has_room(self) -> bool:
        return self._size < MOST_PENDING or self._is_closed

    def _append(self, stream: str, line: str) -> None:
        self._pending.append((stream, line))
        self._size += len(line) + _COST
        if len(self._pending) == 1:
            try:
                self._loop.call_soon_threadsafe(self._hand_over, context=self._context)
            except RuntimeError:  # the loop is closed
                self._is_closed = True

    def _hand_over(self) -> None:
        with self._changed:
            lines, self._pending = self._pending, []
            self._size = 0
            self._is_stalled = False
            self._changed.notify_all()
        for stream, line in lines:
            if self._is_closed:
                return
            try:
                self._on_line(stream, line)
            except BaseException as error:
                self.error = error
                self.close()
                self._on_error()


# Splitting the bytes of a stream into lines for display, in bounded memory.


MAX_LINE = 10_000
"""How many characters of a line are shown."""

PROGRESS_SECONDS = 0.05
"""The shortest interval between two displayed states of a progress bar."""

_ENDS = re.compile("(\r\n|\n|\r)")


class LineSplitter:
    """Splits one stream as it arrives.

    Text that ends with a carriage return is a state of a progress bar. It is a line too, but of states within 50 ms
    only one is returned. The newest state is held until it is due, so that the last state is never lost.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._part = ""
        self._is_cut = False
        self._is_after_return = False
        self._held_line: str | None = None
        self._next_at = float("-inf")

    def feed(self, data: bytes, now: float, *, is_last: bool = False) -> list[str]:
        """Return the lines that are complete now.

        Args:
            data: the next bytes of the stream.
            now: the time in seconds, of any monotonic clock.
            is_last: whether the stream ends here; then the rest is a line too.
        """
        *pairs, rest = _ENDS.split(self._decoder.decode(data, is_last))
        lines: list[str] = []
        for piece, end in zip(pairs[::2], pairs[1::2], strict=True):
            was_after_return, self._is_after_return = self._is_after_return, end == "\r"
            if end == "\n" and was_after_return and not piece:  # "\r" and "\n" of one line end that arrived separately
                self._release(lines)
            elif end == "\r":
                self._progress(self._finish_line(piece), now, lines)
            else:
                self._release(lines)
                lines.append(self._finish_line(piece))
        if rest:
            self._is_after_return = False
            self._add(rest)
        if is_last:
            self._release(lines)
            if self._part:
                lines.append(self._finish_line(""))
        return lines

    @property
    def due_at(self) -> float | None:
        """When to call `take_overdue`, if a line is held."""
        return None if self._held_line is None else self._next_at

    def take_overdue(self, now: float) -> list[str]:
        """Return the held line, if it is due.

        Args:
            now: the time in seconds.
        """
        lines: list[str] = []
        if self._held_line is not None and now >= self._next_at:
            self._progress(self._held_line, now, lines)
        return lines

    def _progress(self, line: str, now: float, lines: list[str]) -> None:
        if not line:
            return
        if now < self._next_at:
            self._held_line = line
            return
        self._held_line = None
        self._next_at = now + PROGRESS_SECONDS
        lines.append(line)

    def _release(self, lines: list[str]) -> None:
        if self._held_line is not None:
            lines.append(self._held_line)
            self._held_line = None

    def _add(self, piece: str) -> None:
        room = MAX_LINE - len(self._part)
        self._is_cut = self._is_cut or len(piece) > room
        self._part += piece[:room]

    def _finish_line(self, piece: str) -> str:
        self._add(piece)
        line = f"{self._part}…" if self._is_cut else self._part
        self._part, self._is_cut = "", False
        return line


# The kept output of a program: its start and its end, in bounded memory.


_SLACK = 1 << 16
_LONGEST_CHARACTER = 4


class OutputCapture:
    """Keeps the first and the last bytes of an output, half of the limit each.

    Args:
        limit: how many bytes to keep in total.
    """

    def __init__(self, limit: int) -> None:
        self._head_limit = (limit + 1) // 2
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self._after_head = 0

    def add(self, data: bytes) -> None:
        """Add the next output of the program.

        Args:
            data: the bytes.
        """
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._after_head += len(data)
            self._tail += data
            if len(self._tail) > 2 * self._tail_limit + _SLACK:  # so that each byte is moved once
                del self._tail[: len(self._tail) - self._tail_limit]

    def text(self) -> tuple[str, int]:
        r"""Return the kept output, as UTF-8 with `\xNN` for other bytes, and how many bytes were left out."""
        left_out = self._after_head - self._tail_limit
        if left_out <= 0:
            return (self._head + self._tail).decode("utf-8", "backslashreplace"), 0
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        head = decoder.decode(bytes(self._head))
        tail = self._tail[len(self._tail) - self._tail_limit :]
        halved = len(decoder.getstate()[0])  # a character cut in two belongs to neither half
        start = 0
        while start < min(len(tail), _LONGEST_CHARACTER - 1) and tail[start] & 0xC0 == 0x80:
            start += 1
        left_out += halved + start
        return f"{head}{_describe_gap(left_out)}{tail[start:].decode('utf-8', 'backslashreplace')}", left_out


def _describe_gap(left_out: int) -> str:
    return f"\n… {left_out:,} bytes left out …\n"


def is_cut_below(limit: int, text: str, left_out: int) -> bool:
    """Return whether a recorded output was cut, and has less than a limit would keep.

    Args:
        limit: how many bytes a step keeps.
        text: the recorded output.
        left_out: how many bytes were left out of it.
    """
    # In doubt, it has enough: a byte that is not UTF-8 takes four, and a character that was cut is in neither half.
    kept = len(text.replace(_describe_gap(left_out), "", 1).encode("utf-8", "replace"))
    return left_out > 0 and kept + 2 * (_LONGEST_CHARACTER - 1) < limit


GRACE_SECONDS = 5.0
"""How long the processes have between SIGTERM and SIGKILL."""

KILL_SECONDS = 5.0
"""How long SIGKILL may take: a process in an uninterruptible system call is left running."""

LINGER_SECONDS = 2.0
"""How long to read the output of background processes that outlive the program."""

_CHUNK = 1 << 16  # as much as a pipe holds
_MOST_IN_A_PIPE = 1 << 20
_HEARTBEAT_SECONDS = 1.0
_POLL_SECONDS = 0.02


@attrs.define(eq=False)
class _Stream:
    """One output of the program."""

    name: str
    pipe: IO[bytes]
    capture: OutputCapture
    lines: LineSplitter | None


@attrs.define
class CommandEnd:
    """How a program ended, as far as it is known.

    Attributes:
        error: the error that prevented the program from being started or watched.
        exit_code: its exit code; None if it did not run, or if the code was lost.
        has_exited: whether the program itself has exited.
        is_timed_out: whether it exceeded its time limit.
        is_ended_by_us: whether it was asked to end.
        is_left_behind: whether a process was still running after SIGKILL.
    """

    error: BaseException | None = None
    exit_code: int | None = None
    has_exited: bool = False
    is_timed_out: bool = False
    is_ended_by_us: bool = False
    is_left_behind: bool = False


class StopRequest:
    """A request to end a program, made from any thread, to the thread that watches the program."""

    def __init__(self) -> None:
        self.is_made = False
        self.is_at_once = False
        self._lock = threading.Lock()
        self._waker: int | None = None  # the write end of a pipe

    def make(self, *, at_once: bool) -> None:
        """Make the request, and wake the thread."""
        self.is_made = True
        self.is_at_once = self.is_at_once or at_once
        with self._lock:
            if self._waker is not None:
                with suppress(BlockingIOError):  # the pipe is full, so the thread wakes anyway
                    os.write(self._waker, b"!")

    @contextmanager
    def wake(self, selector: selectors.BaseSelector) -> Iterator[None]:
        """Make the request wake a selector."""
        waking, waker = os.pipe()
        try:
            os.set_blocking(waking, False)
            os.set_blocking(waker, False)
            selector.register(waking, selectors.EVENT_READ, lambda: os.read(waking, _CHUNK))
            self._waker = waker
            yield
        finally:
            with self._lock:
                self._waker = None
                os.close(waking)
                os.close(waker)


class CommandProcess:
    """One program; start it once, in the loop that waits for it.

    Args:
        action: the command.
        timeout_seconds: the time limit, or None.
        on_line: called in the loop with each line, or None.
    """

    def __init__(self, action: CommandAction, *, timeout_seconds: float | None, on_line: OnLine | None) -> None:
        self._action = action
        self.timeout_seconds = timeout_seconds
        self._loop = asyncio.get_running_loop()
        self.feed = None if on_line is None else LineFeed(self._loop, on_line, self.stop)
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when the program and all its processes have ended."""
        self.end = CommandEnd()
        self._captures = [OutputCapture(action.max_output), OutputCapture(action.max_output)]
        self._owner = threading.current_thread()
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._run,), name="flowckpt-command"
        )
        self._process: subprocess.Popen[bytes]
        self._streams: list[_Stream] = []
        self._stdin = memoryview(b"")
        self._stdin_bytes: bytes | None = None
        self._exit_is_polled = False
        self._stop = StopRequest()

    # --- in the loop -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the program and its thread."""
        self._thread.start()

    def stop(self, *, at_once: bool = False) -> None:
        """Request the end of the program and all its child processes."""
        self._stop.make(at_once=at_once)

    def close_feed(self) -> None:
        """Pass no more lines to `on_line`."""
        if self.feed is not None:
            self.feed.close()

    def join(self) -> None:
        """Block until the thread has ended, for callers that can no longer await."""
        self._thread.join(KILL_SECONDS)

    def read_outputs(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Return standard output and standard error, each with the number of bytes that were left out."""
        stdout, stderr = (capture.text() for capture in self._captures)
        return stdout, stderr

    # --- in the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with selectors.DefaultSelector() as selector, self._stop.wake(selector):
                if self._stop.is_made:
                    self.end.is_ended_by_us = True
                else:
                    self._watch(selector)
        except BaseException as error:  # raised in the awaiting caller
            self.end.error = error
        if self.feed is not None:
            self.feed.finish()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._set_ended)
        if self.end.is_left_behind and not self.end.has_exited:
            self._process.wait()

    def _set_ended(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def _watch(self, selector: selectors.BaseSelector) -> None:
        deadline = None if self.timeout_seconds is None else time.monotonic() + self.timeout_seconds
        self._process = self._spawn()
        exit_handle = self._open_exit_handle()
        try:
            self._connect(selector, exit_handle)
            self._check_exit()
            self._pump(selector, lambda: self.end.has_exited or self._stop.is_made, deadline)
            if self.end.has_exited:  # it ended by itself, which counts even if a stop was requested now
                linger = time.monotonic() + LINGER_SECONDS
                self._pump(selector, lambda: not self._streams or self._stop.is_made, linger)
                self._drain(selector)
            else:
                self.end.is_timed_out = not self._stop.is_made
                self._end(selector)
        finally:
            if not self.end.has_exited and not self.end.is_left_behind:  # an internal error
                signal_session(self._process.pid, signal.SIGKILL)
                self._process.wait()
            for stream in [*self._streams]:
                self._close(selector, stream)
            self._close_stdin(selector)
            if exit_handle is not None:
                os.close(exit_handle)
            if self.end.has_exited:
                self._process.wait()

    def _spawn(self) -> subprocess.Popen[bytes]:
        action = self._action
        environment, baggage = dict(os.environ), step_baggage.get()
        if baggage is not None:
            environment.update(baggage.variables)
        env, self._stdin_bytes = action.reveal_secrets()
        for name, value in env.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        return subprocess.Popen(  # noqa: S603 - what to run is the user's own program
            action.argv,
            cwd=action.cwd,
            env=environment,
            stdin=subprocess.DEVNULL if action.stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )

    def _connect(self, selector: selectors.BaseSelector, exit_handle: int | None) -> None:
        outputs = (("stdout", self._process.stdout), ("stderr", self._process.stderr))
        for (name, pipe), capture in zip(outputs, self._captures, strict=True):
            assert pipe is not None
            stream = _Stream(name, pipe, capture, None if self.feed is None else LineSplitter())
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, partial(self._read, selector, stream))
            self._streams.append(stream)
        if self._process.stdin is not None:
            self._stdin = memoryview(self._stdin_bytes or b"")
            os.set_blocking(self._process.stdin.fileno(), False)
            selector.register(self._process.stdin, selectors.EVENT_WRITE, partial(self._write, selector))
        if exit_handle is not None:

            def exited() -> None:
                selector.unregister(exit_handle)  # it would stay readable
                self._check_exit()

            selector.register(exit_handle, selectors.EVENT_READ, exited)

    def _end(self, selector: selectors.BaseSelector) -> None:
        """End the whole session: ask, wait, kill. Its pipes are served meanwhile, so that it can end by itself."""
        self.end.is_ended_by_us = True
        leader = self._process.pid
        if not self._stop.is_at_once:
            signal_session(leader, signal.SIGTERM)
            grace = time.monotonic() + GRACE_SECONDS
            self._pump(selector, lambda: self._is_over() or self._stop.is_at_once, grace, _POLL_SECONDS)

        def is_over_or_killed_again() -> bool:
            if self._is_over():
                return True
            signal_session(leader, signal.SIGKILL)  # again: killed processes may have started others
            return False

        self._pump(selector, is_over_or_killed_again, time.monotonic() + KILL_SECONDS, _POLL_SECONDS)
        self.end.is_left_behind = not self._is_over()
        self._drain(selector)

    def _is_over(self) -> bool:
        return self.end.has_exited and not has_living(self._process.pid)

    # --- waiting ---------------------------------------------------------------------------------------------------

    def _pump(
        self, selector: selectors.BaseSelector, is_done: Callable[[], bool], until: float | None, poll: float = 60.0
    ) -> None:
        """Serve the pipes until a condition is true or the time is over.

        Args:
            selector: waits for events.
            is_done: the condition, checked after each event and each poll.
            until: the end, in seconds of the monotonic clock, or None.
            poll: the interval between checks without events, in seconds.
        """
        while not is_done():
            now = time.monotonic()
            if until is not None and now >= until:
                return
            for stream in self._streams:
                if stream.lines is not None and self.feed is not None:
                    self.feed.put(stream.name, stream.lines.take_overdue(now))
            if not self._stop.is_at_once and not self._is_awaited():
                self.stop(at_once=True)
                continue
            for key, _ in selector.select(self._select_timeout(now, until, poll)):
                key.data()
            if self._exit_is_polled:
                self._check_exit()

    def _select_timeout(self, now: float, until: float | None, poll: float) -> float:
        moments = [stream.lines.due_at for stream in self._streams if stream.lines is not None]
        ends = [moment - now for moment in (until, *moments) if moment is not None]
        return max(0.0, min([poll, _POLL_SECONDS if self._exit_is_polled else _HEARTBEAT_SECONDS, *ends]))

    def _is_awaited(self) -> bool:
        """Return whether the loop's thread is still alive: an exiting Python program must not wait for a command."""
        return self._owner.is_alive() and (not self._owner.daemon or threading.main_thread().is_alive())

    def _open_exit_handle(self) -> int | None:
        """Return a handle that becomes readable when the program exits; None if the system has none."""
        try:
            return os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):
            self._exit_is_polled = True
            return None

    def _check_exit(self) -> None:
        """Check whether and how the program has exited, without reaping it."""
        if self.end.has_exited:
            return
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            self.end.exit_code = self._process.poll()
            self.end.has_exited = self.end.exit_code is not None
            return
        try:
            status = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:  # other code in this process has reaped it, or SIGCHLD is ignored
            self.end.has_exited = True
            return
        if status is not None:
            self.end.has_exited = True
            self.end.exit_code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status

    # --- the pipes -------------------------------------------------------------------------------------------------

    def _drain(self, selector: selectors.BaseSelector) -> None:
        """Read the rest of the pipes: everything written by processes that have ended, even if time is short.

        A process that left the session may keep the pipes open and write endlessly, so at most one pipe buffer is read.
        """
        for stream in [*self._streams]:
            left = _MOST_IN_A_PIPE
            while left > 0 and (count := self._read(selector, stream)):
                left -= count

    def _read(self, selector: selectors.BaseSelector, stream: _Stream) -> int:
        """Read the available bytes, and return their number."""
        try:
            data = os.read(stream.pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self._close(selector, stream)
            return 0
        stream.capture.add(data)
        if stream.lines is not None and self.feed is not None:
            self.feed.put(stream.name, stream.lines.feed(data, time.monotonic()))
        return len(data)

    def _write(self, selector: selectors.BaseSelector) -> None:
        assert self._process.stdin is not None
        try:
            written = os.write(self._process.stdin.fileno(), self._stdin[:_CHUNK])
        except BlockingIOError:
            return
        except BrokenPipeError:  # the program has closed its standard input
            written = len(self._stdin)
        self._stdin = self._stdin[written:]
        if not self._stdin:
            self._close_stdin(selector)

    def _close(self, selector: selectors.BaseSelector, stream: _Stream) -> None:
        self._streams.remove(stream)
        selector.unregister(stream.pipe)
        stream.pipe.close()
        if stream.lines is not None and self.feed is not None:
            self.feed.put(stream.name, stream.lines.feed(b"", time.monotonic(), is_last=True))

    def _close_stdin(self, selector: selectors.BaseSelector) -> None:
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            with suppress(KeyError):  # it was never registered
                selector.unregister(pipe)
            pipe.close()
