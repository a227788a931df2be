"""The `.python()` action: where and how a function is called.

| the step is | and the engine | it runs |
|---|---|---|
| sync, no timeout | owns the loop | in the caller's thread: Ctrl-C reaches it, without the cost of a thread switch |
| sync, no timeout | runs in an application's loop | on a thread of the run, so that the loop keeps running |
| sync, with a timeout | either | on a thread of the run, which is abandoned at the timeout |
| async | either | in the loop |

A step works on copies of its arguments, in every try; see `core/system/copies.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt import execution
from flowckpt.core import dsl
from flowckpt.core.dsl import PythonAction, Step
from flowckpt.core.dsl.checks import undo_parameters
from flowckpt.core.dsl.step import Action, parameters_of
from flowckpt.core.system.blocking import allow_blocking, forget_allowance
from flowckpt.core.system.copies import Copier
from flowckpt.errors import StepTimeoutError
from flowckpt.execution.interrupts import Interrupts

if TYPE_CHECKING:
    from flowckpt.execution.thread import Call, StepThreads


def copy_arguments(action: PythonAction) -> PythonAction:
    """Return a call with copies of its arguments, and of those of a partial.

    Args:
        action: the call.
    """
    copier = Copier()
    function, args = copier.copy_function(action.function), tuple(map(copier.copy_whole, action.args))
    kwargs = {name: copier.copy_whole(value) for name, value in action.kwargs.items()}
    return PythonAction(function, args, kwargs)


def keep_arguments(step: Step[Any]) -> Step[Any]:
    """Return a step with copies of the arguments that its compensation gets, because the workflow may change them later.

    Args:
        step: a step with a compensation, before its workflow has gone on.
    """
    action, undo = step.action, step.modifiers.rollback
    named = () if undo is None else undo_parameters(undo)
    if not named:
        return step
    copier = Copier()

    def keep(name: str, value: Any) -> Any:
        return copier.copy_whole(value) if name in named else value

    if isinstance(action, PythonAction):
        names = itertools.chain(parameters_of(action.function), itertools.repeat(""))
        args = tuple(itertools.starmap(keep, zip(names, action.args, strict=False)))
        kwargs = {name: keep(name, value) for name, value in action.kwargs.items()}
        action = PythonAction(copier.copy_function(action.function), args, kwargs)
    elif isinstance(action, dsl.composites.WorkflowAction | dsl.composites.StartAction):
        action = attrs.evolve(action, inputs={name: keep(name, value) for name, value in action.inputs.items()})
    return type(step)(step.name, step.modifiers, action)


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
    limit = asyncio.timeout(timeout_seconds)

    def on_left(call: Call) -> None:
        leave_running(workflow_id, path, lambda: call.is_at_work)

    def on_returned(cancels: int) -> None:
        execution.thread.deliver_later(
            cancels - limit.expired(), interrupts
        )  # the limit's own cancel has ended with it

    run_in_thread = partial(threads.run, on_left=on_left, on_returned=on_returned)
    if timeout_seconds is None:
        return await _call(action, interrupts, run_in_thread)
    try:
        async with limit:
            return await _call(action, interrupts, run_in_thread)
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
    action: PythonAction, interrupts: Interrupts, run_in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
) -> Any:
    call = partial(action.function, *action.args, **action.kwargs)
    if is_async(action.function):
        return await await_interruptibly(call(), interrupts)
    value = await await_interruptibly(run_in_thread(call), interrupts)
    return await await_interruptibly(value, interrupts) if inspect.isawaitable(value) else value


def is_left_behind(action: Action) -> bool:
    """Return whether the work keeps running after its timeout: a function on a thread cannot be stopped."""
    return isinstance(action, PythonAction) and not is_async(action.function)


def is_async(function: Any) -> bool:
    """Return whether a call of the function returns a coroutine."""
    if type(function) is FunctionType and not function.__dict__:  # nothing marks or wraps it
        return bool(function.__code__.co_flags & inspect.CO_COROUTINE)
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
