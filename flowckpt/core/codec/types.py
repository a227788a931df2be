"""Values whose type comes from an annotation: attrs classes, dataclasses, enums, named tuples, pydantic models.

A function's return annotation decides how its recorded output is restored. Each direction has two separate stages:

    value  --cattrs-->  plain values of the closed set  --tags-->  JSON tree

An annotation of the closed set only (`list[int]`, `dict[str, Any]`) needs no first stage: tags keep the types exactly,
even if the value does not fit the annotation, and nothing is converted silently.

When the step finishes, the value built by cattrs is compared once with the returned value (`difference`). A field that
would be lost, or an object that would be restored as its base class, is refused then, instead of being noticed at a
resume.
"""

from __future__ import annotations

import collections
import collections.abc
import enum
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.codec import tags
from flowckpt.core.codec.annotations import is_known_kind, is_leaf, is_scalar, strip_annotated
from flowckpt.core.system import external
from flowckpt.core.system.declared import short_repr, type_name
from flowckpt.core.system.external import is_pydantic
from flowckpt.core.system.lazy import LazyModule
from flowckpt.errors import DecodingError, EncodingError

if TYPE_CHECKING:
    from flowckpt.core.codec import converter as converters
else:
    converters = LazyModule("flowckpt.core.codec.converter")


def to_plain(value: Any, annotation: Any, place: str) -> Any:
    """Convert a value to the closed set.

    Raises:
        EncodingError: cattrs cannot convert it with this annotation.
    """
    try:
        return _unstructure(value, _cattrs_key(annotation))
    except Exception as error:
        message = (
            f"and cannot be taken apart as its annotation {_annotation_text(annotation)} says: {_first_cause(error)}"
        )
        remedy = "Return what the annotation says, or correct the annotation."
        if isinstance(error, RecursionError):
            message = "that is nested too deep, or contains itself"
            remedy = "Return a flatter value, or write it to a file and return the path."
        name = type_name(type(value))
        raise EncodingError(f"{place} is a {name} {message}", place=place, type_name=name, remedy=remedy) from error


def _unstructure(value: Any, annotation: Any) -> Any:
    if "numpy" in sys.modules:
        converters.keep_texts_of_numpy()
    return converters.converter().unstructure(value, unstructure_as=annotation)


def from_plain(plain: Any, annotation: Any, place: str) -> Any:
    """Restore a value from the closed set.

    Raises:
        DecodingError: the recorded value does not fit the annotation.
    """
    try:
        return converters.converter().structure(plain, _cattrs_key(annotation))
    except Exception as error:
        raise DecodingError(
            f"the recorded {place} does not fit {_annotation_text(annotation)}: {_first_cause(error)}{_place_of(error, plain, annotation, place)}",
            place=place,
            remedy="If the type was changed, give its new fields defaults.",
        ) from error


def register_type(
    cls: type,
    *,
    name: str | None = None,
    to_plain: Callable[[Any], Any] | None = None,
    from_plain: Callable[[Any], Any] | None = None,
) -> None:
    """Allow values of a class to be recorded anywhere, without an annotation.

    A data class at the top of a module that the workflow's module imports needs no registration.

    Args:
        cls: the class. An attrs class, dataclass, named tuple, enum or pydantic model needs no functions.
        name: its name in records; the qualified name by default. Keep it when the class moves.
        to_plain: converts a value to plain values. Give both functions or neither.
        from_plain: restores it.

    Raises:
        EncodingError: the name is taken by another class, the class needs no registration, or a class of another kind
            comes without both functions.
    """
    if tags.is_closed(cls) and not tags.is_registered(cls):
        raise EncodingError(f"register_type({cls.__qualname__}): it is recorded as it is", type_name=type_name(cls))
    if (to_plain is None) != (from_plain is None) or (to_plain is None and not is_known_kind(cls)):
        raise EncodingError(
            f"register_type({cls.__qualname__}) needs both to_plain= and from_plain=",
            type_name=type_name(cls),
            remedy="Only attrs classes, dataclasses, named tuples, pydantic models and enums are taken apart by "
            "themselves.",
        )
    made = converters.converter()
    apart = to_plain or functools.partial(_unstructure, annotation=cls)
    build = from_plain or functools.partial(_structure_as, cls)
    tags.add_registered(cls, name or type_name(cls), apart, build)
    if to_plain is not None and from_plain is not None:  # also for annotations with this class
        made.register_unstructure_hook(cls, to_plain)
        made.register_structure_hook(cls, lambda plain, _: from_plain(plain))


def _structure_as(cls: type, plain: Any) -> Any:
    return converters.converter().structure(plain, cls)


def _cattrs_key(annotation: Any) -> Any:
    """Return an annotation that can be a key of cattrs."""
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    try:
        hash(annotation)
    except TypeError:
        return strip_annotated(annotation)
    return annotation


def _annotation_text(annotation: Any) -> str:
    return type_name(annotation) if isinstance(annotation, type) else str(annotation)


def _place_of(error: Exception, plain: Any, annotation: Any, place: str) -> str:
    """Return where the value does not fit; empty if the error cannot be reproduced with its place."""
    try:
        converters.converter(keeps_places=True).structure(plain, _cattrs_key(annotation))
    except Exception as placed:
        steps = "".join(converters.path_to_cause(placed))
        if steps and _first_cause(placed) == _first_cause(error):
            return f", at {place}{steps}"
    return ""


def _first_cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type_name(type(error))


# --- comparison of the value before and after ------------------------------------------------------------------------

_UNSET = object()


def difference(before: Any, after: Any, place: str) -> str:
    """Return where a value differs after its conversion there and back; empty if it is the same."""
    if after is _UNSET:
        return f"{place} would be lost"
    if before is _UNSET:
        return f"{place} would exist after a restore, but does not exist now"
    if is_scalar(before):
        before = before.item()  # scalars that the annotation does not convert were refused earlier
    if type(before) is not type(after):
        return f"{place} is a {type_name(type(before))} and would come back as a {type_name(type(after))}"
    if _is_leaf_value(before):
        if not _is_same_leaf(before, after):
            return f"{place} would come back as {short_repr(after)} instead of {short_repr(before)}"
        return ""
    if isinstance(before, collections.abc.Sized) and isinstance(before, collections.abc.Iterable):
        try:
            counts = len(before), len(after)
        except TypeError:
            counts = 0, 0
        if counts[0] != counts[1]:
            return f"{place} would come back with {counts[1]} items instead of {counts[0]}"
    for name, old, new in _parts(before, after):
        if found := difference(old, new, place + name):
            return found
    return ""


def _is_leaf_value(value: Any) -> bool:
    return isinstance(value, enum.Enum) or is_leaf(type(value))


def _is_same_leaf(before: Any, after: Any) -> bool:
    try:
        return bool(before == after or before != before)  # noqa: PLR0124 - NaN differs from itself
    except ArithmeticError:  # a signalling NaN compares with nothing
        return repr(before) == repr(after)


def _parts(before: Any, after: Any) -> Iterable[tuple[str, Any, Any]]:
    cls = type(before)
    if attrs.has(cls):
        names = [a.name for a in attrs.fields(cls)]
    elif external.dataclasses.is_dataclass(cls):
        names = [f.name for f in external.dataclasses.fields(cls)]
    elif is_pydantic(cls):
        names = list(cls.model_fields)
    elif isinstance(before, Mapping):
        return _parts_of_mapping(before, after)
    elif isinstance(before, list | tuple | collections.deque):
        parts = [(f"[{i}]", old, new) for i, (old, new) in enumerate(zip(before, after, strict=True))]
        if isinstance(before, collections.deque):
            parts.append((".maxlen", before.maxlen, after.maxlen))
        return parts
    elif isinstance(before, set | frozenset):
        return [("{…}", old, new) for old, new in zip(_types_in(before), _types_in(after), strict=True)] + (
            [] if before == after else [("{…}", sorted(map(_text_of, before)), sorted(map(_text_of, after)))]
        )
    else:
        return []
    fields = [(f".{name}", getattr(before, name, _UNSET), getattr(after, name, _UNSET)) for name in names]
    return fields + _parts_beside_fields(before, after, {*names})


def _parts_beside_fields(before: Any, after: Any, fields: set[str]) -> list[tuple[str, Any, Any]]:
    """Pair the attributes of two objects that are not fields: a constructor may have set them again, or lost them."""
    held = [{**getattr(each, "__dict__", {})} for each in (before, after)]
    if is_pydantic(type(before)):
        for mine, each in zip(held, (before, after), strict=True):
            mine |= {**(each.__pydantic_extra__ or {}), **(each.__pydantic_private__ or {})}
    names = dict.fromkeys([*held[0], *held[1]])
    return [
        (f".{name}", held[0].get(name, _UNSET), held[1].get(name, _UNSET))
        for name in names
        if name not in fields and not _is_derived(type(before), name)
    ]


def _is_derived(cls: type, name: str) -> bool:
    """Return whether an attribute is only a cache: a cached property, a hash of attrs."""
    if name == "_attrs_cached_hash" or (name.startswith("__") and name.endswith("__")):
        return True
    made_by = inspect.getattr_static(cls, name, None)
    return hasattr(type(made_by), "__get__") and not inspect.isfunction(made_by)


def _parts_of_mapping(before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    """Pair keys and values in their order, which JSON keeps."""
    parts: list[tuple[str, Any, Any]] = []
    for (key, old), (other, new) in zip(before.items(), after.items(), strict=True):
        name = short_repr(key)
        parts += [(f" key {name}", key, other), (f"[{name}]", old, new)]
    if isinstance(before, collections.defaultdict):
        made_by = [typing.get_origin(each.default_factory) or each.default_factory for each in (before, after)]
        parts.append((".default_factory", repr(made_by[0]), repr(made_by[1])))
    return parts


def _text_of(value: Any) -> str:
    """Return a text that identifies a value independent of the order of its sets, and is the same for two NaNs."""
    if isinstance(value, set | frozenset):
        return f"{type_name(type(value))}({', '.join(sorted(map(_text_of, value)))})"
    if _is_leaf_value(value):
        return repr(value)
    texts = [f"{name}={_text_of(part)}" for name, part, _ in _parts(value, value)]
    return f"{type_name(type(value))}({', '.join(texts)})" if texts else repr(value)


def _types_in(items: Iterable[Any]) -> list[str]:
    return sorted(type_name(type(item.item() if is_scalar(item) else item)) for item in items)
