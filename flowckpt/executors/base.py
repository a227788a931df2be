"""What an executor may be able to do besides what `concurrent.futures.Executor` asks of it; each a protocol of its own.

An executor of a third party has an ability by having the attribute. What it does not say it is not trusted to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any, Protocol, TypeAlias, runtime_checkable

Given: TypeAlias = str | Executor | Callable[[], Executor]
"""What an engine can be given: a description, an executor, or a function that makes one."""


@runtime_checkable
class StopsWork(Protocol):
    """It can end work that has begun. An engine waits for the future of what it has stopped: make that end soon."""

    def stop(self, future: Future[Any], /) -> None:
        """End the work behind a future; the second call for the same one, at once."""
        ...


@runtime_checkable
class LimitsWork(Protocol):
    """It says how much runs at once; an engine gives it no more, so a time limit counts from when the work begins."""

    max_workers: int


@runtime_checkable
class TakesResources(Protocol):
    """It knows what each worker has."""

    def submit_with(self, resources: Mapping[str, float], function: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """Submit work that takes something of what a worker has."""
        ...


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
    """The work was stopped, because nobody waits for it any more."""


class LostWorkerError(BrokenExecutor):
    """The process that did the work is gone.

    Attributes:
        exit_code: what it returned, the negative number of the signal that killed it; None where unknown.
    """

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
