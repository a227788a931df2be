"""The runs of a file store, to be kept small: checkpoints removed, runs compacted, and whole runs removed."""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowckpt.core.system.filesystem import FileSystem
from flowckpt.core.system.lazy import LazyModule
from flowckpt.errors import CheckpointNotFoundError, FlowckptError, RunLockedError
from flowckpt.stores.base import Compacted
from flowckpt.stores.file.directory import read_image
from flowckpt.stores.file.layout import BLOBS, SIGNALS, pin_name, pinned_sequences, run_directory
from flowckpt.stores.file.runs import FileRuns

if TYPE_CHECKING:
    from flowckpt.core.records.listing import RunInfo
    from flowckpt.stores.file import compaction, listing
else:
    compaction = LazyModule("flowckpt.stores.file.compaction")
    listing = LazyModule("flowckpt.stores.file.listing")


_FOLDERS = (BLOBS, SIGNALS)
_LISTS = 4
"""How many lists of runs are kept for their next pages."""
_log = logging.getLogger("flowckpt")


class RetainedRuns(FileRuns):
    """The runs of a file store, with what keeps them small.

    Args:
        path: the store's directory.
        options: as for `Location`.
    """

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, **options)
        self._listed: dict[tuple[Any, str], list[RunInfo]] = {}

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def evict_with_next_save(self, workflow_id: str, sequences: Sequence[int]) -> None:
        """Name checkpoints in the line of the next save that go with it."""
        owned = self.owned.get(workflow_id)
        if owned is not None:
            owned.evict_with_next_save(sequences)

    def pin(self, workflow_id: str, sequence: int) -> None:
        """Pin a checkpoint."""
        self._check_writer(workflow_id)

        def pin_once() -> None:
            with self._run_directory(workflow_id) as directory:
                if directory is None or all(each.sequence != sequence for each in self.references(workflow_id)):
                    raise CheckpointNotFoundError(workflow_id, None if directory is None else str(sequence))
                set_pin(self._filesystem, directory, sequence)

        self._steadily(workflow_id, "pin", pin_once)

    def unpin(self, workflow_id: str, sequence: int) -> None:
        """Take a pin away."""
        self._check_writer(workflow_id)
        with self._translated(workflow_id, "unpin"), self._run_directory(workflow_id) as directory:
            if directory is not None:
                take_pin_away(self._filesystem, directory, sequence)

    def pinned(self, workflow_id: str) -> frozenset[int]:
        """Return the sequences that are pinned."""

        def look_once() -> frozenset[int]:
            with self._run_directory(workflow_id) as directory:
                return frozenset() if directory is None else pinned_sequences(self._filesystem.names(directory))

        return self._steadily(workflow_id, "read", look_once)

    # --- one run ---------------------------------------------------------------------------------------------------

    def compactable(self, after: str, limit: int) -> list[str]:
        """Return runs, in the order of their directories."""
        self._check_reader()
        start = run_directory(after) if after else ""
        found: list[str] = []
        for name in self._run_names():
            if name > start and len(found) < limit:
                with contextlib.suppress(FlowckptError):  # a damaged one is not made smaller
                    run = self._steadily(name, "read", lambda name=name: self._run_id_in(name))  # type: ignore[misc]
                    found += [run] if run is not None and run_directory(run) == name else []
        return found

    def compact(self, workflow_id: str, *, is_forced: bool) -> Compacted:
        """Write a run into one segment, where that gains something."""
        if workflow_id in self.owned:
            raise RunLockedError(workflow_id, holder=f"this process, by a store in {str(self.path)!r}")
        self._check_writer(workflow_id)
        if not self._is_worth_it(workflow_id, is_forced=is_forced):
            return Compacted()
        before = self._stored_bytes(workflow_id)
        owned = self._claim(workflow_id, steal=False, at_least=1)
        try:
            if not owned.is_locked:  # a child of a dead owner has the lock: whoever steals may clear, too
                raise RunLockedError(workflow_id, holder="a process that its dead owner has left")
            with self._translated(workflow_id, "compact"), self._run_directory(workflow_id) as directory:
                if directory is not None and owned.image.records:
                    number, now = owned.writer.number, self._clock.now()
                    begun = self.begun_steps(workflow_id)
                    compaction.compact_owned(self._filesystem, directory, owned.image, number, now, self.seals, begun)
        finally:
            owned.release()
        return Compacted(True, max(0, before - self._stored_bytes(workflow_id)))

    def _is_worth_it(self, workflow_id: str, *, is_forced: bool) -> bool:
        def look_once() -> bool:
            with self._run_directory(workflow_id) as directory:
                if directory is None or listing.run_id_in(self._filesystem, directory, self.seals) is None:
                    return False
                if self._live_owner(directory) is not None:
                    raise RunLockedError(workflow_id, holder="another process")
                filesystem, seals = self._filesystem, self.seals
                if listing.cleared_id_in(filesystem, directory) is not None:
                    return False  # or so it says; whoever tidies or claims it looks into that
                attempts = compaction.attempts_in(filesystem, directory, workflow_id, seals)
                return compaction.is_worth_it(filesystem, directory, attempts, seals, is_forced=is_forced)

        return self._steadily(workflow_id, "read", look_once)

    def stored_bytes(self, workflow_ids: Sequence[str]) -> list[int]:
        """Return how many bytes the files of each run have."""
        return [self._stored_bytes(each) for each in workflow_ids]

    def _stored_bytes(self, workflow_id: str) -> int:

        def look_once() -> int:
            filesystem = self._filesystem
            with self._run_directory(workflow_id) as directory:
                if directory is None:
                    return 0
                names = filesystem.names(directory)
                total = sum(self._size(directory, name) for name in names if name not in _FOLDERS and name[0] != ".")
                for folder in _FOLDERS:
                    if folder in names:
                        opened = filesystem.open_directory(directory, folder)
                        try:
                            total += sum(self._size(opened, name) for name in filesystem.names(opened))
                        finally:
                            filesystem.close(opened)
                return total

        return self._steadily(workflow_id, "read", look_once)

    def _size(self, directory: int, name: str) -> int:
        file = self._filesystem.open_read(directory, name)
        try:
            return self._filesystem.status(file).size
        finally:
            self._filesystem.close(file)

    # --- many runs -------------------------------------------------------------------------------------------------

    def page(self, before: RunInfo | None, limit: int) -> list[RunInfo]:
        """Return runs, the one started last first. There is no index: all are listed, and the rest is kept for the next page.

        It is kept by the run behind which that page begins, so two who ask at once do not mix.
        """
        rest = None if before is None else self._listed.pop(_place(before), None)
        if rest is None:
            rest = sorted(self.survey().runs, key=_place)
            if before is not None:
                del rest[bisect_left(rest, _place(before), key=_place) :]
        start = max(0, len(rest) - limit)
        page = rest[start:][::-1]
        del rest[start:]
        if page:
            self._listed[_place(page[-1])] = rest
            while len(self._listed) > _LISTS:  # somebody stopped in the middle
                self._listed.pop(next(iter(self._listed)), None)
        return page

    def clear_unchanged(self, runs: Sequence[RunInfo]) -> list[str]:
        """Clear those of the runs that nobody owns, that are not pinned, and that stand as they did."""
        self._check_writer("")
        return [each.workflow_id for each in runs if self._clear_unchanged(each)]

    def _clear_unchanged(self, info: RunInfo) -> bool:

        def is_unchanged(directory: int) -> bool:
            if pinned_sequences(self._filesystem.names(directory)):
                return False
            now = listing.describe_run(self._filesystem, directory, self._fetch, self.seals)
            return now is not None and now.with_owner(None) == info

        try:
            return info.workflow_id not in self.owned and self.clear(info.workflow_id, only_if=is_unchanged)
        except RunLockedError:
            return False

    def tidy(self) -> None:
        """Finish the clears that a crash cut short: what they leave is no run, and is in no list."""
        self._check_writer("")
        for name in self._run_names():
            try:
                cleared = self._steadily(name, "read", lambda name=name: self._cleared_in(name))  # type: ignore[misc]
                if cleared is not None and run_directory(cleared) == name:
                    self.clear(cleared)
            except RunLockedError:
                continue
            except FlowckptError as error:  # the list and 'check' name it
                _log.info("%s in %s was not tidied: %s", name, self.path, error.message)

    def _cleared_in(self, name: str) -> str | None:
        with self._directory_named(name) as directory:
            cleared = None if directory is None else listing.cleared_id_in(self._filesystem, directory)
            if cleared is None or directory is None or not self.seals.has_key:
                return cleared
            # With a key, a tombstone must prove itself: whoever can write to the store can make one.
            image = read_image(self._filesystem, directory, cleared, self._fetch(cleared), seals=self.seals)
            return cleared if image.is_cleared else None


def _place(info: RunInfo) -> tuple[Any, str]:
    return info.started_at, info.workflow_id


# Pins: an empty file in the run's directory for each checkpoint that is pinned.
#
# A file of its own needs no owner: a live run can be pinned, two people can pin at once, and a crash leaves a pin or none.


def set_pin(filesystem: FileSystem, directory: int, sequence: int) -> None:
    """Pin a checkpoint, durably.

    Args:
        filesystem: the calls.
        directory: the run's directory, open.
        sequence: the checkpoint.
    """
    with contextlib.suppress(FileExistsError):
        file = filesystem.create(directory, pin_name(sequence))
        try:
            filesystem.sync(file)
        finally:
            filesystem.close(file)
    filesystem.sync(directory)


def take_pin_away(filesystem: FileSystem, directory: int, sequence: int) -> None:
    """Take a pin away, durably; no error where there is none.

    Args:
        filesystem: the calls.
        directory: the run's directory, open.
        sequence: the checkpoint.
    """
    with contextlib.suppress(FileNotFoundError):
        filesystem.unlink(directory, pin_name(sequence))
    filesystem.sync(directory)
