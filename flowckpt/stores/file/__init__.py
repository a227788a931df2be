"""The file store: one directory per run, one append-only segment per attempt."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_exports

if TYPE_CHECKING:
    from flowckpt.stores.file import compaction as compaction
    from flowckpt.stores.file import repair as repair
    from flowckpt.stores.file import runs as runs
    from flowckpt.stores.file.store import FileCheckpointStore

__all__ = ["FileCheckpointStore"]

_EXPORTS = {"flowckpt.stores.file.store": "FileCheckpointStore"}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, globals(), modules="compaction repair runs")
