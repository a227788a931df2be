"""What can be asked of the runs of a file store: without a lock, and without writing anything."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from flowckpt.core.codec.blob import Blob
from flowckpt.core.records import CheckpointData
from flowckpt.core.system.lazy import LazyModule
from flowckpt.core.system.numbers import counted
from flowckpt.core.system.process import ProcessIdentity, is_alive
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    FlowckptError,
    KeyMissingError,
    UnauthenticatedRecordError,
    WrongKeyError,
)
from flowckpt.stores.base import Finding, RunSurvey
from flowckpt.stores.file.directory import is_released, newest_owner, read_file, read_image, read_lines
from flowckpt.stores.file.hints import begun_in
from flowckpt.stores.file.layout import LOCK, run_directory, segment_name
from flowckpt.stores.file.location import Location
from flowckpt.stores.log.image import RunImage
from flowckpt.stores.log.sealing.protection import SealBrokenError
from flowckpt.stores.log.segment import SegmentDamagedError, read_header

if TYPE_CHECKING:
    from flowckpt.core.records.listing import CheckpointRef, Owner, RunFilter, RunInfo
    from flowckpt.core.records.wait import Signal
    from flowckpt.stores.file import listing, signals
    from flowckpt.stores.log.sealing.lines import LineSeal
else:
    listing = LazyModule("flowckpt.stores.file.listing")
    signals = LazyModule("flowckpt.stores.file.signals")


_log = logging.getLogger("flowckpt")


class ReadableRuns(Location):
    """The runs of a file store, to be read."""

    def image(self, workflow_id: str, attempt: int | None = None) -> RunImage:
        """Read a run, as it is or as an attempt left it; one that is cleared or that has no directory is empty."""

        def read_once() -> RunImage:
            with self._run_directory(workflow_id) as directory:
                if directory is None:
                    return RunImage(workflow_id)
                return read_image(
                    self._filesystem,
                    directory,
                    workflow_id,
                    self._fetch(workflow_id),
                    seals=self.seals,
                    attempt=attempt,
                )

        return self._steadily(workflow_id, "read", read_once)

    def latest(self, workflow_id: str, image: RunImage, attempt: int | None = None) -> CheckpointData | None:
        """Return the newest checkpoint of an image, of all or of an attempt."""
        found = [index for index in image.checkpoints() if attempt in (None, image.records[index].segment)]
        return image.data(found[-1], self._fetch(workflow_id)) if found else None

    def latest_of_attempt(self, workflow_id: str, attempt: int) -> CheckpointData | None:
        """Return the last checkpoint of an attempt, as the attempt left it."""
        latest = self.latest(workflow_id, self._image_left_by(workflow_id, attempt))
        return latest if latest is not None and latest.attempt == attempt else None

    def begun_steps(self, workflow_id: str) -> tuple[int, tuple[str, ...]]:
        """Return the attempt that noted last what it began, and the paths of the steps."""

        def read_once() -> tuple[int, tuple[str, ...]]:
            with self._run_directory(workflow_id) as directory:
                if directory is None or not self._filesystem.exists(directory, LOCK):
                    return 0, ()
                text = read_file(self._filesystem, directory, LOCK)
                attempt, _ = begun_in(text)
                if attempt and self.seals.has_key and not self._filesystem.exists(directory, segment_name(attempt)):
                    kept = listing.begun_in_pack(self._filesystem, directory, attempt, self.seals)
                    if kept is not None:
                        return attempt, kept
                return begun_in(text, lambda attempt: self._seal_of(directory, workflow_id, attempt))

        return self._steadily(workflow_id, "read", read_once)

    def _seal_of(self, directory: int, workflow_id: str, attempt: int) -> LineSeal | None:
        """Return the seal of an attempt's segment; None where it has none, or is not there.

        Raises:
            SealBrokenError: it is sealed, and its key is not at hand: what was noted is none to be shown.
        """
        try:
            header, _, _ = read_header(read_lines(self._filesystem, directory, segment_name(attempt), 1))
            return self.seals.for_found(workflow_id, attempt, header, segment_name(attempt))
        except (OSError, SegmentDamagedError):
            return None
        except FlowckptError as error:
            raise SealBrokenError(error.message) from error

    def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Return the newest checkpoint of an id."""
        image = self.image(workflow_id)
        found = image.checkpoints()
        if not image.records:
            raise CheckpointNotFoundError(workflow_id)
        for index in reversed(found):
            if image.records[index].head["checkpoint_id"] == checkpoint_id:
                return image.data(index, self._fetch(workflow_id))
        raise CheckpointNotFoundError(workflow_id, checkpoint_id)

    def references(self, workflow_id: str) -> list[CheckpointRef]:
        """Return the checkpoints of a run, newest first."""
        return self.image(workflow_id).references()[::-1]

    def attempts(self, workflow_id: str) -> list[int]:
        """Return the numbers of the attempts that wrote something, ascending."""

        def look_once() -> list[int]:
            with self._run_directory(workflow_id) as directory:
                return [] if directory is None else listing.begun_segments(self._filesystem, directory, self.seals)

        return self._steadily(workflow_id, "read", look_once)

    def references_of_attempt(self, workflow_id: str, attempt: int) -> list[CheckpointRef]:
        """Return the checkpoints of an attempt, oldest first, as the attempt left them."""
        return [each for each in self._image_left_by(workflow_id, attempt).references() if each.attempt == attempt]

    def _image_left_by(self, workflow_id: str, attempt: int) -> RunImage:
        """Read a run as an attempt left it, but for the checkpoints that later ones deleted."""
        now = self.image(workflow_id)
        if now.records and now.records[-1].segment == attempt:
            return now
        image = self.image(workflow_id, attempt)
        image.forget_deleted(now)
        return image

    def data_of_attempt(self, workflow_id: str, attempt: int) -> list[CheckpointData]:
        """Return the checkpoints of an attempt whole, oldest first, without those that were deleted since."""
        image, now = self.image(workflow_id, attempt), self.image(workflow_id)
        fetch = self._fetch(workflow_id)
        return [
            image.data(index, fetch)
            for index in image.checkpoints()
            if image.records[index].segment == attempt and not now.has_deleted(image.records[index].head["sequence"])
        ]

    def owner(self, workflow_id: str) -> Owner | None:
        """Return who owns a run and is alive."""

        def look_once() -> Owner | None:
            with self._run_directory(workflow_id) as directory:
                return None if directory is None else self._live_owner(directory)

        return self._steadily(workflow_id, "read", look_once)

    def _live_owner(self, directory: int) -> Owner | None:
        """Return the writer of the newest segment, where it still holds the lock.

        The lock of one that is known to be dead is not tried: whoever takes the run over just now would find it held.
        """
        filesystem = self._filesystem
        owner = newest_owner(filesystem, directory)
        if owner is None or not filesystem.exists(directory, LOCK):
            return None
        if is_alive(ProcessIdentity(owner.host, owner.boot_id, owner.pid, owner.start_time)) is False:
            return None
        try:
            lock = filesystem.open_read(directory, LOCK)  # a reader writes nothing, and may not be able to
        except OSError as error:
            if error.errno == errno.EINVAL:  # planted: it is nobody's lock
                return None
            raise
        try:
            if filesystem.lock(lock):
                return None
        finally:
            filesystem.close(lock)
        return None if is_released(filesystem, directory) else owner

    def list_runs(self) -> list[RunInfo]:
        """Return the runs; a damaged one is told to the log.

        Raises:
            KeyMissingError, WrongKeyError, UnauthenticatedRecordError: none can be listed, and one of them for want of a
                key.
        """
        survey = self.survey()
        for finding in survey.unreadable:
            said = "%s in %s is left out of the list: %s ('flowckpt store check' says more)"
            _log.warning(said, finding.workflow_id, self.path, finding.detail)
        return [*survey.runs]

    def survey(self, wanted: RunFilter | None = None) -> RunSurvey:
        """Return the runs, and the damaged ones; it raises what `list_runs` does."""
        self._check_reader()
        found, left_out = [], []
        locked: FlowckptError | None = None
        for name in self._run_names():
            try:
                info = self._steadily(name, "list", lambda name=name: self._describe(name))  # type: ignore[misc]
                if info is not None:
                    found.append(info)
            except (FlowckptError, ValueError, LookupError, TypeError) as error:
                if isinstance(error, KeyMissingError | WrongKeyError | UnauthenticatedRecordError):
                    locked = error
                left_out.append(_finding(name, error))
        if locked is not None and not found:
            raise locked
        found.sort(key=lambda info: info.started_at, reverse=True)
        return RunSurvey(found if wanted is None else wanted.of(found), left_out)

    def unreadable(self) -> list[Finding]:
        """Return the damaged runs; a missing key is no damage."""
        try:
            return [*self.survey().unreadable]
        except (KeyMissingError, WrongKeyError, UnauthenticatedRecordError):
            return []

    def describe(self, workflow_id: str) -> RunInfo | None:
        """Return one run as the list shows it; None where there is none."""
        name = run_directory(workflow_id)
        return self._steadily(workflow_id, "read", lambda: self._describe(name))

    def _describe(self, name: str) -> RunInfo | None:
        with self._directory_named(name) as directory:
            info = (
                None
                if directory is None
                else listing.describe_run(self._filesystem, directory, self._fetch, self.seals)
            )
            if info is None or directory is None:
                return None
            return info.with_owner(self._live_owner(directory))

    def signals(self, workflow_id: str) -> list[Signal]:
        """Return the messages for a run, in the order in which they were sent."""

        def read_once() -> list[Signal]:
            with self._run_directory(workflow_id) as directory:
                if directory is None:
                    return []
                return signals.read_signals(self._filesystem, directory, workflow_id, self.seals)

        return self._steadily(workflow_id, "read", read_once)

    def check(self, workflow_id: str | None) -> list[Finding]:
        """Verify one run or all of them."""
        if workflow_id is not None:
            findings = self._check_run(workflow_id)
            if any(finding.severity == "locked" for finding in findings):
                self.image(workflow_id)  # says which key is missing
            if not findings:
                raise CheckpointNotFoundError(workflow_id)
            return findings
        findings = []
        for name in self._run_names():
            try:
                run = self._steadily(name, "check", lambda name=name: self._run_id_in(name))  # type: ignore[misc]
            except FlowckptError as error:
                findings.append(_finding(name, error))
                continue
            if run is None:
                continue
            if run_directory(run) != name:
                detail = f"the directory {name} has the segments of another run, {run!r}"
                findings.append(Finding(name, "corrupt", detail))
                continue
            findings.extend(self._check_run(run))
        if not findings:
            self._check_reader()  # where there are runs, each says it
        return findings

    def _run_id_in(self, name: str) -> str | None:
        with self._directory_named(name) as directory:
            return None if directory is None else listing.run_id_in(self._filesystem, directory, self.seals)

    def _check_run(self, workflow_id: str) -> list[Finding]:
        try:
            image = self.image(workflow_id)
            if image.is_cleared or not image.newest:
                return []
            for blobs in image.history.blobs.values():
                for blob in blobs.values():
                    blob.content()
            seen = {digest for blobs in image.history.blobs.values() for digest in blobs}
            for index in image.checkpoints():
                data = image.data(index, self._fetch(workflow_id))
                for held in data.held_values:
                    if isinstance(held, Blob) and held.digest not in seen:
                        seen.add(held.digest)
                        held.content()
            self.signals(workflow_id)
        except CheckpointNotFoundError:  # it was cleared meanwhile
            return []
        except FlowckptError as error:
            return [_finding(workflow_id, error)]
        count = len(image.checkpoints())
        steps = len(image.history.results)
        notices = [Finding(workflow_id, "notice", notice) for notice in image.notices]
        sealed = "" if image.seal is None or image.seal.key is None else f", {image.seal}"
        return [
            *notices,
            Finding(workflow_id, "ok", f"{counted(count, 'checkpoint')}, {counted(steps, 'result')}{sealed}"),
        ]


def _finding(name: str, error: Exception) -> Finding:
    severity = "locked" if isinstance(error, KeyMissingError | WrongKeyError) else "corrupt"
    known = getattr(error, "workflow_id", "")
    if isinstance(error, CheckpointCorruptedError) and not known:  # its header is damaged: nobody knows which run it is
        return Finding(name, severity, f"its record is corrupt at {error.location}: {error.detail}")
    if isinstance(error, FlowckptError):
        return Finding(known or name, severity, error.message)
    return Finding(name, severity, f"{type(error).__name__}: {error}")
