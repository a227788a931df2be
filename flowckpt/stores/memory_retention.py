"""How the store in memory is kept small."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from flowckpt.errors import CheckpointNotFoundError, RunLockedError
from flowckpt.lazy import LazyModule

if TYPE_CHECKING:
    from flowckpt.checkpoint.reference import RunInfo
    from flowckpt.codec import checkpoints
    from flowckpt.stores import retention
    from flowckpt.stores.retention import Compacted
else:  # a run needs none of it
    checkpoints = LazyModule("flowckpt.codec.checkpoints")
    retention = LazyModule("flowckpt.stores.retention")


class MemoryRetention:
    """The part of the store in memory that forgets; `_runs` is what the store holds, by run."""

    _runs: dict[str, Any]

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def evict_with_next_save(self, workflow_id: str, sequences: Sequence[int]) -> None:
        """Let the next save remove checkpoints, too; see `EvictsCheckpoints`."""
        run = self._runs.get(workflow_id)
        if run is not None and run.is_owned:
            run.evicted.update(sequences)

    @staticmethod
    def _delete_evicted(run: Any) -> None:
        """Mark what goes with the save that was just made; found by halving, so it costs the same in a long run."""
        for sequence in run.evicted:
            place = bisect_left(run.records, sequence, key=lambda record: record.sequence)
            if place < len(run.records) - 1 and run.records[place].sequence == sequence:
                run.records[place].is_deleted = True
        run.evicted = set()

    async def delete_checkpoint(self, workflow_id: str, checkpoint_id: str) -> bool:
        """Remove the checkpoints of that id; see `DeletesCheckpoints`."""
        run = self._runs.get(workflow_id)
        if run is None:
            return False
        doomed = [record for record in run.live if record.head["checkpoint_id"] == checkpoint_id]
        return await self._delete(workflow_id, run, doomed) > 0

    async def _delete(self, workflow_id: str, run: Any, doomed: Sequence[Any]) -> int:
        if not doomed:
            return 0
        is_mine = run.is_owned
        if not is_mine:
            self._claimed(workflow_id, 0)  # type: ignore[attr-defined]
        if not run.is_adopted:
            self._go_back_to(run, self._history(run, run.live[-1].results).view())  # type: ignore[attr-defined]
        run.is_adopted = True
        run.written_by.add(run.attempt)
        for record in doomed:
            record.is_deleted = True
        if not is_mine:
            await self.release(workflow_id)  # type: ignore[attr-defined]
        return len(doomed)

    async def delete_sequences(self, workflow_id: str, sequences: Sequence[int]) -> int:
        """Remove checkpoints; see `EvictsCheckpoints`."""
        run = self._runs.get(workflow_id)
        if run is None:
            return 0
        return await self._delete(workflow_id, run, [each for each in run.live if each.sequence in sequences])

    async def pin(self, workflow_id: str, sequence: int) -> None:
        """Remember that a checkpoint is pinned; see `PinsCheckpoints`."""
        run = self._runs.get(workflow_id)
        if run is None or all(each.sequence != sequence for each in run.live):
            raise CheckpointNotFoundError(workflow_id, None if run is None or not run.live else str(sequence))
        run.pins.add(sequence)

    async def unpin(self, workflow_id: str, sequence: int) -> None:
        """Forget a pin; see `PinsCheckpoints`."""
        if workflow_id in self._runs:
            self._runs[workflow_id].pins.discard(sequence)

    async def pinned(self, workflow_id: str) -> frozenset[int]:
        """Return the pins; see `PinsCheckpoints`."""
        run = self._runs.get(workflow_id)
        return frozenset() if run is None else frozenset(run.pins)

    # --- one run ---------------------------------------------------------------------------------------------------

    async def compactable(self, after: str, limit: int) -> Sequence[str]:
        """Return the runs that hold deleted checkpoints, in the order of their ids; see `CompactsRuns`."""
        found = (run for run in sorted(self._runs) if run > after)
        return [run for run in found if any(each.is_deleted for each in self._runs[run].records)][:limit]

    async def compact(self, workflow_id: str, *, is_forced: bool = False) -> Compacted:
        """Let go of deleted checkpoints and of values that only they had; see `CompactsRuns`."""
        del is_forced  # it costs little
        run = self._runs.get(workflow_id)
        if run is None:
            return retention.Compacted()
        if run.is_owned:
            raise RunLockedError(workflow_id, holder=f"this process, attempt {run.attempt}")
        before = _size(run)
        for record, following in pairwise(run.records):
            if record.is_deleted:  # what later heads leave out, because it stands here, moves on
                carried = {name: record.head[name] for name in checkpoints.CARRIED if name in record.head}
                following.head.update({**carried, **following.head})
        run.records = [
            record for place, record in enumerate(run.records) if not record.is_deleted or place == len(run.records) - 1
        ]
        named = _texts_of(run)
        run.blobs = {digest: content for digest, content in run.blobs.items() if any(digest in each for each in named)}
        freed = before - _size(run)
        return retention.Compacted(freed > 0, freed)

    # --- many runs -------------------------------------------------------------------------------------------------

    async def page_runs(self, before: RunInfo | None, limit: int) -> Sequence[RunInfo]:
        """Return runs, the one started last first; see `PrunesRuns`."""
        runs: list[RunInfo] = sorted(await self.list_runs(), key=_place, reverse=True)  # type: ignore[attr-defined]
        return [info for info in runs if before is None or _place(info) < _place(before)][:limit]

    async def stored_bytes(self, workflow_ids: Sequence[str]) -> Sequence[int]:
        """Return how much results, heads and large values take; see `PrunesRuns`."""
        return [_size(self._runs[each]) if each in self._runs else 0 for each in workflow_ids]

    async def clear_unchanged(self, runs: Sequence[RunInfo]) -> Sequence[str]:
        """Forget those of the runs that nobody owns and that stand as they did; see `PrunesRuns`."""
        gone = []
        for info in runs:
            run = self._runs.get(info.workflow_id)
            now = await self.describe_run(info.workflow_id)  # type: ignore[attr-defined]
            if run is not None and not run.is_owned and not run.pins and now == info:
                del self._runs[info.workflow_id]
                gone.append(info.workflow_id)
        return gone

    async def tidy(self) -> None:
        """Do nothing: nothing is ever left half removed here."""


def _place(info: RunInfo) -> tuple[Any, str]:
    return info.started_at, info.workflow_id


def _texts_of(run: Any) -> list[str]:
    states = [*run.former, run]
    return [repr(each.head) for state in states for each in state.records] + [
        text.decode() for state in states for text in state.encoded
    ]


def _size(run: Any) -> int:
    heads = sum(len(repr(record.head)) for record in run.records)
    return heads + sum(map(len, run.encoded)) + sum(map(len, run.blobs.values()))
