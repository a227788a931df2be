"""A run as its store has it, for commands that show it and run nothing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

import attrs

from flowckpt.cli.runs import read_survey, resolve_run, run_async
from flowckpt.cli.settings import command_settings
from flowckpt.core.codec import Json
from flowckpt.core.records import CheckpointData, Status
from flowckpt.core.records.listing import CheckpointRef, Owner, RunInfo
from flowckpt.core.records.wait import TAKEN, Signal, Wait, WaitKind, open_waits, sent_to
from flowckpt.engine.history.checkpoints import find_checkpoint, list_left_behind
from flowckpt.engine.rules.crash_loop import CrashCount, limit_of
from flowckpt.engine.run.lease import require_run
from flowckpt.engine.run.live import LiveNote, Published, collect_published, read_live
from flowckpt.engine.run.resumption import crash_loop, find_crash_loop, read_started_steps
from flowckpt.errors import CheckpointNotFoundError, FlowckptError
from flowckpt.maintenance.recovery import read_stale_note
from flowckpt.stores.base import Ability, StoreBase
from flowckpt.stores.content import find_content_error
from flowckpt.stores.queries import LaterCheck, read_verifications

T = TypeVar("T")


@attrs.frozen
class StoredRun:
    """A run as the store has it.

    Attributes:
        latest: its newest checkpoint, with the whole history.
        checkpoints: all its checkpoints, newest first.
        owner: the process that runs it now, or None.
        status: its status; `crashed` if its record says running but it has no owner.
        signals: messages that the run has not taken yet, in the order in which they were sent.
        started: when it started, if the store knows.
        pinned: the sequences of the pinned checkpoints.
        crash_loop: its crashes, if it is in a crash loop.
        left_behind: how many checkpoints no longer count, because a later attempt continued from an earlier one.
        stale: what the last resume asked a person; empty if no resume has asked since the newest attempt.
        checks: later verifications of its checkpoints, by sequence.
        begun: the steps that the last attempt started since its last checkpoint.
        seen: the last heartbeat of the process that died, if the run has crashed.
        live: the running steps, or those that ran when the process died.
        set_aside: messages that no step could use and that the store still has; the next attempt removes them.
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
    stale: str = ""
    checks: Mapping[int, LaterCheck] = {}
    begun: tuple[str, ...] = ()
    seen: datetime | None = None
    live: LiveNote | None = None
    set_aside: Sequence[Signal] = ()

    @property
    def published(self) -> Mapping[str, Published]:
        """The values that the run published, by name."""
        return collect_published(self.latest.step_results, self.live)

    @property
    def waits(self) -> tuple[Wait, ...]:
        """The open waits; none if the run has ended."""
        if self.status is Status.COMPLETED:
            return ()
        return open_waits(self.latest.metadata, self.latest.step_results)

    @property
    def started_at(self) -> datetime:
        """When its first checkpoint was saved."""
        if self.started is not None:  # that checkpoint may have been removed since
            return self.started
        return self.checkpoints[-1].saved_at if self.checkpoints else self.latest.saved_at


def read_stored_run(store: StoreBase, workflow_id: str) -> StoredRun:
    """Return a run with everything that a command shows of it.

    Raises:
        CheckpointNotFoundError: there is no such run.
    """
    return run_async(_read_stored_run(store, workflow_id))


async def _read_stored_run(store: StoreBase, workflow_id: str) -> StoredRun:
    latest = require_run(workflow_id, await store.load_latest(workflow_id))
    owner = await store.owner(workflow_id)
    status = latest.status
    if status is Status.RUNNING and owner is None and store.has(Ability.OWNERS):
        # It may have ended between the two reads: only a run that is still recorded as running has crashed.
        latest = await store.load_latest(workflow_id) or latest
        status = Status.CRASHED if latest.status is Status.RUNNING else latest.status
    checkpoints = tuple(await store.list_checkpoints(workflow_id))
    info = await store.describe_run(workflow_id)
    pinned = await store.pinned(workflow_id)
    started = None if info is None else info.started_at
    untaken, set_aside = await _read_messages(store, workflow_id, latest)
    crashes = seen = None
    begun = await read_started_steps(store, workflow_id, latest)
    if status is Status.CRASHED:
        seen = await store.last_seen(workflow_id, latest.attempt)
        most = limit_of(latest.metadata, default=command_settings()["max_crashes"])
        crashes = await find_crash_loop(store, workflow_id, latest, begun, most=most)
    behind = len(await list_left_behind(store, workflow_id)) if latest.attempt > 1 else 0
    stale = "" if info is None else await read_stale_note(store, info)
    checks = (await read_verifications(store, workflow_id, latest.metadata)).checkpoints
    live = await read_live(store, workflow_id, status, latest.attempt, latest.metadata, latest.step_results)
    return StoredRun(
        latest,
        checkpoints,
        owner,
        status,
        untaken,
        started,
        pinned,
        crashes,
        behind,
        stale,
        checks,
        begun,
        seen,
        live,
        set_aside,
    )


async def _read_messages(
    store: StoreBase, workflow_id: str, latest: CheckpointData
) -> tuple[list[Signal], list[Signal]]:
    """Return the messages that the run has not taken yet, and those that it has set aside."""
    used = {result.signal for result in latest.step_results if result.signal}
    aside = {*latest.metadata.get(TAKEN, ())} - used
    messages = sent_to(latest.metadata, await store.signals(workflow_id))
    notes = (WaitKind.STALE, WaitKind.VERIFICATION)
    untaken = [each for each in messages if each.signal_id not in used | aside and each.kind not in notes]
    return untaken, [each for each in messages if each.signal_id in aside]


def find_damage(store: StoreBase, workflow_id: str) -> FlowckptError | None:
    """Return the first content error of the run, or of the store; None if there is none.

    Args:
        store: the store of the command.
        workflow_id: the run that the command concerns; all runs of the store if it is empty.
    """
    with suppress(Exception):  # the exception itself is shown then
        survey = read_survey(store)
        damaged = [each.workflow_id for each in survey.unreadable if each.severity == "corrupt"]
        for run in [workflow_id] if workflow_id else [*damaged, *(each.workflow_id for each in survey.runs)]:
            if (error := run_async(find_content_error(store, run))) is not None:
                return error
    return None


def read_crash_loops(store: StoreBase, runs: Sequence[RunInfo]) -> dict[str, CrashCount]:
    """Return the crashes of those runs that are in a crash loop, by id."""
    most = command_settings()["max_crashes"]
    return run_async(_read_each(runs, lambda info: crash_loop(store, info, max_crashes=most)))


def read_stale_notes(store: StoreBase, runs: Sequence[RunInfo]) -> dict[str, str]:
    """Return why a person must decide, as `flowckpt resume` or `flowckpt recover` noted, of those runs that need one, by id."""
    return run_async(_read_each(runs, lambda info: read_stale_note(store, info)))


def read_live_notes(store: StoreBase, runs: Sequence[RunInfo]) -> dict[str, LiveNote]:
    """Return the running steps of those runs of which the store has a note, by id."""

    def read(info: RunInfo) -> Coroutine[Any, Any, LiveNote | None]:
        return read_live(store, info.workflow_id, info.status, info.attempt, info.metadata)

    return run_async(_read_each(runs, read))


async def _read_each(runs: Sequence[RunInfo], read: Callable[[RunInfo], Coroutine[Any, Any, T | None]]) -> dict[str, T]:
    """Return what `read` returns for each run, by id, without None and empty texts."""
    return {info.workflow_id: value for info in runs if (value := await read(info))}


# A checkpoint as it is typed: `RUN`, or `RUN@CHECKPOINT`.


@attrs.frozen
class NamedCheckpoint:
    """A checkpoint and its run.

    Attributes:
        workflow_id: the run.
        data: the checkpoint.
    """

    workflow_id: str
    data: CheckpointData

    def to_document(self) -> Json:
        """Return the fields that identify the checkpoint, as plain JSON."""
        data = self.data
        return {
            "workflow_id": self.workflow_id,
            "workflow_name": data.workflow_name,
            "checkpoint_id": data.checkpoint_id,
            "sequence": data.sequence,
            "attempt": data.attempt,
        }


def find_named_checkpoint(store: StoreBase, text: str) -> NamedCheckpoint:
    """Find a checkpoint.

    Args:
        store: the store of its run.
        text: the id of a run, for its newest checkpoint; or `RUN@CHECKPOINT` with a checkpoint's id or sequence. Because a
            run id may contain an `@`, the whole text is tried as a run id first, then its parts before an `@`, shortest first.

    Raises:
        CheckpointNotFoundError: the run or the checkpoint does not exist.
    """
    try:
        return run_async(_find_named_checkpoint(store, text))
    except CheckpointNotFoundError as error:
        if error.checkpoint_id is not None:
            raise
        at = text.rfind("@")
        run, rest = (text, "") if at < 1 else (text[:at], text[at:])
        return run_async(_find_named_checkpoint(store, resolve_run(store, run) + rest))


async def _find_named_checkpoint(store: StoreBase, text: str) -> NamedCheckpoint:
    if (latest := await store.load_latest(text)) is not None:
        return NamedCheckpoint(text, latest)
    at = text.find("@", 1)
    first = text[:at] if text[at + 1 :] and at > 0 else text
    while at > 0:
        run, checkpoint = text[:at], text[at + 1 :]
        if checkpoint and (latest := await store.load_latest(run)) is not None:
            return NamedCheckpoint(run, await find_checkpoint(store, run, latest, checkpoint))
        at = text.find("@", at + 1)
    raise CheckpointNotFoundError(first)
