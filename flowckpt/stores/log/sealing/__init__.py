"""Sealing: the bytes of a record are compressed, then encrypted or authenticated, between the encoder and the medium.

Pure except for reading key files: bytes in, bytes out. A store passes the origin of the bytes (their store, run and
segment) and keeps the result. Each record describes its own sealing, so a reader needs no setting but the key, and
sealed and plain records can be mixed.

- `keys`: keys, key rings, key files, and derived keys.
- `cipher`: packing, bounded unpacking, and AES-256-GCM of the package `cryptography`.
- `lines`: the lines of one segment or of another write with a single writer; large values, which have their own files.
- `protection`: the protection settings of a store.
"""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules

if TYPE_CHECKING:
    from flowckpt.stores.log.sealing import cipher, keys, lines, protection

__all__ = ["cipher", "keys", "lines", "protection"]

__getattr__ = lazy_modules(__name__, *__all__)
