"""Runs that leave their store: exported to one file, imported from it, copied from store to store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import front_door

if TYPE_CHECKING:
    from flowckpt.maintenance.portable.copy import CopiedRun, copy_run
    from flowckpt.maintenance.portable.export import ExportedRun, export_documents, export_run
    from flowckpt.maintenance.portable.format import ImportLimits
    from flowckpt.maintenance.portable.import_ import ImportedRun, import_run


_ROOMS = {
    "CopiedRun": "flowckpt.maintenance.portable.copy",
    "ExportedRun": "flowckpt.maintenance.portable.export",
    "ImportLimits": "flowckpt.maintenance.portable.format",
    "ImportedRun": "flowckpt.maintenance.portable.import_",
    "copy_run": "flowckpt.maintenance.portable.copy",
    "export_documents": "flowckpt.maintenance.portable.export",
    "export_run": "flowckpt.maintenance.portable.export",
    "import_run": "flowckpt.maintenance.portable.import_",
}

__all__ = [
    "CopiedRun",
    "ExportedRun",
    "ImportLimits",
    "ImportedRun",
    "copy_run",
    "export_documents",
    "export_run",
    "import_run",
]

__getattr__, __dir__ = front_door(__name__, _ROOMS, __all__, globals())
