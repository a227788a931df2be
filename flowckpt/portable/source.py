"""A file to be imported, opened: a plain one in place, a compressed one or a stream by way of a temporary file."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from flowckpt.errors import ImportRefusedError, SourceUnreadableError
from flowckpt.portable.limits import RATIO_FROM, ImportLimits
from flowckpt.portable.strict_json import MalformedError

CHUNK = 256 * 1024
_GZIP = b"\x1f\x8b"


class Source:
    """The content of a file, no longer compressed, that can be read again and at any place.

    Args:
        stream: a seekable stream.
        limits: how much is taken.
    """

    def __init__(self, stream: IO[bytes], limits: ImportLimits) -> None:
        self._stream = stream
        self._limits = limits

    def lines(self) -> Iterator[bytes]:
        """Return the lines from the beginning on, each with its line feed where it has one.

        Raises:
            MalformedError: a line, or all of them, are longer than the limits allow.
        """
        most, offset = self._limits.max_value_bytes, 0
        while True:
            self._stream.seek(offset)  # somebody may have read elsewhere meanwhile
            line = self._stream.readline(most + 1)
            if not line:
                return
            if len(line) > most:
                raise MalformedError(f"a line has more than {most} bytes (see --max-value-bytes)")
            offset += len(line)
            if offset > self._limits.max_bytes:
                raise MalformedError(f"it has more than {self._limits.max_bytes} bytes (see --max-bytes)")
            yield line

    def all(self) -> bytes:
        """Return the whole content, which must be no larger than one value may be."""
        self._stream.seek(0)
        most = min(self._limits.max_value_bytes, self._limits.max_bytes)
        content = self._stream.read(most + 1)
        if len(content) > most:
            raise MalformedError(f"it has more than {most} bytes (see --max-value-bytes)")
        return content

    def at(self, offset: int, size: int) -> bytes:
        """Return a part.

        Args:
            offset: where it begins.
            size: its length in bytes.
        """
        self._stream.seek(offset)
        return self._stream.read(size)


@contextlib.contextmanager
def opened_source(file: Path | str, limits: ImportLimits) -> Iterator[Source]:
    """Open a file for the block. Whether it is compressed, its content says, not its name.

    Args:
        file: the file; `-` is standard input.
        limits: how much is taken.

    Raises:
        SourceUnreadableError: the file cannot be read.
        ImportRefusedError: it is compressed, and cut, damaged or too large.
    """
    with contextlib.ExitStack() as stack:
        try:
            if str(file) == "-":
                raw: IO[bytes] = stack.enter_context(os.fdopen(os.dup(sys.__stdin__.fileno()), "rb"))  # type: ignore[union-attr]
            else:
                raw = stack.enter_context(Path(file).open("rb"))
            is_plain_file = stat.S_ISREG(os.fstat(raw.fileno()).st_mode)
            beginning = raw.read(len(_GZIP))
            if beginning == _GZIP or not is_plain_file:
                spool = stack.enter_context(tempfile.TemporaryFile(prefix="flowckpt-import-"))
                _spooled(raw, beginning, spool, limits)
                yield Source(spool, limits)
            else:
                yield Source(raw, limits)
        except MalformedError as error:
            raise ImportRefusedError(str(error), file=str(file)) from None
        except OSError as error:
            raise SourceUnreadableError(str(file), detail=error.strerror or str(error)) from error


def _spooled(raw: IO[bytes], beginning: bytes, spool: IO[bytes], limits: ImportLimits) -> None:
    def more() -> bytes:
        nonlocal beginning
        chunk, beginning = beginning + raw.read(CHUNK), b""
        return chunk

    parts = _unpacked(more, limits) if beginning == _GZIP else iter(more, b"")
    size = 0
    for part in parts:
        size += len(part)
        if size > limits.max_bytes:
            raise MalformedError(f"it has more than {limits.max_bytes} bytes (see --max-bytes)")
        spool.write(part)
    spool.flush()


def _unpacked(more: Callable[[], bytes], limits: ImportLimits) -> Iterator[bytes]:
    """Return what gzip has packed, a part at a time, as long as it does not swell beyond the ratio."""
    packed = unpacked = 0
    unpacker = zlib.decompressobj(wbits=31)
    chunk = more()
    packed += len(chunk)
    while chunk:
        try:
            part = unpacker.decompress(chunk, CHUNK)
        except zlib.error as error:
            raise MalformedError(f"it is compressed, and damaged: {error}") from None
        unpacked += len(part)
        if unpacked > RATIO_FROM and unpacked > packed * limits.max_ratio:
            raise MalformedError(f"it is more than {limits.max_ratio} times larger than its file (see --max-ratio)")
        yield part
        chunk = unpacker.unconsumed_tail
        if unpacker.eof:
            if unpacker.unused_data or more():
                raise MalformedError("something stands behind its compressed content")
            return
        if not chunk:
            chunk = more()
            packed += len(chunk)
    raise MalformedError("it is compressed, and cut")
