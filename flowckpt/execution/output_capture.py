"""What is kept of the output of a program: its beginning and its end, in bounded memory."""

from __future__ import annotations

import codecs

_SLACK = 1 << 16
_LONGEST_CHARACTER = 4


class OutputCapture:
    """Keeps the first and the last half of what is added.

    Args:
        limit: how many bytes to keep in all.
    """

    def __init__(self, limit: int) -> None:
        self._head_limit = (limit + 1) // 2
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self._behind_head = 0

    def add(self, data: bytes) -> None:
        """Take in what the program wrote next.

        Args:
            data: the bytes.
        """
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._behind_head += len(data)
            self._tail += data
            if len(self._tail) > 2 * self._tail_limit + _SLACK:  # so that each byte is moved once
                del self._tail[: len(self._tail) - self._tail_limit]

    def text(self) -> tuple[str, int]:
        r"""Return what is kept, as UTF-8 with `\xNN` for other bytes, and how many bytes were left out between."""
        left_out = self._behind_head - self._tail_limit
        if left_out <= 0:
            return (self._head + self._tail).decode("utf-8", "backslashreplace"), 0
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        head = decoder.decode(bytes(self._head))
        tail = self._tail[len(self._tail) - self._tail_limit :]
        halved = len(decoder.getstate()[0])  # a character that was cut in two belongs to neither half
        start = 0
        while start < min(len(tail), _LONGEST_CHARACTER - 1) and tail[start] & 0xC0 == 0x80:
            start += 1
        left_out += halved + start
        return f"{head}\n… {left_out:,} bytes left out …\n{tail[start:].decode('utf-8', 'backslashreplace')}", left_out
