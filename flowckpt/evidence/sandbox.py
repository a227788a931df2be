"""Lookup of claims' paths that never leaves the base path.

A path in a record cannot be trusted, and a link may be swapped between the check of a path and its use. So a path is
never passed to the operating system as a whole: each component is looked up in the open directory of the previous one,
links are read and followed here, and `..` goes back along the directories that were really opened. So everything
reached is inside.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import attrs

from flowckpt.errors import FlowckptError

MAX_LINKS = 40
MAX_HELD_DIRECTORIES = 128

_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class PathRefusedError(FlowckptError):
    """A path leaves the base path, or is not a path.

    Attributes:
        path: the path.
    """

    def __init__(self, path: str, why: str, *, remedy: str = "") -> None:
        super().__init__(f"{format_path(path)} {why}", remedy=remedy)
        self.path = path


class BasePathError(FlowckptError):
    """The base path cannot be opened, so nothing in it can be checked."""


def format_path(path: str) -> str:
    """Return a path for display: unchanged, or quoted if it contains control characters."""
    text = path if len(path) <= 300 else f"…{path[-300:]}"
    return text if text.isprintable() and text else repr(text)


@attrs.frozen
class _Way:
    """The opened directories, from the root to the one that contains the name."""

    directories: list[int]
    names: list[str]
    name: str  # "." for the last directory itself
    status: os.stat_result

    @property
    def directory(self) -> int:
        return self.directories[-1]


class Sandbox:
    """The files under a base path. Hold it for one batch of claims, then close it.

    Args:
        base_path: the directory; its own path may contain links, which are the program's choice.
        allow_absolute: whether an absolute path may lead anywhere.
    """

    def __init__(self, base_path: str, *, allow_absolute: bool = False) -> None:
        self._base = str(Path(base_path).absolute())
        self._real_base = os.path.realpath(base_path)
        self._allow_absolute = allow_absolute
        self._root: int | None = None
        self._held: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all directories."""
        for directory in self._held.values():
            os.close(directory)
        self._held.clear()
        if self._root is not None:
            os.close(self._root)
            self._root = None

    def status(self, path: str) -> os.stat_result:
        """Return the status of a path, following links inside the base path.

        Raises:
            PathRefusedError: the path leaves the base path, or is not a path.
            OSError: the path does not exist, or cannot be looked up.
        """
        parent, slash, name = path.rpartition("/")
        if name and name not in (".", "..") and (slash == "" or parent) and "\0" not in path:
            found = os.stat(name, dir_fd=self._hold(parent), follow_symlinks=False)
            if not stat.S_ISLNK(found.st_mode):
                return found
        with self._walk(path) as way:
            return way.status

    def open_file(self, path: str, *, follow: bool = True) -> int:
        """Open a regular file for reading, without blocking.

        Raises:
            PathRefusedError: the path leaves the base path, or is not a regular file.
            OSError: the file does not exist, or cannot be opened.
        """
        parent, slash, name = path.rpartition("/")
        if not follow and name and (slash == "" or parent):
            directory = self._hold(parent)
            return _open_regular(directory, name, path, os.stat(name, dir_fd=directory, follow_symlinks=False))
        with self._walk(path) as way:
            return _open_regular(way.directory, way.name, path, way.status)

    def open_directory(self, path: str) -> int:
        """Open a directory for listing.

        Raises:
            PathRefusedError: the path leaves the base path.
            OSError: the path does not exist, is not a directory, or cannot be opened.
        """
        with self._walk(path) as way:
            return os.open(way.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=way.directory)

    def real_path(self, path: str) -> tuple[str, os.stat_result]:
        """Return the absolute path of a regular file without any link in it, for a library that opens paths itself.

        The caller must compare device and inode again once the library has opened the file.
        """
        with self._walk(path) as way:
            if not stat.S_ISREG(way.status.st_mode):
                raise _not_regular_error(path, way.status)
            root = "/" if self._is_free(path) else self._real_base
            return "/".join([root.rstrip("/"), *way.names, way.name]), way.status

    # --- the walk ---------------------------------------------------------------------------------------------------

    def _hold(self, parent: str) -> int:
        """Open a directory, and keep it open: claims about many files in it look it up once."""
        if (known := self._held.get(parent)) is not None:
            return known
        if len(self._held) >= MAX_HELD_DIRECTORIES:
            os.close(self._held.pop(next(iter(self._held))))
        with self._walk(parent or ".") as way:
            if not stat.S_ISDIR(way.status.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", parent)
            held = os.open(way.name, _DIRECTORY, dir_fd=way.directory)
        self._held[parent] = held
        return held

    def _is_free(self, path: str) -> bool:
        return self._allow_absolute and path.startswith("/")

    def _open_root(self, path: str) -> int:
        if self._is_free(path):
            return os.open("/", _DIRECTORY)
        if self._root is None:
            try:  # only the base path is opened through links
                self._root = os.open(self._real_base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                raise BasePathError(
                    f"the base path {format_path(self._base)} cannot be opened: {error.strerror}"
                ) from error
        return os.dup(self._root)

    def _components(self, path: str, shown: str, why: str, *, root_is_free: bool) -> list[str]:
        """Return the components of an absolute path below the root of the walk."""
        if root_is_free:
            return path.split("/")
        for base in (self._real_base, self._base):
            prefix = base.rstrip("/") + "/"
            if path == base or path.startswith(prefix):
                return path[len(prefix) :].split("/")
        raise self._leaving_error(shown, why)

    def _leaving_error(self, path: str, why: str = "leads out of the base path") -> PathRefusedError:
        """Return the error of a path that leaves the base path."""
        remedy = f"It must lie in {format_path(self._base)}, or the verifier be made with allow_absolute=True"
        absolute = format_path(os.path.normpath(Path(self._base, path)))
        if self._allow_absolute:
            remedy = f"It must lie in {format_path(self._base)}, or be written as an absolute path, such as {absolute}"
        elif not path.startswith("/"):
            remedy += f" and the path be written as an absolute one, such as {absolute}"
        return PathRefusedError(path, why, remedy=f"{remedy}.")

    @contextmanager
    def _walk(self, path: str) -> Iterator[_Way]:  # noqa: PLR0912 - one branch for each kind of path part
        if not path or "\0" in path:
            raise PathRefusedError(path, "is not a path: it is empty or holds a NUL")
        is_free = self._is_free(path)
        if path.startswith("/"):
            todo = self._components(path, path, "is an absolute path outside of the base path", root_is_free=is_free)
        else:
            todo = path.split("/")
        todo.reverse()
        directories, names, links = [self._open_root(path)], list[str](), 0
        try:
            while todo:
                name = todo.pop()
                if name in ("", "."):
                    continue
                if name == "..":
                    if len(directories) > 1:
                        os.close(directories.pop())
                        names.pop()
                    elif not is_free:
                        raise self._leaving_error(path)
                    continue
                found = os.stat(name, dir_fd=directories[-1], follow_symlinks=False)
                if stat.S_ISLNK(found.st_mode):
                    links += 1
                    if links > MAX_LINKS:
                        raise PathRefusedError(path, f"leads through more than {MAX_LINKS} links")
                    target = os.readlink(name, dir_fd=directories[-1])
                    if target.startswith("/"):
                        why = f"leads out of the base path: {format_path(name)} is a link to {format_path(target)}"
                        more = self._components(target, path, why, root_is_free=is_free)
                        while len(directories) > 1:
                            os.close(directories.pop())
                        names.clear()
                    else:
                        more = target.split("/")
                    todo += reversed(more)
                elif any(part not in ("", ".") for part in todo):
                    directories.append(os.open(name, _DIRECTORY, dir_fd=directories[-1]))
                    names.append(name)
                else:
                    yield _Way(directories, names, name, found)
                    return
            yield _Way(directories, names, ".", os.fstat(directories[-1]))
        finally:
            for directory in directories:
                os.close(directory)


def _open_regular(directory: int, name: str, path: str, found: os.stat_result) -> int:
    # Open only regular files: opening a device may have effects, and opening a pipe may block.
    if not stat.S_ISREG(found.st_mode):
        raise _not_regular_error(path, found)
    file = os.open(name, _READ, dir_fd=directory)
    now = os.fstat(file)
    if not stat.S_ISREG(now.st_mode):  # swapped in between
        os.close(file)
        raise _not_regular_error(path, now)
    return file


_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFREG: "a file",
}


def kind_of(found: os.stat_result) -> str:
    """Return the kind of a file as text: `a file`, `a directory`, `a FIFO` and so on."""
    return _KINDS.get(stat.S_IFMT(found.st_mode), "something unknown")


def _not_regular_error(path: str, found: os.stat_result) -> PathRefusedError:
    return PathRefusedError(path, f"is {kind_of(found)}, and only regular files are read")
