"""Requests to the owner of a live run, left in its store: cancel the run, save a checkpoint, change the tags.

The owner looks for them between steps, at most once in a while; a run that ends sooner never looks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs

from flowckpt.core.records import CheckpointData
from flowckpt.core.records.wait import Signal, WaitKind, birth_of
from flowckpt.core.system.blocking import begin
from flowckpt.core.system.clock import Clock
from flowckpt.errors import FlowckptError
from flowckpt.execution.interrupts import Interrupts
from flowckpt.stores.base import StoreBase

_MOST_DOUBLINGS = 6
_MOMENT = 0.05
"""For how many seconds a step waits for the answer of a look."""
_ROLLS_BACK = "rolls_back"
_ATTEMPT = "attempt"
TAGS = "tags"
"""In the metadata: the tags of the run."""

_log = logging.getLogger("flowckpt")


def new_request(signal_id: str, sent_at: datetime, newest: CheckpointData, *, rolls_back: bool) -> Signal:
    """Return a request to cancel a run.

    Args:
        signal_id: names this very request.
        sent_at: when it is made.
        newest: the newest checkpoint of the run. The request does not count for an attempt after the run was cancelled.
        rolls_back: whether what the run did is to be undone.
    """
    asked = {_ROLLS_BACK: rolls_back, _ATTEMPT: newest.attempt}
    return Signal(signal_id, "cancel", sent_at, asked, kind=WaitKind.CANCEL, birth=birth_of(newest.metadata))


def tagged(metadata: Mapping[str, Any], change: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the metadata of a run with changed tags.

    Args:
        metadata: of its newest checkpoint.
        change: the new value of each tag; None removes it.
    """
    tags = {**metadata.get(TAGS, {}), **change}
    return {**metadata, TAGS: {name: value for name, value in tags.items() if value is not None}}


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
class Requests:
    """The requests to a run, as one attempt knows them.

    Attributes:
        store: where the run lies.
        workflow_id: the run.
        birth: what distinguishes it from other runs of the same id.
        clock: the time.
        interrupts: what stops the run.
        ended: the attempt that a person ended last, and when; requests to cancel that were made before do not count.
    """

    store: StoreBase
    workflow_id: str
    birth: str
    clock: Clock
    interrupts: Interrupts
    ended: Mapping[str, Any] | None = None
    _looking: asyncio.Future[Sequence[Signal]] | None = attrs.field(init=False, default=None)
    _failures: int = attrs.field(init=False, default=0)
    _is_reported: bool = attrs.field(init=False, default=False)

    @property
    def slowdown(self) -> int:
        """How many times as long as usual to wait before the next look: more, the longer the store has been away."""
        return int(2 ** min(self._failures, _MOST_DOUBLINGS))

    async def forget(self) -> None:
        """Remove the requests that this run has followed; those that stay are older than its end."""
        try:
            await remove_requests(self.store, self.workflow_id)
        except FlowckptError as error:
            _log.warning("run %s: the request to cancel it could not be removed: %s", self.workflow_id, error)

    async def look(self) -> Sequence[Signal]:
        """Look for requests; stop the run if one asks for that, and return those for checkpoints and tags.

        A store that does not answer at once is not waited for: its answer is read at the next look. That it cannot be
        read is reported once, until it can be again.
        """
        if self.interrupts.noted:
            return ()
        if self._looking is None:
            self._looking = await begin(self.store.signals(self.workflow_id), patience=_MOMENT)
        else:
            await asyncio.sleep(0)
        if not self._looking.done():
            return ()
        looked, self._looking = self._looking, None
        try:
            signals = looked.result()
        except FlowckptError as error:
            self._failures += 1
            if not self._is_reported:
                _log.warning("run %s: requests to cancel it could not be read: %s", self.workflow_id, error)
            self._is_reported = True
            return ()
        self._failures, self._is_reported = 0, False
        meant = [each for each in signals if each.birth == self.birth]
        for each in meant:
            if each.kind is WaitKind.CANCEL and self._counts(each):
                self.interrupts.request_cancel(rolls_back=bool(each.data.get(_ROLLS_BACK, True)))
                return ()
        return [each for each in meant if each.kind in (WaitKind.CHECKPOINT, WaitKind.TAG)]

    def _counts(self, request: Signal) -> bool:
        """Return whether a request to cancel was made since the run was last ended, whatever was put back since."""
        if self.ended is None:
            return True
        attempt, ended = request.data.get(_ATTEMPT, 0), self.ended["attempt"]
        if attempt != ended:
            return bool(attempt > ended)
        return request.sent_at > datetime.fromisoformat(self.ended["at"])  # the next attempt may have saved nothing yet

    async def remove(self, followed: Sequence[Signal]) -> None:
        """Remove requests that this run has followed; one that stays is followed again, which changes nothing."""
        try:
            await self.store.remove_signals(self.workflow_id, [each.signal_id for each in followed])
        except FlowckptError as error:
            _log.warning("run %s: a request that was followed could not be removed: %s", self.workflow_id, error)
