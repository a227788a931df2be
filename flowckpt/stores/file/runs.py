"""The runs of a file store, to be owned: claimed, saved to, given up, cleared. Synchronous; `store` is its async door."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowckpt.core.records import CheckpointData, HistoryView
from flowckpt.core.system.lazy import LazyModule
from flowckpt.errors import (
    CheckpointNotFoundError,
    CheckpointStorageError,
    FencedError,
    KeyMissingError,
    RunExistsError,
    RunLockedError,
    VanishedError,
)
from flowckpt.stores.base import Lease
from flowckpt.stores.file.claim import claim, claim_next, sweep_cleared, write_tombstone
from flowckpt.stores.file.directory import is_released, newest_owner, read_image, take_lock
from flowckpt.stores.file.layout import LOCK, RUNS
from flowckpt.stores.file.location import PATIENCE, storage_error
from flowckpt.stores.file.owned_run import OwnedRun
from flowckpt.stores.file.reading import ReadableRuns
from flowckpt.stores.leases import Heartbeat, LeaseTimes
from flowckpt.stores.log.sealing.protection import PLAIN

if TYPE_CHECKING:
    from flowckpt.core.records.listing import CheckpointRef
    from flowckpt.core.records.wait import Signal
    from flowckpt.stores.file import listing, signals, store_keys
    from flowckpt.stores.file import trust as trusting
    from flowckpt.stores.file.trust import Doubts
    from flowckpt.stores.log.image import RunImage
else:
    listing = LazyModule("flowckpt.stores.file.listing")
    store_keys = LazyModule("flowckpt.stores.file.store_keys")
    signals = LazyModule("flowckpt.stores.file.signals")
    trusting = LazyModule("flowckpt.stores.file.trust")


_UNLOCKED_SECONDS = 0.25
"""How often the owner looks that stole a run, and has not got the lock yet."""


class FileRuns(ReadableRuns):
    """The runs of a file store, and those among them that this process owns.

    Args:
        path: the store's directory.
        options: as for `Location`.
    """

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, **options)
        self.owned: dict[str, OwnedRun] = {}
        self._heartbeat = Heartbeat(self.look_after_owned, LeaseTimes().interval)

    def close(self) -> None:
        """Give up every run that this process owns."""
        for workflow_id in list(self.owned):
            self.release(workflow_id)
        self._heartbeat.stop()

    def look_after_owned(self) -> bool:
        """Tell of owned runs that are another's by now; tell whether any are owned. Nothing is renewed: a lock holds."""
        owned = [each for each in [*self.owned.values()] if each.writer.is_mine]
        for each in owned:
            with contextlib.suppress(OSError):  # the next look, or the next save, meets it again
                each.look(is_gone=self._is_gone)
        self._set_pace()
        return bool(owned)

    def _set_pace(self) -> None:
        """Look often while a run that was stolen has no lock yet: once whoever had it has gone, anybody may take the run."""
        is_locked = all(each.is_locked for each in [*self.owned.values()])
        self._heartbeat.beat_every(LeaseTimes().interval if is_locked else _UNLOCKED_SECONDS)

    def tell_when_lost(self, workflow_id: str, tell: Callable[[FencedError], None]) -> None:
        """Have somebody told once a run is lost; a thread looks as long as this process owns any run."""
        owned = self.owned.get(workflow_id)
        if owned is not None:
            owned.on_lost = tell
            self._set_pace()
            self._heartbeat.start()

    def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Append a checkpoint to its attempt's segment and sync it."""
        owned = self.owned.get(workflow_id)
        if owned is None:
            owned = self._own_for(workflow_id, data.attempt)
        try:
            owned.save(data)
        except FencedError as error:
            self._tell_gone(workflow_id, error)  # a context manager around each save takes 1.2 µs
            raise
        except OSError as error:
            owned.writer.is_poisoned = True
            raise storage_error(error, workflow_id, "save", self.path) from error

    @contextlib.contextmanager
    def _telling_gone(self, workflow_id: str) -> Iterator[None]:
        """Tell a store that was removed from a run that was cleared in it."""
        try:
            yield
        except FencedError as error:
            self._tell_gone(workflow_id, error)
            raise

    def _tell_gone(self, workflow_id: str, error: FencedError) -> None:
        if error.newest_attempt is None and self._is_gone():
            raise VanishedError(repr(str(self.path)), workflow_id=workflow_id) from error

    def _is_gone(self) -> bool:
        with contextlib.suppress(OSError), self._opened_root() as root:
            return root is None or not self._filesystem.exists(root, RUNS)
        return False

    def _own_for(self, workflow_id: str, attempt: int) -> OwnedRun:
        """Claim a run for a caller that saves without having acquired it."""
        lease = self.acquire(workflow_id, steal=False, at_least=attempt)
        if lease.attempt != attempt:
            self.release(workflow_id)
            raise FencedError(workflow_id, attempt=attempt, newest_attempt=lease.attempt - 1)
        return self.owned[workflow_id]

    def acquire(self, workflow_id: str, *, steal: bool, at_least: int = 1) -> Lease:
        """Claim the run's next segment, then read the run."""
        if workflow_id in self.owned:
            if not steal:
                raise RunLockedError(workflow_id, holder=f"this process, by a store in {str(self.path)!r}")
            self.owned.pop(workflow_id).close()
        owned = self._claim(workflow_id, steal=steal, at_least=at_least)
        image = owned.image
        try:
            latest = self.latest(workflow_id, image)
        except BaseException:
            owned.release()
            raise
        self.owned[workflow_id] = owned
        return Lease(workflow_id, owned.writer.number, latest, image.last_sequence, tuple(image.notices), owned.token)

    def _claim(self, workflow_id: str, *, steal: bool, at_least: int) -> OwnedRun:
        def claim_once() -> OwnedRun:
            directory = self._make_directories(workflow_id)
            try:
                return claim(
                    self._filesystem,
                    directory,
                    workflow_id=workflow_id,
                    at_least=at_least,
                    steal=steal,
                    fetch=self._fetch(workflow_id),
                    now=self._clock.now(),
                    seals=self.seals,
                )
            except BaseException:
                self._filesystem.close(directory)
                raise

        for _ in range(PATIENCE):
            owned = self._steadily(workflow_id, "acquire", claim_once)
            if not owned.image.is_cleared:
                return owned
            # The crash of a clear left its tombstone: finish it, then begin anew.
            owned.release()
            self.clear(workflow_id)
        raise CheckpointStorageError(
            f"run {workflow_id!r} is being cleared over and over", workflow_id=workflow_id, operation="acquire"
        )

    def renew(self, workflow_id: str, history: HistoryView) -> Lease | None:
        """Claim the next segment for a run that is owned and whose segment can no longer be written to."""
        owned = self.owned.get(workflow_id)
        if owned is None or not owned.can_be_renewed:
            return None
        with self._translated(workflow_id, "renew"), self._telling_gone(workflow_id):
            fetch = self._fetch(workflow_id)
            needed = owned.bytes_missing_of(history)
            made = claim_next(
                self._filesystem, owned, needed=needed, fetch=fetch, now=self._clock.now(), seals=self.seals
            )
        made.on_lost = owned.on_lost
        self.owned[workflow_id] = made
        image, latest = made.image, self.latest(workflow_id, made.image)
        return Lease(workflow_id, made.writer.number, latest, image.last_sequence, tuple(image.notices), made.token)

    def share(self, source_id: str, workflow_id: str, sizes: Mapping[str, int]) -> None:
        """Let an owned run have large values of another without a copy, as far as that is possible."""
        owned = self.owned.get(workflow_id)
        with self._translated(workflow_id, "share"), self._run_directory(source_id) as source:
            if owned is not None and source is not None:
                with contextlib.suppress(FileNotFoundError):  # it has none: they are written
                    owned.share_from(source, sizes)

    def release(self, workflow_id: str, *, token: str = "") -> None:
        """Give a run up, if whoever has the token owns it still."""
        owned = self.owned.get(workflow_id)
        if owned is not None and token in ("", owned.token):
            del self.owned[workflow_id]
            owned.release()

    def clear(self, workflow_id: str, *, only_if: Callable[[int], bool] | None = None) -> bool:
        """Remove a run, behind a tombstone; tell whether that was done.

        Args:
            workflow_id: the run.
            only_if: asked with the run's directory, open and locked, whether to go on.
        """
        self._check_writer(workflow_id)
        self.release(workflow_id)
        return self._steadily(workflow_id, "clear", lambda: self._clear_once(workflow_id, only_if))

    def make_way(self, workflow_id: str) -> None:
        """Remove what stands under a run's name where nothing was ever saved, or all was cleared.

        Args:
            workflow_id: the run.

        Raises:
            RunExistsError: something was saved.
            RunLockedError: another process owns it.
        """

        def is_unbegun(directory: int) -> bool:
            fetch = self._fetch(workflow_id)
            if read_image(self._filesystem, directory, workflow_id, fetch, seals=self.seals).records:
                raise RunExistsError(workflow_id)
            return True

        self._steadily(workflow_id, "receive", lambda: self._clear_once(workflow_id, is_unbegun))

    def _clear_once(self, workflow_id: str, only_if: Callable[[int], bool] | None) -> bool:
        filesystem = self._filesystem
        with self._run_directory(workflow_id) as directory:
            if directory is None:
                return False
            lock = filesystem.open_lock(directory, LOCK)
            try:
                is_locked = take_lock(filesystem, lock)
                if not filesystem.status(lock).links:
                    raise FileNotFoundError(errno.ENOENT, "another clear has removed the lock meanwhile", LOCK)
                if not is_locked and not is_released(filesystem, directory):
                    holder = newest_owner(filesystem, directory)
                    raise RunLockedError(workflow_id, holder=str(holder or "another process"))
                if only_if is not None and not only_if(directory):
                    return False
                is_sealed = self.seals.has_key and self._store_id() is not None
                tombstone = write_tombstone(
                    filesystem, directory, workflow_id, self._clock.now(), self.seals if is_sealed else PLAIN
                )
                sweep_cleared(filesystem, directory, tombstone)
                filesystem.unlink(directory, LOCK)  # nobody can own what is not there; claimers look again
            finally:
                filesystem.close(lock)
            self._remove_directory(workflow_id)
        return True

    def trust(self, workflow_id: str) -> Doubts:
        """Go on from a run as it is found, in a new segment: what that one holds the digest of is true from now on.

        Nothing is written where it proves itself already.
        """
        if not self.seals.protection.is_trusting or not self.seals.has_key:
            raise ValueError("only a store that has a key and was told to trust can say so for good")
        self._check_writer(workflow_id)
        if not self.references(workflow_id):
            raise CheckpointNotFoundError(workflow_id)
        found = self.doubts(workflow_id)
        if found.is_proved:
            return found
        self.acquire(workflow_id, steal=False)
        try:
            found = self.doubts(workflow_id)  # as it is now that nobody else writes to it
            if not found.is_proved:
                with self._translated(workflow_id, "trust"):
                    self.owned[workflow_id].vouch()
        finally:
            self.release(workflow_id)
        return found

    def doubts(self, workflow_id: str) -> Doubts:
        """Return what a run proves with the key, and what it does not."""

        def look_once() -> Doubts:
            with self._run_directory(workflow_id) as directory:
                if directory is None:
                    raise CheckpointNotFoundError(workflow_id)
                fetch = self._fetch(workflow_id)
                return trusting.doubts_about(self._filesystem, directory, workflow_id, fetch, self.seals)

        return self._steadily(workflow_id, "read", look_once)

    def plain_runs(self) -> list[str]:
        """Return the runs whose newest segment was written without a key."""
        with self._translated("", "list"), self._opened_root() as root:
            return [] if root is None else store_keys.plain_runs(self._filesystem, root)

    def send_signal(self, workflow_id: str, signal: Signal) -> bool:
        """Write a message for a run, whoever owns it; tell whether it is new."""
        is_new = False

        def send_once() -> bool:
            nonlocal is_new
            with self._run_directory(workflow_id) as directory:
                if directory is None or not self._is_a_run(directory):
                    raise CheckpointNotFoundError(workflow_id)
                if not self.seals.has_key and (key_id := listing.key_of(self._filesystem, directory)):
                    raise KeyMissingError(workflow_id, key_id=key_id)  # the run would not believe it
                self._check_writer(workflow_id)
                # A try before may have written it, and then met a compaction.
                is_new |= signals.write_signal(self._filesystem, directory, workflow_id, signal, self.seals)
                if not self._is_a_run(directory):  # it was cleared meanwhile
                    signals.clear_signals(self._filesystem, directory)
                    raise CheckpointNotFoundError(workflow_id)
                return is_new

        return self._steadily(workflow_id, "signal", send_once)

    def _is_a_run(self, directory: int) -> bool:
        if not self.seals.has_key:
            return listing.is_begun_run(self._filesystem, directory)
        workflow_id = listing.run_id_in(self._filesystem, directory, self.seals)
        if workflow_id is None:  # with a key, a tombstone must prove itself, so the run is read
            return False
        fetch = self._fetch(workflow_id)
        return bool(read_image(self._filesystem, directory, workflow_id, fetch, seals=self.seals).records)

    def remove_signals(self, workflow_id: str, signal_ids: Collection[str]) -> None:
        """Remove messages for a run."""
        if workflow_id not in self.owned:
            self._check_writer(workflow_id)
        with self._translated(workflow_id, "signal"), self._run_directory(workflow_id) as directory:
            if directory is not None:
                signals.remove_signals(self._filesystem, directory, signal_ids)

    def delete(self, workflow_id: str, checkpoint_id: str) -> bool:
        """Append that the checkpoints of an id are deleted; tell whether there was one."""
        return bool(
            self._delete(
                workflow_id,
                lambda reference: reference.checkpoint_id == checkpoint_id,
                lambda owned, read: owned.delete(checkpoint_id, read),
            )
        )

    def delete_sequences(self, workflow_id: str, sequences: Collection[int]) -> int:
        """Append that checkpoints are deleted; return how many."""
        return self._delete(
            workflow_id,
            lambda reference: reference.sequence in sequences,
            lambda owned, read: owned.delete_sequences(sequences, read),
        )

    def _delete(
        self,
        workflow_id: str,
        wanted: Callable[[CheckpointRef], bool],
        act: Callable[[OwnedRun, Callable[[], RunImage]], int],
    ) -> int:
        is_mine = workflow_id in self.owned
        if not is_mine:
            self._check_writer(workflow_id)
            if not any(map(wanted, self.references(workflow_id))):
                return 0  # so that nothing is claimed, or refused, for nothing
            self.acquire(workflow_id, steal=False)
        try:
            with self._translated(workflow_id, "delete"):
                owned = self.owned[workflow_id]
                was_poisoned = owned.writer.is_poisoned
                try:
                    return act(owned, lambda: self.image(workflow_id))
                except FencedError:
                    is_written = owned.writer.is_poisoned and not was_poisoned  # so what is read may count it already
                    if is_written or owned.is_doubtful or any(map(wanted, self.references(workflow_id))):
                        raise
                    return 0  # nothing is refused where nothing would be done
        finally:
            if not is_mine:
                self.release(workflow_id)
