"""Type annotations: which belong to the closed set, which classes are split into fields, what a function returns."""

from __future__ import annotations

import abc
import collections
import collections.abc
import contextlib
import enum
import functools
import inspect
import operator
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine
from datetime import date, datetime, time, timedelta
from pathlib import Path, PurePath
from types import FunctionType, MethodType
from typing import Any

import attrs

from flowckpt.core.codec import tags
from flowckpt.core.system import external
from flowckpt.core.system.external import is_pydantic
from flowckpt.core.system.functions import cached_per_function
from flowckpt.errors import StepFailedError

# --- annotations: of the closed set, or of a class that has to be taken apart ------------------------------------------


UNIONS = (typing.Union, types.UnionType)
LEAVES = (int, float, str, bytes, bool, complex, date, time, datetime, timedelta, type(Path()))
SEQUENCES = (list, tuple, set, frozenset)
LISTS = {
    *SEQUENCES,
    collections.abc.Sequence,
    collections.abc.MutableSequence,
    collections.abc.Iterable,
    collections.abc.Collection,
    collections.abc.Set,
    collections.abc.MutableSet,
}
MAPPINGS = {dict, collections.abc.Mapping, collections.abc.MutableMapping}
_CONTAINERS = LISTS | MAPPINGS


def is_anything(annotation: Any) -> bool:
    """Return whether an annotation allows any value: `Any`, `object` or a type variable."""
    return annotation is Any or annotation is object or isinstance(annotation, typing.TypeVar)


def is_structured(annotation: Any) -> bool:
    """Return whether values of this annotation need cattrs: whether it names a class outside the closed set."""
    try:
        return _is_structured(annotation)
    except TypeError:
        return _is_structured(strip_annotated(annotation))


def strip_annotated(annotation: Any) -> Any:
    """Return an annotation without the facts of `Annotated`, wherever it says them: they may be a list or a dict."""
    if typing.get_origin(annotation) is typing.Annotated:
        return strip_annotated(typing.get_args(annotation)[0])
    arguments = typing.get_args(annotation)
    if not arguments or typing.get_origin(annotation) is typing.Literal:
        return annotation
    bare = tuple(map(strip_annotated, arguments))
    if isinstance(annotation, types.UnionType):
        return functools.reduce(operator.or_, bare)
    if isinstance(annotation, types.GenericAlias):
        generic: Any = annotation.__origin__
        return generic[bare]
    return annotation.copy_with(bare)


@functools.lru_cache(maxsize=1024)
def _is_structured(annotation: Any) -> bool:
    if annotation is None or is_anything(annotation):
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
    return isinstance(cls, type) and _needs_cattrs(cls)


def _needs_cattrs(cls: type) -> bool:
    """Return whether a class is one for cattrs, registered or not: what was recorded before it was registered is too.

    All others (protocols, abstract classes, classes that only `register_type` knows) say nothing about how a value is built:
    the value itself decides.
    """
    return is_known_kind(cls) or typing.is_typeddict(cls) or cls.__module__ == "collections"


def is_known_kind(cls: type) -> bool:
    """Return whether values of a class can be split into fields without registered functions."""
    return attrs.has(cls) or is_dataclass(cls) or is_named_tuple(cls) or issubclass(cls, enum.Enum) or is_pydantic(cls)


def is_dataclass(cls: Any) -> bool:
    """Return whether a class is a dataclass, without importing `dataclasses`, which most programs do not use."""
    return hasattr(cls, "__dataclass_fields__")


def is_named_tuple(cls: Any) -> bool:
    """Return whether a class is a named tuple."""
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


_OF_STREAMS = frozenset({"io", "_io"})
_NEVER_STORED = (
    collections.abc.Callable,
    collections.abc.Iterator,
    collections.abc.AsyncIterator,
    collections.abc.Awaitable,
)


def find_unstorable(annotation: Any) -> type | None:
    """Return a class in an annotation whose values can never be stored; None if there is none."""
    annotation = bare_type(annotation)
    origin, arguments = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if origin in UNIONS:
        found = [find_unstorable(each) for each in arguments]
        return found[0] if all(found) else None
    if not isinstance(origin, type) or origin is Any:
        return None
    if origin in _CONTAINERS:
        return next((each for each in map(find_unstorable, arguments) if each), None)
    return None if _may_be_stored(origin) else origin


def _may_be_stored(cls: type) -> bool:
    if (
        any(each.__module__ in _OF_STREAMS for each in cls.__mro__)
        or cls in _NEVER_STORED
        or collections.abc.Iterator in cls.__mro__
    ):
        return False
    if tags.is_closed(cls) or is_leaf(cls) or _needs_cattrs(cls) or cls is object:
        return True
    if isinstance(cls, abc.ABCMeta):  # a protocol, too: an object of any class may be one
        return True
    return any(map(_may_be_stored, type.__subclasses__(cls)))


def is_leaf(cls: Any) -> bool:
    """Return whether a class of the closed set has no parts."""
    return cls in LEAVES or (
        isinstance(cls, type)
        and (
            cls.__module__ in {"decimal", "_pydecimal", "fractions", "uuid"}
            or issubclass(cls, PurePath | StepFailedError)
        )
    )


def bare_type(annotation: Any) -> Any:
    """Return an annotation without wrappers that do not affect the value: `Annotated`, `Final`, new types, aliases."""
    while True:
        if typing.get_origin(annotation) in (typing.Annotated, typing.Final, typing.Required, typing.NotRequired):
            annotation = typing.get_args(annotation)[0]
        elif (supertype := getattr(annotation, "__supertype__", None)) is not None:
            annotation = supertype
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return annotation


# --- return annotations ----------------------------------------------------------------------------------------------


_AS_IT_STANDS = object()


def return_annotation(function: Callable[..., Any]) -> Any:
    """Return the resolved return annotation of a function; `Any` if there is none, or it cannot be resolved.

    An unresolvable annotation (a name imported only for type checkers) counts as none: values of the closed set need
    none, and other values are refused when the step finishes, with the remedy.

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
    found = _look_up_annotation(plain)
    return _awaited_type(plain.__annotations__["return"]) if found is _AS_IT_STANDS else found


@cached_per_function
def _look_up_annotation(function: Callable[..., Any]) -> Any:
    """Return an annotation that had to be looked up by name, which may be cached.

    A class given directly must not be cached: it may be defined next to a nested function, refer to the function and so
    keep it alive. Names are looked up only in the module.
    """
    try:
        annotation = getattr(function, "__annotations__", {}).get("return", Any)
    except Exception:  # evaluated only now (Python 3.14), and naming what exists only for type checkers
        return Any
    if annotation is Any:
        return Any
    if isinstance(annotation, str) or not _is_resolved(annotation):
        return _awaited_type(_resolve_annotation(function))
    return _AS_IT_STANDS


def _awaited_type(annotation: Any) -> Any:
    """Return the type of the final value of a plain function, which is awaited if it is awaitable."""
    if type(annotation) is not type and typing.get_origin(annotation) in (Awaitable, Coroutine):
        return typing.get_args(annotation)[-1]
    return annotation


def _is_resolved(annotation: Any) -> bool:
    """Return whether an annotation contains no name as a string; a text of `Literal` or `Annotated` is not a name."""
    if typing.get_origin(annotation) is typing.Literal:
        return True
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        arguments = arguments[:1]
    return not any(isinstance(part, str | typing.ForwardRef) or not _is_resolved(part) for part in arguments)


def _resolve_annotation(function: Callable[..., Any]) -> Any:
    """Resolve only the return annotation: other annotations may use names that exist only for type checkers."""
    only = type("_Only", (), {"__annotations__": {"return": function.__annotations__["return"]}})
    try:
        return typing.get_type_hints(
            only, globalns=getattr(function, "__globals__", {}), localns=None, include_extras=True
        )["return"]
    except Exception:
        return Any


def resolve_fields(cls: Any) -> None:
    """Resolve the names in the annotations of the fields of an attrs class or dataclass, as far as cattrs does not.

    cattrs resolves an annotation that is a string, but not `list["Node"]`, nor a name of a class that a function defines.
    Here such a class knows its own name, and those of its bases.
    """
    fields: Any = attrs.fields(cls) if attrs.has(cls) else external.dataclasses.fields(cls)
    is_nested = "." in cls.__qualname__
    if all(_is_resolved(each.type) and not (is_nested and isinstance(each.type, str)) for each in fields):
        return
    with contextlib.suppress(Exception):  # a name that only type checkers know: cattrs says what it makes of it
        own = {each.__name__: each for each in reversed(cls.__mro__)}
        attrs.resolve_types(cls, localns=own if is_nested else None, attribs=fields)


# Scalars of numpy, where the annotation says the plain type.

_FROM_SCALARS: dict[Any, tuple[type, ...]] = {float: (float, int), int: (int,), bool: (bool,), str: (str,)}


def convert_scalars(value: Any, annotation: Any) -> Any:
    """Return a value with numpy scalars converted to plain ones wherever the annotation asks for that.

    Args:
        value: the value; what a pydantic model holds as a dict.
        annotation: `float`, `int`, `bool` or `str`, or a container, union or pydantic model of these; anything else says
            nothing.
    """
    annotation = bare_type(annotation)
    kinds = _FROM_SCALARS.get(annotation) if isinstance(annotation, type) else None
    if kinds is not None:
        plain = value.item() if is_scalar(value) else value
        return plain if type(plain) in kinds else value
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in UNIONS:
        found = (convert_scalars(value, each) for each in arguments)
        return next((each for each in found if each is not value), value)
    if is_pydantic(annotation) and type(value) is dict:
        hints = {name: field.annotation for name, field in annotation.model_fields.items()}
        return {name: convert_scalars(each, hints.get(name, Any)) for name, each in value.items()}
    if origin not in _CONTAINERS or not arguments:
        return value
    if type(value) is dict and len(arguments) == 2:
        return {convert_scalars(key, arguments[0]): convert_scalars(each, arguments[1]) for key, each in value.items()}
    if type(value) not in (list, tuple, set, frozenset):
        return value
    is_of_one = origin is not tuple or arguments[-1:] == (Ellipsis,)
    each_of = arguments[:1] * len(value) if is_of_one else arguments
    return type(value)(map(convert_scalars, value, each_of)) if len(each_of) == len(value) else value


def is_scalar(value: Any) -> bool:
    """Return whether a value is a scalar of numpy."""
    return type(value).__module__ == "numpy" and hasattr(value, "item")


# --- does a value have an annotated type? ----------------------------------------------------------------------------


_OF_ONE = (list, set, frozenset)
NUMBERS: dict[Any, tuple[type, ...]] = {float: (int, float), complex: (int, float, complex)}
"""The types that count as a number's type, as type checkers see it."""


def has_type(value: Any, annotation: Any) -> bool:
    """Return whether a value has the annotated type; True if that is unknown.

    Classes with fields (attrs classes, dataclasses …) are not checked here: `encode` compares them with their
    annotation.
    """
    annotation = bare_type(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in UNIONS:
        return any(has_type(value, each) for each in arguments)
    if origin is not typing.Literal and is_structured(annotation):
        return True
    return has_outer_type(value, annotation) and _have_item_types(value, origin, arguments)


def has_outer_type(value: Any, annotation: Any) -> bool:
    """Return whether a value has the annotated type, whatever the types of its items.

    Args:
        value: the value.
        annotation: the type: not a union, and without wrappers (see `bare_type`).
    """
    if annotation is None:
        return value is None
    if typing.get_origin(annotation) is typing.Literal:
        return any(type(value) is type(each) and value == each for each in typing.get_args(annotation))
    cls = typing.get_origin(annotation) or annotation
    if cls in NUMBERS:
        return isinstance(value, NUMBERS[cls])
    return not isinstance(cls, type) or _is_instance(value, cls)  # no class: Any, a type variable


def _have_item_types(value: Any, cls: Any, arguments: tuple[Any, ...]) -> bool:
    if not arguments:
        return True
    if cls in _OF_ONE:
        return all(has_type(item, arguments[0]) for item in value)
    if cls is dict:
        return all(has_type(key, arguments[0]) and has_type(item, arguments[1]) for key, item in value.items())
    if cls is tuple:
        if arguments[-1] is Ellipsis:
            return all(has_type(item, arguments[0]) for item in value)
        return len(value) == len(arguments) and all(map(has_type, value, arguments))
    return True


def _is_instance(value: object, cls: type) -> bool:
    try:
        return isinstance(value, cls)
    except TypeError:  # a protocol that is not runtime-checkable
        return True
