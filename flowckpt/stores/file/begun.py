r"""Word of the steps that were begun since the last checkpoint: what a killed process was at.

It stands in the run's lock file, which its owner holds open anyway, and is written without a sync (1 µs). The kernel
keeps it when the process dies, by `kill -9` too. After a power cut it may be missing or old, so it is a hint for people,
and decides nothing: a step that must not be done twice is marked by a durable checkpoint before it begins.

The text is the number of the attempt and the paths, a line each, and a zero byte, behind which nothing counts::

    3\nfetch\npages[17]\n\0

It is not cleared when a checkpoint is saved, but begun anew at the next step: what the record holds has ended.
"""

from __future__ import annotations

import contextlib

from flowckpt.filesystem import FileSystem

MOST = 1 << 16
"""Bytes that the text may have; what is begun behind them, without a checkpoint, is not noted."""


class BegunSteps:
    """Notes the steps that an attempt begins.

    Args:
        filesystem: the calls.
        lock: the run's lock file, open for writing.
        attempt: the attempt.
    """

    def __init__(self, filesystem: FileSystem, lock: int, attempt: int) -> None:
        self._filesystem = filesystem
        self._lock = lock
        self._head = b"%d\n" % attempt
        self._end = 0

    def add(self, path: str) -> None:
        """Note a step; a full disk is none of a note's business.

        Args:
            path: the step.
        """
        start = self._end
        line = b"%b%b\n\0" % (b"" if start else self._head, path.encode("utf-8", "replace"))
        if start + len(line) <= MOST:
            with contextlib.suppress(OSError):
                self._filesystem.write_at(self._lock, line, start)
                self._end = start + len(line) - 1

    def begin_anew(self) -> None:
        """Forget them at the next step: a checkpoint holds what became of them."""
        self._end = 0


def begun_in(content: bytes) -> tuple[int, tuple[str, ...]]:
    """Return the attempt that left word, and the steps; attempt 0 where there is no word, or no sense in it.

    Args:
        content: the content of a lock file.
    """
    text, end, _ = content.partition(b"\0")
    head, *paths = text.decode("utf-8", "replace").split("\n")
    if not end or not head.isascii() or not head.isdigit() or not paths or paths.pop():
        return 0, ()
    return int(head), tuple(dict.fromkeys(paths))
