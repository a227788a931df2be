"""Work on stored runs: retention, export and import, recovery, comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_exports

if TYPE_CHECKING:
    from flowckpt.core.codec.checkpoints import export_document, read_export
    from flowckpt.maintenance.portable.copy import CopiedRun, copy_run
    from flowckpt.maintenance.portable.export import ExportedRun, export_documents, export_run
    from flowckpt.maintenance.portable.format import ImportLimits
    from flowckpt.maintenance.portable.import_ import ImportedRun, import_run
    from flowckpt.maintenance.retention.evict import Evictor as Evictor
    from flowckpt.maintenance.retention.evict import checked_for as checked_for
    from flowckpt.maintenance.retention.evict import settle_completed as settle_completed
    from flowckpt.maintenance.retention.prune import PrunedRun, PruneReport, prune_checkpoints
    from flowckpt.maintenance.retention.rule import Resting, removable

_EXPORTS = {
    "flowckpt.core.codec.checkpoints": "export_document read_export",
    "flowckpt.maintenance.portable.copy": "CopiedRun copy_run",
    "flowckpt.maintenance.portable.export": "ExportedRun export_documents export_run",
    "flowckpt.maintenance.portable.format": "ImportLimits",
    "flowckpt.maintenance.portable.import_": "ImportedRun import_run",
    "flowckpt.maintenance.retention.evict": "Evictor checked_for settle_completed",
    "flowckpt.maintenance.retention.prune": "PruneReport PrunedRun prune_checkpoints",
    "flowckpt.maintenance.retention.rule": "Resting removable",
}

__all__ = [
    "CopiedRun",
    "ExportedRun",
    "ImportLimits",
    "ImportedRun",
    "PruneReport",
    "PrunedRun",
    "Resting",
    "copy_run",
    "export_document",
    "export_documents",
    "export_run",
    "import_run",
    "prune_checkpoints",
    "read_export",
    "removable",
]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, __all__, globals())
