"""Checkpoints in one SQLite file, whose tables can be queried with any tool.

The tables are in `flowckpt.stores.sql.layout`; `connection` opens the file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flowckpt.core.records.listing import RunInfo
from flowckpt.core.system.blocking import run_blocking
from flowckpt.core.system.clock import Clock, SystemClock
from flowckpt.core.system.filesystem import Directory, PosixFileSystem
from flowckpt.errors import StoreSpecError
from flowckpt.stores.base import StoreBase
from flowckpt.stores.file.directory import StartedSteps, parse_started_steps, read_file, replace_unsynced
from flowckpt.stores.file.layout import run_directory
from flowckpt.stores.runs_base import delegate_to_runs
from flowckpt.stores.sql.database import Database
from flowckpt.stores.sql.image import RunImage
from flowckpt.stores.sql.run_writer import SqlRunWriter
from flowckpt.stores.sql.runs import Claim, SqlRuns
from flowckpt.stores.sql.store import SqlCheckpointStore
from flowckpt.stores.sqlite.connection import find_library_problem
from flowckpt.stores.sqlite.database import SqliteDatabase
from flowckpt.stores.sqlite.library import library


class SqliteCheckpointStore(SqlCheckpointStore):
    """Stores checkpoints in a SQLite file, safe against `kill -9` and power cuts.

    Any number of processes on one machine can use it.

    Args:
        path: the file, created at the first save.
        lease_seconds: how long a run stays owned without a heartbeat, for owners that this machine cannot see (in
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
        if problem := find_library_problem():
            raise StoreSpecError(problem, spec=f"sqlite:{path}", remedy="Use another build of Python, or file:PATH.")
        # Absolute, because a step that changes the working directory must not move the store.
        self.path = Path(path).absolute()
        database = SqliteDatabase(self.path, clock=clock or SystemClock(), allowed=allow_filesystems)
        super().__init__(SqliteRuns(database, lease_seconds=lease_seconds))
        self._database = database

    def __repr__(self) -> str:
        return f"SqliteCheckpointStore({str(self.path)!r})"

    def medium(self) -> str:
        """Return the library of SQLite, its version, and the journal mode of the file; empty if there is none yet."""
        mode = self._database.journal_mode()
        return f"{library()}, journal mode {mode}" if mode else ""

    started_steps = delegate_to_runs(StoreBase.started_steps)

    async def use_reserve(self) -> bool:
        """Remove the reserve of the file; see `StoreBase.use_reserve`."""
        return await run_blocking(self._database.use_reserve)


# Notes of the steps started since the last checkpoint: small files next to the database, written without a sync.
#
# A row would need a transaction for each step. A note takes some microseconds and survives a killed process; after a
# power cut it may be lost or outdated, so it is only a hint for people. The format is that of the file store.
#
# ::
#
#     runs.db-begun/RUN         the attempt, and the paths of the steps
#     runs.db-begun/RUN.live    the live note


class NoteFiles:
    """The files of the runs of a database.

    Args:
        database: the database's file.
    """

    def __init__(self, database: Path) -> None:
        database = database.resolve()  # one place, whatever links lead to the database
        self.path = database.with_name(f"{database.name}-begun")
        self.filesystem = PosixFileSystem()

    def create(self, workflow_id: str) -> int:
        """Open the file for the steps of a run, created if it is missing."""
        with self._open_directory(is_made=True) as directory:
            return directory.open_lock(run_directory(workflow_id))

    def read(self, name: str) -> bytes:
        """Return the content of a file; empty if it cannot be read."""
        with contextlib.suppress(OSError), self._open_directory() as directory:
            return read_file(directory, name)
        return b""

    def replace(self, name: str, content: bytes) -> None:
        """Replace a file.

        Raises:
            OSError: it cannot be written.
        """
        with self._open_directory(is_made=True) as directory:
            replace_unsynced(directory, name, content)

    def remove(self, workflow_id: str) -> None:
        """Remove the files of a run, if there are any."""
        for name in (run_directory(workflow_id), live_name(workflow_id)):
            with contextlib.suppress(OSError), self._open_directory() as directory:
                directory.unlink(name)

    @contextlib.contextmanager
    def _open_directory(self, *, is_made: bool = False) -> Iterator[Directory]:
        """Open the directory for the block, never through a link; nothing is synced."""
        with Directory.at(self.filesystem, str(self.path.parent)) as parent:
            if is_made:
                with contextlib.suppress(FileExistsError):
                    parent.make_directory(self.path.name)
            opened = parent.open(self.path.name)
        with opened as directory:
            yield directory


def live_name(workflow_id: str) -> str:
    """Return the name of the file of a run's live note."""
    return f"{run_directory(workflow_id)}.live"


class SqliteRunWriter(SqlRunWriter):
    """Writes to one run, and notes its steps next to the database.

    Args:
        notes: the files of notes.
        image: the run as read after the claim.
        options: as for `SqlRunWriter`.
    """

    def __init__(self, notes: NoteFiles, database: Database, image: RunImage, **options: Any) -> None:
        super().__init__(database, image, **options)
        self._notes = notes
        self._file: int | None = None
        self._steps: StartedSteps | None = None
        self._noted_after = -1  # the last checkpoint before the last note

    def note_started(self, path: str) -> None:
        """Note that a step starts; errors are ignored."""
        if self._steps is None and self.is_mine:
            with contextlib.suppress(OSError):
                self._file = self._notes.create(self.workflow_id)
                self._steps = StartedSteps(self._notes.filesystem, self._file, self.attempt)
        if self._steps is not None and self.is_mine:
            if self._noted_after != self.last_sequence:
                self._steps.end, self._noted_after = 0, self.last_sequence
            self._steps.add(path)

    def close(self) -> None:
        """End the writes; remove the notes of the run if no step was noted since the last checkpoint."""
        super().close()
        file, self._file, self._steps = self._file, None, None
        if file is not None and self.is_mine:
            self._notes.filesystem.close(file)
            if self._noted_after != self.last_sequence:
                self._notes.remove(self.workflow_id)


class SqliteRuns(SqlRuns):
    """The runs of a database file, with notes of their steps next to it."""

    def __init__(self, database: SqliteDatabase, *, lease_seconds: float) -> None:
        super().__init__(database, lease_seconds=lease_seconds)
        self._notes = NoteFiles(database.path)

    def _make_writer(self, claim: Claim, image: RunImage, attempt: int) -> SqlRunWriter:
        fetch = self._make_fetch(claim.workflow_id)
        return SqliteRunWriter(self._notes, self.database, image, attempt=attempt, token=claim.writer, fetch=fetch)

    def started_steps(self, workflow_id: str) -> tuple[int, tuple[str, ...]]:
        """Return the latest attempt that noted steps, and these steps."""
        return parse_started_steps(self._notes.read(run_directory(workflow_id)))

    def note_live(self, writer: SqlRunWriter, content: bytes) -> None:
        """Replace the live note of an owned run."""
        self._notes.replace(live_name(writer.workflow_id), content)

    def live_note(self, workflow_id: str) -> bytes | None:
        """Return the live note of a run."""
        return self._notes.read(live_name(workflow_id)) or None

    def clear(self, workflow_id: str) -> None:
        """Remove a run with all its rows and notes."""
        super().clear(workflow_id)
        self._notes.remove(workflow_id)

    def clear_unchanged(self, runs: Sequence[RunInfo]) -> list[str]:
        """Remove the runs that have neither an owner nor a pin and are unchanged since they were listed."""
        removed = super().clear_unchanged(runs)
        for workflow_id in removed:
            self._notes.remove(workflow_id)
        return removed
