"""When a checkpoint is taken besides the explicit ones: small rules over how far a run has come.

A trigger keeps no state: whoever saves tells it what there is since the last checkpoint, and begins anew after one. So
one trigger can serve many runs, and a resumed run is judged as an uninterrupted one is.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple, Protocol

import attrs

from flowckpt.errors import SettingError
from flowckpt.finite import is_finite_number


class Progress(NamedTuple):
    """How far a run has come. A named tuple, because one is made after each step: 0.2 µs, where attrs takes 0.6.

    Attributes:
        steps: steps that have ended since the last checkpoint.
        seconds: seconds since the last checkpoint, by a monotonic clock.
        results: results of the run in all.
        now: the time, aware and in UTC.
    """

    steps: int
    seconds: float
    results: int
    now: datetime


class Trigger(Protocol):
    """A rule that asks for checkpoints."""

    def should_checkpoint(self, progress: Progress) -> bool:
        """Tell whether a checkpoint is to be taken now.

        Args:
            progress: how far the run has come.
        """
        ...


def _checked_seconds(_: TimeTrigger, __: attrs.Attribute[float], value: float) -> None:
    if not is_finite_number(value) or value <= 0:
        raise SettingError(
            f"a TimeTrigger waits for a number of seconds above 0, not {value!r:.80}",
            setting="seconds",
            remedy="Write TimeTrigger(60).",
        )


@attrs.frozen
class TimeTrigger:
    """Asks for a checkpoint when enough time has passed since the last one; it is asked when a step has ended.

    Attributes:
        seconds: how long; above 0.
    """

    seconds: float = attrs.field(validator=_checked_seconds)

    def should_checkpoint(self, progress: Progress) -> bool:
        """Tell whether that much time has passed since the last checkpoint."""
        return progress.seconds >= self.seconds


def _checked_steps(_: StepCountTrigger, __: attrs.Attribute[int], value: int) -> None:
    if type(value) is not int or value < 1:
        raise SettingError(
            f"a StepCountTrigger counts to a whole number of steps from 1 on, not to {value!r:.80}",
            setting="steps",
            remedy="Write StepCountTrigger(10); 1 is a checkpoint after every step.",
        )


@attrs.frozen
class StepCountTrigger:
    """Asks for a checkpoint when enough steps have ended since the last one.

    Attributes:
        steps: how many; 1 or more.
    """

    steps: int = attrs.field(validator=_checked_steps)

    def should_checkpoint(self, progress: Progress) -> bool:
        """Tell whether that many steps have ended since the last checkpoint."""
        return progress.steps >= self.steps


def _members(value: object) -> tuple[Trigger, ...]:
    members: tuple[Trigger, ...] = tuple(value) if isinstance(value, Iterable) else ()
    if not members:
        raise SettingError(
            f"a CompositeTrigger is made of a list of triggers, with one at least, not of {value!r:.80}",
            setting="triggers",
            remedy="Write CompositeTrigger([TimeTrigger(60), StepCountTrigger(100)]).",
        )
    return tuple(checked_trigger(member) for member in members)


def _checked_mode(_: CompositeTrigger, __: object, value: object) -> None:
    if value not in ("any", "all"):
        raise SettingError(
            f"{value!r:.80} is no mode of a CompositeTrigger", setting="mode", remedy="Write 'any' or 'all'."
        )


@attrs.frozen
class CompositeTrigger:
    """Asks for a checkpoint when one of several triggers does, or when all of them do.

    Attributes:
        triggers: the triggers; one at least.
        mode: `any` or `all`.
    """

    triggers: tuple[Trigger, ...] = attrs.field(converter=_members)
    mode: str = attrs.field(default="any", validator=_checked_mode)

    def should_checkpoint(self, progress: Progress) -> bool:
        """Tell whether one of the triggers asks for it, or all do.

        In mode `any`, one that fails does not keep the others from asking; its error is raised where none of them does.
        """
        if self.mode == "all":
            return all(trigger.should_checkpoint(progress) for trigger in self.triggers)
        failure: Exception | None = None
        for trigger in self.triggers:
            try:
                if trigger.should_checkpoint(progress):
                    return True
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return False


def checked_trigger(value: object) -> Trigger:
    """Return a trigger, or refuse what is none before anything depends on it.

    Args:
        value: what was given as a trigger.

    Raises:
        SettingError: it has no plain method `should_checkpoint`, or is a class instead of one made of it.
    """
    method = getattr(value, "should_checkpoint", None)
    if isinstance(value, type) or not callable(method) or inspect.iscoroutinefunction(method):
        raise SettingError(
            f"{value!r:.80} is no trigger",
            setting="trigger",
            remedy="Give a TimeTrigger(…), a StepCountTrigger(…), or an object with a method "
            "'should_checkpoint(progress)' that is not async and returns True or False.",
        )
    return value  # type: ignore[return-value]


def asks_for_checkpoint(
    trigger: Trigger, progress: Progress, log: logging.Logger, told: set[str] | None = None
) -> bool:
    """Ask a trigger; one that fails, or that answers neither True nor False, is told to the log and means no.

    A trigger decides when to save, never whether the run goes on.

    Args:
        trigger: the trigger.
        progress: how far the run has come.
        log: is told what went wrong.
        told: what it was told already; the same is not told again. Changed.
    """
    try:
        answer: object = trigger.should_checkpoint(progress)
    except Exception as error:
        _tell(log, told, _culprit(trigger, error), f"it raised {error!r}")
        return False
    if isinstance(answer, bool):
        return answer
    _tell(log, told, trigger, f"it answered {answer!r:.80}, not True or False")
    return False


def _culprit(trigger: Trigger, error: BaseException) -> Trigger:
    """Return the member of a composite that failed, as its frames say; else the trigger itself."""
    frame = error.__traceback__
    while frame is not None:
        found: Any = frame.tb_frame.f_locals.get("self")
        if callable(getattr(found, "should_checkpoint", None)):
            trigger = found
        frame = frame.tb_next
    return trigger


def _tell(log: logging.Logger, told: set[str] | None, trigger: Trigger, what: str) -> None:
    """Tell the log once: a trigger is asked after every step, and most often fails as it did before."""
    text = f"no checkpoint is taken for {type(trigger).__name__}: {what}"
    if told is None or text not in told:
        log.warning("%s", text)
    if told is not None:
        told.add(text)
