"""How far an import goes with a file that anybody may have made."""

from __future__ import annotations

import attrs

MIB = 1024 * 1024
MOST_DEPTH = 260
"""How many brackets may lie in one another: those of the deepest value that can be recorded, and of what holds it."""

MOST_PATH = 4096
"""How long other names may be: of steps, checkpoints and workflows."""

RATIO_FROM = 16 * MIB
"""Up to so many bytes, a compressed file may be of any ratio."""


def _at_least_one(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{attribute.name} must be a whole number of at least 1, got {value!r}")


@attrs.frozen(kw_only=True)
class ImportLimits:
    """What an import takes at most. The defaults let everything through that a sane run exports.

    Attributes:
        max_bytes: bytes of the file, as it is when no longer compressed.
        max_value_bytes: bytes of one line, which holds one large value at most; about what memory it takes.
        max_records: lines of the file.
        max_attempts: the highest number of an attempt.
        max_ratio: how many times larger than the compressed file its content may be.
    """

    max_bytes: int = attrs.field(default=64 * 1024 * MIB, validator=_at_least_one)
    max_value_bytes: int = attrs.field(default=1024 * MIB, validator=_at_least_one)
    max_records: int = attrs.field(default=10_000_000, validator=_at_least_one)
    max_attempts: int = attrs.field(default=10_000, validator=_at_least_one)
    max_ratio: int = attrs.field(default=200, validator=_at_least_one)
