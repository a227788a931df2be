"""Writing a file that is either all there or not there at all."""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def whole_file(file: Path, *, is_compressed: bool = False) -> Iterator[IO[bytes]]:
    """Open a file for writing: under another name first, and in its place, durably, when the block is done.

    A device or a pipe is written to as it is.

    Args:
        file: where to.
        is_compressed: whether what is written is compressed by gzip.

    Raises:
        OSError: it cannot be written; what was there before is still there.
    """
    if file.exists() and not file.is_file():
        with file.open("wb") as stream, _packed(stream, is_compressed) as packed:
            yield packed
        return
    place = file.resolve()
    descriptor, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            with _packed(stream, is_compressed) as packed:
                yield packed
            stream.flush()
            os.fsync(stream.fileno())
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(place)
        _sync_directory(place.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


@contextlib.contextmanager
def _packed(stream: IO[bytes], is_compressed: bool) -> Iterator[IO[bytes]]:
    if not is_compressed:
        yield stream
        return
    # No name and no time in it: the same run makes the same bytes.
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=stream, mtime=0) as packed:
        yield packed  # type: ignore[misc]


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
