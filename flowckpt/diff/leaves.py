"""What differs between two recorded values, leaf by leaf.

The values are compared as the codec's trees, because `==` takes `1`, `1.0` and `True` for the same, and a record does
not. Lists are matched at their ends, short ones in their middle too, so one item more at the front is one difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Any

import attrs

from flowckpt.hashing import canonical

_MOST_MATCHED = 500
"""How many items in the middle of a list are matched; more would take seconds."""
_SEQUENCES = ("$tuple",)
_SETS = ("$set", "$frozenset")


class ChangeKind(StrEnum):
    """What happened to a leaf between the first and the second value."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@attrs.frozen
class Change:
    """One leaf that differs.

    Attributes:
        place: where, as `rows[3].name`; empty for the whole value.
        kind: whether it was added, removed or changed.
        old: its tree in the first value; None where it was added.
        new: its tree in the second value; None where it was removed.
    """

    place: str
    kind: ChangeKind
    old: Any = None
    new: Any = None

    def to_document(self) -> dict[str, Any]:
        """Return it as plain JSON; what is not there has no key."""
        document: dict[str, Any] = {"place": self.place, "kind": str(self.kind)}
        if self.kind is not ChangeKind.ADDED:
            document["old"] = self.old
        if self.kind is not ChangeKind.REMOVED:
            document["new"] = self.new
        return document


def changes(old: Any, new: Any, place: str = "") -> Iterator[Change]:
    """Yield what differs between two trees.

    Args:
        old: the first tree.
        new: the second tree.
        place: what to call them.
    """
    if type(old) is dict and type(new) is dict and _tag(old) == _tag(new):
        tag = _tag(old)
        if not tag:
            pairs = {key: (f"{place}{_key(key, place)}", old.get(key), new.get(key)) for key in [*old, *new]}
            for key, (inner, was, now) in pairs.items():
                yield from _member(inner, was, now, is_old=key in old, is_new=key in new)
            return
        bodies = old[tag], new[tag]
        if tag in _SEQUENCES:
            yield from _items(*bodies, place)
            return
        if tag in _SETS:
            yield from _keyed([[each, each] for each in bodies[0]], [[each, each] for each in bodies[1]], place)
            return
        if tag == "$dict":
            yield from _keyed(*bodies, place)
            return
        if tag == "$as" and bodies[0][0] == bodies[1][0]:
            yield from changes(bodies[0][1], bodies[1][1], place)
            return
    if type(old) is list and type(new) is list:
        yield from _items(old, new, place)
    elif canonical(old) != canonical(new):
        yield Change(place, ChangeKind.CHANGED, old, new)


def _tag(tree: dict[str, Any]) -> str:
    first = next(iter(tree), "")
    return first if len(tree) == 1 and first[:1] == "$" else ""


def _key(key: str, place: str) -> str:
    if not key.isidentifier():
        return f"[{key!r}]"
    return f".{key}" if place else key


def _member(place: str, old: Any, new: Any, *, is_old: bool, is_new: bool) -> Iterator[Change]:
    if is_old and is_new:
        yield from changes(old, new, place)
    elif is_old:
        yield Change(place, ChangeKind.REMOVED, old=old)
    else:
        yield Change(place, ChangeKind.ADDED, new=new)


def _keyed(old: Sequence[Any], new: Sequence[Any], place: str) -> Iterator[Change]:
    """Yield what differs between pairs whose keys are trees themselves."""
    were = {canonical(key): item for key, item in old}
    now = {canonical(key): item for key, item in new}
    for key in [*were, *(key for key in now if key not in were)]:
        inner = f"{place}[{key.decode()}]"
        yield from _member(inner, were.get(key), now.get(key), is_old=key in were, is_new=key in now)


def _items(old: Sequence[Any], new: Sequence[Any], place: str) -> Iterator[Change]:
    was, now = [*map(canonical, old)], [*map(canonical, new)]
    start, most = 0, min(len(was), len(now))
    while start < most and was[start] == now[start]:
        start += 1
    end = 0
    while end < most - start and was[-1 - end] == now[-1 - end]:
        end += 1
    olds, news = was[start : len(was) - end], now[start : len(now) - end]
    blocks = [(0, len(olds), 0, len(news))]
    if len(olds) != len(news) and max(len(olds), len(news)) <= _MOST_MATCHED:
        matcher = SequenceMatcher(None, olds, news, autojunk=False)
        blocks = [places for same, *places in matcher.get_opcodes() if same != "equal"]  # type: ignore[misc]
    for first, last, begin, stop in blocks:
        common = min(last - first, stop - begin)
        for index in range(common):
            at = start + first + index
            yield from changes(old[at], new[start + begin + index], f"{place}[{at}]")
        for index in range(start + first + common, start + last):
            yield Change(f"{place}[{index}]", ChangeKind.REMOVED, old=old[index])
        for index in range(start + begin + common, start + stop):
            yield Change(f"{place}[{index}]", ChangeKind.ADDED, new=new[index])
