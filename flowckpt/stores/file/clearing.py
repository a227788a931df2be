"""The end of a run on disk: a tombstone first, so that a half-cleared run never comes back."""

from __future__ import annotations

import contextlib
from datetime import datetime

from flowckpt.chance import new_token
from flowckpt.filesystem import FileSystem
from flowckpt.lazy import LazyModule
from flowckpt.stores.file.claim import claim_segment, mark_segments, segment_header
from flowckpt.stores.file.names import BLOBS, LOCK, SIGNALS, segment_name, segment_numbers
from flowckpt.stores.sealing.protection import PLAIN, Seals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flowckpt.stores.file import signals
else:
    signals = LazyModule("flowckpt.stores.file.signals")


def write_tombstone(
    filesystem: FileSystem, directory: int, workflow_id: str, now: datetime, seals: Seals = PLAIN
) -> int:
    """Claim the next segment with a header that says that the run is cleared; return its number."""
    number = max([*segment_numbers(filesystem.names(directory)), 0]) + 1
    said, seal = seals.for_new(workflow_id, number, new_token(16))
    header = {**segment_header(workflow_id, number, now), "kind": "cleared", **said}
    file, _ = claim_segment(filesystem, directory, number, header, seal)
    filesystem.close(file)
    mark_segments(filesystem, directory, number)
    return number


def sweep_cleared(filesystem: FileSystem, directory: int, tombstone: int) -> None:
    """Remove everything in a cleared run's directory, the tombstone last: a crash leaves it cleared.

    In between, a marked segment has one name, as an unmarked one has. The mode of its file, which was marked, too,
    keeps a writer of it from taking the one for the other.
    """
    names = filesystem.names(directory)
    if BLOBS in names:
        blobs = filesystem.open_directory(directory, BLOBS)
        try:
            for name in filesystem.names(blobs):
                filesystem.unlink(blobs, name)
        finally:
            filesystem.close(blobs)
        filesystem.remove_directory(directory, BLOBS)
    signals.clear_signals(filesystem, directory)
    for name in names:
        if name not in (BLOBS, SIGNALS, LOCK, segment_name(tombstone)):
            with contextlib.suppress(FileNotFoundError):  # a mark, which the writer of the segment takes away itself
                filesystem.unlink(directory, name)
    filesystem.sync(directory)
    filesystem.unlink(directory, segment_name(tombstone))
    filesystem.sync(directory)
