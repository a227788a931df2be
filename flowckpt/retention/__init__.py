"""What to keep: the checkpoints of a run while it goes on, and the runs of a store."""

from __future__ import annotations

from flowckpt.retention.checkpoints import prune_checkpoints
from flowckpt.retention.pruning import PrunedRun, PruneReport, prune
from flowckpt.retention.rule import OnSuccess, Resting, Retention, removable

__all__ = [
    "OnSuccess",
    "PruneReport",
    "PrunedRun",
    "Resting",
    "Retention",
    "prune",
    "prune_checkpoints",
    "removable",
]
