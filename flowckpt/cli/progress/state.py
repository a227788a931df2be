"""The base of progress displays, and the counts that they share."""

from __future__ import annotations

from typing import Any

import attrs

from flowckpt.core.records.result import FAN_OUTS
from flowckpt.core.system.attrs_base import FieldEquality, lazy_define
from flowckpt.events import Event


class Progress:
    """Shows the events of a run; this base shows nothing. It never raises: no run fails because of its progress."""

    def start(self) -> None:
        """Start to show."""

    def show(self, event: Event) -> None:
        """Show an event; called between two steps, so it must be quick."""

    def stop(self) -> None:
        """Show the rest, and release the terminal."""


# The progress of a step as text.


def progress_text(done: float, total: float | None, note: str) -> str:
    """Return the progress of a step as text: `1,200 of 5,000 (24 %), parsing`.

    Args:
        done: how much is done.
        total: the total, or None.
        note: the current activity; may be empty.
    """
    text = _number(done)
    if total is not None:
        text += f" of {_number(total)}"
        if total > 0:
            text += f" ({min(100, int(100 * done / total))} %)"
    return f"{text}, {note}" if note else text


def _number(value: float) -> str:
    if isinstance(value, int) or value.is_integer():
        return f"{int(value):,}"
    return f"{value:,.2f}"


@attrs.define
class Counts:
    """The steps of an attempt, counted like in its summary.

    Attributes:
        executed: steps that were executed, failed ones included.
        restored: results from the record.
        failed: executed steps that failed.
        adopted: at-most-once steps that were not run, because they had been done.
        undone: steps that were undone.
        stuck: steps that could not be undone.
    """

    executed: int = 0
    restored: int = 0
    failed: int = 0
    adopted: int = 0
    undone: int = 0
    stuck: int = 0
    _restored_since: int = 0
    _verified_since: int = 0

    def restore(self, steps: int = 1, *, is_reverified: bool) -> None:
        """Count restored steps, and whether their evidence was checked and holds."""
        self.restored += steps
        self._restored_since += steps
        self._verified_since += is_reverified

    def take_restored(self) -> tuple[int, int]:
        """Return how many steps were restored since the last call, and how many of these have evidence that holds."""
        counts = self._restored_since, self._verified_since
        self._restored_since = self._verified_since = 0
        return counts

    def __str__(self) -> str:
        text = f"{self.executed} executed, {self.restored + self.adopted} restored, {self.failed} failed"
        text += f", {self.undone} undone" if self.undone else ""
        return text + (f", {self.stuck} could not be undone" if self.stuck else "")


# Maps and groups of a run. A large one is shown as one line.


_MOST_SHOWN = 8


@lazy_define(eq=False, repr=False)
class FanOutProgress(FieldEquality):
    """The progress of a map or group.

    Attributes:
        path: its path.
        total: the number of members; None if not known yet.
        done: how many have ended, including restored ones.
        failed: how many of them failed.
        has_started: whether it is running; before that, results of its members are being restored.
        done_before: how many had ended when it started.
        is_map: whether it is a map, which is always shown as one line.
    """

    path: str
    total: int | None = None
    done: int = 0
    failed: int = 0
    has_started: bool = False
    done_before: int = 0
    is_map: bool = False

    @property
    def is_folded(self) -> bool:
        """Whether it is shown as one line, without lines of its members."""
        return self.is_map or self.total is None or self.total > _MOST_SHOWN

    def __str__(self) -> str:
        total = "" if self.total is None else f"/{self.total}"
        return f"{self.done}{total}" + (f", {self.failed} failed" if self.failed else "")


class FanOuts:
    """Counts the members of all maps and groups of a run."""

    def __init__(self) -> None:
        self._fan_outs: dict[str, FanOutProgress] = {}

    def get(self, path: str) -> FanOutProgress | None:
        """Return the progress of a running map or group; None if there is none at the path."""
        fan_out = self._fan_outs.get(path)
        return fan_out if fan_out is not None and fan_out.has_started else None

    def find_folded(self, path: str) -> FanOutProgress | None:
        """Return the map or group whose line includes a step: the outermost folded one around it, if any."""
        end = path.find("/[")
        while end >= 0:
            fan_out = self.get(path[:end])
            if fan_out is not None and fan_out.is_folded:
                return fan_out
            end = path.find("/[", end + 1)
        return None

    def note(self, event: Event) -> None:
        """Update the counts for an event."""
        kind, path = event.kind, getattr(event, "path", "")
        if kind == "StepStarted":
            self._count_start(event)
        elif kind == "StepRestored":
            self._count_end(path, has_failed=not getattr(event, "success", True))
        elif kind in ("StepCompleted", "StepFailed", "StepAdopted"):
            self._count_end(path, has_failed=kind == "StepFailed")

    def forget(self, path: str) -> None:
        """Forget a map or group that has ended."""
        self._fan_outs.pop(path, None)

    def _count_start(self, event: Any) -> None:
        if event.step_type in FAN_OUTS:
            fan_out = self._fan_outs.setdefault(event.path, FanOutProgress(event.path))
            fan_out.total, fan_out.has_started, fan_out.done_before = event.members, True, fan_out.done
            fan_out.is_map = event.step_type == "map"

    def _count_end(self, path: str, *, has_failed: bool) -> None:
        outer, _, place = path.rpartition("/")
        if place.startswith("["):
            fan_out = self._fan_outs.setdefault(outer, FanOutProgress(outer))
            fan_out.done += 1
            fan_out.failed += has_failed


# Progress of a resume that may still be refused: its events are held back until a step is executed.
#
# A resume may be refused after it has restored the results before a stale one. Without holding back, it would report
# "resumed" for a run that was not resumed.


_BEFORE_WORK = frozenset({"WorkflowResumed", "StepRestored", "StepsRestored", "EvidenceVerified", "EvidenceFailed"})


class DelayedProgress(Progress):
    """Holds the events of a resume back until it executes a step, and then shows them in order.

    Args:
        shown: the display.
    """

    def __init__(self, display: Progress) -> None:
        self._display = display
        self._events: list[Event] | None = []

    def start(self) -> None:
        """Start to show."""
        self._display.start()

    def show(self, event: Event) -> None:
        """Hold an event back, or show it after all held events."""
        if self._events is None:
            self._display.show(event)
            return
        self._events.append(event)
        if event.kind not in _BEFORE_WORK:
            events, self._events = self._events, None
            for each in events:
                self._display.show(each)

    def stop(self) -> None:
        """Drop the held events: the error says why the resume was refused."""
        self._display.stop()
