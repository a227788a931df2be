"""Checkpoints in one SQLite file, whose tables can be queried with any tool.

The tables stand in `flowckpt.stores.sql.schema`, how the file is opened in `opening`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from flowckpt.clock import Clock, SystemClock
from flowckpt.errors import StoreSpecError
from flowckpt.stores.sql.owning import SqlRuns
from flowckpt.stores.sql.store import SqlCheckpointStore
from flowckpt.stores.sqlite.database import SqliteDatabase
from flowckpt.stores.sqlite.opening import check_library


class SqliteCheckpointStore(SqlCheckpointStore):
    """Checkpoints in one SQLite file, safe against kill -9 and power cuts, for any number of processes of one machine.

    Args:
        path: the file; made at the first save.
        lease_seconds: how long a run stays owned without a sign of life, for processes that this machine cannot look
            at (those in containers); those it can look at own their runs as long as they live.
        allow_filesystems: types of file systems to accept although their locks are unsound, as `("nfs4",)`.
        clock: the time, for tests.

    Attributes:
        path: the file, absolute.

    Raises:
        StoreSpecError: Python's SQLite is too old.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = ".flowckpt.db",
        *,
        lease_seconds: float = 30.0,
        allow_filesystems: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        if problem := check_library():
            raise StoreSpecError(problem, spec=f"sqlite:{path}", remedy="Use another build of Python, or file:PATH.")
        # Absolute from now on: a step that changes the directory of the process must not move the store.
        self.path = Path(path).absolute()
        database = SqliteDatabase(self.path, clock=clock or SystemClock(), allowed=allow_filesystems)
        super().__init__(SqlRuns(database, lease_seconds=lease_seconds))

    def __repr__(self) -> str:
        return f"SqliteCheckpointStore({str(self.path)!r})"
