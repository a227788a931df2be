"""The recorded steps as a tree: what is nested in a step stands below it, and the members of a large map are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import attrs

from flowckpt.core.records import StepResult
from flowckpt.engine.rules.paths import nested_in

_MOST_SHOWN = 20
_MOST_OF_A_KIND = 5
T = TypeVar("T")


@attrs.frozen
class Folded:
    """Members of a large map or group that one line counts.

    Attributes:
        path: the map or group.
        kind: their kind.
        count: their number.
        is_rest: whether others of the kind are shown before them.
    """

    path: str
    kind: str
    count: int
    is_rest: bool


def folded(
    items: Sequence[T], path_of: Callable[[T], str], kind_of: Callable[[T], str], counted: str = ""
) -> Iterator[T | Folded]:
    """Yield items, with the members of large maps and groups counted by kind after the first few of each kind.

    Args:
        items: the items.
        path_of: returns the step of an item.
        kind_of: returns the kind of an item.
        counted: a kind of which none is shown.
    """
    sizes = Counter(_map_of(path_of(each)) for each in items)
    totals = Counter((_map_of(path_of(each)), kind_of(each)) for each in items)
    seen: Counter[tuple[str, str]] = Counter()
    for each in items:
        path, kind = key = _map_of(path_of(each)), kind_of(each)
        seen[key] += 1
        most = 0 if kind == counted else _MOST_OF_A_KIND
        if not path or sizes[path] <= _MOST_SHOWN or seen[key] <= most:
            yield each
        elif seen[key] == most + 1:
            yield Folded(path, kind, totals[key] - most, bool(most))


def _map_of(path: str) -> str:
    """Return the outermost map or group that a step is a member of; empty if it is not."""
    return path.partition("/[")[0] if "/[" in path else ""


@attrs.frozen
class Branch:
    """A row of the tree.

    Attributes:
        path: the step; of members that are counted, that of their map or group.
        depth: in how many steps it is nested.
        result: its result; None where it has not ended, and for members that are counted.
        members: how many members are counted instead of shown.
        outcome: how these members ended.
    """

    path: str
    depth: int
    result: StepResult | None = None
    members: int = 0
    outcome: str = "ok"


def step_tree(results: Sequence[StepResult], *, is_unfolded: bool) -> Iterator[Branch]:
    """Yield the rows of a tree, in the order in which the steps came.

    Args:
        results: the history.
        is_unfolded: whether to show each member of large maps and groups; else those that failed alone.
    """
    by_path = {result.path: result for result in results}
    nested = nested_in(by_path)
    tops = dict.fromkeys(path.partition("/")[0] for path in by_path)
    unseen = [(path, 0) for path in reversed(tops)]
    while unseen:
        path, depth = unseen.pop()
        yield Branch(path, depth, by_path.get(path))
        inner = nested.get(path, [])
        members = [each for each in inner if each[len(path) + 1 :].startswith("[")]
        if len(members) > _MOST_SHOWN and not is_unfolded:
            shown = [each for each in members if (found := by_path.get(each)) is None or not found.success]
            yield Branch(path, depth + 1, members=len(members) - len(shown))
            if len(shown) > _MOST_OF_A_KIND:
                yield Branch(path, depth + 1, members=len(shown) - _MOST_OF_A_KIND, outcome="more failed or not ended")
            inner = shown[:_MOST_OF_A_KIND]
        elif members:
            inner = sorted(inner, key=_place)
        unseen += [(each, depth + 1) for each in reversed(inner)]


def _place(path: str) -> tuple[int, str]:
    """Order numbered members by their numbers."""
    place = path[path.rfind("/") + 1 :].strip("[]")
    return (int(place), "") if place.isdecimal() else (0, "")
