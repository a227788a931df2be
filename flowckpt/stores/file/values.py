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
from flowckpt.core.system.filesystem import Directory, held_open, write_all
from flowckpt.errors import CheckpointCorruptedError
from flowckpt.stores.file.directory import make_folder, temporary_file
from flowckpt.stores.file.layout import BLOBS, NOT_OURS, parse_orphan
from flowckpt.stores.log.sealing.protection import SealBrokenError

if TYPE_CHECKING:
    from flowckpt.stores.log.sealing.lines import ValueSeal


def write_blobs(run: Directory, blobs: Iterable[Blob], values: ValueSeal, *, is_folder_durable: bool = False) -> None:
    """Make blobs durable in the directory of a run.

    Args:
        run: the run's directory, open.
        blobs: the blobs, none of them known to exist.
        values: compresses or encrypts them.
        is_folder_durable: whether this writer has already made the directory of blobs durable.
    """
    if not is_folder_durable:
        make_folder(run, BLOBS)
    with run.open(BLOBS) as directory:
        for blob in blobs:
            with temporary_file(directory) as (file, name):
                target, content = values.seal(blob.digest, blob.content())
                write_all(run.calls, file, content)
                run.calls.sync_data(file)
                directory.rename(name, target)
        directory.sync()


def read_blob(run: Directory, workflow_id: str, digest: str, size: int, values: ValueSeal) -> bytes:
    """Return the content of a blob, verified.

    Args:
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
        with run.open(BLOBS) as directory:
            file, name = _open_value(directory, names)
    except OSError as error:
        if error.errno not in NOT_OURS:
            raise  # a failure of the medium does not mean that the record is damaged
        raise _damage_error(workflow_id, names[0], f"cannot be read: {error.strerror}") from error
    with held_open(run.calls, file):
        most = size if name == digest else values.most_bytes(size)
        content = run.calls.read(file, most + 1, 0)
    try:
        content = values.open(name, content, digest, size)
    except SealBrokenError as broken:
        raise _damage_error(workflow_id, name, f"cannot be opened: {broken}") from broken
    if len(content) != size or sha256(content).hexdigest() != digest:
        raise _damage_error(workflow_id, name, "does not match its digest")
    return content


def _damage_error(workflow_id: str, name: str, problem: str) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(workflow_id, location=f"{BLOBS}/{name}", detail=f"a large value {problem}")


def _open_value(directory: Directory, names: list[str]) -> tuple[int, str]:
    """Open the first existing name, or the value that a collection moved away (see `compaction`)."""
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            return directory.open_read(name), name
    for name in directory.names():
        if (found := parse_orphan(name)) is not None and found[1] in names:
            with contextlib.suppress(FileNotFoundError):
                return directory.open_read(name), found[1]
    for name in names[:-1]:  # moved back or sealed again meanwhile
        with contextlib.suppress(FileNotFoundError):
            return directory.open_read(name), name
    return directory.open_read(names[-1]), names[-1]


# Large values shared by runs: one file with a name in each run's directory, which exists until all these runs are
# cleared.


def share_blobs(source: Directory, run: Directory, sizes: Mapping[str, int], values: ValueSeal) -> set[str]:
    """Link large values of one run into the directory of another, durably.

    Only values that a record of the source refers to may be passed, because these are durable.

    Args:
        source: the directory of the run that has them, open.
        run: the directory of the other run, open.
        sizes: their lengths, by digest.
        values: knows the names of sealed values.

    Returns:
        The digests that exist now; the others could not be shared and must be written.
    """
    make_folder(run, BLOBS)
    shared = set()
    with source.open(BLOBS) as theirs, run.open(BLOBS) as ours:
        for digest, size in sizes.items():
            for name in values.names(digest):
                with contextlib.suppress(OSError):  # missing, planted or too many links: then it is copied
                    if _is_whole(theirs, name, size if name == digest else None):
                        run.calls.link_into(theirs.descriptor, ours.descriptor, name)
                        shared.add(digest)
                        break
        ours.sync()
    return shared


def _is_whole(directory: Directory, name: str, size: int | None) -> bool:
    found = directory.status(name)
    return found.is_regular and size in (None, found.size)
