"""Whether a value is of the annotated type, as far as that can be told without a doubt."""

from __future__ import annotations

import typing
from typing import Any

from flowckpt.codec.kinds import UNIONS, bare_type, is_structured

_OF_ONE = (list, set, frozenset)
_NUMBERS: dict[Any, tuple[type, ...]] = {float: (int, float), complex: (int, float, complex)}
"""What fits a number's type beside itself, as type checkers see it."""


def fits(value: Any, annotation: Any) -> bool:
    """Tell whether a value is of the annotated type; True where that cannot be told.

    What has to be taken apart (attrs classes, dataclasses …) is not looked at: `encode` compares it with its annotation.

    Args:
        value: the value.
        annotation: the resolved annotation.
    """
    annotation = bare_type(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is None:
        return value is None
    if origin in UNIONS:
        return any(fits(value, each) for each in arguments)
    if origin is typing.Literal:
        return any(type(value) is type(each) and value == each for each in arguments)
    if is_structured(annotation):
        return True
    cls = origin or annotation
    if cls in _NUMBERS:
        return isinstance(value, _NUMBERS[cls])
    if not isinstance(cls, type):  # Any, a type variable
        return True
    if not _is_one(value, cls):
        return False
    if cls in _OF_ONE and arguments:
        return all(fits(item, arguments[0]) for item in value)
    if cls is dict and arguments:
        return all(fits(key, arguments[0]) and fits(item, arguments[1]) for key, item in value.items())
    if cls is tuple and arguments:
        if arguments[-1] is Ellipsis:
            return all(fits(item, arguments[0]) for item in value)
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    return True


def _is_one(value: object, cls: type) -> bool:
    try:
        return isinstance(value, cls)
    except TypeError:  # a protocol that is not for the run time
        return True
