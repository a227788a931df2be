"""Finding runs to resume: the store returns the candidates, and a rule selects among them.

A run that could not be resumed is retried with exponential backoff, shared by all processes: the pause is stored with the
run, as a message that no step takes. It is written while the run is claimed, before the process starts, so that other
recoverers that see the run at the same time find it.

Clocks of different machines may differ by an hour. So a recoverer that was watching before a pause was written measures
the pause by its own monotonic clock, from when it first saw it. Only a pause older than the recoverer is measured by its
recorded time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from enum import StrEnum
from typing import Any

import attrs

from flowckpt.core.records import Reason, Status
from flowckpt.core.records.listing import MANAGED, RunInfo, is_not_started
from flowckpt.core.records.wait import STOPPED, TAKEN, Signal, Wait, WaitKind, birth_of, sent_to
from flowckpt.core.system.blocking import finish_despite_cancel
from flowckpt.core.system.clock import Clock
from flowckpt.core.system.ids import new_message_id
from flowckpt.errors import CheckpointStorageError, FlowckptError, RunLockedError
from flowckpt.stores.base import Ability, StoreBase
from flowckpt.stores.queries import runs_of_status

# The rule that selects runs to resume now, without I/O.


RECOVERED_STATUSES = frozenset({Status.CRASHED, Status.SUSPENDED})
"""The statuses of runs that may be due. A failed or cancelled run waits for a person."""


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
    """A run to resume.

    Attributes:
        info: the run as listed.
        why: the reason.
        damage: the unreadable part; empty if there is none. A damaged run is not resumed, only reported.
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
        waits: how many of its steps are waiting.
        due_at: when the first of them ends by itself; None if none does.
        is_signalled: whether a message for one of these waits has arrived.
    """
    if info.owner is not None:  # it waits, and its process stays
        return None
    if info.is_held:  # its record may come from anyone
        return None
    if info.workflow_name == MANAGED:  # a task of a checkpoint manager: only its own program can continue it
        return None
    if info.status is Status.CRASHED:
        return Why.CRASHED
    if info.status is not Status.SUSPENDED:
        return None
    if not waits or STOPPED in info.metadata:
        return Why.STARTED if is_not_started(info.metadata, info.attempt) else Why.STOPPED
    if due_at is not None and due_at <= now:
        return Why.DUE
    return Why.SIGNALLED if is_signalled else None


async def find_due_runs(store: StoreBase, clock: Clock, *, workflows: Collection[str] = ()) -> list[DueRun]:
    """Return the runs to resume now, least recently updated first.

    Args:
        store: the store of the runs.
        clock: the time.
        workflows: only runs of these workflows, by name; all by default.

    Raises:
        SettingError: the store cannot list its runs.
        CheckpointStorageError: the medium failed.
    """
    runs = []
    for info in await runs_of_status(store, RECOVERED_STATUSES):
        if workflows and info.workflow_name not in workflows:
            continue
        due = await _find_due(store, info, clock.now())
        if due is not None:
            runs.append(due)
    return sorted(runs, key=lambda due: due.info.updated_at)


async def find_due_run(store: StoreBase, clock: Clock, run: DueRun) -> DueRun | None:
    """Return the current state of a run if it is still due and not owned; else None."""
    info = await store.describe_run(run.workflow_id)
    if info is None or info.attempt != run.info.attempt or info.status not in RECOVERED_STATUSES:
        return None
    return await _find_due(store, info, clock.now())


async def _find_due(store: StoreBase, info: RunInfo, now: datetime) -> DueRun | None:
    """Return why a run is due, or its damage; other runs are unaffected."""
    try:
        waits = info.waits
        is_signalled = await _is_signalled(store, info, waits)
        why = why_due(info, now, waits=len(waits), due_at=info.due_at, is_signalled=is_signalled)
        if why is not None and info.status is Status.SUSPENDED:
            latest = await store.load_latest(info.workflow_id)
            if latest is not None and latest.reason is Reason.MANUAL:  # rolled back or forked: a person resumes it
                return None
    except CheckpointStorageError:
        raise
    except FlowckptError as error:
        return DueRun(info, Why.DAMAGED, error.message)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return DueRun(info, Why.DAMAGED, f"its record has invalid content: {error!r:.200}")
    return None if why is None else DueRun(info, why)


async def _is_signalled(store: StoreBase, info: RunInfo, waits: Sequence[Wait]) -> bool:
    """Return whether a message for a pending wait has arrived."""
    if all(wait.is_timed for wait in waits):
        return False
    taken = info.metadata.get(TAKEN, ())
    messages = sent_to(info.metadata, await store.signals(info.workflow_id))
    pending = [signal for signal in messages if signal.signal_id not in taken]
    return any(signal.ends(wait) for signal in pending for wait in waits)


# A claim that reserves a run while the process that will resume it starts, so that only one recoverer starts one.


@attrs.define
class ClaimedRun:
    """A run that this process owns until it releases it; nothing is ever saved under this claim.

    Attributes:
        store: the store of the run.
        workflow_id: the run.
    """

    store: StoreBase
    workflow_id: str
    _is_held: bool = True

    async def release(self) -> None:
        """Release the run, at most once. The claim leaves no trace."""
        if self._is_held:
            await finish_despite_cancel(self.store.release(self.workflow_id))
        self._is_held = False


@asynccontextmanager
async def claim_run(store: StoreBase, run: DueRun) -> AsyncGenerator[ClaimedRun | None, None]:
    """Claim a run for the block, or until it is released; None if another process owns it or has resumed it.

    Args:
        store: the store of the run; a store without ownership reserves nothing and must have only one user.
        run: the run as listed.

    Raises:
        CheckpointCorruptedError: its record is damaged.
        CheckpointStorageError: the medium failed.
    """
    try:
        lease = await finish_despite_cancel(store.acquire(run.workflow_id))
    except RunLockedError:
        yield None
        return
    claim = ClaimedRun(store, run.workflow_id)
    try:
        is_as_it_stood = lease.latest is not None and lease.latest.attempt == run.info.attempt
        yield claim if is_as_it_stood else None
    finally:
        await claim.release()


# A note among the messages of a run whose resume stopped to ask a person: the run is listed as stale, and reported once.


STALE_STATUSES = RECOVERED_STATUSES | {Status.FAILED}
"""The statuses of runs that may need a person: neither completed nor cancelled."""


async def note_stale(
    store: StoreBase, clock: Clock, info: RunInfo, exit_code: int, detail: str, *, noted_by: str = ""
) -> bool:
    """Note that a run needs a person; return whether the note is new: later recoverers do not report the run again.

    Args:
        store: the store of the run.
        clock: the time.
        info: the run as listed.
        exit_code: the exit code of its resume.
        detail: the question of the resume.
        noted_by: the command that stopped, if it was not a recoverer, which then still reports the run once.
    """
    data, birth = {"attempt": info.attempt, "detail": detail}, birth_of(info.metadata)
    signal_id = "-".join(filter(None, ("stale", str(info.attempt), str(exit_code), birth[:8], noted_by)))
    note = Signal(signal_id, "stale", clock.now(), data, kind=WaitKind.STALE, birth=birth)
    try:
        return await store.send_signal(info.workflow_id, note)
    except FlowckptError:  # better reported twice than not at all
        return True


async def read_stale_note(store: StoreBase, info: RunInfo) -> str:
    """Return the question that a resume asked since the newest attempt; empty if there is none."""
    may_ask = info.status in STALE_STATUSES
    return await read_stale_note_at(store, info.workflow_id, info.metadata, info.attempt) if may_ask else ""


async def read_stale_note_at(store: StoreBase, workflow_id: str, metadata: Mapping[str, Any], attempt: int) -> str:
    """Return the question that a resume asked since an attempt, even while the run has an owner."""
    if not store.has(Ability.SIGNALS):
        return ""
    messages = sent_to(metadata, await store.signals(workflow_id))
    notes = [each for each in messages if each.kind is WaitKind.STALE]
    return next((str(each.data["detail"]) for each in reversed(notes) if each.data["attempt"] == attempt), "")


async def forget_stale(store: StoreBase, workflow_id: str) -> None:
    """Remove the notes of a run whose resume no longer stops but left no new attempt."""
    await _remove_notes(store, workflow_id, WaitKind.STALE)


async def _remove_notes(store: StoreBase, workflow_id: str, kind: WaitKind) -> None:
    if store.has(Ability.SIGNALS):
        notes = [each.signal_id for each in await store.signals(workflow_id) if each.kind is kind]
        if notes:
            await store.remove_signals(workflow_id, notes)


# The outcome of a recovery.


class Outcome(StrEnum):
    """The outcome of trying to resume a due run."""

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
        """Whether the run needs attention."""
        return self in (Outcome.FAILED, Outcome.LEFT, Outcome.DIED)


@attrs.frozen
class Recovered:
    """A run that a recoverer tried to resume.

    Attributes:
        workflow_id: the run.
        workflow_name: its workflow.
        why: why it was tried.
        outcome: the outcome.
        attempt: its newest attempt afterwards.
        detail: why it was left, failed or died, for people; may be empty.
        exit_code: the exit code of its process; None if none was started; negative for the signal that killed it.
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
        """Whether the run needs attention and was not reported before."""
        return self.outcome.is_trouble and not self.is_reported


FIRST_SECONDS = 30.0
MOST_SECONDS = 3600.0


@attrs.frozen
class Pause:
    """The pause after an unsuccessful try to resume a run.

    Attributes:
        state: the state of the run at the try.
        count: the number of consecutive tries without progress.
        seconds: the length of the pause, from the try.
        has_died: whether its process died, so that a change of the run does not end the pause.
        note: the id of the message that records the pause; empty if only this recoverer knows it.
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
        """Return the pause in a message; None if it is of another kind or invalid."""
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
        first_seconds: the length of the first pause; each further one is twice as long.
        most_seconds: the length of the longest one.
    """

    store: StoreBase
    clock: Clock
    first_seconds: float = FIRST_SECONDS
    most_seconds: float = MOST_SECONDS
    _own: dict[str, Pause] = attrs.field(init=False, factory=dict)
    _until: dict[tuple[str, str], float] = attrs.field(init=False, factory=dict)
    _has_looked: bool = attrs.field(init=False, default=False)

    async def may_try(self, run: DueRun) -> bool:
        """Return whether a run may be tried: for the first time, after its pause, or because it has changed.

        Raises:
            FlowckptError: the messages of the run cannot be read.
        """
        pause = self._own.get(run.workflow_id)
        # otherwise no process was started, because something is missing on this machine
        if pause is None or pause.note:
            pause, _ = await self._read_pause(run.info)
        if pause is None or self._now() >= self._until[run.workflow_id, pause.note]:
            return True
        return not pause.has_died and pause.state != _state(run)

    def forget_all_but(self, runs: Collection[str]) -> None:
        """Forget the runs that are no longer due, so that a watcher's memory does not grow."""
        self._has_looked = True
        for workflow_id in self._own.keys() - set(runs):
            del self._own[workflow_id]
        for key in [key for key in self._until if key[0] not in runs]:
            del self._until[key]

    async def begin(self, run: DueRun) -> None:
        """Record a try while the run is claimed: the run pauses until the outcome is known.

        Raises:
            FlowckptError: it cannot be recorded.
        """
        count, (_, older) = await self._next_count(run), await self._read_pause(run.info)
        await self._write(run, count, has_died=True, older=older)

    async def end(self, run: DueRun, *, has_died: bool) -> None:
        """Record that the run made no progress, or that its process died.

        The run is no longer claimed: if another recoverer has tried it since, that longer pause stays.

        Raises:
            FlowckptError: it cannot be recorded.
        """
        started = self._own.get(run.workflow_id)
        recorded, older = await self._read_pause(run.info)
        if started is not None and started.note:
            if recorded is not None and recorded.note != started.note:
                return
            older = [started.note]  # no later messages
        await self._write(run, 1 if started is None else started.count, has_died=has_died, older=older)

    def leave(self, run: DueRun) -> None:
        """Note that this recoverer cannot resume the run; others are unaffected."""
        before = self._own.get(run.workflow_id)
        is_again = before is not None and before.state == _state(run)
        self._keep(run.workflow_id, self._pause(run, before.count + 1 if before is not None and is_again else 1))

    async def clear(self, workflow_id: str) -> None:
        """Remove the pause of a run that made progress.

        Raises:
            FlowckptError: its messages cannot be read or removed.
        """
        self._own.pop(workflow_id, None)
        await _remove_notes(self.store, workflow_id, WaitKind.RECOVERY)

    async def _next_count(self, run: DueRun) -> int:
        before = self._own.get(run.workflow_id)
        if before is None or before.note:
            before, _ = await self._read_pause(run.info)
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

    async def _read_pause(self, info: RunInfo) -> tuple[Pause | None, list[str]]:
        """Return the longest recorded pause of a run, and the ids of all messages that record one."""
        workflow_id = info.workflow_id
        if not self.store.has(Ability.SIGNALS):
            return self._own.get(workflow_id), []
        messages = {each.signal_id: each for each in sent_to(info.metadata, await self.store.signals(workflow_id))}
        pauses = [pause for each in messages.values() if (pause := Pause.of(each)) is not None]
        if not pauses:
            return None, []
        pause = max(pauses, key=lambda each: (each.count, messages[each.note].sent_at))
        if (workflow_id, pause.note) not in self._until:
            seconds = pause.seconds
            if not self._has_looked:
                gone = (self.clock.now() - messages[pause.note].sent_at).total_seconds()
                seconds = min(seconds, max(0.0, seconds - gone))
            self._until[workflow_id, pause.note] = self._now() + seconds
        return pause, [each.note for each in pauses]

    def _now(self) -> float:
        return self.clock.elapsed_ns() / 1e9


def _state(run: DueRun) -> tuple[Any, ...]:
    info = run.info
    return info.status.value, info.attempt, info.steps, info.updated_at.isoformat(), run.why.value
