"""A run in a list: read from the first and the last lines of its segments, not from all of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from flowckpt.core.codec import decode
from flowckpt.core.codec.blob import Fetch
from flowckpt.core.records import Reason, Status
from flowckpt.core.records.checkpoint import STATUS_OF_REASON
from flowckpt.core.records.listing import RunInfo
from flowckpt.core.system.filesystem import FileSystem
from flowckpt.errors import CheckpointCorruptedError, KeyMissingError, WrongKeyError
from flowckpt.stores.file.directory import read_file, read_image, read_lines
from flowckpt.stores.file.layout import HEAD, segment_name, segment_numbers
from flowckpt.stores.log.image import counted_segments, opened_header
from flowckpt.stores.log.line import TRAILER
from flowckpt.stores.log.sealing.lines import PACKED, inflated
from flowckpt.stores.log.sealing.protection import PLAIN, SealBrokenError, Seals
from flowckpt.stores.log.segment import (
    PACK,
    Cut,
    Segment,
    SegmentDamagedError,
    fill_in,
    read_adoption,
    read_header,
    read_segment,
)

_STEP = 16 * 1024


def run_id_in(filesystem: FileSystem, directory: int, seals: Seals = PLAIN) -> str | None:
    """Return the id of the run in a directory, from its newest header; None where it holds no live run.

    With a key, a tombstone must prove itself; so a run that looks cleared is named, to be read.

    Raises:
        CheckpointCorruptedError: the header is damaged.
    """
    workflow_id, is_cleared = _run_in(filesystem, directory)
    return None if is_cleared and not seals.has_key else workflow_id


def cleared_id_in(filesystem: FileSystem, directory: int) -> str | None:
    """Return the id of a run that was cleared and whose directory is still there; None where there is none.

    Raises:
        CheckpointCorruptedError: the header is damaged.
    """
    workflow_id, is_cleared = _run_in(filesystem, directory)
    return workflow_id if is_cleared else None


def _run_in(filesystem: FileSystem, directory: int) -> tuple[str | None, bool]:
    names = filesystem.names(directory)
    numbers = segment_numbers(names)
    if not numbers:
        if HEAD in names:
            raise CheckpointCorruptedError("", location=HEAD, detail="all segments of the run are missing")
        return None, False
    header = _header(filesystem, directory, numbers[-1])
    for number in reversed(numbers):
        header = _header(filesystem, directory, number)
        if header.get("kind") == "cleared" or _is_begun(filesystem, directory, number):
            break
    return str(header["workflow_id"]), header.get("kind") == "cleared"


def begun_segments(filesystem: FileSystem, directory: int, seals: Seals = PLAIN) -> list[int]:
    """Return the attempts of a live run that wrote something, ascending: the segments, and what a pack holds or stands for.

    Args:
        filesystem: the calls.
        directory: the run's directory, open.
        seals: the seals of the store; a pack is opened.

    Raises:
        CheckpointCorruptedError: a header is damaged, or a pack.
    """
    found: set[int] = set()
    kinds: dict[int, object] = {}

    def look(number: int) -> tuple[bool, Cut | None]:
        kinds[number] = _header(filesystem, directory, number).get("kind")
        if kinds[number] is not None:
            return True, None
        if not _is_begun(filesystem, directory, number):
            return False, None
        return True, _adoption(filesystem, directory, number, seals)

    for number, _ in counted_segments(segment_numbers(filesystem.names(directory)), look):
        if kinds[number] is None:
            found.add(number)
        elif kinds[number] == PACK:
            pack = _header(filesystem, directory, number)
            found.update(_sections(filesystem, directory, number, seals), pack.get("taken", ()))
    return sorted(found)


def is_begun_run(filesystem: FileSystem, directory: int) -> bool:
    """Tell whether anything was ever saved to the run in a directory, also where all of it was removed since.

    Args:
        filesystem: the calls.
        directory: the run's directory, open.

    Raises:
        CheckpointCorruptedError: a header is damaged.
    """
    for number in reversed(segment_numbers(filesystem.names(directory))):
        if _header(filesystem, directory, number).get("kind") == "cleared":
            return False
        if _is_begun(filesystem, directory, number):
            return True
    return False


def begun_in_pack(filesystem: FileSystem, directory: int, attempt: int, seals: Seals) -> tuple[str, ...] | None:
    """Return the word of the steps that an attempt began, which a pack keeps; None where none does.

    Args:
        filesystem: the calls.
        directory: the run's directory, open.
        attempt: the attempt.
        seals: the seals of the store.

    Raises:
        CheckpointCorruptedError: a header is damaged, or the pack.
    """
    for number in reversed(segment_numbers(filesystem.names(directory))):
        if number > attempt and _header(filesystem, directory, number).get("kind") == PACK:
            sections = _sections(filesystem, directory, number, seals)
            said, paths = sections[max(sections)].header.get("begun", (0, ()))
            return tuple(paths) if said == attempt else None
    return None


def _adoption(filesystem: FileSystem, directory: int, number: int, seals: Seals) -> Cut | None:
    """Return what a begun segment continues; None where it can continue nothing, or that is sealed and there is no key."""
    if number == 1:
        return None
    header = _header(filesystem, directory, number)
    seal = None
    try:
        if "seal" in header:
            data = read_file(filesystem, directory, segment_name(number))
            _, seal = opened_header(str(header["workflow_id"]), number, data, seals)
        else:
            data = read_lines(filesystem, directory, segment_name(number), 3)
        return read_adoption(data, number=number, seal=seal)
    except (KeyMissingError, WrongKeyError):
        return Cut(0)
    except SegmentDamagedError as damage:
        raise CheckpointCorruptedError("", location=segment_name(number), detail=str(damage)) from damage


def _sections(filesystem: FileSystem, directory: int, number: int, seals: Seals) -> dict[int, Segment]:
    data = read_file(filesystem, directory, segment_name(number))
    workflow_id = str(_header(filesystem, directory, number)["workflow_id"])
    _, seal = opened_header(workflow_id, number, data, seals)
    try:
        return read_segment(data, number=number, seal=seal).sections
    except SegmentDamagedError as damage:
        raise CheckpointCorruptedError("", location=segment_name(number), detail=str(damage)) from damage


def key_of(filesystem: FileSystem, directory: int) -> str:
    """Return the id of the key that the newest segment of a run is sealed with; an empty text where it is not.

    Args:
        filesystem: the calls.
        directory: the run's directory, open.

    Raises:
        CheckpointCorruptedError: its header is damaged.
    """
    numbers = segment_numbers(filesystem.names(directory))
    seal = _header(filesystem, directory, numbers[-1]).get("seal") if numbers else None
    return str(seal.get("key", "")) if isinstance(seal, dict) else ""


def describe_run(
    filesystem: FileSystem, directory: int, fetch_for: Callable[[str], Fetch], seals: Seals = PLAIN
) -> RunInfo | None:
    """Return the run in a directory as a list shows it; None where it has no checkpoint.

    Args:
        filesystem: the calls.
        directory: the run's directory, open.
        fetch_for: returns what reads the large values of a run.
        seals: the seals of the store. What is sealed is read as a whole: a line alone proves nothing.

    Raises:
        CheckpointCorruptedError: a line that it needs is damaged.
    """
    workflow_id = run_id_in(filesystem, directory, seals)
    if workflow_id is None:
        return None
    numbers = segment_numbers(filesystem.names(directory))
    if not numbers:  # it was cleared just now
        return None
    _header(filesystem, directory, numbers[0])  # a run whose beginning is damaged is named as damaged, and not listed
    for number in reversed(numbers):
        if not _is_begun(filesystem, directory, number):
            continue
        if seals.has_key or "seal" in _header(filesystem, directory, number):
            break
        last = _last_record(filesystem, directory, number)
        # The last record of a pack says all that is asked for here.
        first = last if last and "attempt" in last else _first_record(filesystem, directory, number)
        if not first or not last or "sequence" not in first or "sequence" not in last:
            break  # a deletion, or an adoption alone: only the whole run says which checkpoint is the last
        if first is not last and _header(filesystem, directory, number).get("kind") == PACK:
            break  # its newest attempt has no checkpoint any more
        reason = Reason(last["reason"])
        started_at = _started_at(filesystem, directory, number, first)
        return RunInfo(
            workflow_id,
            last.get("workflow_name") or first["workflow_name"],
            Status(last.get("status", STATUS_OF_REASON[reason])),
            last.get("attempt", number),
            started_at,
            datetime.fromisoformat(last["saved_at"]),
            last["results"],
            decode(last["metadata"] if "metadata" in last else first["metadata"]),
        )
    fetch = fetch_for(workflow_id)
    image = read_image(filesystem, directory, workflow_id, fetch, seals=seals)
    found = image.checkpoints()
    if not found:
        return None
    data = image.data(found[-1], fetch)
    return RunInfo(
        workflow_id,
        data.workflow_name,
        data.status,
        data.attempt,
        image.started_at or data.saved_at,
        data.saved_at,
        len(data.step_results),
        data.metadata,
    )


def _started_at(filesystem: FileSystem, directory: int, number: int, first: dict[str, Any]) -> datetime:
    """Return when the first checkpoint of a run was saved, as its newest segment says.

    One of an earlier version does not say it where it continues another; then the lowest segment shows it.

    Args:
        filesystem: the calls.
        directory: the run's directory, open.
        number: the newest segment that is begun.
        first: its first record.
    """
    header = _header(filesystem, directory, number)
    if header.get("kind") == PACK:
        return datetime.fromisoformat(header["started_at"])
    cut = _adoption(filesystem, directory, number, PLAIN)
    if cut is None or cut.seen is not None:
        return datetime.fromisoformat((cut and cut.started_at) or first["saved_at"])
    for each in segment_numbers(filesystem.names(directory)):
        header = _header(filesystem, directory, each)
        record = header if header.get("kind") == PACK else _first_record(filesystem, directory, each) or {}
        said = record.get("started_at") or record.get("saved_at")
        if said:
            return datetime.fromisoformat(said)
    return datetime.fromisoformat(first["saved_at"])


def _header(filesystem: FileSystem, directory: int, number: int) -> dict[str, Any]:
    try:
        return read_header(read_lines(filesystem, directory, segment_name(number), 1))[0]
    except SegmentDamagedError as damage:
        raise CheckpointCorruptedError("", location=segment_name(number), detail=str(damage)) from damage


def _is_begun(filesystem: FileSystem, directory: int, number: int) -> bool:
    """Tell whether a segment has a record, so that readers follow it."""
    wanted = _lines_to_first_record(number)
    lines = read_lines(filesystem, directory, segment_name(number), wanted).split(b"\n")
    return len(lines) > wanted or (len(lines) == wanted and _parsed(lines[-1]) is not None)


def _lines_to_first_record(number: int) -> int:
    return 2 if number == 1 else 3


def _first_record(filesystem: FileSystem, directory: int, number: int) -> dict[str, Any] | None:
    """Return the first record of a segment: a checkpoint there holds what later ones only carry."""
    wanted = _lines_to_first_record(number)
    lines = read_lines(filesystem, directory, segment_name(number), wanted).split(b"\n")
    return _parsed(lines[wanted - 1]) if len(lines) > wanted else None


def _last_record(filesystem: FileSystem, directory: int, number: int) -> dict[str, Any] | None:
    """Return the last whole record of a segment, reading backwards until one is found."""
    file = filesystem.open_read(directory, segment_name(number))
    try:
        size = filesystem.status(file).size
        step = _STEP
        while True:
            start = max(0, size - step)
            lines = filesystem.read(file, size - start, start).split(b"\n")
            for line in reversed(lines if start == 0 else lines[1:]):
                if (found := _parsed(line)) is not None and ("sequence" in found or "deletes" in found):
                    return found
            if start == 0:
                return None
            step *= 8
    finally:
        filesystem.close(file)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return the fields of a line; None for one that is being written just now, or that is torn.

    A record whose first or last byte alone did not reach the disk is whole to a reader (`segment`), so it is here.
    """
    whole = line.rstrip(b"\0")
    if whole[:1] == b"\0":
        whole = b"{" + whole[1:]
    try:
        found = json.loads(whole if not whole.startswith(PACKED) else inflated(whole[:-TRAILER]) + whole[-TRAILER:])
    except (ValueError, SealBrokenError):
        return None
    if not isinstance(found, dict):
        return None
    fill_in(found)
    return found
