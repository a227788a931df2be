"""The moment in which a recoverer, which keeps a run, leaves it to the process that resumes it.

The process starts, imports its program and reads the record, which takes most of a second; all that time the recoverer
owns the run, so that no other one starts a process for it. Then the process asks for it, by one byte over a socket that it
was born with; the recoverer gives the run up, answers, and the process claims it. Where somebody else is quicker
between the two, the claim is refused as any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable

_ASKED = b"?"
_GIVEN_UP = b"!"


def ask_for_run(descriptor: int) -> None:
    """Ask the recoverer for the run, and wait until it is given up; one that is gone keeps nothing.

    Args:
        descriptor: of the socket; it is closed, so that nothing that the run starts inherits it.
    """
    try:
        with contextlib.suppress(OSError):
            os.write(descriptor, _ASKED)
            os.read(descriptor, len(_GIVEN_UP))
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)


class Handover:
    """The recoverer's end.

    Args:
        give_up: gives the run up.
    """

    def __init__(self, give_up: Callable[[], Awaitable[None]]) -> None:
        self._give_up = give_up
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._answering: asyncio.Task[None] | None = None

    @property
    def descriptor(self) -> int:
        """What the process is to inherit."""
        return self._theirs.fileno()

    def begin(self) -> None:
        """Wait for the question, now that the process has its end."""
        self._theirs.close()
        self._answering = asyncio.create_task(self._answer())

    async def end(self) -> None:
        """End it, asked or not.

        Raises:
            FlowckptError: the run could not be given up.
        """
        try:
            if self._answering is not None:
                self._answering.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await self._answering
        finally:
            self._theirs.close()
            self._ours.close()

    async def _answer(self) -> None:
        loop = asyncio.get_running_loop()
        if await loop.sock_recv(self._ours, len(_ASKED)):
            try:
                await self._give_up()
            finally:
                await loop.sock_sendall(self._ours, _GIVEN_UP)
