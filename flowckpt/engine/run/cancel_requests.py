"""Requests to cancel a run that were left in its store, for an owner that nobody can reach from where they were made.

The owner looks for them between steps, at most once in a while; a run that ends sooner never looks.
"""

from __future__ import annotations

import logging
from datetime import datetime

import attrs

from flowckpt.core.records.wait import Signal, WaitKind
from flowckpt.core.system.clock import Clock
from flowckpt.errors import FlowckptError
from flowckpt.execution.interrupts import Interrupts
from flowckpt.stores.base import StoreBase

_ROLLS_BACK = "rolls_back"

_log = logging.getLogger("flowckpt")


def new_request(signal_id: str, sent_at: datetime, *, rolls_back: bool) -> Signal:
    """Return a request to cancel a run.

    Args:
        signal_id: names this very request.
        sent_at: when it is made.
        rolls_back: whether what the run did is to be undone.
    """
    return Signal(signal_id, "cancel", sent_at, {_ROLLS_BACK: rolls_back}, kind=WaitKind.CANCEL)


async def remove_requests(store: StoreBase, workflow_id: str) -> None:
    """Remove the requests of a run that was cancelled.

    Args:
        store: where it lies.
        workflow_id: the run.
    """
    found = [each.signal_id for each in await store.signals(workflow_id) if each.kind is WaitKind.CANCEL]
    if found:
        await store.remove_signals(workflow_id, found)


@attrs.define(eq=False, repr=False)
class CancelRequests:
    """What one attempt knows of requests to cancel its run.

    Attributes:
        store: where the run lies.
        workflow_id: the run.
        clock: the time.
        interrupts: what stops the run.
        after: requests that were made before count no more: the run was cancelled and resumed since.
    """

    store: StoreBase
    workflow_id: str
    clock: Clock
    interrupts: Interrupts
    after: datetime | None = None

    async def forget(self) -> None:
        """Remove what was heeded. Where that fails it stays, and is known to be older than the end of the run."""
        try:
            await remove_requests(self.store, self.workflow_id)
        except FlowckptError as error:
            _log.warning("run %s: the request to cancel it could not be removed: %s", self.workflow_id, error)

    async def look(self) -> None:
        """Look for a request, and stop the run where there is one. A store that cannot be read now is read later."""
        if self.interrupts.noted:
            return
        try:
            signals = await self.store.signals(self.workflow_id)
        except FlowckptError as error:
            _log.warning("run %s: requests to cancel it could not be read: %s", self.workflow_id, error)
            return
        for signal in signals:
            if signal.kind is WaitKind.CANCEL and (self.after is None or signal.sent_at > self.after):
                self.interrupts.request_cancel(rolls_back=bool(signal.data.get(_ROLLS_BACK, True)))
                return
