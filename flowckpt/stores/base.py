"""The store port: what the engine requires of a store.

A store speaks the domain: it saves and loads `CheckpointData`, and its interface has no paths, rows or bytes. It holds
no policy: its callers decide when to save, what to keep and whom to notify.

What every store promises:

- `save` returns after the checkpoint is durable, or raises. After a `CheckpointStorageError` with `is_outcome_unknown`,
 the checkpoint may or may not exist; only a new claim of the run finds out.
- `data.attempt` is the fencing number. A writer owns one attempt of a run; a save from an attempt that is not the
  newest, or that belongs to another writer, is refused with `FencedError`.
- `data.sequence` grows. A save at or below the last one is refused with `SaveConflictError`.
- The history in `data.step_results` is saved once: a store writes only results that it does not hold yet. If a new
 attempt continues from an earlier point, the results after that point stay in the store but no longer belong to the run.
- A value outside the closed set of types is refused with `EncodingError`, before anything is written.
- Missing, corrupt, foreign, locked and fenced are different errors.

`CheckpointStore` of `stores/adapted.py` is the minimal port: a store needs only its five methods. `StoreBase` adds
everything else that a store may do; each user of a store calls `adapt` once, on entry, and then simply calls methods.
The default of a method derives the answer from the five methods (slow, but correct), or does nothing where that is
correct, or raises `StoreAbilityError`. Callers that must know in advance ask `StoreBase.has`.
"""

# ruff: noqa: B027  # a default that does nothing is what an empty method of StoreBase is for

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from enum import Enum
from typing import TYPE_CHECKING, NoReturn

import attrs

from flowckpt import stores
from flowckpt.core import records
from flowckpt.core.system.attrs_base import FieldEquality, lazy_frozen
from flowckpt.core.system.numbers import pluralize
from flowckpt.errors import CheckpointStorageError, RunLockedError, StoreAbilityError

if TYPE_CHECKING:
    from datetime import datetime

    from flowckpt.core.records import CheckpointData, HistoryView, Reason
    from flowckpt.core.records.listing import CheckpointRef, Owner, RunFilter, RunInfo
    from flowckpt.core.records.statistics import StoreStatistics
    from flowckpt.core.records.wait import Signal
    from flowckpt.core.system.process import ProcessIdentity
    from flowckpt.errors import FencedError
    from flowckpt.stores.log.sealing.keys import KeyRing
    from flowckpt.stores.queries import Compacted, Repaired


@lazy_frozen(eq=False, repr=False)
class Lease(FieldEquality):
    """The claim of a run's owner.

    Attributes:
        attempt: the attempt that it may save under.
        latest: the newest checkpoint, read after the claim; None for a new run.
        last_sequence: the highest sequence that the run ever had.
        notices: remarks from reading, such as a dropped torn record.
        token: identifies this owner; pass it to `release`. Empty if the store cannot tell owners apart.
    """

    workflow_id: str
    attempt: int
    latest: CheckpointData | None
    last_sequence: int = 0
    notices: tuple[str, ...] = ()
    token: str = ""


@lazy_frozen(eq=False, repr=False)
class Finding(FieldEquality):
    """A finding of an integrity check.

    Attributes:
        workflow_id: the run, or an empty string for the store itself.
        severity: `ok`, `notice` (harmless, such as a torn last record), `corrupt`, `failed` (the medium could not be
            read now, which says nothing about the record), or `locked` (cannot be checked without a key or a permission).
        detail: what was found, and where.
    """

    workflow_id: str
    severity: str
    detail: str


def make_ok_finding(workflow_id: str, checkpoints: int, results: int, note: str = "") -> Finding:
    """Return the finding of a sound run.

    Args:
        workflow_id: the run.
        checkpoints: their number.
        results: their number.
        note: a remark at the end.
    """
    return Finding(workflow_id, "ok", f"{pluralize(checkpoints, 'checkpoint')}, {pluralize(results, 'result')}{note}")


def refuse_failed(findings: Iterable[Finding]) -> None:
    """Refuse to continue if some runs could not be read now.

    Raises:
        CheckpointStorageError: a finding is `failed`; the error has the message of the system.
    """
    for finding in findings:
        if finding.severity == "failed":
            raise CheckpointStorageError(finding.detail, workflow_id=finding.workflow_id, operation="read")


@lazy_frozen(eq=False, repr=False)
class RunSurvey(FieldEquality):
    """The runs of a store, and the unreadable ones.

    Attributes:
        runs: the runs that can be read, most recently started first.
        unreadable: the others: `corrupt`, `failed` (the medium could not be read), or `locked` (a key or a permission is missing).
    """

    runs: Sequence[RunInfo]
    unreadable: Sequence[Finding] = ()


def make_survey(runs: Iterable[object], unreadable: Sequence[Finding], wanted: RunFilter | None) -> RunSurvey:
    """Return the selected runs, most recently started first, and the unreadable ones.

    Args:
        runs: the runs; everything else in it is skipped.
        unreadable: findings about runs that cannot be read.
        wanted: the filter; all by default.
    """
    found = [each for each in runs if isinstance(each, records.RunInfo)]
    found.sort(key=lambda info: info.started_at, reverse=True)
    return RunSurvey(found if wanted is None else wanted.of(found), unreadable)


class Ability(Enum):
    """A group of methods beyond the five; the value names them. A store has the ability if it has all of them."""

    OWNERS = ("acquire", "release", "owner")
    LIST = ("list_runs",)
    FIND = ("find_runs",)
    DELETE = ("delete_checkpoint",)
    ATTEMPTS = ("attempts", "list_attempt", "load_attempt", "read_attempt")
    RECEIVE = ("receive_run",)
    SIGNALS = ("send_signal", "signals", "remove_signals")
    ANNOUNCE = ("announcements",)
    HINTS = ("note_started", "started_steps")
    SEEN = ("last_seen",)
    LIVE = ("note_live", "live_note")
    MAKE_SAVABLE = ("make_savable",)
    GENERATIONS = ("begin_generation", "claimed_by")
    WATCH = ("call_when_lost",)
    SHARE = ("share_values",)
    FIGURES = ("figures",)
    CHECK = ("check",)
    REPAIR = ("repair",)
    EVICT = ("evict_with_next_save", "delete_sequences")
    PINS = ("pin", "unpin", "pinned")
    COMPACT = ("compactable", "compact")
    PRUNE = ("page_runs", "stored_bytes", "clear_unchanged")
    TIDY = ("tidy",)
    INDEX = ("read_index", "write_index", "clear_index")


class StoreBase(ABC):
    """A store with all optional abilities.

    A subclass implements the five methods, and those others that it can do better than the defaults.

    Attributes:
        abilities: the abilities that the store implements itself.
        live_seconds: how many seconds at least are between two live notes of a run.
    """

    abilities: frozenset[Ability] = frozenset()
    live_seconds: float = 1.0

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.abilities = frozenset(
            ability
            for ability in Ability
            if all(getattr(cls, name) not in (None, getattr(StoreBase, name)) for name in ability.value)
        )

    def has(self, ability: Ability) -> bool:
        """Return whether the store implements the methods of an ability itself."""
        return ability in self.abilities

    def lacks(self, ability: Ability, purpose: str) -> NoReturn:
        """Raise the error for a missing ability.

        Args:
            ability: the missing ability.
            purpose: the requested operation, to follow "cannot".

        Raises:
            StoreAbilityError: always.
        """
        raise StoreAbilityError(repr(self), ability=str(ability), purpose=purpose)

    spec: str = ""
    """The description passed to `open_store`, without secrets; empty if the store was made in another way."""

    @property
    def kind(self) -> str:
        """The name of the store's class, for messages."""
        return type(self).__name__

    @property
    def keys(self) -> KeyRing | None:
        """The keys that the store proves its records with, or None."""
        return None

    # --- the five methods -----------------------------------------------------------------------------------------

    @abstractmethod
    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Make a checkpoint durable, atomically; see `CheckpointStore.save`."""

    @abstractmethod
    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Return the newest checkpoint of an id; see `CheckpointStore.load`."""

    @abstractmethod
    async def load_latest(self, workflow_id: str, *, attempt: int | None = None) -> CheckpointData | None:
        """Return the checkpoint with the highest sequence, or None.

        Args:
            workflow_id: the run.
            attempt: only those that this attempt saved.

        Raises:
            CheckpointCorruptedError: the record is damaged.
            SettingError: the attempt is not a whole number from 1.
        """

    @abstractmethod
    async def clear(self, workflow_id: str) -> None:
        """Remove a run completely; see `CheckpointStore.clear`."""

    @abstractmethod
    async def list_checkpoints(
        self,
        workflow_id: str,
        *,
        attempt: int | None = None,
        reason: Reason | str | None = None,
        verified: bool | None = None,
        limit: int | None = None,
    ) -> Sequence[CheckpointRef]:
        """Return the selected checkpoints, newest first.

        Args:
            workflow_id: the run.
            attempt: only those that this attempt saved.
            reason: only those taken for this reason.
            verified: only those whose evidence held (True) or did not (False).
            limit: at most this many.

        Raises:
            CheckpointCorruptedError: the record is damaged.
            SettingError: an argument is invalid.
        """

    # --- one owner at a time --------------------------------------------------------------------------------------

    async def acquire(self, workflow_id: str, *, take_over: bool = False) -> Lease:
        """Become the owner of a run: claim its next attempt, which fences all earlier ones, then read the run.

        A store without this ability claims nothing; each run must have one user.

        Args:
            workflow_id: the run; it need not exist.
            take_over: take it although its owner is alive.

        Raises:
            RunLockedError: another live process owns it.
            CheckpointCorruptedError: its record is damaged.
        """
        latest = await self.load_latest(workflow_id)
        if latest is None:
            return Lease(workflow_id, 1, None)
        return Lease(workflow_id, latest.attempt + 1, latest, latest.sequence)

    async def begin_generation(self, workflow_id: str, *, token: str = "") -> Lease:
        """Claim the next attempt of a run that this store owns, for a checkpoint that continues nothing.

        That checkpoint has the reason `continued` and an empty history. Once it is durable, nothing that was saved
        before it counts, and the store removes it.

        Args:
            workflow_id: the run.
            token: of the lease that owns the run; by default any lease of this store.

        Raises:
            FencedError: another owner has the run, or it was removed.
        """
        return attrs.evolve(await self.acquire(workflow_id, take_over=True), latest=None)

    async def claimed_by(self, workflow_id: str, attempt: int) -> ProcessIdentity | None:
        """Return the process that claimed an attempt, dead or alive; None if the store does not know it."""
        return None

    async def release(self, workflow_id: str, *, token: str = "") -> None:
        """Release a run; a claim without a save leaves no trace. No error if it is not owned.

        Args:
            workflow_id: the run.
            token: of the lease to end, so that a later owner through the same store object keeps the run; by default
                any lease of this store ends.
        """

    async def owner(self, workflow_id: str) -> Owner | None:
        """Return the live owner of the run, or None."""
        return None

    def call_when_lost(self, workflow_id: str, callback: Callable[[FencedError], None]) -> None:
        """Call a function when an owned run is lost, until the run is released.

        Args:
            workflow_id: a run that this store owns; otherwise nothing happens.
            callback: called from a thread of the store with the error that a save would raise, at each check. It must
             return at once. It only saves time: saves of a previous owner are refused anyway.
        """

    async def make_savable(self, workflow_id: str, history: HistoryView) -> Lease | None:
        """Make an owned run savable again without releasing it.

        If repeating the same save is harmless (a database, a bucket), the store repeats it and the attempt continues.
        If a failed write must never be repeated (files), the store starts the next attempt. The engine calls this
        before each save after a failed one, with `on_save_error="continue"` only, so it must not wait long.

        Args:
            workflow_id: the run.
            history: the results of the next save, none of which is written yet.

        Returns:
            The new attempt; None if the old one can be saved to, or a new one would not help.

        Raises:
            FencedError: another owner has the run, or it was removed.
            CheckpointStorageError: the medium still fails; the old attempt is unchanged.
        """
        return None

    # --- the runs -------------------------------------------------------------------------------------------------

    async def list_runs(self) -> Sequence[RunInfo]:
        """Return the runs, most recently started first, without damaged ones, which `check` reports.

        Raises:
            StoreAbilityError: the store cannot.
        """
        self.lacks(Ability.LIST, "list its runs")

    async def describe_run(self, workflow_id: str) -> RunInfo | None:
        """Return one run as listed, if possible without loading it; None if it does not exist."""
        if self.has(Ability.LIST):
            return next((info for info in await self.list_runs() if info.workflow_id == workflow_id), None)
        latest = await self.load_latest(workflow_id)
        if latest is None:
            return None
        references = await self.list_checkpoints(workflow_id)
        oldest = references[-1] if references else latest
        started_at = records.generation.start_of_run(latest.metadata) or oldest.saved_at
        info = records.RunInfo.of(workflow_id, latest, started_at)
        return info.with_owner(await self.owner(workflow_id)) if self.has(Ability.OWNERS) else info

    async def find_runs(self, wanted: RunFilter) -> Sequence[RunInfo]:
        """Return the selected runs, most recently started first; a store with an index reads no others.

        Args:
            wanted: the filter.

        Raises:
            CheckpointStorageError: the medium failed.
            StoreAbilityError: the store cannot list its runs.
        """
        return wanted.of(await self.list_runs())

    async def survey_runs(self, wanted: RunFilter | None = None) -> RunSurvey:
        """Return the runs, and the unreadable ones.

        Args:
            wanted: the filter; all by default. A store with an index reports only unreadable runs that it comes across.

        Raises:
            CheckpointStorageError: the medium failed.
            StoreAbilityError: the store cannot list its runs.
        """
        runs = await self.list_runs()
        return RunSurvey(runs if wanted is None else wanted.of(runs))

    async def unreadable_runs(self) -> Sequence[Finding]:
        """Return only the unreadable runs.

        Raises:
            CheckpointStorageError: the medium failed.
        """
        return ()

    async def figures(self, workflow_id: str | None = None, *, limit: int = 10) -> StoreStatistics:
        """Return the statistics; the function `store_statistics` also checks the limit.

        Args:
            workflow_id: one run; all by default.
            limit: the number of largest runs, largest checkpoints and slowest steps, from 1.

        Raises:
            CheckpointNotFoundError: the run does not exist.
            CheckpointStorageError: the medium failed.
            StoreAbilityError: the store cannot list its runs.
        """
        return await stores.queries.sum_up_runs(self, workflow_id, limit=limit)

    async def total_bytes(self) -> int | None:
        """Return the approximate size of the whole store in bytes; None if that needs reading everything."""
        return None

    async def check(self, workflow_id: str | None = None) -> Sequence[Finding]:
        """Read and verify everything; changes nothing.

        The function `check_content` adds what the records hold that flowckpt never writes.

        Args:
            workflow_id: one run; all by default.

        Raises:
            StoreAbilityError: the store cannot.
        """
        self.lacks(Ability.CHECK, "check itself")

    async def repair(self, workflow_id: str) -> Repaired:
        """Set aside the damaged parts of a run, and keep the rest.

        The rest is everything that can be read and verified: the current history up to the first damaged record that it
        needs, and the readable part of earlier attempts. The original is kept.

        Raises:
            CheckpointNotFoundError: the run does not exist.
            RunLockedError: another process owns it.
            CheckpointCorruptedError: no checkpoint of it can be read; nothing was changed.
        """
        self.lacks(Ability.REPAIR, "repair a run")

    def medium(self) -> str:
        """Return a description of the medium, with its version and settings; empty if there is nothing to describe."""
        return ""

    # --- what an attempt left, even if a later one went back to a point before it ----------------------------------

    async def attempts(self, workflow_id: str) -> Sequence[int]:
        """Return the numbers of the attempts that wrote something, ascending, possibly with gaps.

        An attempt that only deleted checkpoints has written something; one whose writes were all refused has not.
        A store without this ability knows only attempts whose checkpoints still count.

        Raises:
            CheckpointCorruptedError: the run's record is damaged.
        """
        return sorted({each.attempt for each in await self.list_checkpoints(workflow_id)})

    async def list_attempt(self, workflow_id: str, attempt: int) -> Sequence[CheckpointRef]:
        """Return the checkpoints of an attempt as the attempt left them, oldest first.

        Args:
            workflow_id: the run.
            attempt: the attempt, from 1.

        Raises:
            CheckpointCorruptedError: its record is damaged.
        """
        return [each for each in await self.list_checkpoints(workflow_id) if each.attempt == attempt][::-1]

    async def load_attempt(self, workflow_id: str, attempt: int) -> CheckpointData | None:
        """Return the last checkpoint of an attempt as the attempt left it; None if it saved none.

        Args:
            workflow_id: the run.
            attempt: the attempt, from 1.

        Raises:
            CheckpointCorruptedError: its record is damaged.
            StoreAbilityError: the store cannot.
        """
        self.lacks(Ability.ATTEMPTS, "return what an attempt left")

    async def read_attempt(self, workflow_id: str, attempt: int) -> Sequence[CheckpointData]:
        """Return the checkpoints of an attempt as the attempt left them, oldest first, without deleted ones.

        Large values are read when they are accessed.

        Args:
            workflow_id: the run.
            attempt: the attempt, from 1.

        Raises:
            CheckpointCorruptedError: its record is damaged.
            StoreAbilityError: the store cannot.
        """
        self.lacks(Ability.ATTEMPTS, "return a whole run")

    # --- a whole run, and values in common ------------------------------------------------------------------------

    async def receive_run(self, workflow_id: str, checkpoints: Callable[[], Iterable[CheckpointData]]) -> None:
        """Store a run durably, with its attempts, sequences and times; afterwards it has no owner.

        After a crash in the middle nothing is visible, and the call can be repeated.

        Args:
            workflow_id: the run; it must not exist.
            checkpoints: returns the checkpoints afresh at each call, attempt by attempt, oldest first. Its errors are
                raised here, and nothing is stored.

        Raises:
            RunExistsError: the run exists; nothing was read from the source.
            RunLockedError: another process is about to start it; nothing was read from the source.
            EncodingError: a value cannot be recorded.
            CheckpointStorageError: the medium failed.
            StoreAbilityError: the store cannot.
        """
        self.lacks(Ability.RECEIVE, "receive a whole run")

    async def share_values(self, source_id: str, workflow_id: str, sizes: Mapping[str, int]) -> None:
        """Prepare a save that refers to large values of another run. Values that cannot be shared are copied by the save.

        Args:
            source_id: the run that has them.
            workflow_id: the other run, which the caller owns.
            sizes: the length of each value in bytes, by digest.
        """

    # --- messages: their sender does not own the run, which may be live elsewhere -------------------------------------

    async def send_signal(self, workflow_id: str, signal: Signal) -> bool:
        """Make a message durable, and return whether it is new; a repeated id is not.

        Args:
            workflow_id: the run, which may have no checkpoints left.
            signal: the message.

        Raises:
            CheckpointNotFoundError: the run does not exist.
            CheckpointStorageError: the medium failed.
            StoreAbilityError: the store cannot.
        """
        self.lacks(Ability.SIGNALS, "deliver signals")

    async def signals(self, workflow_id: str) -> Sequence[Signal]:
        """Return the stored messages in the order of sending; none if the run does not exist.

        Messages that the run has taken may still be included; the run's record says which.

        Raises:
            CheckpointCorruptedError: a message is damaged.
        """
        return ()

    async def remove_signals(self, workflow_id: str, signal_ids: Collection[str]) -> None:
        """Remove messages that the run's record says were taken; ids without a message are ignored.

        Args:
            workflow_id: the run.
            signal_ids: the ids of the messages.
        """

    def announcements(self, workflow_id: str | None = None) -> AbstractAsyncContextManager[asyncio.Event | None]:
        """Listen during an `async with` block: the event is set when a message may have arrived.

        The listener clears the event. An announcement is a hint: it may be lost or spurious, so listeners still poll now
        and then. A store without this ability has no event.

        Args:
            workflow_id: the run; all runs by default.
        """
        return nullcontext()

    # --- which steps have started: a hint that outlives the process, at next to no cost -------------------------------

    def note_started(self, workflow_id: str, path: str) -> None:
        """Note that a step starts; never raises, never waits for a disk.

        Args:
            workflow_id: a run that the caller owns.
            path: the step.
        """

    async def started_steps(self, workflow_id: str) -> tuple[int, tuple[str, ...]]:
        """Return the attempt of the last note, and the steps it started since its last checkpoint.

        Without notes it is `(0, ())`. The notes survive a killed process, but not a power cut. Some of these steps may have ended and be in the record.
        """
        return 0, ()

    async def last_seen(self, workflow_id: str, attempt: int) -> datetime | None:
        """Return the time of the last heartbeat of an attempt's owner; None if the store does not know it.

        A killed process lived at least until then; an owner sends a heartbeat every ten seconds.
        """
        return None

    # --- the live note: what runs now, for people; it decides nothing, and may be lost, old or damaged -----------

    def note_live(self, workflow_id: str, content: bytes) -> None:
        """Replace the live note of a run, without a sync; called from a thread of the engine every `live_seconds` at most.

        Args:
            workflow_id: a run that the caller owns; otherwise nothing happens.
            content: what `live_note` returns from then on.

        Raises:
            FlowckptError, OSError: the medium failed; the engine tries again with the next note.
        """

    def note_live_all(self, notes: Mapping[str, bytes]) -> None:
        """Replace the live notes of several runs, as `note_live` does, with as few round trips as possible.

        Args:
            notes: the notes, by run.

        Raises:
            FlowckptError, OSError: some could not be written; the engine tries again with the next notes.
        """
        failure: Exception | None = None
        for workflow_id, content in notes.items():
            try:
                self.note_live(workflow_id, content)
            except Exception as error:  # still write the notes of the other runs
                failure = failure or error
        if failure is not None:
            raise failure

    async def live_note(self, workflow_id: str) -> bytes | None:
        """Return the last live note of a run; None if there is none. It may be that of an earlier attempt."""
        return None

    # --- keeping it small -----------------------------------------------------------------------------------------
    #
    # The caller decides what is removed. After a crash during any of these methods: what was to stay exists,
    # what was removed does not come back, and a second call finishes the removal.

    async def delete_checkpoint(self, workflow_id: str, checkpoint_id: str) -> bool:
        """Delete all checkpoints of an id, and return whether there were any.

        Results stay, because later checkpoints need them. A deleted checkpoint never returns: not after a crash, a
        takeover or a rollback.

        Args:
            workflow_id: the run.
            checkpoint_id: the id.

        Raises:
            RunLockedError: another process owns the run.
            FencedError: another process has taken the run over; whether the checkpoint was deleted is unknown.
            StoreAbilityError: the store cannot.
        """
        self.lacks(Ability.DELETE, "delete single checkpoints")

    def evict_with_next_save(self, workflow_id: str, sequences: Sequence[int]) -> None:
        """Remove checkpoints in the same write as the next save, all or nothing; this call does no I/O.

        Args:
            workflow_id: a run that the caller owns; otherwise nothing happens.
            sequences: the checkpoints, never the one saved next.

        Raises:
            StoreAbilityError: the store cannot.
        """
        self.lacks(Ability.EVICT, "remove checkpoints of a live run")

    async def delete_sequences(self, workflow_id: str, sequences: Sequence[int]) -> int:
        """Remove checkpoints now, and return how many there were.

        Args:
            workflow_id: the run.
            sequences: the checkpoints.

        Raises:
            RunLockedError: another process owns the run.
            FencedError: another process has taken the run over; see `delete_checkpoint`.
            StoreAbilityError: the store cannot.
        """
        self.lacks(Ability.EVICT, "remove single checkpoints")

    async def pin(self, workflow_id: str, sequence: int) -> None:
        """Pin a checkpoint durably, also of a live run; a second pin changes nothing.

        Args:
            workflow_id: the run.
            sequence: the checkpoint.

        Raises:
            CheckpointNotFoundError: the checkpoint does not exist.
            StoreAbilityError: the store cannot.
        """
        self.lacks(Ability.PINS, "pin checkpoints")

    async def unpin(self, workflow_id: str, sequence: int) -> None:
        """Remove a pin durably; no error without one.

        Args:
            workflow_id: the run.
            sequence: the checkpoint.
        """

    async def pinned(self, workflow_id: str) -> frozenset[int]:
        """Return the pinned sequences."""
        return frozenset()

    async def compactable(self, after: str, limit: int) -> Sequence[str]:
        """Return runs that compaction may shrink, in a stable order.

        Args:
            after: start after this run; an empty string for the start.
            limit: at most this many.
        """
        return ()

    async def compact(self, workflow_id: str, *, is_forced: bool = False) -> Compacted:
        """Drop unused data of a run; everything that any attempt recorded stays, except removed checkpoints.

        Args:
            workflow_id: the run; no error if it does not exist.
            is_forced: compact even if little is gained.

        Raises:
            RunLockedError: another process owns the run.
            CheckpointCorruptedError: its record is damaged; nothing was changed.
        """
        return stores.queries.Compacted()

    async def page_runs(self, before: RunInfo | None, limit: int) -> Sequence[RunInfo]:
        """Return runs, most recently started first, without loading them.

        Args:
            before: start after this run; None for the start.
            limit: at most this many; a store without this ability returns all runs as its first page.

        Raises:
            StoreAbilityError: the store cannot list its runs.
        """
        return await self.list_runs() if before is None else ()

    async def stored_bytes(self, workflow_ids: Sequence[str]) -> Sequence[int | None]:
        """Return the approximate size of each run in bytes; 0 if it does not exist, None if unknown."""
        return [None] * len(workflow_ids)

    async def clear_unchanged(self, runs: Sequence[RunInfo]) -> Sequence[str]:
        """Remove those of the runs that have no owner, that have no pin, and that are unchanged since they were listed.

        Args:
            runs: the runs as listed.

        Returns:
            The ids of the removed runs.
        """
        removed = []
        for info in runs:
            workflow_id = info.workflow_id
            if await self.pinned(workflow_id) or await self.describe_run(workflow_id) != info:
                continue
            try:
                await self.clear(workflow_id)
            except RunLockedError:
                continue
            removed.append(workflow_id)
        return removed

    async def tidy(self) -> None:
        """Finish removals that a crash interrupted, and free space where this is cheap."""

    async def use_reserve(self) -> bool:
        """Free the space reserved for a full disk, and return whether there was any. `tidy` reserves it again."""
        return False

    # --- the index of results, for `.cache()`: it may be missing or old; its entries are checked against the runs

    async def read_index(self, name: str) -> bytes | None:
        """Return a part of the index of results; None if it does not exist or the store keeps no index."""
        return None

    async def write_index(self, name: str, content: bytes) -> None:
        """Replace a part of the index of results as a whole; it need not be durable.

        Args:
            name: the part: small letters, digits and dashes.
            content: what `read_index` returns from then on.
        """

    async def clear_index(self) -> None:
        """Remove the index of results."""
