"""Removal of runs that are no longer needed, in bounded batches, and compaction of the remaining ones.

It can crash anywhere and be repeated: each run is removed completely or not at all, and the store checks again at the
moment of removal whether the run may be removed.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import attrs

from flowckpt.core.records import Status
from flowckpt.core.records.listing import RunInfo, is_task
from flowckpt.core.system.clock import Clock, SystemClock
from flowckpt.core.system.declared import shell_word
from flowckpt.core.system.numbers import age_of, check_number
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    DiskFullError,
    FlowckptError,
    RunLockedError,
    SettingError,
)
from flowckpt.maintenance import task_log
from flowckpt.maintenance.retention import (
    ALL_IN_THE_NEWEST,
    Resting,
    Retention,
    check_count,
    removable,
)
from flowckpt.stores.adapted import adapt
from flowckpt.stores.base import Ability, StoreBase, refuse_failed
from flowckpt.stores.leases import release_lease
from flowckpt.stores.queries import check_references

if TYPE_CHECKING:
    from flowckpt.core.records.listing import CheckpointRef


T = TypeVar("T")
_log = logging.getLogger("flowckpt")
FINISHED = frozenset({Status.COMPLETED})
"""The statuses removed by default: a run with any other status can be resumed."""

_PAGE = 200
_REMEDY = (
    "Remove other runs first ('flowckpt store clear RUN', 'flowckpt store prune --keep N' or '--older-than AGE'), or make "
    "room elsewhere; then repeat the command. Acknowledged checkpoints are not lost."
)
_CHANGED = "it has changed meanwhile"


@attrs.frozen
class PrunedRun:
    """A run that was, or would be, removed.

    Attributes:
        workflow_id: its id.
        workflow_name: its workflow.
        status: its status.
        updated_at: when its newest checkpoint was saved.
        size: approximately how many bytes it took; None if unknown, as in object storage.
    """

    workflow_id: str
    workflow_name: str
    status: Status
    updated_at: datetime
    size: int | None


@attrs.define
class PruneReport:
    """The outcome of `prune`.

    Attributes:
        runs: the runs that were, or would be, removed; empty if they were passed to `on_run`.
        removed: the number of runs removed.
        removed_bytes: approximately how many bytes they took, as far as known.
        unsized: how many removed runs have an unknown size.
        compacted: the number of runs that were compacted or freed of unused values.
        compacted_bytes: how many bytes this freed.
        skipped: why a run was not removed or compacted, by its id.
        unreadable: the damaged runs, which always stay.
        matched: the number of runs with the workflow and statuses given; None if no run was to be removed.
    """

    runs: list[PrunedRun] = attrs.field(factory=list)
    removed: int = 0
    removed_bytes: int = 0
    unsized: int = 0
    compacted: int = 0
    compacted_bytes: int = 0
    skipped: dict[str, str] = attrs.field(factory=dict)
    unreadable: list[str] = attrs.field(factory=list)
    matched: int | None = None


@attrs.frozen
class _Conditions:
    """The conditions for removing a run, all of which must hold."""

    keep: int
    older_than: timedelta | None
    statuses: frozenset[Status]
    workflow: str | None


async def prune(
    store: StoreBase,
    *,
    keep: int | None = None,
    older_than: timedelta | float | str | None = None,
    statuses: Collection[Status | str] = FINISHED,
    workflow: str | None = None,
    is_dry_run: bool = False,
    clock: Clock | None = None,
    on_run: Callable[[PrunedRun], None] | None = None,
) -> PruneReport:
    """Remove runs that meet every condition given, and free unused space of the others.

    Without `keep` and `older_than` no run is removed. Runs that a live process owns and runs with a pinned checkpoint
    are never removed.

    Args:
        store: the store.
        keep: keep this many of the newest runs of each workflow with such a status; 0 for none.
        older_than: the minimum age of the newest checkpoint: a `timedelta`, seconds, or text such as `30d`.
        statuses: the statuses of runs to remove, never `running`; only completed runs by default, because all others
            can be resumed.
        workflow: only runs of this workflow.
        is_dry_run: remove nothing, only report.
        clock: the time, for tests.
        on_run: called with each removed run instead of listing it in the report, for very many runs.

    Raises:
        SettingError: a value is out of its range, or the store cannot list its runs.
        CheckpointStorageError: the store failed.
    """
    store = adapt(store)
    remedy = "Write how many of the newest runs of each workflow are to stay."
    conditions = _Conditions(
        check_number(0 if keep is None else keep, "keep", remedy, least=0) or 0,
        None if older_than is None else age_of(older_than, "older_than"),
        _check_statuses(statuses),
        workflow,
    )
    report = PruneReport()
    if not (store.has(Ability.LIST) or store.has(Ability.PRUNE)):
        store.lacks(Ability.LIST, "list its runs")
    findings = await store.unreadable_runs()
    refuse_failed(findings)
    report.unreadable = [each.workflow_id for each in findings if each.severity == "corrupt"]
    if not is_dry_run:
        await store.tidy()
    if keep is not None or older_than is not None:
        now, report.matched = (clock or SystemClock()).now(), 0
        async for batch in _split_into_batches(_select_runs(store, conditions, now, report)):
            await _remove(store, batch, report, on_run, is_dry_run=is_dry_run)
    if not is_dry_run:
        await _compact_all(store, report)
        await store.tidy()
    return report


async def _select_runs(
    store: StoreBase, conditions: _Conditions, now: datetime, report: PruneReport
) -> AsyncIterator[RunInfo]:
    counts: Counter[str] = Counter()
    async for info in _iterate_newest_first(store):
        if info.status not in conditions.statuses or conditions.workflow not in (None, info.workflow_name):
            continue
        report.matched = (report.matched or 0) + 1
        if counts[info.workflow_name] < conditions.keep:
            counts[info.workflow_name] += info.owner is not None or await _verify_or_report(
                store, info, conditions, report
            )
            continue
        is_old = conditions.older_than is None or now - info.updated_at > conditions.older_than
        if is_old and info.owner is None and await _verify_or_report(store, info, conditions, report):
            yield info


async def _verify_or_report(store: StoreBase, info: RunInfo, conditions: _Conditions, report: PruneReport) -> bool:
    """Return whether the verified record of a run matches the list; otherwise report the run as unreadable.

    A list reads one line or row of a run: one changed byte there must not remove a run or make it count as the newest.
    """
    workflow_id = info.workflow_id
    try:
        newest = await store.load_latest(workflow_id)
        oldest = None
        if conditions.keep and newest is not None:
            oldest = min(await store.list_checkpoints(workflow_id), key=lambda each: each.sequence, default=None)
        field = "" if newest is None else info.contradicted_by(newest, oldest)
        if newest is not None and not field:
            return True
        again = await store.describe_run(workflow_id)
        if again != info:  # it was saved to, or cleared, since it was listed
            return again is not None
        detail = f"its {field} in the list differs from its record" if field else "it has no checkpoint"
        raise CheckpointCorruptedError(workflow_id, location="list of runs", detail=detail)
    except CheckpointCorruptedError as error:
        report.skipped[workflow_id] = error.message
        if workflow_id not in report.unreadable:
            report.unreadable.append(workflow_id)
        return False


async def _iterate_newest_first(store: StoreBase) -> AsyncIterator[RunInfo]:
    last: RunInfo | None = None
    while page := await store.page_runs(last, _PAGE):
        for info in page:
            yield info
        last = page[-1]


async def _split_into_batches(runs: AsyncIterator[RunInfo]) -> AsyncIterator[list[RunInfo]]:
    batch: list[RunInfo] = []
    async for info in runs:
        batch.append(info)
        if len(batch) == _PAGE:
            yield batch
            batch = []
    if batch:
        yield batch


async def _remove(
    store: StoreBase,
    batch: list[RunInfo],
    report: PruneReport,
    on_run: Callable[[PrunedRun], None] | None,
    *,
    is_dry_run: bool,
) -> None:
    ids = [info.workflow_id for info in batch]
    sizes = await store.stored_bytes(ids)
    if is_dry_run:
        gone = {each for each in ids if not await store.pinned(each)}
    else:
        gone = {*await store.clear_unchanged(batch)}
    for info, size in zip(batch, sizes, strict=True):
        if info.workflow_id not in gone:
            is_pinned = await store.pinned(info.workflow_id)
            report.skipped[info.workflow_id] = "it is pinned" if is_pinned else _CHANGED
            continue
        report.removed += 1
        report.removed_bytes += size or 0
        report.unsized += size is None
        run = PrunedRun(info.workflow_id, info.workflow_name, info.status, info.updated_at, size)
        (report.runs.append if on_run is None else on_run)(run)


async def _compact_all(store: StoreBase, report: PruneReport) -> None:
    last = ""
    while page := await store.compactable(last, _PAGE):
        for workflow_id in page:
            try:
                done = await _with_reserve(store, lambda workflow_id=workflow_id: store.compact(workflow_id))  # type: ignore[misc]
            except RunLockedError:  # it is running, and will be compacted another time
                continue
            except FlowckptError as error:
                _log.warning("run %s was not made smaller: %s", workflow_id, error.message)
                report.skipped[workflow_id] = error.message
                if isinstance(error, CheckpointCorruptedError) and workflow_id not in report.unreadable:
                    report.unreadable.append(workflow_id)
                continue
            report.compacted += done.is_changed
            report.compacted_bytes += done.bytes_freed
        last = page[-1]


def _check_statuses(statuses: Collection[Status | str]) -> frozenset[Status]:
    try:
        chosen = frozenset(Status(each) for each in ([statuses] if isinstance(statuses, str) else statuses))
    except ValueError as error:
        raise SettingError(f"statuses: {error}", setting="statuses", remedy="Write those of Status.") from error
    if Status.RUNNING in chosen:
        raise SettingError(
            "a running run is never pruned",
            setting="statuses",
            remedy="One whose process has died is 'crashed'. Stop the other ones first.",
        )
    return chosen


# Manual removal of a run's old checkpoints: selected first, and selected again while this process owns the run.


async def prune_checkpoints(
    store: StoreBase,
    workflow_id: str,
    *,
    keep: int | None = None,
    older_than: timedelta | float | str | None = None,
    max_bytes: int | None = None,
    is_dry_run: bool = False,
    clock: Clock | None = None,
) -> tuple[Sequence[int], int]:
    """Remove checkpoints of one run that meet every condition given, and make the run smaller.

    Without conditions none is removed. The newest checkpoint, the newest verified one, pinned ones, and those that a
    `CheckpointManager` task depends on are never removed.

    Args:
        store: the store.
        workflow_id: the run.
        keep: keep this many of the newest, from 1; for a task, committed steps.
        older_than: the minimum age: a `timedelta`, seconds, or text such as `30d`.
        max_bytes: only those that do not fit into this many bytes together with the newer ones, from 1.
        is_dry_run: remove nothing, only report.
        clock: the time, for tests.

    Returns:
        The removed sequences, oldest first, and how many bytes were freed.

    Raises:
        CheckpointNotFoundError: the run does not exist.
        RunLockedError: another process owns it.
        SettingError: a value is out of its range, or the store cannot delete single checkpoints.
    """
    store = adapt(store)
    conditions = Retention(
        keep_last=check_count(keep, "keep"),
        max_age=None if older_than is None else age_of(older_than, "older_than"),
        max_bytes=check_count(max_bytes, "max_bytes"),
    )
    now = (clock or SystemClock()).now()
    selected = await _select_checkpoints(store, workflow_id, conditions, now)
    if not store.has(Ability.EVICT):
        raise SettingError(f"{store!r} cannot remove single checkpoints", setting="store", remedy="Clear whole runs.")
    if is_dry_run:
        return [each.sequence for each in selected], 0
    removed: list[int] = []

    async def remove() -> int:
        if selected:
            removed.extend(each.sequence for each in await _remove_checkpoints(store, workflow_id, conditions, now))
        return await _compact(store, workflow_id)

    freed = await _with_reserve(store, remove)
    return removed, freed


async def _with_reserve(store: StoreBase, act: Callable[[], Awaitable[T]]) -> T:
    """Do an operation that frees space; on a full disk, use the space that the store reserves for it."""
    try:
        return await act()
    except DiskFullError as error:
        if not await store.use_reserve():
            error.remedy = _REMEDY
            raise
    try:
        return await act()
    except DiskFullError as error:
        error.remedy = _REMEDY
        raise
    finally:
        with contextlib.suppress(FlowckptError):  # the operation has its own outcome
            await store.tidy()


async def _compact(store: StoreBase, workflow_id: str) -> int:
    """Compact a run, and return the number of freed bytes; damage of superseded parts is only logged."""
    try:
        return (await store.compact(workflow_id, is_forced=True)).bytes_freed
    except CheckpointCorruptedError as error:
        if await store.load_latest(workflow_id) is None:
            raise
        text = "run %s was not made smaller: %s ('flowckpt store repair %s' sets the damage aside)"
        _log.warning(text, workflow_id, error.message, shell_word(workflow_id))
        return 0


async def _select_checkpoints(
    store: StoreBase, workflow_id: str, conditions: Retention, now: datetime
) -> Sequence[CheckpointRef]:
    references = await store.list_checkpoints(workflow_id)
    if not references:
        raise CheckpointNotFoundError(workflow_id)
    if not conditions.has_limits:
        return ()
    pinned = await store.pinned(workflow_id)
    resting = await _find_resting(store, workflow_id)
    selected = removable(references, conditions, now, pinned=pinned, resting=resting, must_pass_all=True)
    if selected:
        await check_references(store, workflow_id, references)
    return selected


async def _find_resting(store: StoreBase, workflow_id: str) -> Resting:
    latest = await store.load_latest(workflow_id)
    if latest is None or not is_task(latest):
        return ALL_IN_THE_NEWEST
    log = await task_log.read_log(store, workflow_id, latest)
    return Resting(log.needed_sequences(), frozenset(step.sequence for step in log.live_steps()))


async def _remove_checkpoints(
    store: StoreBase, workflow_id: str, conditions: Retention, now: datetime
) -> Sequence[CheckpointRef]:
    """Remove checkpoints, selected again while nothing else can change the run; return them."""
    lease = await store.acquire(workflow_id)
    try:
        selected = await _select_checkpoints(store, workflow_id, conditions, now)
        if selected:
            await store.delete_sequences(workflow_id, [each.sequence for each in selected])
    finally:
        await release_lease(store, lease)
    return selected
