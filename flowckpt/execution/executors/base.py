"""Optional abilities of executors beyond `concurrent.futures.Executor`, each a separate protocol.

A third party's executor has an ability if it has the attribute; otherwise the engine does not rely on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, runtime_checkable

ExecutorSpec: TypeAlias = str | Executor | Callable[[], Executor]
"""An executor as passed to an engine: a description, the executor, or a function that creates it."""


@runtime_checkable
class StopsWork(Protocol):
    """It can end running work. An engine waits for the future of stopped work, which must end soon."""

    def stop(self, future: Future[Any], /) -> None:
        """End the work of a future; a second call for the same future ends the work at once."""
        ...


@runtime_checkable
class KnowsStoppedWork(Protocol):
    """The future of stopped work may end before the work does; the executor knows when the work has ended."""

    def is_at_work(self, future: Future[Any], /) -> bool:
        """Return whether stopped work may still be running."""
        ...


@runtime_checkable
class LimitsWork(Protocol):
    """It limits how much runs in parallel; an engine submits no more, so a time limit starts with the work."""

    max_workers: int


OnMessage: TypeAlias = Callable[[bytes, Callable[[bytes], None] | None], None]
"""Takes a message of the work, from any thread, and returns at once; gets a function that sends the reply if the work
waits for one."""


class HearsWork(Protocol):
    """Its work can send messages while it runs, through `flowckpt.way_up` in the worker.

    The messages arrive in order, and before the future of the work ends.
    """

    def submit_heard(
        self, hear: OnMessage, resources: Mapping[str, float], function: Callable[..., Any], /, *args: Any
    ) -> Future[Any]:
        """Submit work, and pass on its messages; resources are only for executors that take resources."""
        ...


@runtime_checkable
class TakesResources(Protocol):
    """It knows the resources of its workers."""

    def submit_with(self, resources: Mapping[str, float], function: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """Submit work that needs some of a worker's resources."""
        ...


def repeats_work(executor: object) -> bool:
    """Return whether the executor may repeat work by itself, like distributed engines that lose a worker."""
    return bool(getattr(executor, "repeats_work", False))


class StoppedWorkError(Exception):
    """The work was stopped, because the run no longer waits for it."""


class LostWorkerError(BrokenExecutor):
    """The process that did the work is gone.

    Attributes:
        exit_code: its exit code, or the negative number of the signal that killed it; None if unknown.
    """

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


# The connection from running work in a worker to the process that submitted it.


class WayUp(Protocol):
    """Sends messages from a worker to the engine, for executors with `HearsWork`; used by one thread at a time."""

    def tell(self, message: bytes) -> None:
        """Send a message that needs no reply.

        Raises:
            OSError: the other side is gone.
        """
        ...

    def ask(self, message: bytes) -> bytes:
        """Send a message, and wait for the reply.

        Raises:
            OSError: the other side is gone.
        """
        ...


way_up: ContextVar[WayUp | None] = ContextVar("flowckpt_way_up", default=None)
"""The connection of the work that runs here to the engine; None if its executor has none."""
