"""Looking for runs that are to be resumed: the store is asked for those that may be, and the rule picks.

A run that could not be resumed is tried again: not at once, and less and less often, for all processes together. The
pause is kept with the run, as a message that no step takes, so all recoverers share it. It is written while the run
is kept, before the process starts: of many recoverers that see the run at the same time, the others find it.

Clocks of different machines may be an hour apart. So a recoverer that has watched since before a pause was written
measures the pause from when it saw it first, with a clock of its own that only counts up. Only a pause that was there
when the recoverer started is measured by the time at which it was written.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from enum import StrEnum
from typing import Any

import attrs

from flowckpt.core.records import Reason, Status
from flowckpt.core.records.listing import MANAGED, RunInfo, is_not_begun
from flowckpt.core.records.wait import STOPPED, TAKEN, Signal, Wait, WaitKind, birth_of, sent_to
from flowckpt.core.system.blocking import finish_despite_cancel
from flowckpt.core.system.clock import Clock
from flowckpt.core.system.ids import new_message_id
from flowckpt.errors import CheckpointStorageError, FlowckptError, RunLockedError
from flowckpt.stores.base import Ability, StoreBase
from flowckpt.stores.queries import runs_of_status

# Which runs are to be resumed now: a rule over how they stand, without I/O.


RECOVERED_STATUSES = frozenset({Status.CRASHED, Status.SUSPENDED})
"""How a run stands that may be due. One that failed or was cancelled waits for a person."""


class Why(StrEnum):
    """Why a run is to be resumed."""

    CRASHED = "crashed"
    STARTED = "started"
    STOPPED = "stopped"
    DUE = "due"
    SIGNALLED = "signalled"
    DAMAGED = "damaged"

    @property
    def said(self) -> str:
        """The reason, for people."""
        return _SAID[self]


_SAID = {
    Why.CRASHED: "its process is gone",
    Why.STARTED: "another run started it",
    Why.STOPPED: "it was stopped, and can continue",
    Why.DUE: "its time has come",
    Why.SIGNALLED: "what it waits for was sent",
    Why.DAMAGED: "whether it is due cannot be read",
}


@attrs.frozen
class DueRun:
    """A run that is to be resumed.

    Attributes:
        info: the run as it stood when it was looked at.
        why: why.
        damage: what cannot be read of it; empty if all can. It is left as it is, and told.
    """

    info: RunInfo
    why: Why
    damage: str = ""

    @property
    def workflow_id(self) -> str:
        """The run."""
        return self.info.workflow_id


def why_due(info: RunInfo, now: datetime, *, waits: int, due_at: datetime | None, is_signalled: bool) -> Why | None:
    """Return why a run is to be resumed now, or None if it is not.

    Args:
        info: the run.
        now: the time, aware.
        waits: how many of its steps wait.
        due_at: when the first of them ends by itself; None if none does.
        is_signalled: whether something lies there that one of them waits for.
    """
    if info.owner is not None:  # it waits, and its process stays
        return None
    if info.is_held:  # anybody may have written its record
        return None
    if info.workflow_name == MANAGED:  # a task of a checkpoint manager: only its own loop can continue with it
        return None
    if info.status is Status.CRASHED:
        return Why.CRASHED
    if info.status is not Status.SUSPENDED:
        return None
    if not waits or STOPPED in info.metadata:
        return Why.STARTED if is_not_begun(info.metadata, info.attempt) else Why.STOPPED
    if due_at is not None and due_at <= now:
        return Why.DUE
    return Why.SIGNALLED if is_signalled else None


async def due_runs(store: StoreBase, clock: Clock, *, workflows: Collection[str] = ()) -> list[DueRun]:
    """Return the runs that are to be resumed now, the one that was updated first of all first.

    Args:
        store: where they lie.
        clock: the time.
        workflows: only runs of these workflows, by name; of any where not given.

    Raises:
        SettingError: the store cannot list its runs.
        CheckpointStorageError: the medium failed.
    """
    found = []
    for info in await runs_of_status(store, RECOVERED_STATUSES):
        if workflows and info.workflow_name not in workflows:
            continue
        due = await _looked_at(store, info, clock.now())
        if due is not None:
            found.append(due)
    return sorted(found, key=lambda due: due.info.updated_at)


async def look_again(store: StoreBase, clock: Clock, run: DueRun) -> DueRun | None:
    """Return a run as it is now if it is still due and was not taken meanwhile; else None."""
    info = await store.describe_run(run.workflow_id)
    if info is None or info.attempt != run.info.attempt or info.status not in RECOVERED_STATUSES:
        return None
    return await _looked_at(store, info, clock.now())


async def _looked_at(store: StoreBase, info: RunInfo, now: datetime) -> DueRun | None:
    """Return why one run is due, or its damage, which does not stop the look at the other runs."""
    try:
        waits = info.waits
        is_signalled = await _is_signalled(store, info, waits)
        why = why_due(info, now, waits=len(waits), due_at=info.due_at, is_signalled=is_signalled)
        if why is not None and info.status is Status.SUSPENDED:
            latest = await store.load_latest(info.workflow_id)
            if latest is not None and latest.reason is Reason.MANUAL:  # rolled back or forked: the person resumes it
                return None
    except CheckpointStorageError:
        raise
    except FlowckptError as error:
        return DueRun(info, Why.DAMAGED, error.message)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return DueRun(info, Why.DAMAGED, f"its record says what cannot be: {error!r:.200}")
    return None if why is None else DueRun(info, why)


async def _is_signalled(store: StoreBase, info: RunInfo, waits: Sequence[Wait]) -> bool:
    """Return whether something lies there that a wait is for."""
    if all(wait.is_timed for wait in waits):
        return False
    taken = info.metadata.get(TAKEN, ())
    messages = sent_to(info.metadata, await store.signals(info.workflow_id))
    found = [signal for signal in messages if signal.signal_id not in taken]
    return any(signal.ends(wait) for signal in found for wait in waits)


# A run kept for the process that is to resume it, while that starts: of many recoverers, one starts a process for it.


@attrs.define
class KeptRun:
    """A run that this process owns until it gives it up; nothing is ever saved under such a claim.

    Attributes:
        store: where it lies.
        workflow_id: the run.
    """

    store: StoreBase
    workflow_id: str
    _is_kept: bool = True

    async def give_up(self) -> None:
        """Give the run up, once: who asks for it next has it. The claim leaves no trace."""
        if self._is_kept:
            await finish_despite_cancel(self.store.release(self.workflow_id))
        self._is_kept = False


@asynccontextmanager
async def kept(store: StoreBase, run: DueRun) -> AsyncGenerator[KeptRun | None, None]:
    """Keep a run for the block, or until it is given up; None if another process has it, or has resumed it.

    Args:
        store: where it lies; one that knows no owners keeps nothing, and is trusted to have one user.
        run: the run as it stood.

    Raises:
        CheckpointCorruptedError: its record is damaged.
        CheckpointStorageError: the medium failed.
    """
    try:
        lease = await finish_despite_cancel(store.acquire(run.workflow_id))
    except RunLockedError:
        yield None
        return
    keeping = KeptRun(store, run.workflow_id)
    try:
        is_as_it_stood = lease.latest is not None and lease.latest.attempt == run.info.attempt
        yield keeping if is_as_it_stood else None
    finally:
        await keeping.give_up()


# A run whose resume stopped to ask a person: a note in its mailbox, so that the run is listed so, and reported once.


STALE_STATUSES = RECOVERED_STATUSES | {Status.FAILED}
"""How a run stands that may need a person: it has not completed, and was not cancelled."""


async def note_stale(
    store: StoreBase, clock: Clock, info: RunInfo, exit_code: int, detail: str, *, noted_by: str = ""
) -> bool:
    """Note that a run needs a person; return whether that is news: later recoverers do not report it again.

    Args:
        store: where it lies.
        clock: the time.
        info: the run as it stands.
        exit_code: how its resume stopped.
        detail: what the resume asked.
        noted_by: what stopped, if it is not a recoverer, so that a recoverer still reports it once.
    """
    data, birth = {"attempt": info.attempt, "detail": detail}, birth_of(info.metadata)
    signal_id = "-".join(filter(None, ("stale", str(info.attempt), str(exit_code), birth[:8], noted_by)))
    note = Signal(signal_id, "stale", clock.now(), data, kind=WaitKind.STALE, birth=birth)
    try:
        return await store.send_signal(info.workflow_id, note)
    except FlowckptError:  # reported twice is better than not at all
        return True


async def stale_note(store: StoreBase, info: RunInfo) -> str:
    """Return what a resume of a run asked a person since its newest attempt; empty if none did."""
    may_ask = info.status in STALE_STATUSES
    return await stale_note_at(store, info.workflow_id, info.metadata, info.attempt) if may_ask else ""


async def stale_note_at(store: StoreBase, workflow_id: str, metadata: Mapping[str, Any], attempt: int) -> str:
    """Return what a resume of a run asked a person since an attempt, also while the run has an owner."""
    if not store.has(Ability.SIGNALS):
        return ""
    messages = sent_to(metadata, await store.signals(workflow_id))
    notes = [each for each in messages if each.kind is WaitKind.STALE]
    return next((str(each.data["detail"]) for each in reversed(notes) if each.data["attempt"] == attempt), "")


async def forget_stale(store: StoreBase, workflow_id: str) -> None:
    """Remove the notes of a run that no longer stops, although its resume left no new attempt."""
    await _remove_notes(store, workflow_id, WaitKind.STALE)


async def _remove_notes(store: StoreBase, workflow_id: str, kind: WaitKind) -> None:
    if store.has(Ability.SIGNALS):
        notes = [each.signal_id for each in await store.signals(workflow_id) if each.kind is kind]
        if notes:
            await store.remove_signals(workflow_id, notes)


# What became of a run that was to be recovered.


class Outcome(StrEnum):
    """The outcome of a run that was to be recovered."""

    COMPLETED = "completed"
    SUSPENDED = "suspended"
    CANCELLED = "cancelled"
    FAILED = "failed"
    STOPPED = "stopped"
    SKIPPED = "skipped"
    LEFT = "left"
    DIED = "died"

    @property
    def is_trouble(self) -> bool:
        """Whether somebody should look at the run."""
        return self in (Outcome.FAILED, Outcome.LEFT, Outcome.DIED)


@attrs.frozen
class Recovered:
    """A run that was tried.

    Attributes:
        workflow_id: the run.
        workflow_name: its workflow.
        why: why it was tried.
        outcome: what became of it.
        attempt: its newest attempt afterwards.
        detail: why it was left, failed or died, for people; may be empty.
        exit_code: how its process ended; None if none was started. A negative one is the signal that killed it.
        is_reported: whether it needs a person, and an earlier recoverer reported that.
    """

    workflow_id: str
    workflow_name: str
    why: Why
    outcome: Outcome
    attempt: int
    detail: str = ""
    exit_code: int | None = None
    is_reported: bool = False

    @property
    def is_trouble(self) -> bool:
        """Whether somebody should look at the run, and has not been asked to before."""
        return self.outcome.is_trouble and not self.is_reported


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
        await _remove_notes(self.store, workflow_id, WaitKind.RECOVERY)

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
