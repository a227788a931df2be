"""Actions that wait for a time, a signal or an approval, and those that send a signal or a reply.

A wait is durable: the run may be suspended while it waits. So a wait has neither tries nor a time limit for one try,
but a deadline, which a resume does not move.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar

import attrs

from flowckpt.core.dsl.checks import check_name, is_step, step_error, unyielded_argument_error
from flowckpt.core.dsl.step import Action, RunAction
from flowckpt.core.records.outputs import Approval
from flowckpt.core.records.wait import WaitKind
from flowckpt.core.system.numbers import is_finite_number
from flowckpt.errors import StepDefinitionError

MOST_SECONDS = 100 * 365 * 86_400
"""The longest wait: a century. A longer one is a mistake, and its end may not be a valid datetime."""
NOTHING: Any = object()
"""Marks a missing default."""


class Waiting(Action):
    """The base of the actions that wait."""

    __slots__ = ()
    is_waiting: ClassVar[bool] = True
    refused: ClassVar[frozenset[str]] = frozenset(
        {"retry", "timeout", "ephemeral", "secret", "evidence", "reads", "writes", "at_most_once", "adopt", "on_rerun"}
        | {"rollback", "record_arguments", "cache"}
    )
    kind: ClassVar[WaitKind]
    patience: timedelta | None

    @property
    def name(self) -> str:
        """The name of the signal or approval; empty for a time."""
        return ""

    @property
    def has_default(self) -> bool:
        """Whether the wait returns a default at its deadline instead of failing."""
        return False

    def deadline(self, now: datetime) -> datetime | None:
        """Return when the wait ends by itself if the step is reached at `now`."""
        return None if self.patience is None else now + self.patience


@attrs.frozen
class SleepAction(Waiting):
    """Wait for a time.

    Attributes:
        patience: how long; None if `until` is given.
        until: the time, aware; None if `patience` counts from when the step is reached.
    """

    step_type: ClassVar[str] = "sleep"
    kind: ClassVar[WaitKind] = WaitKind.SLEEP

    patience: timedelta | None = None
    until: datetime | None = None

    def deadline(self, now: datetime) -> datetime | None:
        """Return when the wait ends."""
        return super().deadline(now) if self.until is None else self.until


@attrs.frozen
class WaitAction(Waiting):
    """Wait for a signal.

    Attributes:
        signal: its name.
        data_type: the type of its data.
        patience: how long to wait; None for no limit.
        default: the output after that time; `NOTHING` if the step fails instead.
        ask: the question, shown to the person who answers; None for none.
    """

    step_type: ClassVar[str] = "wait"
    kind: ClassVar[WaitKind] = WaitKind.SIGNAL

    signal: str
    data_type: Any = Any
    patience: timedelta | None = None
    default: Any = NOTHING
    ask: Any = None

    @property
    def name(self) -> str:
        """The name of the signal."""
        return self.signal

    @property
    def has_default(self) -> bool:
        """Whether there is a default."""
        return self.default is not NOTHING

    @property
    def output_type(self) -> Any:
        """The type of the data, or None if that is the default."""
        if self.data_type is Any or self.default is not None:
            return self.data_type
        return self.data_type | None

    @property
    def identity(self) -> Mapping[str, Any]:
        """Its signal."""
        return {"signal": self.signal} if self.ask is None else {"signal": self.signal, "ask": self.ask}


@attrs.frozen
class ApprovalAction(Waiting):
    """Wait for an approval.

    Attributes:
        approval: its name.
        claims: claims about what is to be approved, or one pack of them.
        patience: how long to wait; None for no limit.
        returns_rejection: whether a rejection is returned instead of failing the step.
        ask: the question, shown to the person who answers; None for none.
    """

    step_type: ClassVar[str] = "approval"
    kind: ClassVar[WaitKind] = WaitKind.APPROVAL

    approval: str
    claims: tuple[Any, ...] = ()
    patience: timedelta | None = None
    returns_rejection: bool = False
    ask: Any = None

    @property
    def name(self) -> str:
        """The name of the approval."""
        return self.approval

    @property
    def output_type(self) -> Any:
        """An `Approval`."""
        return Approval

    @property
    def identity(self) -> Mapping[str, Any]:
        """Its name and its claims, as written in the program."""
        bound = {"approval": self.approval, "of": [claim.to_document() for claim in self.claims]}
        return bound if self.ask is None else {**bound, "ask": self.ask}


@attrs.frozen
class SignalAction(RunAction):
    """Send another run a signal.

    Attributes:
        run: the id of the run.
        signal: the name of the signal.
        data: its data.
    """

    step_type: ClassVar[str] = "signal"

    run: str
    signal: str
    data: Any = None

    def arguments(self) -> Mapping[str, Any]:
        """Return the run, the signal and the data."""
        return {"run": self.run, "signal": self.signal, "data": self.data}


@attrs.frozen
class ReplyAction(RunAction):
    """Reply to a signal that a wait of the same run has taken.

    Attributes:
        to: the name or the path of the step that waited.
        value: the reply.
    """

    step_type: ClassVar[str] = "reply"
    is_saved: ClassVar[bool] = True

    to: str
    value: Any = None

    def arguments(self) -> Mapping[str, Any]:
        """Return the step and the reply."""
        return {"to": self.to, "value": self.value}


def sleep_action(name: str, time: Any, until: Any) -> SleepAction:
    """Check the arguments of `.sleep()`; see there."""
    if (time is None) is (until is None):
        raise _refusal(name, "sleep", "takes a time to wait, or until=", "Write .sleep(60), or .sleep(until=moment).")
    if isinstance(time, datetime):
        time, until = None, time
    if until is None:
        return SleepAction(_parse_duration(name, "sleep", "", time))
    if not isinstance(until, datetime) or until.utcoffset() is None:
        problem = f"until={until!r:.60} is not an aware datetime"
        raise _refusal(name, "sleep", problem, "Give it a time zone: datetime(2026, 12, 24, 18, tzinfo=UTC).")
    return SleepAction(None, until)


def wait_action(name: str, signal: Any, data_type: Any, timeout: Any, default: Any, ask: Any) -> WaitAction:
    """Check the arguments of `.wait()`; see there."""
    check_name(signal, "signal's name")
    patience = None if timeout is None else _parse_duration(name, "wait", "timeout=", timeout)
    if problem := _find_non_type(data_type):
        raise _refusal(name, "wait", f"type={problem}", "Pass a type, such as type=int.")
    if default is not NOTHING and patience is None:
        problem = f"default={default!r:.60} without a timeout= is never returned"
        raise _refusal(name, "wait", problem, "Add a timeout, such as timeout=3600.")
    return WaitAction(signal, data_type, patience, default, ask)


def approval_action(name: str, approval: Any, of: Any, timeout: Any, on_rejection: Any, ask: Any) -> ApprovalAction:
    """Check the arguments of `.approval()`; see there."""
    if approval is None:
        approval = name
    check_name(approval, "approval's name")
    claims = () if of is None else tuple(of) if isinstance(of, list | tuple) else (of,)
    if of is not None and not (claims and all(getattr(each, "evidence_list", True) for each in claims)):
        problem = f"of={of!r:.60} contains no claims"
        raise _refusal(name, "approval", problem, "Pass claims about what is to be approved, or remove of=.")
    for claim in claims:
        if not (hasattr(claim, "evidence_type") or (hasattr(claim, "evidence_list") and len(claims) == 1)):
            problem = f"of= takes a list of claims, or one pack, got {claim!r:.60} ({type(claim).__name__})"
            raise _refusal(name, "approval", problem, 'Write of=[file_sha256("report.html")], from flowckpt.evidence.')
    if on_rejection not in ("fail", "return"):
        problem = f"on_rejection={on_rejection!r:.60} is neither 'fail' nor 'return'"
        raise _refusal(name, "approval", problem, "Write one of them.")
    patience = None if timeout is None else _parse_duration(name, "approval", "timeout=", timeout)
    return ApprovalAction(approval, claims, patience, on_rejection == "return", ask)


def signal_action(name: str, run: Any, signal: Any, data: Any) -> SignalAction:
    """Check the arguments of `.signal()`; see there."""
    for each in (run, signal, data):
        if is_step(each):
            raise unyielded_argument_error(name, each)
    if not isinstance(run, str) or not run.strip():
        raise step_error(
            name,
            f".signal() needs the id of a run, got {run!r:.80} ({type(run).__name__})",
            "A .start() step returns the id of its run.",
        )
    check_name(signal, "signal's name")
    return SignalAction(run, signal, data)


def reply_action(name: str, to: Any, value: Any) -> ReplyAction:
    """Check the arguments of `.reply()`; see there."""
    for each in (to, value):
        if is_step(each):
            raise unyielded_argument_error(name, each)
    check_name(to, "name of the step that waited")
    return ReplyAction(to, value)


def _find_non_type(annotation: Any) -> str:
    """Return the part of an annotation that is not a type, as text; empty if all of it is."""
    origin = typing.get_origin(annotation)
    if origin is typing.Literal or annotation is Ellipsis:
        return ""
    if origin is typing.Annotated:
        return _find_non_type(typing.get_args(annotation)[0])
    if origin is not None:
        return next((problem for each in typing.get_args(annotation) if (problem := _find_non_type(each))), "")
    is_type = (
        annotation is None
        or annotation is Any
        or isinstance(annotation, type | typing.TypeVar | list)  # a list: the parameters of a Callable
        or hasattr(annotation, "__supertype__")
        or type(annotation).__module__ in ("typing", "typing_extensions")
    )
    if isinstance(annotation, typing.ForwardRef) or not is_type:
        return f"{annotation!r:.60} is not a type"
    return ""


def _parse_duration(name: str, action: str, label: str, value: Any) -> timedelta:
    seconds = (
        value.total_seconds() if isinstance(value, timedelta) else float(value) if is_finite_number(value) else -1.0
    )
    if not 0 <= seconds <= MOST_SECONDS:
        raise _refusal(
            name,
            action,
            f"{label}{value!r:.60} must be seconds or a timedelta, from 0 to {MOST_SECONDS} s",
            "Write 60, or timedelta(hours=1).",
        )
    return timedelta(seconds=seconds)


def _refusal(name: str, action: str, problem: str, remedy: str) -> StepDefinitionError:
    return step_error(name, f".{action}(): {problem}", remedy)
