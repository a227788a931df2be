"""Types of the closed set whose modules are slow to import; `tags` loads this file at the first one it meets."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from uuid import UUID
from zoneinfo import ZoneInfo

from flowckpt.core.codec import tags


def _fraction(body: list[str]) -> Fraction:
    numerator, denominator = body
    return Fraction(int(numerator, 16), int(denominator, 16))


def zone(key: str) -> ZoneInfo:
    """Return the time zone of a key of the time zone database."""
    try:
        return ZoneInfo(key)
    except OSError as error:  # a key that names a directory of the time zone database
        raise ValueError(str(error)) from error


tags.add("$decimal", Decimal, str, Decimal)
tags.add("$fraction", Fraction, lambda f: [hex(f.numerator), hex(f.denominator)], _fraction)
tags.add("$uuid", UUID, str, UUID)
