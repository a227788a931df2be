"""What a process prints, in a file without a name: nobody who prints there fails because its reader is gone.

A pipe whose reader has died refuses what is printed to it, in the process and in every program that it starts. A file
takes it, as long as there is room: a step that cannot print fails, so none is begun where there is not some of it.
Its space is given back to the system as it is read, where the file system can do that.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator

_CHUNK = 64 * 1024
_FREED_AT_ONCE = 1024 * 1024
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
_FULL = (errno.ENOSPC, errno.EDQUOT)


class OutputFile:
    """A file that another process prints to, read while it grows.

    Raises:
        OSError: no directory for temporary files takes one, or there is no room in it for the first MiB.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="flowckpt-output-", buffering=0)  # noqa: SIM115 - closed by close()
        # Whoever inherits it prints behind what the others have printed, also behind one who has emptied it.
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, fcntl.fcntl(self.descriptor, fcntl.F_GETFL) | os.O_APPEND)
        self._read = 0
        self._freed = 0
        failure = _allocated(self.descriptor, _KEEP_SIZE, 0, _FREED_AT_ONCE)
        if failure in _FULL:
            self.close()
            raise OSError(failure, os.strerror(failure), tempfile.gettempdir())

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
            _allocated(self.descriptor, _KEEP_SIZE | _PUNCH_HOLE, self._freed, length)
            self._freed += length


def _allocated(descriptor: int, mode: int, offset: int, length: int) -> int:
    """Take space for a part of a file, or give it back, without changing its size; return the number of the error, if any.

    Nothing happens where the system or the file system cannot.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    fallocate = getattr(libc, "fallocate64", None)
    if fallocate is None:
        return errno.ENOSYS
    while fallocate(descriptor, mode, ctypes.c_int64(offset), ctypes.c_int64(length)):
        if (failure := ctypes.get_errno()) != errno.EINTR:
            return failure
    return 0
