"""The converter: cattrs without its conversions between types of the closed set.

If an annotation leaves the type open (any sequence, any set, a union), the value decides, whose own type the tags have
kept.
"""

from __future__ import annotations

import collections.abc
import contextlib
import enum
import functools
import sys
import typing
from collections.abc import Callable, Iterator
from typing import Any

from cattrs import Converter
from cattrs.errors import AttributeValidationNote, IterableValidationNote

from flowckpt.core.codec import tags
from flowckpt.core.codec.annotations import (
    LEAVES,
    UNIONS,
    convert_scalars,
    has_outer_type,
    is_leaf,
    is_named_tuple,
    is_scalar,
    is_structured,
    resolve_fields,
    strip_annotated,
)
from flowckpt.core.system.declared import type_name
from flowckpt.core.system.external import is_pydantic

_ANY_SEQUENCE = (collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_SETS: dict[Any, Callable[[Any], Any] | None] = {
    set: set,
    frozenset: frozenset,
    collections.abc.MutableSet: set,
    collections.abc.Set: None,  # as the value says
}

_OF_SCALARS = frozenset({float, int, bool, str})
"""The types that a scalar of numpy becomes where the annotation says so."""

Unstructure = Callable[[Any], Any]
Structure = Callable[[Any, Any], Any]


class _Converter(Converter):
    """Resolves all names in the annotations of fields before cattrs reads them."""

    def gen_unstructure_attrs_fromdict(self, cl: Any) -> Unstructure:
        resolve_fields(typing.get_origin(cl) or cl)
        return super().gen_unstructure_attrs_fromdict(cl)

    def gen_structure_attrs_fromdict(self, cl: Any) -> Structure:
        kind = typing.get_origin(cl) or cl
        resolve_fields(kind)
        build = super().gen_structure_attrs_fromdict(cl)
        # A signal has values with their types: its sender did not know the annotation.
        return lambda plain, into: plain if isinstance(plain, kind) else build(plain, into)


@functools.cache
def converter(*, keeps_places: bool = False) -> Converter:
    """Create the converter at its first use.

    Args:
        keeps_places: whether its errors contain the field and the index of the failure. That takes a third longer, so
            it is used only to repeat a failed conversion. This converter does not know the types that users register.
    """
    made = _Converter(forbid_extra_keys=True, prefer_attrib_converters=False, detailed_validation=keeps_places)
    for leaf in LEAVES:  # by class: cattrs looks these up before any predicate
        if leaf not in _OF_SCALARS:
            made.register_unstructure_hook(leaf, _unstructure_leaf)
        made.register_structure_hook(leaf, _structure_leaf)
    made.register_unstructure_hook_func(is_leaf, lambda value: value)
    made.register_unstructure_hook(str, _scalar_unstructurer(str))  # cattrs has a hook by class for it
    made.register_unstructure_hook_factory(
        _OF_SCALARS.__contains__, _scalar_unstructurer
    )  # where annotated: no subclass has it
    made.register_structure_hook_func(is_leaf, _structure_leaf)
    made.register_unstructure_hook_func(lambda t: t is Any or t is object, lambda value: value)
    made.register_structure_hook_func(lambda t: t is Any or t is object, lambda plain, _: plain)
    made.register_unstructure_hook_factory(is_named_tuple, _named_tuple_unstructurer)
    made.register_structure_hook_factory(is_named_tuple, _named_tuple_structurer)
    made.register_unstructure_hook_func(is_pydantic, lambda model: made.unstructure(_unstructure_pydantic(model)))
    made.register_structure_hook_func(is_pydantic, _structure_pydantic)
    made.register_unstructure_hook_factory(_is_any_sequence, _sequence_unstructurer)
    made.register_structure_hook_factory(_is_any_sequence, _sequence_structurer)
    made.register_unstructure_hook_factory(_is_set, _set_unstructurer)
    made.register_structure_hook_factory(_is_set, _set_structurer)
    made.register_unstructure_hook_func(lambda t: t is tuple, lambda value: tuple(map(made.unstructure, value)))
    made.register_unstructure_hook_factory(_is_real_union, _union_unstructurer)
    made.register_structure_hook_factory(_is_union, _union_structurer)
    return made


@functools.cache
def keep_texts_of_numpy() -> None:
    """Keep a `numpy.str_` as it is in a container that says nothing of its items, so that it is refused like all scalars.

    cattrs dispatches on the base class there, and would take it for a `str`. Call it once numpy is imported.
    """
    converter().register_unstructure_hook(sys.modules["numpy"].str_, lambda value: value)


def path_to_cause(error: BaseException) -> Iterator[str]:
    """Yield the fields and indexes on the way to the first cause of an error of a converter that keeps places."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
        for note in getattr(error, "__notes__", ()):
            if isinstance(note, AttributeValidationNote):
                yield f".{note.name}"
            elif isinstance(note, IterableValidationNote):
                yield f"[{note.index!r:.40}]"


def _unstructure_leaf(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value  # the members of an IntEnum are ints too


def _scalar_unstructurer(cls: Any) -> Unstructure:
    def apart(value: Any) -> Any:
        if type(value) is cls:
            return value
        return value.value if isinstance(value, enum.Enum) else convert_scalars(value, cls)

    return apart


def _structure_leaf(plain: Any, cls: Any) -> Any:
    """Return a leaf unchanged: `int("3")` or `bool(1)` would change the recorded value."""
    if type(plain) is cls:
        return plain
    if isinstance(cls, type) and issubclass(cls, enum.Enum):
        return cls(plain)
    if not has_outer_type(plain, cls):
        raise ValueError(f"{plain!r:.80} is a {type_name(type(plain))}, not a {type_name(cls)}")
    return plain


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in UNIONS


def _is_real_union(annotation: Any) -> bool:
    return _is_union(annotation) and len(set(typing.get_args(annotation)) - {type(None)}) > 1


def _union_unstructurer(union: Any, made: Converter) -> Unstructure:
    return lambda value: made.unstructure(convert_scalars(value, union) if is_scalar(value) else value)


def _union_structurer(union: Any, made: Converter) -> Structure:
    """Build the first member of the union that the recorded value fits, as was checked when it was recorded."""
    members = typing.get_args(union)
    structured = [(member, made.get_structure_hook(member)) for member in members if is_structured(member)]
    closed = [strip_annotated(member) for member in members if not is_structured(member)]

    def build(plain: Any, _: Any) -> Any:
        failure: Exception | None = None
        for member, hook in structured:
            try:
                return hook(plain, member)
            except Exception as error:  # it does not fit this one
                failure = error
        if any(has_outer_type(plain, member) for member in closed):
            return plain
        if failure is not None and len(structured) == 1 and isinstance(plain, dict):
            raise failure  # only this member is possible, and its error says more
        raise ValueError(f"{plain!r:.80} fits none of {union}")

    return build


# --- containers ------------------------------------------------------------------------------------------------------


def _is_any_sequence(annotation: Any) -> bool:
    return (typing.get_origin(annotation) or annotation) in _ANY_SEQUENCE


def _is_set(annotation: Any) -> bool:
    return (typing.get_origin(annotation) or annotation) in _SETS


def _item_unstructurer(annotation: Any, made: Converter) -> Unstructure:
    arguments = typing.get_args(annotation)
    return made.get_unstructure_hook(arguments[0]) if arguments else made.unstructure


def _item_structurer(annotation: Any, made: Converter) -> Unstructure:
    arguments = typing.get_args(annotation)
    if not arguments:
        return lambda plain: plain
    item, hook = arguments[0], made.get_structure_hook(arguments[0])
    return lambda plain: hook(plain, item)


def _sequence_unstructurer(annotation: Any, made: Converter) -> Unstructure:
    item, as_set = _item_unstructurer(annotation, made), _set_unstructurer(annotation, made)
    return lambda value: type(value)([item(each) for each in value]) if type(value) in (list, tuple) else as_set(value)


def _sequence_structurer(annotation: Any, made: Converter) -> Structure:
    item = _item_structurer(annotation, made)

    def build(plain: Any, _: Any) -> Any:
        if type(plain) not in (list, tuple, set, frozenset):
            raise ValueError(f"{plain!r:.80} is a {type_name(type(plain))}, not a sequence")
        return type(plain)([item(each) for each in plain])

    return build


def _set_unstructurer(annotation: Any, made: Converter) -> Unstructure:
    """Return a set if its items are hashable; else a list (for a set) or a tuple (for a frozenset), in any order."""
    item = _item_unstructurer(annotation, made)

    def apart(value: Any) -> Any:
        if type(value) not in (set, frozenset):
            return value
        items = [item(each) for each in value]
        try:
            return type(value)(items)
        except TypeError:
            items.sort(key=lambda plain: tags.dumps(tags.encode(plain)))
            return items if type(value) is set else tuple(items)

    return apart


def _set_structurer(annotation: Any, made: Converter) -> Structure:
    item = _item_structurer(annotation, made)
    asked = _SETS[typing.get_origin(annotation) or annotation]

    def build(plain: Any, _: Any) -> Any:
        if type(plain) not in (list, tuple, set, frozenset):
            raise ValueError(f"{plain!r:.80} is a {type_name(type(plain))}, not a set")
        cls = asked or (set if type(plain) in (list, set) else frozenset)
        return cls([item(each) for each in plain])

    return build


# --- classes ---------------------------------------------------------------------------------------------------------


_UNSET = "$unset"
"""Beside the fields of a recorded model: the paths of those that were not set, so that `exclude_unset` means the same."""


def _unstructure_pydantic(model: Any) -> Any:
    plain = convert_scalars(model.model_dump(mode="python", warnings=False), type(model))
    unset = [*_unset_fields(model, ())] if type(plain) is dict else []
    return {**plain, _UNSET: unset} if unset else plain


def _unset_fields(value: Any, path: tuple[Any, ...]) -> Iterator[list[Any]]:
    """Yield the path of each unset field in the models that a value contains."""
    if is_pydantic(type(value)):
        for name in type(value).model_fields:
            if name not in value.model_fields_set:
                yield [*path, name]
            yield from _unset_fields(value.__dict__.get(name), (*path, name))
    elif type(value) in (list, tuple, dict):
        for place, each in value.items() if type(value) is dict else enumerate(value):
            yield from _unset_fields(each, (*path, place))


def _structure_pydantic(plain: Any, cls: Any) -> Any:
    unset: Any = ()
    if type(plain) is dict and _UNSET in plain:
        plain = {**plain}
        unset = plain.pop(_UNSET)
    try:
        model = cls.model_validate(plain, by_alias=True, by_name=True)
    except (
        TypeError
    ):  # before pydantic 2.11: fields with an alias are only taken by it, unless the model says otherwise
        model = cls.model_validate(plain)
    for *path, name in unset:
        holder = model
        with contextlib.suppress(LookupError, TypeError):  # a validator has made something else of it
            for place in path:
                holder = holder.__dict__[place] if is_pydantic(type(holder)) else holder[place]
            if is_pydantic(type(holder)):
                holder.__pydantic_fields_set__.discard(name)
    return model


def _named_tuple_unstructurer(cls: Any, made: Converter) -> Unstructure:
    hints = typing.get_type_hints(cls)
    return lambda value: {
        name: made.unstructure(item, unstructure_as=hints.get(name, Any))
        for name, item in zip(cls._fields, value, strict=True)
    }


def _named_tuple_structurer(cls: Any, made: Converter) -> Structure:
    hints = typing.get_type_hints(cls)

    def structure(plain: Any, _: Any) -> Any:
        if isinstance(plain, cls):
            return plain
        return cls(**{name: made.structure(item, hints.get(name, Any)) for name, item in plain.items()})

    return structure
