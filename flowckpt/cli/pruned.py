"""What a pruning came to, for people and for programs: the keys of the documents are a promise."""

from __future__ import annotations

from collections.abc import Sequence

from flowckpt.codec import Json
from flowckpt.codec.results import encode_time
from flowckpt.retention import PruneReport


def size_text(size: int) -> str:
    """Write a number of bytes: `512 B`, `1.5 kB`, `23 MB`.

    Args:
        size: how many.
    """
    number, units = float(max(size, 0)), ["B", "kB", "MB", "GB", "TB"]
    while number >= 999.5 and len(units) > 1:
        number /= 1000
        units.pop(0)
    return f"{number:.0f} {units[0]}" if number >= 10 or units[0] == "B" else f"{number:.1f} {units[0]}"


def summary_document(report: PruneReport, *, is_dry_run: bool) -> Json:
    """Return what `prune --json` prints; sizes that the store does not know are null.

    Args:
        report: what it came to.
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
    """Return what `prune RUN --json` prints.

    Args:
        workflow_id: the run.
        sequences: the checkpoints that went, or would go.
        freed: how many bytes less the run takes.
        is_dry_run: whether nothing was removed.
    """
    return {"dry_run": is_dry_run, "workflow_id": workflow_id, "checkpoints": list(sequences), "bytes_freed": freed}
