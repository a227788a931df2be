"""The live note of a run: which steps are in flight, since when, and how far they are, for the process that looks from outside.

The record says what has ended. What runs now is in no checkpoint until one is saved, which may take hours. So one thread of
each process looks about once a second at the runs that the process drives, and writes what has changed into a note beside
the record, without a sync. A step pays nothing for it.

The note is a hint. It does not belong to the record, and decides nothing: a resume does not read it. It may be lost, damaged, or
older than the record. It names its run's life and attempt, so that the note of an earlier attempt is never taken for the
newest one's, and only a run with a live owner is shown as running now. A note that cannot be written fails nothing.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core import codec
from flowckpt.core.codec.results import encode_time
from flowckpt.core.records import Status, StepResult
from flowckpt.core.records.wait import birth_of
from flowckpt.core.system.attrs_base import lazy_frozen
from flowckpt.core.system.numbers import is_finite_number
from flowckpt.engine.run.lease import existing
from flowckpt.errors import CheckpointStorageError, DecodingError, FlowckptError
from flowckpt.execution.current_step import Progress, StepCall
from flowckpt.stores.base import Ability, StoreBase
from flowckpt.stores.leases import Heartbeat

if TYPE_CHECKING:
    from flowckpt.engine.run.context import RunContext

_log = logging.getLogger("flowckpt")

LOOK_SECONDS = 1.0
"""Seconds between two looks at the runs of this process."""
MOST_STEPS = 100
"""How many steps a note names: those that have been in flight longest."""


@lazy_frozen(eq=False, repr=False)
class LiveStep:
    """A step in flight.

    Attributes:
        path: the step.
        step_type: its type.
        since: when it started, in this attempt.
        tries: which try runs.
        progress: how much is done, the total or None, and a few words; None if it reported nothing.
        figures: what it has recorded of itself so far.
    """

    path: str
    step_type: str
    since: datetime
    tries: int
    progress: Progress | None
    figures: Mapping[str, int | float]

    @property
    def said(self) -> str:
        """How far it is, in a few words: `30 of 100, epoch 3`; empty if it reported nothing."""
        if self.progress is None:
            return f"try {self.tries}" if self.tries > 1 else ""
        done, total, note = self.progress
        amount = f"{done:,g}" if total is None else f"{done:,g} of {total:,g}"
        return ", ".join([*([f"try {self.tries}"] if self.tries > 1 else []), amount, *([note] if note else [])])

    def to_document(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        progress = None if self.progress is None else dict(zip(("done", "total", "note"), self.progress, strict=True))
        return {
            "path": self.path,
            "step_type": self.step_type,
            "since": encode_time(self.since),
            "tries": self.tries,
            "progress": progress,
            "figures": dict(self.figures),
        }


@lazy_frozen()
class Published:
    """A value that a run published; see `flowckpt.publish`.

    Attributes:
        value: the value.
        at: when it was published.
        step: the path of the step that published it.
    """

    value: Any
    at: datetime
    step: str

    def to_document(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {"value": codec.encode(self.value), "at": encode_time(self.at), "step": self.step}


@lazy_frozen(eq=False, repr=False)
class LiveNote:
    """The steps that ran at the moment of the last note of a run.

    Attributes:
        at: the moment.
        steps: the steps in flight, the one that started first first.
        more: how many more were in flight.
        published: what was published and may not be in the record yet, by name.
        is_running: whether the process that wrote it still owns the run; else it died.
    """

    at: datetime
    steps: Sequence[LiveStep]
    more: int
    is_running: bool
    published: Mapping[str, Published] = attrs.field(factory=dict)

    def to_document(self) -> dict[str, Any]:
        """Return it as plain JSON: the `live` of `show --json`."""
        steps = [step.to_document() for step in self.steps]
        return {"at": encode_time(self.at), "is_running": self.is_running, "steps": steps, "more": self.more}


# Writing.


class Watch:
    """Looks at the runs that this process drives, and writes their notes.

    Attributes:
        runs: their attempts, by identity. Each drive puts its own here, starts the thread if nothing looks, and takes it out
            at its end.
        is_looking: whether a thread looks.
        beat: the thread; it looks about once a second while there are any.
    """

    def __init__(self) -> None:
        self.runs: dict[int, RunContext] = {}
        self.is_looking = False
        self.beat = Heartbeat(self.look, LOOK_SECONDS, "flowckpt-live")
        self._written: dict[int, tuple[dict[str, Any], float]] = {}  # the last note without its time, and when

    def start(self) -> None:
        """Start the thread; if none can be started, the next run tries again."""
        self.is_looking = True
        try:
            self.beat.start()
        except CheckpointStorageError as error:
            self.is_looking = False
            _log.debug("live notes are not written: %s", error)

    def forget(self) -> None:
        """Forget all runs, in a forked child: they are its parent's, and so is the thread."""
        self.runs.clear()
        self.is_looking = False

    def look(self, *, is_due: bool = False) -> bool:
        """Look at each run once; return whether there are any.

        Args:
            is_due: whether to write although the last note is not old enough.
        """
        runs = dict(self.runs)
        for key in self._written.keys() - runs.keys():
            del self._written[key]
        changed: dict[int, tuple[StoreBase, dict[int, dict[str, Any]]]] = {}
        for key, run in runs.items():
            try:
                document = self._changed(key, run, is_due=is_due)
            except Exception as error:  # a hint fails nothing: a later look tries again
                _log.debug("run %s: its live note was not made: %s", run.workflow_id, error)
                continue
            if document is not None:
                store = run.recorder.checkpointer.store
                changed.setdefault(id(store), (store, {}))[1][key] = document
        for store, documents in changed.values():
            self._write(store, documents, runs)
        if not runs:
            self.is_looking = False  # before the runs are asked once more: what comes now starts a thread, or is found
            self.is_looking = bool(self.runs)
        return self.is_looking

    def _changed(self, key: int, run: RunContext, *, is_due: bool) -> dict[str, Any] | None:
        """Return the note of a run without its time, if it is to be written now."""
        store, (written, written_at) = run.recorder.checkpointer.store, self._written.get(key, ({}, 0.0))
        if not store.has(Ability.LIVE) or (
            written and not is_due and time.monotonic() < written_at + store.live_seconds
        ):
            return None
        document = live_document(run)
        return document if document != written and (written or document["steps"]) else None

    def _write(self, store: StoreBase, documents: Mapping[int, dict[str, Any]], runs: Mapping[int, RunContext]) -> None:
        """Write the notes of a store's runs."""
        moment = time.monotonic()
        for key in documents:  # if it fails, the next note is another one, and not written at once
            self._written[key] = {"steps": None}, moment
        notes = {
            runs[key].workflow_id: codec.dumps({**document, "at": encode_time(runs[key].clock.now())}).encode()
            for key, document in documents.items()
        }
        try:
            store.note_live_all(notes)
        except Exception as error:
            _log.debug("live notes of %s were not written: %s", ", ".join(notes), error)
            return
        for key, document in documents.items():
            self._written[key] = document, moment


WATCH = Watch()
"""That of this process."""

os.register_at_fork(after_in_child=WATCH.forget)


MOST_PUBLISHED = 100


def newest_published(published: Iterable[list[Any]]) -> list[list[Any]]:
    """Return the newest value of each name, as name, value, time and step; of many names the newest ones."""
    found: dict[str, list[Any]] = {}
    for each in published:
        if each[0] not in found or each[2] >= found[each[0]][2]:
            found.pop(each[0], None)
            found[each[0]] = each
    return list(found.values())[-MOST_PUBLISHED:]


def live_document(run: RunContext) -> dict[str, Any]:
    """Return the note of a run without its time, and without secrets."""
    checkpointer, secrets = run.recorder.checkpointer, run.secrets

    def shown(text: str) -> str:
        return secrets.text(text) if secrets.is_any else text

    def step_document(call: StepCall) -> dict[str, Any]:
        done = call.done
        figures = {shown(name): value for name, value in run.services.so_far(call.path)[0].items()}
        return {
            "path": shown(call.path),
            "step_type": call.action.step_type,
            "since": encode_time(call.since or run.clock.now()),
            "tries": call.tries,
            "progress": None if done is None else [done[0], done[1], shown(done[2])],
            "figures": figures,
        }

    def published() -> Iterator[list[Any]]:
        # What is recorded and not saved yet, and what runs. A name or a value with a secret was refused.
        attempted = checkpointer.attempted or run.recorder.resumed_from
        for result in checkpointer.history.results[0 if attempted is None else len(attempted.step_results) :]:
            for name, said in result.published.items():
                yield [name, said["value"], said["at"], shown(result.path)]
        for call in calls:
            for name, said in run.services.so_far(call.path)[1].items():
                yield [name, said["value"], said["at"], shown(call.path)]

    calls = [call for call in list(run.recorder.in_flight.values()) if call.since is not None]
    calls.sort(key=lambda call: call.since or run.clock.now())
    return {
        "birth": birth_of(checkpointer.metadata),
        "attempt": checkpointer.attempt,
        "steps": [step_document(call) for call in calls[:MOST_STEPS]],
        "more": max(0, len(calls) - MOST_STEPS),
        "published": newest_published(published()),
    }


# Reading.


async def read_live(
    store: StoreBase,
    workflow_id: str,
    status: Status,
    attempt: int,
    metadata: Mapping[str, Any],
    results: Sequence[StepResult] = (),
) -> LiveNote | None:
    """Return what runs now, or what ran when the process died, as far as the store knows.

    Args:
        store: where the run is.
        workflow_id: the run.
        status: its status: `running` if it has a live owner, `crashed` if it has none.
        attempt: its newest attempt.
        metadata: that of its newest checkpoint.
        results: its results, which the note may be older than.
    """
    if status not in (Status.RUNNING, Status.CRASHED):
        return None
    try:
        content = await store.live_note(workflow_id)
    except (FlowckptError, OSError) as error:
        _log.debug("run %s: its live note cannot be read: %s", workflow_id, error)
        return None
    found = None if content is None else _parsed(content, birth_of(metadata), attempt)
    if found is None:
        return None
    ended = {result.path for result in results}
    steps = [step for step in found.steps if step.path not in ended]
    return attrs.evolve(found, steps=steps, is_running=status is Status.RUNNING)


def _parsed(content: bytes, birth: str, attempt: int) -> LiveNote | None:
    """Return a note of an attempt; None if it is of another one, or is damaged."""
    try:
        said = json.loads(content)
        if said["birth"] != birth or said["attempt"] != attempt:
            return None
        steps = [_step(each) for each in said["steps"][:MOST_STEPS]]
        published = {_text(name): _published(value, at, path) for name, value, at, path in said["published"]}
        return LiveNote(_moment(said["at"]), steps, _whole(said["more"]), is_running=False, published=published)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, DecodingError):
        return None


def _published(tree: Any, at: Any, path: Any) -> Published:
    return Published(codec.decode(tree, Any, place="published"), _moment(at), _text(path))


def _step(said: Any) -> LiveStep:
    progress = said["progress"]
    if progress is not None:
        done, total, note = progress
        progress = _number(done), None if total is None else _number(total), _text(note)
    figures = {name: _number(value) for name, value in said["figures"].items()}
    moment, tries = _moment(said["since"]), _whole(said["tries"])
    return LiveStep(_text(said["path"]), _text(said["step_type"]), moment, tries, progress, figures)


def _text(said: Any) -> str:
    if not isinstance(said, str):
        raise TypeError(said)
    return said


def _moment(said: Any) -> datetime:
    moment = datetime.fromisoformat(said)
    if moment.tzinfo is None:
        raise ValueError(said)
    return moment


def _whole(said: Any) -> int:
    if type(said) is not int or not 0 <= said < 1 << 53:
        raise ValueError(said)
    return said


def _number(said: Any) -> Any:
    if isinstance(said, bool) or not is_finite_number(said):
        raise ValueError(said)
    return said


# What a run published: the newest value of each name, recorded or not yet.


def published_of(results: Iterable[StepResult], live: LiveNote | None) -> dict[str, Published]:
    """Return the newest value of each name.

    Args:
        results: the results of the run.
        live: its live note, which may have newer ones.

    Raises:
        DecodingError: a recorded value cannot be decoded.
    """
    found: dict[str, Published] = {}
    for result in results:
        for name, said in result.published.items():
            each = _published(said["value"], said["at"], result.path)
            if name not in found or each.at >= found[name].at:
                found[name] = each
    for name, each in ({} if live is None else live.published).items():
        if name not in found or each.at >= found[name].at:
            found[name] = each
    return found


async def read_published(store: StoreBase, workflow_id: str) -> dict[str, Published]:
    """Return what a run published; see `WorkflowEngine.published`.

    Raises:
        CheckpointNotFoundError: the run does not exist.
        CheckpointCorruptedError: its record is damaged.
    """
    latest = existing(workflow_id, await store.load_latest(workflow_id))
    info = await store.describe_run(workflow_id)
    status = latest.status if info is None else info.status
    live = await read_live(store, workflow_id, status, latest.attempt, latest.metadata, latest.step_results)
    return published_of(latest.step_results, live)
