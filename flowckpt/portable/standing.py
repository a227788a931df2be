"""How many checkpoints of a run no longer count: a later attempt went on from before them."""

from __future__ import annotations

from flowckpt.checkpoint import CheckpointData, HistoryView
from flowckpt.codec.results import as_view


class LeftBehind:
    """Counts, over all checkpoints of a run in their order, those that a later attempt left behind."""

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._seen = 0
        self._attempt = 0
        self._before: HistoryView | None = None

    @property
    def count(self) -> int:
        """How many there are so far."""
        return self._seen - len(self._lengths)

    def add(self, data: CheckpointData) -> None:
        """Take in the next checkpoint.

        Args:
            data: the checkpoint.
        """
        view = as_view(data.step_results)
        if data.attempt != self._attempt and self._before is not None:
            kept = self._before.shared_length(view)
            self._lengths = [length for length in self._lengths if length <= kept]
        self._lengths.append(len(view))
        self._seen += 1
        self._attempt, self._before = data.attempt, view
