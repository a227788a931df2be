"""Packing, and AES-256-GCM over bytes of any length, by the package `cryptography`.

A nonce is (number, part, whether it is the last part). The caller never uses a number twice with one key; parts are
counted here. So no nonce is used twice under a key, no part can be removed from the middle, and the end is verified.

Packing uses gzip or zstd, only if it saves enough. The record names the method and the size, which limits unpacking.
"""

from __future__ import annotations

import zlib

from flowckpt.core.system import external
from flowckpt.errors import SettingError
from flowckpt.stores.log.sealing.protection import SealBrokenError

PART = 1 << 24
TAG = 16


def check_installed() -> None:
    """Raise if the package is missing.

    Raises:
        SettingError: the package is missing.
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

    def encrypt(self, data: bytes, number: int, bound: bytes) -> bytes:
        """Encrypt and authenticate data.

        Args:
            data: the bytes.
            number: never the same twice under this key.
            bound: associated data, which the reader must pass again.
        """
        parts = max(1, -(-len(data) // PART))
        return b"".join(
            self._aead.encrypt(
                _nonce(number, part, is_last=part == parts - 1), data[part * PART : (part + 1) * PART], bound
            )
            for part in range(parts)
        )

    def decrypt(self, data: bytes, number: int, bound: bytes) -> bytes:
        """Decrypt what `encrypt` returned.

        Args:
            data: what `encrypt` returned.
            number: the same as for `encrypt`.
            bound: the same as for `encrypt`.

        Raises:
            SealBrokenError: the data, the number, `bound` or the key differs.
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
            raise SealBrokenError("it does not decrypt: it was changed, moved, or made without the key") from error


def _nonce(number: int, part: int, *, is_last: bool) -> bytes:
    return number.to_bytes(7, "big") + part.to_bytes(4, "big") + bytes([is_last])


GZIP, ZSTD = "gzip", "zstd"
COMPRESSIONS = ("none", GZIP, ZSTD, "auto")
"""The compressions of a store. `auto` is zstd if it is installed, else gzip."""

LARGEST = 1 << 28
"""The most bytes that are packed; so a record that claims to unpack to more is refused unread."""

_GZIP_WINDOW = 31
_GAIN = 0.9


def choose_method(compression: str) -> str:
    """Return the method for a setting: `gzip`, `zstd`, or an empty string for none.

    Args:
        compression: one of `COMPRESSIONS`.

    Raises:
        SettingError: the compression is unknown, or its package is missing.
    """
    if compression not in COMPRESSIONS:
        raise SettingError(
            f"unknown compression {compression!r}",
            setting="compression",
            remedy=f"Use one of {', '.join(COMPRESSIONS)}.",
        )
    if compression == "auto":
        return ZSTD if _has_zstd() else GZIP
    if compression == ZSTD and not _has_zstd():
        raise _missing_zstd_error()
    return "" if compression == "none" else compression


def pack(data: bytes, method: str, *, most: float = _GAIN) -> bytes | None:
    """Compress data; None if that saves too little.

    Args:
        data: the bytes.
        method: `gzip` or `zstd`.
        most: the largest acceptable ratio of packed to original length.
    """
    if len(data) > LARGEST:
        return None
    if method == ZSTD:
        found = external.zstd.compress(data)
    else:
        packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WINDOW)
        found = packer.compress(data) + packer.flush()
    return found if len(found) <= len(data) * most else None


def unpack(data: bytes, method: str, size: int) -> bytes:
    """Decompress data.

    Args:
        data: the packed bytes.
        method: `gzip` or `zstd`.
        size: the recorded length; no more bytes are unpacked.

    Raises:
        SealBrokenError: the data does not match the method or the size.
        SettingError: the package of the method is missing.
    """
    if not 0 <= size <= LARGEST:
        raise SealBrokenError(f"it claims to unpack to {size} bytes, but at most {LARGEST} are ever packed")
    if method == ZSTD:
        found, is_whole = _unpack_zstd(data, size)
    elif method == GZIP:
        found, is_whole = _unpack_gzip(data, size)
    else:
        raise SealBrokenError(f"it is packed by {method!r:.40}, which this version does not know")
    if len(found) != size or not is_whole:
        raise SealBrokenError(f"it does not unpack to the recorded {size} bytes")
    return found


def _unpack_gzip(data: bytes, size: int) -> tuple[bytes, bool]:
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    try:
        found = unpacker.decompress(data, size + 1)
    except zlib.error as error:
        raise SealBrokenError(f"invalid gzip: {error}") from error
    return found, unpacker.eof and not unpacker.unused_data


def _unpack_zstd(data: bytes, size: int) -> tuple[bytes, bool]:
    if not _has_zstd():
        raise _missing_zstd_error()
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


def _missing_zstd_error() -> SettingError:
    return SettingError(
        "zstd needs the package backports.zstd on Python before 3.14, which is not installed",
        setting="compression",
        remedy="pip install 'flowckpt[zstd]'",
    )
