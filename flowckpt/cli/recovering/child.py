"""One run, resumed in a process of its own: its imports, its directory and its crash are nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

import attrs

from flowckpt.cli.recovering.handing_over import Handover
from flowckpt.cli.recovering.output_file import OutputFile
from flowckpt.cli.recovering.place import working_directory
from flowckpt.cli.settings import StoreChoice
from flowckpt.recovery.due import DueRun

_LINES = 12
_LONGEST = 500
_LONGEST_SHOWN = 64 * 1024
_LOOK_SECONDS = 0.05
"""How often to look for what was printed; where nobody is shown it, it is looked for to give its space back."""

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
        """What it said last about itself, or what it said last at all."""
        said = [line.removeprefix("flowckpt: ") for line in self.last_lines if line.startswith("flowckpt: ")]
        said = [line for line in said if not line.startswith("warning: ")] or list(self.last_lines[-1:])
        return said[0] if said else ""


class Child:
    """A process that resumes one run.

    Args:
        run: the run, as it stood: if it has moved on meanwhile, the process does nothing.
        store: the store that it is in.
        executors: where its steps can run, as `--executor` takes them.
        on_line: told each line that the process prints, or None.
        environ: the environment, without what says where the store is.
    """

    def __init__(
        self,
        run: DueRun,
        store: StoreChoice,
        *,
        executors: Sequence[str] = (),
        on_line: Callable[[str], None] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._run = run
        self._store = store
        self._executors = executors
        self._on_line = on_line
        self._environ = dict(os.environ if environ is None else environ)
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopped = False

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
        policy = ["--if-attempt", attempt, "--on-stop", "suspend", "--kept-by", str(descriptor)]
        policy += [word for each in self._executors for word in ("--executor", each)]
        return [sys.executable, "-m", "flowckpt", "resume", *policy, "--", self._run.workflow_id]

    def _environment(self) -> dict[str, str]:
        """Return its environment: where the store is stands there, because a command line is seen by everybody."""
        store = self._store
        told = {"FLOWCKPT_STORE": store.spec, "FLOWCKPT_COMPRESSION": store.compression, "PYTHONUNBUFFERED": "1"}
        if store.key_file is not None:
            told["FLOWCKPT_KEY_FILE"] = store.key_file
        return {**self._environ, **told}

    async def _read_until_end(self, process: asyncio.subprocess.Process, output: OutputFile) -> tuple[str, ...]:
        """Read what is printed until the process has ended, whoever of those that it started prints on."""
        last: deque[str] = deque(maxlen=_LINES)
        rest = b""
        ended = asyncio.ensure_future(process.wait())
        look_seconds = _LOOK_SECONDS_UNSHOWN if self._on_line is None else _LOOK_SECONDS
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
        if self._on_line is not None:
            self._on_line(text)
        if text.strip():
            last.append(text[:_LONGEST])
