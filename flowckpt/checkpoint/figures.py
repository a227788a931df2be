"""What a store holds, in figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date

import attrs

from flowckpt.checkpoint.data import Status
from flowckpt.checkpoint.reference import CheckpointRef


@attrs.frozen
class DayFigures:
    """What was begun and saved on one day, in UTC.

    Attributes:
        day: the day.
        runs: how many runs were started.
        checkpoints: how many checkpoints were saved.
        size: bytes of their records.
    """

    day: date
    runs: int
    checkpoints: int
    size: int


@attrs.frozen
class RunFigures:
    """How large a run is.

    Attributes:
        workflow_id: the run.
        workflow_name: its workflow.
        checkpoints: how many checkpoints it has, those that no longer count included.
        size: bytes of their records.
    """

    workflow_id: str
    workflow_name: str
    checkpoints: int
    size: int


@attrs.frozen
class ClaimFigures:
    """How the claims of one kind were answered when their steps ended.

    Attributes:
        evidence_type: the kind.
        verified: how many were found to hold.
        failed: how many the world contradicted.
        unknown: how many nobody could tell of, or nobody asked about.
    """

    evidence_type: str
    verified: int = 0
    failed: int = 0
    unknown: int = 0

    @property
    def total(self) -> int:
        """How many claims there are."""
        return self.verified + self.failed + self.unknown

    @property
    def success_rate(self) -> float | None:
        """The share that was found to hold, from 0 to 1; None where there are none."""
        return self.verified / self.total if self.total else None


@attrs.frozen
class FailureFigures:
    """How often something failed with one type of error.

    Attributes:
        error_type: the qualified name of the exception's class; empty where none was recorded.
        steps: how many steps failed with it, after their last try.
        attempts: how many attempts of runs it ended.
    """

    error_type: str
    steps: int = 0
    attempts: int = 0


@attrs.frozen
class StepFigures:
    """How long the steps of one path took.

    Attributes:
        workflow_name: the workflow.
        path: the path.
        times: how often it was executed.
        median_ms: half of them took longer, in milliseconds.
        max_ms: the longest, in milliseconds.
    """

    workflow_name: str
    path: str
    times: int
    median_ms: float
    max_ms: float


@attrs.frozen(kw_only=True)
class StoreFigures:
    """What a store holds, or one run of it. What no longer counts is counted too: it happened.

    Deleted checkpoints are not. A result counts once, for the attempt that executed it, so not in a fork; a step that is
    made of steps (a map, a group, a child workflow) only by these and by its claims. Sizes are those of the records;
    large values lie elsewhere and are not in them.

    Attributes:
        statuses: how many runs stand where.
        checkpoints: how many checkpoints there are.
        steps: how many executed steps were recorded.
        size: bytes of the checkpoints' records.
        days: by day, the earliest first; days on which nothing happened are left out.
        largest_runs: the largest first.
        largest_checkpoints: the largest first.
        claims: by kind of claim, the most frequent first.
        failures: by type of error, the most frequent first.
        slowest_steps: by path, the one with the longest median first.
        unreadable: runs that are left out because their record is damaged.
    """

    statuses: Mapping[Status, int]
    checkpoints: int
    steps: int
    size: int
    days: Sequence[DayFigures]
    largest_runs: Sequence[RunFigures]
    largest_checkpoints: Sequence[CheckpointRef]
    claims: Sequence[ClaimFigures]
    failures: Sequence[FailureFigures]
    slowest_steps: Sequence[StepFigures]
    unreadable: Sequence[str] = ()

    @property
    def runs(self) -> int:
        """How many runs there are."""
        return sum(self.statuses.values())

    @property
    def mean_run_size(self) -> float | None:
        """Bytes of a run's records, on average; None where there is no run."""
        return self.size / self.runs if self.runs else None

    @property
    def all_claims(self) -> ClaimFigures:
        """The claims of all kinds together; their `success_rate` is that of verification."""
        counts = [(kind.verified, kind.failed, kind.unknown) for kind in self.claims]
        return ClaimFigures("", *map(sum, zip(*counts, strict=True))) if counts else ClaimFigures("")


def claims_in_order(found: Mapping[str, Mapping[str, int]]) -> tuple[ClaimFigures, ...]:
    """Return the figures of claims, the most frequent kind first.

    Args:
        found: by kind, how many got which answer.
    """
    made = [
        ClaimFigures(
            kind,
            answers.get("verified", 0),
            answers.get("failed", 0),
            sum(count for answer, count in answers.items() if answer not in ("verified", "failed")),
        )
        for kind, answers in found.items()
    ]
    return tuple(sorted(made, key=lambda each: (-each.total, each.evidence_type)))


def failures_in_order(steps: Mapping[str, int], attempts: Mapping[str, int]) -> tuple[FailureFigures, ...]:
    """Return the figures of failures, the most frequent type of error first.

    Args:
        steps: by type of error, how many steps failed.
        attempts: by type of error, how many attempts ended.
    """
    made = [FailureFigures(kind, steps.get(kind, 0), attempts.get(kind, 0)) for kind in {**steps, **attempts}]
    return tuple(sorted(made, key=lambda each: (-each.steps - each.attempts, each.error_type)))


def days_in_order(runs: Mapping[date, int], checkpoints: Mapping[date, tuple[int, int]]) -> tuple[DayFigures, ...]:
    """Return the figures of days, the earliest first.

    Args:
        runs: by day, how many runs were started.
        checkpoints: by day, how many checkpoints were saved, and the bytes of their records.
    """
    days = sorted({*runs, *checkpoints})
    return tuple(DayFigures(day, runs.get(day, 0), *checkpoints.get(day, (0, 0))) for day in days)
