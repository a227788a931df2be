"""The executors of one run, by the names that its steps call them by."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, Literal, TypeAlias, cast

from flowckpt.core.dsl.modifiers import EXECUTOR_NAME, Placement
from flowckpt.core.dsl.step import PythonAction, Step
from flowckpt.errors import ExecutorError, SettingError, UnknownExecutorError
from flowckpt.execution.executors import dask, processes
from flowckpt.execution.executors.base import ExecutorSpec
from flowckpt.execution.remote.submit import RunExecutor

DEFAULT = "default"
"""The name of the executor of all steps that name none and may run elsewhere."""

ENGINE: Literal["engine"] = "engine"
THREAD: Literal["thread"] = "thread"
IN_ENGINE: Mapping[str, Literal["engine", "thread"]] = {ENGINE: ENGINE, THREAD: THREAD}
"""Descriptions that stand for no executor: the engine's own process and loop, and a thread of it."""
Place: TypeAlias = RunExecutor | Literal["engine", "thread"]


class ExecutorPool:
    """The executors of one run.

    Args:
        given: executors, functions that make them, and descriptions, by name.

    Raises:
        SettingError: a name is not valid, or what is given for it.
        ExecutorError: a description describes no executor.
    """

    def __init__(self, executors: Mapping[str, ExecutorSpec] | None = None) -> None:
        self._places: dict[str, Place] = {**IN_ENGINE}
        executors = {"process": "process", **(executors or {})}
        for name, each in executors.items():
            self._places[name] = _make_place(name, each)
        self.has_default = self._places.get(DEFAULT, ENGINE) != ENGINE

    def of(self, step: Step[Any], path: str) -> Place:
        """Return where a step runs.

        Raises:
            UnknownExecutorError: no executor of that name was given.
        """
        modifiers = step.modifiers
        if modifiers.placement is not None:
            return self._find_place(modifiers.placement, path)
        if not self.has_default or type(step.action) is not PythonAction or modifiers.is_ephemeral:
            return ENGINE
        where = self._places[DEFAULT]
        if modifiers.is_at_most_once and isinstance(where, RunExecutor) and where.may_try_again:
            return ENGINE  # it is the default of those that may run there
        return where

    async def check(self, step: Step[Any], path: str) -> int:
        """Refuse a step that its executor cannot run, before the step starts.

        Returns:
            How often it is tried at most when its worker gets lost, where it has no `.retry()`.

        Raises:
            UnknownExecutorError: there is no such executor, or it cannot take the step.
            ExecutorError: the executor cannot be made.
        """
        place, placement = self.of(step, path), step.modifiers.placement
        if not isinstance(place, RunExecutor):
            return 1
        if step.modifiers.is_at_most_once:
            await place.refuse_repeats(path)
        if placement is not None and placement.resources:
            await place.refuse_resources(path, placement.resources)
        return dask.MOST_TRIES_WHEN_LOST if place.may_try_again else 1

    def tries_when_lost(self, step: Step[Any], path: str) -> int:
        """Return how often a step is tried whose worker got lost, where it has no `.retry()`."""
        where = self.of(step, path)
        return where.tries_when_lost if isinstance(where, RunExecutor) and where.may_try_again else 1

    async def close(self) -> None:
        """Close the executors of the run."""
        for executor in self._executors():
            await executor.close()

    def kill(self) -> None:
        """Kill the executors of the run at once."""
        for executor in self._executors():
            executor.kill()

    def _executors(self) -> list[RunExecutor]:
        return [place for place in self._places.values() if isinstance(place, RunExecutor)]

    def _find_place(self, placement: Placement, path: str) -> Place:
        place = self._places.get(placement.executor)
        if place is None:
            raise UnknownExecutorError(
                f"step {path!r} names the executor {placement.executor!r}, which does not exist",
                executor=placement.executor,
                path=path,
                known=sorted(self._places),
                remedy=f"There are {', '.join(sorted(self._places))}. Define it with --executor {placement.executor}=… "
                f'or WorkflowEngine(executors={{"{placement.executor}": …}}).',
            )
        if placement.resources and not isinstance(place, RunExecutor):
            raise UnknownExecutorError(
                f"step {path!r} asks for resources {dict(placement.resources)}, which executor {place!r} does not have",
                executor=placement.executor,
                path=path,
                known=sorted(self._places),
                remedy="Only an executor of several machines, such as Dask, has resources.",
            )
        return place


def check_executors(executors: Mapping[str, ExecutorSpec]) -> None:
    """Refuse a mapping with an invalid name or executor; see `ExecutorPool`."""
    if not isinstance(executors, Mapping):
        raise SettingError(
            f"executors={executors!r:.80} is not a mapping of names to executors",
            setting="executors",
            remedy='As {"gpu": "process:1"}.',
        )
    ExecutorPool(executors)


def _make_place(name: Any, spec: Any) -> Place:
    if not isinstance(name, str) or re.fullmatch(EXECUTOR_NAME, name) is None:
        raise SettingError(
            f"{name!r:.80} cannot be the name of an executor",
            setting="executors",
            remedy="A name begins with a letter, and has letters, digits, '_', '-' and '.'.",
        )
    if name in IN_ENGINE:
        raise SettingError(
            f"executor {name!r} cannot be given: it is a part of the engine", setting="executors", remedy="Rename it."
        )
    if isinstance(spec, str):
        if spec in IN_ENGINE:
            return IN_ENGINE[spec]
        make = parse_description(spec)
        return RunExecutor(name, make, is_ours=True, kind=make.func)
    if not isinstance(spec, type) and callable(getattr(spec, "submit", None)):
        return RunExecutor(name, lambda: spec, is_ours=False, kind=spec)
    if callable(spec):
        return RunExecutor(name, cast("Callable[[], Executor]", spec), is_ours=True, kind=spec)
    raise SettingError(
        f"executor {name!r} is {spec!r:.80} ({type(spec).__name__})",
        setting="executors",
        remedy="Give a concurrent.futures.Executor, a function that makes one, or a description as 'process:8'.",
    )


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
    executor: Executor = parse_description(description)()
    return executor


def parse_description(description: str) -> functools.partial[Any]:
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
            raise dask.missing_package_error()
        if rest.startswith("//") and (address := _ADDRESS.fullmatch(rest[2:])):
            host, port = address[1], address[2] or ":8786"
            return functools.partial(dask.DaskExecutor, f"tcp://{host}{port}")
        local, colon, count = rest.partition(":")
        if local == "local" and (not colon or _COUNT.fullmatch(count)):
            return functools.partial(dask.DaskExecutor, int(count) if count else processes.count_processors())
    raise ExecutorError(
        f"{description!r:.120} describes no executor",
        remedy=f"Write one of these: {_KNOWN}; a port is never left out of an address that has a colon."
        if description.startswith("dask://")
        else f"Write one of these: {_KNOWN}.",
    )
