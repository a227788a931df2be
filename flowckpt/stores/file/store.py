"""Checkpoints in a local directory: the default store.

::

    .flowckpt/runs/RUN/00000001.jsonl   the segment of attempt 1: a JSON record a line
                       00000002.jsonl   the segment of attempt 2, which says what it continues
                       blobs/SHA256     large values, once per content
                       signals/ID.json  messages for the run, each written by its sender
                       lock             locked by the owner while it lives
                       head             how far the run has come, where there is a key
               store.json               which store this is, where there is a key

The protocol stands in `run` (claiming), `writer` (saving), `segment` and `image` (reading).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flowckpt.blocking import may_block, run_blocking
from flowckpt.lazy import LazyModule

if TYPE_CHECKING:
    from flowckpt.checkpoint import CheckpointData, Reason, selection
    from flowckpt.checkpoint.figures import StoreFigures
    from flowckpt.checkpoint.reference import CheckpointRef, Owner, RunInfo
    from flowckpt.checkpoint.signal import Signal
    from flowckpt.clock import Clock
    from flowckpt.filesystem import FileSystem
    from flowckpt.stores import figures
    from flowckpt.stores.base import Finding, Lease
    from flowckpt.stores.file import receiving, retaining
    from flowckpt.stores.retention import Compacted
    from flowckpt.stores.sealing import opening
    from flowckpt.stores.sealing.keys import KeyRing
else:  # needed once a run is saved or read; see flowckpt.lazy
    figures = LazyModule("flowckpt.stores.figures")
    receiving = LazyModule("flowckpt.stores.file.receiving")
    retaining = LazyModule("flowckpt.stores.file.retaining")
    selection = LazyModule("flowckpt.checkpoint.selection")
    opening = LazyModule("flowckpt.stores.sealing.opening")


class FileCheckpointStore:
    """Checkpoints in a local directory, safe against kill -9 and power cuts.

    Args:
        path: the store's directory; made at the first save.
        allow_filesystems: types of file systems to accept although their locks are unsound, as `("nfs4",)`.
        filesystem: the operating-system calls, for tests.
        clock: the time, for tests.
        key_file: a file with keys: records are authenticated, or encrypted, as its newest key says.
        keys: the keys themselves, in place of a file.
        compression: `none`, `gzip`, `zstd` or `auto`: how records and large values are packed where that pays.
        trust: take runs for true and whole that do not prove it with the key: records that were written without one, and
            an end that may be missing.

    Raises:
        KeyFileError: the key file is missing, is none, or is open to others than its owner.
        SettingError: two sources of keys, no such compression, or a package that is missing.

    Attributes:
        path: the directory, absolute.
        runs: the synchronous store behind this one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = ".flowckpt",
        *,
        allow_filesystems: Sequence[str] = (),
        filesystem: FileSystem | None = None,
        clock: Clock | None = None,
        key_file: str | os.PathLike[str] | None = None,
        keys: KeyRing | None = None,
        compression: str = "none",
        trust: bool = False,
    ) -> None:
        # Absolute from now on: a step that changes the directory of the process must not move the store.
        self.path = Path(path).absolute()
        protection = None
        if key_file is not None or keys is not None or compression != "none":
            protection = opening.protection_of(key_file, keys, compression, trust)
        self.runs = retaining.RetainedRuns(
            self.path, allowed=allow_filesystems, filesystem=filesystem, clock=clock, protection=protection
        )

    def __repr__(self) -> str:
        return f"FileCheckpointStore({str(self.path)!r})"

    # --- the five methods ------------------------------------------------------------------------------------------

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Append the checkpoint to its attempt's segment and sync it; see `CheckpointStore.save`."""
        if may_block():
            self.runs.save(workflow_id, data)
        else:
            await run_blocking(lambda: self.runs.save(workflow_id, data))

    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Return the newest checkpoint of that id; see `CheckpointStore.load`."""
        return await run_blocking(lambda: self.runs.load(workflow_id, checkpoint_id))

    async def load_latest(self, workflow_id: str, *, attempt: int | None = None) -> CheckpointData | None:
        """Return the newest checkpoint, of all or of an attempt; see `FiltersCheckpoints.load_latest`."""
        if attempt is not None:
            attempt = selection.Selection(attempt=attempt).attempt
        return await run_blocking(lambda: self.runs.latest(workflow_id, self.runs.image(workflow_id), attempt))

    async def clear(self, workflow_id: str) -> None:
        """Remove the run, behind a tombstone; see `CheckpointStore.clear`."""
        await run_blocking(lambda: self.runs.clear(workflow_id))

    async def list_checkpoints(
        self,
        workflow_id: str,
        *,
        attempt: int | None = None,
        reason: Reason | str | None = None,
        verified: bool | None = None,
        limit: int | None = None,
    ) -> Sequence[CheckpointRef]:
        """Return the run's checkpoints, newest first; see `FiltersCheckpoints.list_checkpoints`."""
        wanted = selection.Selection(attempt=attempt, reason=reason, verified=verified, limit=limit)
        return await run_blocking(lambda: wanted.of(self.runs.references(workflow_id)))

    # --- abilities -------------------------------------------------------------------------------------------------

    async def acquire(self, workflow_id: str, *, steal: bool = False) -> Lease:
        """Claim the run's next segment and read the run; see `OwnsRuns.acquire`."""
        return await run_blocking(lambda: self.runs.acquire(workflow_id, steal=steal))

    async def release(self, workflow_id: str) -> None:
        """Give the run up; see `OwnsRuns.release`."""
        await run_blocking(lambda: self.runs.release(workflow_id))

    async def owner(self, workflow_id: str) -> Owner | None:
        """Return who owns the run and is alive; see `OwnsRuns.owner`."""
        return await run_blocking(lambda: self.runs.owner(workflow_id))

    async def list_runs(self) -> Sequence[RunInfo]:
        """Return the runs, from the first and last lines of their segments; see `ListsRuns`."""
        return await run_blocking(self.runs.list_runs)

    async def describe_run(self, workflow_id: str) -> RunInfo | None:
        """Return one run as the list shows it; see `ListsRuns`."""
        return await run_blocking(lambda: self.runs.describe(workflow_id))

    async def delete_checkpoint(self, workflow_id: str, checkpoint_id: str) -> bool:
        """Append that the checkpoints of that id are deleted; see `DeletesCheckpoints`."""
        return await run_blocking(lambda: self.runs.delete(workflow_id, checkpoint_id))

    def note_begun(self, workflow_id: str, path: str) -> None:
        """Note in the lock file, without a sync, that a step begins; see `NotesBeginnings`."""
        owned = self.runs.owned.get(workflow_id)
        if owned is not None:
            owned.begun.add(path)

    async def begun_steps(self, workflow_id: str) -> tuple[int, tuple[str, ...]]:
        """Return what was noted last; see `NotesBeginnings`."""
        return await run_blocking(lambda: self.runs.begun_steps(workflow_id))

    async def load_attempt(self, workflow_id: str, attempt: int) -> CheckpointData | None:
        """Return the last checkpoint of an attempt, from the segments up to its own; see `KeepsAttempts`."""
        return await run_blocking(lambda: self.runs.latest_of_attempt(workflow_id, attempt))

    async def attempts(self, workflow_id: str) -> Sequence[int]:
        """Return the numbers of the segments that have a record; see `ListsAttempts`."""
        return await run_blocking(lambda: self.runs.attempts(workflow_id))

    async def list_attempt(self, workflow_id: str, attempt: int) -> Sequence[CheckpointRef]:
        """Return the checkpoints of an attempt, oldest first; see `ListsAttempts`."""
        return await run_blocking(lambda: self.runs.references_of_attempt(workflow_id, attempt))

    async def read_attempt(self, workflow_id: str, attempt: int) -> Sequence[CheckpointData]:
        """Return the checkpoints of an attempt whole, oldest first; see `ReadsAttempts`."""
        return await run_blocking(lambda: self.runs.data_of_attempt(workflow_id, attempt))

    async def receive_run(self, workflow_id: str, checkpoints: Callable[[], Iterable[CheckpointData]]) -> None:
        """Write a whole run beside the others and give it its name; see `ReceivesRuns`."""
        await run_blocking(lambda: receiving.receive_run(self.runs, workflow_id, checkpoints))

    async def share_values(self, source_id: str, workflow_id: str, sizes: Mapping[str, int]) -> None:
        """Give large values of one run a name in another; see `SharesValues`."""
        await run_blocking(lambda: self.runs.share(source_id, workflow_id, sizes))

    async def figures(self, workflow_id: str | None = None, *, limit: int = 10) -> StoreFigures:
        """Return what the store holds in figures, reading run by run; see `TellsFigures`."""
        return await figures.added_up(self, workflow_id, limit=limit)

    async def send_signal(self, workflow_id: str, signal: Signal) -> bool:
        """Write a message for a run to a file of its own and sync it; see `DeliversSignals`."""
        return await run_blocking(lambda: self.runs.send_signal(workflow_id, signal))

    async def signals(self, workflow_id: str) -> Sequence[Signal]:
        """Return the messages for a run; see `DeliversSignals`."""
        return await run_blocking(lambda: self.runs.signals(workflow_id))

    async def remove_signals(self, workflow_id: str, signal_ids: Collection[str]) -> None:
        """Remove messages; see `DeliversSignals`."""
        await run_blocking(lambda: self.runs.remove_signals(workflow_id, signal_ids))

    # --- retention -------------------------------------------------------------------------------------------------

    def evict_with_next_save(self, workflow_id: str, sequences: Sequence[int]) -> None:
        """Name checkpoints in the line of the next save that go with it; see `EvictsCheckpoints`."""
        owned = self.runs.owned.get(workflow_id)
        if owned is not None:
            owned.evict_with_next_save(sequences)

    async def delete_sequences(self, workflow_id: str, sequences: Sequence[int]) -> int:
        """Append that checkpoints are deleted; see `EvictsCheckpoints`."""
        return await run_blocking(lambda: self.runs.delete_sequences(workflow_id, sequences))

    async def pin(self, workflow_id: str, sequence: int) -> None:
        """Put an empty file beside the segments; see `PinsCheckpoints`."""
        await run_blocking(lambda: self.runs.pin(workflow_id, sequence))

    async def unpin(self, workflow_id: str, sequence: int) -> None:
        """Remove that file; see `PinsCheckpoints`."""
        await run_blocking(lambda: self.runs.unpin(workflow_id, sequence))

    async def pinned(self, workflow_id: str) -> frozenset[int]:
        """Return the pins, from the names of files; see `PinsCheckpoints`."""
        return await run_blocking(lambda: self.runs.pinned(workflow_id))

    async def compactable(self, after: str, limit: int) -> Sequence[str]:
        """Return runs, in the order of their directories; see `CompactsRuns`."""
        return await run_blocking(lambda: self.runs.compactable(after, limit))

    async def compact(self, workflow_id: str, *, is_forced: bool = False) -> Compacted:
        """Write the run into one segment, and remove the others and what no record names; see `CompactsRuns`."""
        return await run_blocking(lambda: self.runs.compact(workflow_id, is_forced=is_forced))

    async def page_runs(self, before: RunInfo | None, limit: int) -> Sequence[RunInfo]:
        """Return runs of a list that is read once, at the first page; see `PrunesRuns`."""
        return await run_blocking(lambda: self.runs.page(before, limit))

    async def stored_bytes(self, workflow_ids: Sequence[str]) -> Sequence[int]:
        """Return the sizes of the files; see `PrunesRuns`."""
        return await run_blocking(lambda: [self.runs.stored_bytes(each) for each in workflow_ids])

    async def clear_unchanged(self, runs: Sequence[RunInfo]) -> Sequence[str]:
        """Clear runs one by one, each looked at again under its lock; see `PrunesRuns`."""
        return await run_blocking(lambda: [each.workflow_id for each in runs if self.runs.clear_unchanged(each)])

    async def tidy(self) -> None:
        """Finish the clears that a crash cut short; see `PrunesRuns`."""
        await run_blocking(self.runs.tidy)

    async def check(self, workflow_id: str | None = None) -> Sequence[Finding]:
        """Read all segments and large values and verify them; see `ChecksIntegrity`."""
        return await run_blocking(lambda: self.runs.check(workflow_id))

    async def trust(self, workflow_id: str) -> None:
        """Take a run for true and whole from now on, though its record does not prove it. The store was told to `trust`.

        Args:
            workflow_id: a run that was begun without a key, or whose end cannot be proved.

        Raises:
            CheckpointNotFoundError: there is no such run.
            RunLockedError: another process owns it.
        """
        await run_blocking(lambda: self.runs.trust(workflow_id))

    def close(self) -> None:
        """Give up every run that this store owns."""
        self.runs.close()
