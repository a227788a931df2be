"""A lock on a file that others only look at: who finds it held asks again, for a moment."""

from __future__ import annotations

import time

from flowckpt.filesystem import FileSystem

_LOOKS = 20
_LOOK_SECONDS = 0.0005


def take_lock(filesystem: FileSystem, lock: int) -> bool:
    """Take a lock, if nobody keeps it.

    Whoever looks whether it is held holds it for some microseconds; so one that is held is asked for again, for 10 ms.

    Args:
        filesystem: the calls.
        lock: the file, open.
    """
    for _ in range(_LOOKS):
        if filesystem.lock(lock):
            return True
        time.sleep(_LOOK_SECONDS)
    return False
