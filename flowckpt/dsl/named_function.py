"""A step's function has a name, because the name is part of what the step is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flowckpt.dsl.caller import caller
from flowckpt.errors import StepDefinitionError


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def check_function(step_name: str, function: object, action: str) -> None:
    """Refuse what is no named function.

    Args:
        step_name: the step.
        function: what it was given.
        action: the action that it was given to.

    Raises:
        StepDefinitionError: it is not callable, or a lambda.
    """
    if not callable(function) or getattr(_unwrapped(function), "__name__", "") == "<lambda>":
        raise _not_a_named_function(step_name, function, action)


def _not_a_named_function(step_name: str, function: object, action: str) -> StepDefinitionError:
    if callable(function):
        what = f"a lambda ({getattr(getattr(_unwrapped(function), '__code__', None), 'co_filename', '?')})"
        remedy = "Write 'def name(…): …': the function's name is part of the step's identity."
    else:
        what = f"{function!r} ({type(function).__name__}), which cannot be called"
        remedy = f"Pass the function and its arguments apart: .{action}(fetch, source), not .{action}(fetch(source))."
    return StepDefinitionError(
        f"step {step_name!r}: .{action}() needs a named function, got {what}",
        step=step_name,
        where=caller(),
        remedy=remedy,
    )
