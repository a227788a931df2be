"""The `.python()` action: where and how a function is called.

| the step is | and the engine | it runs |
|---|---|---|
| sync, no timeout | owns the loop | in the caller's thread: Ctrl-C reaches it, and there is no hop to pay |
| sync, no timeout | is a guest in an application's loop | on a thread of the run, so the loop stays live |
| sync, with a timeout | either | on a thread of the run, which is left behind when the time is over |
| async | either | in the loop |
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

from flowckpt.core.dsl import PythonAction
from flowckpt.core.dsl.step import Action
from flowckpt.core.system.blocking import allow_blocking, forget_allowance
from flowckpt.errors import StepTimeoutError
from flowckpt.execution.interrupts import Interrupts

if TYPE_CHECKING:
    from flowckpt.execution.thread import Call, StepThreads


async def run_python(
    action: PythonAction,
    *,
    workflow_id: str,
    path: str,
    timeout_seconds: float | None,
    interrupts: Interrupts,
    threads: StepThreads,
) -> Any:
    """Call the function of a step where it cannot be called in place, and return what it returns.

    Args:
        action: the function and its arguments.
        workflow_id: the run.
        path: the step's path.
        timeout_seconds: the limit, or None.
        interrupts: delivers signals to the step.
        threads: the run's own threads.

    Raises:
        StepTimeoutError: it did not end in time.
    """

    def on_left(call: Call) -> None:
        leave_running(workflow_id, path, lambda: call.is_at_work)

    if timeout_seconds is None:
        return await _called(action, interrupts, threads, on_left)
    limit = asyncio.timeout(timeout_seconds)
    try:
        async with limit:
            return await _called(action, interrupts, threads, on_left)
    except TimeoutError as error:
        if limit.expired():
            raise StepTimeoutError(path, timeout_seconds=timeout_seconds) from error
        raise


async def waited(value: Any, interrupts: Interrupts) -> Any:
    """Await something that a signal may cancel."""
    interrupts.waits += 1
    may_block = allow_blocking(False)  # what is awaited may make tasks, which then share the loop
    try:
        return await value
    finally:
        forget_allowance(may_block)
        interrupts.waits -= 1


async def _called(
    action: PythonAction, interrupts: Interrupts, threads: StepThreads, on_left: Callable[[Call], None]
) -> Any:
    call = partial(action.function, *action.args, **action.kwargs)
    if is_async(action.function):
        return await waited(call(), interrupts)
    value = await waited(threads.run(call, on_left=on_left), interrupts)
    return await waited(value, interrupts) if inspect.isawaitable(value) else value


def is_left_behind(action: Action) -> bool:
    """Return whether the work keeps running after its time limit: nothing can stop a function on a thread."""
    return isinstance(action, PythonAction) and not is_async(action.function)


def is_async(function: Any) -> bool:
    """Return whether a call of a function makes a coroutine."""
    if type(function) is FunctionType and function.__code__.co_flags & inspect.CO_COROUTINE:
        return True
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))


# Work that this process began and left to itself, and that may still be at it: on a thread, or on an executor.
#
# Nothing can stop a function on a thread, and few executors can stop what has begun.
#
# What such a step has not done yet it may do in a moment, so a claim that denies it proves nothing until it has ended. That
# matters where a run is resumed in the very process in which it was stopped.


_lock = threading.Lock()
_left: dict[tuple[str, str], list[Callable[[], bool]]] = {}


def leave_running(workflow_id: str, path: str, is_at_work: Callable[[], bool]) -> None:
    """Note work that was left to itself."""
    with _lock:
        for key in [key for key, works in _left.items() if not any(each() for each in works)]:
            del _left[key]
        _left.setdefault((workflow_id, path), []).append(is_at_work)


def is_left_running(workflow_id: str, path: str) -> bool:
    """Return whether this process still runs work of a step that the run no longer waits for."""
    with _lock:
        return any(each() for each in _left.get((workflow_id, path), ()))
