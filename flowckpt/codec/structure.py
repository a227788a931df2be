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

import functools
import typing
from collections.abc import Callable
from typing import Any

from flowckpt.codec import tags
from flowckpt.codec.kinds import is_known_kind
from flowckpt.errors import DecodingError, EncodingError, type_name
from flowckpt.lazy import LazyModule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flowckpt.codec import converter as converters
else:
    converters = LazyModule("flowckpt.codec.converter")


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
        return converters.converter().unstructure(value, unstructure_as=_bare(annotation))
    except RecursionError as error:
        raise EncodingError(
            f"{place} is a {type_name(type(value))} that is nested too deep, or contains itself",
            place=place,
            type_name=type_name(type(value)),
            remedy="Return a flatter value, or write it to a file and return the path.",
        ) from error
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
        return converters.converter().structure(plain, _bare(annotation))
    except Exception as error:
        raise DecodingError(
            f"the recorded {place} does not fit {_show(annotation)}: {_first_cause(error)}{_place_of(error, plain, annotation, place)}",
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
        EncodingError: the name is taken by another class, the class is of the closed set, or one of another kind comes
            without both functions.
    """
    if tags.is_closed(cls) and not tags.is_registered(cls):
        raise EncodingError(f"register({cls.__qualname__}): it is recorded as it is", type_name=type_name(cls))
    if (to_plain is None) != (from_plain is None) or (to_plain is None and not is_known_kind(cls)):
        raise EncodingError(
            f"register({cls.__qualname__}) needs both to_plain= and from_plain=",
            type_name=type_name(cls),
            remedy="Only attrs classes, dataclasses, named tuples, pydantic models and enums are taken apart by "
            "themselves.",
        )
    made = converters.converter()
    apart = to_plain or functools.partial(made.unstructure, unstructure_as=cls)
    build = from_plain or functools.partial(_structure_as, cls)
    tags.add_registered(cls, name or type_name(cls), apart, build)
    if to_plain is not None and from_plain is not None:  # also where an annotation names the class
        made.register_unstructure_hook(cls, to_plain)
        made.register_structure_hook(cls, lambda plain, _: from_plain(plain))


def _structure_as(cls: type, plain: Any) -> Any:
    return converters.converter().structure(plain, cls)


def _bare(annotation: Any) -> Any:
    """Strip what `Annotated` says beside the type: it may be unhashable, and cattrs wants a key."""
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    return annotation


def _show(annotation: Any) -> str:
    return type_name(annotation) if isinstance(annotation, type) else str(annotation)


def _place_of(error: Exception, plain: Any, annotation: Any, place: str) -> str:
    """Say where in the value it does not fit; an empty text where the same error cannot be had with its place."""
    try:
        converters.converter(keeps_places=True).structure(plain, _bare(annotation))
    except Exception as placed:
        steps = "".join(converters.steps_to(placed))
        if steps and _first_cause(placed) == _first_cause(error):
            return f", at {place}{steps}"
    return ""


def _first_cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type_name(type(error))
