r"""Word of the steps that were begun since the last checkpoint: what a killed process was at.

It stands in the run's lock file, which its owner holds open anyway, and is written without a sync (1 µs). The kernel
keeps it when the process dies, by `kill -9` too. After a power cut it may be missing or old, so it is a hint for people,
and decides nothing: a step that must not be done twice is marked by a durable checkpoint before it begins.

The text is the number of the attempt and the paths, a line each, and a zero byte, behind which nothing counts::

    3\nfetch\npages[17]\n\0

Where the lines of the segment are encrypted, so is each path.

It is not cleared when a checkpoint is saved, but begun anew at the next step: what the record holds has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from flowckpt.core.system.filesystem import FileSystem
from flowckpt.stores.log.sealing.protection import SealBrokenError

if TYPE_CHECKING:
    from flowckpt.stores.log.sealing.lines import LineSeal


MOST = 1 << 16
"""Bytes that the text may have, twice as many where paths are encrypted; what is begun behind them, without a checkpoint, is not noted."""


class BegunSteps:
    """Notes the steps that an attempt begins.

    Args:
        filesystem: the calls.
        lock: the run's lock file, open for writing.
        attempt: the attempt.
        seal: the seal of its segment, if there is one.
    """

    def __init__(self, filesystem: FileSystem, lock: int, attempt: int, seal: LineSeal | None = None) -> None:
        self._filesystem = filesystem
        self._lock = lock
        self._head = b"%d\n" % attempt
        self._end = 0
        self._seal = seal
        self._count = 0

    def add(self, path: str) -> None:
        """Note a step; a full disk is none of a note's business.

        Args:
            path: the step.
        """
        start = self._end
        text = path.encode("utf-8", "replace")
        if self._seal is not None:
            self._count += 1  # over the whole attempt, for it is a nonce; a forked child has the same count
            text = self._seal.hidden(text, self._count << 24 | int.from_bytes(os.urandom(3)))
        line = b"%b\n\0" % text if start else b"%b%b\n\0" % (self._head, text)
        end = start + len(line)
        if end <= (MOST if self._seal is None else 2 * MOST):
            try:  # not contextlib.suppress, which takes as long as half the write
                self._filesystem.write_at(self._lock, line, start)
            except OSError:
                return
            self._end = end - 1

    def begin_anew(self) -> None:
        """Forget them at the next step: a checkpoint holds what became of them."""
        self._end = 0


def begun_in(content: bytes, seal_of: Callable[[int], LineSeal | None] | None = None) -> tuple[int, tuple[str, ...]]:
    """Return the attempt that left word, and the steps; attempt 0 where there is no word, or no sense in it.

    Args:
        content: the content of a lock file.
        seal_of: returns the seal of an attempt's segment; None where it has none, or cannot be had.
    """
    text, end, _ = content.partition(b"\0")
    head, *paths = text.split(b"\n")
    if not end or not head.isascii() or not head.isdigit() or not paths or paths.pop():
        return 0, ()
    attempt = int(head)
    try:
        seal = None if seal_of is None else seal_of(attempt)
        shown = [path if seal is None else seal.shown(path) for path in paths]
    except SealBrokenError:
        return 0, ()
    return attempt, tuple(dict.fromkeys(path.decode("utf-8", "replace") for path in shown))
