"""A run as its store has it, for commands that show it and run nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime

import attrs

from flowckpt.cli.runs import read_survey, resolve_run, run_async
from flowckpt.cli.settings import command_settings
from flowckpt.core.codec import Json
from flowckpt.core.records import CheckpointData, Status
from flowckpt.core.records.listing import CheckpointRef, Owner, RunInfo
from flowckpt.core.records.wait import TAKEN, Signal, Wait, WaitKind, open_waits, sent_to
from flowckpt.engine.history.checkpoints import find_checkpoint, list_left_behind
from flowckpt.engine.rules.crash_loop import CrashCount, limit_of
from flowckpt.engine.run.live import LiveNote, Published, collect_published, read_live
from flowckpt.engine.run.resumption import crash_loop, find_crash_loop, read_started_steps
from flowckpt.errors import CheckpointNotFoundError, FlowckptError
from flowckpt.maintenance.recovery import read_stale_note
from flowckpt.stores.base import Ability, StoreBase
from flowckpt.stores.content import find_content_error
from flowckpt.stores.queries import LaterCheck, read_verifications


@attrs.frozen
class Hints:
    """The hints of a store about a run, besides its record.

    Attributes:
        begun: the steps that the last attempt started since its last checkpoint.
        seen: the last heartbeat of the process that died, if the run has crashed.
        live: what runs now, or what ran when the process died.
    """

    begun: tuple[str, ...] = ()
    seen: datetime | None = None
    live: LiveNote | None = None


@attrs.frozen
class StoredRun:
    """A run as the store has it.

    Attributes:
        latest: its newest checkpoint, with the whole history.
        checkpoints: all of them, the newest first.
        owner: the process that runs it now, or None.
        status: where it stands; `crashed` where it is running and has no owner.
        signals: messages that the run has not taken yet, in the order in which they were sent.
        set_aside: messages that no step could use, as far as the store still has them: the next attempt removes them.
        started: when it began, as the store says; None if it cannot tell.
        pinned: the sequences of the checkpoints that are pinned.
        crash_loop: how often it died at the same step, where a resume would refuse it for that.
        left_behind: how many checkpoints no longer count, as a later attempt continued from before them.
        stale: what the last resume asked a person; empty if none did since the newest attempt.
        checks: later verifications of its checkpoints, by sequence.
        hints: what the store knows besides the record.
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
    hints: Hints = attrs.field(factory=Hints)
    set_aside: Sequence[Signal] = ()

    @property
    def published(self) -> Mapping[str, Published]:
        """The values that it published, by name."""
        return collect_published(self.latest.step_results, self.hints.live)

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


def read_stored_run(store: StoreBase, workflow_id: str) -> StoredRun:
    """Return a run with everything that a command shows of it.

    Raises:
        CheckpointNotFoundError: there is no such run.
    """
    return run_async(_read_stored_run(store, workflow_id))


async def _read_stored_run(store: StoreBase, workflow_id: str) -> StoredRun:
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
    untaken, set_aside = await _read_messages(store, workflow_id, latest)
    crash_loop = seen = None
    if status is Status.CRASHED:
        seen = await store.last_seen(workflow_id, latest.attempt)
        most = limit_of(latest.metadata, default=command_settings()["max_crashes"])
        crash_loop = await find_crash_loop(store, workflow_id, latest, most=most)
    behind = len(await list_left_behind(store, workflow_id)) if latest.attempt > 1 else 0
    begun = await read_started_steps(store, workflow_id, latest)
    stale = "" if info is None else await read_stale_note(store, info)
    checks = (await read_verifications(store, workflow_id, latest.metadata)).checkpoints
    live = await read_live(store, workflow_id, status, latest.attempt, latest.metadata, latest.step_results)
    hints = Hints(begun, seen, live)
    return StoredRun(
        latest,
        checkpoints,
        owner,
        status,
        untaken,
        started,
        pinned,
        crash_loop,
        behind,
        stale,
        checks,
        hints,
        set_aside,
    )


async def _read_messages(
    store: StoreBase, workflow_id: str, latest: CheckpointData
) -> tuple[list[Signal], list[Signal]]:
    """Return the messages that the run has not taken yet, and those that it has set aside."""
    used = {result.signal for result in latest.step_results if result.signal}
    aside = {*latest.metadata.get(TAKEN, ())} - used
    found = sent_to(latest.metadata, await store.signals(workflow_id))
    notes = (WaitKind.STALE, WaitKind.VERIFICATION)
    untaken = [each for each in found if each.signal_id not in used | aside and each.kind not in notes]
    return untaken, [each for each in found if each.signal_id in aside]


def find_damage(store: StoreBase, workflow_id: str) -> FlowckptError | None:
    """Return the error for an exception that the content of a record caused, not a fault of flowckpt; None for others.

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
    """Return those of some runs that a resume would refuse because they died too often, by id."""
    most = command_settings()["max_crashes"]

    async def read() -> dict[str, CrashCount]:
        found = {info.workflow_id: await crash_loop(store, info, max_crashes=most) for info in runs}
        return {run: crashes for run, crashes in found.items() if crashes is not None}

    return run_async(read())


def read_stale_notes(store: StoreBase, runs: Sequence[RunInfo]) -> dict[str, str]:
    """Return those of some runs that need a person, as `flowckpt resume` or `flowckpt recover` noted, with what they ask, by id."""

    async def read() -> dict[str, str]:
        return {info.workflow_id: note for info in runs if (note := await read_stale_note(store, info))}

    return run_async(read())


def read_live_notes(store: StoreBase, runs: Sequence[RunInfo]) -> dict[str, LiveNote]:
    """Return what runs now in those of some runs of which the store knows it, by id."""

    async def read() -> dict[str, LiveNote]:
        found = {}
        for info in runs:
            note = await read_live(store, info.workflow_id, info.status, info.attempt, info.metadata)
            if note is not None:
                found[info.workflow_id] = note
        return found

    return run_async(read())


# A checkpoint as it is typed: `RUN`, or `RUN@CHECKPOINT`.


@attrs.frozen
class NamedCheckpoint:
    """A checkpoint and the run that it is of.

    Attributes:
        workflow_id: the run.
        data: the checkpoint.
    """

    workflow_id: str
    data: CheckpointData

    def to_document(self) -> Json:
        """Return what says which it is, as plain JSON."""
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
        store: where its run lies.
        text: the id of a run, for its newest checkpoint; or that, an `@`, and a checkpoint's id or sequence. An `@` in
            an id of a run is part of it: the shortest id that there is counts, and one that is all the text first.

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
        run, wanted = text[:at], text[at + 1 :]
        if wanted and (latest := await store.load_latest(run)) is not None:
            return NamedCheckpoint(run, await find_checkpoint(store, run, latest, wanted))
        at = text.find("@", at + 1)
    raise CheckpointNotFoundError(first)
