"""Progress of a resume that may yet be refused: nothing is told of it until it has something to do.

A resume is refused, and the run left as it was, after the results before the stale one were restored. Told at once, it
would say "resumed" of a run that was not.
"""

from __future__ import annotations

from flowckpt.cli.progress.base import Progress
from flowckpt.events import Event

_BEFORE_WORK = frozenset({"WorkflowResumed", "StepRestored", "EvidenceVerified", "EvidenceFailed"})


class HeldBack:
    """Holds back what a resume tells before it runs anything, and then tells it in order.

    Args:
        shown: what shows the events.
    """

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._held: list[Event] | None = []

    def start(self) -> None:
        """Begin to show."""
        self._shown.start()

    def tell(self, event: Event) -> None:
        """Hold the event back, or show it with all that was held back before it."""
        if self._held is None:
            self._shown.tell(event)
            return
        self._held.append(event)
        if event.kind not in _BEFORE_WORK:
            held, self._held = self._held, None
            for each in held:
                self._shown.tell(each)

    def stop(self) -> None:
        """Forget what was held back: the error says why the resume was refused."""
        self._shown.stop()
