"""The live note of a run: which steps are in flight, since when, and their progress, for other processes to show.

The record holds what has ended. The running steps are in no checkpoint until the next save, which may be hours away. So
one thread per process looks about once a second at the runs that the process drives, and writes changes into a note
next to the record, without a sync. Steps pay nothing for it.

The note is only a hint: it is not part of the record, and a resume does not read it. It may be lost, damaged, or older
than the record. It contains the birth and the attempt of its run, so the note of an earlier attempt is never mistaken
for the newest one's, and only a run with a live owner is shown as running. A note that cannot be written causes no
failure.
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
from flowckpt.engine.run.lease import require_run
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
"""How many steps a note lists: those that have been in flight longest."""


@lazy_frozen(eq=False, repr=False)
class LiveStep:
    """A step in flight.

    Attributes:
        path: the step.
        step_type: its type.
        since: when it started, in this attempt.
        tries: the number of the current try.
        progress: how much is done, the total or None, and a note; None if the step reported nothing.
        figures: the figures that it has recorded so far.
    """

    path: str
    step_type: str
    since: datetime
    tries: int
    progress: Progress | None
    figures: Mapping[str, int | float]

    @property
    def said(self) -> str:
        """The progress as text, such as `30 of 100, epoch 3`; empty if the step reported nothing."""
        if self.progress is None:
            return f"try {self.tries}" if self.tries > 1 else ""
        done, total, note = self.progress
        amount = f"{done:,g}" if total is None else f"{done:,g} of {total:,g}"
        return ", ".join([*([f"try {self.tries}"] if self.tries > 1 else []), amount, *([note] if note else [])])

    def to_document(self) -> dict[str, Any]:
        """Return plain JSON."""
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
        """Return plain JSON."""
        return {"value": codec.encode(self.value), "at": encode_time(self.at), "step": self.step}


@lazy_frozen(eq=False, repr=False)
class LiveNote:
    """The steps that were running when the last note of a run was written.

    Attributes:
        at: when the note was written.
        steps: the steps in flight, oldest first.
        more: how many further steps were in flight.
        published: published values that may not be in the record yet, by name.
        is_running: whether the process that wrote the note still owns the run; False if it died.
    """

    at: datetime
    steps: Sequence[LiveStep]
    more: int
    is_running: bool
    published: Mapping[str, Published] = attrs.field(factory=dict)

    def to_document(self) -> dict[str, Any]:
        """Return plain JSON: the `live` of `show --json`."""
        steps = [step.to_document() for step in self.steps]
        return {"at": encode_time(self.at), "is_running": self.is_running, "steps": steps, "more": self.more}


# Writing.


class Watch:
    """Writes the live notes of the runs that this process drives.

    Attributes:
        runs: the current attempts, by identity. Each drive adds its own, starts the thread if none is running, and
            removes its own at its end.
        is_looking: whether the thread is running.
        beat: the thread; it looks about once a second while there are runs.
    """

    def __init__(self) -> None:
        self.runs: dict[int, RunContext] = {}
        self.is_looking = False
        self.beat = Heartbeat(self.poll, LOOK_SECONDS, "flowckpt-live")
        # the last note without its time, and when it was written
        self._written: dict[int, tuple[dict[str, Any], float]] = {}

    def start(self) -> None:
        """Start the thread; if that fails, the next run tries again."""
        self.is_looking = True
        try:
            self.beat.start()
        except CheckpointStorageError as error:
            self.is_looking = False
            _log.debug("live notes are not written: %s", error)

    def forget(self) -> None:
        """Forget all runs in a forked child: the runs and the thread belong to its parent."""
        self.runs.clear()
        self.is_looking = False

    def poll(self, *, is_due: bool = False) -> bool:
        """Look at each run once; return whether there are any.

        Args:
            is_due: whether to write even if the last note is recent.
        """
        runs = dict(self.runs)
        for key in self._written.keys() - runs.keys():
            del self._written[key]
        changed: dict[int, tuple[StoreBase, dict[int, dict[str, Any]]]] = {}
        for key, run in runs.items():
            try:
                document = self._make_due_note(key, run, is_due=is_due)
            except Exception as error:  # the note is only a hint: a later look tries again
                _log.debug("run %s: its live note could not be prepared: %s", run.workflow_id, error)
                continue
            if document is not None:
                store = run.recorder.checkpointer.store
                changed.setdefault(id(store), (store, {}))[1][key] = document
        for store, documents in changed.values():
            self._write(store, documents, runs)
        if not runs:
            # before the last check for runs: a run that arrives now starts a thread or is found by the check
            self.is_looking = False
            self.is_looking = bool(self.runs)
        return self.is_looking

    def _make_due_note(self, key: int, run: RunContext, *, is_due: bool) -> dict[str, Any] | None:
        """Return the note of a run without its time, if it must be written now."""
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
        for key in documents:  # set even if the write fails: the next attempt waits for a changed note
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
"""The watch of this process."""

os.register_at_fork(after_in_child=WATCH.forget)


MOST_PUBLISHED = 100


def select_newest_published(published: Iterable[list[Any]]) -> list[list[Any]]:
    """Return the newest value of each name, as name, value, time and step; if there are too many, the newest ones."""
    newest: dict[str, list[Any]] = {}
    for each in published:
        if each[0] not in newest or each[2] >= newest[each[0]][2]:
            newest.pop(each[0], None)
            newest[each[0]] = each
    return list(newest.values())[-MOST_PUBLISHED:]


def live_document(run: RunContext) -> dict[str, Any]:
    """Return the note of a run without its time, and without secrets."""
    checkpointer, secrets = run.recorder.checkpointer, run.secrets

    def redact(text: str) -> str:
        return secrets.redact(text) if secrets.is_any else text

    def step_document(call: StepCall) -> dict[str, Any]:
        done = call.done
        figures = {redact(name): value for name, value in run.services.read_so_far(call.path)[0].items()}
        return {
            "path": redact(call.path),
            "step_type": call.action.step_type,
            "since": encode_time(call.since or run.clock.now()),
            "tries": call.tries,
            "progress": None if done is None else [done[0], done[1], redact(done[2])],
            "figures": figures,
        }

    def published() -> Iterator[list[Any]]:
        # Values recorded but not saved yet, and those of running steps. Names and values with secrets were refused
        # earlier.
        attempted = checkpointer.attempted or run.recorder.resumed_from
        for result in checkpointer.history.results[0 if attempted is None else len(attempted.step_results) :]:
            for name, entry in result.published.items():
                yield [name, entry["value"], entry["at"], redact(result.path)]
        for call in calls:
            for name, entry in run.services.read_so_far(call.path)[1].items():
                yield [name, entry["value"], entry["at"], redact(call.path)]

    calls = [call for call in list(run.recorder.in_flight.values()) if call.since is not None]
    calls.sort(key=lambda call: call.since or run.clock.now())
    return {
        "birth": birth_of(checkpointer.metadata),
        "attempt": checkpointer.attempt,
        "steps": [step_document(call) for call in calls[:MOST_STEPS]],
        "more": max(0, len(calls) - MOST_STEPS),
        "published": select_newest_published(published()),
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
    """Return the steps that run now, or ran when the process died, as far as the store knows.

    Args:
        store: the store of the run.
        workflow_id: the run.
        status: the status of the run: `running` with a live owner, `crashed` without one.
        attempt: the newest attempt.
        metadata: the metadata of the newest checkpoint.
        results: the recorded results, which may be newer than the note.
    """
    if status not in (Status.RUNNING, Status.CRASHED):
        return None
    try:
        content = await store.live_note(workflow_id)
    except (FlowckptError, OSError) as error:
        _log.debug("run %s: its live note cannot be read: %s", workflow_id, error)
        return None
    note = None if content is None else _parse_note(content, birth_of(metadata), attempt)
    if note is None:
        return None
    ended = {result.path for result in results}
    steps = [step for step in note.steps if step.path not in ended]
    return attrs.evolve(note, steps=steps, is_running=status is Status.RUNNING)


def _parse_note(content: bytes, birth: str, attempt: int) -> LiveNote | None:
    """Return the note of an attempt; None if it belongs to another attempt or is damaged."""
    try:
        document = json.loads(content)
        if document["birth"] != birth or document["attempt"] != attempt:
            return None
        steps = [_parse_step(each) for each in document["steps"][:MOST_STEPS]]
        published = {
            _parse_text(name): _parse_published(value, at, path) for name, value, at, path in document["published"]
        }
        return LiveNote(
            _parse_moment(document["at"]), steps, _parse_whole(document["more"]), is_running=False, published=published
        )
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, DecodingError):
        return None


def _parse_published(tree: Any, at: Any, path: Any) -> Published:
    return Published(codec.decode(tree, Any, place="published"), _parse_moment(at), _parse_text(path))


def _parse_step(document: Any) -> LiveStep:
    progress = document["progress"]
    if progress is not None:
        done, total, note = progress
        progress = _parse_number(done), None if total is None else _parse_number(total), _parse_text(note)
    figures = {name: _parse_number(value) for name, value in document["figures"].items()}
    moment, tries = _parse_moment(document["since"]), _parse_whole(document["tries"])
    return LiveStep(_parse_text(document["path"]), _parse_text(document["step_type"]), moment, tries, progress, figures)


def _parse_text(document: Any) -> str:
    if not isinstance(document, str):
        raise TypeError(document)
    return document


def _parse_moment(document: Any) -> datetime:
    moment = datetime.fromisoformat(document)
    if moment.tzinfo is None:
        raise ValueError(document)
    return moment


def _parse_whole(document: Any) -> int:
    if type(document) is not int or not 0 <= document < 1 << 53:
        raise ValueError(document)
    return document


def _parse_number(document: Any) -> Any:
    if isinstance(document, bool) or not is_finite_number(document):
        raise ValueError(document)
    return document


# The published values of a run: the newest one of each name, recorded or not.


def collect_published(results: Iterable[StepResult], live: LiveNote | None) -> dict[str, Published]:
    """Return the newest value of each name.

    Args:
        results: the results of the run.
        live: the live note, which may have newer values.

    Raises:
        DecodingError: a recorded value cannot be decoded.
    """
    published = [
        (name, _parse_published(entry["value"], entry["at"], result.path))
        for result in results
        for name, entry in result.published.items()
    ]
    newest: dict[str, Published] = {}
    for name, each in (*published, *(() if live is None else live.published.items())):
        if name not in newest or each.at >= newest[name].at:
            newest[name] = each
    return newest


async def read_published(store: StoreBase, workflow_id: str) -> dict[str, Published]:
    """Return the published values of a run; see `WorkflowEngine.published`.

    Raises:
        CheckpointNotFoundError: the run does not exist.
        CheckpointCorruptedError: the run's record is damaged.
    """
    latest = require_run(workflow_id, await store.load_latest(workflow_id))
    info = await store.describe_run(workflow_id)
    status = latest.status if info is None else info.status
    live = await read_live(store, workflow_id, status, latest.attempt, latest.metadata, latest.step_results)
    return collect_published(latest.step_results, live)
