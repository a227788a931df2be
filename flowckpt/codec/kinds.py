"""What an annotation says about values: nothing beyond the closed set, or a class that has to be taken apart."""

from __future__ import annotations

import collections.abc
import enum
import functools
import sys
import types
import typing
from datetime import date, datetime, time, timedelta
from pathlib import Path, PurePath
from typing import Any

import attrs

from flowckpt.errors import StepFailedError

UNIONS = (typing.Union, types.UnionType)
LEAVES = (int, float, str, bytes, bool, complex, date, time, datetime, timedelta, type(Path()))
_CONTAINERS = {
    list,
    dict,
    tuple,
    set,
    frozenset,
    collections.abc.Sequence,
    collections.abc.MutableSequence,
    collections.abc.Mapping,
    collections.abc.MutableMapping,
    collections.abc.Iterable,
    collections.abc.Collection,
    collections.abc.Set,
    collections.abc.MutableSet,
}


def is_structured(annotation: Any) -> bool:
    """Tell whether values of this annotation need cattrs: whether it names a class outside the closed set."""
    try:
        return _is_structured(annotation)
    except TypeError:  # an annotation that cannot be hashed (Annotated with a list)
        return _is_structured.__wrapped__(annotation)


@functools.lru_cache(maxsize=1024)
def _is_structured(annotation: Any) -> bool:
    if annotation is Any or annotation is None or annotation is object or isinstance(annotation, typing.TypeVar):
        return False
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated or origin in (typing.Final, typing.ClassVar):
        return is_structured(typing.get_args(annotation)[0])
    if origin is typing.Literal:
        return any(isinstance(item, enum.Enum) for item in typing.get_args(annotation))
    if origin in UNIONS or origin in _CONTAINERS:
        return any(is_structured(argument) for argument in typing.get_args(annotation) if argument is not Ellipsis)
    if annotation in _CONTAINERS:
        return False
    supertype = getattr(annotation, "__supertype__", None)  # NewType
    if supertype is not None:
        return is_structured(supertype)
    cls = annotation if origin is None else origin
    return isinstance(cls, type) and _is_taken_apart(cls)


def _is_taken_apart(cls: type) -> bool:
    """Tell whether a class is one for cattrs, registered or not: what was recorded before it was registered is too.

    All others (protocols, abstract classes, classes that only `register` knows) say nothing about how a value is built:
    the value itself decides.
    """
    return is_known_kind(cls) or typing.is_typeddict(cls) or cls.__module__ == "collections"


def is_known_kind(cls: type) -> bool:
    """Tell whether values of a class are taken apart without anybody saying how."""
    return attrs.has(cls) or is_dataclass(cls) or is_named_tuple(cls) or issubclass(cls, enum.Enum) or is_pydantic(cls)


def is_dataclass(cls: Any) -> bool:
    """Tell whether a class is a dataclass, without their library, which most programs do not use."""
    return hasattr(cls, "__dataclass_fields__")


def is_named_tuple(cls: Any) -> bool:
    """Tell whether a class is a named tuple's."""
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def is_pydantic(cls: Any) -> bool:
    """Tell whether a class is a pydantic model; one can only exist where its library is loaded."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def is_leaf(cls: Any) -> bool:
    """Tell whether a class of the closed set has no parts."""
    return cls in LEAVES or (
        isinstance(cls, type)
        and (
            cls.__module__ in {"decimal", "_pydecimal", "fractions", "uuid"}
            or issubclass(cls, PurePath | StepFailedError)
        )
    )


def bare_type(annotation: Any) -> Any:
    """Return an annotation without what says nothing about the value: `Annotated`, `Final`, new types, aliases.

    Args:
        annotation: the annotation.
    """
    while True:
        if typing.get_origin(annotation) in (typing.Annotated, typing.Final, typing.Required, typing.NotRequired):
            annotation = typing.get_args(annotation)[0]
        elif (supertype := getattr(annotation, "__supertype__", None)) is not None:
            annotation = supertype
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return annotation
