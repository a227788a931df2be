"""From what a caller of a store says to its protection."""

from __future__ import annotations

import os

from flowckpt.errors import SettingError
from flowckpt.stores.log.sealing.keys import KeyRing, read_key_file
from flowckpt.stores.log.sealing.protection import Protection


def protection_of(
    key_file: str | os.PathLike[str] | None, keys: KeyRing | None, compression: str, trust: bool
) -> Protection:
    """Return what a store is to do.

    Args:
        key_file: a file with keys, or None.
        keys: the keys themselves, or None.
        compression: `none`, `gzip`, `zstd` or `auto`.
        trust: whether runs are taken for true that do not prove it.

    Raises:
        KeyFileError: the key file is missing, is none, or is open to others than its owner.
        SettingError: two sources of keys, no such compression, or a package that is missing.
    """
    if key_file is not None and keys is not None:
        raise SettingError(
            "a store takes its keys from key_file or from keys, not from both", setting="keys", remedy="Give one."
        )
    ring = keys if key_file is None else read_key_file(key_file)
    return Protection(ring, compression, is_trusting=trust)
