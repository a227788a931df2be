"""Packing, and AES-256-GCM over bytes of any length, by the package `cryptography`.

A nonce is (number, part, whether it is the last part). The caller never gives one number twice to one key; parts are
counted here. So no nonce comes twice under a key, nothing can be left out of the middle, and the end is known as one.

Packing is by gzip or zstd: where it pays, marked in the record, and never unpacked beyond what the record says.
"""

from __future__ import annotations

import zlib

from flowckpt.core.system import external
from flowckpt.errors import SettingError
from flowckpt.stores.log.sealing.protection import SealBrokenError

PART = 1 << 24
TAG = 16


def check_installed() -> None:
    """Refuse where the package is missing.

    Raises:
        SettingError: it is.
    """
    try:
        _ = external.aead.AESGCM
    except ImportError as error:
        raise SettingError(
            "encryption needs the package cryptography, which is not installed",
            setting="key_file",
            remedy="pip install 'flowckpt[crypto]'",
        ) from error


class Cipher:
    """Encrypts and decrypts under one derived key.

    Args:
        key: 32 bytes, derived for one origin and one purpose.
    """

    def __init__(self, key: bytes) -> None:
        check_installed()
        self._aead = external.aead.AESGCM(key)

    def encrypted(self, data: bytes, number: int, bound: bytes) -> bytes:
        """Return data encrypted and authenticated.

        Args:
            data: the bytes.
            number: never the same twice under this key.
            bound: what the reader must give again for it to open.
        """
        parts = max(1, -(-len(data) // PART))
        if parts == 1:
            return self._aead.encrypt(_nonce(number, 0, is_last=True), data, bound)
        return b"".join(
            self._aead.encrypt(
                _nonce(number, part, is_last=part == parts - 1), data[part * PART : (part + 1) * PART], bound
            )
            for part in range(parts)
        )

    def decrypted(self, data: bytes, number: int, bound: bytes) -> bytes:
        """Return what was encrypted.

        Args:
            data: what `encrypted` returned.
            number: as then.
            bound: as then.

        Raises:
            SealBrokenError: anything about it is another.
        """
        whole = PART + TAG
        parts = max(1, -(-len(data) // whole))
        try:
            return b"".join(
                self._aead.decrypt(
                    _nonce(number, part, is_last=part == parts - 1), data[part * whole : (part + 1) * whole], bound
                )
                for part in range(parts)
            )
        except (external.cryptography_exceptions.InvalidTag, ValueError) as error:
            raise SealBrokenError(
                "it does not decrypt: it was changed, put elsewhere, or made by somebody without the key"
            ) from error


def _nonce(number: int, part: int, *, is_last: bool) -> bytes:
    return number.to_bytes(7, "big") + part.to_bytes(4, "big") + bytes([is_last])


GZIP, ZSTD = "gzip", "zstd"
COMPRESSIONS = ("none", GZIP, ZSTD, "auto")
"""The compressions of a store. `auto` is zstd if it is installed, else gzip."""

LARGEST = 1 << 28
"""More bytes than these are not packed; so a record that says that it unpacks to more is refused unread."""

_GZIP_WINDOW = 31
_GAIN = 0.9


def chosen(compression: str) -> str:
    """Return the method that a setting means: `gzip`, `zstd`, or an empty string for none.

    Args:
        compression: one of `COMPRESSIONS`.

    Raises:
        SettingError: the compression is unknown, or its package is missing.
    """
    if compression not in COMPRESSIONS:
        raise SettingError(
            f"unknown compression {compression!r}",
            setting="compression",
            remedy=f"Take one of {', '.join(COMPRESSIONS)}.",
        )
    if compression == "auto":
        return ZSTD if _has_zstd() else GZIP
    if compression == ZSTD and not _has_zstd():
        raise _missing()
    return "" if compression == "none" else compression


def packed(data: bytes, method: str, *, most: float = _GAIN) -> bytes | None:
    """Return data packed, or None if that does not pay.

    Args:
        data: the bytes.
        method: `gzip` or `zstd`.
        most: the largest share of the length that pays.
    """
    if len(data) > LARGEST:
        return None
    if method == ZSTD:
        found = external.zstd.compress(data)
    else:
        packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WINDOW)
        found = packer.compress(data) + packer.flush()
    return found if len(found) <= len(data) * most else None


def unpacked(data: bytes, method: str, size: int) -> bytes:
    """Return what was packed.

    Args:
        data: the packed bytes.
        method: how.
        size: how many bytes it is; not one more is unpacked.

    Raises:
        SealBrokenError: it is something other than the record says.
        SettingError: the package of the method is missing.
    """
    if not 0 <= size <= LARGEST:
        raise SealBrokenError(f"it says that it unpacks to {size} bytes, and more than {LARGEST} are never packed")
    if method == ZSTD:
        found, is_whole = _unpacked_zstd(data, size)
    elif method == GZIP:
        found, is_whole = _unpacked_gzip(data, size)
    else:
        raise SealBrokenError(f"it is packed by {method!r:.40}, which this version does not know")
    if len(found) != size or not is_whole:
        raise SealBrokenError(f"it does not unpack to the {size} bytes that it says")
    return found


def _unpacked_gzip(data: bytes, size: int) -> tuple[bytes, bool]:
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    try:
        found = unpacker.decompress(data, size + 1)
    except zlib.error as error:
        raise SealBrokenError(f"invalid gzip: {error}") from error
    return found, unpacker.eof and not unpacker.unused_data


def _unpacked_zstd(data: bytes, size: int) -> tuple[bytes, bool]:
    if not _has_zstd():
        raise _missing()
    unpacker = external.zstd.ZstdDecompressor()
    try:
        found = unpacker.decompress(data, size + 1)
    except external.zstd.ZstdError as error:
        raise SealBrokenError(f"invalid zstd: {error}") from error
    return found, unpacker.eof and not unpacker.unused_data


def _has_zstd() -> bool:
    try:
        return bool(external.zstd.compress)
    except ImportError:
        return False


def _missing() -> SettingError:
    return SettingError(
        "zstd needs the package backports.zstd below Python 3.14, which is not installed",
        setting="compression",
        remedy="pip install 'flowckpt[zstd]'",
    )
