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

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import attrs

from flowckpt.fieldwise import Fieldwise

if TYPE_CHECKING:
    from flowckpt.checkpoint import CheckpointData
    from flowckpt.checkpoint.figures import StoreFigures
    from flowckpt.checkpoint.reference import CheckpointRef, Owner, RunInfo
    from flowckpt.checkpoint.signal import Signal


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
