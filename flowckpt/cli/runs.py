"""Reading a store from a command that runs nothing."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Coroutine, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from flowckpt.cli.config.read import check_store
from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.groups import with_store
from flowckpt.cli.notices import show_warnings
from flowckpt.cli.render.terminal import escaped, say
from flowckpt.cli.settings import StoreChoice, choose_store, max_crashes_setting
from flowckpt.core.records import CheckpointData, Status
from flowckpt.core.records.listing import CheckpointRef, Owner, RunFilter, RunInfo
from flowckpt.core.records.wait import TAKEN, Signal, Wait, open_waits, sent_to
from flowckpt.core.system.blocking import run_alone
from flowckpt.core.system.lazy import LazyModule
from flowckpt.engine.history.checkpoints import left_behind
from flowckpt.engine.rules.crash_loop import CrashCount, limit_of
from flowckpt.engine.run.resumption import crash_loop, crash_loop_at
from flowckpt.errors import CheckpointNotFoundError, FlowckptError
from flowckpt.maintenance.attempts import damaged_attempts
from flowckpt.maintenance.task_log import WORKFLOW_NAME as MANAGED
from flowckpt.stores.base import (
    Ability,
    Finding,
    RunSurvey,
    StoreBase,
)
from flowckpt.stores.open import open_store

if TYPE_CHECKING:
    from flowckpt.maintenance import recovery
else:
    recovery = LazyModule("flowckpt.maintenance.recovery")


T = TypeVar("T")
_OFFERED = 1_000
"""The number of newest runs that a shell completes: it waits for them."""


@attrs.frozen
class StoredRun:
    """A run as the store has it.

    Attributes:
        latest: its newest checkpoint, with the whole history.
        checkpoints: all of them, the newest first.
        owner: the process that runs it now, or None.
        status: where it stands; `crashed` where it is running and has no owner.
        signals: messages that the run has not taken yet, in the order in which they were sent.
        started: when it began, as the store says; None where it cannot tell.
        pinned: the sequences of the checkpoints that are pinned.
        crash_loop: how often it died at the same step, where a resume would refuse it for that.
        left_behind: how many checkpoints no longer count, as a later attempt went on from before them.
    """

    latest: CheckpointData
    checkpoints: tuple[CheckpointRef, ...]
    owner: Owner | None
    status: Status
    signals: Sequence[Signal] = ()
    started: datetime | None = None
    pinned: frozenset[int] = frozenset()
    crash_loop: CrashCount | None = None
    left_behind: int = 0

    @property
    def waits(self) -> tuple[Wait, ...]:
        """The open waits; none if the run has ended."""
        if self.status is Status.COMPLETED:
            return ()
        return open_waits(self.latest.metadata, self.latest.step_results)

    @property
    def started_at(self) -> datetime:
        """When its first checkpoint was saved."""
        if self.started is not None:  # the first one may have been removed since
            return self.started
        return self.checkpoints[-1].saved_at if self.checkpoints else self.latest.saved_at


def opened_store(option: str | None, *, runs_nothing: bool = False) -> StoreBase:
    """Open the store that a command works on.

    Args:
        option: what the command line says, or None.
        runs_nothing: whether the command runs no code, whatever the store contains.

    Raises:
        UntrustedStoreError: another user can change the store, and the command may run code.
    """
    show_warnings()
    return opened(choose_store(option), runs_nothing=runs_nothing)


def opened(choice: StoreChoice, *, runs_nothing: bool = False) -> StoreBase:
    """Open a store, with its keys."""
    if not runs_nothing:
        check_store(choice.spec)
    return open_store(choice.spec, key_file=choice.key_file, compression=choice.compression)


def waited(work: Coroutine[Any, Any, T]) -> T:
    """Do one thing with a store, in a loop where nothing else runs."""
    with asyncio.Runner() as runner:
        return run_alone(runner, work)


def surveyed_runs(store: StoreBase, wanted: RunFilter | None = None) -> RunSurvey:
    """Return the runs of a store, the one started last first, and those that cannot be read.

    Args:
        store: the store.
        wanted: which of the runs; all where not given.
    """
    return waited(store.survey_runs(wanted))


def crash_loops(store: StoreBase, runs: Sequence[RunInfo]) -> dict[str, CrashCount]:
    """Return those of some runs that a resume would refuse because they died too often, by id."""
    most = max_crashes_setting()

    async def look() -> dict[str, CrashCount]:
        found = {info.workflow_id: await crash_loop(store, info, max_crashes=most) for info in runs}
        return {run: crashes for run, crashes in found.items() if crashes is not None}

    return waited(look())


def stale_runs(store: StoreBase, runs: Sequence[RunInfo]) -> dict[str, str]:
    """Return those of some runs that need a person, as `flowckpt recover` noted, with what they ask, by id."""

    async def look() -> dict[str, str]:
        return {info.workflow_id: note for info in runs if (note := await recovery.stale_note(store, info))}

    return waited(look())


LAST = "\0last"
"""Stands for the id of a run where `--last` was given: no shell can pass such a text."""

RESUMABLE = RunFilter(statuses={*Status} - {Status.COMPLETED, Status.RUNNING})
_SHOWN = 5


def chosen_run(store: StoreBase, typed: str, *, is_unfinished: bool = False) -> str:
    """Return the id of the run that was typed: the id itself, a unique prefix of it, or `LAST`.

    Args:
        store: the store.
        typed: what was typed.
        is_unfinished: whether the last run is one that can be resumed; a task of a CheckpointManager cannot.

    Raises:
        CheckpointNotFoundError: there is no such run.
        click.UsageError: several ids begin so.
    """
    if typed == LAST:
        return _last_run(store, is_unfinished=is_unfinished)
    if not store.has(Ability.LIST) or _exists(store, typed):
        return typed
    survey = surveyed_runs(store)
    ids = [info.workflow_id for info in survey.runs] + [finding.workflow_id for finding in survey.unreadable]
    found = [each for each in ids if each.startswith(typed)]
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
        raise click.UsageError(f"{len(found)} runs begin with {typed!r}: {shown}")
    lowered = {each.lower(): each for each in ids}
    if near := difflib.get_close_matches(typed.lower(), lowered, n=1, cutoff=0.6):
        raise CheckpointNotFoundError(typed, remedy=f"Did you mean {lowered[near[0]]!r}? See 'flowckpt list'.")
    raise CheckpointNotFoundError(typed)


def _exists(store: StoreBase, workflow_id: str) -> bool:
    try:
        return waited(store.describe_run(workflow_id)) is not None
    except FlowckptError:  # it is damaged, or a key is missing: what is done with it says so
        return True


def _last_run(store: StoreBase, *, is_unfinished: bool) -> str:
    survey = surveyed_runs(store, RESUMABLE if is_unfinished else None)
    runs = [info for info in survey.runs if not is_unfinished or info.workflow_name != MANAGED]
    if not runs:
        code = tell_left_out(survey.unreadable)
        if code is ExitCode.DONE:
            why = "is left to resume: each is completed or running, or there is none" if is_unfinished else "exists"
            say(f"flowckpt: no run {why}")
        raise click.exceptions.Exit(code or ExitCode.NOT_FOUND)
    return max(runs, key=lambda info: info.updated_at).workflow_id


def latest_of(store: StoreBase, workflow_id: str) -> CheckpointData:
    """Return the newest checkpoint of a run.

    Raises:
        CheckpointNotFoundError: there is no such run.
    """
    latest = waited(store.load_latest(workflow_id))
    if latest is None:
        raise CheckpointNotFoundError(workflow_id)
    return latest


def owner_of(store: StoreBase, workflow_id: str) -> Owner | None:
    """Return the process that runs a run now, or None."""
    return waited(store.owner(workflow_id))


def stored_run(store: StoreBase, workflow_id: str) -> StoredRun:
    """Return a run with everything that a command shows of it.

    Raises:
        CheckpointNotFoundError: there is no such run.
    """
    return waited(_stored_run(store, workflow_id))


async def _stored_run(store: StoreBase, workflow_id: str) -> StoredRun:
    latest = await store.load_latest(workflow_id)
    if latest is None:
        raise CheckpointNotFoundError(workflow_id)
    owner = await store.owner(workflow_id)
    status = latest.status
    if status is Status.RUNNING and owner is None and store.has(Ability.OWNERS):
        # It may have ended between the two questions: only a run that still says "running" has crashed.
        latest = await store.load_latest(workflow_id) or latest
        status = Status.CRASHED if latest.status is Status.RUNNING else latest.status
    checkpoints = tuple(await store.list_checkpoints(workflow_id))
    info = await store.describe_run(workflow_id)
    pinned = await store.pinned(workflow_id)
    started = None if info is None else info.started_at
    untaken = await _untaken(store, workflow_id, latest)
    crash_loop = None
    if status is Status.CRASHED:
        most = limit_of(latest.metadata, default=max_crashes_setting())
        crash_loop = await crash_loop_at(store, workflow_id, latest, most=most)
    behind = len(await left_behind(store, workflow_id)) if latest.attempt > 1 else 0
    return StoredRun(latest, checkpoints, owner, status, untaken, started, pinned, crash_loop, behind)


async def _untaken(store: StoreBase, workflow_id: str, latest: CheckpointData) -> list[Signal]:
    taken = {result.signal for result in latest.step_results if result.signal} | {*latest.metadata.get(TAKEN, ())}
    found = sent_to(latest.metadata, await store.signals(workflow_id))
    return [signal for signal in found if signal.signal_id not in taken]


def checked(store: StoreBase, workflow_id: str | None) -> list[Finding]:
    """Return what the check of a store found.

    Args:
        store: the store.
        workflow_id: one run, or None for all.
    """
    return waited(_checked(store, workflow_id))


async def _checked(store: StoreBase, workflow_id: str | None) -> list[Finding]:
    """Check the current history of each run, then all its attempts: a store may read only what counts."""
    found: list[Finding] = []
    for finding in await store.check(workflow_id):
        found.append(finding)
        if finding.severity == "ok" and finding.workflow_id:
            for number, error in await damaged_attempts(store, finding.workflow_id):
                detail = f"attempt {number}, outside the current history: {error}"
                found[-1] = Finding(finding.workflow_id, "notice", f"{finding.detail} in the current history")
                found.append(Finding(finding.workflow_id, "corrupt", detail))
    return found


def ids_beginning_with(prefix: str, option: str | None) -> list[tuple[str, str]]:
    """Return the newest runs whose id has the prefix, each with a word about it; for a shell, so without errors.

    Args:
        prefix: what was typed so far.
        option: the store on the command line, or None.
    """
    try:
        store = opened(choose_store(option), runs_nothing=True)
        runs = surveyed_runs(store, RunFilter(limit=_OFFERED)).runs
    except Exception:
        return []
    return [
        (info.workflow_id, f"{info.workflow_name} {info.status}")
        for info in runs
        if info.workflow_id.startswith(prefix) and info.workflow_id.isprintable()
    ]


def steps_beginning_with(prefix: str, workflow_id: str, option: str | None) -> list[str]:
    """Return the recorded steps of a run whose path has the prefix; for a shell, so without errors.

    Args:
        prefix: what was typed so far.
        workflow_id: the run.
        option: the store on the command line, or None.
    """
    try:
        latest = latest_of(opened(choose_store(option), runs_nothing=True), workflow_id)
    except Exception:
        return []
    paths = [result.path for result in latest.step_results]
    return [path for path in paths if path.startswith(prefix) and path.isprintable()]


# Runs that a command had to leave out, because their records are damaged: named, and told by the exit code.


_MOST = 8


def tell_left_out(findings: Sequence[Finding]) -> ExitCode:
    """Report the runs that were left out and why, and return the exit code; the readable ones were shown before.

    Args:
        findings: what the list of a store left out. One for which a key is missing is told, and is no damage.
    """
    for finding in findings[:_MOST]:
        say(f"flowckpt: {escaped(finding.workflow_id)} is left out: {escaped(finding.detail)}")
    if len(findings) > _MOST:
        say(f"flowckpt: {len(findings) - _MOST} more are left out")
    damaged = sum(finding.severity == "corrupt" for finding in findings)
    if damaged:
        _point_at_check(damaged)
    if any(finding.severity == "failed" for finding in findings):
        return ExitCode.STORE_FAILED
    return ExitCode.CORRUPT if damaged else ExitCode.DONE


def tell_unreadable(names: Sequence[str]) -> ExitCode:
    """Name the runs that are damaged, if any, and return the exit code.

    Args:
        names: their ids, or where they lie where the id cannot be read.
    """
    return tell_left_out([Finding(name, "corrupt", "its record is damaged") for name in names])


def _point_at_check(count: int) -> None:
    what = "A run is" if count == 1 else f"{count} runs are"
    say(
        with_store(
            f"{what} damaged, and nothing was done with {'it' if count == 1 else 'them'}. See 'flowckpt store check'."
        )
    )
