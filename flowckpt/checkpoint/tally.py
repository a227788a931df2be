"""Adding up the figures of a store from what it lists: run by run, attempt by attempt, holding no run."""

from __future__ import annotations

import heapq
import statistics
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, date

import attrs

from flowckpt.checkpoint.data import CheckpointData, Reason, Status
from flowckpt.checkpoint.figures import (
    RunFigures,
    StepFigures,
    StoreFigures,
    claims_in_order,
    days_in_order,
    failures_in_order,
)
from flowckpt.checkpoint.reference import CheckpointRef, RunInfo
from flowckpt.checkpoint.result import COMPOSITES, StepResult
from flowckpt.checkpoint.verified import recorded_claims


@attrs.frozen
class RecordedAttempt:
    """What an attempt recorded, for the figures.

    Attributes:
        references: its checkpoints.
        results: the results of the steps that it executed.
        error_type: the type of the error that ended it; None where none did.
    """

    references: Sequence[CheckpointRef]
    results: Sequence[StepResult]
    error_type: str | None

    @classmethod
    def of(cls, references: Sequence[CheckpointRef], last: CheckpointData, *, is_all: bool = False) -> RecordedAttempt:
        """Return what an attempt recorded.

        Args:
            references: its checkpoints.
            last: the last of them, as it left it.
            is_all: whether they are those of all attempts, as nothing tells them apart.
        """
        made = [each for each in last.step_results if each.attempt == last.attempt or (is_all and each.attempt)]
        return cls(
            references, made, last.error.type if last.reason is Reason.FAILED and last.error is not None else None
        )


class Tally:
    """Figures that grow with each run.

    It holds a number for each executed step (8 bytes), and else only sums.

    Args:
        limit: how many of the largest and of the slowest are wanted.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._statuses: Counter[Status] = Counter()
        self._steps = self._size = 0
        self._runs_of_days: Counter[date] = Counter()
        self._days: dict[date, tuple[int, int]] = {}
        self._runs: list[RunFigures] = []
        self._checkpoints: list[CheckpointRef] = []
        self._claims: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._failed_steps: Counter[str] = Counter()
        self._failed_attempts: Counter[str] = Counter()
        self._durations: defaultdict[tuple[str, str], array[float]] = defaultdict(lambda: array("d"))
        self._unreadable: list[str] = []

    def add_run(self, info: RunInfo, attempts: Iterable[RecordedAttempt]) -> None:
        """Add a run.

        Args:
            info: the run.
            attempts: its attempts.
        """
        self._statuses[info.status] += 1
        self._runs_of_days[info.started_at.astimezone(UTC).date()] += 1
        count = size = 0
        for attempt in attempts:
            for reference in attempt.references:
                count, size = count + 1, size + reference.size
                self._add_checkpoint(reference)
            for result in attempt.results:
                self._add_result(info.workflow_name, result)
            if attempt.error_type is not None:
                self._failed_attempts[attempt.error_type] += 1
        self._size += size
        self._runs = largest_runs(
            [*self._runs, RunFigures(info.workflow_id, info.workflow_name, count, size)], self._limit
        )

    def add_unreadable(self, workflow_id: str) -> None:
        """Note that a run is left out.

        Args:
            workflow_id: the run.
        """
        self._unreadable.append(workflow_id)

    def _add_checkpoint(self, reference: CheckpointRef) -> None:
        day = reference.saved_at.astimezone(UTC).date()
        count, size = self._days.get(day, (0, 0))
        self._days[day] = (count + 1, size + reference.size)
        if len(self._checkpoints) < self._limit or reference.size >= self._checkpoints[-1].size:
            self._checkpoints = largest_checkpoints([*self._checkpoints, reference], self._limit)

    def _add_result(self, workflow_name: str, result: StepResult) -> None:
        if result.step_type not in COMPOSITES:
            self._steps += 1
            self._durations[workflow_name, result.path].append(result.duration_ms)
            if not result.success:
                self._failed_steps["" if result.error is None else result.error.type] += 1
        for claim, answer in recorded_claims(result.evidence) if result.evidence is not None else ():
            kind = claim.get("evidence_type") if isinstance(claim, dict) else ""
            self._claims[str(kind)][str(answer.get("status"))] += 1

    def figures(self) -> StoreFigures:
        """Return what was added up."""
        slowest = (
            StepFigures(name, path, len(taken), statistics.median(taken), max(taken))
            for (name, path), taken in self._durations.items()
        )
        return StoreFigures(
            statuses=dict(self._statuses),
            checkpoints=sum(count for count, _ in self._days.values()),
            steps=self._steps,
            size=self._size,
            days=days_in_order(self._runs_of_days, self._days),
            largest_runs=tuple(self._runs),
            largest_checkpoints=tuple(self._checkpoints),
            claims=claims_in_order(self._claims),
            failures=failures_in_order(self._failed_steps, self._failed_attempts),
            slowest_steps=tuple(heapq.nsmallest(self._limit, slowest, key=_slowest_first)),
            unreadable=tuple(self._unreadable),
        )


def largest_runs(found: Iterable[RunFigures], limit: int) -> list[RunFigures]:
    """Return the largest runs, the largest first.

    Args:
        found: some runs.
        limit: how many at most.
    """
    return heapq.nsmallest(limit, found, key=lambda run: (-run.size, run.workflow_id))


def largest_checkpoints(found: Iterable[CheckpointRef], limit: int) -> list[CheckpointRef]:
    """Return the largest checkpoints, the largest first.

    Args:
        found: some checkpoints.
        limit: how many at most.
    """
    return heapq.nsmallest(limit, found, key=lambda each: (-each.size, each.workflow_id, each.sequence))


def _slowest_first(step: StepFigures) -> tuple[float, float, str, str]:
    return -step.median_ms, -step.max_ms, step.workflow_name, step.path
