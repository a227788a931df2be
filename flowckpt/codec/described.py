"""Types of the closed set as JSON, for a record: whoever has the record, and not the program, can ask what fits.

What cannot be told without the program is described as None, which anything fits.
"""

from __future__ import annotations

import collections.abc
import typing
from datetime import date, datetime, time, timedelta
from typing import Any

from flowckpt.codec.kinds import UNIONS
from flowckpt.codec.tags import Json

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
_LISTS = {list, set, frozenset, collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable}
_MAPPINGS = {dict, collections.abc.Mapping}


def described(annotation: Any) -> Json:
    """Return the description of an annotation: a name, a list that begins with one, or None.

    Args:
        annotation: any annotation.
    """
    origin, arguments = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if origin is typing.Annotated:
        return described(arguments[0])
    if origin in UNIONS:
        members = [described(each) for each in arguments]
        return None if None in members else ["union", *members]
    if origin is typing.Literal:
        return ["literal", *arguments] if all(type(each) in (str, int, bool) for each in arguments) else None
    if not isinstance(origin, type | None):
        return None
    if origin in _LISTS:
        return ["list", described(arguments[0]) if arguments else None]
    if origin is tuple:
        is_any_length = not arguments or arguments[-1] is Ellipsis
        kind = "list" if is_any_length else "tuple"
        return [kind, *(described(each) for each in (arguments[:1] if is_any_length else arguments) or (Any,))]
    if origin in _MAPPINGS:
        return ["dict", *(described(each) for each in arguments or (Any, Any))]
    return _NAMES.get(origin)


def annotation_of(description: Json) -> Any:
    """Return an annotation that takes what was described.

    Args:
        description: what `described` returned; one of a newer version that is not known takes anything.
    """
    if isinstance(description, str):
        return _LEAVES.get(description, Any)
    if not isinstance(description, list) or not description:
        return Any
    kind, *parts = description
    if kind == "literal" and parts:
        return typing.Literal[tuple(parts)]
    made = tuple(map(annotation_of, parts))
    if kind == "union" and made:
        return Any if Any in made else typing.Union[made]  # noqa: UP007 - made of a list
    if kind == "list" and len(made) == 1:
        return list[made[0]]  # type: ignore[valid-type]
    if kind == "tuple" and made:
        return tuple[made]  # type: ignore[valid-type]
    return dict[made[0], made[1]] if kind == "dict" and len(made) == 2 else Any  # type: ignore[valid-type]
