"""Values from outside, such as the data of a signal: check them against an annotation, and convert them.

The check is strict: `"5"` is not an integer, `true` is not a number, and a text is not a list of letters. A list fits
every kind of sequence and set, because JSON has only lists.
"""

from __future__ import annotations

import collections.abc
import enum
import inspect
import typing
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from typing import Any

import attrs

from flowckpt.core.codec import tags
from flowckpt.core.codec.annotations import (
    LEAVES,
    LISTS,
    MAPPINGS,
    NUMBERS,
    SEQUENCES,
    UNIONS,
    bare_type,
    is_anything,
    is_dataclass,
    is_named_tuple,
    is_structured,
)
from flowckpt.core.codec.tags import Json
from flowckpt.core.codec.types import from_plain
from flowckpt.core.system.declared import short_repr, type_name
from flowckpt.core.system.external import is_pydantic
from flowckpt.errors import DecodingError


def fit_value(tree: Json, annotation: Any, *, place: str) -> Any:
    """Return the value of a JSON tree that came from outside.

    Raises:
        DecodingError: the tree is malformed, or a class of the program refuses the value.
        ValueError: the value does not fit; the text says what does not fit, and where.
    """
    plain = tags.decode(tree, place)
    if message := find_misfit(plain, annotation, place):
        raise ValueError(message)
    if is_structured(annotation):
        return from_plain(plain, annotation, place)
    try:
        return from_plain(plain, bare_type(annotation), place)  # a list for a tuple, as JSON has it
    except DecodingError:
        return plain  # a type that only `register_type` knows: it fits, as it is


def find_misfit(plain: Any, annotation: Any, place: str) -> str:
    """Return what in a plain value does not fit an annotation; empty if the value fits.

    Args:
        plain: a value of the closed set, or of a registered type.
        annotation: the required type.
        place: the name of the value in the text.
    """
    bare = bare_type(annotation)
    if is_anything(bare):
        return ""
    origin, arguments = typing.get_origin(bare) or bare, typing.get_args(bare)
    if origin in UNIONS:
        fits = any(not find_misfit(plain, member, place) for member in arguments)
        return "" if fits else _misfit_message(plain, bare, place)
    if origin is typing.Literal:
        fits = any(each == plain and type(each) is type(plain) for each in map(_literal_value, arguments))
        return "" if fits else _misfit_message(plain, bare, place)
    if bare is None or bare is type(None):
        return "" if plain is None else _misfit_message(plain, bare, place)
    if not isinstance(origin, type):
        return ""
    return _find_class_misfit(plain, origin, arguments, bare, place)


def _find_class_misfit(plain: Any, cls: type, arguments: tuple[Any, ...], bare: Any, place: str) -> str:
    if cls in LISTS:
        return _find_item_misfit(plain, cls, arguments, bare, place)
    if cls in MAPPINGS:
        if type(plain) is not dict:
            return _misfit_message(plain, bare, place)
        key, item = arguments or (Any, Any)
        return _first_text(
            find_misfit(name, key, f"{place} key {short_repr(name)}")
            or find_misfit(each, item, f"{place}[{short_repr(name)}]")
            for name, each in plain.items()
        )
    if cls in LEAVES:
        fits = isinstance(plain, NUMBERS.get(cls, (cls,))) and (cls is bool or type(plain) is not bool)
        return "" if fits else _misfit_message(plain, bare, place)
    if issubclass(cls, enum.Enum) or is_pydantic(cls) or (not typing.is_typeddict(cls) and isinstance(plain, cls)):
        return ""  # these validate their values themselves
    return _find_field_misfit(plain, cls, bare, place)


def _find_field_misfit(plain: Any, cls: Any, bare: Any, place: str) -> str:
    fields = _field_types(cls)
    if cls.__module__ == _DESCRIBED and (own := _field_types(type(plain))) is not None:
        plain = {name: getattr(plain, name) for name in own}
    if fields is None or type(plain) is not dict:
        return _misfit_message(plain, bare, place)
    if typing.is_typeddict(cls):
        if missing := sorted(cls.__required_keys__ - plain.keys()):
            return f"{place} has no {short_repr(missing[0])}, which {type_name(cls)} needs"
        if spare := [name for name in plain if name not in fields]:
            return f"{place} has {short_repr(spare[0])}, which {type_name(cls)} does not have"
    return _first_text(find_misfit(each, fields.get(name, Any), f"{place}.{name}") for name, each in plain.items())


def _find_item_misfit(plain: Any, cls: type, arguments: tuple[Any, ...], bare: Any, place: str) -> str:
    if not isinstance(plain, SEQUENCES):
        return _misfit_message(plain, bare, place)
    if cls is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(arguments) != len(plain):
            return f"{place} has {len(plain)} items, not {len(arguments)}"
        items: Iterable[tuple[Any, Any]] = zip(plain, arguments, strict=True)
    else:
        items = ((each, arguments[0] if arguments else Any) for each in plain)
    return _first_text(find_misfit(each, item, f"{place}[{index}]") for index, (each, item) in enumerate(items))


def _field_types(cls: type) -> dict[str, Any] | None:
    """Return the annotations of the fields of a class."""
    if not (attrs.has(cls) or is_dataclass(cls) or is_named_tuple(cls) or typing.is_typeddict(cls)):
        return None
    try:
        return typing.get_type_hints(cls)
    except Exception:  # an annotation that names what is not there; cattrs will say what it makes of it
        return {}


def _literal_value(choice: Any) -> Any:
    return choice.value if isinstance(choice, enum.Enum) else choice


def _first_text(found: Iterable[str]) -> str:
    return next((text for text in found if text), "")


def _misfit_message(plain: Any, bare: Any, place: str) -> str:
    wanted = "None" if bare in (None, type(None)) else type_name(bare) if isinstance(bare, type) else str(bare)
    return f"{place} is {short_repr(plain)} ({type_name(type(plain))}), not {wanted}"


# --- types of the closed set as JSON, so that a program with only the record can check a value -----------------------


_LEAVES: dict[str, Any] = {
    "null": None,
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "complex": complex,
    "date": date,
    "time": time,
    "datetime": datetime,
    "timedelta": timedelta,
}
_NAMES = {cls: name for name, cls in _LEAVES.items()} | {type(None): "null"}
_DESCRIBED_LISTS = {
    list,
    set,
    frozenset,
    collections.abc.Sequence,
    collections.abc.Collection,
    collections.abc.Iterable,
}
_DESCRIBED = "builtins"
"""The module of the classes that a description makes, so that messages name them as they are."""
_DESCRIBED_MAPPINGS = {dict, collections.abc.Mapping}


def describe_type(annotation: Any, within: tuple[type, ...] = ()) -> Json:
    """Return the description of an annotation: a name, a list that starts with a name, or None for any type.

    Args:
        annotation: the annotation.
        within: the data classes that it is a field of, which are not described again.
    """
    origin, arguments = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if origin is typing.Annotated:
        return describe_type(arguments[0], within)
    if origin in UNIONS:
        members = [describe_type(each, within) for each in arguments]
        return None if None in members else ["union", *members]
    if origin is typing.Literal:
        return ["literal", *arguments] if all(type(each) in (str, int, bool) for each in arguments) else None
    if not isinstance(origin, type | None):
        return None
    if origin in _DESCRIBED_LISTS:
        return ["list", describe_type(arguments[0], within) if arguments else None]
    if origin is tuple:
        is_any_length = not arguments or arguments[-1] is Ellipsis
        kind = "list" if is_any_length else "tuple"
        return [
            kind,
            *(describe_type(each, within) for each in (arguments[:1] if is_any_length else arguments) or (Any,)),
        ]
    if origin in _DESCRIBED_MAPPINGS:
        return ["dict", *(describe_type(each, within) for each in arguments or (Any, Any))]
    return _NAMES.get(origin) or _describe_class(origin, within)


def _describe_class(cls: Any, within: tuple[type, ...]) -> Json:
    """Return the description of a data class that is built from its fields as they are; None of any other class."""
    hints = None if cls in within or tags.is_closed(cls) else _field_types(cls)
    if not hints:
        return None
    if attrs.has(cls):
        needed = {each.name: each.default is attrs.NOTHING for each in attrs.fields(cls) if each.init}
    elif is_dataclass(cls):
        parameters = inspect.signature(cls).parameters
        needed = {name: parameters[name].default is inspect.Parameter.empty for name in parameters}
    elif is_named_tuple(cls):
        needed = {name: name not in cls._field_defaults for name in cls._fields}
    else:
        needed = {name: name in cls.__required_keys__ for name in hints}
    if not needed.keys() <= hints.keys():
        return None
    fields = {name: describe_type(hints[name], (*within, cls)) for name in needed}
    return ["class", cls.__name__, fields, [name for name, is_needed in needed.items() if is_needed]]


def parse_description(description: Json) -> Any:
    """Return an annotation for a description.

    Args:
        description: a value of `describe_type`; an unknown one, of a newer version, allows any value.
    """
    if isinstance(description, str):
        return _LEAVES.get(description, Any)
    if not isinstance(description, list) or not description:
        return Any
    kind, *parts = description
    if kind == "literal" and parts:
        return typing.Literal[tuple(parts)]
    if kind == "class" and len(parts) == 3:
        return _make_typed_dict(*parts)
    made = tuple(map(parse_description, parts))
    if kind == "union" and made:
        return Any if Any in made else typing.Union[made]  # noqa: UP007 - made of a list
    if kind == "list" and len(made) == 1:
        return list[made[0]]  # type: ignore[valid-type]
    if kind == "tuple" and made:
        return tuple[made]  # type: ignore[valid-type]
    return dict[made[0], made[1]] if kind == "dict" and len(made) == 2 else Any  # type: ignore[valid-type]


def _make_typed_dict(name: str, fields: dict[str, Json], needed: list[str]) -> Any:
    """Return a class with the fields of a described data class."""
    make: Any = typing.TypedDict
    kinds: dict[bool, Any] = {True: typing.Required, False: typing.NotRequired}
    made = make(name, {each: kinds[each in needed][parse_description(told)] for each, told in fields.items()})
    made.__module__ = _DESCRIBED
    return made
