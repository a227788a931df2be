"""The large values of a run that is compacted: which files stay, and which are encrypted anew.

A value is named by its digest in the records, and its file by how it is kept (`flowckpt.stores.sealing.values`). After a
key was rotated the same value may be there twice, under the old key and under the new one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from flowckpt.codec.blob import Blob
from flowckpt.filesystem import FileSystem
from flowckpt.stores.file.blobs import read_blob, write_blobs
from flowckpt.stores.file.names import BLOBS

if TYPE_CHECKING:
    from flowckpt.stores.sealing.values import ValueSeal

_NAMED = re.compile(rb'"([0-9a-f]{64})"')
_REFERENCE = re.compile(rb'\{"\$blob":\["([0-9a-f]{64})",([0-9]+)\]\}')
_ENCRYPTED = ".sealed"


def named_values(lines: list[bytes]) -> dict[str, int]:
    """Return the digests of the large values that lines name, each with its size.

    Args:
        lines: bodies of records, as they were before they were sealed.
    """
    return {digest.decode(): int(size) for line in lines for digest, size in _REFERENCE.findall(line)}


def kept_names(lines: list[bytes], there: Collection[str], values: ValueSeal) -> set[str]:
    """Return the names, among those of files, that must stay.

    Of a value that is encrypted as it should be, no other file is needed. Of anything else that may be a value every file
    stays: some text that looks like one more digest does no harm. And where a value is not found, no encrypted file goes,
    for it may be the one, under a key that is not at hand.

    Args:
        lines: bodies of records, as they were before they were sealed.
        there: the names in the directory of large values.
        values: the seal of the values.
    """
    found = set(there)
    kept: set[str] = set()
    is_one_missing = False
    references = named_values(lines)
    for digest in {digest.decode() for line in lines for digest in _NAMED.findall(line)}:
        target = values.encrypted_name(digest)
        names = found.intersection([target] if target in found else values.names(digest))
        is_one_missing |= digest in references and not names
        kept |= names
    return kept | {name for name in found if is_one_missing and name.endswith(_ENCRYPTED)}


def reseal_values(
    filesystem: FileSystem, run: int, workflow_id: str, named: Mapping[str, int], values: ValueSeal
) -> None:
    """Encrypt values anew that are not kept under the key of today, durably; their old files stay for now.

    Args:
        filesystem: the calls.
        run: the run's directory, open.
        workflow_id: the run, for errors.
        named: the digests of the values, with their sizes.
        values: the seal of the values.

    Raises:
        CheckpointCorruptedError: a value is damaged.
    """
    try:
        directory = filesystem.open_directory(run, BLOBS)
    except FileNotFoundError:
        return
    try:
        there = set(filesystem.names(directory))
    finally:
        filesystem.close(directory)
    for digest, size in named.items():
        target = values.encrypted_name(digest)
        if target is not None and target not in there and there.intersection(values.names(digest)):
            content = read_blob(filesystem, run, workflow_id, digest, size, values)
            write_blobs(filesystem, run, [Blob(digest, size, content=content)], values=values)
