"""Checkpoints in a local directory: the default store.

::

    .flowckpt/runs/RUN/00000001.jsonl   the segment of attempt 1: a JSON record a line
                       00000002.jsonl   the segment of attempt 2, which says what it continues
                       blobs/SHA256     large values, once per content
                       lock             locked by the owner while it lives

The protocol stands in `run` (claiming), `writer` (saving), `segment` and `image` (reading).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from flowckpt.blocking import may_block, run_blocking
from flowckpt.checkpoint import CheckpointData, CheckpointRef, Owner, RunInfo
from flowckpt.clock import Clock, SystemClock
from flowckpt.codec.blob import Fetch
from flowckpt.errors import (
    CheckpointNotFoundError,
    CheckpointStorageError,
    FencedError,
    FlowckptError,
    RunLockedError,
    UnsupportedFilesystemError,
)
from flowckpt.filesystem import FileSystem, PosixFileSystem
from flowckpt.process import ProcessIdentity, is_alive
from flowckpt.stores.base import Finding, Lease
from flowckpt.stores.file.blobs import read_blob
from flowckpt.stores.file.image import RunImage
from flowckpt.stores.file.listing import describe_run, run_id_in
from flowckpt.stores.file.names import LOCK, RUNS, run_directory
from flowckpt.stores.file.run import OwnedRun, claim, newest_owner, read_image, sweep_cleared, write_tombstone

T = TypeVar("T")
_NEWER_THAN_ALL = 10**9
_REFUSED_FILESYSTEMS = ("nfs", "cifs", "smb", "fuse", "9p", "afs", "ceph")
_log = logging.getLogger("flowckpt")


class FileCheckpointStore:
    """Checkpoints in a local directory, safe against kill -9 and power cuts.

    Args:
        path: the store's directory; made at the first save.
        allow_filesystems: types of file systems to accept although their locks are unsound, as `("nfs4",)`.
        filesystem: the operating-system calls, for tests.
        clock: the time, for tests.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = ".flowckpt",
        *,
        allow_filesystems: Sequence[str] = (),
        filesystem: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.path = Path(path)
        self._allowed = tuple(allow_filesystems)
        self._filesystem: FileSystem = filesystem or PosixFileSystem()
        self._clock: Clock = clock or SystemClock()
        self._owned: dict[str, OwnedRun] = {}
        self._is_checked = False

    def __repr__(self) -> str:
        return f"FileCheckpointStore({str(self.path)!r})"

    # --- the five methods ------------------------------------------------------------------------------------------

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Append the checkpoint to its attempt's segment and sync it; see `CheckpointStore.save`."""
        if may_block():
            self._save(workflow_id, data)
        else:
            await run_blocking(lambda: self._save(workflow_id, data))

    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Return the newest checkpoint of that id; see `CheckpointStore.load`."""
        return await run_blocking(lambda: self._load(workflow_id, checkpoint_id))

    async def load_latest(self, workflow_id: str) -> CheckpointData | None:
        """Return the newest checkpoint; see `CheckpointStore.load_latest`."""
        return await run_blocking(lambda: self._latest(workflow_id, self._image(workflow_id)))

    async def clear(self, workflow_id: str) -> None:
        """Remove the run, behind a tombstone; see `CheckpointStore.clear`."""
        await run_blocking(lambda: self._clear(workflow_id))

    async def list_checkpoints(self, workflow_id: str) -> Sequence[CheckpointRef]:
        """Return the run's checkpoints, newest first; see `CheckpointStore.list_checkpoints`."""
        return await run_blocking(lambda: self._references(workflow_id))

    # --- abilities -------------------------------------------------------------------------------------------------

    async def acquire(self, workflow_id: str, *, steal: bool = False) -> Lease:
        """Claim the run's next segment and read the run; see `OwnsRuns.acquire`."""
        return await run_blocking(lambda: self._acquire(workflow_id, steal=steal))

    async def release(self, workflow_id: str) -> None:
        """Give the run up; see `OwnsRuns.release`."""
        await run_blocking(lambda: self._release(workflow_id))

    async def owner(self, workflow_id: str) -> Owner | None:
        """Return who owns the run and is alive; see `OwnsRuns.owner`."""
        return await run_blocking(lambda: self._owner(workflow_id))

    async def list_runs(self) -> Sequence[RunInfo]:
        """Return the runs, from the first and last lines of their segments; see `ListsRuns`."""
        return await run_blocking(self._list_runs)

    async def delete_checkpoint(self, workflow_id: str, checkpoint_id: str) -> bool:
        """Append that the checkpoints of that id are deleted; see `DeletesCheckpoints`."""
        return await run_blocking(lambda: self._delete(workflow_id, checkpoint_id))

    async def check(self, workflow_id: str | None = None) -> Sequence[Finding]:
        """Read all segments and large values and verify them; see `ChecksIntegrity`."""
        return await run_blocking(lambda: self._check(workflow_id))

    def close(self) -> None:
        """Give up every run that this store owns."""
        for workflow_id in list(self._owned):
            self._release(workflow_id)

    # --- writing ---------------------------------------------------------------------------------------------------

    def _save(self, workflow_id: str, data: CheckpointData) -> None:
        owned = self._owned.get(workflow_id)
        if owned is None:
            owned = self._own_for(workflow_id, data.attempt)
        try:
            owned.save(data)
        except OSError as error:
            owned.writer.is_poisoned = True
            raise _failed(error, workflow_id, "save") from error

    def _own_for(self, workflow_id: str, attempt: int) -> OwnedRun:
        """Claim a run for a caller that saves without having acquired it."""
        lease = self._acquire(workflow_id, steal=False, at_least=attempt)
        if lease.attempt != attempt:
            self._release(workflow_id)
            raise FencedError(workflow_id, attempt=attempt, newest_attempt=lease.attempt - 1)
        return self._owned[workflow_id]

    def _acquire(self, workflow_id: str, *, steal: bool, at_least: int = 1) -> Lease:
        if workflow_id in self._owned:
            if not steal:
                raise RunLockedError(workflow_id, holder=f"this process, by {self!r}")
            self._owned.pop(workflow_id).close()
        with self._translated(workflow_id, "acquire"):
            owned = self._claim(workflow_id, steal=steal, at_least=at_least)
        self._owned[workflow_id] = owned
        image = owned.image
        return Lease(
            workflow_id,
            owned.writer.number,
            self._latest(workflow_id, image),
            image.last_sequence,
            tuple(image.notices),
        )

    def _claim(self, workflow_id: str, *, steal: bool, at_least: int) -> OwnedRun:
        for _ in range(100):
            directory = self._make_directories(workflow_id)
            try:
                owned = claim(
                    self._filesystem,
                    directory,
                    workflow_id=workflow_id,
                    at_least=at_least,
                    steal=steal,
                    fetch=self._fetch(workflow_id),
                    now=self._clock.now(),
                )
            except FileNotFoundError:  # cleared and removed between the two calls
                self._filesystem.close(directory)
                continue
            except BaseException:
                self._filesystem.close(directory)
                raise
            if not owned.image.is_cleared:
                return owned
            # The crash of a clear left its tombstone: finish it, then begin anew.
            owned.release()
            self._clear(workflow_id)
        raise CheckpointStorageError(
            f"run {workflow_id!r} is being cleared over and over", workflow_id=workflow_id, operation="acquire"
        )

    def _make_directories(self, workflow_id: str) -> int:
        """Make the store's directories durable and open the run's own.

        A directory that is there already is synced into its parent all the same: whoever made it may have died first.
        """
        filesystem = self._filesystem
        filesystem.make_root(str(self.path))
        self._check_filesystem()
        parent = filesystem.open_root(str(self.path))
        for name in (RUNS, run_directory(workflow_id)):
            try:
                with contextlib.suppress(FileExistsError):
                    filesystem.make_directory(parent, name)
                filesystem.sync(parent)
                child = filesystem.open_directory(parent, name)
            finally:
                filesystem.close(parent)
            parent = child
        return parent

    def _check_filesystem(self) -> None:
        if self._is_checked:
            return
        kind = self._filesystem.type_of(str(self.path))
        if kind not in self._allowed and kind.startswith(_REFUSED_FILESYSTEMS):
            raise UnsupportedFilesystemError(str(self.path), filesystem=kind)
        self._is_checked = True

    def _release(self, workflow_id: str) -> None:
        owned = self._owned.pop(workflow_id, None)
        if owned is not None:
            owned.release()

    def _clear(self, workflow_id: str) -> None:
        filesystem = self._filesystem
        self._release(workflow_id)
        with self._translated(workflow_id, "clear"), self._run_directory(workflow_id) as directory:
            if directory is None:
                return
            lock = filesystem.open_lock(directory, LOCK)
            try:
                if not filesystem.lock(lock):
                    holder = newest_owner(filesystem, directory)
                    raise RunLockedError(workflow_id, holder=str(holder or "another process"))
                tombstone = write_tombstone(filesystem, directory, workflow_id, self._clock.now())
                sweep_cleared(filesystem, directory, tombstone)
                filesystem.unlink(directory, LOCK)  # nobody can own what is not there; claimers look again
            finally:
                filesystem.close(lock)
            self._remove_directory(workflow_id)

    def _remove_directory(self, workflow_id: str) -> None:
        root = self._filesystem.open_root(str(self.path))
        try:
            runs = self._filesystem.open_directory(root, RUNS)
        finally:
            self._filesystem.close(root)
        try:
            with contextlib.suppress(OSError):  # somebody began the run anew
                self._filesystem.remove_directory(runs, run_directory(workflow_id))
            self._filesystem.sync(runs)
        finally:
            self._filesystem.close(runs)

    def _delete(self, workflow_id: str, checkpoint_id: str) -> bool:
        is_mine = workflow_id in self._owned
        if not any(reference.checkpoint_id == checkpoint_id for reference in self._references(workflow_id)):
            return False
        if not is_mine:
            self._acquire(workflow_id, steal=False)
        try:
            found = self._references(workflow_id)
            doomed = [reference.sequence for reference in found if reference.checkpoint_id == checkpoint_id]
            with self._translated(workflow_id, "delete"):
                self._owned[workflow_id].delete(doomed)
        finally:
            if not is_mine:
                self._release(workflow_id)
        return True

    # --- reading ---------------------------------------------------------------------------------------------------

    def _image(self, workflow_id: str) -> RunImage:
        """Read a run; one that is cleared or that has no directory is empty."""
        for _ in range(100):
            with self._translated(workflow_id, "read"), self._run_directory(workflow_id) as directory:
                if directory is None:
                    return RunImage(workflow_id)
                try:
                    return read_image(
                        self._filesystem, directory, workflow_id, self._fetch(workflow_id), _NEWER_THAN_ALL
                    )
                except FileNotFoundError:  # cleared or compacted between the listing and the reading
                    continue
        raise CheckpointStorageError(
            f"run {workflow_id!r} changes faster than it can be read", workflow_id=workflow_id, operation="read"
        )

    def _latest(self, workflow_id: str, image: RunImage) -> CheckpointData | None:
        found = image.checkpoints()
        return image.data(found[-1], self._fetch(workflow_id)) if found else None

    def _load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        image = self._image(workflow_id)
        found = image.checkpoints()
        if not image.records:
            raise CheckpointNotFoundError(workflow_id)
        for index in reversed(found):
            if image.records[index].head["checkpoint_id"] == checkpoint_id:
                return image.data(index, self._fetch(workflow_id))
        raise CheckpointNotFoundError(workflow_id, checkpoint_id)

    def _references(self, workflow_id: str) -> list[CheckpointRef]:
        image = self._image(workflow_id)
        return [image.reference(index) for index in reversed(image.checkpoints())]

    def _owner(self, workflow_id: str) -> Owner | None:
        with self._translated(workflow_id, "read"), self._run_directory(workflow_id) as directory:
            return None if directory is None else self._live_owner(directory)

    def _live_owner(self, directory: int) -> Owner | None:
        """Return the writer of the newest segment, where it still holds the lock."""
        filesystem = self._filesystem
        owner = newest_owner(filesystem, directory)
        if owner is None or not filesystem.exists(directory, LOCK):
            return None
        lock = filesystem.open_lock(directory, LOCK)
        try:
            if filesystem.lock(lock):
                return None
        finally:
            filesystem.close(lock)
        alive = is_alive(ProcessIdentity(owner.host, owner.boot_id, owner.pid, owner.start_time))
        return None if alive is False else owner

    def _list_runs(self) -> list[RunInfo]:
        found = []
        for name in self._run_names():
            try:
                with self._translated(name, "list"), self._directory_named(name) as directory:
                    info = None if directory is None else describe_run(self._filesystem, directory)
                    if info is None or directory is None:
                        continue
                    found.append(info.with_owner(self._live_owner(directory)))
            except (FlowckptError, ValueError, LookupError, TypeError) as error:
                _log.warning(
                    "%s in %s is left out of the list: %s ('flowckpt check' says more)", name, self.path, error
                )
        return sorted(found, key=lambda info: info.started_at, reverse=True)

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
                return sorted(self._filesystem.names(runs))
            finally:
                self._filesystem.close(runs)

    def _check(self, workflow_id: str | None) -> list[Finding]:
        if workflow_id is not None:
            findings = self._check_run(workflow_id)
            if not findings:
                raise CheckpointNotFoundError(workflow_id)
            return findings
        findings = []
        for name in self._run_names():
            try:
                with self._translated(name, "check"), self._directory_named(name) as directory:
                    run = None if directory is None else run_id_in(self._filesystem, directory)
            except FlowckptError as error:
                findings.append(Finding(name, "corrupt", error.message))
                continue
            if run is not None:
                findings.extend(self._check_run(run))
        return findings

    def _check_run(self, workflow_id: str) -> list[Finding]:
        try:
            image = self._image(workflow_id)
            if image.is_cleared or not image.newest:
                return []
            for blobs in image.history.blobs.values():
                for blob in blobs.values():
                    blob.content()
            for index in image.checkpoints():
                image.data(index, self._fetch(workflow_id))
        except FlowckptError as error:
            return [Finding(workflow_id, "corrupt", error.message)]
        count = len(image.checkpoints())
        steps = len(image.history.results)
        notices = [Finding(workflow_id, "notice", notice) for notice in image.notices]
        return [*notices, Finding(workflow_id, "ok", f"{count} checkpoints, {steps} results")]

    def _fetch(self, workflow_id: str) -> Fetch:
        def fetch(digest: str, size: int) -> bytes:
            with self._translated(workflow_id, "read"), self._run_directory(workflow_id) as directory:
                if directory is None:
                    raise CheckpointNotFoundError(workflow_id, detail="it was cleared")
                return read_blob(self._filesystem, directory, workflow_id, digest, size)

        return fetch

    # --- directories and errors ------------------------------------------------------------------------------------

    def _run_directory(self, workflow_id: str) -> contextlib.AbstractContextManager[int | None]:
        return self._directory_named(run_directory(workflow_id))

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
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _failed(error, workflow_id, operation) from error


def _failed(error: OSError, workflow_id: str, operation: str) -> CheckpointStorageError:
    what = "is a symbolic link, which a store never follows" if error.errno == errno.ELOOP else str(error.strerror)
    name = f" ({error.filename})" if error.filename else ""
    return CheckpointStorageError(
        f"the file store could not {operation} run {workflow_id!r}: {what}{name}",
        workflow_id=workflow_id,
        operation=operation,
        is_outcome_unknown=operation == "save",
        remedy="Mend the directory or the disk; nothing that was acknowledged is lost.",
    )
