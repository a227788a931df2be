"""A run compared with earlier completed runs of the same workflow: slower steps, figures and changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from statistics import median

import attrs

from flowckpt.core.records import CheckpointData, Status, StepResult
from flowckpt.core.records.listing import RunFilter
from flowckpt.core.records.result import sum_figures
from flowckpt.engine.run.resumption import PACKAGES
from flowckpt.errors import CheckpointCorruptedError
from flowckpt.maintenance.diff import compare
from flowckpt.stores.base import Ability, Finding, StoreBase

MOST_RUNS = 5
"""How many earlier runs a report compares with."""
_MOST_ROWS = 50
_SLOWER, _LEAST_MS = 1.5, 100.0
"""A step is slower if it took 1.5 times the median and at least 0.1 s more."""


@attrs.frozen
class SlowerStep:
    """A step that took longer than in earlier runs.

    Attributes:
        path: the step.
        duration_ms: how long it took in this run.
        usual_ms: the median of the earlier runs.
        runs: how many of them executed the step.
    """

    path: str
    duration_ms: float
    usual_ms: float
    runs: int


@attrs.frozen
class ComparedFigure:
    """A figure that the steps of a run recorded, added up.

    Attributes:
        name: its name.
        total: in this run.
        usual: the median of the earlier runs that recorded it; None if none did.
    """

    name: str
    total: float
    usual: float | None


@attrs.frozen
class Comparison:
    """The differences of a run from earlier ones.

    Attributes:
        runs: the ids of the earlier runs, newest first.
        slower: the steps that became slower, the largest difference first.
        changes: the changes since the newest of them, one line each.
        figures: the figures of the run and of the earlier ones.
    """

    runs: Sequence[str] = ()
    slower: Sequence[SlowerStep] = ()
    changes: Sequence[str] = ()
    figures: Sequence[ComparedFigure] = ()


def compare_runs(latest: CheckpointData, earlier: Mapping[str, CheckpointData]) -> Comparison:
    """Compare a run with earlier completed runs of the same workflow.

    Args:
        latest: the newest checkpoint of the run.
        earlier: the newest checkpoints of the earlier runs by run id, newest run first.
    """
    if not earlier:
        return Comparison()
    usual: dict[str, list[float]] = {}
    for run in earlier.values():
        for result in run.step_results:
            if _is_comparable(result):
                usual.setdefault(result.path, []).append(result.duration_ms)
    slower = [
        SlowerStep(result.path, result.duration_ms, median(durations), len(durations))
        for result in latest.step_results
        if _is_comparable(result)
        and (durations := usual.get(result.path))
        and result.duration_ms > _SLOWER * median(durations)
        and result.duration_ms > median(durations) + _LEAST_MS
    ]
    slower.sort(key=lambda each: each.usual_ms - each.duration_ms)
    changes = [*_find_changes(latest, next(iter(earlier.values())))]
    more = len(changes) - _MOST_ROWS
    if more > 0:
        changes[_MOST_ROWS:] = [f"and {more} more"]
    before = [sum_figures(run.step_results) for run in earlier.values()]
    figures = [
        ComparedFigure(
            name, total, median(totals) if (totals := [each[name] for each in before if name in each]) else None
        )
        for name, total in sum_figures(latest.step_results).items()
    ]
    return Comparison([*earlier], slower[:_MOST_ROWS], changes, figures[:_MOST_ROWS])


async def read_comparison(
    store: StoreBase, workflow_id: str, latest: CheckpointData, started_at: datetime
) -> tuple[Comparison, list[Finding]]:
    """Compare a run with earlier completed runs of its workflow in a store.

    Args:
        store: the store.
        workflow_id: the run.
        latest: its newest checkpoint.
        started_at: when it started.

    Returns:
        The comparison, and the runs that could not be read.
    """
    if not store.has(Ability.LIST):
        return Comparison(), []
    run_filter = RunFilter(
        statuses=[Status.COMPLETED], workflow=latest.workflow_name, limit=MOST_RUNS, before=(started_at, workflow_id)
    )
    earlier: dict[str, CheckpointData] = {}
    survey = await store.survey_runs(run_filter)
    damaged = [*survey.unreadable]
    for info in survey.runs:
        try:
            other = await store.load_latest(info.workflow_id)
        except CheckpointCorruptedError as error:
            damaged.append(Finding(info.workflow_id, "corrupt", error.message))
            continue
        if other is not None:
            earlier[info.workflow_id] = other
    return compare_runs(latest, earlier), damaged


def _is_comparable(result: StepResult) -> bool:
    return result.success and result.attempt > 0 and result.step_type not in ("sleep", "wait", "approval")


def _find_changes(latest: CheckpointData, earlier: CheckpointData) -> Iterator[str]:
    if latest.fingerprint and earlier.fingerprint and latest.fingerprint != earlier.fingerprint:
        yield "the code of the workflow"
    differences = compare(earlier, latest)
    for change in differences.changes.get("inputs", ()):
        yield f"input {change.place}: {change.kind}"
    before, after = _read_packages(earlier), _read_packages(latest)
    if before and after:
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                yield f"package {name}: {before.get(name, 'not used')} → {after.get(name, 'not used')}"
    old = {result.path: result for result in earlier.step_results}
    for result in latest.step_results:
        was = old.get(result.path)
        if was is None or "/[" in result.path:
            continue
        if was.fingerprint and result.fingerprint and was.fingerprint != result.fingerprint:
            yield f"the code of step {result.path}"
        if was.version != result.version:
            yield f"the version of step {result.path}: {was.version} → {result.version}"
    # A run that has not completed may still reach steps that seem to be removed.
    left_out = {"changed"} if latest.status is Status.COMPLETED else {"changed", "removed"}
    for diff in differences.steps:
        if diff.kind not in left_out and "/[" not in diff.path:
            yield f"step {diff.path}: {diff.kind}"


def _read_packages(latest: CheckpointData) -> Mapping[str, str]:
    """Return the versions of the packages that the last attempt of a run used; empty if none were recorded."""
    recorded: Mapping[str, Mapping[str, str]] = latest.metadata.get(PACKAGES, {})
    return recorded[max(recorded, key=int)] if recorded else {}
