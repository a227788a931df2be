"""Messages between two processes, over a socket: a byte that says what it is, eight of length, then so many bytes."""

from __future__ import annotations

import socket
import struct

WORK, ANSWER, TELLS, ASKS, REPLY = range(5)
"""What a message is: a piece of work and what came of it; between the two, what the work says while it runs."""

_HEAD = struct.Struct("!BQ")
_CHUNK = 1 << 20


class Channel:
    """One end of the conversation.

    Args:
        end: a connected stream socket, which blocks.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """Return the descriptor, to wait for."""
        return self._end.fileno()

    def send(self, message: bytes, kind: int) -> None:
        """Send a message, whole.

        Raises:
            OSError: nobody is there any more.
        """
        self._end.sendall(_HEAD.pack(kind, len(message)))
        self._end.sendall(message)

    def receive(self) -> tuple[int, bytes] | None:
        """Return what the next message is, and the message; None where the other end is closed, perhaps within one."""
        head = self._exactly(_HEAD.size)
        if head is None:
            return None
        kind, length = _HEAD.unpack(head)
        message = self._exactly(length)
        return None if message is None else (kind, message)

    def close(self) -> None:
        """Close this end."""
        self._end.close()

    def _exactly(self, count: int) -> bytes | None:
        taken = bytearray()
        while len(taken) < count:
            try:
                piece = self._end.recv(min(count - len(taken), _CHUNK))
            except ConnectionError:
                return None
            if not piece:
                return None
            taken += piece
        return bytes(taken)
