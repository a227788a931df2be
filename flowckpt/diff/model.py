"""What differs between two checkpoints, as a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from flowckpt.diff.leaves import Change, ChangeKind

Aspects: TypeAlias = Mapping[str, Sequence[Change]]
"""What differs, by what it is of: `output`, `evidence`, `arguments` …; nothing that is the same."""


@attrs.frozen
class StepDiff:
    """What differs in one step.

    Attributes:
        path: the step.
        kind: whether only the second has it, or only the first, or both and not the same.
        changes: what differs in its result, where both have it: `outcome`, `output`, `error`, `code`, `version`,
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
    """What differs between two checkpoints.

    Attributes:
        changes: what differs beside the steps: `workflow`, `status`, `inputs`, `output`, `error`, `snapshot`, `evidence`,
            `code`, `in_flight`, `tags`.
        steps: the steps that differ, in the order of the second, what only the first has in between.
        same: how many steps are the same.
    """

    changes: Aspects
    steps: Sequence[StepDiff]
    same: int

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not self.changes and not self.steps

    def count(self, kind: ChangeKind) -> int:
        """Return how many steps were added, removed or changed.

        Args:
            kind: which.
        """
        return sum(step.kind is kind for step in self.steps)


def aspects_document(aspects: Aspects) -> dict[str, Any]:
    """Return changes as plain JSON.

    Args:
        aspects: the changes.
    """
    return {name: [change.to_document() for change in found] for name, found in aspects.items()}
