"""Conversion of a value from the command line or a JSON file to the type of an annotation.

Text (`-i limit=5`) is parsed; JSON is taken literally: `"5"` is not an integer there. The error for a value that does
not fit names the expected type; nothing is guessed or truncated.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import json
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from pathlib import PurePath
from typing import Any

import attrs

from flowckpt.cli.config.settings import SWITCH_WORDS
from flowckpt.core.codec.annotations import (
    UNIONS,
    bare_type,
    is_anything,
    is_dataclass,
    is_named_tuple,
)
from flowckpt.core.system.external import is_pydantic
from flowckpt.core.system.numbers import seconds_in


class MisfitError(Exception):
    """A value does not fit an annotation.

    Attributes:
        expected: the expected type, for people.
        place: the place in the value, such as `[2].name`; empty for the whole value.
        got: the value at that place.
    """

    def __init__(self, expected: str, got: object, place: str = "") -> None:
        super().__init__(expected)
        self.expected = expected
        self.place = place
        self.got = got


def from_text(text: str, annotation: Any) -> Any:
    """Convert a text to the type of an annotation.

    Args:
        text: the text after the `=`.
        annotation: the parameter's annotation; for `Any`, the text itself is returned.

    Raises:
        MisfitError: it does not fit.
    """
    bare = bare_type(annotation)
    if bare is str or is_anything(bare):
        return text
    if typing.get_origin(bare) in UNIONS:
        return _parse_union(text, bare)
    if typing.get_origin(bare) is typing.Literal:
        return _choose(text, bare, {str(_plain_choice(choice)): choice for choice in typing.get_args(bare)})
    if (reader := _find_leaf_reader(bare)) is not None:
        return reader(text)
    try:
        document = json.loads(text)
    except ValueError:
        raise MisfitError(f"{expected_text(annotation)}, written as JSON", text) from None
    return from_json(document, bare)


def from_json(value: Any, annotation: Any) -> Any:
    """Convert a JSON (or TOML) value to the type of an annotation.

    Raises:
        MisfitError: it does not fit.
    """
    bare = bare_type(annotation)
    if is_anything(bare):
        return value
    if bare is None or bare is type(None):
        return _require_type(value, type(None), bare)
    if typing.get_origin(bare) in UNIONS:
        return _convert_union(value, bare)
    if typing.get_origin(bare) is typing.Literal:
        return _choose(value, bare, {_plain_choice(choice): choice for choice in typing.get_args(bare)})
    if bare in (str, int, bool):
        return _require_type(value, bare, bare)
    if bare is float and type(value) in (int, float):
        return float(value)
    if (reader := _find_leaf_reader(bare)) is not None:
        return _convert_leaf(value, bare, reader)
    return _convert_composed(value, bare)


def expected_text(annotation: Any) -> str:
    """Describe an annotation for people: `an integer`, `one of red, green`."""
    bare = bare_type(annotation)
    if typing.get_origin(bare) in UNIONS:
        return " or ".join(expected_text(member) for member in typing.get_args(bare))
    if typing.get_origin(bare) is typing.Literal:
        return f"one of {', '.join(str(_plain_choice(choice)) for choice in typing.get_args(bare))}"
    if isinstance(bare, type) and issubclass(bare, enum.Enum):
        return f"one of {', '.join(bare.__members__)}"
    if isinstance(bare, type) and issubclass(bare, PurePath):
        return "a path"
    if isinstance(bare, collections.abc.Hashable) and bare in _EXPECTED:
        return _EXPECTED[bare]
    return bare.__qualname__ if isinstance(bare, type) and not typing.get_args(bare) else str(bare)


# --- annotations -----------------------------------------------------------------------------------------------------


def _plain_choice(choice: Any) -> Any:
    return choice.name if isinstance(choice, enum.Enum) else choice


# --- leaves: single texts --------------------------------------------------------------------------


def _parse_bool(text: str) -> bool:
    return SWITCH_WORDS[text.strip().lower()]


def _parse_timedelta(text: str) -> timedelta:
    """Read seconds (`90`, `1.5`), or numbers with units (`1h 30m`, `2d`)."""
    seconds = seconds_in(text)
    return timedelta(seconds=float(text) if seconds is None else seconds)


_READERS: dict[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    bool: _parse_bool,
    complex: complex,
    bytes: str.encode,
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    timedelta: _parse_timedelta,
}
_EXPECTED: dict[Any, str] = {
    None: "null",
    type(None): "null",
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    complex: "a complex number",
    bytes: "text",
    datetime: "a time like 2026-11-20T15:30:00",
    date: "a date like 2026-11-20",
    time: "a time of day like 15:30:00",
    timedelta: "seconds, or a time span like 1h30m",
    list: "a list",
    dict: "an object",
    tuple: "a list",
    set: "a list",
    frozenset: "a list",
}
_RARE_MODULES = ("decimal", "_pydecimal", "fractions", "uuid")  # code that uses their classes has imported them


def _find_leaf_reader(bare: Any) -> Callable[[str], Any] | None:
    """Return the function that parses a text as this type; None if the type needs JSON."""
    read: Any = bare
    if not isinstance(bare, type):
        return None
    if bare in _READERS:
        read = _READERS[bare]
    elif issubclass(bare, enum.Enum):
        return lambda text: _find_member(text, bare)
    elif not issubclass(bare, PurePath) and bare.__module__ not in _RARE_MODULES:
        return None

    def read_leaf(text: str) -> Any:
        try:
            return read(text)
        except (ValueError, KeyError, ArithmeticError):
            raise MisfitError(expected_text(bare), text) from None

    return read_leaf


def _find_member(text: Any, cls: type[enum.Enum]) -> enum.Enum:
    """Return the member with a name, or with a value."""
    if isinstance(text, str) and text in cls.__members__:
        return cls.__members__[text]
    for member in cls:
        if member.value == text or (isinstance(text, str) and str(member.value) == text):
            return member
    raise MisfitError(expected_text(cls), text)


def _convert_leaf(value: Any, bare: Any, reader: Callable[[str], Any]) -> Any:
    if issubclass(bare, enum.Enum):
        return _find_member(value, bare)
    if type(value) is bare:  # TOML has its own times
        return value
    is_number = type(value) in (int, float)
    if is_number and (bare in (timedelta, complex) or bare.__module__ in _RARE_MODULES[:3]):
        return reader(str(value))
    if isinstance(value, str) and bare is not float:
        return reader(value)
    raise MisfitError(expected_text(bare), value)


def _require_type(value: Any, cls: type, bare: Any) -> Any:
    if type(value) is not cls:
        raise MisfitError(expected_text(bare), value)
    return value


def _choose(value: Any, bare: Any, choices: Mapping[Any, Any]) -> Any:
    for name, choice in choices.items():
        if type(name) is type(value) and name == value:
            return choice
    raise MisfitError(expected_text(bare), value)


# --- unions ----------------------------------------------------------------------------------------------------------


def _parse_union(text: str, bare: Any) -> Any:
    """Try the members in order, but text last, because it accepts anything."""
    members = list(typing.get_args(bare))
    takes_text = any(bare_type(member) is str or is_anything(bare_type(member)) for member in members)
    if type(None) in members:
        members.remove(type(None))
        if not takes_text and text.strip().lower() in ("null", "none", ""):
            return None
    for member in sorted(members, key=lambda each: bare_type(each) is str or is_anything(bare_type(each))):
        try:
            return from_text(text, member)
        except MisfitError:
            continue
    raise MisfitError(expected_text(bare), text)


def _convert_union(value: Any, bare: Any) -> Any:
    """Try the member of the value's own type first, then the others in order."""
    misfits = []
    for member in sorted(typing.get_args(bare), key=lambda each: bare_type(each) is not type(value)):
        try:
            return from_json(value, member)
        except MisfitError as misfit:
            misfits.append(misfit)
    deepest = max(misfits, key=lambda misfit: len(misfit.place))
    raise deepest if deepest.place else MisfitError(expected_text(bare), value)


# --- composed types --------------------------------------------------------------------------------------

_LISTS: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Collection: list,
    collections.abc.Iterable: list,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
}
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def _convert_composed(value: Any, bare: Any) -> Any:
    origin = typing.get_origin(bare) or bare
    arguments = typing.get_args(bare)
    if origin is tuple:
        return _convert_tuple(value, bare, arguments)
    if origin in _LISTS:
        item = arguments[0] if arguments else Any
        items = [_convert_at(f"[{index}]", each, item) for index, each in enumerate(_require_type(value, list, bare))]
        try:
            return _LISTS[origin](items)
        except TypeError:  # a set of lists
            raise MisfitError(f"{expected_text(bare)} whose items can be hashed", value) from None
    if origin in _MAPPINGS:
        key, item = arguments or (str, Any)
        _require_type(value, dict, bare)
        return {_convert_key(name, key): _convert_at(f".{name}", each, item) for name, each in value.items()}
    if isinstance(origin, type):
        return _convert_object(value, origin, bare)
    raise MisfitError(f"{expected_text(bare)}, which cannot be given on the command line", value)


def _convert_tuple(value: Any, bare: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    _require_type(value, list, bare)
    if not arguments:
        return tuple(value)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    if len(arguments) != len(value):
        raise MisfitError(f"a list of {len(arguments)}", value)
    return tuple(_convert_at(f"[{i}]", each, item) for i, (each, item) in enumerate(zip(value, arguments, strict=True)))


def _convert_object(value: Any, cls: Any, bare: Any) -> Any:
    """Build an attrs class, a dataclass, a named or typed dict, a pydantic model."""
    if is_pydantic(cls):
        return _make_object(lambda: cls.model_validate(value), value, cls)
    names = _find_fields(cls)
    if names is None:
        raise MisfitError(f"{expected_text(bare)}, which cannot be given on the command line", value)
    if isinstance(value, list) and issubclass(cls, tuple) and len(value) <= len(names):
        value = dict(zip(names, value, strict=False))
    _require_type(value, dict, bare)
    hints = typing.get_type_hints(cls, include_extras=True)
    arguments = {}
    fields = typing.cast("dict[str, Any]", value)
    for key, each in fields.items():
        if key not in names:
            raise MisfitError(f"{expected_text(bare)} with the fields {', '.join(names)}", value)
        hint = hints.get(names[key], Any)
        if typing.get_origin(hint) in (typing.Required, typing.NotRequired):
            hint = typing.get_args(hint)[0]
        arguments[key] = _convert_at(f".{key}", each, hint)
    required: frozenset[str] = getattr(cls, "__required_keys__", frozenset())
    if typing.is_typeddict(cls) and (missing := required - arguments.keys()):
        raise MisfitError(f"{expected_text(bare)} with the fields {', '.join(sorted(missing))}", value)
    return _make_object(lambda: cls(**arguments), value, cls)


def _find_fields(cls: Any) -> dict[str, str] | None:
    """Return the names of a class's fields in its constructor and in its annotations."""
    if attrs.has(cls):
        return {field.alias or field.name: field.name for field in attrs.fields(cls) if field.init}
    if is_dataclass(cls):
        return {field.name: field.name for field in dataclasses.fields(cls) if field.init}
    if is_named_tuple(cls):
        return {name: name for name in cls._fields}
    return {name: name for name in typing.get_type_hints(cls)} if typing.is_typeddict(cls) else None


def _make_object(make: Callable[[], Any], value: Any, cls: type) -> Any:
    try:
        return make()
    except Exception as error:  # the user's validator, or a missing argument
        raise MisfitError(f"{expected_text(cls)} ({error})", value) from error


def _convert_key(name: str, annotation: Any) -> Any:
    try:
        return from_text(name, annotation)
    except MisfitError as misfit:
        raise MisfitError(f"keys that are {misfit.expected}", name) from None


def _convert_at(place: str, value: Any, annotation: Any) -> Any:
    try:
        return from_json(value, annotation)
    except MisfitError as misfit:
        raise MisfitError(misfit.expected, misfit.got, place + misfit.place) from None
