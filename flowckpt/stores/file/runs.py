"""Owned runs of a file store: claimed, released, cleared, imported, kept small."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from flowckpt import stores
from flowckpt.core.records import CheckpointData, HistoryView, Reason
from flowckpt.core.records.listing import sort_key
from flowckpt.core.system.blocking import SyncGroup, Waiting, run_in_place
from flowckpt.core.system.declared import shell_word
from flowckpt.core.system.filesystem import Directory, FileSystem, held_open
from flowckpt.core.system.ids import new_token
from flowckpt.core.system.process import current_process
from flowckpt.errors import (
    CheckpointNotFoundError,
    CheckpointStorageError,
    FencedError,
    FlowckptError,
    KeyMissingError,
    RunExistsError,
    RunLockedError,
    VanishedError,
)
from flowckpt.stores import file as file_store
from flowckpt.stores.base import Lease
from flowckpt.stores.file import reader, signals, store_keys
from flowckpt.stores.file.claim import claim_next, claim_run, sweep_cleared, write_tombstone, write_with_reserve
from flowckpt.stores.file.directory import (
    clear_folder,
    is_released,
    make_folder,
    read_newest_owner,
    replace_unsynced,
    sweep_abandoned,
    take_lock,
)
from flowckpt.stores.file.layout import (
    BLOBS,
    LIVE,
    LOCK,
    RUNS,
    SIGNALS,
    pin_name,
    pinned_sequences,
    run_directory,
    temporary_name,
)
from flowckpt.stores.file.location import PATIENCE, storage_error
from flowckpt.stores.file.reader import FileReader
from flowckpt.stores.file.run_writer import FileRunWriter, OpenRun
from flowckpt.stores.leases import LeaseTimes, RunLimit
from flowckpt.stores.log.image import LoadedRun
from flowckpt.stores.log.sealing.protection import PLAIN
from flowckpt.stores.runs_base import Claimed

if TYPE_CHECKING:
    from flowckpt.core.records.listing import RunInfo
    from flowckpt.core.records.wait import Signal
    from flowckpt.stores.file.store_keys import TrustReport
    from flowckpt.stores.log.image import RunImage
    from flowckpt.stores.queries import Compacted


_FOLDERS = (BLOBS, SIGNALS)
_LISTS = 4
"""Maximum lists of runs kept for their next pages."""
_log = logging.getLogger("flowckpt")
_UNLOCKED_SECONDS = 0.25
"""Seconds between checks of an owner that took a run over and does not have the lock yet."""


class FileRuns(FileReader):
    """The runs of a file store, including those that this process owns.

    Args:
        path: the store's directory.
        options: as for `Location`.
    """

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, **options)
        self._listed: dict[tuple[Any, str], list[RunInfo]] = {}
        self._group = SyncGroup()
        self.run_limit = RunLimit(self.owned, self._clock)

    def renew_leases(self) -> bool:
        """Report lost runs; return whether any are owned. Locks need no renewal."""
        owned = [each for each in [*self.owned.values()] if each.is_mine]
        for each in owned:
            with contextlib.suppress(OSError):  # the next check or save raises it again
                each.report_if_lost(is_gone=self._is_gone)
            if each.is_mine:
                each.started.sign()
        self._set_pace()
        return bool(owned)

    def _set_pace(self) -> None:
        """Check often while a run has no lock after a takeover: another process may claim it."""
        is_locked = all(each.opened.is_locked for each in [*self.owned.values()])
        self._heartbeat.set_interval(LeaseTimes().interval if is_locked else _UNLOCKED_SECONDS)

    def call_when_lost(self, workflow_id: str, callback: Callable[[FencedError], None]) -> None:
        """Call a function when an owned run is lost; a thread checks while this process owns any run."""
        super().call_when_lost(workflow_id, callback)
        if workflow_id in self.owned:
            self._set_pace()
            with contextlib.suppress(CheckpointStorageError):  # no thread can be started: saves check, too
                self._heartbeat.start()

    def _explain_failure(self, writer: FileRunWriter, error: FencedError | OSError) -> None:
        if isinstance(error, FencedError):
            self._raise_if_store_removed(writer.workflow_id, error)
        else:
            writer.writer.is_poisoned = True
            raise storage_error(error, writer.workflow_id, "save", self.path) from error

    @contextlib.contextmanager
    def _explain_removal(self, workflow_id: str) -> Iterator[None]:
        """Distinguish a removed store from a cleared run."""
        try:
            yield
        except FencedError as error:
            self._raise_if_store_removed(workflow_id, error)
            raise

    def _raise_if_store_removed(self, workflow_id: str, error: FencedError) -> None:
        if error.newest_attempt is None and self._is_gone():
            raise VanishedError(repr(str(self.path)), workflow_id=workflow_id) from error

    def _is_gone(self) -> bool:
        with contextlib.suppress(OSError), self._open_root() as root:
            return root is None or not root.exists(RUNS)
        return False

    def _claim(self, workflow_id: str, *, take_over: bool, at_least: int) -> Claimed[FileRunWriter]:
        if workflow_id in self.owned:
            self.owned.pop(workflow_id).close()
        return self._load_claimed(self._claim_now(workflow_id, take_over=take_over, at_least=at_least))

    def _load_claimed(self, writer: FileRunWriter) -> Claimed[FileRunWriter]:
        try:
            return writer, self._load_newest(writer), tuple(writer.image.notices)
        except BaseException:
            writer.release()
            raise

    def _load_newest(self, writer: FileRunWriter) -> CheckpointData | None:
        return LoadedRun(writer.image, self._make_fetch(writer.workflow_id)).latest()

    def _give_up(self, writer: FileRunWriter) -> None:
        writer.release()

    def _claim_now(self, workflow_id: str, *, take_over: bool = False, at_least: int = 1) -> FileRunWriter:
        known = self._recall(workflow_id)

        def claim_once() -> FileRunWriter:
            return run_in_place(self._make_and_claim(workflow_id, at_least=at_least, take_over=take_over, known=known))

        for _ in range(PATIENCE):
            owned = self._retry(workflow_id, "acquire", claim_once)
            if not owned.image.is_cleared:
                return owned
            # A crash during a clear left its tombstone: finish the clear, then try again.
            owned.release()
            self.clear(workflow_id)
        raise CheckpointStorageError(
            f"run {workflow_id!r} is cleared repeatedly by another process",
            workflow_id=workflow_id,
            operation="acquire",
        )

    def _make_and_claim(
        self,
        workflow_id: str,
        *,
        at_least: int = 1,
        take_over: bool = False,
        known: RunImage | None = None,
        is_new: bool = False,
    ) -> Waiting[FileRunWriter]:
        """Make the run's directory durable and claim it; see `claim_run`."""
        directory = yield from self._make_directories(workflow_id, is_new=is_new)
        opened = OpenRun(directory, workflow_id, self._make_fetch(workflow_id), self.seals)
        try:
            claimed = yield from claim_run(
                opened, at_least=at_least, take_over=take_over, now=self._clock.now(), known=known
            )
        except BaseException:
            if opened.lock >= 0:
                self._filesystem.close(opened.lock)
            directory.close()
            raise
        claimed.writer.directory_path = self._made.pop(workflow_id, "")
        return claimed

    def acquire_new_later(self, workflow_id: str) -> asyncio.Future[Lease | None]:
        """Claim a new run with the next group; the result is None if something with its name exists."""
        return self._group.later(workflow_id, self._acquire_new_in_group(workflow_id))

    def _acquire_new_in_group(self, workflow_id: str) -> Waiting[Lease | None]:
        if workflow_id in self.owned:
            return None
        try:
            writer = yield from self._make_and_claim(workflow_id, is_new=True)
        except (FileExistsError, FileNotFoundError):  # it existed, or was removed meanwhile: check again
            return None
        except OSError as error:
            raise storage_error(error, workflow_id, "acquire", self.path) from error
        return self._register_writer(*self._load_claimed(writer))

    def save_later(self, workflow_id: str, data: CheckpointData) -> asyncio.Future[None] | None:
        """Save a checkpoint with the next group; None for the first one of a resume, or with large values."""
        writer = self.owned.get(workflow_id)
        view = data.step_results
        if writer is None or not writer.may_share_syncs or data.reason is Reason.CONTINUED:
            return None
        if type(view) is HistoryView and view.history.blobs:
            return None
        return self._group.later(workflow_id, self._save_in_group(writer, data))

    def _save_in_group(self, writer: FileRunWriter, data: CheckpointData) -> Waiting[None]:
        try:
            yield from writer.save_in_group(data)
        except (FencedError, OSError) as error:
            self._explain_failure(writer, error)
            raise

    def release_later(self, workflow_id: str, token: str) -> asyncio.Future[None] | None:
        """Release a run with the next group; None if it is not owned or its release needs a sync."""
        writer = self.owned.get(workflow_id)
        if writer is None or writer.is_guarded:
            return None

        def release_in_group() -> Waiting[None]:
            self.release(workflow_id, token=token)
            yield from ()

        return self._group.later(workflow_id, release_in_group())

    def make_savable(self, workflow_id: str, history: HistoryView) -> Lease | None:
        """Claim the next segment of an owned run whose segment can no longer be written."""
        owned = self.owned.get(workflow_id)
        if owned is None or not owned.can_be_renewed:
            return None
        made = self._claim_after(owned, "make savable", needed=owned.estimate_size(history) or 1)
        return self._replace_writer(owned, *self._load_claimed(made))

    def _claim_next(self, writer: FileRunWriter) -> FileRunWriter:
        return self._claim_after(writer, "acquire")

    def _claim_after(self, writer: FileRunWriter, operation: str, *, needed: int = 0) -> FileRunWriter:
        workflow_id = writer.workflow_id
        with self._translate_errors(workflow_id, operation), self._explain_removal(workflow_id):
            return claim_next(writer, needed=needed, now=self._clock.now())

    def _drop_earlier_generations(self, writer: FileRunWriter, sequence: int) -> None:
        try:
            file_store.compaction.drop_earlier(writer, sequence)
        except OSError as error:
            message = "run %s: earlier generations were not removed: %s"
            _log.warning(message, writer.workflow_id, error.strerror or error)

    def share_values(self, source_id: str, workflow_id: str, sizes: Mapping[str, int]) -> None:
        """Share large values of another run with an owned run, without copies if possible."""
        owned = self.owned.get(workflow_id)
        with self._translate_errors(workflow_id, "share"), self._open_run(source_id) as source:
            if owned is not None and source is not None:
                with contextlib.suppress(FileNotFoundError):  # it has none: they are written instead
                    owned.share_from(source, sizes)

    def clear(self, workflow_id: str) -> None:
        """Remove a run, after a tombstone."""
        self._clear_if(workflow_id, None)

    def _clear_if(self, workflow_id: str, condition: Callable[[Directory], bool] | None) -> bool:
        """Remove a run if a condition on its open, locked directory holds; return whether it was removed."""
        self._check_writer(workflow_id)
        self.release(workflow_id)
        return self._retry(workflow_id, "clear", lambda: self._clear_once(workflow_id, condition))

    def remove_empty(self, workflow_id: str) -> None:
        """Remove a run's directory if nothing was ever saved or everything was cleared.

        Raises:
            RunExistsError: the run has records.
            RunLockedError: another process owns it.
        """

        def is_unbegun(directory: Directory) -> bool:
            if self._read_open_run(directory, workflow_id).records:
                raise RunExistsError(workflow_id)
            return True

        self._retry(workflow_id, "receive", lambda: self._clear_once(workflow_id, is_unbegun))

    def _clear_once(self, workflow_id: str, only_if: Callable[[Directory], bool] | None) -> bool:
        with self._open_run(workflow_id) as run:
            if run is None:
                return False
            with held_open(run.calls, run.open_lock(LOCK)) as lock:
                is_locked = take_lock(run.calls, lock)
                if not run.calls.status(lock).links:
                    raise FileNotFoundError(errno.ENOENT, "another clear has removed the lock", LOCK)
                if not is_locked and not is_released(run):
                    holder = read_newest_owner(run)
                    raise RunLockedError(workflow_id, holder=str(holder or "another process"))
                if only_if is not None and not only_if(run):
                    return False
                is_sealed = self.seals.has_key and self._read_store_id() is not None
                now, seals = self._clock.now(), self.seals if is_sealed else PLAIN
                tombstone = write_with_reserve(run.calls, lock, lambda: write_tombstone(run, workflow_id, now, seals))
                sweep_cleared(run, tombstone)
                run.unlink(LOCK)  # a missing lock cannot be owned; claimers try again
            self._remove_directory(workflow_id)
        return True

    def trust(self, workflow_id: str) -> TrustReport:
        """Accept a run as it is, by a new segment with the digest of its last line. A proved run is not changed."""
        if not self.seals.protection.is_trusting or not self.seals.has_key:
            raise ValueError("only a store with a key and trust=True can accept a run permanently")
        self._check_writer(workflow_id)
        if not self.references(workflow_id):
            raise CheckpointNotFoundError(workflow_id)
        found = self.trust_report(workflow_id)
        if found.is_proved:
            return found
        self.acquire(workflow_id)
        try:
            found = self.trust_report(workflow_id)  # the current state: no other process can write now
            if not found.is_proved:
                with self._translate_errors(workflow_id, "trust"):
                    self.owned[workflow_id].vouch()
        finally:
            self.release(workflow_id)
        return found

    def trust_report(self, workflow_id: str) -> TrustReport:
        """Return which parts of a run the key proves."""

        def read_once() -> TrustReport:
            with self._open_run(workflow_id) as directory:
                if directory is None:
                    raise CheckpointNotFoundError(workflow_id)
                return store_keys.trust_report(directory, workflow_id, self._make_fetch(workflow_id), self.seals)

        return self._retry(workflow_id, "read", read_once)

    def plain_runs(self) -> list[str]:
        """Return the runs whose newest segment was written without a key."""
        with self._translate_errors("", "list"), self._open_root() as root:
            return [] if root is None else store_keys.list_plain_runs(root)

    def receive_run(self, workflow_id: str, checkpoints: Callable[[], Iterable[CheckpointData]]) -> None:
        """Write a whole run next to the others, then give it its name."""
        if self.load_image(workflow_id).records:
            raise RunExistsError(workflow_id)
        if (owner := self.owner(workflow_id)) is not None:
            raise RunLockedError(workflow_id, holder=str(owner))
        staged, attempt = StagedRuns(self), 0
        try:
            for data in checkpoints():
                if not attempt:
                    self._check_writer(workflow_id)
                    with self._open_runs(workflow_id) as directory:
                        sweep_abandoned(directory, _remove_unfinished)
                if data.attempt != attempt:
                    staged.end_attempt(workflow_id, data.saved_at)
                attempt = data.attempt
                staged.save(workflow_id, data)
            staged.end_attempt(workflow_id)
            if attempt:
                self._publish(staged.name, workflow_id)
        except BaseException:
            with contextlib.suppress(Exception):
                staged.close()
            if attempt:
                with contextlib.suppress(Exception), self._open_runs(workflow_id) as directory:
                    _remove_unfinished(directory, staged.name)
            raise

    @contextlib.contextmanager
    def _open_runs(self, workflow_id: str) -> Iterator[Directory]:
        """Open the directory of all runs for the block, created if it is missing."""
        with self._translate_errors(workflow_id, "receive"):
            self._filesystem.make_root(str(self.path))
            self._check_filesystem()
            with Directory.at(self._filesystem, str(self.path)) as root:
                make_folder(root, RUNS)
                opened = root.open(RUNS)
            with opened as directory:
                yield directory

    def _publish(self, name: str, workflow_id: str) -> None:
        """Rename the finished directory to the run's name, durably, replacing a directory that never had a checkpoint."""
        with self._open_runs(workflow_id) as directory:
            for _ in range(PATIENCE):
                try:
                    directory.rename(name, run_directory(workflow_id))
                except OSError as error:
                    if error.errno not in _TAKEN:
                        raise
                    self.remove_empty(workflow_id)
                    continue
                try:
                    directory.sync()
                except OSError as error:
                    raise CheckpointStorageError(
                        f"run {workflow_id!r} is in the store, but whether its name is on the disk is unknown: {error.strerror}",
                        workflow_id=workflow_id,
                        operation="receive",
                        is_outcome_unknown=True,
                        remedy=f"Repair the disk, then 'flowckpt store clear {shell_word(workflow_id)}' and do it again.",
                    ) from error
                return
        busy = OSError(errno.EBUSY, "another process starts it repeatedly")
        raise storage_error(busy, workflow_id, "receive", self.path)

    def note_live(self, writer: FileRunWriter, content: bytes) -> None:
        """Replace the live note of an owned run."""
        with self._open_run(writer.workflow_id) as directory:  # the writer's may be closed meanwhile
            if directory is not None:
                replace_unsynced(directory, LIVE, writer.seal_live_note(content))

    def send_signal(self, workflow_id: str, signal: Signal) -> bool:
        """Write a message for a run, which another process may own; return whether it is new."""
        is_new = False

        def send_once() -> bool:
            nonlocal is_new
            with self._open_run(workflow_id) as directory:
                if directory is None or not self._is_a_run(directory):
                    raise CheckpointNotFoundError(workflow_id)
                if not self.seals.has_key and (key_id := reader.read_key_id(directory)):
                    raise KeyMissingError(workflow_id, key_id=key_id)  # the run would reject it
                self._check_writer(workflow_id)
                # An earlier attempt may have written it before a compaction interrupted.
                is_new |= signals.write_signal(directory, workflow_id, signal, self.seals)
                if not self._is_a_run(directory):  # cleared meanwhile
                    clear_folder(directory, SIGNALS)
                    raise CheckpointNotFoundError(workflow_id)
                return is_new

        return self._retry(workflow_id, "signal", send_once)

    def _is_a_run(self, directory: Directory) -> bool:
        if not self.seals.has_key:
            return reader.is_begun_run(directory)
        workflow_id = reader.read_run_id(directory, self.seals)
        if workflow_id is None:  # with a key, a tombstone must be authenticated, so the run is read
            return False
        return bool(self._read_open_run(directory, workflow_id).records)

    def remove_signals(self, workflow_id: str, signal_ids: Collection[str]) -> None:
        """Remove messages for a run."""
        if workflow_id not in self.owned:
            self._check_writer(workflow_id)
        with self._translate_errors(workflow_id, "signal"), self._open_run(workflow_id) as directory:
            if directory is not None:
                signals.remove_signals(directory, signal_ids)

    def _delete(self, writer: FileRunWriter, wanted: Callable[[str, int], bool]) -> int:
        was_poisoned = writer.writer.is_poisoned
        with self._translate_errors(writer.workflow_id, "delete"):
            try:
                return super()._delete(writer, wanted)
            except FencedError:
                is_written = writer.writer.is_poisoned and not was_poisoned  # so the run as read may include it
                if is_written or writer.is_doubtful or self._select_sequences(writer.workflow_id, wanted):
                    raise
                return 0  # no refusal if there is nothing to do

    def _find_deletable(self, writer: FileRunWriter, wanted: Callable[[str, int], bool]) -> list[int]:
        return writer.select_sequences(wanted, lambda: self.load_image(writer.workflow_id))

    # --- keeping it small ------------------------------------------------------------------------------------------
    #
    # A pin is an empty file. It needs no ownership: a live run can be pinned, pins can be set concurrently, and a crash
    # leaves the pin or no pin.

    def pin(self, workflow_id: str, sequence: int) -> None:
        """Pin a checkpoint."""
        self._check_writer(workflow_id)

        def pin_once() -> None:
            with self._open_run(workflow_id) as directory:
                if directory is None or all(each.sequence != sequence for each in self.references(workflow_id)):
                    raise CheckpointNotFoundError(workflow_id, None if directory is None else str(sequence))
                with (
                    contextlib.suppress(FileExistsError),
                    held_open(self._filesystem, directory.create(pin_name(sequence))) as file,
                ):
                    self._filesystem.sync(file)
                directory.sync()

        self._retry(workflow_id, "pin", pin_once)

    def unpin(self, workflow_id: str, sequence: int) -> None:
        """Remove a pin."""
        self._check_writer(workflow_id)
        with self._translate_errors(workflow_id, "unpin"), self._open_run(workflow_id) as directory:
            if directory is not None:
                directory.discard(pin_name(sequence))
                directory.sync()

    def pinned(self, workflow_id: str) -> frozenset[int]:
        """Return the pinned sequences."""
        return self._read_directory(workflow_id, lambda found: pinned_sequences(found.names()), frozenset())

    # --- one run ---------------------------------------------------------------------------------------------------

    def compactable(self, after: str, limit: int) -> list[str]:
        """Return runs, in the order of their directories."""
        self._check_reader()
        start = run_directory(after) if after else ""
        found: list[str] = []
        for name in self._run_names():
            if name > start and len(found) < limit:
                with contextlib.suppress(FlowckptError):  # damaged runs are not compacted
                    run = self._retry(name, "read", partial(self._read_run_id, name))
                    found += [run] if run is not None and run_directory(run) == name else []
        return found

    def compact(self, workflow_id: str, *, is_forced: bool = False) -> Compacted:
        """Rewrite a run as one segment if that is worthwhile."""
        self._refuse_own_run(workflow_id)
        self._check_writer(workflow_id)
        if not self._is_worthwhile(workflow_id, is_forced=is_forced):
            return stores.queries.Compacted()
        before = self._measure_run(workflow_id)
        owned = self._claim_now(workflow_id)
        try:
            if not owned.opened.is_locked:  # a child of a dead owner has the lock: a new owner may also clear
                raise RunLockedError(workflow_id, holder="a child process of its dead owner")
            with self._translate_errors(workflow_id, "compact"), self._open_run(workflow_id) as directory:
                if directory is not None and owned.image.records:
                    begun = self.started_steps(workflow_id)
                    file_store.compaction.compact_run(owned, directory, self._clock.now(), begun)
        finally:
            owned.release()
        return stores.queries.Compacted(True, max(0, before - self._measure_run(workflow_id)))

    def _is_worthwhile(self, workflow_id: str, *, is_forced: bool) -> bool:

        def read(directory: Directory) -> bool:
            if reader.read_run_id(directory, self.seals) is None:
                return False
            if self._find_live_owner(directory) is not None:
                raise RunLockedError(workflow_id, holder="another process")
            if reader.read_cleared_id(directory) is not None:
                return False  # unverified; the process that tidies or claims it checks that
            attempts = file_store.compaction.load_attempts(directory, workflow_id, self.seals)
            return file_store.compaction.is_worthwhile(
                directory, workflow_id, attempts, self.seals, is_forced=is_forced
            )

        return self._read_directory(workflow_id, read, otherwise=False)

    def total_bytes(self) -> int:
        """Return the bytes of the store's files: its runs, indexes and keys."""
        total = 0
        for place, _, names in os.walk(self.path):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # another process removed it
                    total += Path(place, name).lstat().st_size
        return total

    def stored_bytes(self, workflow_ids: Sequence[str]) -> list[int]:
        """Return the bytes of each run's files."""
        return [self._measure_run(each) for each in workflow_ids]

    def _measure_run(self, workflow_id: str) -> int:

        def read(directory: Directory) -> int:
            names = directory.names()
            total = sum(directory.status(name).size for name in names if name not in _FOLDERS and name[0] != ".")
            for folder in _FOLDERS:
                if folder in names:
                    with directory.open(folder) as opened:
                        total += sum(opened.status(name).size for name in opened.names())
            return total

        return self._read_directory(workflow_id, read, 0)

    # --- many runs -------------------------------------------------------------------------------------------------

    def page_runs(self, before: RunInfo | None, limit: int) -> list[RunInfo]:
        """Return runs, most recently started first. Without an index, all are listed, and the rest is cached.

        It is kept under the last run of this page, so that concurrent callers do not interfere.
        """
        rest = None if before is None else self._listed.pop(sort_key(before), None)
        if rest is None:
            rest = sorted(self.survey_runs().runs, key=sort_key)
            if before is not None:
                del rest[bisect_left(rest, sort_key(before), key=sort_key) :]
        start = max(0, len(rest) - limit)
        page = rest[start:][::-1]
        del rest[start:]
        if page:
            self._listed[sort_key(page[-1])] = rest
            while len(self._listed) > _LISTS:  # from a caller that stopped early
                self._listed.pop(next(iter(self._listed)), None)
        return page

    def clear_unchanged(self, runs: Sequence[RunInfo]) -> list[str]:
        """Clear the runs that have neither an owner nor a pin and are unchanged since they were listed."""
        self._check_writer("")
        return [each.workflow_id for each in runs if self._clear_unchanged(each)]

    def _clear_unchanged(self, info: RunInfo) -> bool:

        def is_unchanged(directory: Directory) -> bool:
            if pinned_sequences(directory.names()):
                return False
            now = reader.describe_run(directory, self._make_fetch, self.seals)
            return now is not None and now.with_owner(None) == info

        try:
            return info.workflow_id not in self.owned and self._clear_if(info.workflow_id, is_unchanged)
        except RunLockedError:
            return False

    def tidy(self) -> None:
        """Finish clears that a crash interrupted: no list shows what they left."""
        self._check_writer("")
        self.reserve.make()
        for name in self._run_names():
            try:
                cleared = self._retry(name, "read", partial(self._read_cleared_id, name))
                if cleared is not None and run_directory(cleared) == name:
                    self.clear(cleared)
            except RunLockedError:
                continue
            except FlowckptError as error:  # lists and 'check' report it
                _log.info("%s in %s was not tidied: %s", name, self.path, error.message)

    def _read_cleared_id(self, name: str) -> str | None:
        with self._open_directory(name) as directory:
            cleared = None if directory is None else reader.read_cleared_id(directory)
            if cleared is None or directory is None or not self.seals.has_key:
                return cleared
            # With a key, a tombstone must be authenticated: any process that can write to the store can make one.
            return cleared if self._read_open_run(directory, cleared).is_cleared else None


# Receiving a whole run: it is written next to the others under a temporary name, then renamed.
#
# A directory is renamed atomically, and never over one that is not empty; so readers see the whole run or nothing, and
# only one of two processes can import the same run. The next import removes what a dead process left.

_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


class _RecordedClock:
    """A clock that returns the start of the attempt that is being written, for the header of its segment."""

    def __init__(self) -> None:
        self.moment: datetime | None = None

    def now(self) -> datetime:
        """Return when the attempt that is being written started."""
        assert self.moment is not None, "it is set before an attempt is claimed"
        return self.moment


class _SyncedWhenClosed:
    """The calls, with files synced only when closed: nothing of the run counts before it has its name."""

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem
        self._written: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._filesystem, name)

    def sync_data(self, file: int) -> None:
        """Remember to sync the file."""
        self._written.add(file)

    def close(self, file: int) -> None:
        """Sync the file if necessary, and close it."""
        try:
            if file in self._written:
                self._written.discard(file)
                self._filesystem.sync_data(file)
        finally:
            self._filesystem.close(file)


class StagedRuns(FileRuns):
    """A run that is not visible yet, in a temporary directory next to the runs.

    Args:
        runs: the runs of the same store.

    Attributes:
        name: the name of the directory.
    """

    def __init__(self, runs: FileRuns) -> None:
        self.name = temporary_name(current_process(), new_token(8))
        self._recorded = _RecordedClock()
        calls = cast("FileSystem", _SyncedWhenClosed(runs._filesystem))
        options = {"allowed": runs._allowed, "protection": runs.seals.protection}
        super().__init__(runs.path, filesystem=calls, clock=self._recorded, **options)
        self._guard = runs._guard  # the same store: its keys are checked once

    def _directory_name(self, workflow_id: str) -> str:
        return self.name

    def end_attempt(self, workflow_id: str, start: datetime | None = None) -> None:
        """End an attempt, if there is one, and make it durable.

        Args:
            workflow_id: the run.
            start: when the next attempt started, if there is one.
        """
        with self._translate_errors(workflow_id, "receive"):
            self.close()
        self._recorded.moment = start


def _remove_unfinished(parent: Directory, name: str) -> None:
    """Remove the directory of an unfinished run."""
    with parent.open(name) as directory:
        clear_folder(directory, BLOBS)
        for each in directory.names():
            directory.unlink(each)
    parent.calls.remove_directory(parent.descriptor, name)
