"""Processes that start quickly: forked off a server that has imported the package, and nothing else of the tests.

Each is a process of its own, with its own descriptors, working directory and environment, and may be killed. What
`python -m flowckpt` itself does when it starts is the matter of the few tests that start it.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

import flowckpt

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["pytest", "tests.preloaded", "tests.forked"])

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
    seconds: float = 60,
) -> tuple[int, str, str]:
    """Run a module as `python -m` does, and return its exit code, its standard output and its standard error.

    Args:
        module: the module.
        arguments: its arguments.
        cwd: its working directory.
        env: its environment.
        stdin: the text on its standard input; nothing where not given.
        is_merged: standard error goes to where standard output goes.
        is_script: run it as an installed script does, which finds no modules in the working directory.
        seconds: how long it may take.
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
        process.start()
        for connection in (source, *written):
            connection.close()
        said = [readers.submit(_everything, pipe[0]) for pipe in pipes]
        process.join(seconds)
        if process.is_alive():
            process.kill()
            process.join()
            raise TimeoutError(f"{module} {arguments} has not ended after {seconds} seconds")
        out, *err = (text.result() for text in said)
        return process.exitcode, out, "".join(err)


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
    sys.path[:] = [str(Path(sys.executable).parent) if is_script else cwd, *places, *_INSTALLED]
    sys.argv[:] = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _stream(descriptor: int, mode: str, is_by_line: bool) -> IO[str]:
    errors = "backslashreplace" if descriptor == 2 else "strict"
    return open(descriptor, mode, 1 if is_by_line else -1, encoding="utf-8", errors=errors, closefd=False)
