"""The `.python()` action: where and how a function is called.

| the step is | and the engine | it runs |
|---|---|---|
| sync, no timeout | owns the loop | in the caller's thread: Ctrl-C reaches it, without the cost of a thread switch |
| sync, no timeout | runs in an application's loop | on a thread of the run, so that the loop keeps running |
| sync, with a timeout | either | on a thread of the run, which is abandoned at the timeout |
| async | either | in the loop |

A step works on copies of its arguments, in every try: a resumed run does not repeat what a step changes in place, so the
workflow must not see it in an uninterrupted run either. Values are copied, with everything in them: containers, arrays,
data frames, and data classes (attrs, dataclasses, pydantic) that compare by value. Other objects are not, nor is the
object of a bound method: the engine warns if a call changes it.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.codec.annotations import is_pydantic
from flowckpt.core.dsl import PythonAction
from flowckpt.core.dsl.step import Action
from flowckpt.core.system import external
from flowckpt.core.system.blocking import allow_blocking, forget_allowance
from flowckpt.errors import StepTimeoutError
from flowckpt.execution.interrupts import Interrupts

if TYPE_CHECKING:
    from flowckpt.execution.thread import Call, StepThreads


# --- arguments ---------------------------------------------------------------------------------------------------------

IMMUTABLE = frozenset({int, str, float, bool, type(None), bytes, complex, range, type(Path()), FunctionType, type})
"""Types whose values are not copied, without a closer look."""


def copy_arguments(action: PythonAction) -> PythonAction:
    """Return a call with copies of its arguments, and of those of a partial.

    Args:
        action: the call.
    """
    copier = _Copier()
    function, args = copier.copy_function(action.function), tuple(map(copier.copy_whole, action.args))
    kwargs = {name: copier.copy_whole(value) for name, value in action.kwargs.items()}
    return PythonAction(function, args, kwargs)


class _Copier:
    """Copies the arguments of one call: an object that two of them share is copied once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}  # the original, too: its address must stay its own

    def copy_function(self, function: Any) -> Any:
        if type(function) is partial:
            keywords = {name: self.copy_whole(value) for name, value in function.keywords.items()}
            return partial(self.copy_function(function.func), *map(self.copy_whole, function.args), **keywords)
        return function

    def copy_whole(self, value: Any) -> Any:
        """Copy a value with everything in it, or nothing of it."""
        try:
            return self.copy(value)
        except Exception:  # the object's own code failed, or it cannot be copied
            return value

    def copy_all(self, values: Iterable[Any]) -> tuple[Any, ...]:
        return tuple([self.copy(value) for value in values])

    def copy(self, value: Any) -> Any:
        kind = type(value)
        if kind in IMMUTABLE:
            return value
        if (known := self._known.get(id(value))) is not None:
            return known[1]
        made = self._copy_container(value) if isinstance(value, _CONTAINERS) else self._copy_object(value, kind)
        self._known[id(value)] = value, made
        return made

    def _copy_container(self, value: Any) -> Any:
        if isinstance(value, tuple):
            items = self.copy_all(value)
            is_same = all(new is old for new, old in zip(items, value, strict=True))
            return value if is_same else items if type(value) is tuple else type(value)._make(items)  # type: ignore[attr-defined]
        made = copy.copy(value)
        self._known[id(value)] = value, made  # it may contain itself
        if isinstance(made, dict):
            for key, item in made.items():
                if type(item) not in IMMUTABLE:
                    dict.__setitem__(made, key, self.copy(item))  # an existing key: the dictionary keeps its size
        elif isinstance(made, list | deque):
            for index, item in enumerate(made):
                if type(item) not in IMMUTABLE:
                    made[index] = self.copy(item)
        return made

    def _copy_object(self, value: Any, kind: Any) -> Any:
        bases = kind.__mro__
        for top, name in ((cls.__module__.partition(".")[0], cls.__name__) for cls in bases):
            if (
                name in _COPIED.get(top, ()) and kind.__name__ != "memmap"
            ):  # a file, which may be larger than the memory
                return value.copy(deep=False) if top == "pandas" and _is_copied_on_write() else copy.deepcopy(value)
        is_data_class = attrs.has(kind) or external.dataclasses.is_dataclass(kind) or is_pydantic(kind)
        if not is_data_class or type(kind.__eq__) is not FunctionType or hasattr(kind, "__del__"):
            return value
        made = copy.copy(value)
        self._known[id(value)] = value, made
        slots = {name for cls in bases for name in _names_of(vars(cls).get("__slots__", ()))}
        for name in {*getattr(made, "__dict__", ()), *slots} - {"__weakref__", "__dict__"}:
            if hasattr(made, name) and (own := self.copy(old := getattr(made, name))) is not old:
                object.__setattr__(made, name, own)
        return made


_CONTAINERS = (list, dict, set, tuple, bytearray, deque)
_COPIED: Mapping[str, frozenset[str]] = {
    "array": frozenset({"array"}),
    "types": frozenset({"SimpleNamespace"}),
    "numpy": frozenset({"ndarray"}),
    "pandas": frozenset({"DataFrame", "Series"}),
    "polars": frozenset({"DataFrame", "Series"}),
}


def _names_of(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_copied_on_write() -> bool:
    """Return whether pandas copies the data of a shallow copy when one of the two is changed."""
    return int(sys.modules["pandas"].__version__.partition(".")[0]) >= 3


# --- the call ----------------------------------------------------------------------------------------------------------


async def run_python(
    action: PythonAction,
    *,
    workflow_id: str,
    path: str,
    timeout_seconds: float | None,
    interrupts: Interrupts,
    threads: StepThreads,
) -> Any:
    """Call a step's function that cannot be called in place, and return its value.

    Args:
        action: the function and its arguments.
        workflow_id: the run.
        path: the step's path.
        timeout_seconds: the limit, or None.
        interrupts: delivers signals to the step.
        threads: the run's own threads.

    Raises:
        StepTimeoutError: the function did not end in time.
    """

    def on_left(call: Call) -> None:
        leave_running(workflow_id, path, lambda: call.is_at_work)

    if timeout_seconds is None:
        return await _call(action, interrupts, threads, on_left)
    limit = asyncio.timeout(timeout_seconds)
    try:
        async with limit:
            return await _call(action, interrupts, threads, on_left)
    except TimeoutError as error:
        if limit.expired():
            raise StepTimeoutError(path, timeout_seconds=timeout_seconds) from error
        raise


async def await_interruptibly(value: Any, interrupts: Interrupts) -> Any:
    """Await something, such that a signal may cancel the wait."""
    interrupts.waits += 1
    may_block = allow_blocking(False)  # the awaited code may create tasks, which share the loop
    try:
        return await value
    finally:
        forget_allowance(may_block)
        interrupts.waits -= 1


async def _call(
    action: PythonAction, interrupts: Interrupts, threads: StepThreads, on_left: Callable[[Call], None]
) -> Any:
    call = partial(action.function, *action.args, **action.kwargs)
    if is_async(action.function):
        return await await_interruptibly(call(), interrupts)
    value = await await_interruptibly(threads.run(call, on_left=on_left), interrupts)
    return await await_interruptibly(value, interrupts) if inspect.isawaitable(value) else value


def is_left_behind(action: Action) -> bool:
    """Return whether the work keeps running after its timeout: a function on a thread cannot be stopped."""
    return isinstance(action, PythonAction) and not is_async(action.function)


def is_async(function: Any) -> bool:
    """Return whether a call of the function returns a coroutine."""
    if type(function) is FunctionType and function.__code__.co_flags & inspect.CO_COROUTINE:
        return True
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))


# Abandoned work of this process that may still be running: on a thread, or on an executor.
#
# A function on a thread cannot be stopped, and few executors can stop running work.
#
# Such a step may still have its effect later, so a claim that denies the effect proves nothing until the work has
# ended. That matters if a run is resumed in the same process in which it was stopped.


_lock = threading.Lock()
_abandoned: dict[tuple[str, str], list[Callable[[], bool]]] = {}


def leave_running(workflow_id: str, path: str, is_at_work: Callable[[], bool]) -> None:
    """Note abandoned work."""
    with _lock:
        for key in [key for key, works in _abandoned.items() if not any(each() for each in works)]:
            del _abandoned[key]
        _abandoned.setdefault((workflow_id, path), []).append(is_at_work)


def is_left_running(workflow_id: str, path: str) -> bool:
    """Return whether this process still runs work of a step that the run no longer waits for."""
    with _lock:
        return any(each() for each in _abandoned.get((workflow_id, path), ()))
