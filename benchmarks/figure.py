"""One figure, and how figures are measured: two sides in turn, A B A B …, with their medians compared."""

from __future__ import annotations

import gc
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path

import attrs

_numbers = itertools.count()


@attrs.frozen
class Figure:
    """A figure and its target."""

    name: str
    value: float
    bar: float
    unit: str = "ratio"
    detail: str = ""

    @property
    def is_reached(self) -> bool:
        return self.value <= self.bar


def new_path(directory: Path, suffix: str = "") -> Path:
    """Return a path that was not used before."""
    return directory / f"{next(_numbers):06d}{suffix}"


def time_in_turn(ours: Callable[[], float], theirs: Callable[[], float], rounds: int) -> tuple[float, float, float]:
    """Measure two sides in turn; return the median of each and the median of their ratios, round by round."""
    mine: list[float] = []
    floor: list[float] = []
    for _ in range(rounds):
        for side, times in ((theirs, floor), (ours, mine)):
            gc.collect()
            times.append(side())
    ratio = statistics.median(a / b for a, b in zip(mine, floor, strict=True))
    return statistics.median(mine), statistics.median(floor), ratio
