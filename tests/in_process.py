"""The command, run in the process of the test, in a third of the time of a separate process.

`tests.forked` runs commands that need a process of their own: for signals, kills, pipes, limits, a terminal, or the end of
a process; also commands called from a thread or from inside a loop, and, with `--soak`, all commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import linecache
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import flowckpt.__main__
from flowckpt.cli import main
from flowckpt.cli.render import terminal
from flowckpt.evidence import claims
from tests.forked import _INSTALLED, _stream, run_module

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOGGER = logging.getLogger("flowckpt")
_PACKAGES = (
    sys.prefix,
    sys.base_prefix,
    *(str(Path(each.__file__).parent) for each in (flowckpt, sys.modules[__name__])),
)
_OF_PACKAGES: set[str] = set()
"""Modules outside of test directories: four thousand, which need not be inspected for each command."""
_DEADLY = re.compile(r"os\.kill|os\._exit|setrlimit")
"""Texts in programs that affect their own process."""

is_soak = False
"""Whether each command runs in a process of its own."""


def is_possible(directory: Path) -> bool:
    """Return whether a command can run in this process: in the main thread, outside of any loop, with harmless programs."""
    if is_soak or threading.current_thread() is not threading.main_thread():
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return not any(_DEADLY.search(file.read_text("utf-8", "replace")) for file in directory.glob("*.py"))
    return False


def run_command(arguments: list[str], *, cwd: Path, env: dict[str, str], **given: Any) -> tuple[int, str, str]:
    """Run the command to its end: in this process if possible, otherwise in a forked one.

    Args:
        arguments: its arguments.
        cwd: its working directory.
        env: its environment.
        given: further options of `run_here` or `tests.forked.run_module`.
    """
    if (
        "--crashes" in arguments
    ):  # it forks a hundred processes, each of which is slow in a process as large as this one
        given["seconds"] = 300
    elif is_possible(cwd):
        return run_here(arguments, cwd=cwd, env=env, **given)
    return run_module("flowckpt", arguments, cwd=cwd, env=env, **given)


def run_here(
    arguments: list[str],
    *,
    cwd: Path,
    env: dict[str, str],
    stdin: str | None = None,
    is_merged: bool = False,
    is_script: bool = False,
) -> tuple[int, str, str]:
    """Run the command, and return its exit code, its standard output and its standard error.

    Args:
        arguments: its arguments.
        cwd: its working directory.
        env: its environment.
        stdin: the text on its standard input; empty by default.
        is_merged: whether standard error goes to standard output.
        is_script: whether to run it like an installed script, which imports nothing from the working directory.
    """
    with contextlib.ExitStack() as stack:
        given, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write((stdin or "").encode())
        given.seek(0)
        with _world(cwd, env, is_script=is_script), _streams(given, out, out if is_merged else err):
            code = _code_of(arguments)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return code, said[0], said[1]


def _code_of(arguments: list[str]) -> int:
    sys.argv[:] = ["flowckpt", *arguments]
    try:
        main(arguments)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
    except BaseException:
        traceback.print_exc()
    return 1


def _file_of(module: object) -> str:
    return str(vars(module).get("__file__") or "") if isinstance(module, ModuleType) else ""


@contextlib.contextmanager
def _world(cwd: Path, env: dict[str, str], *, is_script: bool) -> Iterator[None]:
    """Use the directory, the environment and the modules of a new process within the block."""
    environ, path, argv, place = dict(os.environ), sys.path[:], sys.argv[:], os.getcwd()
    files = {name: _file_of(sys.modules[name]) for name in sys.modules.keys() - _OF_PACKAGES}
    here = {name: sys.modules[name] for name, file in files.items() if file.startswith(f"{cwd}{os.sep}")}
    _OF_PACKAGES.update(name for name, file in files.items() if file.startswith(_PACKAGES))
    for name in here:
        del sys.modules[name]
    known, main_module = set(sys.modules), sys.modules["__main__"]
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    logged = _LOGGER.handlers[:], _LOGGER.level, _LOGGER.propagate
    functions, databases = dict(claims._FUNCTIONS), dict(claims._DATABASES)
    is_writing = sys.dont_write_bytecode
    os.chdir(cwd)
    _set_environment(env)
    sys.path[:] = [
        str(Path(sys.executable).parent) if is_script else str(cwd),
        *(place for place in env.get("PYTHONPATH", "").split(os.pathsep) if place),
        *_INSTALLED,
    ]
    sys.modules["__main__"] = flowckpt.__main__
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    linecache.clearcache()
    importlib.invalidate_caches()
    try:
        with warnings.catch_warnings():
            warnings.resetwarnings()
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.dont_write_bytecode = is_writing
        sys.modules["__main__"] = main_module
        for name in set(sys.modules) - known:
            if not (getattr(sys.modules[name], "__file__", None) or "/").startswith(
                (sys.prefix, sys.base_prefix, *_INSTALLED)
            ):
                del sys.modules[name]
        sys.modules.update(here)
        sys.path[:], sys.argv[:] = path, argv
        _set_environment(environ)
        os.chdir(place)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _LOGGER.handlers[:], _LOGGER.propagate = logged[0], logged[2]
        _LOGGER.setLevel(logged[1])
        claims._FUNCTIONS.clear()
        claims._FUNCTIONS.update(functions)
        claims._DATABASES.clear()
        claims._DATABASES.update(databases)


def _set_environment(env: dict[str, str]) -> None:
    """Replace the environment by setting only the differences, because each variable is a system call."""
    now = dict(os.environ)
    for name in now.keys() - env.keys():
        del os.environ[name]
    for name, value in env.items():
        if now.get(name) != value:
            os.environ[name] = value
    if now.get("TZ") != env.get("TZ"):
        time.tzset()


@contextlib.contextmanager
def _streams(given: IO[bytes], out: IO[bytes], err: IO[bytes]) -> Iterator[None]:
    """Use files for descriptors 0, 1 and 2 within the block, also for child processes."""
    kept = [os.dup(descriptor) for descriptor in range(3)]
    streams = sys.stdin, sys.stdout, sys.stderr
    for stream in streams[1:]:
        stream.flush()
    for descriptor, file in enumerate((given, out, err)):
        os.dup2(file.fileno(), descriptor)
    sys.stdin, sys.stdout, sys.stderr = _stream(0, "r", False), _stream(1, "w", False), _stream(2, "w", True)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        sys.stdin, sys.stdout, sys.stderr = streams
        if terminal._Place.descriptor != 1:
            os.close(terminal._Place.descriptor)
            terminal._Place.descriptor = 1
        terminal._Place.is_closed = False
        for descriptor, number in enumerate(kept):
            os.dup2(number, descriptor)
            os.close(number)
