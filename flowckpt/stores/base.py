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

from flowckpt.core.system.attrs_base import FieldEquality
from flowckpt.errors import SettingError

if TYPE_CHECKING:
    from flowckpt.core.records import CheckpointData, HistoryView, Reason
    from flowckpt.core.records.listing import CheckpointRef, Owner, RunInfo
    from flowckpt.core.records.statistics import StoreStatistics
    from flowckpt.core.records.wait import Signal
    from flowckpt.errors import FencedError


class CheckpointStore(Protocol):
    """The protocol of stores: five async methods."""

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Make a checkpoint durable, atomically, or raise.

        Args:
            workflow_id: the run.
            data: the checkpoint; its `attempt` fences its writer, its `sequence` orders it.

        Raises:
            FencedError: the writer no longer owns the run.
            SaveConflictError: the run already has or has passed the sequence.
            EncodingError: a value cannot be recorded.
            CheckpointStorageError: the medium failed.
        """
        ...

    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Return the newest checkpoint of an id.

        Args:
            workflow_id: the run.
            checkpoint_id: the id.

        Raises:
            CheckpointNotFoundError: the run or checkpoint does not exist.
            CheckpointCorruptedError: its record is damaged.
        """
        ...

    async def load_latest(self, workflow_id: str) -> CheckpointData | None:
        """Return the checkpoint with the highest sequence, or None if the run has none.

        Raises:
            CheckpointCorruptedError: the record is damaged; this is never reported as "no checkpoint".
        """
        ...

    async def clear(self, workflow_id: str) -> None:
        """Remove a run completely; after a crash in the middle it is removed or unchanged. No error if it does not exist.

        Raises:
            RunLockedError: another process owns the run.
        """
        ...

    async def list_checkpoints(self, workflow_id: str) -> Sequence[CheckpointRef]:
        """Return the run's checkpoints, newest first; none if the run does not exist.

        Raises:
            CheckpointCorruptedError: the record is damaged.
        """
        ...


@attrs.frozen(eq=False, repr=False)
class Lease(FieldEquality):
    """The rights of a run's owner.

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


@runtime_checkable
class OwnsRuns(Protocol):
    """A store whose runs have one owner at a time."""

    async def acquire(self, workflow_id: str, *, steal: bool = False) -> Lease:
        """Become the owner of a run: claim its next attempt, which fences all earlier ones, then read the run.

        Args:
            workflow_id: the run; it need not exist.
            steal: take it although its owner is alive.

        Raises:
            RunLockedError: another live process owns it.
            CheckpointCorruptedError: its record is damaged.
        """
        ...

    async def release(self, workflow_id: str, *, token: str = "") -> None:
        """Release a run; a claim without a save leaves no trace. No error if it is not owned.

        Args:
            workflow_id: the run.
            token: of the lease to end, so that a later owner through the same store object keeps the run; by default
                any lease of this store ends.
        """
        ...

    async def owner(self, workflow_id: str) -> Owner | None:
        """Return the live owner of the run, or None."""
        ...


@runtime_checkable
class ListsRuns(Protocol):
    """A store that can list its runs."""

    async def list_runs(self) -> Sequence[RunInfo]:
        """Return the runs, most recently started first, without damaged ones, which `check` reports."""
        ...

    async def describe_run(self, workflow_id: str) -> RunInfo | None:
        """Return one run as listed, without loading it; None if it does not exist."""
        ...


@runtime_checkable
class DeletesCheckpoints(Protocol):
    """A store that can delete single checkpoints."""

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
        """
        ...


@runtime_checkable
class KeepsAttempts(Protocol):
    """A store that keeps what an attempt left behind, even after a later attempt went back."""

    async def load_attempt(self, workflow_id: str, attempt: int) -> CheckpointData | None:
        """Return the last checkpoint of an attempt as the attempt left it; None if it saved none.

        Args:
            workflow_id: the run.
            attempt: the attempt, from 1.

        Raises:
            CheckpointCorruptedError: its record is damaged.
        """
        ...


@runtime_checkable
class NotesBeginnings(Protocol):
    """A store that can note started steps at almost no cost: a hint that survives a killed process, but not a power cut."""

    def note_begun(self, workflow_id: str, path: str) -> None:
        """Note that a step starts; never raises, never waits for a disk.

        Args:
            workflow_id: a run that the caller owns.
            path: the step.
        """
        ...

    async def begun_steps(self, workflow_id: str) -> tuple[int, tuple[str, ...]]:
        """Return the attempt of the last note, and the steps it started since its last checkpoint.

        Without notes it is `(0, ())`.

        Some of these steps may have ended and be in the record.
        """
        ...


@runtime_checkable
class ListsAttempts(Protocol):
    """A store that can list what each attempt saved, even after a later attempt went back."""

    async def attempts(self, workflow_id: str) -> Sequence[int]:
        """Return the numbers of the attempts that wrote something, ascending, possibly with gaps.

        An attempt that only deleted checkpoints has written something; one whose writes were all refused has not.

        Raises:
            CheckpointCorruptedError: the run's record is damaged.
        """
        ...

    async def list_attempt(self, workflow_id: str, attempt: int) -> Sequence[CheckpointRef]:
        """Return the checkpoints of an attempt as the attempt left them, oldest first.

        Args:
            workflow_id: the run.
            attempt: the attempt, from 1.

        Raises:
            CheckpointCorruptedError: its record is damaged.
        """
        ...


@runtime_checkable
class ReadsAttempts(Protocol):
    """A store that can read everything an attempt saved, even after a later attempt went back."""

    async def read_attempt(self, workflow_id: str, attempt: int) -> Sequence[CheckpointData]:
        """Return the checkpoints of an attempt as the attempt left them, oldest first, without deleted ones.

        Large values are read when they are accessed.

        Args:
            workflow_id: the run.
            attempt: the attempt, from 1.

        Raises:
            CheckpointCorruptedError: its record is damaged.
        """
        ...


@runtime_checkable
class ReceivesRuns(Protocol):
    """A store that can receive a whole run atomically."""

    async def receive_run(self, workflow_id: str, checkpoints: Callable[[], Iterable[CheckpointData]]) -> None:
        """Store a run durably, with its attempts, sequences and times; afterwards nobody owns it.

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
        """
        ...


@runtime_checkable
class DeliversSignals(Protocol):
    """A store that keeps messages for its runs; any process may send one, whoever owns the run."""

    async def send_signal(self, workflow_id: str, signal: Signal) -> bool:
        """Make a message durable, and return whether it is new; a repeated id is not.

        Args:
            workflow_id: the run, which may have no checkpoints left.
            signal: the message.

        Raises:
            CheckpointNotFoundError: the run does not exist.
            CheckpointStorageError: the medium failed.
        """
        ...

    async def signals(self, workflow_id: str) -> Sequence[Signal]:
        """Return the stored messages in the order of sending; none if the run does not exist.

        Messages that the run has taken may still be included; the run's record says which.

        Raises:
            CheckpointCorruptedError: a message is damaged.
        """
        ...

    async def remove_signals(self, workflow_id: str, signal_ids: Collection[str]) -> None:
        """Remove messages that the run's record says were taken; missing ones are ignored.

        Args:
            workflow_id: the run.
            signal_ids: the ids of the messages.
        """
        ...


@runtime_checkable
class SharesValues(Protocol):
    """A store in which two runs can share a large value."""

    async def share_values(self, source_id: str, workflow_id: str, sizes: Mapping[str, int]) -> None:
        """Prepare a save that refers to large values of another run. Values that cannot be shared are copied by the save.

        Args:
            source_id: the run that has them.
            workflow_id: the other run, which the caller owns.
            sizes: the length of each value in bytes, by digest.
        """
        ...


@runtime_checkable
class TellsFigures(Protocol):
    """A store that can compute its own statistics."""

    async def figures(self, workflow_id: str | None = None, *, limit: int = 10) -> StoreStatistics:
        """Return the statistics; prefer the function `store_statistics`, which supports every store.

        Args:
            workflow_id: one run; all by default.
            limit: the number of largest runs, largest checkpoints and slowest steps, from 1.

        Raises:
            CheckpointNotFoundError: the run does not exist.
            CheckpointStorageError: the medium failed.
        """
        ...


# Going on saving after a save that failed: what a store can do beyond the five methods.


@runtime_checkable
class RenewsAttempts(Protocol):
    """A store that lets an owner save again after a failed save, once the medium works again."""

    async def renew(self, workflow_id: str, history: HistoryView) -> Lease | None:
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
        ...


# The ability of a store to tell an owner that its run is another's now, while a step still works for it.


@runtime_checkable
class TellsOfLostRuns(Protocol):
    """A store that checks regularly whether the runs it owns are still its own.

    It only saves time: saves of a previous owner are refused anyway.
    """

    def tell_when_lost(self, workflow_id: str, tell: Callable[[FencedError], None]) -> None:
        """Call a function when an owned run is lost, until the run is released.

        Args:
            workflow_id: a run that this store owns; otherwise nothing happens.
            tell: called from a thread of the store with the error that a save would raise, at each check. It must
                return at once.
        """
        ...


# The ability of a store to tell those who wait that a message has come, so that they need not ask all the time.


@runtime_checkable
class AnnouncesSignals(Protocol):
    """A store that announces new messages.

    An announcement is a hint: it may be lost or spurious, so listeners still poll now and then.
    """

    def announcements(self, workflow_id: str | None = None) -> AbstractAsyncContextManager[asyncio.Event]:
        """Listen during an `async with` block: the event is set when a message may have arrived.

        The listener clears the event.

        Args:
            workflow_id: the run; all runs by default.
        """
        ...


# Checking all that a store holds, and what is found in it.


@attrs.frozen
class Finding:
    """A finding of an integrity check.

    Attributes:
        workflow_id: the run, or an empty string for the store itself.
        severity: `ok`, `notice` (harmless, such as a torn last record), `corrupt`, or `locked` (cannot be checked
            without a missing key).
        detail: what was found, and where.
    """

    workflow_id: str
    severity: str
    detail: str


@runtime_checkable
class ChecksIntegrity(Protocol):
    """A store that can check everything it holds for damage."""

    async def check(self, workflow_id: str | None = None) -> Sequence[Finding]:
        """Read and verify everything; changes nothing.

        Args:
            workflow_id: one run; all by default.
        """
        ...


# Stores that pick checkpoints themselves.


class FiltersCheckpoints(CheckpointStore, Protocol):
    """A store that selects checkpoints itself.

    Check with `filters_checkpoints`, because `isinstance` sees only method names. Only checkpoints that count are
    selected; `ListsAttempts` and `KeepsAttempts` return the others.
    """

    async def load_latest(self, workflow_id: str, *, attempt: int | None = None) -> CheckpointData | None:
        """Return the checkpoint with the highest sequence, or None.

        Args:
            workflow_id: the run.
            attempt: only those that this attempt saved.

        Raises:
            CheckpointCorruptedError: the record is damaged.
            SettingError: the attempt is not a whole number from 1.
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
        ...


def filters_checkpoints(store: object) -> TypeGuard[FiltersCheckpoints]:
    """Return whether a store supports the keywords of `FiltersCheckpoints`."""
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
    """A store that can remove checkpoints by their sequences. Results stay, because later checkpoints need them."""

    def evict_with_next_save(self, workflow_id: str, sequences: Sequence[int]) -> None:
        """Remove checkpoints in the same write as the next save; without I/O.

        Args:
            workflow_id: a run that the caller owns; otherwise nothing happens.
            sequences: the checkpoints, never the one saved next.
        """
        ...

    async def delete_sequences(self, workflow_id: str, sequences: Sequence[int]) -> int:
        """Remove checkpoints now, and return how many there were.

        Args:
            workflow_id: the run.
            sequences: the checkpoints.

        Raises:
            RunLockedError: another process owns the run.
            FencedError: another process has taken the run over; see `DeletesCheckpoints`.
        """
        ...


@runtime_checkable
class PinsCheckpoints(Protocol):
    """A store whose checkpoints can be pinned: retention removes neither a pinned checkpoint nor its run."""

    async def pin(self, workflow_id: str, sequence: int) -> None:
        """Pin a checkpoint durably, also of a live run; pinning twice is harmless.

        Args:
            workflow_id: the run.
            sequence: the checkpoint.

        Raises:
            CheckpointNotFoundError: the checkpoint does not exist.
        """
        ...

    async def unpin(self, workflow_id: str, sequence: int) -> None:
        """Remove a pin durably, if there is one.

        Args:
            workflow_id: the run.
            sequence: the checkpoint.
        """
        ...

    async def pinned(self, workflow_id: str) -> frozenset[int]:
        """Return the pinned sequences."""
        ...


@attrs.frozen
class Compacted:
    """The outcome of a compaction.

    Attributes:
        is_changed: whether anything was removed.
        bytes_freed: how many bytes were freed.
    """

    is_changed: bool = False
    bytes_freed: int = 0


@runtime_checkable
class CompactsRuns(Protocol):
    """A store that can rewrite a run without removed checkpoints and values that only they had."""

    async def compactable(self, after: str, limit: int) -> Sequence[str]:
        """Return runs that compaction may shrink, in a stable order.

        Args:
            after: start after this run; an empty string for the start.
            limit: at most this many.
        """
        ...

    async def compact(self, workflow_id: str, *, is_forced: bool = False) -> Compacted:
        """Drop unused data of a run; everything that any attempt recorded stays, except removed checkpoints.

        Args:
            workflow_id: the run; it need not exist.
            is_forced: compact even if little is gained.

        Raises:
            RunLockedError: another process owns the run.
            CheckpointCorruptedError: its record is damaged; nothing was changed.
        """
        ...


@runtime_checkable
class SweepsLeftovers(Protocol):
    """A store that can remove data that belongs to no run, while others work."""

    async def tidy(self) -> None:
        """Finish removals that a crash interrupted, and free space where this is cheap."""
        ...


@runtime_checkable
class PrunesRuns(Protocol):
    """A store that can scan and remove very many runs in bounded batches."""

    async def page_runs(self, before: RunInfo | None, limit: int) -> Sequence[RunInfo]:
        """Return runs, most recently started first, without loading them.

        Args:
            before: start after this run; None for the start.
            limit: at most this many.
        """
        ...

    async def stored_bytes(self, workflow_ids: Sequence[str]) -> Sequence[int]:
        """Return approximately how many bytes each run takes; 0 if it does not exist."""
        ...

    async def clear_unchanged(self, runs: Sequence[RunInfo]) -> Sequence[str]:
        """Remove those of the runs that nobody owns, that have no pin, and that are unchanged since they were listed.

        Args:
            runs: the runs as listed.

        Returns:
            The ids of the removed runs.
        """
        ...

    async def tidy(self) -> None:
        """Finish removals that a crash interrupted, and free space where this is cheap."""
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
