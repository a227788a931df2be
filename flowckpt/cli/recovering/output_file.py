"""What a process prints, in a file without a name: nobody who prints there fails because its reader is gone.

A pipe whose reader has died refuses what is printed to it, in the process and in every program that it starts. A file
takes it. Its space is given back to the system as it is read, where the file system can do that.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import tempfile
from collections.abc import Iterator

_CHUNK = 64 * 1024
_FREED_AT_ONCE = 1024 * 1024
_KEEP_SIZE_AND_PUNCH_HOLE = 0x01 | 0x02


class OutputFile:
    """A file that another process prints to, read while it grows.

    Raises:
        OSError: no directory for temporary files takes one.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="flowckpt-output-", buffering=0)  # noqa: SIM115 - closed by close()
        # Whoever inherits it prints behind what the others have printed, also behind one who has emptied it.
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, fcntl.fcntl(self.descriptor, fcntl.F_GETFL) | os.O_APPEND)
        self._read = 0
        self._freed = 0

    @property
    def descriptor(self) -> int:
        """What the process is to inherit as its output."""
        return self._file.fileno()

    def close(self) -> None:
        """Close it here; it is gone once everybody who prints to it has closed it."""
        self._file.close()

    def new_chunks(self) -> Iterator[bytes]:
        """Yield what has been printed since the last time, and nothing that is printed from now on.

        Whoever opens `/dev/stdout` to write to it empties the file. Between two looks at it, nobody can know of that
        when more has been printed since than was read before: the beginning of it is not yielded then.
        """
        size = os.fstat(self.descriptor).st_size
        if size < self._read:  # emptied, by one who has opened /dev/stdout to write to it
            self._read = self._freed = 0
        while self._read < size:
            chunk = os.pread(self.descriptor, min(_CHUNK, size - self._read), self._read)
            if not chunk:
                break
            self._read += len(chunk)
            self._give_back_space()
            yield chunk

    def _give_back_space(self) -> None:
        length = (self._read - self._freed) // _FREED_AT_ONCE * _FREED_AT_ONCE
        if length:
            _punch_hole(self.descriptor, self._freed, length)
            self._freed += length


def _punch_hole(descriptor: int, offset: int, length: int) -> None:
    """Free a part of a file without moving the rest; nothing happens where the system or the file system cannot."""
    fallocate = getattr(ctypes.CDLL(None), "fallocate64", None)
    if fallocate is not None:
        fallocate(descriptor, _KEEP_SIZE_AND_PUNCH_HOLE, ctypes.c_int64(offset), ctypes.c_int64(length))
