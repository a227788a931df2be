"""The stat signature of a file: what lets an unchanged one go without being read again."""

from __future__ import annotations

import os
from datetime import datetime

Signature = tuple[int, ...]
"""(device, inode, size, mtime_ns, ctime_ns)."""

# A clock's tick is at most 10 ms on the systems of today; a file system that keeps no fractions has ticks of up to 2 s.
_FINE_NS = 20_000_000
_COARSE_NS = 2_000_000_000


def signature_of(found: os.stat_result) -> Signature:
    """Return the signature of a file.

    Args:
        found: its status.
    """
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def is_settled(found: os.stat_result, now: datetime) -> bool:
    """Tell whether a later change would show in the signature.

    One within the same tick of the file system's clock would not: a signature so fresh is not recorded, and the file is
    read again the next time (git calls such files racily clean).

    Args:
        found: the file's status, taken after it was read.
        now: the time at which it was taken.
    """
    newest = max(found.st_mtime_ns, found.st_ctime_ns)
    tick = _COARSE_NS if found.st_mtime_ns % 1_000_000_000 == 0 == found.st_ctime_ns % 1_000_000_000 else _FINE_NS
    return int(now.timestamp() * 1e9) - newest > tick
