"""What depends on what, told from paths and their order alone.

The steps of a generator come one after another: each may depend on all before it. The members of a fan-out (in brackets,
`pages/[17]`) are there each for itself. So when a step is run again, these no longer count:

- the step, and what is nested in it;
- what its own generator yielded later;
- the step that it is nested in, and what depends on that in the same way, up to the run itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from flowckpt.checkpoint import StepResult

_FAN_OUT = frozenset({"map", "parallel"})


def results_behind(results: Sequence[StepResult], path: str) -> Iterator[StepResult]:
    """Yield the results that do not count when a step is run again, without its own and those nested in it.

    Args:
        results: the history.
        path: the step.
    """
    above = [*_above(path)]
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
            continue  # as nearly all of a long history
        if at in above or any(
            at.startswith(scope) and each in begun and not is_within(at, each) for each, scope in sequential
        ):
            yield result


def is_behind(path: str, earlier: str) -> bool:
    """Tell whether a step that has not ended depends on one that has, so that it is begun anew when that is run again.

    Args:
        path: the step that has not ended.
        earlier: the step that has.
    """
    for each in (earlier, *_above(earlier)):
        scope = each[: each.rfind("/") + 1]
        if each[len(scope) : len(scope) + 1] != "[" and path.startswith(scope) and not is_within(path, each):
            return True
    return is_within(path, earlier)


def is_within(path: str, outer: str) -> bool:
    """Tell whether a path is that of a step, or of one nested in it.

    Args:
        path: the path.
        outer: the step's.
    """
    return path == outer or (path.startswith(outer) and path[len(outer) : len(outer) + 1] == "/")


def nested_in(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return which steps lie in which: by path, those directly in it that are in `paths`, or have one further down.

    Args:
        paths: the steps.
    """
    found: dict[str, dict[str, None]] = {}
    for path in paths:
        inner = path
        for outer in _above(path):
            directly = found.setdefault(outer, {})
            if inner in directly:
                break
            directly[inner] = None
            inner = outer
    return {outer: list(directly) for outer, directly in found.items()}


def below(nested: Mapping[str, list[str]], paths: Iterable[str]) -> list[str]:
    """Return what lies in some steps, at any depth.

    Args:
        nested: what `nested_in` returned.
        paths: the steps.
    """
    found: list[str] = []
    unseen = [*paths]
    while unseen:
        more = nested.get(unseen.pop(), [])
        found += more
        unseen += more
    return found


def failures_behind(results: Sequence[StepResult], path: str) -> list[str]:
    """Return the steps whose failures made a step fail: itself, or those that it is made of.

    Args:
        results: the history.
        path: the step that failed.
    """
    by_path = {result.path: result for result in results}
    found: list[str] = []
    unseen = [path]
    while unseen:
        at = unseen.pop(0)
        result = by_path.get(at)
        error = None if result is None else result.error
        if result is None or result.success or error is None:
            continue
        deeper: list[str] = []
        if result.step_type in _FAN_OUT:  # also those that failed while the others were being stopped
            members = [each for each in by_path if each.startswith(f"{at}/") and "/" not in each[len(at) + 1 :]]
            deeper = [each for each in members if not by_path[each].success] + _stranded(results, by_path, at)
        elif error.path != at and is_within(error.path, at) and error.path in by_path:
            deeper = [error.path]
        unseen += deeper
        if not deeper:
            found.append(at)
    return found


def _stranded(results: Sequence[StepResult], by_path: Mapping[str, StepResult], fan_out: str) -> list[str]:
    """Return the failures that were on their way up when the fan-out was stopped: what they lie in has not ended.

    A failure that a child workflow has handled is none of them: it has gone on to another step.
    """
    start = f"{fan_out}/"
    last: dict[str, str] = {}
    for result in results:
        path = result.path
        while path.startswith(start):
            scope = path[: path.rfind("/")]
            last[scope], path = path, scope
    found = []
    for result in results:
        scope, _, place = result.path.rpartition("/")
        is_inside = scope.startswith(start) and scope not in by_path
        if is_inside and not result.success and (place.startswith("[") or last[scope] == result.path):
            found.append(result.path)
    return found


def _above(path: str) -> Iterator[str]:
    """Yield the steps that a step is nested in, the nearest first."""
    while "/" in path:
        path = path[: path.rfind("/")]
        yield path
