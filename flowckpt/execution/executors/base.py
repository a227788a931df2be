"""Abilities of executors beyond `concurrent.futures.Executor`, each a protocol of its own.

An executor of a third party has an ability by having the attribute. What it does not say it is not trusted to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, runtime_checkable

Given: TypeAlias = str | Executor | Callable[[], Executor]
"""An executor as an engine takes it: a description, the executor, or a function that makes it."""


@runtime_checkable
class StopsWork(Protocol):
    """It can end work that has begun. An engine waits for the future of what it has stopped: make that end soon."""

    def stop(self, future: Future[Any], /) -> None:
        """End the work of a future; a second call for the same future ends it at once."""
        ...


@runtime_checkable
class KnowsStoppedWork(Protocol):
    """The future of what it has stopped may end before the work does; it knows when that has."""

    def is_at_work(self, future: Future[Any], /) -> bool:
        """Return whether stopped work may still be running."""
        ...


@runtime_checkable
class LimitsWork(Protocol):
    """It says how much runs at once; an engine gives it no more, so a time limit counts from when the work begins."""

    max_workers: int


Hear: TypeAlias = Callable[[bytes, Callable[[bytes], None] | None], None]
"""Takes a message of the work, from any thread, and returns at once; with a function that sends the reply, where the work
waits for one."""


class HearsWork(Protocol):
    """Its work can say something while it runs: in the worker there is a way up, see `flowckpt.executors.way_up`.

    What the work says is heard in order, and before its future ends.
    """

    def submit_heard(
        self, hear: Hear, resources: Mapping[str, float], function: Callable[..., Any], /, *args: Any
    ) -> Future[Any]:
        """Submit work, and pass on what it says; resources are only for executors that take any."""
        ...


@runtime_checkable
class TakesResources(Protocol):
    """It knows what each worker has."""

    def submit_with(self, resources: Mapping[str, float], function: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """Submit work that takes something of what a worker has."""
        ...


def hears_work(executor: object) -> bool:
    """Tell whether the work of an executor can say something while it runs."""
    return callable(getattr(executor, "submit_heard", None))  # a look at the protocol takes ten times as long


def kills_work(executor: object) -> bool:
    """Tell whether nothing of the work is left once the executor has stopped it."""
    return bool(getattr(executor, "kills_work", False))


def repeats_work(executor: object) -> bool:
    """Tell whether the executor may do work again by itself, as distributed engines do when a worker is lost."""
    return bool(getattr(executor, "repeats_work", False))


def imports_program(executor: object) -> bool:
    """Tell whether its workers can import the program's own files: they run on this machine, from its directories."""
    return bool(getattr(executor, "imports_program", False))


def lost_worker_errors(executor: object) -> tuple[type[BaseException], ...]:
    """Return what the executor raises for a worker that died, besides `BrokenExecutor`."""
    return tuple(getattr(executor, "lost_worker_errors", ()))


class StoppedWorkError(Exception):
    """The work was stopped, because the run no longer waits for it."""


class LostWorkerError(BrokenExecutor):
    """The process that did the work is gone.

    Attributes:
        exit_code: what it returned, the negative number of the signal that killed it; None where unknown.
    """

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


# The way from work in a worker up to the process that handed it in, while it runs.


class WayUp(Protocol):
    """Carries messages up; an executor that `HearsWork` has one in the worker. Only one thread at a time uses it."""

    def tell(self, message: bytes) -> None:
        """Send a message that wants no reply.

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
"""The way up from the work that runs here; None where its executor has none."""
