"""The messages and requests that others leave in the store for the owner of a run.

Messages answer waits; the attempt that owns the run sees those that it has not taken. Requests ask the owner of a live run
to cancel it, to save a checkpoint, or to change the tags. The owner looks for them between steps, at most once in a while;
a run that ends sooner never looks.
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
from flowckpt.core.system.blocking import begin
from flowckpt.core.system.clock import Clock
from flowckpt.engine.values.waits import Waits
from flowckpt.errors import CheckpointStorageError, FlowckptError, SettingError
from flowckpt.execution.interrupts import Interrupts
from flowckpt.stores.base import Ability, StoreBase

_FRESH_NS = 50_000_000
"""For so long the last reading counts: a thousand waits at the same time need one look."""

_SHOWN = 8

_log = logging.getLogger("flowckpt")


class Inbox:
    """The messages for one run.

    Args:
        store: where they lie.
        workflow_id: the run.
        metadata: of the run; its messages repeat the birth in it.
        clock: the time.
        waits: the waits of the run, which know what was taken by results that no longer count.
        history: the results at the beginning of the attempt, which name what they took.
    """

    def __init__(
        self,
        store: StoreBase,
        workflow_id: str,
        metadata: Mapping[str, Any],
        clock: Clock,
        waits: Waits,
        history: History,
    ) -> None:
        self._store = store
        self._workflow_id = workflow_id
        self._metadata = metadata
        self._clock = clock
        self._waits = waits
        self._history = history
        self._taken: set[str] | None = None
        self._found: Sequence[Signal] = ()
        self._read_ns: int | None = None
        self._has_warned = False

    async def first_for(self, wait: Wait, *, is_fresh: bool = False) -> Signal | None:
        """Return the message that ends a wait: the first that was sent before its deadline; None where there is none.

        Args:
            wait: the wait.
            is_fresh: whether to look into the store, however short ago that was done.
        """
        if wait.is_timed:
            return None
        for signal in await self._pending(is_fresh=is_fresh):
            if signal.ends(wait) and (wait.due_at is None or signal.sent_at < wait.due_at):
                return signal
        return None

    async def can_end_any(self, waits: Iterable[Wait], *, is_fresh: bool = False) -> bool:
        """Tell whether one of some waits can end now.

        Args:
            waits: the waits.
            is_fresh: as for `first_for`.
        """
        now = self._clock.now()
        for wait in waits:
            if wait.is_due(now) or await self.first_for(wait, is_fresh=is_fresh) is not None:
                return True
            is_fresh = is_fresh and wait.is_timed  # one look will do
        return False

    def take(self, signal: Signal) -> None:
        """Take a message, so that no other wait gets it.

        Args:
            signal: the message.
        """
        assert self._taken is not None
        self._taken.add(signal.signal_id)

    def answers_to(self, wait: Wait) -> list[str]:
        """Return the ids of all messages that were read and would have ended a wait, besides the one that did.

        Args:
            wait: the wait.
        """
        return [signal.signal_id for signal in self._found if signal.ends(wait)]

    async def remove(self, signal_ids: Iterable[str]) -> None:
        """Remove messages that are recorded as taken; those that stay are known to be taken.

        Args:
            signal_ids: which.
        """
        try:
            await self._store.remove_signals(self._workflow_id, tuple(signal_ids))
        except CheckpointStorageError as error:
            _log.warning("run %s: a signal that was taken could not be removed: %s", self._workflow_id, error)

    async def tidy(self) -> None:
        """Remove what earlier attempts have taken, and could not remove any more."""
        if any(result.signal for result in self._history.notable()) and self._store.has(Ability.SIGNALS):
            try:
                await self._pending(is_fresh=True)
            except FlowckptError as error:  # the run is done; what cannot be read now is nothing to it
                _log.warning("run %s: its signals could not be tidied up: %s", self._workflow_id, error)

    async def _pending(self, *, is_fresh: bool) -> list[Signal]:
        now_ns = self._clock.elapsed_ns()
        if is_fresh or self._read_ns is None or now_ns - self._read_ns > _FRESH_NS:
            store = self._store
            if not store.has(Ability.SIGNALS):
                raise SettingError(
                    f"{store!r} cannot deliver signals, so nothing could ever end this wait",
                    setting="checkpoint_store",
                    remedy="Use another store, or give it the methods send_signal, signals and remove_signals.",
                )
            found = await store.signals(self._workflow_id)
            self._found, self._read_ns = sent_to(self._metadata, found), now_ns
            if len(found) > len(self._found) and not self._has_warned:
                said = "run %s: messages of an earlier run with the same id are ignored: %s"
                strange = [each.signal_id for each in found if each not in self._found]
                _log.warning(said, self._workflow_id, ", ".join(map(repr, strange[:_SHOWN])))
                self._has_warned = True
        if self._taken is None:
            self._taken = {result.signal for result in self._history.notable() if result.signal}
            self._taken.update(self._waits.taken)
            left = [signal.signal_id for signal in self._found if signal.signal_id in self._taken]
            if left:  # by an attempt that died between the two
                await self.remove(left)
        return [signal for signal in self._found if signal.signal_id not in self._taken]


_MOST_DOUBLINGS = 6
_MOMENT = 0.05
"""For how many seconds a step waits for the answer of a look."""
_ROLLS_BACK = "rolls_back"
_ATTEMPT = "attempt"
TAGS = "tags"
"""In the metadata: the tags of the run."""


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
