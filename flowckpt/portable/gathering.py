"""All checkpoints of a run, read out of a store: those that no longer count, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from flowckpt.checkpoint import CheckpointData, History, PartialState
from flowckpt.checkpoint.reference import Owner
from flowckpt.codec.blob import Blob
from flowckpt.codec.results import as_view, plain_tree
from flowckpt.errors import CheckpointNotFoundError, StoreAbilityError
from flowckpt.portable.standing import LeftBehind
from flowckpt.stores.base import CheckpointStore, ListsAttempts, OwnsRuns, ReadsAttempts


@attrs.frozen
class Gathered:
    """A run as a store has it.

    Attributes:
        workflow_id: the run.
        checkpoints: all its checkpoints, attempt by attempt and the oldest first.
        owner: the process that runs it, so that it may have gone on since; None where it rests.
    """

    workflow_id: str
    checkpoints: Sequence[CheckpointData]
    owner: Owner | None = None

    @property
    def latest(self) -> CheckpointData:
        """Its newest checkpoint."""
        return self.checkpoints[-1]

    @property
    def left_behind(self) -> int:
        """How many of its checkpoints no longer count."""
        standing = LeftBehind()
        for data in self.checkpoints:
            standing.add(data)
        return standing.count

    def afresh(self) -> Iterator[CheckpointData]:
        """Return the checkpoints for a store that is to save them.

        A store takes the large values of what it has saved for its own, so each time they are made anew. And what a
        run says once is the very same object in all checkpoints that say it, so that the store writes it once.
        """
        history = History()
        before: CheckpointData | None = None
        for data in self.checkpoints:
            view = as_view(data.step_results)
            if before is None or before.attempt != data.attempt:
                history, before = History(), None
            for index in range(len(history.results), len(view)):
                result, blobs = view.history.results[index], view.history.blobs.get(index, {})
                mine = {digest: _again(blob) for digest, blob in blobs.items()}
                if mine:
                    result = attrs.evolve(result, output=next(iter(mine.values())))
                history.append(result, view.history.encoded[index], mine)
            changed: dict[str, Any] = {
                name: _again(held)
                for name, held in (
                    ("inputs", data.held_inputs),
                    ("snapshot", data.held_snapshot),
                    ("output", data.held_output),
                )
                if isinstance(held, Blob)
            }
            if any(isinstance(each.held_state, Blob) for each in data.partial.values()):
                changed["partial"] = {path: _partial_again(each) for path, each in data.partial.items()}
            if before is not None and _has_same_inputs(data, before):
                changed["inputs"] = before.held_inputs
            if before is not None and data.metadata == before.metadata:
                changed["metadata"] = before.metadata
            before = attrs.evolve(data, step_results=history.view(len(view)), **changed)
            yield before


def _again(blob: Blob) -> Blob:
    def fetch(digest: str, size: int) -> bytes:
        del digest, size
        return blob.content()

    return Blob(blob.digest, blob.size, fetch=fetch)


def _partial_again(partial: PartialState) -> PartialState:
    held = partial.held_state
    return attrs.evolve(partial, state=_again(held)) if isinstance(held, Blob) else partial


def _has_same_inputs(data: CheckpointData, before: CheckpointData) -> bool:
    mine, others = data.held_inputs, before.held_inputs
    if isinstance(mine, Blob) or isinstance(others, Blob):
        return isinstance(mine, Blob) and isinstance(others, Blob) and mine.digest == others.digest
    return bool(plain_tree(mine, "inputs") == plain_tree(others, "inputs"))


async def _attempts(store: CheckpointStore, workflow_id: str, newest: int) -> Sequence[int]:
    """Return the attempts that may have saved something, the newest first.

    Their numbers may have gaps, of any width: a file that was imported says them.
    """
    if not isinstance(store, ListsAttempts):
        return range(newest, 0, -1)
    return [number for number in reversed(await store.attempts(workflow_id)) if number <= newest]


async def gathered(store: CheckpointStore, workflow_id: str) -> Gathered:
    """Read all checkpoints of a run. It may go on meanwhile: what is read is the run as of one of its checkpoints.

    Args:
        store: where it lies.
        workflow_id: the run.

    Raises:
        CheckpointNotFoundError: there is no such run.
        CheckpointCorruptedError: a record is damaged.
        StoreAbilityError: the store cannot read what no longer counts.
    """
    if not isinstance(store, ReadsAttempts):
        raise StoreAbilityError(repr(store), ability="ReadsAttempts", purpose="hand out a whole run")
    latest = await store.load_latest(workflow_id)
    if latest is None:
        raise CheckpointNotFoundError(workflow_id)
    found: list[Sequence[CheckpointData]] = []
    # Behind the newest checkpoint stands, in its own attempt, what a later one left behind whose checkpoints were deleted.
    bound = latest.sequence + 1
    for attempt in await _attempts(store, workflow_id, latest.attempt):
        # What a fenced writer appended when its successor had read the run was never acknowledged, and its sequences
        # were given again.
        part = [
            data
            for data in await store.read_attempt(workflow_id, attempt)
            if data.attempt == attempt and data.sequence < bound
        ]
        if part:
            found.append(part)
            bound = part[0].sequence
    checkpoints = [data for part in reversed(found) for data in part]
    if not checkpoints:
        raise CheckpointNotFoundError(workflow_id, detail="it was cleared meanwhile")
    owner = await store.owner(workflow_id) if isinstance(store, OwnsRuns) else None
    return Gathered(workflow_id, checkpoints, owner)
