"""Conversion of values and records to JSON and back, keeping value and type exactly."""

from __future__ import annotations

from typing import Any

from flowckpt.core.codec import results as _failures  # noqa: F401 - it adds what it knows to the closed set
from flowckpt.core.codec.annotations import convert_scalars, is_structured
from flowckpt.core.codec.tags import Json, dumps, is_itself
from flowckpt.core.codec.tags import decode as _decode_plain
from flowckpt.core.codec.tags import encode as _encode_plain
from flowckpt.core.codec.types import difference, from_plain, register_type, to_plain
from flowckpt.core.system.declared import short_repr, type_name
from flowckpt.errors import DecodingError, EncodingError

__all__ = ["Json", "decode", "decode_unchanged", "dumps", "encode", "is_itself", "register_type"]


def encode(value: Any, annotation: Any = Any, *, place: str = "value") -> Json:
    """Return the JSON tree of a value, or refuse it.

    Args:
        value: the value.
        annotation: its type, if known.
        place: the name of the value in errors.

    Raises:
        EncodingError: the value cannot be restored unchanged; the error names the place.
    """
    if not is_structured(annotation):
        try:
            return _encode_plain(value, place)
        except EncodingError:
            if (plain := convert_scalars(value, annotation)) is value:
                raise
        return _encode_plain(plain, place)
    tree = _encode_plain(to_plain(value, annotation, place), place)
    try:
        found = difference(value, decode(tree, annotation, place=place), place)
    except DecodingError as error:
        found = f"{place} is a {type_name(type(value))} that could not be read again: {error.message}"
    if found:
        raise EncodingError(
            found,
            place=place,
            type_name=type_name(type(value)),
            remedy="Annotate the very type, register it (flowckpt.register_type), or mark the step .ephemeral().",
        )
    return tree


def decode(tree: Json, annotation: Any = Any, *, place: str = "value") -> Any:
    """Return the value of a JSON tree: a fresh one each time.

    Args:
        tree: a tree of `encode`, possibly from a store.
        annotation: the type to build, if known.
        place: the name of the value in errors.

    Raises:
        DecodingError: the tree is malformed, or does not fit the annotation.
    """
    plain = _decode_plain(tree, place)
    return from_plain(plain, annotation, place) if is_structured(annotation) else plain


def decode_unchanged(tree: Json, annotation: Any, *, place: str = "value") -> Any:
    """Return the value of a JSON tree whose class may have been edited since, or refuse one that has changed by that.

    A field that the class has gained may have its default.

    Args:
        tree: a tree of `encode`, possibly from a store.
        annotation: the type to build.
        place: the name of the value in errors.

    Raises:
        DecodingError: as `decode`; or the value would be recorded in another way than it was.
    """
    value = decode(tree, annotation, place=place)
    if is_structured(annotation):
        try:
            found = _find_change(tree, _encode_plain(to_plain(value, annotation, place), place), place)
        except EncodingError as error:
            found = error.message
        if found:
            remedy = "Restore the type as it was."
            raise DecodingError(f"the type of the recorded {place} was edited: {found}", place=place, remedy=remedy)
    return value


def _find_change(old: Json, new: Json, place: str) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        if lost := [name for name in old if name not in new]:
            return f"{place}.{lost[0]} would be lost"
        return next(filter(None, (_find_change(each, new[name], f"{place}.{name}") for name, each in old.items())), "")
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return next(filter(None, (_find_change(*pair, f"{place}[{index}]") for index, pair in pairs)), "")
    return "" if old == new else f"{place} would come back as {short_repr(new)} instead of {short_repr(old)}"
