"""The statistics of a store and of a pruning, as text and as documents with stable keys."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from flowckpt.cli.render.tables import bytes_text, duration_text
from flowckpt.core.codec import Json
from flowckpt.core.codec.results import encode_time
from flowckpt.core.records.statistics import ClaimStatistics, StoreStatistics
from flowckpt.core.system.numbers import number_text
from flowckpt.maintenance.prune import PruneReport

Table = tuple[tuple[str, ...], list[list[str]], tuple[str, ...]]
"""Header, rows, and the columns that may be wrapped."""


def figures_document(figures: StoreStatistics) -> dict[str, Json]:
    """Return the document of a store's statistics, as `store stats --json` prints it."""
    return {
        "runs": figures.runs,
        "statuses": {status.value: count for status, count in sorted(figures.statuses.items())},
        "checkpoints": figures.checkpoints,
        "steps": figures.steps,
        "size": figures.size,
        "stored_bytes": figures.stored,
        "mean_run_size": figures.mean_run_size,
        "days": [{**attrs.asdict(day), "day": day.day.isoformat()} for day in figures.days],
        "largest_runs": [attrs.asdict(run) for run in figures.largest_runs],
        "largest_checkpoints": [
            {
                "workflow_id": each.workflow_id,
                "checkpoint_id": each.checkpoint_id,
                "sequence": each.sequence,
                "size": each.size,
            }
            for each in figures.largest_checkpoints
        ],
        "verification": {
            **_claims_document(figures.all_claims),
            "kinds": [{"evidence_type": kind.evidence_type, **_claims_document(kind)} for kind in figures.claims],
        },
        "failures": [attrs.asdict(failure) for failure in figures.failures],
        "slowest_steps": [attrs.asdict(step) for step in figures.slowest_steps],
        "figures": [attrs.asdict(each) for each in figures.figures],
        "unreadable": list(figures.unreadable),
    }


def _claims_document(claims: ClaimStatistics) -> dict[str, Json]:
    return {
        "claims": claims.total,
        "verified": claims.verified,
        "failed": claims.failed,
        "unknown": claims.unknown,
        "success_rate": claims.success_rate,
    }


def figures_lines(figures: StoreStatistics, workflow_id: str | None) -> list[str]:
    """Return the totals, one per line.

    Args:
        figures: the statistics.
        workflow_id: the run that they describe; None for all runs.
    """
    statuses = ", ".join(f"{count:,} {status}" for status, count in sorted(figures.statuses.items()))
    size = f"{bytes_text(figures.size)} of records"
    if workflow_id is None:
        lines = [f"runs: {figures.runs:,}" + (f" ({statuses})" if statuses else "")]
        size += "" if figures.mean_run_size is None else f", {bytes_text(figures.mean_run_size)} a run"
    else:
        lines = [f"run: {workflow_id} ({', '.join(figures.statuses)})"]
    lines.append(f"checkpoints: {figures.checkpoints:,}, {size}")
    if figures.stored:
        lines.append(f"stored: {bytes_text(figures.stored)} with large values, messages, indexes and reserve")
    lines.append(f"executed steps: {figures.steps:,}")
    claims = figures.all_claims
    if claims.total:
        lines.append(f"claims: {claims.total:,}, of which {claims.verified:,} held ({_rate_text(claims)})")
    else:
        lines.append("claims: none")
    lines += [f"left out because its record is damaged: {each}" for each in figures.unreadable]
    return lines


def figures_tables(figures: StoreStatistics, limit: int) -> list[Table]:
    """Return the tables that have rows.

    Args:
        figures: the statistics.
        limit: how many days to include, newest first.
    """
    tables: Sequence[Table] = (
        (
            ("DAY (UTC)", "RUNS STARTED", "CHECKPOINTS", "SIZE"),
            [
                [day.day.isoformat(), f"{day.runs:,}", f"{day.checkpoints:,}", bytes_text(day.size)]
                for day in figures.days[-limit:]
            ],
            (),
        ),
        (
            ("LARGEST RUN", "WORKFLOW", "CHECKPOINTS", "SIZE"),
            [
                [run.workflow_id, run.workflow_name, f"{run.checkpoints:,}", bytes_text(run.size)]
                for run in (figures.largest_runs if figures.runs > 1 else ())
            ],
            ("WORKFLOW",),
        ),
        (
            ("LARGEST CHECKPOINT", "RUN", "SEQUENCE", "SIZE"),
            [
                [each.checkpoint_id, each.workflow_id, str(each.sequence), bytes_text(each.size)]
                for each in figures.largest_checkpoints
            ],
            ("LARGEST CHECKPOINT",),
        ),
        (
            ("SLOWEST STEP", "WORKFLOW", "TIMES", "MEDIAN", "LONGEST"),
            [
                [step.path, step.workflow_name, f"{step.times:,}", *map(duration_text, (step.median_ms, step.max_ms))]
                for step in figures.slowest_steps
            ],
            ("SLOWEST STEP",),
        ),
        _recorded_figures(figures),
        (
            ("FAILED WITH", "STEPS", "ATTEMPTS ENDED"),
            [[each.error_type or "-", f"{each.steps:,}", f"{each.attempts:,}"] for each in figures.failures],
            ("FAILED WITH",),
        ),
        (
            ("CLAIM", "HELD", "FAILED", "UNKNOWN", "SUCCESS"),
            [
                [kind.evidence_type, f"{kind.verified:,}", f"{kind.failed:,}", f"{kind.unknown:,}", _rate_text(kind)]
                for kind in figures.claims
            ],
            (),
        ),
    )
    return [table for table in tables if table[1]]


def _recorded_figures(figures: StoreStatistics) -> Table:
    rows = [
        [each.name, f"{each.steps:,}", *map(number_text, (each.total, each.mean, each.maximum))]
        for each in figures.figures
    ]
    return ("FIGURE", "STEPS", "TOTAL", "MEAN", "LARGEST"), rows, ("FIGURE",)


def _rate_text(claims: ClaimStatistics) -> str:
    """Return the success rate as text; 100.0% only if all claims held."""
    rate = claims.success_rate
    if rate is None:
        return "-"
    text = f"{rate:.1%}"
    return "99.9%" if text == "100.0%" and rate < 1 else text


# The results of a pruning.


def summary_document(report: PruneReport, *, is_dry_run: bool) -> Json:
    """Return the document of a pruning, as `store prune --json` prints it; unknown sizes are null.

    Args:
        report: the result.
        is_dry_run: whether nothing was removed.
    """
    return {
        "dry_run": is_dry_run,
        "runs": [
            {
                "workflow_id": each.workflow_id,
                "workflow_name": each.workflow_name,
                "status": each.status.value,
                "updated_at": encode_time(each.updated_at),
                "bytes": each.size,
            }
            for each in report.runs
        ],
        "removed": report.removed,
        "removed_bytes": None if report.unsized else report.removed_bytes,
        "compacted": report.compacted,
        "compacted_bytes": report.compacted_bytes,
        "unreadable": list(report.unreadable),
        "skipped": [{"workflow_id": run, "reason": why} for run, why in report.skipped.items()],
    }


def checkpoints_document(workflow_id: str, sequences: Sequence[int], freed: int, *, is_dry_run: bool) -> Json:
    """Return the document of a pruned run, as `store prune RUN --json` prints it.

    Args:
        workflow_id: the run.
        sequences: the removed checkpoints, or those that would be removed.
        freed: the freed bytes.
        is_dry_run: whether nothing was removed.
    """
    return {"dry_run": is_dry_run, "workflow_id": workflow_id, "checkpoints": list(sequences), "bytes_freed": freed}
