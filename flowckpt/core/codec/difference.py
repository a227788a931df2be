"""Whether what came back is what went in: asked once, when a step with an annotated output finishes."""

from __future__ import annotations

import collections
import collections.abc
import enum
import inspect
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from flowckpt.core.codec.tags import shown
from flowckpt.core.codec.types import is_leaf, is_pydantic, is_scalar
from flowckpt.core.system import external
from flowckpt.core.system.declared import type_name

_UNSET = object()


def difference(before: Any, after: Any, place: str) -> str:
    """Say where a value that was taken apart and built again is no longer the same; empty where it is."""
    if after is _UNSET:
        return f"{place} would be lost"
    if before is _UNSET:
        return f"{place} would be there when it comes back, and is not now"
    if is_scalar(before):
        before = before.item()  # what the annotation does not make plain is refused before it is compared
    if type(before) is not type(after):
        return f"{place} is a {type_name(type(before))} and would come back as a {type_name(type(after))}"
    if _is_leaf_value(before):
        if not _is_same_leaf(before, after):
            return f"{place} would come back as {shown(after)} instead of {shown(before)}"
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
    """Pair the attributes of two objects that are not fields: a constructor may have made them again, or lost them."""
    held = [{**getattr(each, "__dict__", {})} for each in (before, after)]
    if is_pydantic(type(before)):
        for mine, each in zip(held, (before, after), strict=True):
            mine |= {**(each.__pydantic_extra__ or {}), **(each.__pydantic_private__ or {})}
    names = dict.fromkeys([*held[0], *held[1]])
    return [
        (f".{name}", held[0].get(name, _UNSET), held[1].get(name, _UNSET))
        for name in names
        if name not in fields and not _is_worked_out(type(before), name)
    ]


def _is_worked_out(cls: type, name: str) -> bool:
    """Return whether an attribute is only kept so as not to be worked out twice: a cached property, a hash of attrs."""
    if name == "_attrs_cached_hash" or (name.startswith("__") and name.endswith("__")):
        return True
    made_by = inspect.getattr_static(cls, name, None)
    return hasattr(type(made_by), "__get__") and not inspect.isfunction(made_by)


def _parts_of_mapping(before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    """Pair keys and values in their order, which JSON keeps."""
    parts: list[tuple[str, Any, Any]] = []
    for (key, old), (other, new) in zip(before.items(), after.items(), strict=True):
        name = shown(key)
        parts += [(f" key {name}", key, other), (f"[{name}]", old, new)]
    if isinstance(before, collections.defaultdict):
        made_by = before.default_factory, typing.get_origin(after.default_factory) or after.default_factory
        parts.append((".default_factory", repr(made_by[0]), repr(made_by[1])))
    return parts


def _text_of(value: Any) -> str:
    """Return a text that is the same for the same value, whatever the order of the sets in it: two NaNs never compare."""
    if isinstance(value, set | frozenset):
        return f"{type_name(type(value))}({', '.join(sorted(map(_text_of, value)))})"
    if _is_leaf_value(value):
        return repr(value)
    texts = [f"{name}={_text_of(part)}" for name, part, _ in _parts(value, value)]
    return f"{type_name(type(value))}({', '.join(texts)})" if texts else repr(value)


def _types_in(items: Iterable[Any]) -> list[str]:
    return sorted(type_name(type(item.item() if is_scalar(item) else item)) for item in items)
