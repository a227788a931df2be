"""Large values that no record names any more: found and removed.

Left by a save that was cut short, or named only by a checkpoint that was removed. They are removed by the owner of the
run, and a thief may come at any moment and save the very same value. So:

1. The orphans are found, and their files are opened, before the owner looks for a thief for the last time. What a thief
   saves later is another file, of another inode: as long as ours is open, no other file can have its number.
2. An orphan is not removed under its name. It is moved away to one that has the inode in it, and looked at there: a file
   of another inode is the thief's, renamed to the same name just before, and is moved back.

Where the mover died in between, readers find the value under its other name, and the next collection moves it back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator

from flowckpt.filesystem import FileSystem
from flowckpt.stores.file.names import BLOBS, is_value, orphan_name, orphaned

Kept = Callable[[list[str]], Collection[str]]

AT_ONCE = 200
"""Orphans that are removed in one collection: each is open for a while."""


class Orphans:
    """The orphans of a run, found and not yet removed.

    Args:
        filesystem: the calls.
        directory: the directory of large values, open.
        kept: returns the names that stay, among those that are there.
    """

    def __init__(self, filesystem: FileSystem, directory: int, kept: Kept) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._kept = kept
        self._named: Collection[str] = ()
        self._files: dict[str, int] = {}
        self._moved: list[str] = []

    def find(self) -> None:
        """Find them, and open each."""
        names = self._filesystem.names(self._directory)
        self._moved = [name for name in names if orphaned(name) is not None]
        self._named = self._kept([*names, *(found[1] for name in names if (found := orphaned(name)) is not None)])
        for name in names:
            if is_value(name) and name not in self._named and len(self._files) < AT_ONCE:
                self._files[name] = self._filesystem.open_read(self._directory, name)

    def remove(self) -> None:
        """Remove them, but for what is a thief's."""
        filesystem, directory = self._filesystem, self._directory
        for name in self._moved:
            found = orphaned(name)
            assert found is not None, "it was asked before"
            self._settle(name, *found)
        for value, file in self._files.items():
            inode = filesystem.status(file).inode
            name = orphan_name(inode, value)
            with contextlib.suppress(FileNotFoundError):
                filesystem.rename(directory, value, name)
                self._settle(name, inode, value)
        if self._files or self._moved:
            filesystem.sync(directory)

    def _settle(self, name: str, inode: int, value: str) -> None:
        """Remove what was moved away, or move it back where it is not what was to be removed."""
        filesystem, directory = self._filesystem, self._directory
        file = filesystem.open_read(directory, name)
        try:
            is_it = filesystem.status(file).inode == inode
        finally:
            filesystem.close(file)
        if not is_it or value in self._named:
            with contextlib.suppress(FileExistsError):
                filesystem.link(directory, name, value)
                filesystem.sync(directory)
        filesystem.unlink(directory, name)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            self._filesystem.close(file)


@contextlib.contextmanager
def orphans_of(filesystem: FileSystem, run: int, kept: Kept) -> Iterator[Orphans | None]:
    """Find the orphans of an owned run; they are open for the block. None where it has no large values.

    Args:
        filesystem: the calls.
        run: the run's directory, open.
        kept: returns the names of values that stay, among those that are there.
    """
    try:
        directory = filesystem.open_directory(run, BLOBS)
    except FileNotFoundError:
        yield None
        return
    try:
        orphans = Orphans(filesystem, directory, kept)
        try:
            orphans.find()
            yield orphans
        finally:
            orphans.close()
    finally:
        filesystem.close(directory)
