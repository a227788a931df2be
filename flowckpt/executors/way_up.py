"""The way from work in a worker up to whoever handed it in, while it runs."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol


class WayUp(Protocol):
    """Carries messages up; an executor that `HearsWork` has one in the worker. Only one thread at a time uses it."""

    def tell(self, message: bytes) -> None:
        """Send a message that wants no reply.

        Raises:
            OSError: nobody is there any more.
        """
        ...

    def ask(self, message: bytes) -> bytes:
        """Send a message, and wait for the reply.

        Raises:
            OSError: nobody is there any more.
        """
        ...


way_up: ContextVar[WayUp | None] = ContextVar("flowckpt_way_up", default=None)
"""The way up from the work that runs here; None where its executor has none."""
