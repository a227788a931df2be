"""The directories of a file store, and the errors that come out of them.

Every name is opened relative to an open directory and never through a link; no `OSError` leaves the store.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from flowckpt.clock import Clock, SystemClock
from flowckpt.codec.blob import Fetch
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    CheckpointStorageError,
    KeyMissingError,
    UnsupportedFilesystemError,
)
from flowckpt.filesystem import UNSOUND_FILESYSTEMS, FileSystem, PosixFileSystem
from flowckpt.stores.file.blobs import read_blob
from flowckpt.stores.file.directory import read_file
from flowckpt.stores.file.identity import make_identity, read_identity, sweep_root
from flowckpt.stores.file.names import IDENTITY, RUNS, is_temporary, run_directory, segment_name, segment_numbers
from flowckpt.stores.sealing.protection import PLAIN, Protection, Seals

T = TypeVar("T")
PATIENCE = 100
"""How often something is tried again that a clear or a claim of another process disturbed."""


class Location:
    """Where a file store lies.

    Args:
        path: the store's directory.
        allowed: types of file systems that are accepted although their locks are unsound.
        filesystem: the operating-system calls.
        clock: the time.
        protection: what is done to the bytes; None for nothing.
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
        self.seals = PLAIN if protection is None else Seals(protection, self._store_id)
        self._identity: str | None = None
        self._allowed = tuple(allowed)
        self._filesystem: FileSystem = filesystem or PosixFileSystem()
        self._clock: Clock = clock or SystemClock()
        self._is_checked = False

    def _directory_of(self, workflow_id: str) -> str:
        """Return the name of a run's directory."""
        return run_directory(workflow_id)

    def _make_directories(self, workflow_id: str) -> int:
        """Make the store's directories durable and open the run's own.

        A directory that is there already is synced into its parent all the same: whoever made it may have died first.
        """
        filesystem = self._filesystem
        filesystem.make_root(str(self.path))
        self._check_filesystem()
        parent = filesystem.open_root(str(self.path))
        for name in (RUNS, self._directory_of(workflow_id)):
            try:
                with contextlib.suppress(FileExistsError):
                    filesystem.make_directory(parent, name)
                filesystem.sync(parent)
                if name == RUNS:
                    self._settle_identity(parent, workflow_id)
                child = filesystem.open_directory(parent, name)
            finally:
                filesystem.close(parent)
            parent = child
        return parent

    def _check_filesystem(self) -> None:
        if self._is_checked:
            return
        kind = self._filesystem.type_of(str(self.path))
        if kind not in self._allowed and kind.startswith(UNSOUND_FILESYSTEMS):
            raise UnsupportedFilesystemError(str(self.path), filesystem=kind)
        self._is_checked = True

    def _settle_identity(self, root: int, workflow_id: str) -> None:
        """Make sure that a store has an identity before anything is sealed in it; and that nobody writes to one without a key.

        The root was synced just now: an identity that another process has made is durable before it is used here.
        """
        filesystem = self._filesystem
        if not self.seals.has_key:
            if filesystem.exists(root, IDENTITY):
                raise KeyMissingError(workflow_id)
            return
        sweep_root(filesystem, root)
        if read_identity(filesystem, root) is None:
            self._refuse_lost_identity(root)
            make_identity(filesystem, root)

    def _refuse_lost_identity(self, root: int) -> None:
        """Refuse a new identity where runs name another one: with it they would be a foreign store's."""
        filesystem = self._filesystem
        with contextlib.ExitStack() as opened:
            runs = filesystem.open_directory(root, RUNS)
            opened.callback(filesystem.close, runs)
            for name in filesystem.names(runs):
                with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                    run = filesystem.open_directory(runs, name)
                    opened.callback(filesystem.close, run)
                    newest = segment_name(segment_numbers(filesystem.names(run))[-1])
                    head, _, _ = read_file(filesystem, run, newest).partition(b"\n")
                    store = json.loads(head)["seal"]["store"]
                    raise CheckpointCorruptedError(
                        "",
                        location=IDENTITY,
                        detail=f"it is missing, and runs in the store name the store {store}",
                        remedy="Restore it from a backup, or write it anew: "
                        f'{{"flowckpt":"store","schema_version":1,"store_id":"{store}"}}',
                    )

    def _store_id(self) -> str | None:
        """Return the identity of the store, which never changes."""
        if self._identity is None:
            with self._translated("", "read"):
                try:
                    root = self._filesystem.open_root(str(self.path))
                except FileNotFoundError:
                    return None
                try:
                    self._identity = read_identity(self._filesystem, root)
                finally:
                    self._filesystem.close(root)
        return self._identity

    def _remove_directory(self, workflow_id: str) -> None:
        root = self._filesystem.open_root(str(self.path))
        try:
            runs = self._filesystem.open_directory(root, RUNS)
        finally:
            self._filesystem.close(root)
        try:
            with contextlib.suppress(OSError):  # somebody began the run anew
                self._filesystem.remove_directory(runs, self._directory_of(workflow_id))
            self._filesystem.sync(runs)
        finally:
            self._filesystem.close(runs)

    def _run_names(self) -> list[str]:
        with self._translated("", "list"):
            try:
                root = self._filesystem.open_root(str(self.path))
            except FileNotFoundError:
                return []
            try:
                runs = self._filesystem.open_directory(root, RUNS)
            except FileNotFoundError:
                return []
            finally:
                self._filesystem.close(root)
            try:
                return sorted(name for name in self._filesystem.names(runs) if not is_temporary(name))
            finally:
                self._filesystem.close(runs)

    def _fetch(self, workflow_id: str) -> Fetch:
        def fetch(digest: str, size: int) -> bytes:
            with self._translated(workflow_id, "read"), self._run_directory(workflow_id) as directory:
                if directory is None:
                    raise CheckpointNotFoundError(workflow_id, detail="it was cleared")
                return read_blob(self._filesystem, directory, workflow_id, digest, size, self.seals.for_values())

        return fetch

    def _run_directory(self, workflow_id: str) -> contextlib.AbstractContextManager[int | None]:
        return self._directory_named(self._directory_of(workflow_id))

    @contextlib.contextmanager
    def _directory_named(self, name: str) -> Iterator[int | None]:
        """Open a run's directory for the block; None where there is none."""
        filesystem = self._filesystem
        opened: list[int] = []
        try:
            try:
                opened.append(filesystem.open_root(str(self.path)))
                opened.append(filesystem.open_directory(opened[-1], RUNS))
                opened.append(filesystem.open_directory(opened[-1], name))
            except FileNotFoundError:
                yield None
            else:
                yield opened[-1]
        finally:
            for each in opened:
                filesystem.close(each)

    @contextlib.contextmanager
    def _translated(self, workflow_id: str, operation: str) -> Iterator[None]:
        """Let no `OSError` out: each becomes an error of the store."""
        try:
            yield
        except OSError as error:
            raise storage_error(error, workflow_id, operation) from error

    def _steadily(self, workflow_id: str, operation: str, work: Callable[[], T]) -> T:
        """Do work again where a name vanished under it: the run was cleared, or a claim given up, meanwhile."""
        with self._translated(workflow_id, operation):
            for _ in range(PATIENCE):
                try:
                    return work()
                except FileNotFoundError:
                    continue
        raise CheckpointStorageError(
            f"run {workflow_id!r} changes faster than the file store could {operation} it",
            workflow_id=workflow_id,
            operation=operation,
        )


def storage_error(error: OSError, workflow_id: str, operation: str) -> CheckpointStorageError:
    """Return the store's error for one of the operating system."""
    what = "is a symbolic link, which a store never follows" if error.errno == errno.ELOOP else str(error.strerror)
    name = f" ({error.filename})" if error.filename else ""
    return CheckpointStorageError(
        f"the file store could not {operation} run {workflow_id!r}: {what}{name}",
        workflow_id=workflow_id,
        operation=operation,
        is_outcome_unknown=operation == "save",
        remedy="Mend the directory or the disk; nothing that was acknowledged is lost.",
    )
