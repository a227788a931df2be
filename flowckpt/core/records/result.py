"""The recorded result of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import fsum
from typing import Any

import attrs

from flowckpt.core.system.attrs_base import FieldEquality

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
class StepError(FieldEquality):
    """How a step or a run failed, as recorded.

    Attributes:
        type: the qualified name of the exception's class.
        message: `str()` of the exception.
        bases: the qualified names of the class and its bases up to `Exception`, most derived first.
        traceback: the formatted traceback.
        path: the step that failed, if the error comes from one.
        tries: the number of tries of that step.
        causes: the paths of the failed members of a fan-out.
        extra: unknown fields of a newer version, kept.
        remedy: the suggested fix, if the exception is one of flowckpt's own.
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
class StepResult(FieldEquality):
    """The recorded result of one step: output or error, times, and identity.

    `output` is decoded without the function's annotation: a value of an attrs class appears as its fields.

    Attributes:
        name: the step's name as written.
        step_type: its action: `python`, `command`, `map`, `parallel`, `workflow`, `start`, `signal` …; `rollback` for undoing a
            step.
        success: whether it ended without an error.
        output: what it returned, decoded afresh at each access.
        duration_ms: how long it took, all tries together.
        error: how it failed, or None.
        path: its path in the run.
        started_at: when it was started.
        attempt: the attempt that executed it; 0 if a fork copied it.
        tries: the number of tries.
        function: `module:qualname` of its function; empty for actions without one.
        version: its `.version()` tag, or None.
        location: `file:line` of the `yield`.
        fingerprint: the identity of its function's code; empty if unknown.
        arguments: by parameter: numbers, booleans and None as they are, digests of others, `"?"` for what cannot be
            compared.
        evidence: its claims with their facts, and the verdicts when it ended; None without claims.
        marks: what a rerun must know: `at_most_once`, `on_rerun`, `undoable`, `adopted` (not run but proved done),
            `edited` (its output was replaced in a fork), `not_undone` (not run, because `.on_rerun()` failed),
            `not_started` (failed before its function was called).
        extra: unknown fields of a newer version, kept.
        signal: the id of the signal that the step took, or empty.
        figures: what the step recorded by `current_step().record(…)`: numbers by name, all calls and tries added up.
        source: where the result was made, if `.cache()` took it: `workflow_id`, `path`, and `ended_at`; otherwise empty.
        published: what the step published, as recorded: by name, an object with `value` and `at`; `engine.published(run)`
            decodes the values.
        argument_values: the arguments of the call as JSON, by parameter, if the step has `.record_arguments()`; otherwise empty.
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
    figures: Mapping[str, int | float] = attrs.field(factory=dict)
    source: Mapping[str, str] = attrs.field(factory=dict)
    published: Mapping[str, Any] = attrs.field(factory=dict)
    argument_values: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def held_output(self) -> Any:
        """The output as the record holds it: a plain value, or a `LazyValue`; for the codec and the stores."""
        return self._output

    @property
    def output(self) -> Any:
        """The output of the step."""
        return look(self._output)


_EMPTY: Mapping[str, Any] = {}

for _field in attrs.fields(StepResult):  # attrs leaves no defaults on the class; `result_of` rests upon them
    if _field.default is None or isinstance(_field.default, str | int | float | tuple):
        setattr(StepResult, _field.name, _field.default)
StepResult.arguments = StepResult.extra = StepResult.figures = StepResult.source = StepResult.published = _EMPTY
StepResult.argument_values = _EMPTY
# NOTE: made without `__init__` for speed; measured by `python -m benchmarks --only users`, a further finished step.
_new, _set = object.__new__, object.__setattr__


def result_of(fields: dict[str, Any]) -> StepResult:
    """Return a result that takes a dict for its own: 0.3 µs, where filling in all fields takes 0.7.

    Args:
        fields: the fields under their names here, `_output` too; `name` and `path` at least. Others are not looked at.
    """
    result = _new(StepResult)
    _set(result, "__dict__", fields)
    return result


def sum_figures(results: Iterable[StepResult]) -> dict[str, int | float]:
    """Return the figures of results, added up by name; floats are added exactly, so their order does not matter."""
    found: dict[str, list[int | float]] = {}
    for result in results:
        for name, value in result.figures.items():
            found.setdefault(name, []).append(value)
    return {name: sum_numbers(values) for name, values in found.items()}


def sum_numbers(values: Sequence[int | float]) -> int | float:
    """Return the exact sum of integers, or the float next to that of other numbers."""
    return sum(values) if all(type(value) is int for value in values) else fsum(values)


# What a step saved of itself while it ran, and what identifies the step that saved it.


@attrs.frozen(eq=False, repr=False)
class PartialState(FieldEquality):
    """The state that a step saved by `current_step().save(…)`, kept until the step succeeds.

    Attributes:
        state: the state, decoded afresh at each access.
        function: `module:qualname` of the step's function.
        fingerprint: the identity of its code; empty if unknown.
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
        """The state that the step saved."""
        return look(self._state)
