"""The runs that this very process drives, so that they can be stopped without a signal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flowckpt.execution.interrupts import Interrupts
from flowckpt.stores.base import CheckpointStore

_live: dict[str, list[tuple[CheckpointStore, Interrupts]]] = {}


@contextmanager
def known_as_live(store: CheckpointStore, workflow_id: str, interrupts: Interrupts) -> Iterator[None]:
    """Let a run be found for the block.

    Args:
        store: where it lies.
        workflow_id: the run.
        interrupts: what stops it.
    """
    entry = store, interrupts
    interrupts.is_alone = is_alone
    _live.setdefault(workflow_id, []).append(entry)
    try:
        yield
    finally:
        left = [each for each in _live.get(workflow_id, ()) if each is not entry]
        if left:
            _live[workflow_id] = left
        else:
            _live.pop(workflow_id, None)


def is_alone() -> bool:
    """Tell whether this process drives one run at most."""
    return sum(map(len, _live.values())) <= 1


def live_interrupts(store: object, workflow_id: str) -> Interrupts | None:
    """Return what stops a run that is driven in this process on this store, or None.

    Args:
        store: where it lies.
        workflow_id: the run.
    """
    return next((interrupts for place, interrupts in _live.get(workflow_id, ()) if place is store), None)
