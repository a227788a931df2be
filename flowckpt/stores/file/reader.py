"""The runs of a file store, read without a lock and without writing anything."""

from __future__ import annotations

import contextlib
import errno
import heapq
import json
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowckpt.core.codec.blob import Fetch
from flowckpt.core.records.listing import RunInfo
from flowckpt.core.system.filesystem import Directory, held_open
from flowckpt.core.system.process import ProcessIdentity, is_alive
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    CheckpointStorageError,
    FlowckptError,
    KeyMissingError,
    UnauthenticatedRecordError,
    WrongKeyError,
)
from flowckpt.stores.base import Finding, RunSurvey, make_ok_finding, make_survey
from flowckpt.stores.file import signals
from flowckpt.stores.file.directory import (
    MOST_HINT,
    is_released,
    open_live_note,
    parse_started_steps,
    read_file,
    read_image,
    read_lines,
    read_newest_owner,
    read_owner,
    read_segment,
)
from flowckpt.stores.file.layout import (
    LIVE,
    LOCK,
    NOT_OURS,
    RUNS,
    SIGNALS,
    parse_head_number,
    run_directory,
    segment_name,
    segment_numbers,
)
from flowckpt.stores.file.location import Location
from flowckpt.stores.file.run_writer import FileRunWriter
from flowckpt.stores.leases import LeaseTimes
from flowckpt.stores.log import sealing
from flowckpt.stores.log.image import LoadedRun, LogRuns, RunImage, make_run_info, open_header, select_segments
from flowckpt.stores.log.sealing.protection import PLAIN, SealBrokenError, Seals
from flowckpt.stores.log.segment import (
    PACK,
    PACKED,
    TRAILER,
    Cut,
    Segment,
    SegmentDamagedError,
    fill_in,
    parse_adoption,
    parse_header,
    parse_segment,
)

if TYPE_CHECKING:
    from flowckpt.core.records.listing import Owner, RunFilter
    from flowckpt.core.records.wait import Signal
    from flowckpt.stores.log.sealing.lines import LineSeal


_log = logging.getLogger("flowckpt")

_FEW = 100
"""Up to this number of runs, a list reads all."""
_TICK = 1.0
"""Seconds by which a file's modification time may lag: the system uses the time of its last clock tick."""


_UNPROVED = (KeyMissingError, WrongKeyError, UnauthenticatedRecordError)
"""The errors of a run that needs another key; without a readable run, they are those of the list."""

_Read = RunInfo | Exception | None
"""A run as listed, the error of one that cannot be read, or None if the directory has none."""


class FileReader(Location, LogRuns[FileRunWriter]):
    """The runs of a file store, read without a lock, and without writing anything.

    Args:
        path: the store's directory.
        options: as for `Location`.
    """

    has_leases = False  # a lock holds without heartbeats

    def __init__(self, path: Path, **options: Any) -> None:
        Location.__init__(self, path, **options)
        LogRuns.__init__(self, LeaseTimes().interval)

    @property
    def place(self) -> str:
        """The directory, for messages."""
        return repr(str(self.path))

    def load_run(self, workflow_id: str, attempt: int | None = None) -> LoadedRun:
        """Read a run in its current state, or as an attempt left it."""
        return LoadedRun(self.load_image(workflow_id, attempt), self._make_fetch(workflow_id))

    def load_image(self, workflow_id: str, attempt: int | None = None) -> RunImage:
        """Read a run in its current state, or as an attempt left it; a cleared or missing run is empty."""
        known = self._peek(workflow_id) if attempt is None else None

        def read(directory: Directory) -> RunImage:
            return self._read_open_run(directory, workflow_id, attempt=attempt, known=known)

        return self._read_directory(workflow_id, read, RunImage(workflow_id))

    def started_steps(self, workflow_id: str) -> tuple[int, tuple[str, ...]]:
        """Return the latest attempt that noted started steps, and the paths of these steps."""

        def read(directory: Directory) -> tuple[int, tuple[str, ...]]:
            if not directory.exists(LOCK):
                return 0, ()
            text = self._read_hint(directory, LOCK)
            attempt, _ = parse_started_steps(text)
            if attempt and self.seals.has_key and not directory.exists(segment_name(attempt)):
                kept = read_packed_steps(directory, attempt, self.seals)
                if kept is not None:
                    return attempt, kept
            return parse_started_steps(text, lambda attempt: self._read_seal(directory, workflow_id, attempt))

        nothing: tuple[int, tuple[str, ...]] = (0, ())
        return self._read_directory(workflow_id, read, nothing)

    def live_note(self, workflow_id: str) -> bytes | None:
        """Return the live note of a run."""

        def read(directory: Directory) -> bytes | None:
            if not directory.exists(LIVE):
                return None
            content = self._read_hint(directory, LIVE)
            if not self.seals.has_key:
                return content
            return open_live_note(content, lambda attempt: self._read_seal(directory, workflow_id, attempt))

        return self._read_directory(workflow_id, read, None)

    def _read_hint(self, directory: Directory, name: str) -> bytes:
        """Return the content of a file of hints; empty if it is damaged."""
        try:
            return read_file(directory, name, MOST_HINT)
        except OSError as error:
            if error.errno not in NOT_OURS or error.errno == errno.ENOENT:
                raise
            return b""

    def last_seen(self, workflow_id: str, attempt: int) -> datetime | None:
        """Return when the owner of an attempt last wrote to the lock file."""

        def read(directory: Directory) -> datetime | None:
            if not directory.exists(LOCK):
                return None
            with directory.reading(LOCK) as lock:
                status = directory.calls.status(lock)
                found, _ = parse_started_steps(directory.calls.read(lock, min(status.size, MOST_HINT), 0))
            is_known = found == attempt and status.written_at > 0
            return datetime.fromtimestamp(status.written_at, UTC) if is_known else None

        return self._read_directory(workflow_id, read, None)

    def _read_seal(self, directory: Directory, workflow_id: str, attempt: int) -> LineSeal | None:
        """Return the seal of an attempt's segment; None if the segment is not sealed or missing.

        Raises:
            SealBrokenError: it is sealed with a missing key, so its notes must not be shown.
        """
        try:
            header, _, _ = parse_header(read_lines(directory, segment_name(attempt), 1))
            return self.seals.find_seal(workflow_id, attempt, header, segment_name(attempt))
        except SegmentDamagedError:
            return None
        except OSError as error:
            if error.errno not in NOT_OURS:
                raise
            return None
        except FlowckptError as error:
            raise SealBrokenError(error.message) from error

    def attempts(self, workflow_id: str) -> list[int]:
        """Return the ascending numbers of the attempts that wrote."""
        return self._read_directory(workflow_id, lambda found: list_attempts(found, self.seals), [])

    def claimed_by(self, workflow_id: str, attempt: int) -> ProcessIdentity | None:
        """Return the process named in the header of an attempt's segment."""
        with self._open_run(workflow_id) as directory:
            owner = None if directory is None else read_owner(directory, attempt)
            return None if owner is None else owner.process

    def owner(self, workflow_id: str) -> Owner | None:
        """Return the live owner of a run."""
        return self._read_directory(workflow_id, self._find_live_owner, None)

    def _find_live_owner(self, directory: Directory) -> Owner | None:
        """Return the writer of the newest segment if it still holds the lock.

        The lock is not tried if the writer is known to be dead: a process that takes the run over at this moment would
        find it held.
        """
        owner = read_newest_owner(directory)
        if owner is None or not directory.exists(LOCK):
            return None
        if is_alive(owner.process) is False:
            return None
        try:
            lock = directory.open_read(LOCK)  # a reader never writes, and may lack the permission
        except OSError as error:
            if error.errno == errno.EINVAL:  # planted: not a lock file of flowckpt
                return None
            raise
        with held_open(directory.calls, lock):
            if directory.calls.lock(lock):
                return None
        return None if is_released(directory) else owner

    def survey_runs(self, wanted: RunFilter | None = None) -> RunSurvey:
        """Return the runs and the damaged ones; raises the same errors as `list_runs`."""
        self._check_reader()
        names = self._run_names()
        found = None
        if wanted is not None and wanted.limit is not None and len(names) > _FEW:
            found = self._read_newest(names, wanted, wanted.limit)
        if found is None:
            found = {name: self._read_listed(name) for name in names}
        read = [found[name] for name in sorted(found)]
        if not any(isinstance(each, RunInfo) for each in read):
            for each in read:
                if isinstance(each, _UNPROVED):
                    raise each
        failed = [_make_finding(name, each) for name, each in sorted(found.items()) if isinstance(each, Exception)]
        return make_survey(read, failed, wanted)

    def _read_listed(self, name: str) -> _Read:
        try:
            return self._retry(name, "list", lambda: self._read_info(name))
        except (FlowckptError, ValueError, LookupError, TypeError) as error:
            return error

    def _read_newest(self, names: Sequence[str], wanted: RunFilter, limit: int) -> dict[str, _Read] | None:
        """Read runs, the last written first, until no other can be selected; None if file times contradict the records.

        A run started before its newest segment was written, and reading a file's time is cheaper than reading its
        content.
        """
        written = self._read_last_writes(names)
        found: dict[str, _Read] = {}
        starts: list[float] = []  # of the selected runs, earliest first
        for name in sorted(names, key=written.__getitem__, reverse=True):
            if len(starts) == limit and starts[0] > written[name]:
                break
            found[name] = info = self._read_listed(name)
            if not isinstance(info, RunInfo):
                continue
            start = info.started_at.timestamp()
            if start > written[name]:
                return None
            if wanted.takes(info) and (wanted.before is None or info.started_at < wanted.before[0]):
                (heapq.heappush if len(starts) < limit else heapq.heappushpop)(starts, start)
        return found

    def _read_last_writes(self, names: Iterable[str]) -> dict[str, float]:
        """Return when the newest segment of each run was written; infinity if unknown."""
        found = dict.fromkeys(names, math.inf)
        with contextlib.suppress(OSError), self._open_root() as root:
            if root is not None:
                with root.open(RUNS) as runs:
                    for name in found:
                        found[name] = self._read_last_write(runs, name)
        return found

    def _read_last_write(self, runs: Directory, name: str) -> float:
        try:
            with runs.open(name) as directory:
                newest = segment_numbers(directory.names())[-1]
                return (directory.status(segment_name(newest)).written_at or math.inf) + _TICK
        except (OSError, IndexError):
            return math.inf

    def unreadable_runs(self) -> list[Finding]:
        """Return the damaged runs; a missing key is not damage."""
        try:
            return super().unreadable_runs()
        except _UNPROVED:
            return []

    def describe_run(self, workflow_id: str) -> RunInfo | None:
        """Return one run as listed; None if there is none."""
        name = run_directory(workflow_id)
        return self._retry(workflow_id, "read", lambda: self._read_info(name))

    def _read_info(self, name: str) -> RunInfo | None:
        with self._open_directory(name) as directory:
            if directory is None:
                return None
            info = describe_run(directory, self._make_fetch, self.seals)
            return None if info is None else info.with_owner(self._find_live_owner(directory))

    def signals(self, workflow_id: str) -> list[Signal]:
        """Return the messages for a run, in the order of sending."""

        def read(run: Directory) -> list[Signal]:
            is_there = run.exists(SIGNALS)  # most runs never get one
            return signals.read_signals(run, workflow_id, self.seals) if is_there else []

        return self._read_directory(workflow_id, read, [])

    def check(self, workflow_id: str | None = None) -> list[Finding]:
        """Verify one run or all of them."""
        if workflow_id is not None:
            findings = self._check_run(workflow_id)
            if any(finding.severity == "locked" for finding in findings):
                self.load_image(workflow_id)  # raises an error that names the missing key
            if not findings:
                raise CheckpointNotFoundError(workflow_id)
            return findings
        findings = []
        for name in self._run_names():
            try:
                run = self._retry(name, "check", partial(self._read_run_id, name))
            except FlowckptError as error:
                findings.append(_make_finding(name, error))
                continue
            if run is None:
                continue
            if run_directory(run) != name:
                detail = f"the directory {name} has the segments of another run, {run!r}"
                findings.append(Finding(name, "corrupt", detail))
                continue
            findings.extend(self._check_run(run))
        if not findings:
            self._check_reader()  # with runs, each reports it
        return findings

    def _read_run_id(self, name: str) -> str | None:
        with self._open_directory(name) as directory:
            return None if directory is None else read_run_id(directory, self.seals)

    def _check_run(self, workflow_id: str) -> list[Finding]:
        try:
            image = self.load_image(workflow_id)
            if image.is_cleared or not image.newest:
                return []
            LoadedRun(image, self._make_fetch(workflow_id)).check_values()
            self.signals(workflow_id)
        except CheckpointNotFoundError:  # it was cleared meanwhile
            return []
        except FlowckptError as error:
            return [_make_finding(workflow_id, error)]
        notices = [Finding(workflow_id, "notice", notice) for notice in image.notices]
        sealed = "" if image.seal is None or image.seal.key is None else f", {image.seal}"
        counts = len(image.checkpoints()), len(image.history.results)
        return [*notices, make_ok_finding(workflow_id, *counts, sealed)]


_PLANTED = (errno.EINVAL, errno.ELOOP, errno.EISDIR, errno.ENOTDIR)
"""The errors of a file that is not a regular one."""


def _make_finding(name: str, error: Exception) -> Finding:
    severity, cause = "corrupt", error.__cause__
    is_of_another_user = isinstance(cause, PermissionError) and cause.filename == name  # the run's directory
    if isinstance(error, KeyMissingError | WrongKeyError) or is_of_another_user:
        severity = "locked"
    elif isinstance(error, CheckpointStorageError) and getattr(cause, "errno", None) not in _PLANTED:
        severity = "failed"
    known = getattr(error, "workflow_id", "")
    if isinstance(error, CheckpointCorruptedError) and not known:  # its header is damaged, so the run is unknown
        return Finding(name, severity, f"its record is corrupt at {error.location}: {error.detail}")
    if isinstance(error, FlowckptError):
        return Finding(known or name, severity, error.message)
    return Finding(name, severity, f"{type(error).__name__}: {error}")


# Runs in a list are read from the first and last lines of their segments.

_STEP = 16 * 1024


def read_run_id(directory: Directory, seals: Seals = PLAIN) -> str | None:
    """Return the id of the run in a directory, from its newest header; None if the run is missing or cleared.

    With a key, a tombstone must be authenticated, so the id of a seemingly cleared run is returned, too.

    Raises:
        CheckpointCorruptedError: the header is damaged.
    """
    workflow_id, is_cleared = _read_id_and_kind(directory)
    return None if is_cleared and not seals.has_key else workflow_id


def read_cleared_id(directory: Directory) -> str | None:
    """Return the id of a cleared run whose directory still exists; None if there is none.

    Raises:
        CheckpointCorruptedError: the header is damaged.
    """
    workflow_id, is_cleared = _read_id_and_kind(directory)
    return workflow_id if is_cleared else None


def _read_id_and_kind(directory: Directory) -> tuple[str | None, bool]:
    names = directory.names()
    numbers = segment_numbers(names)
    if not numbers:
        if (head := next((name for name in names if parse_head_number(name) is not None), None)) is not None:
            raise CheckpointCorruptedError("", location=head, detail="all segments of the run are missing")
        return None, False
    header = _read_header(directory, numbers[-1])
    for number in reversed(numbers):
        header = _read_header(directory, number)
        if header.get("kind") == "cleared" or _is_begun(directory, number):
            break
    return str(header["workflow_id"]), header.get("kind") == "cleared"


def list_attempts(directory: Directory, seals: Seals = PLAIN) -> list[int]:
    """Return the ascending attempts of a run that wrote: its segments, and the attempts in a pack.

    Args:
        directory: the run's directory, open.
        seals: the seals of the store, to open a pack.

    Raises:
        CheckpointCorruptedError: a header or a pack is damaged.
    """
    found: set[int] = set()
    kinds: dict[int, object] = {}

    def inspect(number: int) -> tuple[bool, Cut | None]:
        kinds[number] = _read_header(directory, number).get("kind")
        if kinds[number] is not None:
            return True, None
        if not _is_begun(directory, number):
            return False, None
        return True, _read_adoption(directory, number, seals)

    for number, _ in select_segments(segment_numbers(directory.names()), inspect):
        if kinds[number] is None:
            found.add(number)
        elif kinds[number] == PACK:
            pack = _read_header(directory, number)
            found.update(_read_sections(directory, number, seals), pack.get("taken", ()))
    return sorted(found)


def is_begun_run(directory: Directory) -> bool:
    """Return whether anything was ever saved to the run in a directory, even if all of it was removed.

    Raises:
        CheckpointCorruptedError: a header is damaged.
    """
    for number in reversed(segment_numbers(directory.names())):
        if _read_header(directory, number).get("kind") == "cleared":
            return False
        if _is_begun(directory, number):
            return True
    return False


def read_packed_steps(directory: Directory, attempt: int, seals: Seals) -> tuple[str, ...] | None:
    """Return the steps that an attempt noted as started, from a pack; None if no pack has the note.

    Raises:
        CheckpointCorruptedError: a header or the pack is damaged.
    """
    for number in reversed(segment_numbers(directory.names())):
        if number > attempt and _read_header(directory, number).get("kind") == PACK:
            sections = _read_sections(directory, number, seals)
            noted_attempt, paths = sections[max(sections)].header.get("begun", (0, ()))
            return tuple(paths) if noted_attempt == attempt else None
    return None


def _read_adoption(directory: Directory, number: int, seals: Seals) -> Cut | None:
    """Return the record that a segment continues; None if there is none, or if it is sealed and there is no key."""
    if number == 1:
        return None
    header = _read_header(directory, number)
    seal = None
    try:
        if "seal" in header:
            data = read_segment(directory, number)
            _, seal = open_header(str(header["workflow_id"]), number, data, seals)
        else:
            data = read_lines(directory, segment_name(number), 3)
        return parse_adoption(data, number=number, seal=seal)
    except (KeyMissingError, WrongKeyError):
        return Cut(0)
    except SegmentDamagedError as damage:
        raise CheckpointCorruptedError("", location=segment_name(number), detail=str(damage)) from damage


def _read_sections(directory: Directory, number: int, seals: Seals) -> dict[int, Segment]:
    data = read_segment(directory, number)
    workflow_id = str(_read_header(directory, number)["workflow_id"])
    _, seal = open_header(workflow_id, number, data, seals)
    try:
        return parse_segment(data, number=number, seal=seal).sections
    except SegmentDamagedError as damage:
        raise CheckpointCorruptedError("", location=segment_name(number), detail=str(damage)) from damage


def read_key_id(directory: Directory) -> str:
    """Return the id of the key that sealed the newest segment of a run; empty if it is not sealed.

    Raises:
        CheckpointCorruptedError: its header is damaged.
    """
    numbers = segment_numbers(directory.names())
    seal = _read_header(directory, numbers[-1]).get("seal") if numbers else None
    return str(seal.get("key", "")) if isinstance(seal, dict) else ""


def describe_run(directory: Directory, fetch_for: Callable[[str], Fetch], seals: Seals = PLAIN) -> RunInfo | None:
    """Return the run in a directory as listed; None if it has no checkpoint.

    Args:
        directory: the run's directory, open.
        fetch_for: returns the function that reads the large values of a run.
        seals: the seals of the store. A sealed run is read completely: a single line proves nothing.

    Raises:
        CheckpointCorruptedError: a required line is damaged.
    """
    workflow_id = read_run_id(directory, seals)
    if workflow_id is None:
        return None
    numbers = segment_numbers(directory.names())
    if not numbers:  # cleared meanwhile
        return None
    _read_header(directory, numbers[0])  # a run with a damaged beginning is reported as damaged, not listed
    for number in reversed(numbers):
        if not _is_begun(directory, number):
            continue
        if seals.has_key or "seal" in _read_header(directory, number):
            break
        last = _read_last_record(directory, number)
        # The last record of a pack has everything needed here.
        first = last if last and "attempt" in last else _read_first_record(directory, number)
        if not first or not last or "sequence" not in first or "sequence" not in last:
            break  # only a deletion or an adoption: the last checkpoint is known only from the whole run
        if first is not last and _read_header(directory, number).get("kind") == PACK:
            break  # its newest attempt no longer has a checkpoint
        try:
            if (started_at := _read_start(directory, number, first)) is None:
                break
            return make_run_info(workflow_id, last.get("attempt", number), started_at, first, last)
        except (ValueError, KeyError, TypeError) as error:  # these lines are read unverified
            detail = f"a record is malformed: {error}"
            raise CheckpointCorruptedError(workflow_id, location=segment_name(number), detail=detail) from error
    fetch = fetch_for(workflow_id)
    return LoadedRun(read_image(directory, workflow_id, fetch, seals=seals), fetch).info()


def _read_start(directory: Directory, number: int, first: dict[str, Any]) -> datetime | None:
    """Return when the first checkpoint of a run was saved, from its newest segment; None if that does not record it.

    Args:
        directory: the run's directory, open.
        number: the newest segment with records.
        first: its first record.
    """
    header = _read_header(directory, number)
    if header.get("kind") == PACK:
        return datetime.fromisoformat(header["started_at"])
    cut = _read_adoption(directory, number, PLAIN)
    if cut is not None and cut.seen is None:
        return None
    return datetime.fromisoformat((cut and cut.started_at) or first["saved_at"])


def _read_header(directory: Directory, number: int) -> dict[str, Any]:
    try:
        return parse_header(read_lines(directory, segment_name(number), 1))[0]
    except SegmentDamagedError as damage:
        raise CheckpointCorruptedError("", location=segment_name(number), detail=str(damage)) from damage


def _is_begun(directory: Directory, number: int) -> bool:
    """Return whether a segment has a record, so that readers use it."""
    wanted = _lines_to_first_record(number)
    lines = read_lines(directory, segment_name(number), wanted).split(b"\n")
    return len(lines) > wanted or (len(lines) == wanted and _parse_line(lines[-1]) is not None)


def _lines_to_first_record(number: int) -> int:
    return 2 if number == 1 else 3


def _read_first_record(directory: Directory, number: int) -> dict[str, Any] | None:
    """Return the first record of a segment; a checkpoint there has fields that later ones leave out."""
    wanted = _lines_to_first_record(number)
    lines = read_lines(directory, segment_name(number), wanted).split(b"\n")
    return _parse_line(lines[wanted - 1]) if len(lines) > wanted else None


def _read_last_record(directory: Directory, number: int) -> dict[str, Any] | None:
    """Return the last whole record of a segment, reading backwards until one is found."""
    with directory.reading(segment_name(number)) as file:
        size = directory.calls.status(file).size
        step = _STEP
        while True:
            start = max(0, size - step)
            lines = directory.calls.read(file, size - start, start).split(b"\n")
            for line in reversed(lines if start == 0 else lines[1:]):
                if (found := _parse_line(line)) is not None and ("sequence" in found or "deletes" in found):
                    return found
            if start == 0:
                return None
            step *= 8


def _parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the fields of a line; None if it is torn or being written.

    Like all readers (see `segment`), this accepts a record that lacks only its first or last byte.
    """
    whole = line.rstrip(b"\0")
    if whole[:1] == b"\0":
        whole = b"{" + whole[1:]
    try:
        is_packed = whole.startswith(PACKED)
        found = json.loads(sealing.lines.inflate(whole[:-TRAILER]) + whole[-TRAILER:] if is_packed else whole)
    except (ValueError, SealBrokenError):
        return None
    if not isinstance(found, dict):
        return None
    fill_in(found)
    return found
