"""When a run is tried again that stands where it stood when it was tried before: not at once, and less and less often."""

from __future__ import annotations

from collections.abc import Collection

import attrs

from flowckpt.recovery.due import DueRun, State
from flowckpt.recovery.outcome import Outcome

FIRST_SECONDS = 30.0
MOST_SECONDS = 3600.0


@attrs.frozen
class _Tried:
    state: State
    count: int
    not_before: float
    has_died: bool


@attrs.define
class Tries:
    """What a recoverer has tried, and must not try again yet. One process knows it; the record counts deaths for all.

    Attributes:
        first_seconds: how long the first pause is; each one after it is twice as long.
        most_seconds: the longest one.
    """

    first_seconds: float = FIRST_SECONDS
    most_seconds: float = MOST_SECONDS
    _tried: dict[str, _Tried] = attrs.field(init=False, factory=dict)

    def may_try(self, run: DueRun, now: float) -> bool:
        """Tell whether a run may be tried: for the first time, after its pause, or because it has moved.

        Args:
            run: the run.
            now: the time, in seconds of a clock that never goes back.
        """
        tried = self._tried.get(run.workflow_id)
        if tried is None or now >= tried.not_before:
            return True
        return not tried.has_died and tried.state != run.state

    def note(self, run: DueRun, outcome: Outcome, now: float) -> None:
        """Note what became of a run.

        Args:
            run: the run as it stood before it was tried.
            outcome: what became of it.
            now: the time.
        """
        before = self._tried.pop(run.workflow_id, None)
        if outcome in (Outcome.COMPLETED, Outcome.CANCELLED, Outcome.FAILED):
            return
        has_died = outcome is Outcome.DIED
        is_again = before is not None and (has_died or before.state == run.state)
        count = before.count + 1 if before is not None and is_again else 1
        pause = min(self.first_seconds * 2.0 ** min(count - 1, 60), self.most_seconds)
        self._tried[run.workflow_id] = _Tried(run.state, count, now + pause, has_died)

    def keep_only(self, runs: Collection[str]) -> None:
        """Forget the runs that are no longer to be recovered, so that a watcher does not grow.

        Args:
            runs: the ids of those that are.
        """
        for workflow_id in self._tried.keys() - set(runs):
            del self._tried[workflow_id]
