"""Word of the steps that were begun since the last checkpoint: small files beside the database, written without a sync.

A row would cost a transaction for each step. A note costs some microseconds, outlives a killed process, and may be lost
or old after a power cut: it is a hint for people and decides nothing. The form is that of the file store's notes.

::

    runs.db-begun/RUN    the attempt, and the paths of the steps
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from flowckpt.core.system.filesystem import FileSystem, PosixFileSystem
from flowckpt.stores.file.directory import read_file
from flowckpt.stores.file.hints import BegunSteps, begun_in
from flowckpt.stores.file.layout import run_directory


class _Notes:
    """The file of a run that this process owns."""

    def __init__(self, filesystem: FileSystem, file: int, attempt: int) -> None:
        self.attempt = attempt
        self.file = file
        self.begun = BegunSteps(filesystem, file, attempt)
        self.has_word = False


class BegunFiles:
    """The files of the runs of a database.

    Args:
        database: the database's file.
        filesystem: the operating-system calls.
    """

    def __init__(self, database: Path, filesystem: FileSystem | None = None) -> None:
        self.path = database.with_name(f"{database.name}-begun")
        self._filesystem: FileSystem = filesystem or PosixFileSystem()
        self._notes: dict[str, _Notes] = {}

    def add(self, workflow_id: str, attempt: int, path: str) -> None:
        """Note that a step begins; what goes wrong is none of a note's business.

        Args:
            workflow_id: the run.
            attempt: the attempt that owns it.
            path: the step.
        """
        notes = self._notes.get(workflow_id)
        if notes is None or notes.attempt != attempt:
            self._close(workflow_id)
            with contextlib.suppress(OSError):
                self._notes[workflow_id] = notes = _Notes(self._filesystem, self._made(workflow_id), attempt)
        if notes is not None and notes.attempt == attempt:
            notes.begun.add(path)
            notes.has_word = True

    def saved(self, workflow_id: str) -> None:
        """Forget what was begun: a checkpoint holds what became of it."""
        notes = self._notes.get(workflow_id)
        if notes is not None and notes.has_word:
            notes.begun.begin_anew()
            notes.has_word = False

    def released(self, workflow_id: str) -> None:
        """Close the file of a run, and remove it where a checkpoint holds all that was begun."""
        notes = self._notes.get(workflow_id)
        self._close(workflow_id)
        if notes is not None and not notes.has_word:
            self.remove(workflow_id)

    def remove(self, workflow_id: str) -> None:
        """Remove the file of a run, if there is one."""
        self._close(workflow_id)
        with contextlib.suppress(OSError), self._directory() as directory:
            self._filesystem.unlink(directory, run_directory(workflow_id))

    def read(self, workflow_id: str) -> tuple[int, tuple[str, ...]]:
        """Return the attempt that noted last, and what it began; attempt 0 where there is no word."""
        try:
            with self._directory() as directory:
                return begun_in(read_file(self._filesystem, directory, run_directory(workflow_id)))
        except OSError:
            return 0, ()

    def close(self) -> None:
        """Close the files."""
        for workflow_id in list(self._notes):
            self._close(workflow_id)

    def _made(self, workflow_id: str) -> int:
        with self._directory(is_made=True) as directory:
            return self._filesystem.open_lock(directory, run_directory(workflow_id))

    @contextlib.contextmanager
    def _directory(self, *, is_made: bool = False) -> Iterator[int]:
        """Open the directory for the block, never through a link; nothing is synced."""
        filesystem = self._filesystem
        parent = filesystem.open_root(str(self.path.parent))
        try:
            if is_made:
                with contextlib.suppress(FileExistsError):
                    filesystem.make_directory(parent, self.path.name)
            directory = filesystem.open_directory(parent, self.path.name)
        finally:
            filesystem.close(parent)
        try:
            yield directory
        finally:
            filesystem.close(directory)

    def _close(self, workflow_id: str) -> None:
        notes = self._notes.pop(workflow_id, None)
        if notes is not None:
            self._filesystem.close(notes.file)
