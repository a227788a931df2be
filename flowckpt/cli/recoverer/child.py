"""One run, resumed in a process of its own: its imports, its directory and its crash are shared with no other run."""

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

from flowckpt.cli.runs import waited
from flowckpt.cli.settings import StoreChoice, store_variables
from flowckpt.core.records import CheckpointData
from flowckpt.core.records.listing import RunInfo
from flowckpt.core.system.filesystem import FULL
from flowckpt.maintenance.recovery import DueRun, stale_note_at
from flowckpt.stores.base import StoreBase

# The moment in which a recoverer, which keeps a run, leaves it to the process that resumes it.
#
# The process starts, imports its program and reads the record, which takes most of a second; all that time the recoverer
# owns the run, so that no other one starts a process for it. Then the process asks for it, by one byte over a socket that it
# was born with; the recoverer gives the run up, answers, and the process claims it. Where somebody else is quicker
# between the two, the claim is refused as any other.


_ASKED = b"?"
_GIVEN_UP = b"!"


def ask_for_run(descriptor: int) -> None:
    """Ask the recoverer for the run, and wait until it is given up; one that is gone keeps nothing.

    Args:
        descriptor: of the socket; it is closed, so that nothing that the run starts inherits it.
    """
    try:
        with contextlib.suppress(OSError):
            os.write(descriptor, _ASKED)
            os.read(descriptor, len(_GIVEN_UP))
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def is_reported(store: StoreBase, workflow_id: str, latest: CheckpointData) -> bool:
    """Return whether a recoverer has reported that a run, as it stands, needs a person."""
    return bool(waited(stale_note_at(store, workflow_id, latest.metadata, latest.attempt)))


class Handover:
    """The recoverer's end.

    Args:
        give_up: gives the run up.
    """

    def __init__(self, give_up: Callable[[], Awaitable[None]]) -> None:
        self._give_up = give_up
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._answering: asyncio.Task[None] | None = None

    @property
    def descriptor(self) -> int:
        """The descriptor that the process inherits."""
        return self._theirs.fileno()

    def begin(self) -> None:
        """Wait for the question, now that the process has its end."""
        self._theirs.close()
        self._answering = asyncio.create_task(self._answer())

    async def end(self) -> None:
        """End it, asked or not.

        Raises:
            FlowckptError: the run could not be given up.
        """
        try:
            if self._answering is not None:
                self._answering.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await self._answering
        finally:
            self._theirs.close()
            self._ours.close()

    async def _answer(self) -> None:
        loop = asyncio.get_running_loop()
        if await loop.sock_recv(self._ours, len(_ASKED)):
            try:
                await self._give_up()
            finally:
                await loop.sock_sendall(self._ours, _GIVEN_UP)


# What a process prints, in a file without a name: no process that prints there fails because its reader is gone.
#
# A pipe whose reader has died refuses what is printed to it, in the process and in every program that it starts. A file
# takes it, as long as there is room: a step that cannot print fails, so none is begun where there is not some of it.
# Its space is given back to the system as it is read, where the file system can do that.


_CHUNK = 64 * 1024
_FREED_AT_ONCE = 1024 * 1024
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02


class OutputFile:
    """A file that another process prints to, read while it grows.

    Raises:
        OSError: no directory for temporary files takes one, or there is no room in it for the first MiB.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="flowckpt-output-", buffering=0)  # noqa: SIM115 - closed by close()
        # A process that inherits it prints behind what the others have printed, also after a process has emptied it.
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, fcntl.fcntl(self.descriptor, fcntl.F_GETFL) | os.O_APPEND)
        self._read = 0
        self._freed = 0
        failure = _allocated(self.descriptor, _KEEP_SIZE, 0, _FREED_AT_ONCE)
        if failure in FULL:
            self.close()
            raise OSError(failure, os.strerror(failure), tempfile.gettempdir())

    @property
    def descriptor(self) -> int:
        """The output that the process inherits."""
        return self._file.fileno()

    def close(self) -> None:
        """Close it here; it is gone once everybody who prints to it has closed it."""
        self._file.close()

    def new_chunks(self) -> Iterator[bytes]:
        """Yield what has been printed since the last time, and nothing that is printed from now on.

        A process that opens `/dev/stdout` to write to it empties the file. Between two looks at it, it cannot know of that
        when more has been printed since than was read before: the beginning of it is not yielded then.
        """
        size = os.fstat(self.descriptor).st_size
        if size < self._read:  # emptied, by one who has opened /dev/stdout to write to it
            self._read = self._freed = 0
        while self._read < size:
            chunk = os.pread(self.descriptor, min(_CHUNK, size - self._read), self._read)
            if not chunk:
                break
            self._read += len(chunk)
            self._give_back_space()
            yield chunk

    def _give_back_space(self) -> None:
        length = (self._read - self._freed) // _FREED_AT_ONCE * _FREED_AT_ONCE
        if length:
            _allocated(self.descriptor, _KEEP_SIZE | _PUNCH_HOLE, self._freed, length)
            self._freed += length


def _allocated(descriptor: int, mode: int, offset: int, length: int) -> int:
    """Take space for a part of a file, or give it back, without changing its size; return the number of the error, if any.

    Nothing happens where the system or the file system cannot.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    fallocate = getattr(libc, "fallocate64", None)
    if fallocate is None:
        return errno.ENOSYS
    while fallocate(descriptor, mode, ctypes.c_int64(offset), ctypes.c_int64(length)):
        if (failure := ctypes.get_errno()) != errno.EINTR:
            return failure
    return 0


# Whether a run can be resumed on this machine: its program and its directory are here.


def working_directory(info: RunInfo) -> Path | None:
    """Return the directory in which a run was started; None if the record does not say."""
    found = info.metadata.get("base_path") or _target(info).get("cwd")
    return Path(found) if isinstance(found, str) and found else None


def why_not_here(info: RunInfo) -> str:
    """Return why a run cannot be resumed here; an empty text if nothing speaks against it."""
    target = _target(info)
    file, module = target.get("file"), target.get("module")
    if not target.get("name") or not (file or module):
        return "its record does not say where its workflow is: its own program must resume it"
    directory = working_directory(info)
    if directory is not None and not directory.is_dir():
        return f"the directory it was started in is not on this machine: {directory}"
    if not module and not Path(str(file)).is_file():
        return f"its program is not on this machine: {file}"
    return ""


def _target(info: RunInfo) -> Mapping[str, str]:
    """Return where the record says that its workflow is; nothing if it says what cannot be."""
    found = info.metadata.get("target")
    if not isinstance(found, Mapping) or not all(isinstance(each, str) for each in found.values()):
        return {}
    return found


_LINES = 12
_LONGEST = 500
_LONGEST_SHOWN = 64 * 1024
_LOOK_SECONDS = 0.05
"""How often to look for what was printed; if it is not shown, it is looked for to give its space back."""

_LOOK_SECONDS_UNSHOWN = 1.0


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
        """The last message about itself, or else its last line."""
        said = [line.removeprefix("flowckpt: ") for line in self.last_lines if line.startswith("flowckpt: ")]
        said = [line for line in said if not line.startswith("warning: ")] or list(self.last_lines[-1:])
        return said[0] if said else ""


@attrs.define(eq=False)
class Child:
    """A process that resumes one run.

    Args:
        run: the run, as it stood: if it has moved on meanwhile, the process does nothing.
        store: the store that it is in.
        options: options of `resume`, as they are typed.
        on_line: told each line that the process prints, or None.
        environ: the environment, without what says where the store is.
    """

    _run: DueRun
    _store: StoreChoice
    options: Sequence[str] = ()
    on_line: Callable[[str], None] | None = None
    environ: Mapping[str, str] = attrs.field(factory=lambda: dict(os.environ))
    _process: asyncio.subprocess.Process | None = attrs.field(init=False, default=None)
    _is_stopped: bool = attrs.field(init=False, default=False)

    async def end(self, give_up: Callable[[], Awaitable[None]]) -> ChildEnd:
        """Start the process, leave the run to it when it asks for it, wait for its end and return it.

        Args:
            give_up: gives up the run, which is kept for the process until then.

        Raises:
            OSError: it cannot be started.
            FlowckptError: the run could not be given up.
        """
        handover = Handover(give_up)
        try:
            return await self._ended(handover)
        finally:
            await handover.end()

    async def _ended(self, handover: Handover) -> ChildEnd:
        output = OutputFile()
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command(handover.descriptor),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output.descriptor,
                stderr=asyncio.subprocess.STDOUT,
                cwd=working_directory(self._run.info),
                env=self._environment(),
                start_new_session=True,  # a Ctrl-C at our terminal is ours to pass on
                pass_fds=(handover.descriptor,),
            )
            handover.begin()
            self._stop_if_asked()
            lines = await self._read_until_end(process, output)
            return ChildEnd(await process.wait(), lines)
        finally:
            output.close()

    def stop(self) -> None:
        """Ask the process to save its run and end; it is left suspended and due."""
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
        return {**self.environ, **store_variables(self._store), "PYTHONUNBUFFERED": "1"}

    async def _read_until_end(self, process: asyncio.subprocess.Process, output: OutputFile) -> tuple[str, ...]:
        """Read what is printed until the process has ended, no matter which of its processes still prints."""
        last: deque[str] = deque(maxlen=_LINES)
        rest = b""
        ended = asyncio.ensure_future(process.wait())
        look_seconds = _LOOK_SECONDS_UNSHOWN if self.on_line is None else _LOOK_SECONDS
        has_ended = False
        try:
            while not has_ended:
                await asyncio.wait({ended}, timeout=look_seconds)
                has_ended = ended.done()
                for chunk in output.new_chunks():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        self._add(line, last)
                    if len(rest) > _LONGEST_SHOWN:
                        self._add(rest, last)
                        rest = b""
                    await asyncio.sleep(0)  # the other runs are read, too
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
