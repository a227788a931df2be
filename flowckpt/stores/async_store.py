"""Async methods for a store that works in place: on a worker thread, or in place if nothing else could run meanwhile."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from flowckpt.core.system.blocking import may_block, run_blocking
from flowckpt.errors import CheckpointStorageError
from flowckpt.stores.base import StoreBase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowckpt.core.records import CheckpointData
    from flowckpt.errors import FencedError
    from flowckpt.stores.runs_base import RunsBase

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R", bound="RunsBase[Any]")


def in_runs(method: F) -> F:
    """Return a method that calls the method of the same name of the store's `runs`.

    Args:
        method: of `StoreBase`; it gives the name, the signature and the docstring.
    """
    name = method.__name__

    @functools.wraps(method)
    async def call(self: BlockingStore[Any], *given: Any, **options: Any) -> Any:
        return await self._run(functools.partial(getattr(self.runs, name), *given, **options))

    call.__dict__.pop("__isabstractmethod__", None)
    return cast("F", call)


class BlockingStore(StoreBase, Generic[R]):
    """A store whose runs are read and written in place.

    Attributes:
        runs: the runs, with a synchronous method for each of the store's.
    """

    runs: R

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Make a checkpoint durable; see `CheckpointStore.save`."""
        if may_block():
            self.runs.save(workflow_id, data)
        else:
            await self._run(lambda: self.runs.save(workflow_id, data))

    async def _run(self, work: Callable[[], Any]) -> Any:
        return await run_blocking(work)

    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Return the newest checkpoint of that id; see `CheckpointStore.load`."""
        try:
            return await self._load(workflow_id, checkpoint_id)
        except CheckpointStorageError as error:
            error.ref = error.ref or f"{workflow_id}@{checkpoint_id}"
            raise

    _load = in_runs(StoreBase.load)
    load_latest = in_runs(StoreBase.load_latest)
    clear = in_runs(StoreBase.clear)
    list_checkpoints = in_runs(StoreBase.list_checkpoints)
    acquire = in_runs(StoreBase.acquire)
    begin_generation = in_runs(StoreBase.begin_generation)
    release = in_runs(StoreBase.release)
    owner = in_runs(StoreBase.owner)
    list_runs = in_runs(StoreBase.list_runs)
    survey_runs = in_runs(StoreBase.survey_runs)
    unreadable_runs = in_runs(StoreBase.unreadable_runs)
    describe_run = in_runs(StoreBase.describe_run)
    delete_checkpoint = in_runs(StoreBase.delete_checkpoint)
    delete_sequences = in_runs(StoreBase.delete_sequences)
    load_attempt = in_runs(StoreBase.load_attempt)
    attempts = in_runs(StoreBase.attempts)
    list_attempt = in_runs(StoreBase.list_attempt)
    read_attempt = in_runs(StoreBase.read_attempt)
    receive_run = in_runs(StoreBase.receive_run)
    share_values = in_runs(StoreBase.share_values)
    send_signal = in_runs(StoreBase.send_signal)
    signals = in_runs(StoreBase.signals)
    remove_signals = in_runs(StoreBase.remove_signals)
    check = in_runs(StoreBase.check)
    repair = in_runs(StoreBase.repair)
    tidy = in_runs(StoreBase.tidy)
    read_index = in_runs(StoreBase.read_index)
    write_index = in_runs(StoreBase.write_index)
    clear_index = in_runs(StoreBase.clear_index)
    live_note = in_runs(StoreBase.live_note)

    def note_live(self, workflow_id: str, content: bytes) -> None:
        """Replace the live note of an owned run; see `StoreBase.note_live`."""
        writer = self.runs.owned.get(workflow_id)
        if writer is not None and writer.is_mine:
            self.runs.note_live(writer, content)

    def call_when_lost(self, workflow_id: str, tell: Callable[[FencedError], None]) -> None:
        """Call a function once an owned run is lost; see `StoreBase.call_when_lost`."""
        self.runs.call_when_lost(workflow_id, tell)

    def evict_with_next_save(self, workflow_id: str, sequences: Sequence[int]) -> None:
        """Remove checkpoints in the same write as the next save."""
        self.runs.evict_with_next_save(workflow_id, sequences)

    def close(self) -> None:
        """Release every run that this store owns, and all its resources."""
        self.runs.close()


class RetainingStore(BlockingStore[R]):
    """A store whose runs can also be pinned, compacted, and removed in bounded batches."""

    pin = in_runs(StoreBase.pin)
    unpin = in_runs(StoreBase.unpin)
    pinned = in_runs(StoreBase.pinned)
    compactable = in_runs(StoreBase.compactable)
    compact = in_runs(StoreBase.compact)
    page_runs = in_runs(StoreBase.page_runs)
    stored_bytes = in_runs(StoreBase.stored_bytes)
    clear_unchanged = in_runs(StoreBase.clear_unchanged)
