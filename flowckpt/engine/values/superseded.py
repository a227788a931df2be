"""Recorded results that no longer count, of steps that must check them before they run again.

They are kept in the record (`metadata["superseded"]`) until their step has a new result: after a crash in the middle of
a rerun, the run must still know that a payment was made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

import attrs

from flowckpt.core.codec.checkpoints import result_document
from flowckpt.core.codec.results import decode_result
from flowckpt.core.dsl.modifiers import Modifiers
from flowckpt.core.records import StepResult
from flowckpt.engine.rules.in_doubt import NOT_STARTED, RERUN_DECIDED
from flowckpt.engine.rules.paths import UNDOABLE
from flowckpt.engine.rules.reasons import LIMITS
from flowckpt.engine.values.options import RETRIES_USED

AT_MOST_ONCE = "at_most_once"
ON_RERUN = "on_rerun"
NOT_UNDONE = "not_undone"
"""Marks a failure of `.on_rerun()`: the step was not run, and its earlier result is still to be undone."""
LEAVES_EARLIER = frozenset({NOT_UNDONE, NOT_STARTED})
"""Marks of results whose step had no effect: its earlier result is still to be checked."""
KEY = "superseded"
STARTED_ONCE = "started_once"
"""Metadata key: the at-most-once steps among the steps with a recorded start, each with its function."""
_QUESTIONS = frozenset({AT_MOST_ONCE, ON_RERUN, NOT_UNDONE, "adopted"})
"""Marks of results that a step must check before it runs again."""
_KEPT = _QUESTIONS | {UNDOABLE}
GUARDED = frozenset({AT_MOST_ONCE, UNDOABLE})
"""Marks the results whose effects are not repeated by default."""


def marks_of(
    modifiers: Modifiers, *, is_adopted: bool, is_not_undone: bool, is_started: bool = True
) -> tuple[str, ...]:
    """Return the marks that a later rerun of a step needs.

    Args:
        modifiers: the modifiers of the step.
        is_adopted: whether the step was not run because its evidence proved it done.
        is_not_undone: whether the step was not run because its earlier effect could not be undone.
        is_started: whether its function may have been called.
    """
    if not is_started:
        return (NOT_STARTED,)
    marks = (
        (AT_MOST_ONCE, modifiers.is_at_most_once),
        (ON_RERUN, modifiers.on_rerun is not None),
        (NOT_UNDONE, is_not_undone),
        ("adopted", is_adopted),
    )
    return tuple(mark for mark, is_set in marks if is_set)


class Superseded(dict[str, StepResult]):
    """The results that no longer count but must be checked, by path.

    Args:
        metadata: the metadata of the checkpoint that the run continues from.

    Attributes:
        recorded_once: the at-most-once steps that earlier attempts recorded; read only if some may have been done.
    """

    recorded_once: frozenset[str] = frozenset()

    def __init__(self, metadata: Mapping[str, Any] | None = None) -> None:
        recorded = (decode_result(each)[0] for each in (metadata or {}).get(KEY, ()))
        super().__init__({result.path: result for result in recorded})

    def add(self, results: Iterable[StepResult], *, is_decided: bool = False) -> None:
        """Add results that no longer count, except those whose steps need not check them.

        Args:
            results: the results.
            is_decided: whether the user has requested the rerun: a step with `.rollback()` then runs again unasked, and
                its earlier effect is undone only if the run ends before that.
        """
        candidates = {each.path: each for each in results if not _KEPT.isdisjoint(each.marks)}
        for path, each in candidates.items():
            if NOT_UNDONE in each.marks:
                continue
            if not is_decided or not _QUESTIONS.isdisjoint(each.marks):
                self[path] = each
            elif each.attempt:  # else it is an effect of the source of a fork, which does not undo it
                self[path] = attrs.evolve(each, marks=(*each.marks, RERUN_DECIDED))

    def is_only_undoable(self, path: str) -> bool:
        """Return whether a result is kept only to be undone."""
        return _QUESTIONS.isdisjoint(self[path].marks)

    def list_undoable(self) -> list[StepResult]:
        """Return the results whose effects are undone if the run ends before their steps run again; a fork has its own."""
        return [each for each in self.values() if each.success and each.attempt and UNDOABLE in each.marks]

    def list_failed_once(self) -> list[str]:
        """Return the paths of the at-most-once steps that failed: whether they had their effect is unknown."""
        return [path for path, each in self.items() if AT_MOST_ONCE in each.marks and not each.success]

    def list_doubts(self, metadata: Mapping[str, Any], unended: Collection[str]) -> dict[str, str]:
        """Return the at-most-once steps that may have been done, each with its function.

        They failed, or have a recorded start and no end.

        Args:
            metadata: the metadata of the run.
            unended: the steps with a recorded start and no recorded end.
        """
        started = {path: name for path, name in metadata.get(STARTED_ONCE, {}).items() if path in unended}
        return {**started, **{path: self[path].function for path in self.list_failed_once()}}

    def add_to_metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return metadata with these results."""
        kept = {name: value for name, value in metadata.items() if name != KEY}
        if self:
            kept[KEY] = [result_document(result) for result in self.values()]
        return kept


# The retry budget: how many retries a run may make, in all its steps and attempts.
#
# The number of retries is part of the run's metadata, and becomes durable with the next checkpoint. If the process
# dies, the retries since its last save are not counted.


class HasMetadata(Protocol):
    """The holder of the metadata that the next checkpoint gets."""

    metadata: Mapping[str, Any]


@attrs.define(eq=False, repr=False)
class RetryBudget:
    """Counts the retries of one run.

    Attributes:
        limit: the number of retries allowed; None for no limit, and then they are not counted.
        record: holds the metadata of the run, with the count.
        longest_delay: a retry delay above this many seconds suspends the run.
    """

    limit: int | None
    record: HasMetadata
    longest_delay: float

    def take(self) -> bool:
        """Use one retry; return whether one was left."""
        if self.limit is None:
            return True
        metadata = self.record.metadata
        limits = metadata.get(LIMITS, {})
        used = limits.get(RETRIES_USED, 0)
        if used >= self.limit:
            return False
        self.record.metadata = {**metadata, LIMITS: {**limits, RETRIES_USED: used + 1}}
        return True
