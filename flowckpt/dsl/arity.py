"""Whether a function can be called with one argument: seen when the step is written, and not when it is too late."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from flowckpt.dsl.caller import caller
from flowckpt.errors import StepDefinitionError
from flowckpt.per_function import per_function


def of_one_argument(step_name: str, modifier: str, function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a function that can be called with one argument, as far as that can be told.

    Args:
        step_name: the step.
        modifier: what the function was given to.
        function: the function.

    Raises:
        StepDefinitionError: it takes none, or needs more.
    """
    if signature := _misfit(function):
        raise StepDefinitionError(
            f"step {step_name!r}: .{modifier}() needs a function of one argument, the recorded output; this one is called "
            f"as {signature}",
            step=step_name,
            where=caller(),
            remedy="Give it one parameter without a default; functools.partial fills in what else it needs.",
        )
    return function


@per_function
def _misfit(function: Callable[..., Any]) -> str:
    """Return the signature of a function that cannot be called with one argument; empty where it can, or may."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin that has none
        return ""
    try:
        signature.bind(None)
    except TypeError:
        return f"{getattr(function, '__name__', type(function).__name__)}{signature}"
    return ""
