"""The store port: what the engine asks of a place where checkpoints live.

A store speaks the domain. It is asked to save a `CheckpointData` and to load one; it is never asked about paths, rows
or bytes, and it holds no policy: when to save, what to keep and whom to tell is decided above it.

What every store promises:

- `save` returns after the checkpoint is durable, or raises. There is no third way. After `CheckpointStorageError` with
  `is_outcome_unknown` the checkpoint may or may not be there; only taking the run over again finds out.
- `data.attempt` is the fencing number. A writer owns one attempt of a run; a save from an attempt that is not the
  newest, or that belongs to another writer, is refused with `FencedError`.
- `data.sequence` grows. A save at or below the last one is refused with `SaveConflictError`.
- The history in `data.step_results` is saved once: a store writes what it does not hold yet. Where a new attempt goes
  on from an earlier point, the results behind that point stay in the store and no longer belong to the run.
- What is not of the closed set of types is refused with `EncodingError`, before anything is written.
- Missing, corrupt, foreign, locked and fenced are different errors.

The five methods are all that the engine needs. What a store can do beyond them is a small protocol of its own below.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol, TypeGuard, TypeVar, runtime_checkable

import attrs

from flowckpt.core.system.attrs_base import Fieldwise
from flowckpt.errors import SettingError

if TYPE_CHECKING:
    from flowckpt.core.records import CheckpointData, HistoryView, Reason
    from flowckpt.core.records.listing import CheckpointRef, Owner, RunInfo
    from flowckpt.core.records.statistics import StoreFigures
    from flowckpt.core.records.wait import Signal
    from flowckpt.errors import FencedError


class CheckpointStore(Protocol):
    """A place where checkpoints live."""

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Make a checkpoint durable, atomically.

        Args:
            workflow_id: the run.
            data: the checkpoint; its `attempt` fences its writer, its `sequence` orders it.

        Raises:
            FencedError: the writer no longer owns the run.
            SaveConflictError: the sequence is taken or passed.
            EncodingError: a value cannot be recorded.
            CheckpointStorageError: the medium failed.
        """
        ...

    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Return the newest checkpoint of that id.

        Args:
            workflow_id: the run.
            checkpoint_id: the checkpoint's id.

        Raises:
            CheckpointNotFoundError: there is no such run, or no such checkpoint in it.
            CheckpointCorruptedError: its record is damaged.
        """
        ...

    async def load_latest(self, workflow_id: str) -> CheckpointData | None:
        """Return the checkpoint with the highest sequence, or None where the run has none.

        Args:
            workflow_id: the run.

        Raises:
            CheckpointCorruptedError: the record is damaged; it is never taken for "no checkpoint".
        """
        ...

    async def clear(self, workflow_id: str) -> None:
        """Remove a run with all that belongs to it; a crash in the middle never brings half of it back.

        Args:
            workflow_id: the run; clearing one that does not exist is no error.

        Raises:
            RunLockedError: another process owns the run.
        """
        ...

    async def list_checkpoints(self, workflow_id: str) -> Sequence[CheckpointRef]:
        """Return the run's checkpoints, the newest first; none where the run does not exist.

        Args:
            workflow_id: the run.

        Raises:
            CheckpointCorruptedError: the record is damaged.
        """
        ...


@attrs.frozen(eq=False, repr=False)
class Lease(Fieldwise):
    """What a writer has that owns a run.

    Attributes:
        workflow_id: the run.
        attempt: the attempt that it may save under.
        latest: the newest checkpoint, read after the run was claimed; None for a new run.
        last_sequence: the highest sequence that the run ever had, also behind a point that it went back from.
        notices: what was noticed while reading, for people: a torn record that was dropped, and the like.
        token: tells this owner from every other one; `release` asks for it. Empty where the store cannot tell owners apart.
    """

    workflow_id: str
    attempt: int
    latest: CheckpointData | None
    last_sequence: int = 0
    notices: tuple[str, ...] = ()
    token: str = ""


@runtime_checkable
class OwnsRuns(Protocol):
    """A store whose runs have one owner at a time."""

    async def acquire(self, workflow_id: str, *, steal: bool = False) -> Lease:
        """Become the owner of a run: claim its next attempt, which fences every earlier one, then read the run.

        Args:
            workflow_id: the run; it need not exist yet.
            steal: take it although its owner's process still holds it.

        Raises:
            RunLockedError: another process owns it and is alive.
            CheckpointCorruptedError: its record is damaged.
        """
        ...

    async def release(self, workflow_id: str, *, token: str = "") -> None:
        """Give a run up; a claim under which nothing was saved leaves no trace. No error where it is not owned.

        Args:
            workflow_id: the run.
            token: of the lease that ends: where another owner has the run by now, through this very store, it keeps it.
                Not given, whatever this store owns is given up.
        """
        ...

    async def owner(self, workflow_id: str) -> Owner | None:
        """Return who owns the run and is alive, or None.

        Args:
            workflow_id: the run.
        """
        ...


@runtime_checkable
class ListsRuns(Protocol):
    """A store that can tell its runs."""

    async def list_runs(self) -> Sequence[RunInfo]:
        """Return the runs, the one started last first. A damaged run is listed by `check`, not here."""
        ...

    async def describe_run(self, workflow_id: str) -> RunInfo | None:
        """Return one run as the list shows it, without loading it; None where there is none.

        Args:
            workflow_id: the run.
        """
        ...


@runtime_checkable
class DeletesCheckpoints(Protocol):
    """A store that can remove a single checkpoint."""

    async def delete_checkpoint(self, workflow_id: str, checkpoint_id: str) -> bool:
        """Remove all checkpoints of that id; tell whether there was one. The results stay: later ones need them.

        What was removed never comes back: after no crash, in no takeover, and not where the run goes back behind it.

        Args:
            workflow_id: the run.
            checkpoint_id: the checkpoint's id.

        Raises:
            RunLockedError: another process owns the run.
            FencedError: this process owned the run, and another one has taken it over. Whether the checkpoint was removed
                is not known; that there was none is only told where there is none.
        """
        ...


@runtime_checkable
class KeepsAttempts(Protocol):
    """A store that keeps what an attempt left behind, also where a later one went back behind it."""

    async def load_attempt(self, workflow_id: str, attempt: int) -> CheckpointData | None:
        """Return the last checkpoint of an attempt, as the attempt left it; None where it saved none.

        Args:
            workflow_id: the run.
            attempt: which, from 1.

        Raises:
            CheckpointCorruptedError: its record is damaged.
        """
        ...


@runtime_checkable
class NotesBeginnings(Protocol):
    """A store that can note, at next to no cost, which steps have begun: a hint that outlives the process."""

    def note_begun(self, workflow_id: str, path: str) -> None:
        """Note that a step begins; never raises, never waits for a disk.

        Args:
            workflow_id: a run that the caller owns.
            path: the step.
        """
        ...

    async def begun_steps(self, workflow_id: str) -> tuple[int, tuple[str, ...]]:
        """Return which attempt noted last, and the steps that it began since its last checkpoint; 0 where none did.

        Some of them may have ended and be in the record.

        Args:
            workflow_id: the run.
        """
        ...


@runtime_checkable
class ListsAttempts(Protocol):
    """A store that can tell what an attempt saved, also where a later one went back behind it."""

    async def attempts(self, workflow_id: str) -> Sequence[int]:
        """Return the numbers of the attempts that wrote something, ascending; numbers may be left out.

        One that only removed checkpoints has written something. One of which all was refused has not.

        Args:
            workflow_id: the run.

        Raises:
            CheckpointCorruptedError: its record is damaged.
        """
        ...

    async def list_attempt(self, workflow_id: str, attempt: int) -> Sequence[CheckpointRef]:
        """Return the checkpoints of an attempt, the oldest first, as the attempt left them; none where it saved none.

        Args:
            workflow_id: the run.
            attempt: which, from 1.

        Raises:
            CheckpointCorruptedError: its record is damaged.
        """
        ...


@runtime_checkable
class ReadsAttempts(Protocol):
    """A store that can read all that an attempt saved, also where a later one went back behind it."""

    async def read_attempt(self, workflow_id: str, attempt: int) -> Sequence[CheckpointData]:
        """Return the checkpoints of an attempt, the oldest first, as the attempt left them; none where it saved none.

        What was deleted since is not among them. Large values are read when somebody looks at them.

        Args:
            workflow_id: the run.
            attempt: which, from 1.

        Raises:
            CheckpointCorruptedError: its record is damaged.
        """
        ...


@runtime_checkable
class ReceivesRuns(Protocol):
    """A store that takes a whole run in at once: all its attempts appear together, or nothing does."""

    async def receive_run(self, workflow_id: str, checkpoints: Callable[[], Iterable[CheckpointData]]) -> None:
        """Take in a run, durably, with attempts, sequences and times as they are. Nobody owns it then.

        A process that dies on the way leaves nothing that anybody sees; it can simply be done again.

        Args:
            workflow_id: the run; it must not exist.
            checkpoints: returns the checkpoints afresh each time, attempt by attempt and the oldest first. What it
                raises on the way is raised here, and nothing was taken in.

        Raises:
            RunExistsError: there is such a run, owned or not; nothing was asked of the source.
            RunLockedError: another process is about to begin it; nor then.
            EncodingError: a value cannot be recorded.
            CheckpointStorageError: the medium failed.
        """
        ...


@runtime_checkable
class DeliversSignals(Protocol):
    """A store that keeps messages for its runs. Whoever sends one does not own the run, which may be live elsewhere."""

    async def send_signal(self, workflow_id: str, signal: Signal) -> bool:
        """Make a message durable; tell whether it is new, or was sent before under the same id.

        A run whose checkpoints were all removed is a run: its owner may be about to save the next one.

        Args:
            workflow_id: the run.
            signal: the message.

        Raises:
            CheckpointNotFoundError: there is no such run.
            CheckpointStorageError: the medium failed.
        """
        ...

    async def signals(self, workflow_id: str) -> Sequence[Signal]:
        """Return the messages that lie there, in the order in which they were sent; none where the run does not exist.

        One that the run has taken may still be among them: the record of the run says which it took.

        Args:
            workflow_id: the run.

        Raises:
            CheckpointCorruptedError: a message is damaged.
        """
        ...

    async def remove_signals(self, workflow_id: str, signal_ids: Collection[str]) -> None:
        """Remove messages: those that the record of the run says were taken. One that is not there is no error.

        Args:
            workflow_id: the run.
            signal_ids: which.
        """
        ...


@runtime_checkable
class SharesValues(Protocol):
    """A store in which two runs can have a large value without two copies of it."""

    async def share_values(self, source_id: str, workflow_id: str, sizes: Mapping[str, int]) -> None:
        """Prepare a save that names large values of another run. What cannot be shared, the save copies.

        Args:
            source_id: the run that has them.
            workflow_id: the run that is to have them too; the caller owns it.
            sizes: the length of each in bytes, by its digest.
        """
        ...


@runtime_checkable
class TellsFigures(Protocol):
    """A store that can tell what it holds in figures."""

    async def figures(self, workflow_id: str | None = None, *, limit: int = 10) -> StoreFigures:
        """Return the figures; ask with `flowckpt.stores.store_figures`, which any store can answer.

        Args:
            workflow_id: one run; all of them where not given.
            limit: how many of the largest runs and checkpoints and of the slowest steps, from 1.

        Raises:
            CheckpointNotFoundError: there is no such run.
            CheckpointStorageError: the medium failed.
        """
        ...


# Going on saving after a save that failed: what a store can do beyond the five methods.


@runtime_checkable
class RenewsAttempts(Protocol):
    """A store that can let an owner save again whose last save failed, once the medium is well again."""

    async def renew(self, workflow_id: str, history: HistoryView) -> Lease | None:
        """Make a run that this process owns savable again, without giving it up in between.

        There are two ways. Where the very same save can be done again without harm, whether it was done or not, the store
        does it, and the attempt goes on. Where a failed write must never be made again, as in files, the store begins the
        next attempt, and what is missing goes there with the next save.

        It is asked before each save behind one that failed, so it must not wait long for a medium that is away.

        Args:
            workflow_id: the run.
            history: the results that the next save holds; nothing of them is written yet.

        Returns:
            The new attempt; None where the old one can be saved to, or another would not help.

        Raises:
            FencedError: another owner has the run, or it was removed.
            CheckpointStorageError: the medium still fails; the old attempt stays as it is.
        """
        ...


# The ability of a store to tell an owner that its run is another's now, while a step still works for it.


@runtime_checkable
class TellsOfLostRuns(Protocol):
    """A store that looks, with each sign of life, whether the runs that it owns are still its own.

    It is a matter of time only: a save by a former owner is refused whether or not anybody was told before.
    """

    def tell_when_lost(self, workflow_id: str, tell: Callable[[FencedError], None]) -> None:
        """Have somebody told once a run is lost, until it is given up.

        Args:
            workflow_id: a run that this store owns; for another one nothing happens.
            tell: called with what a save would raise now, from a thread of the store, again with each look. It must
                return at once.
        """
        ...


# The ability of a store to tell those who wait that a message has come, so that they need not ask all the time.


@runtime_checkable
class AnnouncesSignals(Protocol):
    """A store that says when a message has been sent.

    An announcement is a hint: it may be lost, as with the connection it comes by, and may come for nothing. Whoever waits
    still looks now and then.
    """

    def announcements(self, workflow_id: str | None = None) -> AbstractAsyncContextManager[asyncio.Event]:
        """Listen while the block lasts; the event is set when a message may have come. Whoever heard it clears it.

        Args:
            workflow_id: the run whose messages are meant; those of all runs where it is None.
        """
        ...


# Checking all that a store holds, and what is found in it.


@attrs.frozen
class Finding:
    """Something that the check of a store found.

    Attributes:
        workflow_id: the run, or an empty string for the store itself.
        severity: `ok`, `notice` (harmless, as a torn last record), `corrupt`, or `locked` (a key is missing, so nothing
            is known about it).
        detail: what was found, with its place.
    """

    workflow_id: str
    severity: str
    detail: str


@runtime_checkable
class ChecksIntegrity(Protocol):
    """A store that can read all it holds and say what is damaged."""

    async def check(self, workflow_id: str | None = None) -> Sequence[Finding]:
        """Read and verify, changing nothing.

        Args:
            workflow_id: one run, or None for all.
        """
        ...


# Stores that pick checkpoints themselves.


class FiltersCheckpoints(CheckpointStore, Protocol):
    """A store that picks checkpoints itself: two of the five methods, with keywords. Ask with `filters_checkpoints`.

    What is picked is part of what the run is now. What an attempt left behind, `ListsAttempts` and `KeepsAttempts` tell.
    """

    async def load_latest(self, workflow_id: str, *, attempt: int | None = None) -> CheckpointData | None:
        """Return the checkpoint with the highest sequence, or None where there is none.

        Args:
            workflow_id: the run.
            attempt: only of those that this attempt saved.

        Raises:
            CheckpointCorruptedError: the record is damaged.
            SettingError: the attempt is no number from 1 on.
        """
        ...

    async def list_checkpoints(
        self,
        workflow_id: str,
        *,
        attempt: int | None = None,
        reason: Reason | str | None = None,
        verified: bool | None = None,
        limit: int | None = None,
    ) -> Sequence[CheckpointRef]:
        """Return the run's checkpoints that are wanted, the newest first.

        Args:
            workflow_id: the run.
            attempt: only those that this attempt saved.
            reason: only those that were taken for this reason.
            verified: only those whose evidence was found to hold (True), or was not (False).
            limit: at most so many.

        Raises:
            CheckpointCorruptedError: the record is damaged.
            SettingError: something is asked for that cannot be.
        """
        ...


def filters_checkpoints(store: object) -> TypeGuard[FiltersCheckpoints]:
    """Tell whether a store takes the keywords of `FiltersCheckpoints`: `isinstance` sees only the methods' names.

    Args:
        store: the store.
    """
    asked = {"load_latest": ("attempt",), "list_checkpoints": ("attempt", "reason", "verified", "limit")}
    return all(
        callable(method := getattr(store, name, None))
        and (taken := inspect.signature(method).parameters).keys() >= {*keywords}
        and all(taken[keyword].kind is not inspect.Parameter.POSITIONAL_ONLY for keyword in keywords)
        for name, keywords in asked.items()
    )


# What a store can do so that it does not grow without bound: small protocols, as those of `flowckpt.stores.base`.
#
# None of them decides what goes; that is said by whoever calls. What each promises over a crash: what was to stay is there,
# what went does not come back, and doing it again finishes it.


@runtime_checkable
class EvictsCheckpoints(Protocol):
    """A store that can remove checkpoints of a run by their sequences. Their results stay: later ones need them."""

    def evict_with_next_save(self, workflow_id: str, sequences: Sequence[int]) -> None:
        """Remove checkpoints with the next save, in the same write: with it they go, and without it they stay.

        It does no I/O, cannot fail, and costs nothing that grows with the run.

        Args:
            workflow_id: a run that the caller owns; nothing happens where it does not.
            sequences: which; the checkpoint that is saved next is never among them.
        """
        ...

    async def delete_sequences(self, workflow_id: str, sequences: Sequence[int]) -> int:
        """Remove checkpoints now; return how many there were.

        Args:
            workflow_id: the run.
            sequences: which.

        Raises:
            RunLockedError: another process owns the run.
            FencedError: another process has taken it over; see `DeletesCheckpoints`.
        """
        ...


@runtime_checkable
class PinsCheckpoints(Protocol):
    """A store in which a checkpoint can be pinned: retention never removes it, nor its run."""

    async def pin(self, workflow_id: str, sequence: int) -> None:
        """Pin a checkpoint, durably. A live run can be pinned, too; pinning twice is no error.

        Args:
            workflow_id: the run.
            sequence: the checkpoint.

        Raises:
            CheckpointNotFoundError: there is no such checkpoint.
        """
        ...

    async def unpin(self, workflow_id: str, sequence: int) -> None:
        """Take a pin away, durably; no error where there is none.

        Args:
            workflow_id: the run.
            sequence: the checkpoint.
        """
        ...

    async def pinned(self, workflow_id: str) -> frozenset[int]:
        """Return the sequences that are pinned.

        Args:
            workflow_id: the run.
        """
        ...


@attrs.frozen
class Compacted:
    """What a compaction came to.

    Attributes:
        is_changed: whether anything was removed.
        bytes_freed: how much less the run takes.
    """

    is_changed: bool = False
    bytes_freed: int = 0


@runtime_checkable
class CompactsRuns(Protocol):
    """A store that can write a run anew without what nobody needs: removed checkpoints, values that only they had."""

    async def compactable(self, after: str, limit: int) -> Sequence[str]:
        """Return runs that a compaction may make smaller, in an order that stays.

        Args:
            after: go on behind this run; an empty string to begin.
            limit: the most to return.
        """
        ...

    async def compact(self, workflow_id: str, *, is_forced: bool = False) -> Compacted:
        """Drop what nobody needs. What any attempt recorded stays, but for checkpoints that were removed.

        Args:
            workflow_id: the run; one that does not exist is no error.
            is_forced: do it also where little is gained.

        Raises:
            RunLockedError: another process owns the run.
            CheckpointCorruptedError: its record is damaged; nothing was changed.
        """
        ...


@runtime_checkable
class SweepsLeftovers(Protocol):
    """A store that can sweep what belongs to no run, beside whoever is at work."""

    async def tidy(self) -> None:
        """Finish the removals that a crash cut short, and give free space back where that is cheap."""
        ...


@runtime_checkable
class PrunesRuns(Protocol):
    """A store that can go through very many runs, and remove them, in bounded batches."""

    async def page_runs(self, before: RunInfo | None, limit: int) -> Sequence[RunInfo]:
        """Return runs, the one started last first, without loading them.

        Args:
            before: go on behind this one; None to begin.
            limit: the most to return.
        """
        ...

    async def stored_bytes(self, workflow_ids: Sequence[str]) -> Sequence[int]:
        """Return about how many bytes each run takes; 0 for one that does not exist.

        Args:
            workflow_ids: the runs.
        """
        ...

    async def clear_unchanged(self, runs: Sequence[RunInfo]) -> Sequence[str]:
        """Remove those of the runs that nobody owns, that have no pin, and that still stand as described.

        Args:
            runs: as they were listed.

        Returns:
            The ids of those that were removed.
        """
        ...

    async def tidy(self) -> None:
        """Finish the removals that a crash cut short, and give free space back to the system where that is cheap."""
        ...


# Whether what was given as a store is one, told before anything is run or saved.


S = TypeVar("S")

_METHODS = ("save", "load", "load_latest", "clear", "list_checkpoints")


def check_store(store: S, setting: str) -> S:
    """Return what was given as a store, or refuse it: a description of one, a class, what lacks one of the five methods.

    Args:
        store: what was given.
        setting: the argument's name, for the error.

    Raises:
        SettingError: it is none.
    """
    if not isinstance(store, type) and all(callable(getattr(store, name, None)) for name in _METHODS):
        return store
    way = "Give a FileCheckpointStore(…), a MemoryCheckpointStore() or open_store(…)"
    if isinstance(store, str):
        way = f"Open it first: open_store({store!r:.80})"
    raise SettingError(
        f"{setting}={store!r:.80} ({type(store).__name__}) is no store",
        setting=setting,
        remedy=f"{way}; one of your own has the methods {', '.join(_METHODS)}.",
    )


# Giving a run back that was taken, and no other owner's.


async def released(store: OwnsRuns, lease: Lease) -> None:
    """Give a run back that was taken; one that somebody else has taken since, through the same store, stays theirs.

    Args:
        store: where it lies.
        lease: what was taken.

    Raises:
        CheckpointStorageError: the medium failed.
    """
    if lease.token:
        await store.release(lease.workflow_id, token=lease.token)
    else:  # of a store that cannot tell owners apart
        await store.release(lease.workflow_id)
