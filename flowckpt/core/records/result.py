"""What a step left behind."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

from flowckpt.core.system.attrs_base import Fieldwise

COMPOSITES = frozenset({"map", "parallel", "workflow"})
"""The types of steps that are made of steps: their results only say how these ended, and do not count as steps."""


class LazyValue:
    """A recorded value that is decoded when somebody looks at it; the codec makes the subclasses."""

    __slots__ = ()

    def value(self) -> Any:
        """Decode the value: a fresh one each time, so no caller can change the record."""
        raise NotImplementedError  # pragma: no cover - abstract


def look(held: Any) -> Any:
    """Return the value that a record holds, decoding it where it is lazy."""
    return held.value() if isinstance(held, LazyValue) else held


@attrs.frozen(eq=False, repr=False)
class StepError(Fieldwise):
    """How a step failed, as recorded.

    Attributes:
        type: qualified name of the exception's class.
        message: `str()` of the exception.
        bases: qualified names of the class and its bases up to `Exception`, the most special first.
        traceback: the formatted traceback.
        path: the step that failed, where a run's error comes from one.
        tries: how often that step was tried.
        causes: the paths of the members of a fan-out whose failures made it fail.
        extra: fields of the record that this version does not know, kept.
        remedy: what to do about it, where the exception is one of ours and says so.
    """

    type: str
    message: str
    bases: tuple[str, ...] = ()
    traceback: str = ""
    path: str = ""
    tries: int = 1
    causes: tuple[str, ...] = ()
    extra: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    remedy: str = ""


# Filling a frozen class with slots takes twice as long: 1.1 µs against 0.5.
@attrs.frozen(slots=False, eq=False, repr=False)
class StepResult(Fieldwise):
    """What one step left behind: output or error, times, and what identifies it.

    Attributes:
        name: the step's name as written.
        step_type: its action: `python`, `command` …
        success: whether it ended without an error.
        output: what it returned, decoded by the closed set of types (a fresh value at each access).
        duration_ms: how long it ran, in milliseconds, all tries together.
        error: how it failed, or None.
        path: its place in the run; the name where nothing else is needed.
        started_at: when it was started.
        attempt: the attempt of the run that executed it.
        tries: how often it was tried.
        function: `module:qualname` of its function; empty for actions without one.
        version: its `.version()` tag, or None.
        location: `file:line` of the `yield`.
        fingerprint: what identifies the code of its function; empty where it cannot be known.
        arguments: what the record keeps of its arguments, by name: numbers as they are, digests of the others.
        evidence: the claims with their facts, and the answers to them when the step ended; None without claims.
        marks: modifiers that matter when the step is to be run again, or undone: `at_most_once`, `on_rerun`, `undoable`;
            and `adopted`, where the step was not run but proved done.
        extra: fields of the record that this version does not know, kept.
        signal: the id of the signal that the step took; empty where it took none.
    """

    name: str
    step_type: str = "python"
    success: bool = True
    _output: Any = attrs.field(default=None, eq=look, alias="output")
    duration_ms: float = 0.0
    error: StepError | None = None
    path: str = attrs.field(default=attrs.Factory(lambda self: self.name, takes_self=True))
    started_at: datetime | None = None
    attempt: int = 1
    tries: int = 1
    function: str = ""
    version: str | None = None
    location: str = ""
    fingerprint: str = ""
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    evidence: Mapping[str, Any] | None = None
    marks: tuple[str, ...] = ()
    extra: Mapping[str, Any] = attrs.field(factory=dict)
    signal: str = ""

    @property
    def held_output(self) -> Any:
        """The output as the record holds it: a plain value, or a `LazyValue`; for the codec and the stores."""
        return self._output

    @property
    def output(self) -> Any:
        """What the step returned."""
        return look(self._output)


_EMPTY: Mapping[str, Any] = {}

for _field in attrs.fields(StepResult):  # attrs leaves no defaults on the class; `result_of` rests upon them
    if _field.default is None or isinstance(_field.default, str | int | float | tuple):
        setattr(StepResult, _field.name, _field.default)
StepResult.arguments = StepResult.extra = _EMPTY
_new, _set = object.__new__, object.__setattr__


def result_of(fields: dict[str, Any]) -> StepResult:
    """Return a result that takes a dict for its own: 0.3 µs, where filling in all fields takes 0.7.

    Args:
        fields: the fields under their names here, `_output` too; `name` and `path` at least. Others are not looked at.
    """
    result = _new(StepResult)
    _set(result, "__dict__", fields)
    return result


# What a step saved of itself while it ran, and what identifies the step that saved it.


@attrs.frozen(eq=False, repr=False)
class PartialState(Fieldwise):
    """What a step saved of itself by `current_step().save(…)`; kept until the step has ended well.

    Attributes:
        state: what it saved, decoded by the closed set of types (a fresh value at each access).
        function: `module:qualname` of the step's function.
        fingerprint: what identifies its code; empty where it cannot be known.
        arguments: what the record keeps of its arguments.
        version: its `.version()` tag, or None.
    """

    _state: Any = attrs.field(eq=look, alias="state")
    function: str = ""
    fingerprint: str = ""
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    version: str | None = None

    @property
    def held_state(self) -> Any:
        """The state as the record holds it: a plain value, or a `LazyValue`; for the codec and the stores."""
        return self._state

    @property
    def state(self) -> Any:
        """What the step saved."""
        return look(self._state)
