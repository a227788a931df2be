"""Retention: which checkpoints of a live run stay, and which runs of a store."""

from __future__ import annotations

from flowckpt.maintenance.retention.prune import PrunedRun, PruneReport, prune, prune_checkpoints
from flowckpt.maintenance.retention.rule import OnSuccess, Resting, Retention, removable

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
