"""Checkpoints in one SQLite file, whose tables can be queried with any tool.

The tables stand in `flowckpt.stores.sql.schema`, how the file is opened in `opening`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flowckpt.core.system.blocking import run_blocking
from flowckpt.core.system.clock import Clock, SystemClock
from flowckpt.errors import StoreSpecError
from flowckpt.stores.sql.retention import RetainedRuns
from flowckpt.stores.sql.store import SqlCheckpointStore
from flowckpt.stores.sqlite.connection import check_library
from flowckpt.stores.sqlite.database import SqliteDatabase
from flowckpt.stores.sqlite.hints import BegunFiles

if TYPE_CHECKING:
    from flowckpt.core.records import CheckpointData


class SqliteCheckpointStore(SqlCheckpointStore):
    """Stores checkpoints in a SQLite file, safe against `kill -9` and power cuts.

    Any number of processes on one machine can use it.

    Args:
        path: the file, created at the first save.
        lease_seconds: how long a run stays owned without a sign of life, for owners that this machine cannot see (in
            containers); visible owners keep their runs as long as they live.
        allow_filesystems: types of file systems to accept despite unsound locks, such as `("nfs4",)`.
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
        super().__init__(RetainedRuns(database, lease_seconds=lease_seconds))
        self._begun = BegunFiles(self.path)

    def __repr__(self) -> str:
        return f"SqliteCheckpointStore({str(self.path)!r})"

    # --- word of what was begun, beside the database -----------------------------------------------------------------

    def note_begun(self, workflow_id: str, path: str) -> None:
        """Note in a file beside the database, without a sync, that a step begins."""
        owned = self.runs.owned.get(workflow_id)
        if owned is not None and owned.is_mine:
            self._begun.add(workflow_id, owned.attempt, path)

    async def begun_steps(self, workflow_id: str) -> tuple[int, tuple[str, ...]]:
        """Return what was noted last."""
        return await run_blocking(lambda: self._begun.read(workflow_id))

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Add the checkpoint with its new results and commit; see `CheckpointStore.save`."""
        await super().save(workflow_id, data)
        self._begun.saved(workflow_id)

    async def release(self, workflow_id: str, *, token: str = "") -> None:
        """Give the run up."""
        self._give_up_word(workflow_id, token)
        await super().release(workflow_id, token=token)

    async def clear(self, workflow_id: str) -> None:
        """Remove the run in one transaction; see `CheckpointStore.clear`."""
        await super().clear(workflow_id)
        self._begun.remove(workflow_id)

    def close(self) -> None:
        """Give up every run that this store owns, and close its connection and files."""
        for workflow_id in self.runs.owned:
            self._give_up_word(workflow_id)
        super().close()
        self._begun.close()

    def _give_up_word(self, workflow_id: str, token: str = "") -> None:
        owned = self.runs.owned.get(workflow_id)
        if owned is not None and owned.is_mine and token in ("", owned.writer):
            self._begun.released(workflow_id)
