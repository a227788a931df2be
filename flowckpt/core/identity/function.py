"""All that the engine asks of a step's function at each call of it, looked up once.

Four questions to four caches take 1 µs a step, which is a twentieth of all that flowckpt does for one.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import attrs

from flowckpt.core.codec.types import is_structured, return_annotation
from flowckpt.core.dsl.actions import Action, PythonAction, function_name
from flowckpt.core.identity.arguments import positional_parameters
from flowckpt.core.identity.fingerprint import step_fingerprint
from flowckpt.core.system.functions import cached_per_function


@attrs.frozen(eq=False, repr=False)
class KnownFunction:
    """What is known of a plain function.

    Attributes:
        name: `module:qualname`.
        fingerprint: what identifies its code; empty where that cannot be known.
        parameters: the names of its positional parameters.
        is_plain: whether its output is built of the closed set alone, as far as its annotation says.
    """

    name: str
    fingerprint: str
    parameters: tuple[str, ...]
    is_plain: bool


@cached_per_function
def known_function(function: Callable[..., Any]) -> KnownFunction:
    """Return what is known of a function.

    Args:
        function: a plain one: no method, no partial, no object that can be called.
    """
    return KnownFunction(
        function_name(function),
        step_fingerprint(function),
        positional_parameters(function),
        not is_structured(return_annotation(function)),
    )


def known_of(action: Action) -> KnownFunction | None:
    """Return what is known of the function of an action; None where it has no plain one.

    Args:
        action: the action.
    """
    if type(action) is PythonAction and type(action.function) is FunctionType:
        return known_function(action.function)
    return None
