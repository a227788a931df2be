"""Large values: immutable files named by the SHA-256 of their content, next to the segments of their run.

A blob is durable before the record that refers to it is written. An existing file with the right name is trusted only
if a record refers to it or this writer made it: a file from a dead process may exist only in the page cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

from flowckpt.core.codec.blob import Blob
from flowckpt.core.system.filesystem import FileSystem, held_open, write_all
from flowckpt.errors import CheckpointCorruptedError
from flowckpt.stores.file.directory import make_folder, temporary_file
from flowckpt.stores.file.layout import BLOBS, NOT_OURS, parse_orphan
from flowckpt.stores.log.sealing.protection import SealBrokenError

if TYPE_CHECKING:
    from flowckpt.stores.log.sealing.lines import ValueSeal


def write_blobs(
    filesystem: FileSystem,
    run: int,
    blobs: Iterable[Blob],
    values: ValueSeal,
    *,
    is_directory_durable: bool = False,
) -> None:
    """Make blobs durable in the directory of a run.

    Args:
        filesystem: the calls.
        run: the run's directory, open.
        blobs: the blobs, none of them known to exist.
        values: compresses or encrypts them.
        is_directory_durable: whether this writer has already made the directory of blobs durable.
    """
    if not is_directory_durable:
        make_folder(filesystem, run, BLOBS)
    with held_open(filesystem, filesystem.open_directory(run, BLOBS)) as directory:
        for blob in blobs:
            with temporary_file(filesystem, directory) as (file, name):
                target, content = values.seal(blob.digest, blob.content())
                write_all(filesystem, file, content)
                filesystem.sync_data(file)
                filesystem.rename(directory, name, target)
        filesystem.sync(directory)


def read_blob(filesystem: FileSystem, run: int, workflow_id: str, digest: str, size: int, values: ValueSeal) -> bytes:
    """Return the content of a blob, verified.

    Args:
        filesystem: the calls.
        run: the run's directory, open.
        workflow_id: the run, for the error.
        digest: the digest of the blob.
        size: its length according to the record.
        values: opens sealed values.

    Raises:
        CheckpointCorruptedError: it is missing, or its content does not match the record.
    """
    names = values.names(digest)
    try:
        with held_open(filesystem, filesystem.open_directory(run, BLOBS)) as directory:
            file, name = _open_value(filesystem, directory, names)
    except OSError as error:
        if error.errno not in NOT_OURS:
            raise  # a failure of the medium does not mean that the record is damaged
        raise _damage_error(workflow_id, names[0], f"cannot be read: {error.strerror}") from error
    with held_open(filesystem, file):
        most = size if name == digest else values.most_bytes(size)
        content = filesystem.read(file, most + 1, 0)
    try:
        content = values.open(name, content, digest, size)
    except SealBrokenError as broken:
        raise _damage_error(workflow_id, name, f"cannot be opened: {broken}") from broken
    if len(content) != size or sha256(content).hexdigest() != digest:
        raise _damage_error(workflow_id, name, "does not match its digest")
    return content


def _damage_error(workflow_id: str, name: str, problem: str) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(workflow_id, location=f"{BLOBS}/{name}", detail=f"a large value {problem}")


def _open_value(filesystem: FileSystem, directory: int, names: list[str]) -> tuple[int, str]:
    """Open the first existing name, or the value that a collection moved away (see `compaction`)."""
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            return filesystem.open_read(directory, name), name
    for name in filesystem.names(directory):
        if (found := parse_orphan(name)) is not None and found[1] in names:
            with contextlib.suppress(FileNotFoundError):
                return filesystem.open_read(directory, name), found[1]
    for name in names[:-1]:  # moved back or sealed again meanwhile
        with contextlib.suppress(FileNotFoundError):
            return filesystem.open_read(directory, name), name
    return filesystem.open_read(directory, names[-1]), names[-1]


# Large values shared by runs: one file with a name in each run's directory, which exists until all these runs are
# cleared.


def share_blobs(filesystem: FileSystem, source: int, run: int, sizes: Mapping[str, int], values: ValueSeal) -> set[str]:
    """Link large values of one run into the directory of another, durably.

    Only values that a record of the source refers to may be passed, because these are durable.

    Args:
        filesystem: the calls.
        source: the directory of the run that has them, open.
        run: the directory of the other run, open.
        sizes: their lengths, by digest.
        values: knows the names of sealed values.

    Returns:
        The digests that exist now; the others could not be shared and must be written.
    """
    make_folder(filesystem, run, BLOBS)
    shared = set()
    with (
        held_open(filesystem, filesystem.open_directory(source, BLOBS)) as theirs,
        held_open(filesystem, filesystem.open_directory(run, BLOBS)) as ours,
    ):
        for digest, size in sizes.items():
            for name in values.names(digest):
                with contextlib.suppress(OSError):  # missing, planted or too many links: then it is copied
                    if _is_whole(filesystem, theirs, name, size if name == digest else None):
                        filesystem.link_into(theirs, ours, name)
                        shared.add(digest)
                        break
        filesystem.sync(ours)
    return shared


def _is_whole(filesystem: FileSystem, directory: int, name: str, size: int | None) -> bool:
    with held_open(filesystem, filesystem.open_read(directory, name)) as file:
        found = filesystem.status(file)
        return found.is_regular and size in (None, found.size)
