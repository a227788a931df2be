"""Sizes for people."""

from __future__ import annotations


def size_text(count: float) -> str:
    """Write a number of bytes: `512 B`, `4.2 kB`, `1.0 GB`, by thousands.

    Args:
        count: how many.
    """
    if count < 1000:
        return f"{count:.0f} B"
    units = ["TB", "GB", "MB", "kB"]
    while (count := count / 1000) >= 999.95 and len(units) > 1:
        units.pop()
    return f"{count:.1f} {units[-1]}"
