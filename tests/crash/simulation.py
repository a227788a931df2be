"""A file system in memory that knows what a disk would hold, and can lose power at any point.

The model, and the states that a power cut may leave:

- A file's bytes are visible to every reader at once; the disk gets them when the file is synced. Until then any subset
  of the 512-byte sectors written since may have reached it (the others read as they were: zero, where they are new),
  and the file may have any size between the one synced and the one written.
- A name that was made, moved or removed is on the disk when its directory was synced afterwards. Until then any subset
  of such changes may have been lost. A move is one change: the old name or the new one.
- After a failed sync of a file, the page cache is wrong: readers see the bytes, the disk does not hold them, and the next
  sync succeeds without writing them. It writes only bytes that were written since.
- A directory whose sync failed keeps its changes pending: metadata goes through a journal, which either writes it later
  or stops the file system.
- The mode of a file is visible at once; a power cut may leave the old one or the new one.
- A killed process loses only its descriptors and locks.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import itertools
import re
from collections.abc import Callable
from random import Random

from flowckpt.core.system.filesystem import FileStatus, Place

SECTOR = 512
CHANGES = frozenset(
    {
        "make_root",
        "make_directory",
        "remove_directory",
        "create",
        "write",
        "write_at",
        "sync_data",
        "sync",
        "link",
        "rename",
        "unlink",
        "set_writable",
    }
)
"""The calls that change the disk; a power cut is simulated before each of them."""


class Inode:
    numbers = itertools.count(1)

    def __init__(self, role: str, number: int | None = None) -> None:
        self.role = role
        self.number = next(Inode.numbers) if number is None else number


class File(Inode):
    """A file: its visible content, its content on the disk, and the sectors in between."""

    def __init__(self, role: str, disk: bytes = b"", number: int | None = None) -> None:
        super().__init__(role, number)
        self.data = bytearray(disk)
        self.disk = bytes(disk)
        self.dirty: set[int] = set()
        self.is_size_dirty = False
        self.links = 1
        self.is_writable = True
        self.lock: object = None

    def write(self, data: bytes) -> None:
        start = len(self.data)
        self.data += data
        if data:
            self.dirty.update(range(start // SECTOR, (len(self.data) - 1) // SECTOR + 1))
            self.is_size_dirty = True

    def overwrite(self, data: bytes, offset: int) -> None:
        self.is_size_dirty |= offset + len(data) > len(self.data)
        self.data[offset : offset + len(data)] = data
        self.dirty.update(range(offset // SECTOR, (offset + len(data) - 1) // SECTOR + 1))

    def with_sectors(self, sectors, size: int) -> bytes:
        """Return the content of the disk once these sectors have reached it, at a size."""
        content = bytearray(self.disk.ljust(len(self.data), b"\0"))
        for sector in sectors:
            begin, end = sector * SECTOR, min((sector + 1) * SECTOR, len(self.data))
            content[begin:end] = self.data[begin:end]
        return bytes(content[:size])

    def sync(self) -> None:
        size = len(self.data) if self.is_size_dirty or self.dirty else len(self.disk)
        self.disk = self.with_sectors(self.dirty, size)
        self.dirty.clear()
        self.is_size_dirty = False

    def fail_to_sync(self) -> None:
        """Mark everything clean without writing it."""
        self.dirty.clear()
        self.is_size_dirty = False

    def legal(self, random: Random | None, choice: str) -> bytes:
        """Return one of the contents that a power cut may leave."""
        if choice == "nothing" or not (self.dirty or self.is_size_dirty):
            return self.disk
        if choice == "everything":
            return self.with_sectors(self.dirty, len(self.data))
        size = random.choice([len(self.disk), len(self.data), random.randint(len(self.disk), len(self.data))])
        return self.with_sectors([s for s in sorted(self.dirty) if random.random() < 0.6], size)


class Directory(Inode):
    """A directory: its visible names, its names on the disk, and the changes in between."""

    def __init__(self, role: str) -> None:
        super().__init__(role)
        self.names: dict[str, Inode] = {}
        self.disk: dict[str, Inode] = {}
        self.pending: list[tuple[tuple[str, Inode | None], ...]] = []
        self.is_removed = False

    def change(self, *changes: tuple[str, Inode | None]) -> None:
        """Set or remove names in one change."""
        for name, inode in changes:
            if inode is None:
                del self.names[name]
            else:
                self.names[name] = inode
        self.pending.append(changes)

    def sync(self) -> None:
        self.disk = dict(self.names)
        self.pending.clear()

    def legal(self, random: Random | None, choice: str) -> dict[str, Inode]:
        if choice == "everything":
            return dict(self.names)
        found = dict(self.disk)
        if choice == "nothing":
            return found
        for changes in self.pending:
            if random.random() < 0.5:
                for name, inode in changes:
                    if inode is None:
                        found.pop(name, None)
                    else:
                        found[name] = inode
        return found


def nothing_fails(name: str, role: str) -> int:
    """No call fails."""
    return 0


class Disk:
    """The medium and its cache, shared by the processes of one machine.

    Attributes:
        root: the store's directory, or None before it was made; durable as soon as `make_root` returned.
        before_change: called before each call that changes the disk.
        fail: called at each call with its name and role; returns the error number to fail with, or 0.
    """

    def __init__(self) -> None:
        self.root: Directory | None = None
        self.before_change = lambda name, role: None
        self.fail: Callable[[str, str], int] = nothing_fails
        self.counter = itertools.count(100)

    @functools.cached_property
    def random(self) -> Random:
        """Created on first use: thousands of states are only read."""
        return Random(0)

    def mount(self, kind=None) -> SimulatedFileSystem:
        """Return the calls of a new process."""
        return (kind or SimulatedFileSystem)(self)

    def after_power_cut(self, random: Random | None, choice: str = "some") -> Disk:
        """Return a disk as a power cut at this point may leave it: `nothing` pending, `everything`, or `some`."""

        def kept(inode: File) -> File:
            file = File(inode.role, inode.legal(random, choice), inode.number)
            file.links = 0
            file.is_writable = inode.is_writable if choice == "everything" else (random or self.random).random() < 0.5
            return file

        disk = Disk()
        if self.root is not None:
            disk.root = _left(self.root, random, choice, kept, {})
        return disk

    def after_kill(self) -> Disk:
        """Return a copy including the cache, without the locks of killed processes."""
        disk = Disk()
        if self.root is not None:
            disk.root = _copied(self.root, {})  # type: ignore[assignment]
        return disk

    def is_on_the_disk(self) -> bool:
        """Return whether a power cut could not change a run: its segments and large values are synced."""
        places: list[Inode] = [] if self.root is None else [self.root]
        while places:
            inode = places.pop()
            if isinstance(inode, Directory):
                if inode.pending and _told_by(inode.names) != _told_by(inode.disk):
                    return False
                places += inode.names.values()
            elif isinstance(inode, File) and (inode.dirty or inode.data != inode.disk):
                return False
        return True

    def digest(self, *, with_cache: bool = False) -> bytes:
        """Return a token of the visible state (with the cache: also of the disk), without random names."""
        found = hashlib.sha256()

        def walk(place: str, inode: Inode) -> None:
            if isinstance(inode, File):
                found.update(f"{place}:{len(inode.data)}:".encode())
                found.update(inode.data)
                if with_cache:
                    found.update(f"{len(inode.disk)}:{sorted(inode.dirty)}".encode())
                    found.update(inode.disk)
                return
            assert isinstance(inode, Directory)
            found.update(f"{place}/{len(inode.names)}:{len(inode.pending) if with_cache else 0}:".encode())
            for name in sorted(inode.names):
                walk(f"{place}/{_lasting(name)}", inode.names[name])

        if self.root is not None:
            walk("", self.root)
        return found.digest()[:16]


_RANDOM = re.compile("-[0-9a-f]+$")


@functools.lru_cache(4096)
def _lasting(name: str) -> str:
    """Return a name without its random suffix."""
    return _RANDOM.sub("", name)


def _told_by(names: dict[str, Inode]) -> dict[str, Inode]:
    """Return the names that matter to a run: neither the marks of a claim nor temporary files."""
    return {name: inode for name, inode in names.items() if name[0] != "."}


def _left(
    directory: Directory, random: Random | None, choice: str, kept: Callable[[File], File], copies: dict[int, File]
) -> Directory:
    """Return what a power cut leaves of a directory and everything below; a file keeps its remaining names."""
    left = Directory(directory.role)
    for name, inode in directory.legal(random, choice).items():
        if isinstance(inode, Directory):
            left.names[name] = _left(inode, random, choice, kept, copies)
            continue
        assert isinstance(inode, File)
        file = copies.get(inode.number)
        if file is None:
            copies[inode.number] = file = kept(inode)
        file.links += 1
        left.names[name] = file
    left.sync()
    return left


def _copied(inode: Inode, copies: dict[int, Inode]) -> Inode:
    if (found := copies.get(inode.number)) is not None:
        return found
    if isinstance(inode, File):
        copies[inode.number] = file = File(inode.role, inode.disk, inode.number)
        file.data, file.dirty = bytearray(inode.data), set(inode.dirty)
        file.is_size_dirty, file.links = inode.is_size_dirty, inode.links
        file.is_writable = inode.is_writable
        return file
    assert isinstance(inode, Directory)
    copies[inode.number] = directory = Directory(inode.role)
    directory.names = {name: _copied(child, copies) for name, child in inode.names.items()}
    directory.disk = {name: _copied(child, copies) for name, child in inode.disk.items()}
    directory.pending = [
        tuple((name, None if child is None else _copied(child, copies)) for name, child in changes)
        for changes in inode.pending
    ]
    return directory


class SimulatedFileSystem:
    """The calls of one process on a `Disk`: an implementation of the port of `flowckpt.core.system.filesystem`."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.open_files: dict[int, Inode] = {}

    def kill(self) -> None:
        """End the process: close its descriptors and release its locks."""
        for number, inode in self.open_files.items():
            if isinstance(inode, File) and inode.lock == number:
                inode.lock = None
        self.open_files.clear()

    # --- the ways in ------------------------------------------------------------------------------------------------

    def called(self, name: str, role: str) -> None:
        if name in CHANGES:
            self.disk.before_change(name, role)
        fail = self.disk.fail
        if fail is not nothing_fails and (number := fail(name, role)):
            raise OSError(number, errno.errorcode[number])

    def inode(self, file: int) -> Inode:
        try:
            return self.open_files[file]
        except KeyError:
            raise OSError(errno.EBADF, "bad file descriptor") from None

    def directory(self, file: int) -> Directory:
        if isinstance(inode := self.open_files.get(file), Directory):
            return inode
        self.inode(file)
        raise NotADirectoryError(errno.ENOTDIR, "not a directory")

    def file(self, file: int) -> File:
        if isinstance(inode := self.open_files.get(file), File):
            return inode
        self.inode(file)
        raise IsADirectoryError(errno.EISDIR, "is a directory")

    def named(self, parent: int, name: str) -> Inode:
        if (found := self.directory(parent).names.get(name)) is None:
            raise FileNotFoundError(errno.ENOENT, "no such file or directory", name)
        return found

    def opened(self, inode: Inode) -> int:
        number = next(self.disk.counter)
        self.open_files[number] = inode
        return number

    def free(self, parent: int, name: str) -> Directory:
        """Return the directory if it exists and the name is free in it."""
        directory = self.directory(parent)
        if directory.is_removed:
            raise FileNotFoundError(errno.ENOENT, "the directory was removed", name)
        if name in directory.names:
            raise FileExistsError(errno.EEXIST, "file exists", name)
        return directory

    # --- the port ---------------------------------------------------------------------------------------------------

    def open_root(self, path: str) -> int:
        self.called("open_root", "root")
        if self.disk.root is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return self.opened(self.disk.root)

    def make_root(self, path: str) -> None:
        self.called("make_root", "root")
        if self.disk.root is None:
            self.disk.root = Directory("root")

    def open_directory(self, parent: int, name: str) -> int:
        self.called("open_directory", name)
        inode = self.named(parent, name)
        if not isinstance(inode, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", name)
        return self.opened(inode)

    def make_directory(self, parent: int, name: str) -> None:
        self.called("make_directory", name)
        role = {"root": "runs", "runs": "run", "run": "blobs"}[self.directory(parent).role]
        self.free(parent, name).change((name, Directory(role)))

    def remove_directory(self, parent: int, name: str) -> None:
        self.called("remove_directory", name)
        inode = self.named(parent, name)
        if not isinstance(inode, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", name)
        if inode.names:
            raise OSError(errno.ENOTEMPTY, "directory not empty", name)
        inode.is_removed = True
        self.directory(parent).change((name, None))

    def create(self, parent: int, name: str) -> int:
        self.called("create", name)
        directory = self.free(parent, name)
        file = File("blob" if directory.role == "blobs" else "segment")
        directory.change((name, file))
        return self.opened(file)

    def open_read(self, parent: int, name: str) -> int:
        self.called("open_read", name)
        inode = self.named(parent, name)
        if not isinstance(inode, File):
            raise OSError(errno.EINVAL, "not a regular file", name)
        return self.opened(inode)

    def open_append(self, parent: int, name: str) -> int:
        """Not part of the port: for a broken store that appends to a segment of another attempt."""
        return self.opened(self.named(parent, name))

    def open_lock(self, parent: int, name: str) -> int:
        self.called("open_lock", name)
        directory = self.directory(parent)
        if name not in directory.names:
            self.free(parent, name).change((name, File("lock")))
        return self.opened(self.named(parent, name))

    def write_at(self, file: int, data: bytes, offset: int) -> None:
        """Ignore hints in the lock file, on which nothing depends; of the head, a power cut may leave the previous content."""
        inode = self.file(file)
        if inode.role == "head":
            self.called("write_at", inode.role)
            inode.overwrite(data, offset)

    def empty(self, file: int) -> None:
        """Nothing depends on what is in the lock file."""

    def write(self, file: int, data: bytes) -> int:
        inode = self.file(file)
        try:
            self.called("write", inode.role)
        except OSError:
            inode.write(data[: self.disk.random.randrange(len(data) + 1)])
            raise
        taken = len(data) if self.disk.random.random() < 0.9 else self.disk.random.randint(1, len(data))
        inode.write(data[:taken])
        return taken

    def read(self, file: int, size: int, offset: int) -> bytes:
        self.called("read", "")
        return bytes(self.file(file).data[offset : offset + size])

    def sync_data(self, file: int) -> None:
        self.synced("sync_data", file)

    def sync(self, file: int) -> None:
        self.synced("sync", file)

    def synced(self, name: str, file: int) -> None:
        inode = self.inode(file)
        try:
            self.called(name, inode.role)
        except OSError:
            if isinstance(inode, File):
                inode.fail_to_sync()
            raise
        inode.sync()  # type: ignore[attr-defined]

    def close(self, file: int) -> None:
        inode = self.open_files.pop(file, None)
        if inode is None:
            raise OSError(errno.EBADF, "bad file descriptor")
        if isinstance(inode, File) and inode.lock == file:
            inode.lock = None

    def link(self, parent: int, source: str, target: str) -> None:
        self.called("link", target)
        inode = self.named(parent, source)
        assert isinstance(inode, File)
        self.free(parent, target).change((target, inode))
        inode.links += 1

    def rename(self, parent: int, source: str, target: str) -> None:
        self.called("rename", target)
        directory, inode = self.directory(parent), self.named(parent, source)
        if target.startswith("head-"):
            inode.role = "head"
        replaced = directory.names.get(target)
        if isinstance(replaced, File):
            replaced.links -= 1
        directory.change((source, None), (target, inode))

    def unlink(self, parent: int, name: str) -> None:
        self.called("unlink", name)
        inode = self.named(parent, name)
        if not isinstance(inode, File):
            raise IsADirectoryError(errno.EISDIR, "is a directory", name)
        self.directory(parent).change((name, None))
        inode.links -= 1

    def names(self, directory: int) -> list[str]:
        self.called("names", "")
        found = self.directory(directory)
        if found.is_removed:
            raise FileNotFoundError(errno.ENOENT, "the directory was removed")
        return list(found.names)

    def status(self, file: int) -> FileStatus:
        self.called("status", "")
        inode = self.inode(file)
        if isinstance(inode, File):
            return FileStatus(len(inode.data), inode.links, False, True, inode.is_writable, inode.number)
        return FileStatus(0, 0 if inode.is_removed else 2, is_directory=True, is_regular=False)

    def is_untouched(self, file: int, path: str = "", identity: tuple[int, int] = (0, 0)) -> bool:
        self.called("is_untouched", "")
        inode = self.file(file)
        return inode.links == 1 and inode.is_writable

    def set_writable(self, file: int, is_writable: bool) -> None:
        inode = self.file(file)
        self.called("set_writable", inode.role)
        inode.is_writable = is_writable

    def exists(self, parent: int, name: str) -> bool:
        self.called("exists", name)
        return name in self.directory(parent).names

    def is_named(self, file: int, parent: int, name: str) -> bool:
        self.called("is_named", name)
        return self.directory(parent).names.get(name) is self.inode(file)

    def place_of(self, file: int, parent: int, name: str, path: str) -> Place:
        return Place.HERE if self.is_named(file, parent, name) else Place.UNNAMED

    def lock(self, file: int) -> bool:
        self.called("lock", "")
        inode = self.file(file)
        if inode.lock not in (None, file):
            return False
        inode.lock = file
        return True

    def unlock(self, file: int) -> None:
        self.called("unlock", "")
        self.file(file).lock = None

    def type_of(self, path: str) -> str:
        self.called("type_of", "")
        return "ext4"
