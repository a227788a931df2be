"""Places that really cannot be written: a read-only mount of a directory, and a directory of another user.

Root may write everywhere except on a read-only mount, so a test that runs as root temporarily becomes `nobody`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

MOUNT, PERMISSION = "a read-only mount", "no permission"
HOWS = (MOUNT, PERMISSION)


@attrs.frozen
class Place:
    """A directory that can be made read-only.

    Attributes:
        original: its writable path.
        path: its read-only path, while it is shut.
        how: the kind of protection.
    """

    original: Path
    path: Path
    how: str

    @contextlib.contextmanager
    def shut(self, *, is_hidden: bool = False) -> Iterator[None]:
        """Remove write permission within the block, or read permission too; with a mount, `original` stays writable."""
        with _mounted(self.original, self.path) if self.how == MOUNT else _as_nobody(self.path, is_hidden):
            yield


@contextlib.contextmanager
def _mounted(original: Path, path: Path) -> Iterator[None]:
    for options in (["--bind", str(original), str(path)], ["-o", "remount,ro,bind", str(path)]):
        done = subprocess.run(["mount", *options], capture_output=True, text=True)
        if done.returncode:
            subprocess.run(["umount", str(path)], capture_output=True)
            pytest.skip(f"no read-only mount can be made here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextlib.contextmanager
def _as_nobody(path: Path, is_hidden: bool) -> Iterator[None]:
    everything = [path, *path.rglob("*")]
    modes = {each: each.stat().st_mode for each in everything}
    for each, mode in modes.items():
        readable = 0o555 if each.is_dir() else 0o444
        each.chmod(0 if is_hidden and each.is_file() else mode & ~0o222 | readable)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        for each, mode in modes.items():
            with contextlib.suppress(FileNotFoundError):
                each.chmod(mode)


@contextlib.contextmanager
def made_place(how: str) -> Iterator[Place]:
    """Create a place that all users may read, outside of pytest's own directory."""
    top = Path(tempfile.mkdtemp(prefix="flowckpt-read-only-"))
    try:
        top.chmod(0o755)
        original = top / "original"
        original.mkdir()
        path = original
        if how == MOUNT:
            path = top / "mounted"
            path.mkdir()
        yield Place(original, path, how)
    finally:
        shutil.rmtree(top)


def names_in(directory: Path) -> list[str]:
    """Return all files and their state, to detect changes by a reader."""
    gc.collect()  # close files that commands in this process left open, like the end of a separate process
    return sorted(str(each.relative_to(directory)) for each in directory.rglob("*"))
