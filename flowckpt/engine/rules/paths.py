"""Dependencies between steps, from paths and their order alone.

The steps of a generator run one after another: each may depend on all earlier ones. The members of a fan-out (in
brackets, `pages/[17]`) are independent of each other. So when a step runs again, these results no longer count:

- those of the step and of everything nested in it;
- those of the steps that its own generator yielded later;
- those of the step that contains it, and of what depends on that one in the same way, up to the run itself.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from flowckpt.core.records import CheckpointData, StepResult
from flowckpt.core.records.result import FAN_OUTS
from flowckpt.core.system.attrs_base import FieldEquality, lazy_frozen
from flowckpt.core.system.declared import type_name
from flowckpt.errors import InputError, StepNotFoundError, StepStoppedError


def find_path(workflow_id: str, results: Sequence[StepResult], wanted: str) -> str:
    """Return the path of a step, given as a path or as a name (then its first use).

    Raises:
        StepNotFoundError: no result has this path or name.
    """
    paths = [result.path for result in results]
    if wanted in paths:
        return wanted
    for result in results:
        if result.name == wanted:
            return result.path
    raise StepNotFoundError(workflow_id, wanted, known=paths)


def results_after(results: Sequence[StepResult], path: str) -> Iterator[StepResult]:
    """Yield the results that no longer count when a step runs again, except its own and those nested in it.

    Args:
        results: the history.
        path: the step.
    """
    above = [*_outer_paths(path)]
    levels = [(each, each[: each.rfind("/") + 1]) for each in (path, *above)]
    sequential = [(each, scope) for each, scope in levels if each[len(scope) : len(scope) + 1] != "["]
    outer, inside = {each for each, _ in levels}, tuple(f"{each}/" for each, _ in levels)
    begun: set[str] = set()
    for result in results:
        at = result.path
        if at in outer or at.startswith(inside):
            begun.update(each for each, _ in levels if is_within(at, each))
            if is_within(at, path):
                continue
        elif not begun:
            continue  # the usual case in a long history
        if at in above or any(
            at.startswith(scope) and each in begun and not is_within(at, each) for each, scope in sequential
        ):
            yield result


def is_after(path: str, earlier: str) -> bool:
    """Return whether an unfinished step depends on a finished one, so that it starts over when that one runs again.

    Args:
        path: the unfinished step.
        earlier: the finished step.
    """
    for each in (earlier, *_outer_paths(earlier)):
        scope = each[: each.rfind("/") + 1]
        if each[len(scope) : len(scope) + 1] != "[" and path.startswith(scope) and not is_within(path, each):
            return True
    return is_within(path, earlier)


def is_within(path: str, outer: str) -> bool:
    """Return whether a path is that of a step or of a step nested in it.

    Args:
        path: the path.
        outer: the path of the step.
    """
    return path == outer or (path.startswith(outer) and path[len(outer) : len(outer) + 1] == "/")


def group_nested(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return, by path, the direct children of each step that are in `paths` or have a descendant in `paths`.

    Args:
        paths: the steps.
    """
    children: dict[str, dict[str, None]] = {}
    for path in paths:
        inner = path
        for outer in _outer_paths(path):
            directly = children.setdefault(outer, {})
            if inner in directly:
                break
            directly[inner] = None
            inner = outer
    return {outer: list(directly) for outer, directly in children.items()}


def list_below(nested: Mapping[str, list[str]], paths: Iterable[str]) -> list[str]:
    """Return the steps nested in some steps, at any depth.

    Args:
        nested: the value of `group_nested`.
        paths: the steps.
    """
    descendants: list[str] = []
    unseen = [*paths]
    while unseen:
        more = nested.get(unseen.pop(), [])
        descendants += more
        unseen += more
    return descendants


def root_failures(results: Sequence[StepResult], path: str) -> list[str]:
    """Return the steps whose failures made a step fail: the step itself, or steps nested in it.

    Args:
        results: the history.
        path: the step that failed.
    """
    by_path = {result.path: result for result in results}
    roots: list[str] = []
    unseen = [path]
    while unseen:
        at = unseen.pop(0)
        result = by_path.get(at)
        error = None if result is None else result.error
        if result is None or result.success or error is None:
            continue
        deeper: list[str] = []
        if result.step_type in FAN_OUTS:  # includes those that failed while the others were being stopped
            members = [each for each in by_path if each.startswith(f"{at}/") and "/" not in each[len(at) + 1 :]]
            deeper = [each for each in members if not by_path[each].success] + _find_stranded(results, by_path, at)
        elif error.path != at and is_within(error.path, at) and error.path in by_path:
            deeper = [error.path]
        unseen += deeper
        if not deeper:
            roots.append(at)
    return roots


@lazy_frozen(eq=False, repr=False)
class HandledFailure(FieldEquality):
    """A failure that the workflow handled before the run failed: a resume keeps it and does not retry the step.

    Attributes:
        path: the step that failed.
        followed_by: the steps that the workflow yielded after it.
    """

    path: str
    followed_by: tuple[str, ...]

    def to_document(self) -> dict[str, Any]:
        """Return the failure as plain JSON."""
        return {"path": self.path, "followed_by": [*self.followed_by]}


def find_handled_failure(results: Sequence[StepResult], path: str) -> HandledFailure | None:
    """Return a failure if the workflow handled it by yielding another step; None if it ended the workflow directly.

    Args:
        results: the history.
        path: the step that failed.
    """
    above = {*_outer_paths(path)}
    later = (each for each in results_after(results, path) if each.path not in above and each.step_type != ROLLBACK)
    followed_by = tuple(each.path for each in later)
    return HandledFailure(path, followed_by) if followed_by else None


def make_handled_search(results: Sequence[StepResult], *, drops_what_follows: bool) -> Callable[[str], str]:
    """Return a function from a step to the newest handled failure that a rerun of the step drops; empty for none.

    The failed member of a map that tolerates failures does not count: no handler ran because of it.

    Args:
        results: the history.
        drops_what_follows: whether a rerun also drops everything after the step.
    """

    @functools.cache
    def handled() -> frozenset[str]:
        continued: set[str] = set()  # the scopes that yielded something later
        settled: set[str] = set()  # composites that succeeded, and after which a scope around them yielded something
        failures = []
        for result in reversed(results):
            scope, _, place = result.path.rpartition("/")
            is_member = place.startswith("[")
            is_followed = scope in settled or (scope in continued and not is_member)
            if is_followed and result.success:
                settled.add(result.path)
            elif is_followed and not is_member:
                failures.append(result.path)
            if result.step_type != ROLLBACK:
                continued.add(scope)
        return frozenset(failures)

    def after(path: str) -> str:
        if not handled():
            return ""
        dropped = [path, *(each.path for each in results_after(results, path))] if drops_what_follows else [path]
        return next((each for each in reversed(dropped) if each in handled()), "")

    return after


def find_handled_end(results: Sequence[StepResult], path: str) -> HandledFailure | None:
    """Return the handled failure with which a run failed; None if a resume has something to run again.

    Args:
        results: the history.
        path: the step with whose failure the run failed; may be empty.
    """
    if not path or undone_paths(results) - find_undone_in_races(results).keys():
        return None
    failures = [find_handled_failure(results, each) for each in root_failures(results, path)]
    return failures[0] if failures and all(failures) else None


def _find_stranded(results: Sequence[StepResult], by_path: Mapping[str, StepResult], fan_out: str) -> list[str]:
    """Return the failures that were propagating when the fan-out was stopped.

    The steps that contain them have not ended.

    A failure that a child workflow has handled does not count: the child has continued to another step.
    """
    start = f"{fan_out}/"
    last: dict[str, str] = {}
    for result in results:
        path = result.path
        while path.startswith(start):
            scope = path[: path.rfind("/")]
            last[scope], path = path, scope
    stranded = []
    for result in results:
        scope, _, place = result.path.rpartition("/")
        is_inside = scope.startswith(start) and scope not in by_path
        if is_inside and not result.success and (place.startswith("[") or last[scope] == result.path):
            stranded.append(result.path)
    return stranded


def _outer_paths(path: str) -> Iterator[str]:
    """Yield the steps that contain a step, innermost first."""
    while "/" in path:
        path = path[: path.rfind("/")]
        yield path


# Which results of a run a fork takes over, from paths and their order alone.
#
# A fork from a step runs the same steps again as a resume from it: the step, everything nested in it, and what depends
# on it. Parallel members of a fan-out stay. An edited step keeps its new output; what depends on it is dropped.


def select_for_fork(
    results: Sequence[StepResult], length: int, from_path: str, edited: Collection[str]
) -> list[StepResult]:
    """Return the results that are taken over unchanged, in their order.

    Args:
        results: the history of the source.
        length: how many of them count: up to the first one that failed or was undone.
        from_path: the step from which everything runs again; empty for none.
        edited: the steps whose outputs are replaced.

    Raises:
        InputError: an edit would be dropped, because an earlier step runs again; or the edits and `from_path`
            contradict each other.
    """
    gone = _find_gone(results, from_path) if from_path else set()
    if edited:
        _refuse_dropped_edits(results, edited)
        behind_edits = set().union(*(_find_gone(results, path) for path in edited)) - {*edited}
        if from_path and behind_edits != gone - {*edited}:
            names = ", ".join(map(repr, edited))
            raise InputError(
                f"--from {from_path!r} does not fit the edits: an edit of {names} drops only what depends on it",
                parameter=from_path,
                remedy="Leave out --from.",
            )
        gone = behind_edits | {*edited}
    return [result for result in results[:length] if result.path not in gone]


def _find_gone(results: Sequence[StepResult], path: str) -> set[str]:
    """Return the results that no longer count when a step runs again."""
    within = {each.path for each in results if is_within(each.path, path)}
    return within | {each.path for each in results_after(results, path)}


def _refuse_dropped_edits(results: Sequence[StepResult], edited: Collection[str]) -> None:
    """Refuse two edits if a step between them depends on the first, and the second depends on that step."""
    order = [result.path for result in results if result.path in edited]
    for at, first in enumerate(order):
        dropped = [each.path for each in results_after(results, first) if each.path not in edited]
        for second in order[at + 1 :]:
            beside = [each for each in dropped if not is_within(second, each)]  # steps nested in it may stay
            between = next((each for each in beside if second in _find_gone(results, each)), None)
            if between is not None:
                raise InputError(
                    f"step {between!r} is between {first!r} and {second!r}: the steps after an edited one are dropped, "
                    "and would run again",
                    parameter=between,
                    remedy=f"Set {between!r} too, or only one of the others.",
                )


# Which steps to undo when a run fails, and which are already undone, from the history alone.
#
# Each call of a compensation (`.rollback(fn)`) has a result of its own, under the path of the step plus `@rollback`. So
# after a crash in the middle of a rollback, the record shows what remains to be undone. No step has such a path: an `@`
# in a name is encoded.


ROLLBACK = "rollback"
"""The step type of the result of undoing a step."""
UNFINISHED = "rolling_back"
"""Metadata key while a run is rolled back: how the run ends afterwards."""
FAILED_AT = "failed_at"
"""Metadata key of a cancelled run that had failed: the step whose failure had ended it, which a resume runs again."""
_SUFFIX = "@rollback"
UNDOABLE = "undoable"
"""Marks the result of a step with a compensation, so that this is known even if edited code no longer yields it."""


def undo_path(path: str) -> str:
    """Return the path under which the undo of a step is recorded."""
    return path + _SUFFIX


def step_of(path: str) -> str:
    """Return the step whose undo is recorded under a path."""
    return path.removesuffix(_SUFFIX)


def find_unended(started: Iterable[str], results: Iterable[StepResult]) -> list[str]:
    """Return the steps that were started and have no recorded end, without the undos."""
    ended = {each.path for each in results}
    return [path for path in started if path not in ended and step_of(path) == path]


def list_in_flight(latest: CheckpointData, started: Iterable[str]) -> tuple[str, ...]:
    """Return the steps without a recorded end, also those that only the store knows the last owner to have started.

    An attempt that runs no step saves them, because the store forgets them then.
    """
    return tuple(dict.fromkeys((*latest.in_flight, *find_unended(started, latest.step_results))))


def undone_paths(results: Iterable[StepResult]) -> set[str]:
    """Return the steps that were undone.

    Args:
        results: the history.
    """
    return {step_of(each.path) for each in results if each.step_type == ROLLBACK and each.success}


_STOPPED = type_name(StepStoppedError)


def is_stopped(result: StepResult | None) -> bool:
    """Return whether a step was stopped because enough other members of its race had succeeded."""
    return result is not None and result.error is not None and result.error.type == _STOPPED


def find_undone_in_races(results: Iterable[StepResult]) -> dict[str, list[StepResult]]:
    """Return the undo results of steps in stopped members of a race, by step.

    They stay undone as long as the end of the race counts, however the run continues.

    Args:
        results: the history.
    """
    view = [*results]
    undoing = [each for each in view if each.step_type == ROLLBACK]
    stopped = {each.path for each in view if is_stopped(each)} if undoing else set()
    undone: dict[str, list[StepResult]] = {}
    for each in undoing:
        path = step_of(each.path)
        if any(above in stopped for above in _outer_paths(path)):
            undone.setdefault(path, []).append(each)
    return undone


def split_stopped_member(nested: Sequence[StepResult]) -> tuple[list[StepResult], list[StepResult]]:
    """Return which results of a stopped member still count if it runs after all, and which do not.

    Undone results do not count, and neither does anything in the member that depends on them.

    Args:
        nested: the results of the member's steps, including undo results.
    """
    undone = undone_paths(nested)
    steps = [each for each in nested if each.step_type != ROLLBACK]
    gone = set(undone)
    for path in undone:
        gone.update(each.path for each in results_after(steps, path))
    standing = [each for each in steps if each.path not in gone]
    return standing, [each for each in nested if each.step_type == ROLLBACK or each.path in gone]


def find_not_yielded(results: Iterable[StepResult], yielded: Collection[str]) -> list[StepResult]:
    """Return the results that should be undone but whose step is no longer yielded, oldest first.

    Args:
        results: the history.
        yielded: the steps that the code yields now; their compensations count, not the recorded marks.
    """
    return [each for each in _list_own_effects(results) if UNDOABLE in each.marks and each.path not in yielded]


def merge_set_aside(results: Iterable[StepResult], set_aside: Iterable[StepResult]) -> list[StepResult]:
    """Return a history with the results that a rerun has set aside among its results, by when each of them ended.

    Args:
        results: the history, which keeps its order: a result that was reused stays after those that it depends on.
        set_aside: the results that may still have to be undone.
    """
    view, others = [*results], [*set_aside]
    if not others:
        return view
    ends = [*itertools.accumulate(map(_end_of, reversed(view)), min)][::-1]
    ordered = sorted([*zip(ends, view, strict=True), *((_end_of(each), each) for each in others)], key=itemgetter(0))
    return [each for _, each in ordered]


def _end_of(result: StepResult) -> tuple[int, float]:
    """Return the attempt in which a step ended, whose clock may differ from that of others, and the time."""
    began = 0.0 if result.started_at is None else result.started_at.timestamp()
    return result.attempt, began + result.duration_ms / 1e3


def find_left_to_undo(results: Sequence[StepResult], undoable: Collection[str]) -> list[StepResult]:
    """Return the results that remain to be undone, newest first.

    Args:
        results: the history.
        undoable: the steps with a compensation.
    """
    return [each for each in _list_own_effects(results)[::-1] if each.path in undoable] if undoable else []


def _list_own_effects(results: Iterable[StepResult]) -> list[StepResult]:
    """Return the successful results that this run may undo, oldest first.

    What a fork took over belongs to its source, and so does a composite step that contains such a result.
    """
    view = [*results]
    gone = undone_paths(view)
    for each in view:
        if not each.attempt:
            gone.update((each.path, *_outer_paths(each.path)))
    return [each for each in view if each.success and each.path not in gone]


def find_ended_wait(results: Sequence[StepResult], to: str, path: str) -> StepResult | None:
    """Return the ended wait that a step replies to: the last one with a name in the step's own scope, or with a path.

    Args:
        results: the results so far.
        to: the name of the step that waited, or its path.
        path: the step that replies.
    """
    scope = path.rpartition("/")[0]
    for result in reversed(results):
        is_named = result.name == to and result.path.rpartition("/")[0] == scope
        if result.step_type == "wait" and (is_named or result.path == to):
            return result
    return None
