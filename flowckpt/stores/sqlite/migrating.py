"""Word of a migration that is going on: a lock on a small file beside the database, for those who find it busy.

SQLite tells them no more than that the database is locked, and not even its version can be read then. So whoever brings
the tables forward holds `runs.db-migrating`, and who meets a locked database may look whether that is why, and be more
patient. Nothing else depends on the file: the lock of a process that died is gone, and what it left means nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from flowckpt.filesystem import FileSystem, PosixFileSystem
from flowckpt.stores.lock import take_lock


def _name_beside(database: Path) -> str:
    return f"{database.name}-migrating"


@contextlib.contextmanager
def told_to_others(database: Path, filesystem: FileSystem | None = None) -> Iterator[None]:
    """Let others know for the block that the tables are being brought forward, as far as a file can be made.

    Args:
        database: the database's file.
        filesystem: the operating-system calls.
    """
    calls, name = filesystem or PosixFileSystem(), _name_beside(database)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # it is a hint: where it cannot be given, others have the usual patience
            parent = calls.open_root(str(database.parent))
            stack.callback(calls.close, parent)
            file = calls.open_lock(parent, name)
            stack.callback(calls.close, file)
            if take_lock(calls, file):
                stack.callback(_removed, calls, parent, name)
        yield


def is_going_on(database: Path, filesystem: FileSystem | None = None) -> bool:
    """Tell whether a process is bringing the tables forward just now.

    Args:
        database: the database's file.
        filesystem: the operating-system calls.
    """
    calls = filesystem or PosixFileSystem()
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        parent = calls.open_root(str(database.parent))
        stack.callback(calls.close, parent)
        file = calls.open_read(parent, _name_beside(database))
        stack.callback(calls.close, file)
        return not calls.lock(file)
    return False


def _removed(calls: FileSystem, parent: int, name: str) -> None:
    with contextlib.suppress(OSError):
        calls.unlink(parent, name)
