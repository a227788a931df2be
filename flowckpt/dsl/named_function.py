"""A step's function has a name, because the name is part of what the step is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flowckpt.dsl.caller import caller
from flowckpt.dsl.modifiable import Modifiable
from flowckpt.dsl.workflow import Workflow
from flowckpt.errors import StepDefinitionError


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def told_of(value: object) -> str:
    """Say what was given instead, in a few words.

    Args:
        value: it.
    """
    if isinstance(value, Modifiable):
        return repr(value)
    return f"{value!r:.80} ({type(value).__name__})"


def check_function(step_name: str, function: object, action: str) -> None:
    """Refuse what is no named function.

    Args:
        step_name: the step.
        function: what it was given.
        action: the action that it was given to.

    Raises:
        StepDefinitionError: it is not callable, a lambda, or a workflow.
    """
    if isinstance(function, Workflow):
        raise StepDefinitionError(
            f"step {step_name!r}: .{action}() was given the workflow {function.name!r}, whose generator nobody would drive",
            step=step_name,
            where=caller(),
            remedy="Run it inside this one by .workflow(child, …), or for each of some items by .map(child, items).",
        )
    if not callable(function) or getattr(_unwrapped(function), "__name__", "") == "<lambda>":
        raise _not_a_named_function(step_name, function, action)


def _not_a_named_function(step_name: str, function: object, action: str) -> StepDefinitionError:
    if callable(function):
        what = f"a lambda ({getattr(getattr(_unwrapped(function), '__code__', None), 'co_filename', '?')})"
        remedy = "Write 'def name(…): …': the function's name is part of the step's identity."
    else:
        what = f"{told_of(function)}, which cannot be called"
        remedy = f"Pass the function and its arguments apart: .{action}(fetch, source), not .{action}(fetch(source))."
        if isinstance(function, Modifiable):
            remedy = "Pass the function itself; steps beside each other are a parallel(…)."
    return StepDefinitionError(
        f"step {step_name!r}: .{action}() needs a named function, got {what}",
        step=step_name,
        where=caller(),
        remedy=remedy,
    )
