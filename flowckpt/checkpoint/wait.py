"""What a suspended run waits for: one value a step.

A wait is fixed when its step is first met. Its deadline is a time of the wall clock, so it does not move when the run
is resumed; and nobody needs to load the run to know when it is due.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import attrs


class WaitKind(StrEnum):
    """What can end a wait; and what else a message may be: the request to cancel the run."""

    SLEEP = "sleep"
    SIGNAL = "signal"
    APPROVAL = "approval"
    CANCEL = "cancel"


@attrs.frozen
class Wait:
    """A step that waits.

    Attributes:
        path: the step.
        kind: what it waits for.
        name: the name of the signal or of the approval; empty for a sleep.
        since: when it was first met, aware and in UTC.
        due_at: when it ends by itself: the end of a sleep, or of the patience with people; None where there is none.
        request: tells this question from the same one asked again; only for approvals.
        claims: what is to be approved, with its facts, as a document of evidence; empty where nothing is bound.
        arguments: what the record keeps of what makes it this wait; another one is begun anew.
        voided: why an earlier approval of the same step was void; empty where there was none.
        data_type: what a signal is to carry, as far as it can be told without the program: a document of the codec
            (`described`); None where anything will do.
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

    def is_due(self, now: datetime) -> bool:
        """Tell whether it ends now by itself.

        Args:
            now: the time, aware.
        """
        return self.due_at is not None and now >= self.due_at

    def to_document(self) -> dict[str, Any]:
        """Return the wait as plain JSON; `from_document` returns an equal one."""
        document: dict[str, Any] = {"kind": str(self.kind), "since": moment_text(self.since)}
        if self.name:
            document["name"] = self.name
        if self.due_at is not None:
            document["due_at"] = moment_text(self.due_at)
        if self.request:
            document["request"] = self.request
        if self.claims:
            document["claims"] = dict(self.claims)
        if self.arguments:
            document["arguments"] = dict(self.arguments)
        if self.voided:
            document["voided"] = self.voided
        if self.data_type is not None:
            document["type"] = self.data_type
        return document

    @classmethod
    def from_document(cls, path: str, document: Mapping[str, Any]) -> Wait:
        """Return the wait of a document.

        Args:
            path: the step.
            document: what `to_document` returned.
        """
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
        )

    def is_newer_than(self, result: Any) -> bool:
        """Tell whether it was begun after a result of the same step: then that is not how it has ended.

        Args:
            result: a `StepResult` of its step.
        """
        return result.started_at is not None and self.since > result.started_at

    @property
    def said(self) -> str:
        """What it does, for people: `waits for the signal 'go' until 2026-01-01 12:00:00 UTC`."""
        until = "" if self.due_at is None else f" until {shown_moment(self.due_at)}"
        if self.kind is WaitKind.SLEEP:
            return f"sleeps{until}"
        what = "the approval" if self.kind is WaitKind.APPROVAL else "the signal"
        return f"waits for {what} {self.name!r}{until}"

    def __str__(self) -> str:
        return f"{self.path} {self.said}"


def moment_text(moment: datetime) -> str:
    """Write an aware time as records do, in UTC.

    Args:
        moment: the time.
    """
    return f"{moment.astimezone(UTC).isoformat()[:-6]}Z"


def shown_moment(moment: datetime) -> str:
    """Write an aware time for people, in UTC.

    Args:
        moment: the time.
    """
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
