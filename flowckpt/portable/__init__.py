"""Runs that leave their store: exported to one file, imported from it, copied from store to store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.lazy import front_door

if TYPE_CHECKING:
    from flowckpt.portable.copying import CopiedRun, copy_run
    from flowckpt.portable.exporting import ExportedRun, export_documents, export_run
    from flowckpt.portable.importing import ImportedRun, import_run
    from flowckpt.portable.limits import ImportLimits

_ROOMS = {
    "CopiedRun": "flowckpt.portable.copying",
    "ExportedRun": "flowckpt.portable.exporting",
    "ImportLimits": "flowckpt.portable.limits",
    "ImportedRun": "flowckpt.portable.importing",
    "copy_run": "flowckpt.portable.copying",
    "export_documents": "flowckpt.portable.exporting",
    "export_run": "flowckpt.portable.exporting",
    "import_run": "flowckpt.portable.importing",
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
