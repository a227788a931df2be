"""Values whose type an annotation gives: attrs classes, dataclasses, enums, named tuples, pydantic models.

A function's return annotation decides how its recorded output is built again. Two stages each way, so that the two
jobs stay apart:

    value  --cattrs-->  plain values of the closed set  --tags-->  JSON tree

An annotation made of the closed set only (`list[int]`, `dict[str, Any]`) needs no first stage: tags keep the types
exactly, also where the value does not fit the annotation, and nothing is converted behind the user's back.

What cattrs builds is compared with what the function returned, once, when the step finishes (`difference`). A field
that would be lost, or an object that would come back as its base class, is refused there instead of found at a resume.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from typing import Any

import attrs
from cattrs import Converter
from cattrs.strategies import configure_union_passthrough

from flowckpt.codec import tags
from flowckpt.errors import DecodingError, EncodingError, type_name

_UNIONS = (typing.Union, types.UnionType)
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
    if origin in _UNIONS or origin in _CONTAINERS:
        return any(is_structured(argument) for argument in typing.get_args(annotation) if argument is not Ellipsis)
    if annotation in _CONTAINERS:
        return False
    if isinstance(annotation, type) and origin is None:
        return not tags.is_closed(annotation)
    supertype = getattr(annotation, "__supertype__", None)  # NewType
    return is_structured(supertype) if supertype is not None else origin is not None


def to_plain(value: Any, annotation: Any, place: str) -> Any:
    """Take a value apart into the closed set.

    Args:
        value: what the function returned.
        annotation: what it is annotated with.
        place: what to call the value in an error.

    Raises:
        EncodingError: cattrs cannot take it apart by this annotation.
    """
    try:
        return _converter().unstructure(value, unstructure_as=annotation)
    except Exception as error:
        raise EncodingError(
            f"{place} is a {type_name(type(value))} and cannot be taken apart as its annotation "
            f"{_show(annotation)} says: {_first_cause(error)}",
            place=place,
            type_name=type_name(type(value)),
            remedy="Return what the annotation says, or correct the annotation.",
        ) from error


def from_plain(plain: Any, annotation: Any, place: str) -> Any:
    """Build a value again from the closed set.

    Args:
        plain: what `to_plain` made.
        annotation: the type to build.
        place: what to call the value in an error.

    Raises:
        DecodingError: the recorded value does not fit the annotation.
    """
    try:
        return _converter().structure(plain, annotation)
    except Exception as error:
        raise DecodingError(
            f"the recorded {place} does not fit {_show(annotation)}: {_first_cause(error)}",
            place=place,
            remedy="If the type was changed, give its new fields defaults, or let the step run again.",
        ) from error


def register(
    cls: type,
    *,
    name: str | None = None,
    to_plain: Callable[[Any], Any] | None = None,
    from_plain: Callable[[Any], Any] | None = None,
) -> None:
    """Let values of a class be recorded anywhere, without an annotation.

    Args:
        cls: the class; an attrs class, dataclass or enum needs nothing more.
        name: what records call it; its qualified name where not given. Keep it when the class moves.
        to_plain: takes a value apart into the closed set of types.
        from_plain: builds it again.

    Raises:
        EncodingError: the name is taken by another class, or a class of another kind comes without both functions.
    """
    if (to_plain is None) != (from_plain is None) or (to_plain is None and not _is_known_kind(cls)):
        raise EncodingError(
            f"register({cls.__qualname__}) needs both to_plain= and from_plain=",
            type_name=type_name(cls),
            remedy="Only attrs classes, dataclasses, named tuples, pydantic models and enums are taken apart by "
            "themselves.",
        )
    converter = _converter()
    apart = to_plain or functools.partial(converter.unstructure, unstructure_as=cls)
    build = from_plain or functools.partial(_structure_as, cls)
    tags.add_registered(cls, name or type_name(cls), apart, build)
    if to_plain is not None and from_plain is not None:  # also where an annotation names the class
        converter.register_unstructure_hook(cls, to_plain)
        converter.register_structure_hook(cls, lambda plain, _: from_plain(plain))


def _structure_as(cls: type, plain: Any) -> Any:
    return _converter().structure(plain, cls)


def _is_known_kind(cls: type) -> bool:
    return (
        attrs.has(cls)
        or dataclasses.is_dataclass(cls)
        or _is_named_tuple(cls)
        or issubclass(cls, enum.Enum)
        or (_is_pydantic(cls))
    )


def _is_named_tuple(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def _is_pydantic(cls: Any) -> bool:
    pydantic = sys.modules.get("pydantic")  # a model can only exist where its library is loaded
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


# --- the converter ---------------------------------------------------------------------------------------------------

_LEAVES = (int, float, str, bytes, bool, complex, date, time, datetime, timedelta, tags.PathType)


@functools.cache
def _converter() -> Converter:
    """Make the one converter: cattrs, with every conversion between leaf types taken out of it."""
    converter = Converter(forbid_extra_keys=True, prefer_attrib_converters=False, detailed_validation=False)
    for leaf in _LEAVES:  # by class: cattrs looks these up before any predicate
        converter.register_unstructure_hook(leaf, lambda value: value)
        converter.register_structure_hook(leaf, _same_leaf)
    converter.register_unstructure_hook_func(_is_leaf, lambda value: value)
    converter.register_structure_hook_func(_is_leaf, _same_leaf)
    converter.register_unstructure_hook_func(lambda t: t is Any or t is object, lambda value: value)
    converter.register_structure_hook_func(lambda t: t is Any or t is object, lambda plain, _: plain)
    converter.register_unstructure_hook_factory(_is_named_tuple, _named_tuple_apart)
    converter.register_structure_hook_factory(_is_named_tuple, _named_tuple_built)
    converter.register_unstructure_hook_func(_is_pydantic, lambda model: model.model_dump(mode="python"))
    converter.register_structure_hook_func(_is_pydantic, lambda plain, cls: cls.model_validate(plain))
    configure_union_passthrough(int | float | str | bytes | bool | None, converter)
    return converter


def _is_leaf(cls: Any) -> bool:
    return (
        cls in _LEAVES
        or (isinstance(cls, type) and cls.__module__ in {"decimal", "fractions", "uuid"})
        or (isinstance(cls, type) and cls.__module__.startswith("pathlib"))
    )


def _same_leaf(plain: Any, cls: Any) -> Any:
    """Take a leaf as it is. `int("3")` or `bool(1)` would change what was recorded."""
    fits = isinstance(plain, cls) or (cls is float and isinstance(plain, int))
    if not fits:
        raise ValueError(f"{plain!r:.80} is a {type_name(type(plain))}, not a {type_name(cls)}")
    return plain


def _named_tuple_apart(cls: Any) -> Callable[[Any], Any]:
    hints = typing.get_type_hints(cls)
    return lambda value: {
        name: _converter().unstructure(item, unstructure_as=hints.get(name, Any))
        for name, item in zip(cls._fields, value, strict=True)
    }


def _named_tuple_built(cls: Any) -> Callable[[Any, Any], Any]:
    hints = typing.get_type_hints(cls)
    return lambda plain, _: cls(
        **{name: _converter().structure(item, hints.get(name, Any)) for name, item in plain.items()}
    )


# --- what came back is what went in ----------------------------------------------------------------------------------


def difference(before: Any, after: Any, place: str) -> str:
    """Say where a value that was taken apart and built again is no longer the same; empty where it is.

    Args:
        before: the value as the function returned it.
        after: the value as it would come back.
        place: what to call it.
    """
    if type(before) is not type(after):
        return f"{place} is a {type_name(type(before))} and would come back as a {type_name(type(after))}"
    for name, old, new in _parts(before, after):
        if found := difference(old, new, place + name):
            return found
    if _is_leaf_value(before) and before != after and before == before:  # noqa: PLR0124 - NaN differs from itself
        return f"{place} would come back as {after!r:.60} instead of {before!r:.60}"
    if isinstance(before, collections.abc.Sized) and len(before) != len(after):
        return f"{place} would come back with {len(after)} items instead of {len(before)}"
    return ""


def _is_leaf_value(value: Any) -> bool:
    return isinstance(value, enum.Enum) or _is_leaf(type(value))


def _parts(before: Any, after: Any) -> Iterable[tuple[str, Any, Any]]:
    cls = type(before)
    if attrs.has(cls):
        names = [a.name for a in attrs.fields(cls) if a.init]
    elif dataclasses.is_dataclass(cls):
        names = [f.name for f in dataclasses.fields(cls) if f.init]
    elif _is_pydantic(cls):
        names = list(type(before).model_fields)
    elif isinstance(before, Mapping):
        return [(f"[{key!r:.40}]", before[key], after.get(key)) for key in before]
    elif isinstance(before, list | tuple):
        return [(f"[{i}]", old, new) for i, (old, new) in enumerate(zip(before, after, strict=False))]
    elif isinstance(before, set | frozenset) and before != after:
        return [("{…}", sorted(map(repr, before)), sorted(map(repr, after)))]
    else:
        return []
    return [(f".{name}", getattr(before, name), getattr(after, name)) for name in names]


def _show(annotation: Any) -> str:
    return type_name(annotation) if isinstance(annotation, type) else str(annotation)


def _first_cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type_name(type(error))
