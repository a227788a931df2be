"""What the runs of a store say of its keys, where the store itself does not: found without opening a record."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.errors import CheckpointCorruptedError, FlowckptError
from flowckpt.filesystem import FileSystem
from flowckpt.lazy import LazyModule
from flowckpt.stores.file.directory import read_lines
from flowckpt.stores.file.image import opened_header
from flowckpt.stores.file.names import HEAD, IDENTITY, RUNS, is_temporary, segment_name, segment_numbers
from flowckpt.stores.file.segment import SegmentDamagedError, read_header

if TYPE_CHECKING:
    from flowckpt.stores.file import known_keys
    from flowckpt.stores.sealing.protection import Seals
else:  # a store without a key needs it not
    known_keys = LazyModule("flowckpt.stores.file.known_keys")


@attrs.frozen(eq=False, repr=False)
class SealedSegment:
    """A segment whose header says that it is sealed.

    Attributes:
        workflow_id: the run, as the header says.
        number: the segment.
        key_id: the key, as the header says.
        store_id: the store, as the header says.
        header: the bytes of the header, with its line feed.
    """

    workflow_id: str
    number: int
    key_id: str
    store_id: str
    header: bytes

    def is_proved_by(self, seals: Seals) -> bool:
        """Tell whether the header opens with a key that is at hand.

        Args:
            seals: the seals of the store.
        """
        try:
            _, seal = opened_header(self.workflow_id, self.number, self.header, seals)
        except FlowckptError:
            return False
        return seal is not None and seal.is_verified


def has_sealed_run(filesystem: FileSystem, root: int, *, most: int | None = None) -> bool:
    """Tell whether a run of a store was written with a key: each such run has word of how far it has come.

    Args:
        filesystem: the calls.
        root: the store's directory, open.
        most: how many runs are looked at; all of them where not given.
    """
    return any(HEAD in names for _, names in islice(_run_directories(filesystem, root), most))


def sealed_segments(filesystem: FileSystem, root: int) -> Iterator[SealedSegment]:
    """Return the sealed segments of a store, run by run, the newest of each run first.

    Args:
        filesystem: the calls.
        root: the store's directory, open.
    """
    for directory, names in _run_directories(filesystem, root):
        for number in reversed(segment_numbers(names)):
            with contextlib.suppress(OSError, SegmentDamagedError, ValueError, LookupError, TypeError):
                data = read_lines(filesystem, directory, segment_name(number), 1)
                header, end, _ = read_header(data)
                said: Any = header["seal"]
                yield SealedSegment(
                    str(header["workflow_id"]), number, str(said["key"]), str(said["store"]), data[:end]
                )


def plain_runs(filesystem: FileSystem, root: int) -> list[str]:
    """Return the ids of the runs whose newest segment was written without a key.

    Args:
        filesystem: the calls.
        root: the store's directory, open.
    """
    found = []
    for directory, names in _run_directories(filesystem, root):
        numbers = segment_numbers(names)
        with contextlib.suppress(OSError, SegmentDamagedError, ValueError, LookupError, TypeError):
            header, _, _ = read_header(read_lines(filesystem, directory, segment_name(numbers[-1]), 1))
            if "seal" not in header and header.get("kind") != "cleared":
                found.append(str(header["workflow_id"]))
    return found


def lost_identity(filesystem: FileSystem, root: int) -> CheckpointCorruptedError:
    """Return the error for a store that has sealed runs, or notes of its keys, and no identity.

    Args:
        filesystem: the calls.
        root: the store's directory, open.
    """
    store_id, key_id = _named_by(filesystem, root)
    detail = "it is missing, and runs in the store are sealed with a key"
    anew = ""
    if store_id:
        detail = f"it is missing, and what lies in the store names the store {store_id} and the key {key_id}"
        anew = f'{{"flowckpt":"store","schema_version":1,"store_id":"{store_id}"}}'
    return CheckpointCorruptedError(
        "",
        location=IDENTITY,
        detail=detail,
        remedy="Nothing was changed. Restore it from a backup" + (f", or write it anew: {anew}" if anew else "."),
    )


def _named_by(filesystem: FileSystem, root: int) -> tuple[str, str]:
    """Return the store and a key that a sealed run names, or else a note of keys; empty texts where none does."""
    for segment in sealed_segments(filesystem, root):
        return segment.store_id, segment.key_id
    with contextlib.suppress(CheckpointCorruptedError, OSError):
        for known in known_keys.read_known(filesystem, root):
            return known.store_id, known.id
    return "", ""


def _run_directories(filesystem: FileSystem, root: int) -> Iterator[tuple[int, list[str]]]:
    """Open the directory of each run for a while, with the names in it; what is no directory is passed over."""
    try:
        runs = filesystem.open_directory(root, RUNS)
    except FileNotFoundError:
        return
    try:
        for name in sorted(filesystem.names(runs)):
            if is_temporary(name):  # it is being received, and is no run yet
                continue
            try:
                directory = filesystem.open_directory(runs, name)
            except OSError:
                continue
            try:
                yield directory, filesystem.names(directory)
            finally:
                filesystem.close(directory)
    finally:
        filesystem.close(runs)
