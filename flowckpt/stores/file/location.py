"""The directories of a file store, and the errors that using them raises.

Every name is opened relative to an open directory and never through a link; no `OSError` leaves the store.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from flowckpt.core.codec.blob import Fetch
from flowckpt.core.system.blocking import Waiting
from flowckpt.core.system.clock import Clock, SystemClock
from flowckpt.core.system.filesystem import (
    FULL,
    NOT_ALLOWED,
    UNSOUND_FILESYSTEMS,
    Directory,
    FileSystem,
    PosixFileSystem,
    Reserve,
    open_if_there,
)
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    CheckpointStorageError,
    DiskFullError,
    ReadOnlyStoreError,
    UnsupportedFilesystemError,
)
from flowckpt.stores.file.directory import read_file, read_image, replace_unsynced
from flowckpt.stores.file.layout import INDEX, RESERVE, RUNS, run_directory
from flowckpt.stores.file.store_keys import Guard, read_identity
from flowckpt.stores.file.values import read_blob
from flowckpt.stores.leases import MANY_FILES
from flowckpt.stores.log.image import RunImage
from flowckpt.stores.log.sealing.protection import PLAIN, Protection, Seals

T = TypeVar("T")
_READS = ("read", "list", "check", "open")
_MOST_INDEX = 256 * 1024 * 1024
"""Maximum bytes read of a part of the index of results; a larger one is rebuilt from the runs."""
PATIENCE = 100
"""Maximum attempts of an operation that a clear or claim of another process interrupts."""


class Location:
    """The place of a file store.

    Args:
        path: the store's directory.
        allowed: types of file systems to accept despite unsound locks.
        filesystem: the operating-system calls.
        clock: the time.
        protection: the compression and sealing of records; None for neither.
    """

    def __init__(
        self,
        path: Path,
        *,
        allowed: Sequence[str] = (),
        filesystem: FileSystem | None = None,
        clock: Clock | None = None,
        protection: Protection | None = None,
    ) -> None:
        self.path = path
        self.seals = PLAIN if protection is None else Seals(protection, self._read_store_id)
        self._identity: str | None = None
        self._allowed = tuple(allowed)
        self._filesystem: FileSystem = filesystem or PosixFileSystem()
        self._clock: Clock = clock or SystemClock()
        self._is_checked = False
        self._made: dict[str, str] = {}
        self._guard = Guard(self.seals, self._read_store_id)
        self.reserve = Reserve(path / RESERVE)

    def _directory_name(self, workflow_id: str) -> str:
        """Return the name of a run's directory."""
        return run_directory(workflow_id)

    def _make_directories(self, workflow_id: str, *, is_new: bool) -> Waiting[Directory]:
        """Make the store's directories durable and open the run's own.

        The parent of an existing directory is synced, too: the process that made it may have died first. Runs of a group
        share the syncs of the same directory.

        Args:
            workflow_id: the run.
            is_new: whether the run's own directory must not exist.

        Raises:
            FileExistsError: it exists, and must not.
        """
        yield partial(self._filesystem.make_root, str(self.path)), "root"
        self._check_filesystem()
        with Directory.at(self._filesystem, str(self.path)) as root:
            self._guard.check_writer(root, workflow_id)
            with contextlib.suppress(FileExistsError):
                root.make_directory(RUNS)
                self.reserve.make()
            yield root.sync, (True, self._filesystem.status(root.descriptor).inode)
            self._guard.make_identity(root, workflow_id)
            runs = root.open(RUNS)
        name = self._directory_name(workflow_id)
        with runs:
            try:
                yield partial(runs.make_directory, name), None
            except FileExistsError:
                if is_new:
                    raise
            yield runs.sync, (False, self._filesystem.status(runs.descriptor).inode)
            opened = runs.open(name)
        self._made[workflow_id] = f"{self.path}/{RUNS}/{name}"
        return opened

    def _check_filesystem(self) -> None:
        if self._is_checked:
            return
        kind = self._filesystem.type_of(str(self.path))
        if kind not in self._allowed and kind.startswith(UNSOUND_FILESYSTEMS):
            raise UnsupportedFilesystemError(str(self.path), filesystem=kind)
        self._is_checked = True

    def _check_writer(self, workflow_id: str) -> None:
        """Refuse to change a store that is protected by a key without that key; called before any change.

        Raises:
            KeyMissingError: there is no key.
            WrongKeyError: none of the keys belongs to the store.
        """
        with self._translate_errors(workflow_id, "open"), self._open_root() as root:
            if root is not None:
                self._guard.check_writer(root, workflow_id)

    def _check_reader(self) -> None:
        """Refuse keys that do not belong to the store.

        Raises:
            WrongKeyError: none of the keys belongs to the store.
        """
        if self.seals.has_key:
            with self._translate_errors("", "read"), self._open_root() as root:
                if root is not None:
                    self._guard.check_reader(root, "")

    def _open_root(self) -> contextlib.AbstractContextManager[Directory | None]:
        """Open the store's directory for the block; None if there is none."""
        return open_if_there(Directory.at, self._filesystem, str(self.path))

    def _read_store_id(self) -> str | None:
        """Return the identity of the store, which never changes."""
        if self._identity is None:
            with self._translate_errors("", "read"), self._open_root() as root:
                self._identity = None if root is None else read_identity(root)
        return self._identity

    # The index of results is written without a sync: damage by a power cut is detected, and the index is rebuilt.

    def read_index(self, name: str) -> bytes | None:
        """Return a part of the index of results."""
        with self._translate_errors("", "read"), self._open_index() as directory:
            if directory is not None:
                with contextlib.suppress(FileNotFoundError):
                    return read_file(directory, name, _MOST_INDEX)
            return None

    def write_index(self, name: str, content: bytes) -> None:
        """Replace a part of the index of results."""
        with self._translate_errors("", "write the index of"), self._open_index(is_made=True) as directory:
            if directory is not None:  # otherwise there is no store
                replace_unsynced(directory, name, content)

    def clear_index(self) -> None:
        """Remove the index of results."""
        with self._translate_errors("", "clear the index of"), self._open_index() as directory:
            if directory is not None:
                for name in directory.names():
                    directory.discard(name)

    @contextlib.contextmanager
    def _open_index(self, *, is_made: bool = False) -> Iterator[Directory | None]:
        with self._open_root() as root:
            if root is None:
                yield None
                return
            if is_made:
                with contextlib.suppress(FileExistsError):
                    root.make_directory(INDEX)
            with open_if_there(root.open, INDEX) as directory:
                yield directory

    def _remove_directory(self, workflow_id: str) -> None:
        with Directory.at(self._filesystem, str(self.path)) as root:
            opened = root.open(RUNS)
        with opened as runs:
            with contextlib.suppress(OSError):  # the run was started again
                runs.calls.remove_directory(runs.descriptor, self._directory_name(workflow_id))
            runs.sync()

    def _run_names(self) -> list[str]:
        with self._translate_errors("", "list"), self._open_root() as root:
            if root is None:
                return []
            with open_if_there(root.open, RUNS) as runs:
                names = [] if runs is None else runs.names()
        return sorted(name for name in names if name[0] != ".")  # temporary, or of a file manager, such as .DS_Store

    def _make_fetch(self, workflow_id: str) -> Fetch:
        def fetch(digest: str, size: int) -> bytes:
            with self._translate_errors(workflow_id, "read"), self._open_run(workflow_id) as directory:
                if directory is None:
                    raise CheckpointNotFoundError(workflow_id, detail="it was cleared")
                try:
                    return read_blob(directory, workflow_id, digest, size, self.seals.value_seal)
                except CheckpointCorruptedError:
                    if self._is_cleared(directory, workflow_id):
                        raise CheckpointNotFoundError(workflow_id, detail="it was cleared") from None
                    raise

        return fetch

    def _is_cleared(self, directory: Directory, workflow_id: str) -> bool:
        try:
            return not self._read_open_run(directory, workflow_id).records
        except FileNotFoundError:
            return True

    def _read_open_run(self, directory: Directory, workflow_id: str, **options: Any) -> RunImage:
        """Read a run whose directory is open; the options are those of `read_image`."""
        return read_image(directory, workflow_id, self._make_fetch(workflow_id), seals=self.seals, **options)

    def _open_run(self, workflow_id: str) -> contextlib.AbstractContextManager[Directory | None]:
        return self._open_directory(self._directory_name(workflow_id), workflow_id)

    @contextlib.contextmanager
    def _open_directory(self, name: str, workflow_id: str = "") -> Iterator[Directory | None]:
        """Open a run's directory for the block; None if there is none. Refuse keys that do not belong to the store."""
        opened: list[Directory] = []
        try:
            try:
                opened.append(Directory.at(self._filesystem, str(self.path)))
                self._guard.check_reader(opened[-1], workflow_id)
                opened.append(opened[-1].open(RUNS))
                opened.append(opened[-1].open(name))
            except FileNotFoundError:
                yield None
            else:
                yield opened[-1]
        finally:
            for each in opened:
                each.close()

    def _read_directory(self, workflow_id: str, read: Callable[[Directory], T], otherwise: T) -> T:
        """Read something from the directory of a run; return `otherwise` if there is none."""

        def read_once() -> T:
            with self._open_run(workflow_id) as directory:
                return otherwise if directory is None else read(directory)

        return self._retry(workflow_id, "read", read_once)

    @contextlib.contextmanager
    def _translate_errors(self, workflow_id: str, operation: str) -> Iterator[None]:
        """Translate each `OSError` to an error of the store."""
        try:
            yield
        except OSError as error:
            raise storage_error(error, workflow_id, operation, self.path) from error

    def _retry(self, workflow_id: str, operation: str, work: Callable[[], T]) -> T:
        """Repeat work if a name vanished meanwhile, because the run was cleared or a claim was given up."""
        last = FileNotFoundError()
        with self._translate_errors(workflow_id, operation):
            for _ in range(PATIENCE):
                try:
                    return work()
                except FileNotFoundError as error:
                    last = error
        raise CheckpointStorageError(
            f"run {workflow_id!r} changes faster than the file store could {operation} it, or the store's directory cannot "
            f"be made: {last.strerror} ({last.filename})",
            workflow_id=workflow_id,
            operation=operation,
            remedy="Try again, or use another directory for the store.",
        ) from last


def storage_error(error: OSError, workflow_id: str, operation: str, path: Path) -> CheckpointStorageError:
    """Return the store's error for an operating-system error.

    Args:
        error: the operating-system error.
        workflow_id: the run, or an empty text.
        operation: the verb for the failed operation.
        path: the store's directory.
    """
    what = "is a symbolic link, which a store never follows" if error.errno == errno.ELOOP else str(error.strerror)
    name = f" ({error.filename})" if error.filename else ""
    if error.errno in NOT_ALLOWED and operation not in (*_READS, "save"):
        return ReadOnlyStoreError(str(path), reason=what + name, workflow_id=workflow_id, operation=operation)
    of_what = f"run {workflow_id!r}" if workflow_id else f"the runs in {path}"
    remedy = "Repair the directory or the disk; no acknowledged checkpoint is lost."
    if error.errno in (errno.EMFILE, errno.ENFILE):
        remedy = MANY_FILES
    if error.errno == errno.ENOTDIR and str(error.filename) == str(path):
        remedy = "Pass the directory of a store: --store file:DIRECTORY."
    problem = f"the file store could not {operation} {of_what}: {what}{name}"
    is_unknown = operation == "save"
    if error.errno in FULL:
        return DiskFullError(problem, workflow_id=workflow_id, operation=operation, is_outcome_unknown=is_unknown)
    return CheckpointStorageError(
        problem, workflow_id=workflow_id, operation=operation, is_outcome_unknown=is_unknown, remedy=remedy
    )
