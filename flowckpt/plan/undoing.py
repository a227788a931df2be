"""Which steps are undone when a run fails, and which were: told from the history alone.

What `.rollback(fn)` did is a result of its own, with the path of the step and `@rollback` behind it, so a second crash in
the middle of undoing leaves no doubt about what is left to undo. No step has such a path: an `@` in a name is encoded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from flowckpt.checkpoint import StepResult

ROLLBACK = "rollback"
"""The step type of the result of undoing a step."""
UNFINISHED = "rolling_back"
"""In the metadata of a run, while its steps are undone: how it ends then."""
_SUFFIX = "@rollback"
UNDOABLE = "undoable"
"""Marks the result of a step that said how it is undone: where edited code no longer yields it, that is known."""


def undo_path(path: str) -> str:
    """Return the path of the result of undoing a step.

    Args:
        path: the step.
    """
    return path + _SUFFIX


def step_of(path: str) -> str:
    """Return the step whose undoing left a result.

    Args:
        path: of that result.
    """
    return path.removesuffix(_SUFFIX)


def undone_paths(results: Iterable[StepResult]) -> set[str]:
    """Return the steps that were undone.

    Args:
        results: the history.
    """
    return {step_of(each.path) for each in results if each.step_type == ROLLBACK and each.success}


def not_yielded(results: Iterable[StepResult], yielded: Collection[str]) -> list[StepResult]:
    """Return the results that were to be undone and whose step nobody yields any more, the oldest first.

    Args:
        results: the history.
        yielded: the steps that the code yields now; what they say of undoing counts, and not what the record says.
    """
    view = [*results]
    undone = undone_paths(view)
    return [
        each
        for each in view
        if each.success and UNDOABLE in each.marks and each.path not in yielded and each.path not in undone
    ]


def left_to_undo(results: Sequence[StepResult], undoable: Collection[str]) -> list[StepResult]:
    """Return the results that are to be undone, the newest first.

    Args:
        results: the history.
        undoable: the steps that say how they are undone.
    """
    if not undoable:
        return []
    undone = undone_paths(results)
    return [each for each in reversed(results) if each.success and each.path in undoable and each.path not in undone]
