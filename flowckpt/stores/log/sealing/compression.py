"""Packing by gzip or zstd: where it pays, marked in the record, and never unpacked beyond what the record says."""

from __future__ import annotations

import zlib

from flowckpt.core.system import external
from flowckpt.errors import SettingError
from flowckpt.stores.log.sealing.protection import SealBrokenError

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
        SettingError: there is no such one, or its package is missing.
    """
    if compression not in COMPRESSIONS:
        raise SettingError(
            f"there is no compression {compression!r}",
            setting="compression",
            remedy=f"Take one of {', '.join(COMPRESSIONS)}.",
        )
    if compression == "auto":
        return ZSTD if _has_zstd() else GZIP
    if compression == ZSTD and not _has_zstd():
        raise _missing()
    return "" if compression == "none" else compression


def packed(data: bytes, method: str, *, most: float = _GAIN) -> bytes | None:
    """Return data packed, or None where that does not pay.

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
        SealBrokenError: it is something else than the record says.
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
