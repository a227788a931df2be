"""Questions about many runs, for every store: which there are, and what they hold in figures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from flowckpt.core.records.listing import CheckpointRef, RunFilter
from flowckpt.core.records.statistics import RecordedAttempt, StoreStatistics, Tally
from flowckpt.errors import CheckpointCorruptedError, CheckpointNotFoundError, SettingError
from flowckpt.stores.base import Ability, CheckpointStore, StoreBase, adapt, refuse_failed

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
        tally.add_run(info, await _attempts(store, workflow_id))
        return tally.figures()
    survey = await store.survey_runs()
    refuse_failed(survey.unreadable)
    for finding in survey.unreadable:
        tally.add_unreadable(finding.workflow_id)
    for info in survey.runs:
        try:
            attempts = await _attempts(store, info.workflow_id)
        except CheckpointCorruptedError:
            tally.add_unreadable(info.workflow_id)
        else:
            if attempts:  # else it was cleared meanwhile
                tally.add_run(info, attempts)
    return tally.figures()


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
