"""Arguments that are given as a sequence and a mapping, for functions whose own parameters would clash."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowckpt.dsl.caller import caller
from flowckpt.errors import StepDefinitionError


def explicit_arguments(
    step_name: str, function: Callable[..., Any], given: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Tell `.python(fn, args=(…), kwargs={…})` from a function that itself has parameters of these names.

    `*args` and `**kwargs` are no parameters that could be given by these names.

    Args:
        step_name: the step, for errors.
        function: the step's function.
        given: the keywords: `args`, `kwargs`, or both.

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
