"""Large values that two runs have: one file with a name in each run's directory. It goes when both runs are cleared."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from flowckpt.filesystem import FileSystem
from flowckpt.stores.file.names import BLOBS

if TYPE_CHECKING:
    from flowckpt.stores.sealing.values import ValueSeal


def share_blobs(
    filesystem: FileSystem, source: int, run: int, sizes: Mapping[str, int], values: ValueSeal | None = None
) -> set[str]:
    """Give large values of one run a name in the directory of another, durably.

    Only values that a record of the source names may be asked for: those are on the disk.

    Args:
        filesystem: the calls.
        source: the directory of the run that has them, open.
        run: the directory of the other, open.
        sizes: how long each is, by its digest.
        values: knows the names of those that are sealed.

    Returns:
        The digests that are there now; the others could not be shared, and are to be written.
    """
    with contextlib.suppress(FileExistsError):
        filesystem.make_directory(run, BLOBS)
    filesystem.sync(run)
    shared = set()
    with contextlib.ExitStack() as opened:
        theirs = filesystem.open_directory(source, BLOBS)
        opened.callback(filesystem.close, theirs)
        ours = filesystem.open_directory(run, BLOBS)
        opened.callback(filesystem.close, ours)
        for digest, size in sizes.items():
            for name in [digest] if values is None else values.names(digest):
                with contextlib.suppress(OSError):  # missing, planted, named too often: then it is copied
                    if _is_whole(filesystem, theirs, name, size if name == digest else None):
                        filesystem.link_into(theirs, ours, name)
                        shared.add(digest)
                        break
        filesystem.sync(ours)
    return shared


def _is_whole(filesystem: FileSystem, directory: int, name: str, size: int | None) -> bool:
    file = filesystem.open_read(directory, name)
    try:
        found = filesystem.status(file)
        return found.is_regular and size in (None, found.size)
    finally:
        filesystem.close(file)
