"""Finite numbers, for durations, limits and amounts."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TypeGuard

from flowckpt.errors import SettingError

_MOST = sys.float_info.max


def is_finite_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number in the range of floats, and not a bool.

    `math.isfinite` raises an `OverflowError` for larger integers; a comparison does not.
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MOST <= value <= _MOST


# Numbers with their nouns, for people: `1 step`, `2 steps`.


def pluralize(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural.

    Args:
        number: the number.
        noun: the singular; its plural ends in `s`.
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def join_names(names: Sequence[str], most: int) -> str:
    """Return the first names and the number of others: `a, b and 3 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def number_text(value: float) -> str:
    """Return a number as text: `10,000`, `0.02`, `1.5e-09`."""
    if isinstance(value, int):
        return f"{value:,}"
    if value and not 1e-6 <= abs(value) < 1e15:
        return f"{value:.6g}"
    return f"{value:,.6f}".rstrip("0").rstrip(".")


def check_number(value: object, setting: str, remedy: str, *, least: int = 1, is_optional: bool = False) -> int | None:
    """Return a whole number if it is valid.

    Args:
        value: the number.
        setting: the name of the argument.
        remedy: what to do if it is not valid.
        least: the minimum.
        is_optional: whether None is valid, for no limit.

    Raises:
        SettingError: it is not valid.
    """
    if (value is None and is_optional) or (type(value) is int and value >= least):
        return value
    limit = ", or None for no limit" if is_optional else ""
    problem = f"{setting} must be a whole number from {least}{limit}, got {value!r:.80}"
    raise SettingError(problem, setting=setting, remedy=remedy)


# Time spans as people write them: `30d`, `1h 30m`.


_UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART = r"([0-9]+(?:\.[0-9]+)?)\s*(ms|min|[smhdw])\s*"
_LONGEST = timedelta.max.total_seconds()


def seconds_in(text: str) -> float | None:
    """Return the seconds of numbers with units: `90s`, `500ms`, `1h 30m`, `2w`; None for any other text."""
    text = text.strip().lower()
    parts = re.findall(_PART, text) if re.fullmatch(f"({_PART})+", text) else []
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else None


def age_of(value: timedelta | float | str, setting: str = "age") -> timedelta:
    """Return an age.

    Args:
        value: a `timedelta`, a number of seconds, or text with units: `90s`, `45m`, `12h`, `30d`, `2w`, `1d12h`.
        setting: the name of the argument, for the error.

    Raises:
        SettingError: it is not valid, or negative.
    """
    seconds: float | None = None
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str):
        seconds = seconds_in(value)
    elif is_finite_number(value):
        seconds = float(value)
    if seconds is None or not 0 <= seconds < _LONGEST:
        raise SettingError(
            f"{setting} must be an age, got {value!r:.80}",
            setting=setting,
            remedy="Write it with a unit, such as 90s, 45m, 12h, 30d or 2w; or pass a timedelta.",
        )
    return timedelta(seconds=seconds)
