"""Checkpoints in one SQLite file, whose tables can be queried with any tool.

The tables are in `flowckpt.stores.sql.layout`; `connection` opens the file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from flowckpt.core.records.listing import RunInfo
from flowckpt.core.system.blocking import run_blocking
from flowckpt.core.system.clock import Clock, SystemClock
from flowckpt.core.system.filesystem import FileSystem, PosixFileSystem, held_open
from flowckpt.errors import StoreSpecError
from flowckpt.stores.file.directory import StartedSteps, parse_started_steps, read_file, replace_unsynced
from flowckpt.stores.file.layout import run_directory
from flowckpt.stores.sql.runs import SqlRuns
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
        super().__init__(SqlRuns(database, lease_seconds=lease_seconds))
        self._database = database
        self._note_files = NoteFiles(self.path)

    def __repr__(self) -> str:
        return f"SqliteCheckpointStore({str(self.path)!r})"

    def medium(self) -> str:
        """Return the library of SQLite, its version, and the journal mode of the file."""
        return f"{library()}, journal mode {self._database.journal_mode()}"

    # --- notes of started steps, next to the database ----------------------------------------------------------------

    def note_started(self, workflow_id: str, path: str) -> None:
        """Note in a file next to the database, without a sync, that a step starts."""
        writer = self.runs.owned.get(workflow_id)
        if writer is not None and writer.is_mine:
            self._note_files.add(workflow_id, writer.attempt, writer.last_sequence, path)

    async def started_steps(self, workflow_id: str) -> tuple[int, tuple[str, ...]]:
        """Return the latest attempt that noted steps, and these steps."""
        return await run_blocking(lambda: self._note_files.read(workflow_id))

    def note_live(self, workflow_id: str, content: bytes) -> None:
        """Replace the live note in a file next to the database, without a sync."""
        writer = self.runs.owned.get(workflow_id)
        if writer is not None and writer.is_mine:
            self._note_files.write_live(workflow_id, content)

    async def live_note(self, workflow_id: str) -> bytes | None:
        """Return the live note of a run; see `StoreBase.live_note`."""
        return await run_blocking(lambda: self._note_files.read_live(workflow_id))

    async def release(self, workflow_id: str, *, token: str = "") -> None:
        """Release the run."""
        self._release_note(workflow_id, token)
        await super().release(workflow_id, token=token)

    async def clear(self, workflow_id: str) -> None:
        """Remove the run in one transaction; see `CheckpointStore.clear`."""
        await super().clear(workflow_id)
        self._note_files.remove(workflow_id)

    async def clear_unchanged(self, runs: Sequence[RunInfo]) -> Sequence[str]:
        """Remove the runs that are unchanged since they were listed; see `StoreBase.clear_unchanged`."""
        removed = await super().clear_unchanged(runs)
        for workflow_id in removed:
            self._note_files.remove(workflow_id)
        return removed

    async def use_reserve(self) -> bool:
        """Remove the reserve of the file; see `StoreBase.use_reserve`."""
        return await run_blocking(self._database.use_reserve)

    def close(self) -> None:
        """Release every run that this store owns, and close its connection and files."""
        for workflow_id in self.runs.owned:
            self._release_note(workflow_id)
        super().close()
        self._note_files.close()

    def _release_note(self, workflow_id: str, token: str = "") -> None:
        writer = self.runs.owned.get(workflow_id)
        if writer is not None and writer.is_mine and token in ("", writer.token):
            self._note_files.release(workflow_id, writer.last_sequence)


# Notes of the steps started since the last checkpoint: small files next to the database, written without a sync.
#
# A row would need a transaction for each step. A note takes some microseconds and survives a killed process; after a
# power cut it may be lost or outdated, so it is only a hint for people. The format is that of the file store.
#
# ::
#
#     runs.db-begun/RUN         the attempt, and the paths of the steps
#     runs.db-begun/RUN.live    the live note


class _Notes:
    """The file of a run that this process owns."""

    def __init__(self, filesystem: FileSystem, file: int, attempt: int) -> None:
        self.attempt = attempt
        self.file = file
        self.started = StartedSteps(filesystem, file, attempt)
        self.sequence = -1  # of the last checkpoint before the last note


class NoteFiles:
    """The files of the runs of a database.

    Args:
        database: the database's file.
    """

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(f"{database.name}-begun")
        self._filesystem = PosixFileSystem()
        self._open_notes: dict[str, _Notes] = {}

    def add(self, workflow_id: str, attempt: int, sequence: int, path: str) -> None:
        """Note that a step starts; errors are ignored.

        Args:
            workflow_id: the run.
            attempt: the attempt that owns it.
            sequence: the last checkpoint of the run; notes made before it no longer count.
            path: the step.
        """
        notes = self._open_notes.get(workflow_id)
        if notes is None or notes.attempt != attempt:
            self._close(workflow_id)
            with contextlib.suppress(OSError):
                self._open_notes[workflow_id] = notes = _Notes(
                    self._filesystem, self._create_file(workflow_id), attempt
                )
        if notes is not None and notes.attempt == attempt:
            if notes.sequence != sequence:
                notes.started.end = 0
                notes.sequence = sequence
            notes.started.add(path)

    def release(self, workflow_id: str, sequence: int) -> None:
        """Close the file of a run, and remove it if no step was noted since the last checkpoint.

        Args:
            workflow_id: the run.
            sequence: the last checkpoint.
        """
        notes = self._open_notes.get(workflow_id)
        self._close(workflow_id)
        if notes is not None and notes.sequence != sequence:
            self.remove(workflow_id)

    def remove(self, workflow_id: str) -> None:
        """Remove the files of a run, if there are any."""
        self._close(workflow_id)
        name = run_directory(workflow_id)
        for each in (name, f"{name}.live"):
            with contextlib.suppress(OSError), self._open_directory() as directory:
                self._filesystem.unlink(directory, each)

    def read(self, workflow_id: str) -> tuple[int, tuple[str, ...]]:
        """Return the latest attempt that noted steps, and these steps; attempt 0 without a note."""
        try:
            with self._open_directory() as directory:
                return parse_started_steps(read_file(self._filesystem, directory, run_directory(workflow_id)))
        except OSError:
            return 0, ()

    def write_live(self, workflow_id: str, content: bytes) -> None:
        """Replace the live note of a run.

        Raises:
            OSError: it cannot be written.
        """
        with self._open_directory(is_made=True) as directory:
            replace_unsynced(self._filesystem, directory, f"{run_directory(workflow_id)}.live", content)

    def read_live(self, workflow_id: str) -> bytes | None:
        """Return the live note of a run."""
        try:
            with self._open_directory() as directory:
                return read_file(self._filesystem, directory, f"{run_directory(workflow_id)}.live")
        except OSError:
            return None

    def close(self) -> None:
        """Close the files."""
        for workflow_id in list(self._open_notes):
            self._close(workflow_id)

    def _create_file(self, workflow_id: str) -> int:
        with self._open_directory(is_made=True) as directory:
            return self._filesystem.open_lock(directory, run_directory(workflow_id))

    @contextlib.contextmanager
    def _open_directory(self, *, is_made: bool = False) -> Iterator[int]:
        """Open the directory for the block, never through a link; nothing is synced."""
        filesystem = self._filesystem
        with held_open(filesystem, filesystem.open_root(str(self.path.parent))) as parent:
            if is_made:
                with contextlib.suppress(FileExistsError):
                    filesystem.make_directory(parent, self.path.name)
            opened = filesystem.open_directory(parent, self.path.name)
        with held_open(filesystem, opened) as directory:
            yield directory

    def _close(self, workflow_id: str) -> None:
        notes = self._open_notes.pop(workflow_id, None)
        if notes is not None:
            self._filesystem.close(notes.file)
