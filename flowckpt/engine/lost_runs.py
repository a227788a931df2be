"""The end of work for a run that another process has taken over."""

from __future__ import annotations

from flowckpt.errors import FencedError
from flowckpt.execution.interrupts import Interrupts
from flowckpt.stores.base import CheckpointStore
from flowckpt.stores.losing import TellsOfLostRuns


def stop_when_lost(store: CheckpointStore, workflow_id: str, interrupts: Interrupts, *, goes_on_unsaved: bool) -> None:
    """Let the store stop a run once it is lost, where it can tell; else the next save finds out.

    Args:
        store: where the run lies.
        workflow_id: the run; this process owns it.
        interrupts: what stops it.
        goes_on_unsaved: whether it goes on where it was removed, and nobody else has it.
    """

    def tell(error: FencedError) -> None:
        if error.newest_attempt or not goes_on_unsaved:
            interrupts.lose(error)

    if isinstance(store, TellsOfLostRuns):
        store.tell_when_lost(workflow_id, tell)
