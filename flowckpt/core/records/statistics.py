"""Statistics of a store."""

from __future__ import annotations

import heapq
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date

import attrs

from flowckpt.core.records.checkpoint import CheckpointData, Reason, Status, recorded_claims
from flowckpt.core.records.listing import CheckpointRef, RunInfo
from flowckpt.core.records.result import COMPOSITES, StepResult, figures_by_name, sum_numbers
from flowckpt.core.system import external


@attrs.frozen
class DayStatistics:
    """The activity of one day, in UTC.

    Attributes:
        day: the day.
        runs: the number of runs started.
        checkpoints: the number of checkpoints saved.
        size: bytes of their records.
    """

    day: date
    runs: int
    checkpoints: int
    size: int


@attrs.frozen
class RunStatistics:
    """The size of a run.

    Attributes:
        workflow_name: its workflow.
        checkpoints: the number of its checkpoints, including those that no longer count.
        size: bytes of their records.
    """

    workflow_id: str
    workflow_name: str
    checkpoints: int
    size: int


@attrs.frozen
class ClaimStatistics:
    """The verdicts on the claims of one kind when their steps ended, and at each later verification.

    Attributes:
        evidence_type: the kind.
        verified: the number of claims found to hold.
        failed: the number of claims found false.
        unknown: the number of claims that could not be checked, or were not checked.
    """

    evidence_type: str
    verified: int = 0
    failed: int = 0
    unknown: int = 0

    @property
    def total(self) -> int:
        """The number of claims."""
        return self.verified + self.failed + self.unknown

    @property
    def success_rate(self) -> float | None:
        """The share of claims found to hold, from 0 to 1; None without claims."""
        return self.verified / self.total if self.total else None


@attrs.frozen
class FailureStatistics:
    """How often one type of error occurred.

    Attributes:
        error_type: the qualified name of the exception's class; empty if none was recorded.
        steps: the number of steps that failed with it, after their last try.
        attempts: the number of attempts that ended with it.
    """

    error_type: str
    steps: int = 0
    attempts: int = 0


@attrs.frozen
class StepStatistics:
    """How long the steps of one path took.

    Attributes:
        workflow_name: the workflow.
        path: the path.
        times: the number of executions.
        median_ms: the median, in milliseconds.
        max_ms: the maximum, in milliseconds.
    """

    workflow_name: str
    path: str
    times: int
    median_ms: float
    max_ms: float


@attrs.frozen
class FigureStatistics:
    """One figure that steps recorded by `current_step().record(…)`.

    Attributes:
        name: the name.
        steps: the number of executed steps that recorded it.
        total: their sum.
        maximum: the largest value of a step.
    """

    name: str
    steps: int
    total: float
    maximum: float

    @property
    def mean(self) -> float:
        """The mean of the steps."""
        return self.total / self.steps


@attrs.frozen(kw_only=True)
class StoreStatistics:
    """Statistics of a store, or of one run in it.

    Checkpoints that no longer count are included, deleted ones are not. A result counts once, for the attempt that
    executed it, so not in a fork. Of a composite step, only its steps and claims count. Sizes are those of records,
    without large values.

    Attributes:
        statuses: the number of runs by status.
        checkpoints: the number of checkpoints.
        steps: the number of recorded executions of steps.
        size: bytes of the checkpoints' records.
        days: by day, earliest first, without empty days.
        largest_runs: largest first.
        largest_checkpoints: largest first.
        claims: by kind of claim, most frequent first.
        failures: by type of error, most frequent first.
        slowest_steps: by path, longest median first.
        figures: the figures that steps recorded, by name.
        unreadable: damaged runs that were left out.
        stored: total bytes, including large values, messages, locks and indexes; None if the medium does not report it.
    """

    statuses: Mapping[Status, int]
    checkpoints: int
    steps: int
    size: int
    days: Sequence[DayStatistics]
    largest_runs: Sequence[RunStatistics]
    largest_checkpoints: Sequence[CheckpointRef]
    claims: Sequence[ClaimStatistics]
    failures: Sequence[FailureStatistics]
    slowest_steps: Sequence[StepStatistics]
    figures: Sequence[FigureStatistics] = ()
    unreadable: Sequence[str] = ()
    stored: int | None = None

    @property
    def runs(self) -> int:
        """The number of runs."""
        return sum(self.statuses.values())

    @property
    def mean_run_size(self) -> float | None:
        """The mean size of a run's records in bytes; None without runs."""
        return self.size / self.runs if self.runs else None

    @property
    def all_claims(self) -> ClaimStatistics:
        """The claims of all kinds together."""
        counts = [(kind.verified, kind.failed, kind.unknown) for kind in self.claims]
        return ClaimStatistics("", *map(sum, zip(*counts, strict=True))) if counts else ClaimStatistics("")


def sort_claims(found: Mapping[str, Mapping[str, int]]) -> tuple[ClaimStatistics, ...]:
    """Return the statistics of claims, the most frequent kind first."""
    made = [
        ClaimStatistics(
            kind,
            answers.get("verified", 0),
            answers.get("failed", 0),
            sum(count for answer, count in answers.items() if answer not in ("verified", "failed")),
        )
        for kind, answers in found.items()
    ]
    return tuple(sorted(made, key=lambda each: (-each.total, each.evidence_type)))


def sort_failures(steps: Mapping[str, int], attempts: Mapping[str, int]) -> tuple[FailureStatistics, ...]:
    """Return the statistics of failures, the most frequent type of error first."""
    made = [FailureStatistics(kind, steps.get(kind, 0), attempts.get(kind, 0)) for kind in {**steps, **attempts}]
    return tuple(sorted(made, key=lambda each: (-each.steps - each.attempts, each.error_type)))


def sort_figures(recorded: Iterable[Mapping[str, int | float]]) -> tuple[FigureStatistics, ...]:
    """Return the statistics of recorded figures, by name."""
    found = sorted(figures_by_name(recorded).items())
    return tuple(FigureStatistics(name, len(values), sum_numbers(values), max(values)) for name, values in found)


def sort_days(runs: Mapping[date, int], checkpoints: Mapping[date, tuple[int, int]]) -> tuple[DayStatistics, ...]:
    """Return the statistics of days, the earliest first.

    Args:
        runs: the number of runs started, by day.
        checkpoints: the number of checkpoints saved and the bytes of their records, by day.
    """
    days = sorted({*runs, *checkpoints})
    return tuple(DayStatistics(day, runs.get(day, 0), *checkpoints.get(day, (0, 0))) for day in days)


# --- sums over runs and attempts, without keeping a run in memory
# -------------------------------------------------------


@attrs.frozen
class RecordedAttempt:
    """The records of an attempt, for the statistics.

    Attributes:
        references: its checkpoints.
        results: the results of the steps that it executed.
        error_type: the type of the error that ended it, or None.
    """

    references: Sequence[CheckpointRef]
    results: Sequence[StepResult]
    error_type: str | None

    @classmethod
    def of(cls, references: Sequence[CheckpointRef], last: CheckpointData, *, is_all: bool = False) -> RecordedAttempt:
        """Return the records of an attempt.

        Args:
            references: its checkpoints.
            last: the last of them.
            is_all: whether they belong to all attempts, because they cannot be distinguished.
        """
        made = [each for each in last.step_results if each.attempt == last.attempt or (is_all and each.attempt)]
        return cls(
            references, made, last.error.type if last.reason is Reason.FAILED and last.error is not None else None
        )


class Tally:
    """Sums that grow with each run.

    It keeps a number for each executed step (8 bytes), the figures that steps recorded, and otherwise only sums.

    Args:
        limit: how many of the largest and slowest to return.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._statuses: Counter[Status] = Counter()
        self._steps = self._size = 0
        self._runs_of_days: Counter[date] = Counter()
        self._days: dict[date, tuple[int, int]] = {}
        self._runs: list[RunStatistics] = []
        self._checkpoints: list[CheckpointRef] = []
        self._claims: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._failed_steps: Counter[str] = Counter()
        self._failed_attempts: Counter[str] = Counter()
        self._figures: list[Mapping[str, int | float]] = []
        self._durations: defaultdict[tuple[str, str], array[float]] = defaultdict(lambda: array("d"))
        self._unreadable: list[str] = []

    def add_run(
        self,
        info: RunInfo,
        attempts: Iterable[RecordedAttempt],
        verified_later: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        """Add a run.

        Args:
            info: the run.
            attempts: its attempts.
            verified_later: the verdicts of later verifications and refused commits, by kind of claim.
        """
        for kind, answers in (verified_later or {}).items():
            self._claims[kind].update(answers)
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
            [*self._runs, RunStatistics(info.workflow_id, info.workflow_name, count, size)], self._limit
        )

    def add_unreadable(self, workflow_id: str) -> None:
        """Count a run as unreadable."""
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
            if result.figures:
                self._figures.append(result.figures)
            if not result.success:
                self._failed_steps["" if result.error is None else result.error.type] += 1
        for claim, answer in recorded_claims(result.evidence) if result.evidence is not None else ():
            kind = claim.get("evidence_type") if isinstance(claim, dict) else ""
            self._claims[str(kind)][str(answer.get("status"))] += 1

    def figures(self) -> StoreStatistics:
        """Return the statistics of all added runs."""
        slowest = (
            StepStatistics(name, path, len(taken), external.statistics.median(taken), max(taken))
            for (name, path), taken in self._durations.items()
        )
        return StoreStatistics(
            statuses=dict(self._statuses),
            checkpoints=sum(count for count, _ in self._days.values()),
            steps=self._steps,
            size=self._size,
            days=sort_days(self._runs_of_days, self._days),
            largest_runs=tuple(self._runs),
            largest_checkpoints=tuple(self._checkpoints),
            claims=sort_claims(self._claims),
            failures=sort_failures(self._failed_steps, self._failed_attempts),
            figures=sort_figures(self._figures),
            slowest_steps=tuple(heapq.nsmallest(self._limit, slowest, key=_slowness)),
            unreadable=tuple(self._unreadable),
        )


def largest_runs(found: Iterable[RunStatistics], limit: int) -> list[RunStatistics]:
    """Return the largest runs, the largest first."""
    return heapq.nsmallest(limit, found, key=lambda run: (-run.size, run.workflow_id))


def largest_checkpoints(found: Iterable[CheckpointRef], limit: int) -> list[CheckpointRef]:
    """Return the largest checkpoints, the largest first."""
    return heapq.nsmallest(limit, found, key=lambda each: (-each.size, each.workflow_id, each.sequence))


def _slowness(step: StepStatistics) -> tuple[float, float, str, str]:
    return -step.median_ms, -step.max_ms, step.workflow_name, step.path
