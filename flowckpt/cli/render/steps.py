"""The recorded steps as a tree: what is nested in a step stands below it, and the members of a large map are counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from flowckpt.core.records import StepResult
from flowckpt.engine.rules.paths import nested_in

_MOST_SHOWN = 20


@attrs.frozen
class Branch:
    """A row of the tree.

    Attributes:
        path: the step; of members that are counted, that of their map or group.
        depth: in how many steps it is nested.
        result: its result; None where it has not ended, and for members that are counted.
        members: how many members are counted instead of shown.
    """

    path: str
    depth: int
    result: StepResult | None = None
    members: int = 0


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
            inner = shown
        elif members:
            inner = sorted(inner, key=_place)
        unseen += [(each, depth + 1) for each in reversed(inner)]


def _place(path: str) -> tuple[int, str]:
    """Order numbered members by their numbers."""
    place = path[path.rfind("/") + 1 :].strip("[]")
    return (int(place), "") if place.isdecimal() else (0, "")
