"""The ability of a store to tell those who wait that a message has come, so that they need not ask all the time."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable


@runtime_checkable
class AnnouncesSignals(Protocol):
    """A store that says when a message has been sent.

    An announcement is a hint: it may be lost, as with the connection it comes by, and may come for nothing. Whoever waits
    still looks now and then.
    """

    def announcements(self, workflow_id: str | None = None) -> AbstractAsyncContextManager[asyncio.Event]:
        """Listen while the block lasts; the event is set when a message may have come. Whoever heard it clears it.

        Args:
            workflow_id: the run whose messages are meant; those of all runs where it is None.
        """
        ...
