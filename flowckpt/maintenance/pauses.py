"""When a run is tried again that could not be resumed: not at once, and less and less often, for all processes together.

The pause is kept with the run, as a message that no step takes, so all recoverers share it. It is written while the run
is kept, before the process starts: of many recoverers that see the run at the same time, the others find it.

Clocks of different machines may be an hour apart. So a recoverer that has watched since before a pause was written
measures the pause from when it saw it first, with a clock of its own that only counts up. Only a pause that was there
when the recoverer started is measured by the time at which it was written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.records.wait import Signal, WaitKind, birth_of, sent_to
from flowckpt.core.system.clock import Clock
from flowckpt.core.system.ids import new_message_id
from flowckpt.stores.base import Ability, StoreBase

if TYPE_CHECKING:
    from flowckpt.core.records.listing import RunInfo
    from flowckpt.maintenance.recovery import DueRun

FIRST_SECONDS = 30.0
MOST_SECONDS = 3600.0


@attrs.frozen
class Pause:
    """A run that was tried, and is left alone for a while.

    Attributes:
        state: the run as it was tried.
        count: how often it was tried without getting further.
        seconds: how long it is left alone, from when it was tried.
        has_died: whether its process died, so that a change of the run does not end the pause.
        note: the id of the message that says so; empty if only this recoverer knows.
    """

    state: tuple[Any, ...]
    count: int
    seconds: float
    has_died: bool = False
    note: str = ""

    def to_data(self) -> dict[str, Any]:
        """Return the pause as plain JSON."""
        return {"state": [*self.state], "count": self.count, "seconds": self.seconds, "has_died": self.has_died}

    @classmethod
    def of(cls, message: Signal) -> Pause | None:
        """Return the pause of a message; None if it is of another kind, or says what cannot be."""
        data = message.data
        if message.kind is not WaitKind.RECOVERY or not isinstance(data, Mapping):
            return None
        count, seconds, state = data.get("count"), data.get("seconds"), data.get("state")
        if not (type(count) is int and isinstance(seconds, int | float) and type(state) is list and count > 0):
            return None
        bounded = min(max(float(seconds), 0.0), MOST_SECONDS)
        return cls(tuple(state), count, bounded, data.get("has_died") is True, message.signal_id)


@attrs.define
class Pauses:
    """The pauses of the runs of a store, as one recoverer sees them.

    Attributes:
        first_seconds: how long the first pause is; each one after it is twice as long.
        most_seconds: the longest one.
    """

    store: StoreBase
    clock: Clock
    first_seconds: float = FIRST_SECONDS
    most_seconds: float = MOST_SECONDS
    _own: dict[str, Pause] = attrs.field(init=False, factory=dict)
    _until: dict[tuple[str, str], float] = attrs.field(init=False, factory=dict)
    _has_looked: bool = attrs.field(init=False, default=False)

    async def may_try(self, run: DueRun) -> bool:
        """Return whether a run may be tried: for the first time, after its pause, or because it has moved.

        Raises:
            FlowckptError: the messages of the run cannot be read.
        """
        pause = self._own.get(run.workflow_id)
        if pause is None or pause.note:  # else no process was started: what is missing is missing here
            pause, _ = await self._recorded(run.info)
        if pause is None or self._now() >= self._until[run.workflow_id, pause.note]:
            return True
        return not pause.has_died and pause.state != _state(run)

    def looked(self, runs: Collection[str]) -> None:
        """Note that all runs were looked at; forget those that are no longer due, so that a watcher does not grow."""
        self._has_looked = True
        for workflow_id in self._own.keys() - set(runs):
            del self._own[workflow_id]
        for key in [key for key in self._until if key[0] not in runs]:
            del self._until[key]

    async def begin(self, run: DueRun) -> None:
        """Record, while the run is kept, that it is tried now: it pauses until it is known how that ends.

        Raises:
            FlowckptError: it cannot be recorded.
        """
        count, (_, older) = await self._next(run), await self._recorded(run.info)
        await self._write(run, count, has_died=True, older=older)

    async def end(self, run: DueRun, *, has_died: bool) -> None:
        """Record that the run is as it was, or that its process died.

        The run is no longer kept: where another recoverer has tried it since, its pause is the longer one, and stays.

        Raises:
            FlowckptError: it cannot be recorded.
        """
        begun = self._own.get(run.workflow_id)
        recorded, older = await self._recorded(run.info)
        if begun is not None and begun.note:
            if recorded is not None and recorded.note != begun.note:
                return
            older = [begun.note]  # nothing that comes meanwhile
        await self._write(run, 1 if begun is None else begun.count, has_died=has_died, older=older)

    def leave(self, run: DueRun) -> None:
        """Note that the run cannot be resumed by this recoverer; others are not held up."""
        before = self._own.get(run.workflow_id)
        is_again = before is not None and before.state == _state(run)
        self._keep(run.workflow_id, self._pause(run, before.count + 1 if before is not None and is_again else 1))

    async def clear(self, workflow_id: str) -> None:
        """Forget the pause of a run that got further.

        Raises:
            FlowckptError: its messages cannot be read or removed.
        """
        self._own.pop(workflow_id, None)
        if self.store.has(Ability.SIGNALS):
            messages = await self.store.signals(workflow_id)
            notes = [each.signal_id for each in messages if each.kind is WaitKind.RECOVERY]
            if notes:
                await self.store.remove_signals(workflow_id, notes)

    async def _next(self, run: DueRun) -> int:
        before = self._own.get(run.workflow_id)
        if before is None or before.note:
            before, _ = await self._recorded(run.info)
        is_again = before is not None and (before.has_died or before.state == _state(run))
        return before.count + 1 if before is not None and is_again else 1

    async def _write(self, run: DueRun, count: int, *, has_died: bool, older: list[str]) -> None:
        pause = self._pause(run, count, has_died=has_died)
        workflow_id = run.workflow_id
        if self.store.has(Ability.SIGNALS):
            note = new_message_id()
            data, birth = pause.to_data(), birth_of(run.info.metadata)
            message = Signal(note, "recover", self.clock.now(), data, kind=WaitKind.RECOVERY, birth=birth)
            await self.store.send_signal(workflow_id, message)
            if older:
                await self.store.remove_signals(workflow_id, older)
            pause = attrs.evolve(pause, note=note)
        self._keep(workflow_id, pause)

    def _pause(self, run: DueRun, count: int, *, has_died: bool = False) -> Pause:
        seconds = min(self.first_seconds * 2.0 ** min(count - 1, 60), self.most_seconds)
        return Pause(_state(run), count, seconds, has_died)

    def _keep(self, workflow_id: str, pause: Pause) -> None:
        self._own[workflow_id] = pause
        self._until[workflow_id, pause.note] = self._now() + pause.seconds

    async def _recorded(self, info: RunInfo) -> tuple[Pause | None, list[str]]:
        """Return the longest pause that is recorded of a run, and the ids of all messages that record one."""
        workflow_id = info.workflow_id
        if not self.store.has(Ability.SIGNALS):
            return self._own.get(workflow_id), []
        messages = {each.signal_id: each for each in sent_to(info.metadata, await self.store.signals(workflow_id))}
        found = [pause for each in messages.values() if (pause := Pause.of(each)) is not None]
        if not found:
            return None, []
        pause = max(found, key=lambda each: (each.count, messages[each.note].sent_at))
        if (workflow_id, pause.note) not in self._until:
            seconds = pause.seconds
            if not self._has_looked:
                gone = (self.clock.now() - messages[pause.note].sent_at).total_seconds()
                seconds = min(seconds, max(0.0, seconds - gone))
            self._until[workflow_id, pause.note] = self._now() + seconds
        return pause, [each.note for each in found]

    def _now(self) -> float:
        return self.clock.elapsed_ns() / 1e9


def _state(run: DueRun) -> tuple[Any, ...]:
    info = run.info
    return info.status.value, info.attempt, info.steps, info.updated_at.isoformat(), run.why.value
