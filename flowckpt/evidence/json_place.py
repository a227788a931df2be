"""Places in JSON: `data.items[0].id`, or a JSON pointer (`/data/items/0/id`, RFC 6901) where keys hold dots."""

from __future__ import annotations

import re
from typing import Any

from flowckpt.evidence.checks.base import MalformedClaimError

MISSING = object()
"""What `value_at` returns where there is nothing; None is a value."""

_STEP = re.compile(r"(?:^|\.)([^.\[\]]+)|\[([0-9]{1,9})\]")


def steps_of(place: str) -> list[str | int]:
    """Return the steps of a place: names as texts, numbers of a list as whole numbers.

    Args:
        place: the place.

    Raises:
        MalformedClaimError: it is none.
    """
    if place in ("", "$"):
        return []
    if place.startswith("/"):
        return [part.replace("~1", "/").replace("~0", "~") for part in place[1:].split("/")]
    steps: list[str | int] = []
    at = 0
    while at < len(place):
        match = _STEP.match(place, at)
        if match is None:
            raise MalformedClaimError(
                f"{place!r:.80} is no place in JSON", remedy="Write 'data.items[0].id' or '/data/items/0/id'."
            )
        steps.append(match[1] if match[1] is not None else int(match[2]))
        at = match.end()
    return steps


def value_at(document: Any, steps: list[str | int]) -> Any:
    """Return the value at a place, or `MISSING`.

    Args:
        document: parsed JSON.
        steps: what `steps_of` returned.
    """
    for step in steps:
        if isinstance(document, dict):
            document = document.get(str(step), MISSING)
        elif isinstance(document, list) and str(step).isascii() and str(step).isdigit() and len(str(step)) < 10:
            document = document[int(step)] if int(step) < len(document) else MISSING
        else:
            return MISSING
    return document


def is_same(wanted: Any, found: Any) -> bool:
    """Tell whether two JSON values are the same: `1` and `1.0` are, `1` and `true` are not.

    Args:
        wanted: the recorded value; tuples count as lists.
        found: the value now.
    """
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    if isinstance(wanted, int | float) and isinstance(found, int | float):
        return wanted == found
    if isinstance(wanted, list | tuple) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(is_same, wanted, found))
    if isinstance(wanted, dict) and isinstance(found, dict):
        return wanted.keys() == found.keys() and all(is_same(wanted[key], found[key]) for key in wanted)
    return type(wanted) is type(found) and bool(wanted == found)
