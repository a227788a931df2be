"""Sealing: the bytes of a record are compressed, then encrypted or authenticated, between the encoder and the medium.

Pure but for the reading of key files: bytes in, bytes out. A store gives the origin of the bytes (which store, run and
segment they belong to) and keeps what comes back. Each record says itself what was done to it, so a reader needs no
setting but the key; and records with and without it stand side by side.

- `keys`: keys, rings and files of them, and what is derived from them.
- `cipher`: packing, unpacking that is bounded, and AES-256-GCM, of the package `cryptography`.
- `lines`: the lines of one segment, or of a write that has one writer; large values, which have files of their own.
- `protection`: what a store was told to do.
"""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules

if TYPE_CHECKING:
    from flowckpt.stores.log.sealing import cipher, keys, lines, protection

__all__ = ["cipher", "keys", "lines", "protection"]

__getattr__ = lazy_modules(__name__, *__all__)
