"""Steps beside each other: `a, b = yield parallel(step("a")…, step("b")…)`."""

from __future__ import annotations

from typing import Any, TypeVar, overload

from flowckpt.dsl.composite_arguments import parallel_action
from flowckpt.dsl.modifiable import check_name
from flowckpt.dsl.modifiers import PLAIN
from flowckpt.dsl.step import Step
from flowckpt.errors import StepFailedError

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
G = TypeVar("G")
H = TypeVar("H")


@overload
def parallel(a: Step[A], /, *, name: str = ..., concurrency: int | None = ...) -> Step[tuple[A]]: ...
@overload
def parallel(a: Step[A], b: Step[B], /, *, name: str = ..., concurrency: int | None = ...) -> Step[tuple[A, B]]: ...
@overload
def parallel(
    a: Step[A], b: Step[B], c: Step[C], /, *, name: str = ..., concurrency: int | None = ...
) -> Step[tuple[A, B, C]]: ...
@overload
def parallel(
    a: Step[A], b: Step[B], c: Step[C], d: Step[D], /, *, name: str = ..., concurrency: int | None = ...
) -> Step[tuple[A, B, C, D]]: ...
@overload
def parallel(
    a: Step[A], b: Step[B], c: Step[C], d: Step[D], e: Step[E], /, *, name: str = ..., concurrency: int | None = ...
) -> Step[tuple[A, B, C, D, E]]: ...
@overload
def parallel(
    a: Step[A],
    b: Step[B],
    c: Step[C],
    d: Step[D],
    e: Step[E],
    f: Step[F],
    /,
    *,
    name: str = ...,
    concurrency: int | None = ...,
) -> Step[tuple[A, B, C, D, E, F]]: ...
@overload
def parallel(
    a: Step[A],
    b: Step[B],
    c: Step[C],
    d: Step[D],
    e: Step[E],
    f: Step[F],
    g: Step[G],
    /,
    *,
    name: str = ...,
    concurrency: int | None = ...,
) -> Step[tuple[A, B, C, D, E, F, G]]: ...
@overload
def parallel(
    a: Step[A],
    b: Step[B],
    c: Step[C],
    d: Step[D],
    e: Step[E],
    f: Step[F],
    g: Step[G],
    h: Step[H],
    /,
    *,
    name: str = ...,
    concurrency: int | None = ...,
) -> Step[tuple[A, B, C, D, E, F, G, H]]: ...
@overload
def parallel(*steps: Step[A], name: str = ..., concurrency: int | None = ...) -> Step[tuple[A, ...]]: ...
@overload
def parallel(
    *steps: Step[A],
    name: str = ...,
    concurrency: int | None = ...,
    min_success: float | None = ...,
    tolerate: float | None = ...,
) -> Step[tuple[A | StepFailedError, ...]]: ...
def parallel(
    *steps: Step[Any],
    name: str = "parallel",
    concurrency: int | None = None,
    min_success: float | None = None,
    tolerate: float | None = None,
) -> Step[Any]:
    """Run steps beside each other; their outputs come as a tuple, in the order in which the steps are given.

    Each step keeps its own modifiers and has its own record, under the path of the group: `parallel/[load]`.

    Args:
        *steps: steps with their actions: functions, commands, maps, workflows, other groups. Type checkers know the
            output of each of up to eight.
        name: what to call the group.
        concurrency: how many run beside each other; all of them where not given.
        min_success: how many must succeed for the group to succeed: a number, or a fraction as a float.
        tolerate: how many may fail: likewise. With either of them, a `StepFailedError` stands in the place of each
            output that there is not; without, the first failure stops the rest and fails the group.

    Raises:
        StepDefinitionError: an argument is none of these.
    """
    check_name(name, "step name")
    action = parallel_action(name, steps, concurrency=concurrency, min_success=min_success, tolerate=tolerate)
    return Step(name, PLAIN, action)
