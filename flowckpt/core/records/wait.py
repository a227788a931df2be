"""The waits of a suspended run: one value for each waiting step.

A wait is fixed when its step is first reached. Its deadline is a wall-clock time, so a resume does not move it, and it
is known without loading the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import attrs

from flowckpt.core.records.checkpoint import BIRTH
from flowckpt.core.system.attrs_base import FieldEquality, lazy_frozen


class WaitKind(StrEnum):
    """The kind of a wait or a message."""

    SLEEP = "sleep"
    SIGNAL = "signal"
    RETRY = "retry"
    """A step that has failed and waits for its next try."""
    APPROVAL = "approval"
    CANCEL = "cancel"
    STALE = "stale"
    RECOVERY = "recovery"
    """A note of a recoverer, which no step takes."""
    CHECKPOINT = "checkpoint"
    """A request to the owner of a live run to save a checkpoint."""
    TAG = "tag"
    """A request to the owner of a live run to change its tags."""
    VERIFICATION = "verification"
    """A note about a later check of the run's evidence, which no step takes."""


REQUESTS = (WaitKind.CANCEL, WaitKind.CHECKPOINT, WaitKind.TAG)
"""The kinds of messages that ask the owner of a run to do something."""


@lazy_frozen(eq=False, repr=False)
class Wait(FieldEquality):
    """A step that waits.

    Attributes:
        kind: what it waits for.
        name: the name of the signal or approval; of a retry, the class of the last error; empty for a sleep.
        since: when the step was first reached; of a retry, when its first try started.
        due_at: when the wait ends by itself; None if it does not.
        request: distinguishes a repeated approval request from the first.
        claims: the claims about what is to be approved, with their facts, as a document of evidence; empty without
            claims.
        arguments: the arguments that identify the wait; with other arguments, it starts again.
        voided: why an earlier approval of the same step is void, or empty.
        data_type: the type of the signal's data, as far as it is known without the program; None for any.
        ask: the question, as encoded by the codec; None for none.
    """

    path: str
    kind: WaitKind
    name: str
    since: datetime
    due_at: datetime | None = None
    request: str = ""
    claims: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    arguments: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    voided: str = ""
    data_type: Any = attrs.field(default=None, hash=False)
    ask: Any = attrs.field(default=None, hash=False)

    def is_due(self, now: datetime) -> bool:
        """Return whether the wait has ended by itself."""
        return self.due_at is not None and now >= self.due_at

    def find_message(self, messages: Iterable[Signal]) -> Signal | None:
        """Return the message that ends the wait: the first one sent before its deadline; None without one.

        Args:
            messages: the unconsumed messages, in the order in which they are consumed.
        """
        in_time = (each for each in messages if self.due_at is None or each.sent_at < self.due_at)
        return next((each for each in in_time if each.ends(self)), None)

    def to_document(self) -> dict[str, Any]:
        """Return the wait as plain JSON; `from_document` returns an equal one."""
        given = {
            "name": self.name,
            "due_at": None if self.due_at is None else encode_utc(self.due_at),
            "request": self.request,
            "claims": dict(self.claims),
            "arguments": dict(self.arguments),
            "voided": self.voided,
        }
        document: dict[str, Any] = {"kind": str(self.kind), "since": encode_utc(self.since)}
        document |= {name: value for name, value in given.items() if value}
        asked = {"type": self.data_type, "ask": self.ask}  # any value: an empty one is not None
        return {**document, **{name: value for name, value in asked.items() if value is not None}}

    @classmethod
    def from_document(cls, path: str, document: Mapping[str, Any]) -> Wait:
        """Return the wait that a document describes."""
        due_at = document.get("due_at")
        return cls(
            path,
            WaitKind(document["kind"]),
            document.get("name", ""),
            datetime.fromisoformat(document["since"]),
            None if due_at is None else datetime.fromisoformat(due_at),
            document.get("request", ""),
            document.get("claims", {}),
            document.get("arguments", {}),
            document.get("voided", ""),
            document.get("type"),
            document.get("ask"),
        )

    @property
    def request_id(self) -> str:
        """The id by which an answer can name the question; empty if it asks nothing."""
        return f"{self.request}@{encode_utc(self.since)}" if self.request else ""

    @property
    def question(self) -> list[str]:
        """The question as lines of text, one for each key of a mapping."""
        if self.ask is None:
            return []
        if isinstance(self.ask, Mapping):
            return [f"{name}: {_to_text(value)}" for name, value in self.ask.items()]
        return [_to_text(self.ask)]

    @property
    def is_timed(self) -> bool:
        """Whether it ends only by time."""
        return self.kind is WaitKind.SLEEP or self.kind is WaitKind.RETRY

    def is_newer_than(self, result: Any) -> bool:
        """Return whether the wait started after a result of the same step, so that this result did not end it."""
        return result.started_at is not None and self.since > result.started_at

    @property
    def said(self) -> str:
        """The wait in words: `waits for the signal 'go' until 2026-01-01 12:00:00 UTC`."""
        until = "" if self.due_at is None else f" until {format_moment(self.due_at)}"
        if self.kind is WaitKind.SLEEP:
            return f"sleeps{until}"
        if self.kind is WaitKind.RETRY:
            return f"waits after {self.name}{until} to be tried again"
        what = "the approval" if self.kind is WaitKind.APPROVAL else "the signal"
        return f"waits for {what} {self.name!r}{until}"

    def __str__(self) -> str:
        return f"{self.path} {self.said}"


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def encode_utc(moment: datetime) -> str:
    """Format an aware time for records, in UTC."""
    return f"{moment.astimezone(UTC).isoformat()[:-6]}Z"


def format_moment(moment: datetime) -> str:
    """Format an aware time for people, in UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


# The waits of a run, from the metadata of its checkpoints. Most checkpoints have none.


KEY = "waits"
"""Metadata key: the waits of the run, by the path of the step."""
TAKEN = "taken_signals"
"""Metadata key: the ids of signals taken by results that no longer count."""
ENDED = "ended"
"""Metadata key: the last attempt that a person ended or rolled back before a resume, and when."""
STOPPED = "stopped"
"""Metadata key: the signal that stopped the run while some of its steps waited and others could continue."""


def waits_in(metadata: Mapping[str, Any]) -> tuple[Wait, ...]:
    """Return the waits of a run, in the order of the program if the run is suspended."""
    return tuple(Wait.from_document(path, document) for path, document in metadata.get(KEY, {}).items())


def open_waits(metadata: Mapping[str, Any], results: Iterable[Any]) -> tuple[Wait, ...]:
    """Return the waits of a run that have not ended; the step of an ended wait has a result that is not older."""
    waits = waits_in(metadata)
    if not waits:
        return ()
    ended = {result.path: result for result in results}
    return tuple(wait for wait in waits if wait.path not in ended or wait.is_newer_than(ended[wait.path]))


def wait_in(metadata: Mapping[str, Any], path: str) -> Wait | None:
    """Return the wait of a step, or None."""
    document = metadata.get(KEY, {}).get(path)
    return None if document is None else Wait.from_document(path, document)


def due_at(waits: Iterable[Wait]) -> datetime | None:
    """Return when the first of some waits ends by itself; None if none does."""
    return min((wait.due_at for wait in waits if wait.due_at is not None), default=None)


# Messages to a run: a signal, the answer to an approval, or a request.


@lazy_frozen(eq=False, repr=False)
class Signal(FieldEquality):
    """A message for a run. It stays in the store until the run takes it, once.

    Attributes:
        signal_id: identifies the message; sending it again has no further effect.
        name: the name of the signal or approval.
        sent_at: when it was sent, aware and in UTC; messages are taken in this order.
        data: its data, as encoded by the codec.
        by: the sender; may be empty.
        kind: whether it is a signal, the answer to an approval, a cancel request, or a note that the run needs a person.
        path: the step it is for; empty for any wait of this name.
        request: for an answer, the approval request it answers.
        birth: the `birth` of the run it was sent to; a run with a different one ignores it.
    """

    signal_id: str
    name: str
    sent_at: datetime
    data: Any = None
    by: str = ""
    kind: WaitKind = WaitKind.SIGNAL
    path: str = ""
    request: str = ""
    birth: str = ""

    def ends(self, wait: Wait) -> bool:
        """Return whether the message ends a wait."""
        if self.kind is not wait.kind or (self.path and self.path != wait.path):
            return False
        return self.request == wait.request if self.kind is WaitKind.APPROVAL else self.name == wait.name

    def to_document(self) -> dict[str, Any]:
        """Return the message as plain JSON; `from_document` returns an equal one."""
        document = {
            "signal_id": self.signal_id,
            "kind": str(self.kind),
            "name": self.name,
            "sent_at": encode_utc(self.sent_at),
            "by": self.by,
            "path": self.path,
            "request": self.request,
            "data": self.data,
        }
        return {**document, BIRTH: self.birth} if self.birth else document

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Signal:
        """Return the message that a document describes.

        Raises:
            LookupError: a field is missing.
            ValueError: a field is malformed.
        """
        return cls(
            document["signal_id"],
            document["name"],
            datetime.fromisoformat(document["sent_at"]),
            document["data"],
            document["by"],
            WaitKind(document["kind"]),
            document["path"],
            document["request"],
            document.get(BIRTH, ""),
        )


def birth_of(metadata: Mapping[str, Any]) -> str:
    """Return the random value that distinguishes a run from other runs of the same id; empty if it has none."""
    return str(metadata.get(BIRTH, ""))


def sent_to(metadata: Mapping[str, Any], messages: Iterable[Signal]) -> list[Signal]:
    """Return the messages sent to the run with these metadata, not to an earlier run of the same id."""
    birth = birth_of(metadata)
    return [each for each in messages if each.birth == birth]
