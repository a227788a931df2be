"""Values that are their own tree: most outputs are a number, a short text, a yes or no."""

from __future__ import annotations

from typing import Any

from flowckpt.codec.tags import LARGEST, SMALLEST


def is_itself(value: Any) -> bool:
    """Tell whether a value is its own tree and nothing could change it, so that it need not be encoded, nor decoded.

    Args:
        value: any value; of one that is its own tree all the same, such as a list, nothing is said.
    """
    kind = type(value)
    if kind is int:
        return bool(SMALLEST <= value < LARGEST)
    return value is None or kind is bool or (kind is str and value.isascii())
