"""What a function says that it returns: the type by which its recorded output is built again."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any


def return_annotation(function: Callable[..., Any]) -> Any:
    """Return the resolved return annotation of a function; `Any` where it has none, or none that can be resolved.

    An annotation that cannot be resolved (a name imported only for type checkers) is as good as none: the closed set
    of types needs none, and a value outside it is refused when the step finishes, with the remedy.

    Args:
        function: a function, method, class, partial or callable object.
    """
    try:
        return _cached(function)
    except TypeError:  # an unhashable callable object
        return _cached.__wrapped__(function)


@functools.lru_cache(maxsize=1024)
def _cached(function: Callable[..., Any]) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isclass(function):
        return function
    if not hasattr(function, "__annotations__") and hasattr(type(function), "__call__"):
        function = type(function).__call__
    plain = inspect.unwrap(function)
    try:
        annotation = getattr(plain, "__annotations__", {}).get("return", Any)
    except Exception:  # evaluated only now (Python 3.14), and naming what exists only for type checkers
        return Any
    if isinstance(annotation, str) or not _is_resolved(annotation):
        annotation = _resolved(plain)
    if typing.get_origin(annotation) in (Awaitable, Coroutine):  # a plain function that returns one is awaited
        return typing.get_args(annotation)[-1]
    return annotation


def _is_resolved(annotation: Any) -> bool:
    return not any(isinstance(part, str | typing.ForwardRef) for part in typing.get_args(annotation))


def _resolved(function: Callable[..., Any]) -> Any:
    """Resolve the return annotation alone: the other ones may name what exists only for type checkers."""
    only = type("_Only", (), {"__annotations__": {"return": function.__annotations__["return"]}})
    try:
        return typing.get_type_hints(
            only, globalns=getattr(function, "__globals__", {}), localns=None, include_extras=True
        )["return"]
    except Exception:
        return Any
