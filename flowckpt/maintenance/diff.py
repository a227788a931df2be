"""Compares two checkpoints: results by the paths of their steps, values leaf by leaf.

Times, durations and attempts are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from enum import StrEnum
from math import inf
from typing import Any, TypeAlias

import attrs

from flowckpt.core.codec.blob import Blob, plain_tree
from flowckpt.core.codec.tags import encode
from flowckpt.core.identity.inputs_hash import canonical
from flowckpt.core.records import CheckpointData, StepResult
from flowckpt.errors import DecodingError
from flowckpt.evidence.claims import EvidencePack, redact, redact_text

# The differences between two recorded values, leaf by leaf.
#
# The values are compared as the codec's trees, because `1 == 1.0 == True` in Python, but they are different in a
# record. Lists are matched at their ends, short ones also in the middle, so one more item at the front is one difference.


_MOST_MATCHED = 500
"""How many items in the middle of a list are matched; more would take seconds."""
_SEQUENCES = ("$tuple",)
_SETS = ("$set", "$frozenset")


class ChangeKind(StrEnum):
    """The change of a leaf between the first and the second value."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@attrs.frozen
class Change:
    """One leaf that differs.

    Attributes:
        place: the place, such as `rows[3].name`; empty for the whole value.
        kind: whether it was added, removed or changed.
        old: its tree in the first value; None if it was added.
        new: its tree in the second value; None if it was removed.
    """

    place: str
    kind: ChangeKind
    old: Any = None
    new: Any = None

    def to_document(self) -> dict[str, Any]:
        """Return plain JSON; missing values have no key."""
        document: dict[str, Any] = {"place": self.place, "kind": str(self.kind)}
        if self.kind is not ChangeKind.ADDED:
            document["old"] = self.old
        if self.kind is not ChangeKind.REMOVED:
            document["new"] = self.new
        return document


def diff_trees(old: Any, new: Any, place: str = "") -> Iterator[Change]:
    """Yield the differences between two trees.

    Args:
        old: the first tree.
        new: the second tree.
        place: the place of the trees in the value.
    """
    if type(old) is dict and type(new) is dict and _find_tag(old) == _find_tag(new):
        tag = _find_tag(old)
        if not tag:
            pairs = {key: (f"{place}{_format_key(key, place)}", old.get(key), new.get(key)) for key in [*old, *new]}
            for key, (inner, was, now) in pairs.items():
                yield from _diff_member(inner, was, now, is_old=key in old, is_new=key in new)
            return
        bodies = old[tag], new[tag]
        are_lists = type(bodies[0]) is list and type(bodies[1]) is list  # an imported file may hold anything
        if tag in _SEQUENCES and are_lists:
            yield from _diff_lists(*bodies, place)
            return
        if tag in _SETS and are_lists:
            yield from _diff_pairs([[each, each] for each in bodies[0]], [[each, each] for each in bodies[1]], place)
            return
        if tag == "$dict" and are_lists and all(map(_is_pair, [*bodies[0], *bodies[1]])):
            yield from _diff_pairs(*bodies, place)
            return
        if tag == "$as" and all(map(_is_pair, bodies)) and bodies[0][0] == bodies[1][0]:
            yield from diff_trees(bodies[0][1], bodies[1][1], place)
            return
    if type(old) is list and type(new) is list:
        yield from _diff_lists(old, new, place)
    elif canonical(old) != canonical(new):
        yield Change(place, ChangeKind.CHANGED, old, new)


def _is_pair(tree: Any) -> bool:
    return type(tree) is list and len(tree) == 2


def _find_tag(tree: dict[str, Any]) -> str:
    first = next(iter(tree), "")
    return first if len(tree) == 1 and first[:1] == "$" else ""


def _format_key(key: str, place: str) -> str:
    if not key.isidentifier():
        return f"[{key!r}]"
    return f".{key}" if place else key


def _diff_member(place: str, old: Any, new: Any, *, is_old: bool, is_new: bool) -> Iterator[Change]:
    if is_old and is_new:
        yield from diff_trees(old, new, place)
    elif is_old:
        yield Change(place, ChangeKind.REMOVED, old=old)
    else:
        yield Change(place, ChangeKind.ADDED, new=new)


def _diff_pairs(old: Sequence[Any], new: Sequence[Any], place: str) -> Iterator[Change]:
    """Yield the differences between pairs whose keys are trees themselves."""
    were = {canonical(key): item for key, item in old}
    now = {canonical(key): item for key, item in new}
    for key in [*were, *(key for key in now if key not in were)]:
        inner = f"{place}[{key.decode()}]"
        yield from _diff_member(inner, were.get(key), now.get(key), is_old=key in were, is_new=key in now)


def _diff_lists(old: Sequence[Any], new: Sequence[Any], place: str) -> Iterator[Change]:
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
            yield from diff_trees(old[at], new[start + begin + index], f"{place}[{at}]")
        for index in range(start + first + common, start + last):
            yield Change(f"{place}[{index}]", ChangeKind.REMOVED, old=old[index])
        for index in range(start + begin + common, start + stop):
            yield Change(f"{place}[{index}]", ChangeKind.ADDED, new=new[index])


# The differences between two checkpoints.


Aspects: TypeAlias = Mapping[str, Sequence[Change]]
"""The differences by part: `output`, `evidence`, `arguments` …; equal parts are left out."""


@attrs.frozen
class StepDiff:
    """The differences in one step.

    Attributes:
        path: the step.
        kind: whether it was added, removed or changed.
        changes: the differences of its results, if both have it: `outcome`, `output`, `error`, `code`, `version`,
            `arguments`, `evidence`, `marks`.
    """

    path: str
    kind: ChangeKind
    changes: Aspects = attrs.field(factory=dict)

    def to_document(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {"path": self.path, "kind": str(self.kind), "changes": aspects_document(self.changes)}


@attrs.frozen
class CheckpointDiff:
    """The differences between two checkpoints.

    Attributes:
        changes: the differences outside of steps: `workflow`, `status`, `inputs`, `output`, `error`, `snapshot`, `evidence`,
            `code`, `in_flight`, `tags`.
        steps: the steps that differ, in the order of the second checkpoint, with removed steps in between.
        same: how many steps are equal.
    """

    changes: Aspects
    steps: Sequence[StepDiff]
    same: int

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not self.changes and not self.steps

    def count(self, kind: ChangeKind) -> int:
        """Return how many steps were added, removed or changed."""
        return sum(step.kind is kind for step in self.steps)


def aspects_document(aspects: Aspects) -> dict[str, Any]:
    """Return changes as plain JSON."""
    return {name: [change.to_document() for change in found] for name, found in aspects.items()}


def compare(old: CheckpointData, new: CheckpointData) -> CheckpointDiff:
    """Compare two checkpoints.

    Args:
        old: the first.
        new: the second.

    Raises:
        CheckpointCorruptedError: a large value in one of them is damaged.
    """
    sides = _run_aspects(old), _run_aspects(new)
    for name in ("inputs", "output", "snapshot"):
        was, now = (getattr(each, f"held_{name}") for each in (old, new))
        sides[0][name], sides[1][name] = _read_trees(was, now, name)
    steps, same = [], 0
    were, are = _sort_by_program(old.step_results), _sort_by_program(new.step_results)
    for path in _merge_paths([*were], [*are]):
        if path not in are:
            steps.append(StepDiff(path, ChangeKind.REMOVED))
        elif path not in were:
            steps.append(StepDiff(path, ChangeKind.ADDED))
        elif differences := _diff_aspects(*_step_sides(were[path], are[path])):
            steps.append(StepDiff(path, ChangeKind.CHANGED, differences))
        else:
            same += 1
    return CheckpointDiff(_diff_aspects(*sides), steps, same)


def _sort_by_program(results: Iterable[StepResult]) -> dict[str, StepResult]:
    """Return results by path: members of maps by number, members of groups by start, all others in recorded order."""
    came = {result.path: result for result in results}
    ranks: dict[str, tuple[int, float, int]] = {}

    def rank(path: str, last: str) -> tuple[int, float, int]:
        if not last.startswith("["):
            return 0, 0, len(ranks)
        if last[1:-1].isdecimal():
            return int(last[1:-1]), 0, len(ranks)
        started = came[path].started_at if path in came else None
        return 0, 0 if started is None else started.timestamp(), len(ranks)

    def place(path: str) -> list[tuple[float, ...]]:
        places: list[tuple[float, ...]] = []
        parts = path.split("/")
        for count, part in enumerate(parts, 1):
            whole = "/".join(parts[:count])
            places.append(ranks.setdefault(whole, rank(whole, part)))
        return [*places, (inf,)]  # a map or a group ends after its members

    return dict(sorted(came.items(), key=lambda item: place(item[0])))


def _diff_aspects(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[Any]]:
    differences = {name: list(diff_trees(old[name], new[name])) for name in old}
    return {name: each for name, each in differences.items() if each}


def _merge_paths(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """Yield the paths of the second, with those that only the first has in their original places."""
    places, known, at = {path: index for index, path in enumerate(old)}, set(new), 0
    for path in new:
        while path in places and at <= places[path]:
            if old[at] not in known:
                yield old[at]
            at += 1
        yield path
    yield from (path for path in old[at:] if path not in known)


def _step_sides(old: StepResult, new: StepResult) -> tuple[dict[str, Any], dict[str, Any]]:
    sides = _step_aspects(old), _step_aspects(new)
    sides[0]["output"], sides[1]["output"] = _read_trees(old.held_output, new.held_output, "output")
    return sides


def _read_trees(old: Any, new: Any, place: str) -> tuple[Any, Any]:
    """Return the trees of two values; equal large values are skipped without reading them."""
    if isinstance(old, Blob) and isinstance(new, Blob) and old.digest == new.digest:
        return None, None
    return plain_tree(old, place), plain_tree(new, place)


def _step_aspects(result: StepResult) -> dict[str, Any]:
    error = result.error
    return {
        "outcome": "ok" if result.success else "failed",
        "output": None,
        "error": None if error is None else f"{error.type}: {error.message}",
        "code": {"action": result.step_type, "function": result.function, "fingerprint": result.fingerprint},
        "version": result.version,
        "arguments": dict(result.arguments),
        "evidence": None if result.evidence is None else _describe_claims(result.evidence),
        "marks": list(result.marks),
    }


def _run_aspects(data: CheckpointData) -> dict[str, Any]:
    error = data.error
    packs = [each for each in data.evidence if isinstance(each, EvidencePack) or (_is_pack(each))]
    return {
        "workflow": data.workflow_name,
        "code": data.fingerprint,
        "status": str(data.status),
        "inputs": None,
        "output": None,
        "error": None if error is None else f"{error.type}: {error.message}",
        "snapshot": None,
        "evidence": [_describe_claims(each) for each in packs],
        "in_flight": list(data.in_flight),
        "tags": encode(dict(data.metadata.get("tags", {}))),
    }


def _is_pack(recorded: Any) -> bool:
    return isinstance(recorded, Mapping) and "pack" in recorded


def _describe_claims(recorded: Any) -> Any:
    """Return the claims of a record without their secrets, and their overall answer."""
    outcome = None if isinstance(recorded, EvidencePack) else recorded.get("outcome")
    try:
        pack = recorded if isinstance(recorded, EvidencePack) else EvidencePack.from_document(recorded["pack"])
    except (DecodingError, KeyError):
        return {"outcome": outcome}
    claims = {
        redact_text(claim.description): encode(redact(dict(claim.expected), claim.hidden_names)) for claim in pack
    }
    return {"outcome": outcome, "claims": claims}
