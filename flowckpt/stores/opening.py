"""Stores from their description: `file:.flowckpt`, `memory:`, and what others add."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowckpt.errors import StoreSpecError
from flowckpt.lazy import LazyModule
from flowckpt.stores.file import FileCheckpointStore
from flowckpt.stores.memory import MemoryCheckpointStore

if TYPE_CHECKING:
    from importlib import metadata
else:  # 12 ms, and only the stores of others need it
    metadata = LazyModule("importlib.metadata")

ENTRY_POINTS = "flowckpt.stores"

_BUILT_IN: dict[str, Callable[[str], Any]] = {
    "file": lambda rest: FileCheckpointStore(rest or ".flowckpt"),
    "memory": lambda rest: MemoryCheckpointStore(),
}


def open_store(spec: str) -> Any:
    """Return the store of a description.

    Args:
        spec: `file:PATH`, `memory:`, or the scheme of an entry point in the group `flowckpt.stores`, whose object is
            called with what stands behind the colon.

    Raises:
        StoreSpecError: the description has no scheme, or nobody knows it.
    """
    scheme, colon, rest = spec.partition(":")
    if not colon:
        raise StoreSpecError(
            f"{spec!r} is no description of a store", spec=spec, remedy=f"Write 'file:{spec}' for a directory."
        )
    if scheme in _BUILT_IN:
        return _BUILT_IN[scheme](rest)
    found = metadata.entry_points(group=ENTRY_POINTS, name=scheme)
    for entry_point in found:
        return entry_point.load()(rest)
    others = sorted({entry.name for entry in metadata.entry_points(group=ENTRY_POINTS)})
    raise StoreSpecError(
        f"no store knows the scheme {scheme!r} of {spec!r}",
        spec=spec,
        remedy=f"Known here: {', '.join([*_BUILT_IN, *others])}.",
    )
