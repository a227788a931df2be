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
from collections.abc import Callable
from functools import partial
from typing import Any

from flowckpt.blocking import blocking_allowed
from flowckpt.dsl import PythonAction
from flowckpt.dsl.actions import Action
from flowckpt.errors import StepTimeoutError
from flowckpt.execution.interrupts import Interrupts
from flowckpt.lazy import LazyModule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flowckpt.execution import left_running
    from flowckpt.execution.thread import Call, StepThreads
else:
    left_running = LazyModule("flowckpt.execution.left_running")


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
        left_running.leave_running(workflow_id, path, lambda: call.is_at_work)

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
    try:
        with blocking_allowed(False):  # what is awaited may make tasks, which then share the loop
            return await value
    finally:
        interrupts.waits -= 1


async def _called(
    action: PythonAction, interrupts: Interrupts, threads: StepThreads, on_left: Callable[[Call], None]
) -> Any:
    call = partial(action.function, *action.args, **action.kwargs)
    if _is_async(action.function):
        return await waited(call(), interrupts)
    value = await waited(threads.run(call, on_left=on_left), interrupts)
    return await waited(value, interrupts) if inspect.isawaitable(value) else value


def is_left_behind(action: Action) -> bool:
    """Tell whether the work goes on after its time is over: nothing can stop a function on a thread.

    Args:
        action: the action.
    """
    return isinstance(action, PythonAction) and not _is_async(action.function)


def _is_async(function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))
