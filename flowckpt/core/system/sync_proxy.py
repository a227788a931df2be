"""One door for code that is not async: an object's async methods, run in a loop of their own.

There is no twin class of anything. The loop runs one call at a time and nothing else, so stores and checks work in
place, in the calling thread, as under `run_sync`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import weakref
from collections.abc import Awaitable, Coroutine
from typing import Any, Self, TypeVar

from flowckpt.core.system.blocking import loop_hidden, run_alone

T = TypeVar("T")


class InSync:
    """A wrapper whose methods wait: each async method runs to its end and returns its result.

    All other attributes are passed through. As a context manager, it enters and leaves the object's own async context,
    if it has one, and closes the loop. Calls from several threads wait for each other.

    Args:
        target: the object.
    """

    def __init__(self, target: object) -> None:
        self._target: Any = target
        self._runner: asyncio.Runner | None = None
        self._one_at_a_time = threading.Lock()

    def __repr__(self) -> str:
        return f"in_sync({self._target!r})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and the like ask before there is a target
            raise AttributeError(name)
        found = getattr(self._target, name)
        if not callable(found):
            return found

        @functools.wraps(found)
        def waiting(*args: Any, **kwargs: Any) -> Any:
            returned = found(*args, **kwargs)
            return self._waited(returned) if inspect.isawaitable(returned) else returned

        return waiting

    def __enter__(self) -> Self:
        if hasattr(self._target, "__aenter__"):
            self._waited(self._target.__aenter__())
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            if hasattr(self._target, "__aexit__"):
                self._waited(self._target.__aexit__(*raised))
        finally:
            self.close_loop()

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result, with its type kept."""
        return self._waited(work)

    def close_loop(self) -> None:
        """Close the loop, which otherwise closes with this object. A later call opens a new one."""
        with self._one_at_a_time:
            if self._runner is not None:
                self._closing()
                self._runner = None

    def _waited(self, work: Awaitable[T]) -> T:
        with self._one_at_a_time, loop_hidden():
            if self._runner is None:
                self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)  # a factory keeps it our own loop
                self._runner.get_loop()
                self._closing = weakref.finalize(self, _close, self._runner)
            return run_alone(self._runner, work)


def _close(runner: asyncio.Runner) -> None:
    with loop_hidden():
        runner.close()


def in_sync(target: object) -> InSync:
    """Return a wrapper for sync code: the object's async methods run to their end in the calling thread.

    `with in_sync(manager) as wrapped:` enters and leaves the object's own `async with`.

    Args:
        target: the object, such as a `CheckpointManager` or a store.
    """
    return InSync(target)
