"""The recorded results as a generator meets them: its own steps by path, and what is nested in them.

The history is flat, in the order in which results came. A generator knows the paths of its own steps alone; a result
further down (`pages/[17]`, `train/fit`) belongs to the step that it is nested in, and waits together with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs

from flowckpt.checkpoint import StepResult

Own = dict[str, StepResult | None]
"""The results of a generator's own steps; None for one that has not ended, although steps nested in it have."""
Nested = dict[str, list[StepResult]]


def split_record(recorded: Iterable[StepResult], prefix: str = "") -> tuple[Own, Nested]:
    """Split results into a generator's own and those nested in its steps.

    Args:
        recorded: the results, in the order of the history.
        prefix: what the paths of its steps begin with.
    """
    own: Own = {result.path: result for result in recorded}
    start = len(prefix)
    if not any("/" in path[start:] for path in own):
        return own, {}
    split: Own = {}
    nested: Nested = {}
    for path, result in own.items():
        end = path.find("/", start)
        if end < 0:
            split[path] = result
        elif result is not None:
            split.setdefault(path[:end], None)
            nested.setdefault(path[:end], []).append(result)
    return split, nested


@attrs.define(eq=False, repr=False)
class SetAside:
    """Results that are not part of the run, or no longer: one for all the generators of a run.

    Attributes:
        dropped: recorded results that are no longer part of the run.
        spare: results that steps may get back when they are yielded, by path.
    """

    dropped: list[StepResult] = attrs.field(factory=list)
    spare: dict[str, StepResult] = attrs.field(factory=dict)

    def take(self, path: str) -> StepResult | None:
        """Take the spare result of a step, if there is one."""
        return self.spare.pop(path, None)

    def take_nested(self, path: str) -> list[StepResult]:
        """Take the spare results nested in a step."""
        if not self.spare:
            return []
        found = [each for each in self.spare if each.startswith(f"{path}/")]
        return [self.spare.pop(each) for each in found]


def all_of(own: Mapping[str, StepResult | None], nested: Mapping[str, list[StepResult]]) -> Iterator[StepResult]:
    """Yield the results of a record, those nested in a step before its own."""
    for path, result in own.items():
        yield from nested.get(path, ())
        if result is not None:
            yield result
