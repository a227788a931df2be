"""What a way of showing progress can do."""

from __future__ import annotations

from typing import Protocol

from flowckpt.events import Event


class Progress(Protocol):
    """Shows the events of a run. It never raises: no run ends because nobody can see it."""

    def start(self) -> None:
        """Begin to show."""
        ...

    def tell(self, event: Event) -> None:
        """Show an event; called between two steps, so it must be quick."""
        ...

    def stop(self) -> None:
        """Show what is left to show, and give the terminal back."""
        ...
