"""An executor from its description: `process:8`, `dask://scheduler:8786`."""

from __future__ import annotations

import functools
import importlib.util
import re
from concurrent.futures import Executor
from typing import Any

from flowckpt.errors import ExecutorError
from flowckpt.execution.executors import dask, processes

IN_ENGINE = ("engine", "thread")
"""Descriptions that stand for no executor: the engine's own process and loop, and a thread of it."""

_COUNT = re.compile(r"[1-9][0-9]{0,3}")
_ADDRESS = re.compile(r"([^\s/:@?#]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_KNOWN = "engine, thread, process, process:8, dask://host:8786, dask:local, dask:local:4"


def open_executor(description: str) -> Executor:
    """Create an executor from a description; it starts or connects when there is work.

    Args:
        description: `process`, `process:8`, `dask://host:8786`, `dask:local`, `dask:local:4`.

    Raises:
        ExecutorError: the description is invalid, or a package is missing.
    """
    executor: Executor = checked(description)()
    return executor


def checked(description: str) -> functools.partial[Any]:
    """Return what makes an executor, after a look at its description.

    Args:
        description: see `open_executor`; `engine` and `thread` are not accepted.

    Raises:
        ExecutorError: it describes no executor, or a package is missing.
    """
    kind, colon, rest = description.partition(":")
    if kind == "process" and (not colon or _COUNT.fullmatch(rest)):
        workers = int(rest) if rest else None
        return functools.partial(processes.ProcessExecutor, workers)
    if kind == "dask" and colon:
        if importlib.util.find_spec("distributed") is None:
            raise dask.not_installed()
        if rest.startswith("//") and (address := _ADDRESS.fullmatch(rest[2:])):
            host, port = address[1], address[2] or ":8786"
            return functools.partial(dask.DaskExecutor, f"tcp://{host}{port}")
        local, colon, count = rest.partition(":")
        if local == "local" and (not colon or _COUNT.fullmatch(count)):
            return functools.partial(dask.DaskExecutor, int(count) if count else processes.processors())
    raise ExecutorError(
        f"{description!r:.120} describes no executor",
        remedy=f"Write one of these: {_KNOWN}; a port is never left out of an address that has a colon."
        if description.startswith("dask://")
        else f"Write one of these: {_KNOWN}.",
    )
