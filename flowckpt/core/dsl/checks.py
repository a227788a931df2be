"""Checks of the arguments of steps, made where a step is written, and the line that errors name."""

from __future__ import annotations

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import islice
from typing import Any, TypeAlias

from flowckpt.core.dsl.path import MAX_NAME_LENGTH
from flowckpt.core.system.functions import cached_per_function
from flowckpt.errors import StepDefinitionError, StepNotYieldedError

# A step is a value: one that a workflow creates and forgets to yield leaves no trace. So the steps that are created while
# a run is driven are noted by their action, which all modifiers of a step share, and struck off when they are yielded.

MOST_NOTED = 1000

Noted: TypeAlias = dict[int, tuple[Any, str, str, int]]
"""The action, the name, the file and the line of steps, by the id of the action."""

CREATED: ContextVar[Noted | None] = ContextVar("created", default=None)
"""The steps that the workflow has created and not yielded; None outside a run."""


def note_created(action: Any, name: str, depth: int = 2) -> None:
    """Note a step that is created now.

    Args:
        action: its action.
        name: its name.
        depth: how many frames up the code stands that creates it.
    """
    noted = CREATED.get()
    if noted is not None and len(noted) < MOST_NOTED:
        frame = sys._getframe(depth)
        noted[id(action)] = (action, name, frame.f_code.co_filename, frame.f_lineno)


def unyielded(noted: Noted, *, ending: Exception | None) -> list[str]:
    """Return a text for each line whose steps were never yielded.

    Args:
        noted: the steps.
        ending: the exception that ended the workflow, None if it returned. A workflow that raised may have created steps for
            later, so only those count to which it kept no reference; and not those in the expression that raised.
    """
    raising = set() if ending is None else set(_lines_that_raised(ending))
    lost = Counter(
        (name, file, line)
        for action, name, file, line in noted.values()
        if (ending is None or sys.getrefcount(action) <= 3)  # the note, the variable, the argument
        and (file, line) not in raising
    )
    return [
        f"continue_as() was called at {file}:{line} and not returned, so no generation follows: write 'return continue_as(…)'"
        if not name
        else f"step {name!r} was created at {file}:{line}{f' {count} times' if count > 1 else ''} and never yielded, so it did "
        "not run: write 'yield step(…)'"
        for (name, file, line), count in lost.items()
    ]


def _lines_that_raised(error: BaseException) -> Iterator[tuple[str, int]]:
    """Return the lines of the expressions that an exception went through."""
    at = error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        first, last, _, _ = next(islice(code.co_positions(), at.tb_lasti // 2, None), (None, None, None, None))
        for line in range(first or at.tb_lineno, (last or at.tb_lineno) + 1):
            yield code.co_filename, line
        at = at.tb_next


def caller() -> str:
    """Return `file:line` of the nearest frame outside this package's language."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_globals.get("__name__", "").startswith("flowckpt.core.dsl")
        or frame.f_code.co_filename.startswith("<attrs")
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def check_name(name: object, what: str) -> None:
    """Refuse what cannot name a step, or what else the error calls it.

    Raises:
        StepDefinitionError: it is not text, blank, not valid Unicode, or longer than 500 characters.
    """
    if not isinstance(name, str):
        raise StepDefinitionError(f"a {what} must be text, got {name!r} ({type(name).__name__})", where=caller())
    if not name.strip():
        raise StepDefinitionError(f"a {what} must not be blank, got {name!r}", step=name, where=caller())
    try:
        name.encode()
    except UnicodeEncodeError:
        raise StepDefinitionError(f"a {what} must be valid Unicode, got {name!r:.80}", where=caller()) from None
    if len(name) > MAX_NAME_LENGTH:
        raise StepDefinitionError(
            f"a {what} may have {MAX_NAME_LENGTH} characters, got {len(name)}: {name[:40]!r}…",
            step=name[:MAX_NAME_LENGTH],
            where=caller(),
            remedy="Name the work, and pass the data as arguments.",
        )


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


@cached_per_function
def undo_parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the parameters of a function of `.rollback()` that get arguments of the step, by name.

    These are the parameters without a default after the first, which gets the output.
    """
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # a builtin that has none
        return ()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(each.name for each in parameters[1:] if each.default is each.empty and each.kind in by_name)


def unknown_to_undo(step: Any) -> str:
    """Return a parameter of a step's `.rollback()` that has the name of no argument of the step; empty if there is none."""
    named = undo_parameters(step.modifiers.rollback)
    if not named:
        return ""
    known = step.action.parameters
    return next((name for name in named if name not in known), "")


def of_output_and_arguments(step_name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of `.rollback()` unchanged, or refuse one that has no place for the output.

    Raises:
        StepDefinitionError: it cannot be called with the output and arguments by name.
    """
    named = undo_parameters(function)
    try:
        inspect.signature(function).bind(None, **dict.fromkeys(named))
    except ValueError:  # a builtin that has no signature
        return function
    except TypeError:
        raise StepDefinitionError(
            f"step {step_name!r}: .rollback() needs a function of the recorded output; this one is called as "
            f"{getattr(function, '__name__', type(function).__name__)}{inspect.signature(function)}",
            step=step_name,
            where=caller(),
            remedy="Its first parameter gets the output; more parameters get arguments of the step, by their names.",
        ) from None
    return function


def explicit_arguments(
    step_name: str, function: Callable[..., Any], given: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of `.python(fn, args=(…), kwargs={…})`, unless the function has parameters of these names.

    `*args` and `**kwargs` do not count: they cannot be given by these names.

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


# What a step is given for a function. A step and a workflow are known by what they have: their modules import this one.


def is_step(value: object) -> bool:
    """Return whether a value is a step, with or without an action."""
    return hasattr(type(value), "modifiers") and hasattr(value, "name")


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def argument_not_yielded(name: str, argument: Any) -> StepNotYieldedError:
    """Return the error of a step that gets another step as an argument.

    Args:
        name: the name of the step; empty if it is not known.
        argument: the other step.
    """
    got = f"step {name!r} gets the step {argument.name!r}" if name else f"a step gets the step {argument.name!r}"
    where = caller() if name else ""
    return StepNotYieldedError(f"{got} as an argument, not the output of that step", step=argument.name, where=where)


def described(value: object) -> str:
    """Return a wrong argument as an error shows it."""
    return repr(value) if is_step(value) else f"{value!r:.80} ({type(value).__name__})"


def check_function(step_name: str, function: object, action: str) -> None:
    """Refuse anything but a named function: its name is part of what the step is.

    Raises:
        StepDefinitionError: it is not callable, a lambda, or a workflow.
    """
    if hasattr(type(function), "secret_inputs"):
        raise StepDefinitionError(
            f"step {step_name!r}: .{action}() was given the workflow {getattr(function, 'name', '')!r}, which is not a function to call",
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
        what = f"{described(function)}, which cannot be called"
        remedy = f"Pass the function and its arguments apart: .{action}(fetch, source), not .{action}(fetch(source))."
        if is_step(function):
            remedy = "Pass the function itself; for steps in parallel, yield a parallel(…)."
    return StepDefinitionError(
        f"step {step_name!r}: .{action}() needs a named function, got {what}",
        step=step_name,
        where=caller(),
        remedy=remedy,
    )


MOST_PUBLISHED_NAME = 200


def check_published_name(name: Any) -> str:
    """Return the name of a value that is published.

    Raises:
        StepDefinitionError: it is not text, is blank, or is longer than 200 characters.
    """
    check_name(name, "published name")
    if len(name) > MOST_PUBLISHED_NAME:
        raise StepDefinitionError(
            f"a published name may have {MOST_PUBLISHED_NAME} characters, got {len(name)}: {name[:40]!r}…"
        )
    return str.__str__(name)
