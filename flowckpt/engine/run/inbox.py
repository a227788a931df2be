"""The messages for a run, as the attempt that owns it sees them: those that it has not taken."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowckpt.core.records import History
from flowckpt.core.records.wait import Wait, sent_to
from flowckpt.core.system.clock import Clock
from flowckpt.engine.values.waits import Waits
from flowckpt.errors import CheckpointStorageError, FlowckptError, SettingError
from flowckpt.stores.base import Ability, StoreBase

if TYPE_CHECKING:
    from flowckpt.core.records.wait import Signal


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
        if any(result.signal for result in self._history.results) and self._store.has(Ability.SIGNALS):
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
            self._taken = {result.signal for result in self._history.results if result.signal}
            self._taken.update(self._waits.taken)
            left = [signal.signal_id for signal in self._found if signal.signal_id in self._taken]
            if left:  # by an attempt that died between the two
                await self.remove(left)
        return [signal for signal in self._found if signal.signal_id not in self._taken]
