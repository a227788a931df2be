"""What a function says that it returns: the type by which its recorded output is built again."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine
from types import FunctionType, MethodType
from typing import Any

from flowckpt.per_function import per_function

_AS_IT_STANDS = object()


def return_annotation(function: Callable[..., Any]) -> Any:
    """Return the resolved return annotation of a function; `Any` where it has none, or none that can be resolved.

    An annotation that cannot be resolved (a name imported only for type checkers) is as good as none: the closed set
    of types needs none, and a value outside it is refused when the step finishes, with the remedy.

    Args:
        function: a function, method, class, partial or callable object.
    """
    if type(function) is not FunctionType:
        while isinstance(function, functools.partial | MethodType):
            function = function.func if isinstance(function, functools.partial) else function.__func__
        if inspect.isclass(function):
            return function
        if not hasattr(function, "__annotations__") and hasattr(type(function), "__call__"):
            function = type(function).__call__
    plain = inspect.unwrap(function) if hasattr(function, "__wrapped__") else function
    found = _looked_up(plain)
    return _awaited(plain.__annotations__["return"]) if found is _AS_IT_STANDS else found


@per_function
def _looked_up(function: Callable[..., Any]) -> Any:
    """Return what had to be looked up by name.

    What stands there as it is must not be kept: it may be a class that is defined beside a nested function, and that
    refers to the function and so keeps it alive. Names are looked up in the module alone.
    """
    try:
        annotation = getattr(function, "__annotations__", {}).get("return", Any)
    except Exception:  # evaluated only now (Python 3.14), and naming what exists only for type checkers
        return Any
    if annotation is Any:
        return Any
    if isinstance(annotation, str) or not _is_resolved(annotation):
        return _awaited(_resolved(function))
    return _AS_IT_STANDS


def _awaited(annotation: Any) -> Any:
    """Return what a plain function returns in the end: where that is awaitable, it is awaited."""
    if type(annotation) is not type and typing.get_origin(annotation) in (Awaitable, Coroutine):
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
