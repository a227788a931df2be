"""Steps on the threads of an executor of this very process: nothing is sent, so nothing need be sendable."""

from __future__ import annotations

import concurrent.futures
import contextvars
import inspect
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.dsl.actions import PythonAction
from flowckpt.lazy import LazyModule

if TYPE_CHECKING:
    import asyncio
else:  # only async functions need it
    asyncio = LazyModule("asyncio")

_INTERPRETERS: Any = getattr(concurrent.futures, "InterpreterPoolExecutor", ())
"""Its threads have interpreters of their own (Python 3.14), which share no objects."""


@attrs.frozen
class CalledHere:
    """How a call ended.

    Attributes:
        output: what it returned.
        error: what it raised, or None.
    """

    output: Any = None
    error: BaseException | None = None

    def value(self) -> Any:
        """Return what it returned, or raise what it raised."""
        if self.error is not None:
            raise self.error
        return self.output


def is_in_this_process(executor: Executor) -> bool:
    """Tell whether an executor calls functions in this process, with the very objects that it is given.

    Args:
        executor: the executor.
    """
    return isinstance(executor, ThreadPoolExecutor) and not (_INTERPRETERS and isinstance(executor, _INTERPRETERS))


def submitted_here(executor: Executor, action: PythonAction) -> Future[Any]:
    """Have a function called on a thread of this process, in the context of the caller.

    Args:
        executor: the executor.
        action: the function and its arguments.
    """
    return executor.submit(contextvars.copy_context().run, _called, action)


def _called(action: PythonAction) -> CalledHere:
    try:
        value = action.function(*action.args, **action.kwargs)
        return CalledHere(asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value)
    except BaseException as error:
        return CalledHere(error=error)


async def _awaited(value: Any) -> Any:
    return await value
