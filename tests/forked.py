"""Processes that start quickly, forked from a server that has imported the package, but no test.

Each process has its own descriptors, working directory and environment, and may be killed. The start of
`python -m flowckpt` itself is covered by the few tests that start it.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

import flowckpt

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["pytest", "tests.preloaded", "tests.forked"])

_ASKING = threading.Lock()
"""Held while exit codes are collected: a start collects those of all processes, and a concurrent collector would get 255."""

_INSTALLED = [place for place in sys.path if place.startswith((sys.prefix, sys.base_prefix))]
_INSTALLED.append(str(Path(flowckpt.__file__).parents[1]))


def run_module(
    module: str,
    arguments: list[str],
    *,
    cwd: Path,
    env: dict[str, str],
    stdin: str | None = None,
    is_merged: bool = False,
    is_script: bool = False,
    seconds: float = 240,
) -> tuple[int, str, str]:
    """Run a module like `python -m`, and return its exit code, its standard output and its standard error.

    Args:
        module: the module.
        arguments: its arguments.
        cwd: its working directory.
        env: its environment.
        stdin: the text on its standard input; empty by default.
        is_merged: whether standard error goes to standard output.
        is_script: whether to run it like an installed script, which imports nothing from the working directory.
        seconds: its time limit.
    """
    with tempfile.TemporaryFile() as given, ThreadPoolExecutor(2) as readers:
        given.write((stdin or "").encode())
        given.seek(0)
        pipes = [processes.Pipe(duplex=False) for _ in range(1 if is_merged else 2)]
        written = [pipe[1] for pipe in pipes]
        # Of a temporary file only the descriptor is left, and a connection is what can be sent.
        source = Connection(os.dup(given.fileno()), writable=False)
        process = processes.Process(
            target=_be_module, args=(module, arguments, str(cwd), env, source, written[0], written[-1], is_script)
        )
        with _ASKING:
            process.start()
        for connection in (source, *written):
            connection.close()
        said = [readers.submit(_everything, pipe[0]) for pipe in pipes]
        if _code_of(process, seconds) is None:
            os.kill(process.pid, signal.SIGKILL)
            _code_of(process, None)
            raise TimeoutError(f"{module} {arguments} has not ended after {seconds} seconds")
        out, *err = (text.result() for text in said)
        return _code_of(process, 0), out, "".join(err)


def _code_of(process: multiprocessing.process.BaseProcess, seconds: float | None) -> int | None:
    """Wait for the end of a process, and return its exit code; None if it is still running."""
    with _ASKING:
        code = process.exitcode
    if code is None and wait([process.sentinel], seconds):
        with _ASKING:
            code = process.exitcode
    return code


class Started:
    """A running process with the interface of `subprocess.Popen([sys.executable, *arguments], …)`.

    Args:
        arguments: the arguments of `python`: a script and its arguments, or `-m` and a module, or `-c` and a program.
        cwd: its working directory; that of this process by default.
        env: its environment; that of this process by default.
        stdin: a descriptor; empty input by default.
        stdout: a file or its descriptor, or `subprocess.PIPE`; standard output by default.
        stderr: a file or its descriptor, or `subprocess.PIPE`; standard error by default.
        text: whether the pipes carry text.
        begins: an importable function, called first in the process.
    """

    def __init__(
        self,
        arguments: list[str],
        *,
        cwd: Path | str | None = None,
        env: dict[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO | None = None,
        stderr: int | IO | None = None,
        text: bool = False,
        begins: Callable[[], None] | None = None,
    ) -> None:
        self.args = [str(argument) for argument in arguments]
        self.stdout, written = _end_of(stdout, 1, text)
        self.stderr, told = _end_of(stderr, 2, text)
        source = Connection(os.open(os.devnull, os.O_RDONLY) if stdin == subprocess.DEVNULL else os.dup(stdin))
        given = (str(cwd or os.getcwd()), dict(os.environ if env is None else env), source, written, told)
        self._process = processes.Process(target=_be_program, args=(self.args, *given, begins))
        with _ASKING:
            self._process.start()
        for connection in (source, written, told):
            connection.close()
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return _code_of(self._process, 0)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        code = _code_of(self._process, timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def communicate(self, timeout: float | None = None) -> tuple:
        """Read its pipes to their end, and wait for the end of the process."""
        with ThreadPoolExecutor(2) as readers:
            pipes = [None if pipe is None or pipe.closed else pipe for pipe in (self.stdout, self.stderr)]
            said = [pipe and readers.submit(pipe.read) for pipe in pipes]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            read = tuple(each and each.result() for each in said)
        for pipe in pipes:
            if pipe is not None:
                pipe.close()
        return read

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and the server has collected it
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def run(arguments: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, like `subprocess.run([sys.executable, *arguments], capture_output=True, text=True)`.

    Args:
        arguments: those of `Started`.
        options: further ones of `Started`.
    """
    process = Started(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    out, err = process.communicate(240)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def take_terminal() -> None:
    """Start a session on the terminal at standard input, so that Ctrl-C is a signal."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _end_of(wanted: int | IO | None, own: int, is_text: bool) -> tuple[IO | None, Connection]:
    """Return the reading end, if it is a pipe, and the descriptor for the process."""
    if wanted == subprocess.DEVNULL:
        return None, Connection(os.open(os.devnull, os.O_RDWR))
    if wanted != subprocess.PIPE:
        given = own if wanted is None else wanted
        return None, Connection(os.dup(given if isinstance(given, int) else given.fileno()))
    read, written = os.pipe()
    return open(read, "r" if is_text else "rb", encoding="utf-8" if is_text else None), Connection(written)


def _everything(connection: Connection) -> str:
    with connection, open(connection.fileno(), encoding="utf-8", closefd=False) as text:
        return text.read()


def _be_module(
    module: str,
    arguments: list[str],
    cwd: str,
    env: dict[str, str],
    source: Connection,
    out: Connection,
    err: Connection,
    is_script: bool,
) -> None:
    _become(cwd, env, source, out, err)
    if is_script:
        sys.path[0] = str(Path(sys.executable).parent)
    sys.argv[:] = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _be_program(
    arguments: list[str],
    cwd: str,
    env: dict[str, str],
    source: Connection,
    out: Connection,
    err: Connection,
    begins: Callable[[], None] | None,
) -> None:
    _become(cwd, env, source, out, err)
    if begins is not None:
        begins()
    if arguments[0] == "-m":
        sys.argv[:] = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv[:] = ["-c", *arguments[2:]]
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    else:
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        sys.argv[:] = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def _become(cwd: str, env: dict[str, str], source: Connection, out: Connection, err: Connection) -> None:
    """Set the working directory, the environment and the descriptors of the new process."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for descriptor, connection in enumerate((source, out, err)):
        os.dup2(connection.fileno(), descriptor)
    for connection in {source, out, err}:
        connection.close()
    is_unbuffered = bool(env.get("PYTHONUNBUFFERED"))
    sys.stdin, sys.stdout = _stream(0, "r", is_unbuffered), _stream(1, "w", is_unbuffered)
    sys.stderr = _stream(2, "w", True)
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    places = [place for place in env.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:] = [cwd, *places, *_INSTALLED]


def _stream(descriptor: int, mode: str, is_by_line: bool) -> IO[str]:
    errors = "backslashreplace" if descriptor == 2 else "strict"
    return open(descriptor, mode, 1 if is_by_line else -1, encoding="utf-8", errors=errors, closefd=False)
