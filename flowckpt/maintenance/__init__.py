"""Work on stored runs: retention, export and import, recovery, comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_exports

if TYPE_CHECKING:
    from flowckpt.core.codec.checkpoints import export_document as export_document
    from flowckpt.core.codec.checkpoints import read_export as read_export
    from flowckpt.maintenance import evict as evict
    from flowckpt.maintenance.copy import CopiedRun as CopiedRun
    from flowckpt.maintenance.copy import copy_run as copy_run
    from flowckpt.maintenance.export import ExportedRun as ExportedRun
    from flowckpt.maintenance.export import export_documents as export_documents
    from flowckpt.maintenance.export import export_run as export_run
    from flowckpt.maintenance.import_ import ImportedRun as ImportedRun
    from flowckpt.maintenance.import_ import import_run as import_run
    from flowckpt.maintenance.portable import ImportLimits as ImportLimits
    from flowckpt.maintenance.prune import PrunedRun as PrunedRun
    from flowckpt.maintenance.prune import PruneReport as PruneReport
    from flowckpt.maintenance.prune import prune_checkpoints as prune_checkpoints
    from flowckpt.maintenance.retention import Resting as Resting
    from flowckpt.maintenance.retention import removable as removable

_EXPORTS = {
    "flowckpt.core.codec.checkpoints": "export_document read_export",
    "flowckpt.maintenance.copy": "CopiedRun copy_run",
    "flowckpt.maintenance.export": "ExportedRun export_documents export_run",
    "flowckpt.maintenance.portable": "ImportLimits",
    "flowckpt.maintenance.import_": "ImportedRun import_run",
    "flowckpt.maintenance.prune": "PruneReport PrunedRun prune_checkpoints",
    "flowckpt.maintenance.retention": "Resting removable",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, globals(), modules="evict")
