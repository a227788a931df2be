"""Messages between two processes, over a socket: eight bytes of length, then so many bytes."""

from __future__ import annotations

import socket
import struct

_LENGTH = struct.Struct("!Q")
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

    def send(self, message: bytes) -> None:
        """Send a message, whole.

        Raises:
            OSError: nobody is there any more.
        """
        self._end.sendall(_LENGTH.pack(len(message)))
        self._end.sendall(message)

    def receive(self) -> bytes | None:
        """Return the next message; None where the other end is closed, perhaps in the middle of one."""
        head = self._exactly(_LENGTH.size)
        return None if head is None else self._exactly(_LENGTH.unpack(head)[0])

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
