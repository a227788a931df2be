"""Taking in a whole run: written beside the others under the name of something unfinished, then given its own.

A directory is renamed in one step, and never over one that holds anything; so a reader sees all of the run or nothing,
and of two who bring the same run one is refused. What a dead process left is removed by the next who takes a run in.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from flowckpt.core.records import CheckpointData
from flowckpt.core.system.declared import shell_word
from flowckpt.core.system.filesystem import FileSystem
from flowckpt.core.system.process import current_process, is_alive
from flowckpt.errors import CheckpointStorageError, RunExistsError, RunLockedError
from flowckpt.stores.file.layout import BLOBS, RUNS, maker_of_temporary, run_directory, temporary_name
from flowckpt.stores.file.location import PATIENCE, storage_error
from flowckpt.stores.file.runs import FileRuns

_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


class _RecordedClock:
    """The time at which the attempt that is being written was begun: a segment says when it was made."""

    def __init__(self) -> None:
        self.moment: datetime | None = None

    def now(self) -> datetime:
        """Return that time."""
        assert self.moment is not None, "it is set before an attempt is claimed"
        return self.moment

    def monotonic(self) -> float:
        """Return no time: nothing is measured."""
        return 0.0


class _SyncedWhenClosed:
    """The calls, with the data of a file synced once, when it is closed: nothing of a run counts before its name does.

    Args:
        filesystem: the calls.
    """

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem
        self._written: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._filesystem, name)

    def sync_data(self, file: int) -> None:
        """Keep in mind that the file is to be synced."""
        self._written.add(file)

    def close(self, file: int) -> None:
        """Sync the file, if that is due, and close it."""
        try:
            if file in self._written:
                self._written.discard(file)
                self._filesystem.sync_data(file)
        finally:
            self._filesystem.close(file)


class StagedRuns(FileRuns):
    """A run that nobody sees yet, in a directory of its own among those of the runs.

    Args:
        path: the store's directory.
        name: the name of that directory.
        options: as for `Location`.
    """

    def __init__(self, path: Path, name: str, **options: Any) -> None:
        super().__init__(path, **options)
        self._name = name

    def _directory_of(self, workflow_id: str) -> str:
        return self._name


def receive_run(runs: FileRuns, workflow_id: str, checkpoints: Callable[[], Iterable[CheckpointData]]) -> None:
    """Take a run in.

    Args:
        runs: the store's.
        workflow_id: the run.
        checkpoints: returns its checkpoints.
    """
    clock = _RecordedClock()
    name = temporary_name(current_process(), secrets.token_hex(8))
    calls = cast("FileSystem", _SyncedWhenClosed(runs._filesystem))
    staged = StagedRuns(
        runs.path, name, allowed=runs._allowed, filesystem=calls, clock=clock, protection=runs.seals.protection
    )
    staged._guard = runs._guard  # it is the same store: what is known of it is looked for once
    _check_absent(runs, workflow_id)
    is_begun = False
    try:
        attempt = 0
        for data in checkpoints():
            if not is_begun:
                runs._check_writer(workflow_id)
                with runs._translated(workflow_id, "receive"), _opened_runs(runs, workflow_id) as directory:
                    _sweep(runs._filesystem, directory)
                is_begun = True
            if data.attempt != attempt:
                _close(staged, workflow_id)
                attempt, clock.moment = data.attempt, data.saved_at
            staged.save(workflow_id, data)
        _close(staged, workflow_id)
        if is_begun:
            _place(runs, name, workflow_id)
    except BaseException:
        with contextlib.suppress(Exception):
            staged.close()
        if is_begun:
            with contextlib.suppress(Exception), _opened_runs(runs, workflow_id) as directory:
                _remove(runs._filesystem, directory, name)
        raise


def _check_absent(runs: FileRuns, workflow_id: str) -> None:
    """Refuse a run that cannot be taken in before anything is asked of whoever brings it."""
    if runs.image(workflow_id).records:
        raise RunExistsError(workflow_id)
    if (owner := runs.owner(workflow_id)) is not None:
        raise RunLockedError(workflow_id, holder=str(owner))


def _close(staged: StagedRuns, workflow_id: str) -> None:
    """End an attempt: it is on the disk then."""
    with staged._translated(workflow_id, "receive"):
        staged.close()


@contextlib.contextmanager
def _opened_runs(runs: FileRuns, workflow_id: str) -> Any:
    """Open the directory of all runs for the block, made where it is missing."""
    filesystem = runs._filesystem
    filesystem.make_root(str(runs.path))
    runs._check_filesystem()
    root = filesystem.open_root(str(runs.path))
    try:
        with contextlib.suppress(FileExistsError):
            filesystem.make_directory(root, RUNS)
        filesystem.sync(root)
        directory = filesystem.open_directory(root, RUNS)
    finally:
        filesystem.close(root)
    try:
        yield directory
    finally:
        filesystem.close(directory)


def _place(runs: FileRuns, name: str, workflow_id: str) -> None:
    """Give the finished directory the run's name, durably; what never held a checkpoint makes way."""
    filesystem = runs._filesystem
    with runs._translated(workflow_id, "receive"), _opened_runs(runs, workflow_id) as directory:
        for _ in range(PATIENCE):
            try:
                filesystem.rename(directory, name, run_directory(workflow_id))
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
                runs.make_way(workflow_id)
                continue
            try:
                filesystem.sync(directory)
            except OSError as error:
                raise CheckpointStorageError(
                    f"run {workflow_id!r} is in the store, but whether its name is on the disk is unknown: {error.strerror}",
                    workflow_id=workflow_id,
                    operation="receive",
                    is_outcome_unknown=True,
                    remedy=f"Mend the disk, then 'flowckpt store clear {shell_word(workflow_id)}' and do it again.",
                ) from error
            return
    busy = OSError(errno.EBUSY, "another process begins it again and again")
    raise storage_error(busy, workflow_id, "receive", runs.path)


def _sweep(filesystem: FileSystem, directory: int) -> None:
    """Remove the unfinished directories of processes that are dead."""
    here = current_process()
    for name in filesystem.names(directory):
        maker = maker_of_temporary(name, here)
        if maker is not None and maker != here and is_alive(maker) is False:
            with contextlib.suppress(FileNotFoundError):
                _remove(filesystem, directory, name)


def _remove(filesystem: FileSystem, parent: int, name: str) -> None:
    """Remove the directory of an unfinished run."""
    directory = filesystem.open_directory(parent, name)
    try:
        for each in filesystem.names(directory):
            if each == BLOBS:
                blobs = filesystem.open_directory(directory, BLOBS)
                try:
                    for blob in filesystem.names(blobs):
                        filesystem.unlink(blobs, blob)
                finally:
                    filesystem.close(blobs)
                filesystem.remove_directory(directory, BLOBS)
            else:
                filesystem.unlink(directory, each)
    finally:
        filesystem.close(directory)
    filesystem.remove_directory(parent, name)
