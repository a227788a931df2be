"""Numbers with their nouns, for people: `1 step`, `2 steps`."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it is not one.

    Args:
        number: how many.
        noun: one of them; its plural ends in `s`.
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
