"""What an object holds: text as it is where it is short, gzip where that is worth it. The first byte tells which."""

from __future__ import annotations

import gzip
import zlib

SHORTEST = 4 * 1024
"""Bytes below which nothing is compressed: a request costs the same."""
LARGEST = 256 * 1024 * 1024
"""Bytes above which nothing is compressed, so that nothing that was compressed is longer when it is read."""

_GZIP = b"\x1f\x8b"
_LEVEL = 5
_AS_GZIP = 31  # for zlib: a gzip header and trailer, the largest window


class InflationError(Exception):
    """What an object holds is no gzip, or more than it may be; the store turns this into its own error."""


def packed(content: bytes) -> bytes:
    """Return what to put into an object.

    Args:
        content: the content; what begins like gzip itself is compressed whatever its length.
    """
    if content[:2] == _GZIP:
        return gzip.compress(content, _LEVEL, mtime=0)
    if not SHORTEST <= len(content) <= LARGEST:
        return content
    smaller = gzip.compress(content, _LEVEL, mtime=0)
    return smaller if len(smaller) < len(content) * 0.9 else content


def unpacked(body: bytes, most: int = LARGEST) -> bytes:
    """Return the content of an object.

    Args:
        body: what is in the object.
        most: the most bytes that it may inflate to.

    Raises:
        InflationError: it is damaged, or inflates to more.
    """
    if body[:2] != _GZIP:
        return body
    inflating = zlib.decompressobj(_AS_GZIP)
    try:
        content = inflating.decompress(body, most + 1)
    except zlib.error as error:
        raise InflationError(str(error)) from error
    if len(content) > most:
        raise InflationError(f"it inflates to more than {most} bytes")
    if not inflating.eof or inflating.unused_data:
        raise InflationError("the compressed text is not whole")
    return content
