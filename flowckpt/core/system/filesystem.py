"""The operating-system calls of the stores, as one small port.

Stores make no other system calls. So a test can record the calls, make the n-th one fail, and build every state that a
power cut may leave. Names are relative to an open directory, and symbolic links are never followed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar

T = TypeVar("T")
_sync_data = getattr(os, "fdatasync", os.fsync)

_OWNER_MAY_WRITE = stat.S_IWUSR
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
FENCED_MODE = 0o400


NOT_ALLOWED = (errno.EROFS, errno.EACCES, errno.EPERM)
"""The errors for a file that cannot be written."""

UNSOUND_FILESYSTEMS = (
    *("nfs", "cifs", "smb", "ncp", "afs", "coda", "ceph", "9p"),  # on another machine
    *("lustre", "gpfs", "gfs", "ocfs2", "beegfs", "orangefs", "pvfs2", "panfs", "acfs"),  # on many machines
    *("fuse", "virtiofs", "vboxsf", "vmhgfs", "prl_fs", "drvfs"),  # of a program or of a virtual machine's host
)
"""Prefixes of file system types whose locks hold only on one machine, or whose link counts may be outdated."""


FULL = (errno.ENOSPC, errno.EDQUOT)
"""The error numbers for a full disk or quota."""


class FileStatus(NamedTuple):
    """The facts about a file that stores use.

    Attributes:
        size: length in bytes.
        links: the number of its names; 0 after it was unlinked.
        is_directory: whether it is a directory.
        is_regular: whether it is a regular file.
        is_writable: whether its owner may open it for writing.
        inode: its inode number; unique while the file is open or has a name.
        written_at: when its content was last written, in seconds since the epoch; 0 if unknown.
        device: the device of its file system; 0 if unknown.
    """

    size: int
    links: int
    is_directory: bool
    is_regular: bool
    is_writable: bool = True
    inode: int = 0
    written_at: float = 0.0
    device: int = 0


NOWHERE = (0, 0)
"""The device and inode of no file."""


class Place(Enum):
    """The location of an open file.

    Attributes:
        HERE: it has its name, and its path leads to it as far as that can be checked.
        UNNAMED: its name is missing, or belongs to another file.
        MOVED: it has its name, but its path no longer leads to its directory.
        REPLACED: it has its name, but its path leads to something else.
    """

    HERE = "here"
    UNNAMED = "unnamed"
    MOVED = "moved"
    REPLACED = "replaced"


def _place_of(found: os.stat_result, path: str) -> Place:
    try:
        at_path = os.stat(path)  # noqa: PTH116 - at each save, and a Path would be parsed first
        return Place.HERE if os.path.samestat(at_path, found) else Place.REPLACED
    except FileNotFoundError:
        return Place.MOVED
    except (NotADirectoryError, FileExistsError):
        return Place.REPLACED
    except OSError:  # a parent directory may be inaccessible: that proves nothing
        return Place.HERE


class FileSystem(Protocol):
    """The calls. They raise only `OSError`."""

    def open_root(self, path: str) -> int:
        """Open the store's own directory; only here, a symbolic link is the user's choice and is followed."""
        ...

    def make_root(self, path: str) -> None:
        """Create the store's directory and its parents (0700), each made durable in its parent."""
        ...

    def open_directory(self, parent: int, name: str) -> int:
        """Open a directory inside another."""
        ...

    def make_directory(self, parent: int, name: str) -> None:
        """Create a directory (0700); `FileExistsError` if the name is taken."""
        ...

    def remove_directory(self, parent: int, name: str) -> None:
        """Remove an empty directory."""
        ...

    def create(self, parent: int, name: str) -> int:
        """Create a new file (0600) for appending; `FileExistsError` if the name is taken."""
        ...

    def open_read(self, parent: int, name: str) -> int:
        """Open an existing regular file for reading."""
        ...

    def open_lock(self, parent: int, name: str) -> int:
        """Open the lock file, creating it (0600) if it is missing. It is never written, and never unlinked while in use."""
        ...

    def write(self, file: int, data: bytes) -> int:
        """Append; return the number of bytes written, which may be fewer than given."""
        ...

    def read(self, file: int, size: int, offset: int) -> bytes:
        """Read up to `size` bytes from `offset`; fewer only at the end of the file."""
        ...

    def sync_data(self, file: int) -> None:
        """Return once the file's data, and the size needed to read it, are on the disk."""
        ...

    def sync(self, file: int) -> None:
        """Return once a file or directory is on the disk, including its metadata."""
        ...

    def close(self, file: int) -> None:
        """Close a file or directory."""
        ...

    def link(self, parent: int, source: str, target: str) -> None:
        """Create a hard link; `FileExistsError` if the name is taken, so it never replaces a file."""
        ...

    def link_into(self, parent: int, other: int, name: str) -> None:
        """Create a hard link with the same name in another directory; `FileExistsError` if the name is taken."""
        ...

    def rename(self, parent: int, source: str, target: str) -> None:
        """Rename a file in the same directory, replacing any file with the new name."""
        ...

    def unlink(self, parent: int, name: str) -> None:
        """Remove a name."""
        ...

    def names(self, directory: int) -> list[str]:
        """List the names in a directory, in no order."""
        ...

    def status(self, file: int) -> FileStatus:
        """Describe an open file."""
        ...

    def is_untouched(self, file: int, path: str = "", identity: tuple[int, int] = NOWHERE) -> bool:
        """Return whether an open file still has exactly one name and is writable.

        Args:
            file: the file.
            path: a path that must lead to it, if the path can be followed.
            identity: its device and inode, if known; then one stat of the path is enough.
        """
        ...

    def set_writable(self, file: int, is_writable: bool) -> None:
        """Set the mode of an open file to 0600 or 0400; a process that has it open for writing can still write."""
        ...

    def exists(self, parent: int, name: str) -> bool:
        """Return whether the name is taken, by a file of any kind."""
        ...

    def is_named(self, file: int, parent: int, name: str) -> bool:
        """Return whether a name belongs to an open file; False if the name is missing."""
        ...

    def place_of(self, file: int, parent: int, name: str, path: str) -> Place:
        """Return where an open file is: under a name in a directory, and at a path, which may be empty."""
        ...

    def lock(self, file: int) -> bool:
        """Take the exclusive lock of an open file without waiting; return whether that succeeded."""
        ...

    def unlock(self, file: int) -> None:
        """Release the lock of an open file, although a process that was forked meanwhile has it open, too."""
        ...

    def write_at(self, file: int, data: bytes, offset: int) -> None:
        """Overwrite a part of an open file, for a hint that nothing depends on; never synced."""
        ...

    def empty(self, file: int) -> None:
        """Truncate an open file that contains only hints, to free disk space; never synced."""
        ...

    def type_of(self, path: str) -> str:
        """Return the type of the file system of a path, such as `ext4`; an empty string if it is unknown."""
        ...


class Reserve:
    """A file that is removed on a full disk, to make room for the commands that free space.

    A process that only saves never touches it.

    Args:
        place: the file.

    Attributes:
        is_used: whether the file was removed and not created again.
    """

    BYTES = 512 * 1024

    def __init__(self, place: Path) -> None:
        self._place = place
        self.is_used = False

    def make(self) -> bool:
        """Create the file if it is missing and there is room for it; return whether it was created."""
        with contextlib.suppress(OSError, AttributeError):  # not every system can allocate
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(self._place, flags, FILE_MODE)
            try:
                os.fchmod(file, FILE_MODE)  # regardless of the umask
                os.posix_fallocate(file, 0, self.BYTES)
            except BaseException:
                self._place.unlink()
                raise
            finally:
                os.close(file)
            return True
        return False

    def use(self) -> bool:
        """Remove the file; return whether it is removed, now or before."""
        with contextlib.suppress(OSError):
            self._place.unlink()
            self.is_used = True
        return self.is_used

    def restore(self) -> None:
        """Create the file again if it was used."""
        if self.is_used:
            self.is_used = not self.make()


class held_open:  # noqa: N801 - as `contextlib.closing`; a generator would take three times as long
    """Close a file or directory at the end of a `with` block.

    Args:
        filesystem: the calls.
        opened: the file or directory, open.
    """

    def __init__(self, filesystem: FileSystem, opened: int) -> None:
        self._filesystem = filesystem
        self._opened = opened

    def __enter__(self) -> int:
        return self._opened

    def __exit__(self, *_: object) -> None:
        self._filesystem.close(self._opened)


class Directory(NamedTuple):
    """An open directory, and the calls for the names in it. A `with` block closes it at the end.

    Attributes:
        calls: the calls.
        descriptor: its descriptor.
    """

    calls: FileSystem
    descriptor: int

    @classmethod
    def at(cls, calls: FileSystem, path: str) -> Directory:
        """Open a store's own directory; see `FileSystem.open_root`."""
        return cls(calls, calls.open_root(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.close(self.descriptor)

    def close(self) -> None:
        """Close it."""
        self.calls.close(self.descriptor)

    def sync(self) -> None:
        """Make the names in it durable."""
        self.calls.sync(self.descriptor)

    def names(self) -> list[str]:
        """List the names in it, in no order."""
        return self.calls.names(self.descriptor)

    def exists(self, name: str) -> bool:
        """Return whether a name is taken, by a file of any kind."""
        return self.calls.exists(self.descriptor, name)

    def is_named(self, file: int, name: str) -> bool:
        """Return whether a name belongs to an open file."""
        return self.calls.is_named(file, self.descriptor, name)

    def open(self, name: str) -> Directory:
        """Open a directory in it."""
        return Directory(self.calls, self.calls.open_directory(self.descriptor, name))

    def make_directory(self, name: str) -> None:
        """Create a directory in it; `FileExistsError` if the name is taken."""
        self.calls.make_directory(self.descriptor, name)

    def create(self, name: str) -> int:
        """Create a file for appending; `FileExistsError` if the name is taken."""
        return self.calls.create(self.descriptor, name)

    def open_lock(self, name: str) -> int:
        """Open a lock file, created if it is missing."""
        return self.calls.open_lock(self.descriptor, name)

    def open_read(self, name: str) -> int:
        """Open a regular file for reading."""
        return self.calls.open_read(self.descriptor, name)

    def reading(self, name: str) -> held_open:
        """Open a regular file for reading, for a `with` block."""
        return held_open(self.calls, self.open_read(name))

    def status(self, name: str) -> FileStatus:
        """Describe a regular file."""
        with self.reading(name) as file:
            return self.calls.status(file)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name; `FileExistsError` if it is taken."""
        self.calls.link(self.descriptor, source, target)

    def rename(self, source: str, target: str) -> None:
        """Rename a file, replacing any file with the new name."""
        self.calls.rename(self.descriptor, source, target)

    def unlink(self, name: str) -> None:
        """Remove a name."""
        self.calls.unlink(self.descriptor, name)

    def discard(self, name: str, ignored: type[OSError] = FileNotFoundError) -> None:
        """Remove a name if it exists, or ignore other errors, too."""
        with contextlib.suppress(ignored):
            self.unlink(name)


@contextlib.contextmanager
def open_if_there(open_one: Callable[..., contextlib.AbstractContextManager[T]], *where: Any) -> Iterator[T | None]:
    """Open a file or a directory for a `with` block; None if it is missing.

    Args:
        open_one: opens it.
        *where: the arguments of `open_one`.
    """
    try:
        opened = open_one(*where)
    except FileNotFoundError:
        yield None
        return
    with opened as found:
        yield found


def write_all(filesystem: FileSystem, file: int, content: bytes) -> None:
    """Append all bytes, without a sync.

    Args:
        filesystem: the calls.
        file: the file, open.
        content: the bytes.
    """
    written = filesystem.write(file, content)
    while written < len(content):
        written += filesystem.write(file, content[written:])


_synced: dict[tuple[int, int], int] = {}
"""The change times of the directories that this process has synced, by device and inode."""


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _sync_names(directory: int) -> None:
    """Sync an open directory, unless no name in it has changed since this process synced it.

    A disk flushes its cache for each sync, even of an unchanged directory, and every run would wait for that.
    """
    status = os.fstat(directory)
    key, changed_at = (status.st_dev, status.st_ino), status.st_ctime_ns
    if _synced.get(key) != changed_at:
        is_old = changed_at < time.time_ns() - 1_000_000_000  # otherwise another change could have the same time
        os.fsync(directory)
        if is_old:
            _synced[key] = changed_at


class PosixFileSystem:
    """The calls of a POSIX system. No call is retried: after a failed sync the page cache is unreliable (see docs/adr)."""

    def open_root(self, path: str) -> int:
        """Open the store's own directory."""
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            _refuse_link_to_nothing(Path(path))
            raise

    def make_root(self, path: str) -> None:
        """Create the directory and its parents, then sync each parent, including those of existing directories.

        An existing directory may have been created by a process that died before its sync. So the parents up to the
        first one with another owner or device are synced again, unless they are unchanged since this process synced
        them.
        """
        root = Path(path).absolute()
        missing = []
        current = root
        while not current.exists():
            _refuse_link_to_nothing(current)
            missing.append(current)
            current = current.parent
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                directory.mkdir(mode=DIRECTORY_MODE)
                directory.chmod(DIRECTORY_MODE)  # regardless of the umask
        device = root.stat().st_dev
        for directory in [root, *root.parents][:-1]:
            found = directory.stat()
            if directory not in missing and (found.st_uid != os.getuid() or found.st_dev != device):
                break
            try:
                parent = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except PermissionError:  # not readable, so flowckpt has not created anything in it
                break
            try:
                _sync_names(parent)
            finally:
                os.close(parent)

    def open_directory(self, parent: int, name: str) -> int:
        """Open a directory, never through a link."""
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)

    def make_directory(self, parent: int, name: str) -> None:
        """Create a directory with mode 0700."""
        os.mkdir(name, DIRECTORY_MODE, dir_fd=parent)
        os.chmod(name, DIRECTORY_MODE, dir_fd=parent)  # regardless of the umask

    def remove_directory(self, parent: int, name: str) -> None:
        """Remove an empty directory."""
        os.rmdir(name, dir_fd=parent)

    def create(self, parent: int, name: str) -> int:
        """Create a file with mode 0600 for appending."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name, flags, FILE_MODE, dir_fd=parent)
        os.fchmod(file, FILE_MODE)  # regardless of the umask
        return file

    def open_read(self, parent: int, name: str) -> int:
        """Open a regular file; a pipe or a device planted under the name is refused instead of waited for."""
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=parent)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EINVAL, "not a regular file", name)
        return file

    def open_lock(self, parent: int, name: str) -> int:
        """Open or create the lock file."""
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE, dir_fd=parent)
        if stat.S_IMODE(os.fstat(file).st_mode) != FILE_MODE:
            with contextlib.suppress(PermissionError):  # another user's, and so not made just now
                os.fchmod(file, FILE_MODE)
        return file

    def write(self, file: int, data: bytes) -> int:
        """Append with one call."""
        return os.write(file, data)

    def read(self, file: int, size: int, offset: int) -> bytes:
        """Read at an offset, until `size` or the end of the file."""
        parts = []
        while size > 0:
            part = os.pread(file, min(size, 1 << 30), offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts)

    def sync_data(self, file: int) -> None:
        """Call fdatasync, or fsync where the system has no other."""
        _sync_data(file)

    def sync(self, file: int) -> None:
        """Call fsync."""
        os.fsync(file)

    def close(self, file: int) -> None:
        """Close it."""
        os.close(file)

    def link(self, parent: int, source: str, target: str) -> None:
        """Make a hard link inside one directory."""
        os.link(source, target, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)

    def link_into(self, parent: int, other: int, name: str) -> None:
        """Make a hard link between two directories."""
        os.link(name, name, src_dir_fd=parent, dst_dir_fd=other, follow_symlinks=False)

    def rename(self, parent: int, source: str, target: str) -> None:
        """Rename inside one directory."""
        os.rename(source, target, src_dir_fd=parent, dst_dir_fd=parent)

    def unlink(self, parent: int, name: str) -> None:
        """Remove a name."""
        os.unlink(name, dir_fd=parent)

    def names(self, directory: int) -> list[str]:
        """List a directory."""
        return os.listdir(directory)

    def status(self, file: int) -> FileStatus:
        """Call fstat."""
        found = os.fstat(file)
        mode = found.st_mode
        is_writable = bool(mode & stat.S_IWUSR)
        is_directory, is_regular = stat.S_ISDIR(mode), stat.S_ISREG(mode)
        return FileStatus(
            found.st_size,
            found.st_nlink,
            is_directory,
            is_regular,
            is_writable,
            found.st_ino,
            found.st_mtime,
            found.st_dev,
        )

    def is_untouched(self, file: int, path: str = "", identity: tuple[int, int] = NOWHERE) -> bool:
        """Call stat; fstat if that does not find the file."""
        try:
            found = os.stat(path)  # noqa: PTH116 - at each save, and a Path would be parsed first
            if (found.st_dev, found.st_ino) == identity:
                return found.st_nlink == 1 and found.st_mode & _OWNER_MAY_WRITE != 0
        except OSError:  # such as an empty path
            pass
        found = os.fstat(file)
        is_untouched = found.st_nlink == 1 and found.st_mode & _OWNER_MAY_WRITE != 0
        return is_untouched and (not path or _place_of(found, path) is Place.HERE)

    def set_writable(self, file: int, is_writable: bool) -> None:
        """Call fchmod."""
        os.fchmod(file, FILE_MODE if is_writable else FENCED_MODE)

    def exists(self, parent: int, name: str) -> bool:
        """Call faccessat, without following a link."""
        return os.access(name, os.F_OK, dir_fd=parent, follow_symlinks=False)

    def is_named(self, file: int, parent: int, name: str) -> bool:
        """Compare fstat with fstatat."""
        try:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(file))

    def place_of(self, file: int, parent: int, name: str, path: str) -> Place:
        """Compare fstat with fstatat and stat."""
        if not self.is_named(file, parent, name):
            return Place.UNNAMED
        return _place_of(os.fstat(file), path) if path else Place.HERE

    def write_at(self, file: int, data: bytes, offset: int) -> None:
        """Overwrite a part of an open file."""
        os.pwrite(file, data, offset)

    def empty(self, file: int) -> None:
        """Call ftruncate."""
        os.ftruncate(file, 0)

    def lock(self, file: int) -> bool:
        """Call flock; fcntl's locks are not usable, because closing any descriptor of the file drops them."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, file: int) -> None:
        """Call flock."""
        fcntl.flock(file, fcntl.LOCK_UN)

    def type_of(self, path: str) -> str:
        """Look up the path in the kernel's mount table; an empty string if there is none (not Linux)."""
        try:
            table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return ""
        return _type_in_table(table, os.path.realpath(path))


def _refuse_link_to_nothing(path: Path) -> None:
    """Refuse a dangling link, such as to a disk that is not mounted: it is not a store that does not exist yet."""
    if path.is_symlink() and not path.exists():
        problem = f"it is a symbolic link to {path.readlink()}, which is not there"
        raise NotADirectoryError(errno.ENOTDIR, problem, str(path))


def _type_in_table(table: str, path: str) -> str:
    """Find the mount of `path`: the longest mount point that is a prefix, and the last one mounted there."""
    best, found = -1, ""
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        mount_point = _unescape(left.split(" ")[4])
        inside = path == mount_point or path.startswith(mount_point.rstrip("/") + "/")
        if inside and len(mount_point) >= best:
            best, found = len(mount_point), right.split(" ")[0]
    return found


def _unescape(text: str) -> str:
    """Undo the octal escapes of the mount table (proc_pid_mountinfo(5))."""
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, character)
    return text


# The rule about who can change a file, and so decide what code runs.

_ROOT = 0
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def why_untrusted(owner: int, mode: int, uid: int, *, is_on_the_way: bool = False) -> str:
    """Return why a user must not run code from a file, or an empty text.

    Root is trusted, because it can already run anything as any user.

    Args:
        owner: the user id of the owner.
        mode: the mode, with the type of the file.
        uid: the user who would run it.
        is_on_the_way: whether only an entry of this directory is used. A sticky directory protects its entries from
            users who do not own them, so it is accepted then.
    """
    if owner not in (uid, _ROOT):
        return f"belongs to user {owner}"
    if stat.S_ISLNK(mode) or not mode & _OTHERS_MAY_WRITE:  # the mode of a link means nothing
        return ""
    if is_on_the_way and stat.S_ISDIR(mode) and mode & stat.S_ISVTX:
        return ""
    return f"can be changed by other users (mode {stat.S_IMODE(mode):03o})"
