"""The process that resumes one run, so that imports, directory and crashes of runs stay separate."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import socket
import sys
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from flowckpt.cli.runs import run_async
from flowckpt.cli.settings import StoreChoice, store_variables
from flowckpt.core.records import CheckpointData
from flowckpt.core.records.listing import RunInfo
from flowckpt.core.system.filesystem import FULL
from flowckpt.maintenance.recovery import DueRun, read_stale_note_at
from flowckpt.stores.base import StoreBase

# How a recoverer hands its run over to the process that resumes it.
#
# The process starts, imports its program and reads the record, which takes most of a second. The recoverer owns the run
# during that time, so that no other recoverer starts a process for it. Then the process requests the run by one byte over
# an inherited socket; the recoverer gives the run up and replies, and the process claims it. If a third process claims
# the run in between, the claim is refused like any other.


_REQUEST = b"?"
_RELEASED = b"!"


def ask_for_run(descriptor: int) -> None:
    """Request the run from the recoverer, and wait until it is given up or the recoverer is gone.

    Args:
        descriptor: the socket; it is closed, so that programs started by the run do not inherit it.
    """
    try:
        with contextlib.suppress(OSError):
            os.write(descriptor, _REQUEST)
            os.read(descriptor, len(_RELEASED))
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def is_reported(store: StoreBase, workflow_id: str, latest: CheckpointData) -> bool:
    """Return whether a recoverer has reported that a run in this state needs a person."""
    return bool(run_async(read_stale_note_at(store, workflow_id, latest.metadata, latest.attempt)))


class Handover:
    """The recoverer's end of a handover.

    Args:
        give_up: gives the run up.
    """

    def __init__(self, give_up: Callable[[], Awaitable[None]]) -> None:
        self._give_up = give_up
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._answer_task: asyncio.Task[None] | None = None

    @property
    def descriptor(self) -> int:
        """The descriptor that the process inherits."""
        return self._theirs.fileno()

    def start(self) -> None:
        """Wait for the request, once the process has inherited its end."""
        self._theirs.close()
        self._answer_task = asyncio.create_task(self._answer())

    async def close(self) -> None:
        """Close the handover, whether the run was requested or not.

        Raises:
            FlowckptError: the run could not be given up.
        """
        try:
            if self._answer_task is not None:
                self._answer_task.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await self._answer_task
        finally:
            self._theirs.close()
            self._ours.close()

    async def _answer(self) -> None:
        loop = asyncio.get_running_loop()
        if await loop.sock_recv(self._ours, len(_REQUEST)):
            try:
                await self._give_up()
            finally:
                await loop.sock_sendall(self._ours, _RELEASED)


# The output of a process, in an unnamed file: printing never fails because the reader is gone.
#
# Writes to a pipe whose reader has died fail, in the process and in every program that it starts. Writes to a file succeed
# while there is space; because a step that cannot print fails, some space is required before the process starts.
# The space of lines that were read is freed, if the file system supports it.


_CHUNK = 64 * 1024
_FREED_AT_ONCE = 1024 * 1024
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02


class OutputFile:
    """A file that another process prints to, read while it grows.

    Raises:
        OSError: the file cannot be created, or its directory has no space for the first MiB.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="flowckpt-output-", buffering=0)  # noqa: SIM115 - closed by close()
        # Each process that inherits the file appends to it, even after another process has truncated it.
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, fcntl.fcntl(self.descriptor, fcntl.F_GETFL) | os.O_APPEND)
        self._read = 0
        self._freed = 0
        failure = _allocate(self.descriptor, _KEEP_SIZE, 0, _FREED_AT_ONCE)
        if failure in FULL:
            self.close()
            raise OSError(failure, os.strerror(failure), tempfile.gettempdir())

    @property
    def descriptor(self) -> int:
        """The output that the process inherits."""
        return self._file.fileno()

    def close(self) -> None:
        """Close this descriptor; the file is deleted once every process has closed its own."""
        self._file.close()

    def new_chunks(self) -> Iterator[bytes]:
        """Yield the output since the last call; output during this call is left to the next one.

        A process that opens `/dev/stdout` for writing truncates the file. That is not noticed if, until the next call, more
        is printed than was read before: then the beginning of the new output is not yielded.
        """
        size = os.fstat(self.descriptor).st_size
        if size < self._read:  # truncated by a process that opened /dev/stdout for writing
            self._read = self._freed = 0
        while self._read < size:
            chunk = os.pread(self.descriptor, min(_CHUNK, size - self._read), self._read)
            if not chunk:
                break
            self._read += len(chunk)
            self._free_space()
            yield chunk

    def _free_space(self) -> None:
        length = (self._read - self._freed) // _FREED_AT_ONCE * _FREED_AT_ONCE
        if length:
            _allocate(self.descriptor, _KEEP_SIZE | _PUNCH_HOLE, self._freed, length)
            self._freed += length


def _allocate(descriptor: int, mode: int, offset: int, length: int) -> int:
    """Allocate or free the space of a part of a file without changing its size; return the errno, or 0.

    Does nothing if the system or the file system does not support it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    fallocate = getattr(libc, "fallocate64", None)
    if fallocate is None:
        return errno.ENOSYS
    while fallocate(descriptor, mode, ctypes.c_int64(offset), ctypes.c_int64(length)):
        if (failure := ctypes.get_errno()) != errno.EINTR:
            return failure
    return 0


# Whether this machine has the program and the directory of a run.


def find_working_directory(info: RunInfo) -> Path | None:
    """Return the directory in which a run was started; None if it is not recorded."""
    directory = info.metadata.get("base_path") or _read_target(info).get("cwd")
    return Path(directory) if isinstance(directory, str) and directory else None


def why_not_here(info: RunInfo) -> str:
    """Return why a run cannot be resumed on this machine; an empty text if it can."""
    target = _read_target(info)
    file, module = target.get("file"), target.get("module")
    if not target.get("name") or not (file or module):
        return "its workflow is not recorded: its own program must resume it"
    directory = find_working_directory(info)
    if directory is not None and not directory.is_dir():
        return f"the directory it was started in is not on this machine: {directory}; resume it in its new place with --here"
    if not module and not Path(str(file)).is_file():
        return f"its program is not on this machine: {file}"
    return ""


def _read_target(info: RunInfo) -> Mapping[str, str]:
    """Return the recorded place of the workflow; nothing if it is malformed."""
    target = info.metadata.get("target")
    if not isinstance(target, Mapping) or not all(isinstance(each, str) for each in target.values()):
        return {}
    return target


_LINES = 12
_LONGEST = 500
_LONGEST_SHOWN = 64 * 1024
_POLL_SECONDS = 0.05
"""How often new output is read to show it."""

_POLL_SECONDS_UNSHOWN = 1.0
"""How often new output is read only to free its space."""


@attrs.frozen
class ChildEnd:
    """How the process ended.

    Attributes:
        exit_code: its exit code; a negative one is the signal that killed it.
        last_lines: the last lines that it printed.
    """

    exit_code: int
    last_lines: tuple[str, ...]

    @property
    def detail(self) -> str:
        """The first message of flowckpt that is not a warning, or else the last line."""
        messages = [line.removeprefix("flowckpt: ") for line in self.last_lines if line.startswith("flowckpt: ")]
        messages = [line for line in messages if not line.startswith("warning: ")] or list(self.last_lines[-1:])
        return messages[0] if messages else ""


@attrs.define(eq=False)
class Child:
    """A process that resumes one run.

    Args:
        run: the run; if another process has resumed it meanwhile, the process does nothing.
        store: its store.
        options: options of `resume`, as typed.
        on_line: called with each line of output, or None.
    """

    _run: DueRun
    _store: StoreChoice
    options: Sequence[str] = ()
    on_line: Callable[[str], None] | None = None
    _process: asyncio.subprocess.Process | None = attrs.field(init=False, default=None)
    _is_stopped: bool = attrs.field(init=False, default=False)

    async def resume(self, give_up: Callable[[], Awaitable[None]]) -> ChildEnd:
        """Start the process, hand the run over when requested, and wait for the end of the process.

        Args:
            give_up: gives up the run, which is owned for the process until then.

        Raises:
            OSError: the process cannot be started.
            FlowckptError: the run could not be given up.
        """
        handover = Handover(give_up)
        try:
            return await self._run_process(handover)
        finally:
            await handover.close()

    async def _run_process(self, handover: Handover) -> ChildEnd:
        output = OutputFile()
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command(handover.descriptor),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output.descriptor,
                stderr=asyncio.subprocess.STDOUT,
                cwd=find_working_directory(self._run.info),
                env=self._environment(),
                start_new_session=True,  # the recoverer passes Ctrl-C on
                pass_fds=(handover.descriptor,),
            )
            handover.start()
            self._stop_if_asked()
            lines = await self._read_until_end(process, output)
            return ChildEnd(await process.wait(), lines)
        finally:
            output.close()

    def stop(self) -> None:
        """Ask the process to save its run and end; the run is then suspended and due."""
        self._is_stopped = True
        self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        if self._is_stopped and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    def _command(self, descriptor: int) -> list[str]:
        attempt = str(self._run.info.attempt)
        words = ["--if-attempt", attempt, "--kept-by", str(descriptor), *self.options]
        return [sys.executable, "-m", "flowckpt", "resume", *words, "--", self._run.workflow_id]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **store_variables(self._store), "PYTHONUNBUFFERED": "1"}

    async def _read_until_end(self, process: asyncio.subprocess.Process, output: OutputFile) -> tuple[str, ...]:
        """Read the output until the process has ended, even if programs that it started still print."""
        last: deque[str] = deque(maxlen=_LINES)
        rest = b""
        ended = asyncio.ensure_future(process.wait())
        poll_seconds = _POLL_SECONDS_UNSHOWN if self.on_line is None else _POLL_SECONDS
        has_ended = False
        try:
            while not has_ended:
                await asyncio.wait({ended}, timeout=poll_seconds)
                has_ended = ended.done()
                for chunk in output.new_chunks():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        self._add(line, last)
                    if len(rest) > _LONGEST_SHOWN:
                        self._add(rest, last)
                        rest = b""
                    await asyncio.sleep(0)  # let the output of other runs be read
        finally:
            ended.cancel()
        if rest:
            self._add(rest, last)
        return tuple(last)

    def _add(self, line: bytes, last: deque[str]) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        if self.on_line is not None:
            self.on_line(text)
        if text.strip():
            last.append(text[:_LONGEST])
