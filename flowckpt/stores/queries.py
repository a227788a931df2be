"""The figures of a store: asked of those that can tell them, added up from the lists of the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import attrs

from flowckpt.core.records.listing import CheckpointRef, RunFilter
from flowckpt.core.records.statistics import RecordedAttempt, StoreStatistics, Tally
from flowckpt.errors import CheckpointCorruptedError, CheckpointNotFoundError, SettingError
from flowckpt.stores.base import (
    CheckpointStore,
    Finding,
    KeepsAttempts,
    ListsAttempts,
    ListsRuns,
    ReadsAttempts,
    TellsFigures,
)

if TYPE_CHECKING:
    from flowckpt.core.records import Status
    from flowckpt.core.records.listing import RunInfo


# Finding runs: asked of the stores that have an index for it, picked from the whole list of the others.


@runtime_checkable
class FindsRuns(Protocol):
    """A store that can filter its runs without reading all of them."""

    async def find_runs(self, wanted: RunFilter) -> Sequence[RunInfo]:
        """Return the selected runs, most recently started first; prefer the function `find_runs`.

        Args:
            wanted: the filter.

        Raises:
            CheckpointStorageError: the medium failed.
        """
        ...


async def find_runs(store: CheckpointStore, wanted: RunFilter) -> Sequence[RunInfo]:
    """Return the selected runs of any store, most recently started first.

    Args:
        store: the store.
        wanted: the filter.

    Raises:
        SettingError: the store cannot list its runs.
        CheckpointStorageError: the medium failed.
    """
    if isinstance(store, FindsRuns):
        return await store.find_runs(wanted)
    return wanted.of(await listing(store).list_runs())


def listing(store: CheckpointStore) -> ListsRuns:
    """Return a store as one that lists its runs.

    Args:
        store: the store.

    Raises:
        SettingError: it cannot.
    """
    if not isinstance(store, ListsRuns):
        raise SettingError(
            f"{store!r} cannot list its runs",
            setting="store",
            remedy="Use a store that can (flowckpt.stores.base.ListsRuns).",
        )
    return store


# The runs of a store together with those that it cannot read: a list alone would be silent about these.


@attrs.frozen
class RunSurvey:
    """The runs of a store, and those that its list leaves out."""

    runs: Sequence[RunInfo]
    unreadable: Sequence[Finding] = ()


@runtime_checkable
class SurveysRuns(Protocol):
    """A store that can report the runs that its list leaves out; prefer the functions `surveyed` and `unreadable_runs`."""

    async def survey_runs(self, wanted: RunFilter | None = None) -> RunSurvey:
        """Return the runs, and those that the list leaves out.

        Args:
            wanted: the filter; all by default. A store with an index reports only unreadable runs that it comes across.

        Raises:
            CheckpointStorageError: the medium failed.
        """
        ...

    async def unreadable_runs(self) -> Sequence[Finding]:
        """Return only the runs that the list leaves out.

        Raises:
            CheckpointStorageError: the medium failed.
        """
        ...


async def surveyed(store: CheckpointStore, wanted: RunFilter | None = None) -> RunSurvey:
    """Return the runs of a store, and those that its list leaves out, if the store can report them.

    Args:
        store: the store.
        wanted: the filter; all by default.

    Raises:
        SettingError: the store cannot list its runs.
        CheckpointStorageError: the medium failed.
    """
    if isinstance(store, SurveysRuns):
        return await store.survey_runs(wanted)
    runs = await listing(store).list_runs()
    return RunSurvey(runs if wanted is None else wanted.of(runs))


async def unreadable_runs(store: CheckpointStore) -> Sequence[Finding]:
    """Return the runs that the list of a store leaves out, if the store can report them."""
    return await store.unreadable_runs() if isinstance(store, SurveysRuns) else ()


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
    if isinstance(store, TellsFigures):
        return await store.figures(workflow_id, limit=limit)
    return await added_up(store, workflow_id, limit=limit)


async def added_up(store: CheckpointStore, workflow_id: str | None, *, limit: int) -> StoreStatistics:
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
    if not isinstance(store, ListsRuns):
        raise SettingError(
            f"{store!r} cannot list its runs, so there is nothing to count",
            setting="store",
            remedy="Use a store that can (flowckpt.stores.base.ListsRuns).",
        )
    tally = Tally(limit)
    if workflow_id is not None:
        info = await store.describe_run(workflow_id)
        if info is None:
            raise CheckpointNotFoundError(workflow_id)
        tally.add_run(info, await _attempts(store, workflow_id))
        return tally.figures()
    survey = await surveyed(store)
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


async def _attempts(store: CheckpointStore, workflow_id: str) -> list[RecordedAttempt]:
    if not (isinstance(store, ListsAttempts) and isinstance(store, KeepsAttempts)):
        latest = await store.load_latest(workflow_id)
        references = await store.list_checkpoints(workflow_id)
        return [] if latest is None else [RecordedAttempt.of(references, latest, is_all=True)]
    found = []
    for number in await store.attempts(workflow_id):
        last = await store.load_attempt(workflow_id, number)
        if last is not None:
            found.append(RecordedAttempt.of(await store.list_attempt(workflow_id, number), last))
    return found


# The runs of some statuses.


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


async def check_references(store: CheckpointStore, workflow_id: str, references: Iterable[CheckpointRef]) -> None:
    """Compare the list of a run's checkpoints, which a store may read from an index, with the records themselves.

    Raises:
        CheckpointCorruptedError: a record is damaged, or says something else than the list.
    """
    if not isinstance(store, ReadsAttempts):
        return
    listed: dict[int, dict[int, CheckpointRef]] = {}
    for each in references:
        listed.setdefault(each.attempt, {})[each.sequence] = each
    for attempt, by_sequence in listed.items():
        for data in await store.read_attempt(workflow_id, attempt):
            found = by_sequence.get(data.sequence)
            if found is not None and CheckpointRef.of(workflow_id, data, size=found.size) != found:
                raise CheckpointCorruptedError(
                    workflow_id, location=f"checkpoint {data.sequence}", detail="the list says something else of it"
                )
