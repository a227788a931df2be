"""The functions that the program lends to claims.

A record holds a name. A name of a record is looked up here and nowhere else: it is never imported, so whoever writes
the record cannot choose what runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from flowckpt.evidence.function_name import function_name

F = TypeVar("F", bound=Callable[..., Any])

_FUNCTIONS: dict[str, Callable[..., Any]] = {}


def register_predicate(function: F) -> F:
    """Lend a function to claims; use it as a decorator where claims are checked without running the workflow.

    Args:
        function: returns True or False; may be asynchronous.
    """
    _FUNCTIONS[function_name(function)] = function
    return function


def registered_predicate(name: str) -> Callable[..., Any] | None:
    """Return the function of a name, or None.

    Args:
        name: `module:qualname`.
    """
    return _FUNCTIONS.get(name)
