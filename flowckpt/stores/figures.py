"""The figures of a store: asked of those that can tell them, added up from the lists of the others."""

from __future__ import annotations

from flowckpt.checkpoint.figures import StoreFigures
from flowckpt.checkpoint.tally import RecordedAttempt, Tally
from flowckpt.errors import CheckpointCorruptedError, CheckpointNotFoundError, SettingError
from flowckpt.stores.base import CheckpointStore, KeepsAttempts, ListsAttempts, ListsRuns, TellsFigures
from flowckpt.stores.surveying import surveyed


async def store_figures(store: CheckpointStore, workflow_id: str | None = None, *, limit: int = 10) -> StoreFigures:
    """Return what a store holds, in figures.

    Args:
        store: the store.
        workflow_id: one run; all of them where not given.
        limit: how many of the largest runs and checkpoints and of the slowest steps.

    Raises:
        CheckpointNotFoundError: there is no such run.
        SettingError: the limit is no number from 1 on, or the store cannot list its runs.
        CheckpointStorageError: the medium failed.
    """
    if type(limit) is not int or limit < 1:
        raise SettingError(
            f"limit is a whole number from 1 on, not {limit!r:.80}", setting="limit", remedy="Write limit=10."
        )
    if isinstance(store, TellsFigures):
        return await store.figures(workflow_id, limit=limit)
    return await added_up(store, workflow_id, limit=limit)


async def added_up(store: CheckpointStore, workflow_id: str | None, *, limit: int) -> StoreFigures:
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
