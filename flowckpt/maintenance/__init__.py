"""Work on stored runs: retention, export and import, recovery, comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_exports

if TYPE_CHECKING:
    from flowckpt.core.codec.checkpoints import export_document, read_export
    from flowckpt.maintenance.copy import CopiedRun, copy_run
    from flowckpt.maintenance.evict import Evictor as Evictor
    from flowckpt.maintenance.evict import checked_for as checked_for
    from flowckpt.maintenance.evict import settle_completed as settle_completed
    from flowckpt.maintenance.export import ExportedRun, export_documents, export_run
    from flowckpt.maintenance.import_ import ImportedRun, import_run
    from flowckpt.maintenance.portable import ImportLimits
    from flowckpt.maintenance.prune import PrunedRun, PruneReport, prune_checkpoints
    from flowckpt.maintenance.retention import Resting, removable

_EXPORTS = {
    "flowckpt.core.codec.checkpoints": "export_document read_export",
    "flowckpt.maintenance.copy": "CopiedRun copy_run",
    "flowckpt.maintenance.export": "ExportedRun export_documents export_run",
    "flowckpt.maintenance.portable": "ImportLimits",
    "flowckpt.maintenance.import_": "ImportedRun import_run",
    "flowckpt.maintenance.evict": "Evictor checked_for settle_completed",
    "flowckpt.maintenance.prune": "PruneReport PrunedRun prune_checkpoints",
    "flowckpt.maintenance.retention": "Resting removable",
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
