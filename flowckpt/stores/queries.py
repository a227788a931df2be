"""Questions about many runs, for every store: which there are, and what they hold in figures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.codec.blob import Blob
from flowckpt.core.records.listing import CheckpointRef, RunFilter
from flowckpt.core.records.statistics import RecordedAttempt, StoreStatistics, Tally
from flowckpt.core.system.attrs_base import FieldEquality
from flowckpt.core.system.declared import shell_word
from flowckpt.core.system.numbers import counted
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    DecodingError,
    ForeignRecordError,
    SettingError,
    UnauthenticatedRecordError,
)
from flowckpt.stores.adapted import CheckpointStore, adapt
from flowckpt.stores.base import Ability, StoreBase, refuse_failed
from flowckpt.stores.verifications import read_verifications

if TYPE_CHECKING:
    from flowckpt.core.records import CheckpointData, Status
    from flowckpt.core.records.listing import RunInfo


async def find_runs(store: CheckpointStore, wanted: RunFilter) -> Sequence[RunInfo]:
    """Return the selected runs of any store, most recently started first.

    Args:
        store: the store.
        wanted: the filter.

    Raises:
        SettingError: the store cannot list its runs.
        CheckpointStorageError: the medium failed.
    """
    return await adapt(store).find_runs(wanted)


async def runs_of_status(store: CheckpointStore, statuses: Collection[Status]) -> Sequence[RunInfo]:
    """Return the runs with one of some statuses, most recently started first.

    Args:
        store: the store.
        statuses: the statuses; a live owner distinguishes `running` from `crashed`.

    Raises:
        SettingError: the store cannot list its runs.
        CheckpointStorageError: the medium failed.
    """
    return await find_runs(store, RunFilter(statuses=frozenset(statuses)))


async def store_statistics(
    store: CheckpointStore, workflow_id: str | None = None, *, limit: int = 10
) -> StoreStatistics:
    """Return the statistics of any store.

    Args:
        store: the store.
        workflow_id: one run; all by default.
        limit: the number of largest runs, largest checkpoints and slowest steps, from 1.

    Raises:
        CheckpointNotFoundError: the run does not exist.
        SettingError: the limit is not a whole number from 1, or the store cannot list its runs.
        CheckpointStorageError: the medium failed.
    """
    if type(limit) is not int or limit < 1:
        raise SettingError(
            f"limit is a whole number from 1 on, not {limit!r:.80}", setting="limit", remedy="Write limit=10."
        )
    return await adapt(store).figures(workflow_id, limit=limit)


async def added_up(store: StoreBase, workflow_id: str | None, *, limit: int) -> StoreStatistics:
    """Return the figures of a store that only lists: its runs are read one at a time, twice for each attempt.

    Args:
        store: the store.
        workflow_id: one run; all of them where not given.
        limit: how many of the largest and the slowest.

    Raises:
        CheckpointNotFoundError: there is no such run.
        CheckpointCorruptedError: the one run that is asked for is damaged; of many, the damaged ones are named.
        SettingError: the store cannot list its runs.
    """
    tally = Tally(limit)
    if workflow_id is not None:
        info = await store.describe_run(workflow_id)
        if info is None:
            raise CheckpointNotFoundError(workflow_id)
        tally.add_run(info, await _attempts(store, workflow_id), await _verified_later(store, info))
        return tally.figures()
    survey = await store.survey_runs()
    refuse_failed(survey.unreadable)
    for finding in survey.unreadable:
        tally.add_unreadable(finding.workflow_id)
    for info in survey.runs:
        try:
            attempts = await _attempts(store, info.workflow_id)
            later = await _verified_later(store, info)
        except CheckpointCorruptedError:
            tally.add_unreadable(info.workflow_id)
        else:
            if attempts:  # else it was cleared meanwhile
                tally.add_run(info, attempts, later)
    return tally.figures()


async def _verified_later(store: StoreBase, info: RunInfo) -> Mapping[str, Mapping[str, int]]:
    return (await read_verifications(store, info.workflow_id, info.metadata)).claims


async def _attempts(store: StoreBase, workflow_id: str) -> list[RecordedAttempt]:
    if not store.has(Ability.ATTEMPTS):
        latest = await store.load_latest(workflow_id)
        references = await store.list_checkpoints(workflow_id)
        return [] if latest is None else [RecordedAttempt.of(references, latest, is_all=True)]
    found = []
    for number in await store.attempts(workflow_id):
        last = await store.load_attempt(workflow_id, number)
        if last is not None:
            found.append(RecordedAttempt.of(await store.list_attempt(workflow_id, number), last))
    return found


async def check_references(store: StoreBase, workflow_id: str, references: Iterable[CheckpointRef]) -> None:
    """Compare the list of a run's checkpoints, which a store may read from an index, with the records themselves.

    Raises:
        CheckpointCorruptedError: a record is damaged, or says something else than the list.
    """
    if not store.has(Ability.ATTEMPTS):
        return
    listed: dict[int, dict[int, CheckpointRef]] = {}
    for each in references:
        listed.setdefault(each.attempt, {})[each.sequence] = each
    for attempt, by_sequence in listed.items():
        for data in await _recorded(store, workflow_id, attempt, by_sequence):
            found = by_sequence.get(data.sequence)
            if found is not None and CheckpointRef.of(workflow_id, data, size=found.size) != found:
                raise CheckpointCorruptedError(
                    workflow_id, location=f"checkpoint {data.sequence}", detail="the list says something else of it"
                )


async def _recorded(
    store: StoreBase, workflow_id: str, attempt: int, listed: Mapping[int, CheckpointRef]
) -> Sequence[CheckpointData]:
    """Return the checkpoints of an attempt; if a part of it is damaged that no longer counts, those that are listed.

    Raises:
        CheckpointCorruptedError: one that is listed is damaged, or cannot be loaded by its id.
    """
    try:
        return await store.read_attempt(workflow_id, attempt)
    except CheckpointCorruptedError:
        found = [await store.load(workflow_id, each.checkpoint_id) for each in listed.values()]
        if {data.sequence for data in found} != listed.keys():
            raise
        return found


# What the upkeep of a run comes to.


@attrs.frozen(eq=False, repr=False)
class Compacted(FieldEquality):
    """The outcome of a compaction.

    Attributes:
        is_changed: whether anything was removed.
        bytes_freed: how many bytes were freed.
    """

    is_changed: bool = False
    bytes_freed: int = 0


# The damage in a run, read through any store, and its repair.

DAMAGE = CheckpointCorruptedError, ForeignRecordError, DecodingError
"""The errors of a record that is damaged, as opposed to one that cannot be read now."""


async def damaged_attempts(store: StoreBase, workflow_id: str) -> list[tuple[int, Exception]]:
    """Return the attempts of a run that cannot be read whole, and why; also those that no longer count.

    Args:
        store: where it lies; one that keeps no attempts has none.
        workflow_id: the run.
    """
    found: list[tuple[int, Exception]] = []
    if store.has(Ability.ATTEMPTS):
        for number in await store.attempts(workflow_id):
            try:
                read = await store.read_attempt(workflow_id, number)
                for data in read:
                    check_values(data.held_values)
                if read:
                    check_values(result.held_output for result in read[-1].step_results)
            except UnauthenticatedRecordError:  # older than the key: the current history holds what was trusted of it
                continue
            except DAMAGE as error:
                found.append((number, error))
    return found


def check_values(values: Iterable[Any]) -> None:
    """Read the large values among some.

    Raises:
        CheckpointCorruptedError: one is damaged or missing.
    """
    for held in values:
        if isinstance(held, Blob):
            held.content()


@attrs.frozen(eq=False, repr=False)
class Loss(FieldEquality):
    """A damaged part of a record.

    Attributes:
        place: the file, row or object.
        size: how many bytes of it are no longer used.
        detail: what is wrong with it.
    """

    place: str
    size: int
    detail: str

    def __str__(self) -> str:
        return f"{self.place}: {counted(self.size, 'byte')}: {self.detail}"


@attrs.frozen(eq=False, repr=False)
class Repaired(FieldEquality):
    """The outcome of a repair.

    Attributes:
        workflow_id: the run.
        aside: where the run is kept as it was; empty if nothing was damaged.
        lost: the damaged parts; empty also where all of them could be restored.
        checkpoints: how many checkpoints the run has now, those of earlier attempts included.
        steps: how many results its newest checkpoint holds.
        newest: the id of that checkpoint.
    """

    workflow_id: str
    aside: str
    lost: Sequence[Loss]
    checkpoints: int
    steps: int
    newest: str

    @property
    def is_changed(self) -> bool:
        """Whether anything was damaged."""
        return bool(self.aside)


async def whole_run(store: StoreBase, workflow_id: str) -> Sequence[CheckpointData]:
    """Return the checkpoints of all attempts of a run without an owner, attempt by attempt, oldest first.

    Raises:
        CheckpointCorruptedError: one is damaged.
    """
    read = [await store.read_attempt(workflow_id, attempt) for attempt in await store.attempts(workflow_id)]
    return [data for part in read for data in part]


def nothing_left(workflow_id: str, place: str) -> CheckpointCorruptedError:
    """Return the error of a repair that finds no checkpoint."""
    return CheckpointCorruptedError(
        workflow_id,
        location=place,
        detail="no checkpoint of it can be read",
        remedy="Restore the run from a backup, or remove it: 'flowckpt store clear "
        f"{shell_word(workflow_id)}'. Nothing was changed.",
    )
