"""Stores and runs for commands that run nothing, and the files that commands write."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from flowckpt.cli.config.read import check_store
from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.groups import CHOSEN_RUN, add_store_option, command_meta, find_near_words
from flowckpt.cli.render.terminal import escape, say
from flowckpt.cli.settings import StoreChoice, choose_store
from flowckpt.core.records import CheckpointData, Status
from flowckpt.core.records.listing import MANAGED, Owner, RunFilter
from flowckpt.core.system.blocking import run_alone
from flowckpt.core.system.streams import write_whole
from flowckpt.engine.run.lease import require_run
from flowckpt.errors import CheckpointNotFoundError, FlowckptError
from flowckpt.stores.base import Ability, Finding, RunSurvey, StoreBase

T = TypeVar("T")
_OFFERED = 1_000
"""The number of newest runs offered for completion, which must be fast."""


def open_chosen_store(choice: StoreChoice, *, runs_nothing: bool = False) -> StoreBase:
    """Open the store of a command, with its keys.

    Args:
        choice: the store.
        runs_nothing: whether the command runs no code, whatever the store contains.

    Raises:
        UntrustedStoreError: another user can change the store, and the command may run code.
    """
    if not runs_nothing:
        check_store(choice.spec)
    return choice.open()


def open_run(
    choice: StoreChoice, typed: str, *, runs_nothing: bool = False, is_unfinished: bool = False
) -> tuple[StoreBase, str]:
    """Open the store of a command, and return it with the id of the typed run.

    For the arguments and errors, see `open_chosen_store` and `resolve_run`.
    """
    store = open_chosen_store(choice, runs_nothing=runs_nothing)
    return store, resolve_run(store, typed, is_unfinished=is_unfinished)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run one store operation in an event loop without other tasks."""
    with asyncio.Runner() as runner:
        return run_alone(runner, work)


def read_survey(store: StoreBase, run_filter: RunFilter | None = None) -> RunSurvey:
    """Return the runs of a store, most recently started first, and the unreadable ones.

    Args:
        store: the store.
        run_filter: the filter; all by default.
    """
    return run_async(store.survey_runs(run_filter))


LAST = "\0last"
"""Represents `--last` as a run id: no shell can pass this text."""

RESUMABLE = RunFilter(statuses={*Status} - {Status.COMPLETED, Status.RUNNING})
_SHOWN = 5


def resolve_run(store: StoreBase, typed: str, *, is_unfinished: bool = False) -> str:
    """Return the id of a typed run.

    Args:
        store: the store.
        typed: an id, a unique prefix of one, or `LAST`.
        is_unfinished: whether `LAST` means the last run that can be resumed, which excludes tasks of a CheckpointManager.

    Raises:
        CheckpointNotFoundError: there is no such run.
        click.UsageError: several ids have that prefix.
    """
    run = _find_run_id(store, typed, is_unfinished=is_unfinished)
    command_meta()[CHOSEN_RUN] = run
    return run


def _find_run_id(store: StoreBase, typed: str, *, is_unfinished: bool) -> str:
    if typed == LAST:
        return _find_last_run(store, is_unfinished=is_unfinished)
    if not store.has(Ability.LIST) or _is_run(store, typed):
        return typed
    survey = read_survey(store)
    ids = [info.workflow_id for info in survey.runs] + [finding.workflow_id for finding in survey.unreadable]
    matches = [each for each in ids if each.startswith(typed)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        listed = ", ".join(matches[:_SHOWN]) + (", …" if len(matches) > _SHOWN else "")
        raise click.UsageError(f"{len(matches)} runs start with {typed!r}: {listed}")
    lowered = {each.lower(): each for each in ids}
    if near := find_near_words(typed.lower(), lowered):
        raise CheckpointNotFoundError(typed, remedy=f"Did you mean {lowered[near[0]]!r}? See 'flowckpt list'.")
    raise CheckpointNotFoundError(typed)


def _is_run(store: StoreBase, workflow_id: str) -> bool:
    try:
        return run_async(store.describe_run(workflow_id)) is not None
    except FlowckptError:  # it is damaged, or a key is missing: the command reports that later
        return True


def _find_last_run(store: StoreBase, *, is_unfinished: bool) -> str:
    survey = read_survey(store, RESUMABLE if is_unfinished else None)
    runs = [info for info in survey.runs if not is_unfinished or info.workflow_name != MANAGED]
    if not runs:
        code = report_left_out(survey.unreadable)
        if code is ExitCode.DONE:
            why = "can be resumed: all are completed or running, or the store is empty" if is_unfinished else "exists"
            say(f"flowckpt: no run {why}")
        raise click.exceptions.Exit(code or ExitCode.NOT_FOUND)
    return max(runs, key=lambda info: info.updated_at).workflow_id


def read_latest(store: StoreBase, workflow_id: str) -> CheckpointData:
    """Return the newest checkpoint of a run.

    Raises:
        CheckpointNotFoundError: there is no such run.
    """
    return require_run(workflow_id, run_async(store.load_latest(workflow_id)))


def read_owner(store: StoreBase, workflow_id: str) -> Owner | None:
    """Return the process that runs a run now, or None."""
    return run_async(store.owner(workflow_id))


def complete_run_ids(prefix: str, option: str | None) -> list[tuple[str, str]]:
    """Return the newest runs whose id has the prefix, each with a description; for a shell, so without errors.

    Args:
        prefix: the text typed so far.
        option: the store on the command line, or None.
    """
    try:
        store = open_chosen_store(choose_store(option), runs_nothing=True)
        runs = read_survey(store, RunFilter(limit=_OFFERED)).runs
    except Exception:
        return []
    return [
        (info.workflow_id, f"{info.workflow_name} {info.status}")
        for info in runs
        if info.workflow_id.startswith(prefix) and info.workflow_id.isprintable()
    ]


def complete_steps(prefix: str, workflow_id: str, option: str | None) -> list[str]:
    """Return the recorded steps of a run whose path has the prefix; for a shell, so without errors.

    Args:
        prefix: the text typed so far.
        workflow_id: the run.
        option: the store on the command line, or None.
    """
    try:
        latest = read_latest(open_chosen_store(choose_store(option), runs_nothing=True), workflow_id)
    except Exception:
        return []
    paths = [result.path for result in latest.step_results]
    return [path for path in paths if path.startswith(prefix) and path.isprintable()]


# Runs that a command leaves out because their records are unreadable: they are named, and set the exit code.


_MOST = 8


def report_left_out(findings: Sequence[Finding]) -> ExitCode:
    """Report the runs that were left out, and return the exit code.

    Args:
        findings: the unreadable runs. A run whose key is missing is reported, but does not count as damaged.
    """
    for finding in findings[:_MOST]:
        say(f"flowckpt: {escape(finding.workflow_id)} is left out: {escape(finding.detail)}")
    if len(findings) > _MOST:
        say(f"flowckpt: {len(findings) - _MOST} more are left out")
    damaged = sum(finding.severity == "corrupt" for finding in findings)
    if damaged:
        what = "A run is" if damaged == 1 else f"{damaged} runs are"
        say(add_store_option(f"{what} damaged and skipped. See 'flowckpt store check'."))
    if any(finding.severity == "failed" for finding in findings):
        return ExitCode.STORE_FAILED
    return ExitCode.CORRUPT if damaged else ExitCode.DONE


def report_unreadable(names: Sequence[str]) -> ExitCode:
    """Report damaged runs, if any, and return the exit code.

    Args:
        names: their ids, or their places if the id is unreadable.
    """
    return report_left_out([Finding(name, "corrupt", "its record is damaged") for name in names])


_MISNAMED = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.ENODEV, errno.ETXTBSY),
)
"""Errors of a path that cannot be written; other errors are failures of the disk."""


def write_output(path: Path, text: str) -> None:
    """Write a file that only its owner can read, without following a symbolic link.

    Raises:
        click.UsageError: the path cannot be written.
        OSError: the disk failed; an earlier file is unchanged.
    """
    with named_on_failure(path):
        run_async(write_whole(path, [text.encode()]))


@contextmanager
def named_on_failure(path: Path | str | None) -> Iterator[None]:
    """Name the file whose writing fails: the error of a full disk does not.

    Raises:
        click.UsageError: the path cannot be written.
        OSError: the disk failed.
    """
    try:
        yield
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}"
        raise (click.UsageError(message) if error.errno in _MISNAMED else OSError(message)) from error
