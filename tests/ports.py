"""Ports for servers of tests."""

from __future__ import annotations

import random
import socket

_FIRST, _LAST = 15_000, 32_000
"""Below Linux's ephemeral ports, so that no connection takes a port between its choice and its use, or a restart."""

_chance = random.SystemRandom()


def free_port() -> int:
    """Return a port of this machine on which nothing listens."""
    while True:
        port = _chance.randrange(_FIRST, _LAST)
        with socket.socket() as listening:
            try:
                listening.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
