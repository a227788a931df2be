"""Which results of a run a new one takes over, told from paths and their order alone.

What is run again from a step on is what a resume with the same step runs again: the step with all that is nested in it,
and what depends on it. Members of a fan-out beside it stay. An edited step is there already; what depends on it goes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flowckpt.checkpoint import StepResult
from flowckpt.errors import InputError
from flowckpt.plan.behind import is_within, results_behind


def taken_over(results: Sequence[StepResult], length: int, from_path: str, edited: Collection[str]) -> list[StepResult]:
    """Return the results that are taken over as they are, in their order.

    Args:
        results: the history of the source.
        length: how many of them stand: what failed, or was undone, and what follows it do not.
        from_path: the step from which on everything is run again; empty for none.
        edited: the steps whose outputs are replaced.

    Raises:
        InputError: an edit would be dropped, because something before it is run again; or the edits and `from_path`
            contradict each other.
    """
    gone = _gone(results, from_path) if from_path else set()
    if edited:
        _refuse_dropped_edits(results, edited)
        behind_edits = set().union(*(_gone(results, path) for path in edited)) - {*edited}
        if from_path and behind_edits != gone - {*edited}:
            names = ", ".join(map(repr, edited))
            raise InputError(
                f"to run again from {from_path!r} on does not fit the edits: what depends on {names} is dropped, and "
                "nothing else is",
                parameter=from_path,
                remedy="Leave --from out.",
            )
        gone = behind_edits | {*edited}
    return [result for result in results[:length] if result.path not in gone]


def _gone(results: Sequence[StepResult], path: str) -> set[str]:
    """Return what does not count any more when a step is run again."""
    within = {each.path for each in results if is_within(each.path, path)}
    return within | {each.path for each in results_behind(results, path)}


def _refuse_dropped_edits(results: Sequence[StepResult], edited: Collection[str]) -> None:
    """Refuse two edits between which a step stands that depends on the first, and that the second depends on."""
    order = [result.path for result in results if result.path in edited]
    for at, first in enumerate(order):
        dropped = [each.path for each in results_behind(results, first) if each.path not in edited]
        for second in order[at + 1 :]:
            beside = [each for each in dropped if not is_within(second, each)]  # what it is made of may stay
            between = next((each for each in beside if second in _gone(results, each)), None)
            if between is not None:
                raise InputError(
                    f"step {between!r} stands between {first!r} and {second!r}: what follows an edited step is dropped, "
                    "and would be run again",
                    parameter=between,
                    remedy=f"Set {between!r} too, or only one of the others.",
                )
