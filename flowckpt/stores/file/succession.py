"""Which segments of a run count, and how much of each: its successor says how far it had read it.

A writer that was fenced finds it out behind its write, so what was refused stands in its segment. It stands behind the
place up to which the successor had read; or in a segment that was begun when a later one had been claimed.

A pack stands in for what is below it, and a tombstone ends it: but for a thief that had read the run before, and goes on
from the segments below. Then they count, and the pack does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from flowckpt.stores.file.segment import Cut

Look = Callable[[int], tuple[bool, Cut | None]]
"""Tells whether a segment has a record, and returns what it continues; None where it can continue nothing: the first one,
a pack, and a tombstone."""


def counted_segments(numbers: Sequence[int], look: Look) -> Iterator[tuple[int, int | None]]:
    """Yield the segments that count, the newest first, and how many bytes of each; None for all of it.

    Segments of an earlier version do not say what they had read: then all that stands below them counts.

    Args:
        numbers: the numbers of the segments, ascending.
        look: looks into one.
    """
    seen: Sequence[int] | None = None
    continued: set[int] = set()
    for number in reversed(numbers):
        if seen is not None and number > seen[0]:
            continue
        is_begun, cut = look(number)
        if not is_begun:
            continue
        if cut is None and number not in continued and any(0 < each < number for each in continued):
            continue
        yield number, seen[1] if seen is not None and seen[0] == number else None
        if cut is None:
            return
        continued.add(cut.segment)
        seen = cut.seen
