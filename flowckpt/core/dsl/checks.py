"""Checks of the arguments of steps, made where a step is written, and the line that errors name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowckpt.core.system.functions import cached_per_function
from flowckpt.errors import StepDefinitionError


def caller() -> str:
    """Return `file:line` of the nearest frame outside this package's language."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_globals.get("__name__", "").startswith("flowckpt.core.dsl")
        or frame.f_code.co_filename.startswith("<attrs")
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def of_one_argument(step_name: str, modifier: str, function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a function of a modifier unchanged, or refuse one that cannot be called with one argument.

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


@cached_per_function
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


def explicit_arguments(
    step_name: str, function: Callable[..., Any], given: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of `.python(fn, args=(…), kwargs={…})`, unless the function has parameters of these names.

    `*args` and `**kwargs` do not count: nobody can give them by these names.

    Raises:
        StepDefinitionError: they hold no arguments.
    """
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        found = {}.values()  # a builtin without a signature
    if any(each.name in given and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) for each in found):
        return (), dict(given)
    args, kwargs = given.get("args", ()), given.get("kwargs") or {}
    if isinstance(args, str | bytes) or not isinstance(args, Sequence) or not isinstance(kwargs, Mapping):
        raise StepDefinitionError(
            f"step {step_name!r}: args= takes a sequence and kwargs= a mapping, got {args!r} and {kwargs!r}",
            step=step_name,
            where=caller(),
        )
    return tuple(args), dict(kwargs)
