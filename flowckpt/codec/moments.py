"""Dates and times with their zones: as text that `fromisoformat` reads, the fold, and the zone.

A naive one without a fold is its text alone. A zone is its key (`"Europe/Berlin"`), or the offset and perhaps the name
of a fixed one (`[[0, 3600, 0], "CET"]`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Any

from flowckpt.codec.refusal import RefusedError
from flowckpt.lazy import LazyModule

if TYPE_CHECKING:
    from flowckpt.codec import rare
else:
    rare = LazyModule("flowckpt.codec.rare")  # slow to import, and most runs never need it


def encode_moment(value: datetime | time) -> Any:
    """Return the body of a moment's tag.

    Raises:
        RefusedError: its zone is none that could be made again.
    """
    zone = value.tzinfo
    if zone is None:
        return value.isoformat() if not value.fold else [value.isoformat(), value.fold, None]
    return [value.replace(tzinfo=None).isoformat(), value.fold, _encode_zone(zone)]


def _encode_zone(zone: tzinfo) -> Any:
    if type(zone) is timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]  # (offset,) or (offset, name)
        if all(type(part) is str and part.isprintable() for part in name):
            return [[offset.days, offset.seconds, offset.microseconds], *name]
    elif type(zone).__module__.partition(".")[0] == "zoneinfo":
        key = getattr(zone, "key", None)
        if key is not None:
            return str(key)
    raise RefusedError(f"its time zone {zone!r:.80} has no name by which it could be made again")


def moment_decoder(cls: type[datetime | time]) -> Callable[[Any], datetime | time]:
    """Return what reads the bodies of a tag.

    Args:
        cls: what to make of them.
    """

    def decode_moment(body: Any) -> datetime | time:
        if isinstance(body, str):
            return cls.fromisoformat(body)
        text, fold, zone = body
        moment = cls.fromisoformat(text).replace(fold=fold)
        return moment if zone is None else moment.replace(tzinfo=_decode_zone(zone))

    return decode_moment


def _decode_zone(body: Any) -> tzinfo:
    if isinstance(body, list):
        offset, *name = body
        if offset == [0, 0, 0] and not name:
            return UTC
        return timezone(timedelta(*offset), *name)
    return rare.zone(body)
