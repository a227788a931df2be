"""Times for people."""

from __future__ import annotations

from datetime import UTC, datetime


def duration_text(milliseconds: float) -> str:
    """Write how long something took: `12 ms`, `5.32 s`, `3 min 05 s`, `2 h 05 min`.

    Args:
        milliseconds: how long.
    """
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def ago_text(moment: datetime, now: datetime | None = None) -> str:
    """Write how long ago something was: `just now`, `5 min ago`, `3 h ago`, `12 days ago`.

    Args:
        moment: when it was, aware.
        now: the time to count from; the machine's where not given.
    """
    seconds = int(((now or datetime.now(UTC)) - moment).total_seconds())
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length or (length < 86_400 and seconds >= length):
            return f"{seconds // length} {unit} ago"
    return "just now" if seconds < 5 else f"{seconds} s ago"


def moment_text(moment: datetime, *, is_short: bool = False) -> str:
    """Write a moment in the reader's own time zone: `2026-11-20 15:30:00`, or short, `11-20 15:30`.

    Args:
        moment: when, aware.
        is_short: leave the year and the seconds out.
    """
    here = moment.astimezone()
    return f"{here:%m-%d %H:%M}" if is_short else f"{here:%Y-%m-%d %H:%M:%S}"
