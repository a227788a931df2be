"""Writing a file that is either all there or not there at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_file(file: Path, data: bytes) -> None:
    """Write a file: under another name first, then in its place. A device or a pipe is written to as it is.

    Args:
        file: where to.
        data: what.

    Raises:
        OSError: it cannot be written; what was there before is still there.
    """
    if file.exists() and not file.is_file():
        file.write_bytes(data)
        return
    place = file.resolve()
    descriptor, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(place)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
