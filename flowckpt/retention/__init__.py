"""What to keep: the checkpoints of a run while it goes on, and the runs of a store."""

from __future__ import annotations

from flowckpt.retention.pruning import PrunedRun, PruneReport, prune, prune_checkpoints
from flowckpt.retention.rule import OnSuccess, Retention, removable

__all__ = ["OnSuccess", "PruneReport", "PrunedRun", "Retention", "prune", "prune_checkpoints", "removable"]
