"""The messages and requests that other processes leave in the store for the owner of a run.

Messages answer waits; the owner sees those that the run has not consumed. Requests ask the owner of a live run to
cancel it, to save a checkpoint, or to change the tags. The owner looks for requests between steps, at most once per
interval; a run that ends before the first interval never looks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs

from flowckpt.core.records import CheckpointData, History
from flowckpt.core.records.wait import Signal, Wait, WaitKind, birth_of, sent_to
from flowckpt.core.system.blocking import start_within
from flowckpt.core.system.clock import Clock
from flowckpt.engine.values.waits import Waits
from flowckpt.errors import CheckpointStorageError, FlowckptError, SettingError
from flowckpt.execution.interrupts import Interrupts
from flowckpt.stores.base import Ability, StoreBase

_FRESH_NS = 50_000_000
"""How long a read of the messages stays valid: a thousand waits at the same time need one read."""

_SHOWN = 8

_log = logging.getLogger("flowckpt")


@attrs.define(eq=False, repr=False)
class Inbox:
    """The messages for one run.

    Attributes:
        store: the store of the run.
        workflow_id: the run.
        metadata: the run's metadata; messages to the run repeat the birth in it.
        clock: the time.
        waits: the waits of the run, with the messages consumed by results that no longer count.
        history: the results at the start of the attempt, with the messages that they consumed.
    """

    store: StoreBase
    workflow_id: str
    metadata: Mapping[str, Any]
    clock: Clock
    waits: Waits
    history: History
    _taken: set[str] | None = attrs.field(init=False, default=None)
    _found: Sequence[Signal] = attrs.field(init=False, default=())
    _read_ns: int | None = attrs.field(init=False, default=None)
    _has_warned: bool = attrs.field(init=False, default=False)

    async def find_message(self, wait: Wait, *, is_fresh: bool = False) -> Signal | None:
        """Return the message that ends a wait: the first one sent before its deadline; None without one.

        Args:
            wait: the wait.
            is_fresh: whether to read the store even if the last read is still valid.
        """
        if wait.is_timed:
            return None
        return wait.find_message(await self._read_pending(is_fresh=is_fresh))

    async def can_end_any(self, waits: Iterable[Wait], *, is_fresh: bool = False) -> bool:
        """Return whether one of these waits can end now.

        Args:
            waits: the waits.
            is_fresh: as for `find_message`.
        """
        now = self.clock.now()
        for wait in waits:
            if wait.is_due(now) or await self.find_message(wait, is_fresh=is_fresh) is not None:
                return True
            is_fresh = is_fresh and wait.is_timed  # one read is enough
        return False

    def take(self, signal: Signal) -> None:
        """Consume a message, so that no other wait gets it."""
        assert self._taken is not None
        self._taken.add(signal.signal_id)

    def list_answers(self, wait: Wait) -> list[str]:
        """Return the ids of all messages read that could have ended a wait, including the one that did."""
        return [signal.signal_id for signal in self._found if signal.ends(wait)]

    async def remove(self, signal_ids: Iterable[str]) -> None:
        """Remove messages that are recorded as consumed; one that stays in the store is not consumed again."""
        try:
            await self.store.remove_signals(self.workflow_id, tuple(signal_ids))
        except CheckpointStorageError as error:
            _log.warning("run %s: a consumed signal could not be removed: %s", self.workflow_id, error)

    async def tidy(self) -> None:
        """Remove messages that earlier attempts consumed but did not remove."""
        if self.store.has(Ability.SIGNALS):
            try:
                await self._read_pending(is_fresh=True)
            except FlowckptError as error:  # the run is done, and does not need its messages any more
                _log.warning("run %s: its consumed signals could not be removed: %s", self.workflow_id, error)

    async def _read_pending(self, *, is_fresh: bool) -> list[Signal]:
        now_ns = self.clock.elapsed_ns()
        if is_fresh or self._read_ns is None or now_ns - self._read_ns > _FRESH_NS:
            store = self.store
            if not store.has(Ability.SIGNALS):
                raise SettingError(
                    f"{store!r} cannot deliver signals, so nothing could ever end this wait",
                    setting="checkpoint_store",
                    remedy="Use another store, or give it the methods send_signal, signals and remove_signals.",
                )
            signals = await store.signals(self.workflow_id)
            self._found, self._read_ns = sent_to(self.metadata, signals), now_ns
            if len(signals) > len(self._found) and not self._has_warned:
                message = "run %s: messages of an earlier run with the same id are ignored: %s"
                strange = [each.signal_id for each in signals if each not in self._found]
                _log.warning(message, self.workflow_id, ", ".join(map(repr, strange[:_SHOWN])))
                self._has_warned = True
        if self._taken is None:
            self._taken = {result.signal for result in self.history.notable() if result.signal}
            self._taken.update(self.waits.taken)
            left = [signal.signal_id for signal in self._found if signal.signal_id in self._taken]
            if left:  # by an attempt that crashed before it removed them
                await self.remove(left)
        return [signal for signal in self._found if signal.signal_id not in self._taken]


_MOST_DOUBLINGS = 6
_MOMENT = 0.05
"""How many seconds a step waits for the store's answer."""
_ROLLS_BACK = "rolls_back"
_ATTEMPT = "attempt"
TAGS = "tags"
"""Metadata key: the tags of the run."""


def make_cancel_request(signal_id: str, sent_at: datetime, newest: CheckpointData, *, rolls_back: bool) -> Signal:
    """Return a request to cancel a run.

    Args:
        signal_id: the id of the request.
        sent_at: when the request is made.
        newest: the newest checkpoint of the run. The request does not count for an attempt after the run was cancelled.
        rolls_back: whether to undo the run's effects.
    """
    data = {_ROLLS_BACK: rolls_back, _ATTEMPT: newest.attempt}
    return Signal(signal_id, "cancel", sent_at, data, kind=WaitKind.CANCEL, birth=birth_of(newest.metadata))


def change_tags(metadata: Mapping[str, Any], change: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the metadata of a run with changed tags.

    Args:
        metadata: the metadata of its newest checkpoint.
        change: the new value of each tag; None removes the tag.
    """
    tags = {**metadata.get(TAGS, {}), **change}
    return {**metadata, TAGS: {name: value for name, value in tags.items() if value is not None}}


async def remove_cancel_requests(store: StoreBase, workflow_id: str) -> None:
    """Remove the requests to a cancelled run."""
    cancels = [each.signal_id for each in await store.signals(workflow_id) if each.kind is WaitKind.CANCEL]
    if cancels:
        await store.remove_signals(workflow_id, cancels)


@attrs.define(eq=False, repr=False)
class Requests:
    """The requests to a run, as one attempt sees them.

    Attributes:
        store: the store of the run.
        workflow_id: the run.
        birth: distinguishes the run from other runs with the same id.
        interrupts: stops the run.
        ended: the attempt that was last cancelled, and when; requests to cancel from before that do not count.
    """

    store: StoreBase
    workflow_id: str
    birth: str
    interrupts: Interrupts
    ended: Mapping[str, Any] | None = None
    _looking: asyncio.Future[Sequence[Signal]] | None = attrs.field(init=False, default=None)
    _failures: int = attrs.field(init=False, default=0)
    _is_reported: bool = attrs.field(init=False, default=False)

    @property
    def slowdown(self) -> int:
        """The factor for the interval until the next look; it grows while the store is unavailable."""
        return int(2 ** min(self._failures, _MOST_DOUBLINGS))

    async def forget(self) -> None:
        """Remove the requests to cancel this run; one that stays is older than the run's end and has no effect."""
        try:
            await remove_cancel_requests(self.store, self.workflow_id)
        except FlowckptError as error:
            _log.warning("run %s: the request to cancel it could not be removed: %s", self.workflow_id, error)

    async def poll(self, patience: float = 0.0) -> Sequence[Signal]:
        """Look for requests: stop the run for a cancel, and return the requests for checkpoints and tags.

        If the store does not answer at once, or within `patience` seconds, its answer is read at the next poll. A
        failure to read is reported once, until a read succeeds again.
        """
        if self.interrupts.pending_signal:
            return ()
        if self._looking is None:
            self._looking = await start_within(self.store.signals(self.workflow_id), patience=max(patience, _MOMENT))
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
                _log.warning("run %s: requests to the run could not be read: %s", self.workflow_id, error)
            self._is_reported = True
            return ()
        self._failures, self._is_reported = 0, False
        meant = [each for each in signals if each.birth == self.birth]
        for each in meant:
            if each.kind is WaitKind.CANCEL and self._is_newer_than_end(each):
                self.interrupts.request_cancel(rolls_back=bool(each.data.get(_ROLLS_BACK, True)))
                return ()
        return [each for each in meant if each.kind in (WaitKind.CHECKPOINT, WaitKind.TAG)]

    def _is_newer_than_end(self, request: Signal) -> bool:
        """Return whether a request to cancel is newer than the run's last end, even after a rollback."""
        if self.ended is None:
            return True
        attempt, ended = request.data.get(_ATTEMPT, 0), self.ended["attempt"]
        if attempt != ended:
            return bool(attempt > ended)
        return request.sent_at > datetime.fromisoformat(self.ended["at"])  # the next attempt may have saved nothing yet

    async def remove(self, completed: Sequence[Signal]) -> None:
        """Remove requests that the run has carried out; carrying one out again changes nothing."""
        try:
            await self.store.remove_signals(self.workflow_id, [each.signal_id for each in completed])
        except FlowckptError as error:
            _log.warning("run %s: a completed request could not be removed: %s", self.workflow_id, error)
