"""Ages as people write them: `30d`, `12h`."""

from __future__ import annotations

import re
from datetime import timedelta

from flowckpt.errors import SettingError
from flowckpt.finite import is_finite_number

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(min|[smhdw])")
_LONGEST = timedelta.max.total_seconds()


def age_of(value: timedelta | float | str, setting: str = "age") -> timedelta:
    """Return an age.

    Args:
        value: a `timedelta`, a number of seconds, or text with units: `90s`, `45m`, `12h`, `30d`, `2w`, `1d12h`.
        setting: what it is for, for the error.

    Raises:
        SettingError: it is none, or negative.
    """
    seconds: float | None = None
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str):
        parts = _PART.findall(value.strip().lower())
        if parts and "".join(number + unit for number, unit in parts) == value.strip().lower():
            seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    elif is_finite_number(value):
        seconds = float(value)
    if seconds is None or not 0 <= seconds < _LONGEST:
        raise SettingError(
            f"{setting} is an age, not {value!r:.80}",
            setting=setting,
            remedy="Write one with its unit, as 90s, 45m, 12h, 30d or 2w; or a timedelta.",
        )
    return timedelta(seconds=seconds)
