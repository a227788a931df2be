"""Finite numbers: what a duration, a limit or an amount can be."""

from __future__ import annotations

import sys
from typing import TypeGuard

_MOST = sys.float_info.max


def is_finite_number(value: object) -> TypeGuard[int | float]:
    """Tell whether a value is a number that a float can hold: no bool, no NaN, no infinity, and no integer beyond.

    `math.isfinite` raises an `OverflowError` for such an integer; comparing is exact.

    Args:
        value: anything.
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MOST <= value <= _MOST
